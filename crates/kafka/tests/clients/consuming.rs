//! Consumers of partitions that the caller names.

use std::thread;
use std::time::{Duration, Instant};

use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    AtOffset, ConsumerOptions, PartitionConsumer, PollError, PollLimits, Polled, ReadError,
    RecordReader, RecordRef,
};

use crate::fixture::Fixture;
use crate::on_both_brokers;
use crate::support::{
    A_WHILE, ALL, NOTHING, PATIENCE, read, read_to, read_to_error, send_batch, values,
};

on_both_brokers! {
    a_poll_keeps_to_its_limits_and_the_next_continues_from_there
    a_poll_without_records_sleeps_until_its_timeout
    partitions_are_added_and_removed_without_disturbing_the_others
    a_partition_unknown_to_the_client_is_read_once_it_is_known
    a_start_beyond_the_end_is_an_error_that_names_the_partition
    a_start_below_what_was_deleted_is_an_error_that_names_what_is_left
    each_partition_without_its_offset_is_reported
    a_recreated_topic_with_fewer_records_is_an_error_for_a_reader_of_more
    a_partition_that_is_read_from_its_end_is_reported_as_read_to_its_end
    a_copy_of_the_checkpoint_is_committed_for_lag_tools
    a_reader_of_single_records_reports_the_record_at_an_offset
}

/// The batch in the middle of a partition is damaged. Records before it are handed over, records
/// after it are not, and the other partition is read on.
#[test]
fn a_damaged_batch_is_reported_and_not_skipped() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    for value in [&b"before"[..], b"the damaged one", b"behind"] {
        send_batch(&producer, &topic, 0, &[value]);
    }
    send_batch(&producer, &topic, 1, &[b"healthy"]);
    fixture.flip_a_bit_of(b"the damaged one");

    let consumer = fixture.consumer(&topic, 0, 0);
    let other = [(topic.as_str(), PartitionId(1), Offset(0))];
    consumer.add(&other).unwrap();
    let (mut records, mut damaged) = (Vec::new(), None);
    let deadline = Instant::now() + PATIENCE;
    while damaged.is_none() || records.len() < 2 {
        assert!(Instant::now() < deadline, "{records:?} {damaged:?}");
        let mut on_record = |record: RecordRef<'_>| records.push(record.to_raw());
        match consumer.poll(ALL, Duration::from_millis(100), &mut on_record) {
            Ok(_) => {}
            Err(PollError::Damaged(logs)) => assert_eq!(damaged.replace(logs), None),
            Err(error) => panic!("{error:?}"),
        }
    }
    let mut read = values(&records);
    read.sort_unstable();
    assert_eq!(read, [&b"before"[..], b"healthy"]);
    let [log] = &damaged.unwrap()[..] else {
        panic!("one partition is damaged")
    };
    let named = (log.topic.as_str(), log.partition, log.offset);
    assert_eq!(named, (topic.as_str(), PartitionId(0), Offset(1)));

    send_batch(&producer, &topic, 1, &[b"later"]);
    assert_eq!(values(&self::read(&consumer, 1)), [b"later"]);

    fixture.flip_a_bit_of(b"the damaged one");
    let again = [(topic.as_str(), PartitionId(0), Offset(1))];
    consumer.add(&again).unwrap();
    let rest = self::read(&consumer, 2);
    assert_eq!(values(&rest), [&b"the damaged one"[..], b"behind"]);
}

/// No broker answers while the consumer searches many partitions for the damage.
#[test]
fn a_search_among_many_partitions_ends_in_time_and_a_later_one_finds_the_damage() {
    const OTHERS: u32 = 20;
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 1 + OTHERS);
    let producer = fixture.producer();
    for value in [&b"before"[..], b"the damaged one", b"behind"] {
        send_batch(&producer, &topic, 0, &[value]);
    }
    for partition in 1..=OTHERS {
        send_batch(&producer, &topic, partition, &[b"healthy"]);
    }
    fixture.line().damage(&[b"the damaged one"]);
    let consumer = fixture.consumer(&topic, 0, 0);
    let one = PollLimits { records: 1, ..ALL };
    let mut values = Vec::new();
    while values.is_empty() {
        let mut on_record = |record: RecordRef<'_>| values.push(record.to_raw().value.unwrap());
        consumer.poll(one, A_WHILE, &mut on_record).unwrap();
    }
    // Until the damage is prefetched.
    thread::sleep(A_WHILE * 10);
    fixture.slow_down(Duration::from_secs(6));
    for partition in 1..=OTHERS {
        let at = (topic.as_str(), PartitionId(partition), Offset(0));
        consumer.add(&[at]).unwrap();
    }
    let asked_at = Instant::now();
    consumer.poll(ALL, A_WHILE, &mut |_| panic!()).unwrap();
    // Waiting for an answer about each would take more than 40 s.
    assert!(asked_at.elapsed() < Duration::from_secs(20));

    fixture.slow_down(Duration::ZERO);
    let deadline = Instant::now() + PATIENCE;
    let mut damaged = None;
    while damaged.is_none() || values.len() < 1 + OTHERS as usize {
        assert!(Instant::now() < deadline, "{values:?} {damaged:?}");
        let mut on_record = |record: RecordRef<'_>| values.push(record.to_raw().value.unwrap());
        match consumer.poll(ALL, A_WHILE, &mut on_record) {
            Ok(_) => {}
            Err(PollError::Damaged(logs)) => assert_eq!(damaged.replace(logs), None),
            Err(error) => panic!("{error:?}"),
        }
    }
    let damaged = damaged.unwrap();
    let at: Vec<_> = damaged
        .iter()
        .map(|log| (log.partition, log.offset))
        .collect();
    assert_eq!(at, [(PartitionId(0), Offset(1))]);
    assert_eq!(values.remove(0), b"before");
    assert!(values.iter().all(|value| value == b"healthy"), "{values:?}");
}

fn a_poll_keeps_to_its_limits_and_the_next_continues_from_there(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    send_batch(
        &fixture.producer(),
        &topic,
        0,
        &[b"a", b"b", b"c", b"d", b"e"],
    );
    let consumer = fixture.consumer(&topic, 0, 1);

    let mut seen = Vec::new();
    let mut take = |limits| {
        let polled = consumer.poll(limits, PATIENCE, &mut |record| seen.push(record.offset().0));
        let Polled { records, bytes } = polled.unwrap();
        (records, bytes)
    };
    let limits = |records, bytes| PollLimits { records, bytes };
    assert_eq!(take(limits(1, 1_000)), (1, 4));
    // Four bytes each: the second exceeds the limit of five.
    assert_eq!(take(limits(9, 5)), (2, 8));
    assert_eq!(take(limits(1, 1_000)), (1, 4));
    assert_eq!(seen, [1, 2, 3, 4]);

    let started = Instant::now();
    let wait = Duration::from_millis(50);
    let quiet = consumer.poll(ALL, wait, &mut |_| panic!());
    assert_eq!(quiet.unwrap(), Polled::default());
    assert!(started.elapsed() >= wait);
}

fn a_poll_without_records_sleeps_until_its_timeout(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let consumer = fixture.consumer(&topic, 0, 0);
    let nothing = || {
        let polled = consumer.poll(ALL, Duration::from_millis(2), &mut |_| panic!());
        assert_eq!(polled.unwrap(), Polled::default());
    };
    nothing();
    let (Some(worked), began) = (thread_cpu(), Instant::now()) else {
        eprintln!("SKIPPED: the CPU time of a wait: this system does not report it");
        return;
    };
    (0..100).for_each(|_| nothing());
    let (worked, passed) = (thread_cpu().unwrap() - worked, began.elapsed());
    assert!(worked < passed / 4, "{worked:?} of {passed:?}");
}

/// The CPU time of this thread so far, on Linux.
fn thread_cpu() -> Option<Duration> {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = schedstat.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

fn a_partition_unknown_to_the_client_is_read_once_it_is_known(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a"]);
    let consumer = fixture.consumer(&topic, 0, 0);
    assert_eq!(values(&read(&consumer, 1)), [b"a"]);

    fixture.more_partitions(&topic, 2);
    let ends = consumer.watermarks(&topic, PartitionId(1), PATIENCE);
    assert_eq!(ends.unwrap(), (Offset(0), Offset(0)));
    consumer
        .add(&[(&topic, PartitionId(1), Offset(0))])
        .unwrap();
    send_batch(&fixture.producer(), &topic, 1, &[b"b"]);
    assert_eq!(values(&read(&consumer, 1)), [b"b"]);
}

fn partitions_are_added_and_removed_without_disturbing_the_others(fixture: &Fixture) {
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[b"a0", b"a1"]);
    send_batch(&producer, &topic, 1, &[b"b0", b"b1"]);
    let consumer = fixture.consumer(&topic, 0, 0);
    assert_eq!(values(&read(&consumer, 2)), [b"a0", b"a1"]);

    consumer
        .add(&[(&topic, PartitionId(1), Offset(1))])
        .unwrap();
    assert_eq!(values(&read(&consumer, 1)), [b"b1"]);
    send_batch(&producer, &topic, 0, &[b"a2"]);
    assert_eq!(values(&read(&consumer, 1)), [b"a2"]);

    consumer.remove(&[(&topic, PartitionId(0))]).unwrap();
    send_batch(&producer, &topic, 0, &[b"a3"]);
    send_batch(&producer, &topic, 1, &[b"b2"]);
    assert_eq!(values(&read(&consumer, 1)), [b"b2"]);
    let quiet = consumer.poll(ALL, Duration::from_millis(100), &mut |_| panic!());
    assert_eq!(quiet.unwrap(), Polled::default());
}

fn a_start_beyond_the_end_is_an_error_that_names_the_partition(fixture: &Fixture) {
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[b"a", b"b", b"c"]);
    send_batch(&producer, &topic, 1, &[b"a"]);
    let consumer = fixture.consumer(&topic, 0, 3);
    consumer
        .add(&[(&topic, PartitionId(1), Offset(7))])
        .unwrap();
    assert_out_of_range(&read_to_error(&consumer), &topic, 1, 7, (0, 1));
    // The other partition, read from its very end, continues.
    send_batch(&producer, &topic, 0, &[b"d"]);
    assert_eq!(values(&read(&consumer, 1)), [b"d"]);
}

fn each_partition_without_its_offset_is_reported(fixture: &Fixture) {
    let topic = fixture.topic("t", 3);
    send_batch(&fixture.producer(), &topic, 0, &[b"a"]);
    let consumer = fixture.consumer(&topic, 0, 1);
    let beyond = [
        (&*topic, PartitionId(1), Offset(7)),
        (&topic, PartitionId(2), Offset(9)),
    ];
    consumer.add(&beyond).unwrap();
    let reported = match read_to_error(&consumer) {
        PollError::OffsetOutOfRange(partitions) => partitions,
        other => panic!("{other:?}"),
    };
    let mut reported: Vec<_> = reported
        .iter()
        .map(|of| (of.partition.0, of.offset.0))
        .collect();
    reported.sort_unstable();
    assert_eq!(reported, [(1, 7), (2, 9)]);
}

fn a_start_below_what_was_deleted_is_an_error_that_names_what_is_left(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[b"a", b"b", b"c", b"d", b"e"]);
    fixture.delete_records(&topic, 3);
    let consumer = fixture.consumer(&topic, 0, 1);
    assert_out_of_range(&read_to_error(&consumer), &topic, 0, 1, (3, 5));

    // A consumer that starts at the first remaining record reads all of them.
    consumer
        .assign(&[(&topic, PartitionId(0), Offset(3))])
        .unwrap();
    assert_eq!(values(&read(&consumer, 2)), [b"d", b"e"]);
    // Deleting records that a consumer has read does not affect it.
    fixture.delete_records(&topic, 5);
    send_batch(&producer, &topic, 0, &[b"f"]);
    assert_eq!(values(&read(&consumer, 1)), [b"f"]);
}

fn a_reader_of_single_records_reports_the_record_at_an_offset(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a", b"b", b"c"]);
    fixture.delete_records(&topic, 1);
    let reader = RecordReader::new(fixture.settings.clone(), "reader");
    let at = |partition: u32, offset: i64| {
        let read = async {
            let (partition, due) = (PartitionId(partition), Instant::now() + PATIENCE);
            let value = |record: RecordRef<'_>| record.value().unwrap().to_vec();
            let permit = reader.acquire().await;
            permit
                .read(&topic, partition, Offset(offset), due, value)
                .await
        };
        fixture.runtime.block_on(read)
    };
    assert_eq!(at(0, 1).unwrap(), AtOffset::Record(b"b".to_vec()));
    assert!(matches!(at(7, 0), Err(ReadError::Request(_))));
    assert_eq!(at(0, 0).unwrap(), AtOffset::Deleted);
    assert_eq!(at(0, 3).unwrap(), AtOffset::Ahead);
    assert_eq!(at(0, 2).unwrap(), AtOffset::Record(b"c".to_vec()));
    reader.close();
}

fn a_recreated_topic_with_fewer_records_is_an_error_for_a_reader_of_more(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a", b"b", b"c"]);
    let consumer = fixture.consumer(&topic, 0, 0);
    assert_eq!(read(&consumer, 3).len(), 3);
    fixture.delete(&topic);
    assert_eq!(fixture.topic("t", 1), topic);
    send_batch(&fixture.producer(), &topic, 0, &[b"new"]);
    assert_out_of_range(&read_to_error(&consumer), &topic, 0, 3, (0, 1));
}

fn a_partition_that_is_read_from_its_end_is_reported_as_read_to_its_end(fixture: &Fixture) {
    let (empty, filled) = (fixture.topic("empty", 1), fixture.topic("filled", 1));
    send_batch(&fixture.producer(), &filled, 0, &[b"a", b"b"]);
    let consumer = PartitionConsumer::new(&fixture.settings, &ConsumerOptions::new("c")).unwrap();
    // Both partitions have the same number.
    consumer
        .add(&[(&filled, PartitionId(0), Offset(2))])
        .unwrap();
    assert_eq!(read_to(&consumer, &filled, 2), NOTHING);
    consumer
        .add(&[(&empty, PartitionId(0), Offset(0))])
        .unwrap();
    assert_eq!(read_to(&consumer, &empty, 0), NOTHING);
}

/// A client that is not a member of the group may commit to it as long as it has no members.
fn a_copy_of_the_checkpoint_is_committed_for_lag_tools(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a", b"b", b"c"]);
    let mut options = ConsumerOptions::new("c");
    options.group_for_lag = Some(fixture.name("lag"));
    let consumer = PartitionConsumer::new(&fixture.settings, &options).unwrap();
    consumer
        .assign(&[(&topic, PartitionId(0), Offset(0))])
        .unwrap();
    assert_eq!(read(&consumer, 3).len(), 3);
    let committed = || crate::groups::committed(fixture, &fixture.name("lag"), &topic, 0);
    assert_eq!(committed(), None);
    let deadline = Instant::now() + PATIENCE;
    // A copy may fail, and the next one replaces it.
    while committed() != Some(2) {
        assert!(Instant::now() < deadline, "{:?}", committed());
        consumer.commit_copy(&[(&topic, PartitionId(0), Offset(2))]);
    }
}

#[track_caller]
fn assert_out_of_range(
    error: &PollError,
    topic: &str,
    partition: u32,
    offset: i64,
    held: (i64, i64),
) {
    match error {
        PollError::OffsetOutOfRange(partitions) => {
            let [of] = partitions.as_slice() else {
                panic!("{partitions:?}");
            };
            assert_eq!((of.topic.as_str(), of.partition.0), (topic, partition));
            assert_eq!((of.offset.0, (of.low.0, of.high.0)), (offset, held));
        }
        other => panic!("{other:?}"),
    }
}
