//! Members of consumer groups.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    ConsumerOptions, GroupConsumer, GroupHandler, GroupOptions, KafkaSettings, PartitionConsumer,
    PollLimits, Polled, ProducerOptions, RecordRef, TopicPartition,
};

use crate::{ALL, BatchProducer, PATIENCE, cluster, send_batch};

/// What a member of a group was told, and what it wants committed when it gives partitions up.
#[derive(Default)]
struct Member {
    held: Vec<PartitionId>,
    read: BTreeMap<PartitionId, Vec<Vec<u8>>>,
    next: BTreeMap<PartitionId, Offset>,
    revoked: usize,
}

impl GroupHandler for Member {
    fn record(&mut self, record: RecordRef<'_>) {
        assert!(
            self.held.contains(&record.partition()),
            "a record of a partition not held"
        );
        self.read
            .entry(record.partition())
            .or_default()
            .push(record.value().unwrap().to_vec());
        self.next.insert(record.partition(), record.offset().next());
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) {
        self.held
            .extend(partitions.iter().map(|held| held.partition));
    }

    fn revoked(
        &mut self,
        partitions: &[TopicPartition],
        lost: bool,
    ) -> Vec<(TopicPartition, Offset)> {
        assert!(!lost);
        self.revoked += partitions.len();
        self.held
            .retain(|held| !partitions.iter().any(|gone| gone.partition == *held));
        partitions
            .iter()
            .filter_map(|gone| Some((gone.clone(), self.next.remove(&gone.partition)?)))
            .collect()
    }
}

impl Member {
    fn read_count(&self) -> usize {
        self.read.values().map(Vec::len).sum()
    }
}

fn poll_until(
    members: &mut [(&GroupConsumer, &mut Member)],
    mut done: impl FnMut(&[(&GroupConsumer, &mut Member)]) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !done(members) {
        assert!(Instant::now() < deadline, "the group did not get there");
        for (consumer, member) in members.iter_mut() {
            consumer
                .poll(ALL, Duration::from_millis(50), *member)
                .unwrap();
        }
    }
}

#[test]
fn a_group_member_starts_at_the_beginning_and_its_successor_where_it_committed() {
    let (_cluster, settings) = cluster("t", 2);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a0", b"a1"]);
    send_batch(&producer, "t", 1, &[b"b0"]);

    let first = GroupConsumer::new(&settings, &GroupOptions::new("g", "first")).unwrap();
    first.subscribe(&["t"]).unwrap();
    let mut member = Member::default();
    poll_until(&mut [(&first, &mut member)], |members| {
        members[0].1.read_count() == 3
    });
    assert_eq!(member.held.len(), 2);
    assert_eq!(member.read[&PartitionId(0)], [b"a0", b"a1"]);
    first.commit(&[("t", PartitionId(0), Offset(1))]).unwrap();
    // What it says when its partitions are revoked is committed too: here, nothing of partition 0.
    member.next.remove(&PartitionId(0));
    first.close(PATIENCE, &mut member);
    assert_eq!((member.held.len(), member.revoked), (0, 2));

    let second = GroupConsumer::new(&settings, &GroupOptions::new("g", "second")).unwrap();
    second.subscribe(&["t"]).unwrap();
    send_batch(&producer, "t", 1, &[b"b1"]);
    let mut member = Member::default();
    poll_until(&mut [(&second, &mut member)], |members| {
        members[0].1.read_count() == 2
    });
    assert_eq!(member.read[&PartitionId(0)], [b"a1"]);
    assert_eq!(member.read[&PartitionId(1)], [b"b1"]);
}

#[test]
fn a_second_member_takes_over_some_partitions_where_the_first_stopped() {
    let (_cluster, settings) = cluster("t", 4);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    for partition in 0..4 {
        send_batch(&producer, "t", partition, &[b"0"]);
    }
    let first = GroupConsumer::new(&settings, &GroupOptions::new("g", "first")).unwrap();
    first.subscribe(&["t"]).unwrap();
    let mut one = Member::default();
    poll_until(&mut [(&first, &mut one)], |members| {
        members[0].1.read_count() == 4
    });

    let second = GroupConsumer::new(&settings, &GroupOptions::new("g", "second")).unwrap();
    second.subscribe(&["t"]).unwrap();
    let mut two = Member::default();
    poll_until(&mut [(&first, &mut one), (&second, &mut two)], |members| {
        members.iter().all(|(_, member)| member.held.len() == 2)
    });
    // The first kept two partitions all along.
    assert_eq!(one.revoked, 2);
    for partition in 0..4 {
        send_batch(&producer, "t", partition, &[b"1"]);
    }
    poll_until(&mut [(&first, &mut one), (&second, &mut two)], |members| {
        members
            .iter()
            .map(|(_, member)| member.read_count())
            .sum::<usize>()
            >= 8
    });
    for partition in (0..4).map(PartitionId) {
        let mut read = one.read.remove(&partition).unwrap_or_default();
        read.extend(two.read.remove(&partition).unwrap_or_default());
        assert_eq!(read, [b"0", b"1"], "partition {partition}");
    }
    // Members that are dropped without closing end too.
    drop(second);
    drop(first);
}

#[test]
fn a_member_that_holds_records_back_keeps_its_partitions_and_misses_nothing() {
    let (_cluster, settings) = cluster("t", 2);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    send_batch(&producer, "t", 0, &[b"a0", b"a1", b"a2"]);
    let first = GroupConsumer::new(&settings, &GroupOptions::new("g", "first")).unwrap();
    first.subscribe(&["t"]).unwrap();
    // Partitions that come while records are held back are held back too.
    first.hold(true).unwrap();
    let mut one = Member::default();
    poll_until(&mut [(&first, &mut one)], |members| {
        members[0].1.held.len() == 2
    });
    hold_back(&first, &mut one);

    first.hold(false).unwrap();
    let one_record = PollLimits { records: 1, ..ALL };
    while one.read_count() < 1 {
        first.poll(one_record, PATIENCE, &mut one).unwrap();
    }
    // What was prefetched by now is not handed over.
    first.hold(true).unwrap();
    send_batch(&producer, "t", 1, &[b"b0"]);
    hold_back(&first, &mut one);

    // A partition that is given up meanwhile is not held back when it comes again.
    let second = GroupConsumer::new(&settings, &GroupOptions::new("g", "second")).unwrap();
    second.subscribe(&["t"]).unwrap();
    let mut two = Member::default();
    poll_until(&mut [(&first, &mut one), (&second, &mut two)], |members| {
        members.iter().all(|(_, member)| member.held.len() == 1)
    });
    second.close(PATIENCE, &mut two);
    first.hold(false).unwrap();
    poll_until(&mut [(&first, &mut one)], |members| {
        members[0].1.held.len() == 2
    });
    for partition in 0..2 {
        send_batch(&producer, "t", partition, &[b"last"]);
    }
    poll_until(&mut [(&first, &mut one)], |members| {
        let read = &members[0].1.read;
        read.len() == 2
            && read
                .values()
                .all(|values| values.ends_with(&[b"last".to_vec()]))
    });
    let both = [&one, &two].map(|member| member.read.get(&PartitionId(0)));
    let of_first: Vec<_> = both.into_iter().flatten().flatten().collect();
    for value in [b"a0", b"a1", b"a2"] {
        assert!(of_first.iter().any(|read| *read == value), "{value:?}");
    }
}

/// Polls for a while a member that has something to read, and asserts that it takes nothing.
fn hold_back(consumer: &GroupConsumer, member: &mut Member) {
    for _ in 0..10 {
        let polled = consumer.poll(ALL, Duration::from_millis(50), member);
        assert_eq!(polled.unwrap(), Polled::default());
    }
}

#[test]
fn consumers_of_an_unreachable_broker_end_when_they_are_dropped() {
    let nowhere = KafkaSettings::new("127.0.0.1:1");
    let started = Instant::now();
    let mut options = ConsumerOptions::new("c");
    options.group_for_lag = Some("lag".to_owned());
    let consumer = PartitionConsumer::new(&nowhere, &options).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    let polled = consumer
        .poll(ALL, Duration::from_millis(50), &mut |_| panic!())
        .unwrap();
    assert_eq!(polled, Polled::default());
    consumer.commit_copy(&[("t", PartitionId(0), Offset(5))]);
    drop(consumer);
    let member = GroupConsumer::new(&nowhere, &GroupOptions::new("g", "c")).unwrap();
    member.subscribe(&["t"]).unwrap();
    drop(member);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

#[test]
fn a_member_without_a_partition_was_assigned_its_share_all_the_same() {
    let (_cluster, settings) = cluster("t", 1);
    let first = GroupConsumer::new(&settings, &GroupOptions::new("g", "first")).unwrap();
    first.subscribe(&["t"]).unwrap();
    let second = GroupConsumer::new(&settings, &GroupOptions::new("g", "second")).unwrap();
    second.subscribe(&["t"]).unwrap();
    let (mut one, mut two) = (Member::default(), Member::default());
    first.poll(ALL, Duration::ZERO, &mut one).unwrap();
    assert!(!first.was_assigned(), "nothing can have come yet");
    poll_until(&mut [(&first, &mut one), (&second, &mut two)], |members| {
        members.iter().all(|(consumer, _)| consumer.was_assigned())
    });
    assert_eq!(one.held.len() + two.held.len(), 1);
}
