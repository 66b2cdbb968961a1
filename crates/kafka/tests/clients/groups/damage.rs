//! Members that meet damaged records.
//!
//! The embedded broker does not serve a batch that is damaged on its disk. Apache Kafka does, and
//! librdkafka continues after it: here, the proxy damages the batch.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use waybill_engine::PartitionId;
use waybill_kafka::PollLimits;

use super::{LONG_SESSION, Member, poll_until};
use crate::fixture::Fixture;
use crate::support::{A_WHILE, ALL, BatchProducer, PATIENCE, send_batch};

const DAMAGED: &[u8] = b"the damaged one";
/// How long a damaged partition stays paused, in tests that wait for it.
const SOON: Duration = Duration::from_secs(4);
/// The same, in tests that check the state before it.
const LATER: Duration = Duration::from_secs(20);

/// Three batches, of which tests damage the middle one.
fn send_three(producer: &BatchProducer, topic: &str, partition: u32) {
    for value in [b"before", DAMAGED, b"behind"] {
        send_batch(producer, topic, partition, &[value]);
    }
}

fn impatient(fixture: &Fixture, topic: &str) -> Member {
    Member::new(fixture, topic, |options| options.damaged_again_after = SOON)
}

/// Polls until the member has searched for the cause of a stall. The client that searches opens its
/// own connection.
fn poll_until_stall_is_noticed(fixture: &Fixture, member: &mut Member) {
    let connections = fixture.line().connections();
    poll_until([member], |_| fixture.line().connections() > connections);
}

fn poll_for(member: &mut Member, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        member.poll(ALL, A_WHILE);
    }
}

#[test]
fn a_member_stops_only_the_partition_with_a_damaged_batch() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_three(&producer, &topic, 0);
    send_batch(&producer, &topic, 1, &[b"healthy"]);
    fixture.flip_a_bit_of(DAMAGED);

    let mut member = Member::new(&fixture, &topic, |_| {});
    poll_until([&mut member], |[member]| member.read_count() == 2);
    member.poll_in_vain();
    send_batch(&producer, &topic, 1, &[b"later"]);
    poll_until([&mut member], |[member]| member.values(1).len() == 2);
    assert_eq!(member.values(0), [b"before"]);
    assert_eq!(member.values(1), [&b"healthy"[..], b"later"]);
}

/// Behind a damaged batch, librdkafka has prefetched the next one already.
#[test]
fn a_member_that_cannot_search_for_damage_does_not_skip_it() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_three(&producer, &topic, 0);
    fixture.line().damage(&[DAMAGED]);

    let mut member = Member::new(&fixture, &topic, |_| {});
    let one_record = PollLimits { records: 1, ..ALL };
    while member.read_count() == 0 {
        member.poll(one_record, A_WHILE);
    }
    // Until the records after it are prefetched.
    thread::sleep(A_WHILE * 10);
    // No broker reports where the group has committed, and so where to read the empty partition.
    fixture.line().slow_down(Duration::from_secs(6));
    // librdkafka has met the damage more than once by now.
    for _ in 0..3 {
        member.poll(ALL, A_WHILE);
    }
    fixture.line().slow_down(Duration::ZERO);
    send_batch(&producer, &topic, 1, &[b"healthy"]);
    poll_until([&mut member], |[member]| member.values(1).len() == 1);
    member.poll_in_vain();
    assert_eq!(member.values(0), [b"before"]);
}

#[test]
fn a_damaged_partition_is_retried_without_reading_twice() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 1);
    send_three(&fixture.producer(), &topic, 0);
    fixture.line().damage(&[DAMAGED]);

    let mut member = impatient(&fixture, &topic);
    poll_until([&mut member], |[member]| member.read_count() == 1);
    // The retry fails, too.
    poll_for(&mut member, SOON * 2);
    assert_eq!(member.values(0), [b"before"]);
    fixture.line().damage(&[]);
    poll_until([&mut member], |[member]| member.read_count() >= 3);
    assert_eq!(member.values(0), [b"before", DAMAGED, b"behind"]);
}

#[test]
fn two_damaged_partitions_are_both_retried() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_three(&producer, &topic, 0);
    fixture.line().damage(&[DAMAGED]);
    let mut member = impatient(&fixture, &topic);
    poll_until([&mut member], |[member]| member.values(0).len() == 1);
    member.poll_in_vain();

    // The first is intact again when the second is met.
    fixture.line().damage(&[b"another damaged one"]);
    send_batch(&producer, &topic, 1, &[b"another damaged one"]);
    poll_for(&mut member, A_WHILE * 10);
    fixture.line().damage(&[]);
    poll_until([&mut member], |[member]| member.read_count() == 4);
    assert_eq!(member.values(0), [b"before", DAMAGED, b"behind"]);
    assert_eq!(member.values(1), [b"another damaged one"]);
}

/// Its new owner reads again the records that the old one did not have committed.
#[test]
fn a_reassigned_damaged_partition_is_read_from_the_committed_offset() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    (0..2).for_each(|partition| send_three(&producer, &topic, partition));
    fixture.line().damage(&[DAMAGED]);
    let mut first = impatient(&fixture, &topic);
    poll_until([&mut first], |[first]| first.read_count() == 2);
    first.poll_in_vain();

    first.share.next.clear();
    let mut second = Member::new(&fixture, &topic, |_| {});
    poll_until([&mut first, &mut second], |both| {
        both.iter().all(|member| member.held() == 1)
    });
    let moved = usize::try_from(second.share.held[0].0).unwrap();
    second.share.next.clear();
    second.consumer.close(PATIENCE, &mut second.share);
    poll_until([&mut first], |[first]| first.read_count() == 3);
    first.poll_in_vain();
    let mut expected = [1, 1];
    expected[moved] = 2;
    assert_eq!([0, 1].map(|at| first.values(at).len()), expected);
}

#[test]
fn a_member_that_releases_held_records_does_not_repeat_the_damage_search() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_three(&producer, &topic, 0);
    fixture.line().damage(&[DAMAGED]);
    let mut member = Member::new(&fixture, &topic, |options| {
        options.damaged_again_after = LONG_SESSION;
    });
    poll_until([&mut member], |[member]| member.held() == 2);
    poll_until([&mut member], |[member]| member.read_count() == 1);
    member.poll_in_vain();

    let connections = fixture.line().connections();
    for _ in 0..5 {
        member.consumer.hold(true).unwrap();
        member.poll(ALL, A_WHILE);
        member.consumer.hold(false).unwrap();
        member.poll(ALL, A_WHILE * 5);
    }
    // Each search would open its own connection.
    assert_eq!(fixture.line().connections(), connections);
    send_batch(&producer, &topic, 1, &[b"healthy"]);
    poll_until([&mut member], |[member]| member.values(1).len() == 1);
    assert_eq!(member.values(0), [b"before"]);
}

/// It is paused like a damaged one. The test sees that the stall was confirmed because the member
/// does not read the record as soon as it is readable.
#[test]
fn a_partition_that_stalls_without_an_error_is_paused_and_the_others_are_read() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_three(&producer, &topic, 0);
    fixture.line().poison(Some(DAMAGED));
    let mut member = Member::new(&fixture, &topic, |options| {
        options.damaged_again_after = LATER;
    });
    poll_until([&mut member], |[member]| member.read_count() == 1);
    poll_until_stall_is_noticed(&fixture, &mut member);
    fixture.line().poison(None);
    send_batch(&producer, &topic, 1, &[b"healthy"]);
    poll_until([&mut member], |[member]| member.values(1).len() == 1);
    member.poll_in_vain();
    assert_eq!(member.values(0), [b"before"]);
    poll_until([&mut member], |[member]| member.read_count() == 4);
    assert_eq!(member.values(0), [b"before", DAMAGED, b"behind"]);
}

#[test]
fn a_record_undecodable_twice_goes_to_the_handler_and_reading_continues() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_three(&producer, &topic, 0);
    fixture.line().poison(Some(DAMAGED));
    let mut member = impatient(&fixture, &topic);
    member.share.takes_undecodable = true;
    poll_until([&mut member], |[member]| member.values(0).len() == 2);
    assert_eq!(member.values(0), [b"before", &b"behind"[..]]);
    assert_eq!(member.share.undecodable, [(PartitionId(0), 1, 2)]);

    // The position that librdkafka forgot does no harm when another partition is damaged.
    send_batch(&producer, &topic, 1, &[b"another damaged one"]);
    fixture.line().damage(&[b"another damaged one"]);
    poll_for(&mut member, SOON);
    fixture.line().damage(&[]);
    send_batch(&producer, &topic, 0, &[b"later"]);
    poll_until([&mut member], |[member]| member.read_count() == 4);
    assert_eq!(member.values(0), [b"before", &b"behind"[..], b"later"]);
}

/// No record after it has been read when the client searches for damage elsewhere.
#[test]
fn a_skipped_partition_is_not_rewound() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[DAMAGED]);
    fixture.line().poison(Some(DAMAGED));
    let mut member = impatient(&fixture, &topic);
    member.share.takes_undecodable = true;
    poll_until([&mut member], |[member]| {
        !member.share.undecodable.is_empty()
    });
    send_batch(&producer, &topic, 1, &[b"another damaged one"]);
    fixture.line().damage(&[b"another damaged one"]);
    poll_for(&mut member, SOON);
    fixture.line().damage(&[]);
    send_batch(&producer, &topic, 0, &[b"later"]);
    poll_until([&mut member], |[member]| member.read_count() == 2);
    assert_eq!(member.values(0), [b"later"]);
    assert_eq!(member.share.undecodable, [(PartitionId(0), 0, 1)]);
}

/// No record was read before it: the group determines where to read the partition.
#[test]
fn a_partition_that_stalls_at_its_first_record_is_paused() {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[DAMAGED]);
    send_batch(&producer, &topic, 1, &[b"healthy"]);
    fixture.line().poison(Some(DAMAGED));
    let mut member = Member::new(&fixture, &topic, |options| {
        options.damaged_again_after = LATER;
    });
    // All its connections are open then.
    poll_until([&mut member], |[member]| member.read_count() == 1);
    poll_until_stall_is_noticed(&fixture, &mut member);
    fixture.line().poison(None);
    member.poll_in_vain();
    poll_until([&mut member], |[member]| member.read_count() == 2);
    assert_eq!(member.values(0), [DAMAGED]);
}

/// The logged errors with their threads. Collects the lines of all tests: `tracing` remembers that
/// the first thread to log a line has no subscriber of its own.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<(ThreadId, String)>>>);

impl Errors {
    fn subscribed() -> &'static Self {
        static ERRORS: OnceLock<Errors> = OnceLock::new();
        ERRORS.get_or_init(|| {
            let errors = Self::default();
            tracing::subscriber::set_global_default(errors.clone()).unwrap();
            errors
        })
    }

    /// The lines of this thread.
    fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        let ours = lines.iter().filter(|(by, _)| *by == thread::current().id());
        ours.map(|(_, line)| line.clone()).collect()
    }
}

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            write!(line, "{field}={value:?} ").unwrap();
        });
        self.0.lock().unwrap().push((thread::current().id(), line));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Polls a member whose first record is undecodable until it has logged two errors. Returns them.
fn errors_about_undecodable_records(takes_undecodable: bool) -> Vec<String> {
    let fixture = Fixture::embedded();
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[DAMAGED]);
    fixture.line().poison(Some(DAMAGED));
    let mut member = impatient(&fixture, &topic);
    member.share.takes_undecodable = takes_undecodable;
    let errors = Errors::subscribed();
    poll_until([&mut member], |_| errors.lines().len() == 2);
    let taken = member.share.undecodable.len();
    assert_eq!(taken, usize::from(takes_undecodable));
    errors.lines()
}

#[test]
fn a_member_that_skips_nothing_logs_each_stop() {
    for line in errors_about_undecodable_records(false) {
        assert!(line.contains("stopped reading the partition"), "{line}");
        assert!(line.contains("again_after_s=4"), "{line}");
    }
}

#[test]
fn a_member_logs_skipped_records() {
    let lines = errors_about_undecodable_records(true);
    assert!(
        lines[0].contains("stopped reading the partition"),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("skipped records that no client"),
        "{lines:?}"
    );
    assert!(lines[1].contains("next=1"), "{lines:?}");
}
