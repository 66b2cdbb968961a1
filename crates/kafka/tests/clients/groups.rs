//! Members of consumer groups.
//!
//! These tests do not use librdkafka's mock cluster: it refuses a member that syncs after the
//! group's leader, and then the commits of all members while that one rejoins, which no broker
//! does.

mod damage;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, TopicPartitionList};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    DamagedLog, GroupConsumer, GroupHandler, GroupOptions, PollError, PollLimits, Polled,
    RecordRef, TopicPartition,
};

use crate::fixture::Fixture;
use crate::on_both_brokers;
use crate::support::{A_WHILE, ALL, PATIENCE, send_batch};

on_both_brokers! {
    a_member_starts_at_the_beginning_and_its_successor_where_it_committed
    a_second_member_takes_over_some_partitions_where_the_first_stopped
    a_member_that_holds_records_back_keeps_its_partitions_and_misses_nothing
    a_member_without_a_partition_was_assigned_an_empty_share
    a_member_that_leaves_makes_room_immediately_and_its_finished_work_is_committed
    a_member_that_returns_under_its_name_takes_its_place_again
    only_one_of_two_members_under_one_name_continues
    a_member_that_is_silent_loses_its_partitions_and_its_work_is_done_again
}

/// Longer than any test waits: a test that waits for a session to end fails.
const LONG_SESSION: Duration = Duration::from_secs(300);

/// A group member, the events that it received, and the offsets that it commits when it gives
/// partitions up.
struct Member {
    consumer: GroupConsumer,
    share: Share,
}

#[derive(Default)]
struct Share {
    held: Vec<PartitionId>,
    read: BTreeMap<PartitionId, Vec<Vec<u8>>>,
    next: BTreeMap<PartitionId, Offset>,
    revoked: usize,
    lost: usize,
    takes_undecodable: bool,
    undecodable: Vec<(PartitionId, i64, i64)>,
}

impl GroupHandler for Share {
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
        self.revoked += partitions.len();
        self.lost += if lost { partitions.len() } else { 0 };
        self.held
            .retain(|held| !partitions.iter().any(|gone| gone.partition == *held));
        partitions
            .iter()
            .filter_map(|gone| Some((gone.clone(), self.next.remove(&gone.partition)?)))
            .collect()
    }

    fn takes_undecodable(&self) -> bool {
        self.takes_undecodable
    }

    fn undecodable(&mut self, log: &DamagedLog, next: Offset) -> bool {
        if self.takes_undecodable {
            self.undecodable.push((log.partition, log.offset.0, next.0));
        }
        self.takes_undecodable
    }
}

impl Member {
    /// A member that has subscribed to a topic.
    fn new(fixture: &Fixture, topic: &str, change: impl FnOnce(&mut GroupOptions)) -> Self {
        let mut options = GroupOptions::new(fixture.name("g"), "member");
        options.session_timeout = LONG_SESSION;
        change(&mut options);
        let mut consumer = GroupConsumer::new(&fixture.settings, &options).unwrap();
        consumer.subscribe(&[topic]).unwrap();
        let share = Share::default();
        Self { consumer, share }
    }

    fn named(fixture: &Fixture, topic: &str, name: &str) -> Self {
        Self::new(fixture, topic, |options| {
            options.instance_id = Some(name.to_owned());
        })
    }

    fn poll(&mut self, limits: PollLimits, timeout: Duration) -> Polled {
        self.consumer
            .poll(limits, timeout, &mut self.share)
            .unwrap()
    }

    fn held(&self) -> usize {
        self.share.held.len()
    }

    fn read_count(&self) -> usize {
        self.share.read.values().map(Vec::len).sum()
    }

    fn values(&self, partition: u32) -> &[Vec<u8>] {
        self.share
            .read
            .get(&PartitionId(partition))
            .map_or(&[], Vec::as_slice)
    }

    /// Polls a member with readable records for a while, and asserts that it takes none.
    fn poll_in_vain(&mut self) {
        for _ in 0..10 {
            assert_eq!(self.poll(ALL, A_WHILE), Polled::default());
        }
    }
}

#[track_caller]
fn poll_until<const N: usize>(
    mut members: [&mut Member; N],
    mut done: impl FnMut([&Member; N]) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !done(members.each_ref().map(|member| &**member)) {
        assert!(
            Instant::now() < deadline,
            "the group did not get there: its members hold {:?} and have read {:?}",
            members.each_ref().map(|member| &member.share.held),
            members.each_ref().map(|member| &member.share.read),
        );
        for member in &mut members {
            member.poll(ALL, A_WHILE / 2);
        }
    }
}

/// The offset that a group has committed, if any.
pub(crate) fn committed(
    fixture: &Fixture,
    group: &str,
    topic: &str,
    partition: i32,
) -> Option<i64> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &fixture.settings.brokers)
        .set("group.id", group)
        .create()
        .unwrap();
    let mut asked = TopicPartitionList::new();
    asked.add_partition(topic, partition);
    // A new broker creates its storage for offsets on the first request, and answers with errors in
    // the meantime.
    let deadline = Instant::now() + PATIENCE;
    let found = loop {
        match consumer.committed_offsets(asked.clone(), PATIENCE) {
            Ok(found) => break found,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    match found.elements()[0].offset() {
        rdkafka::Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

#[test]
fn a_group_with_repeatedly_refused_commits_is_named_with_the_error() {
    // The broker has no room for the offsets of another group.
    let fixture = Fixture::embedded_with(|config| config.stored_groups_max = 0);
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a"]);
    let mut member = Member::new(&fixture, &topic, |_| {});
    poll_until([&mut member], |[member]| member.read_count() == 1);
    member
        .consumer
        .commit(&[(&topic, PartitionId(0), Offset(1))])
        .unwrap();
    assert!(fixture.settings.group_commits.refused().is_empty());
    // No further record is read, and the commit is repeated without it.
    poll_until([&mut member], |_| {
        !fixture.settings.group_commits.refused().is_empty()
    });
    let refused = fixture.settings.group_commits.refused();
    let [message] = &refused[..] else {
        panic!("{refused:?}");
    };
    let group = format!("consumer group {}: ", fixture.name("g"));
    assert!(message.starts_with(&group), "{message}");
    drop(member);
    assert!(fixture.settings.group_commits.refused().is_empty());
}

fn a_member_starts_at_the_beginning_and_its_successor_where_it_committed(fixture: &Fixture) {
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[b"a0", b"a1"]);
    send_batch(&producer, &topic, 1, &[b"b0"]);

    let mut first = Member::new(fixture, &topic, |_| {});
    poll_until([&mut first], |[first]| first.read_count() == 3);
    assert_eq!(first.held(), 2);
    assert_eq!(first.values(0), [b"a0", b"a1"]);
    first
        .consumer
        .commit(&[(&topic, PartitionId(0), Offset(1))])
        .unwrap();
    // The offsets that the handler returns on revocation are committed too: here, none of partition
    // 0.
    first.share.next.remove(&PartitionId(0));
    first.consumer.close(PATIENCE, &mut first.share);
    assert_eq!((first.share.held.len(), first.share.revoked), (0, 2));
    let group = fixture.name("g");
    assert_eq!(committed(fixture, &group, &topic, 0), Some(1));
    assert_eq!(committed(fixture, &group, &topic, 1), Some(1));

    let mut second = Member::new(fixture, &topic, |_| {});
    send_batch(&producer, &topic, 1, &[b"b1"]);
    poll_until([&mut second], |[second]| second.read_count() == 2);
    assert_eq!(second.values(0), [b"a1"]);
    assert_eq!(second.values(1), [b"b1"]);
}

fn a_second_member_takes_over_some_partitions_where_the_first_stopped(fixture: &Fixture) {
    let topic = fixture.topic("t", 4);
    let producer = fixture.producer();
    for partition in 0..4 {
        send_batch(&producer, &topic, partition, &[b"0"]);
    }
    let mut one = Member::new(fixture, &topic, |_| {});
    poll_until([&mut one], |[one]| one.read_count() == 4);

    let mut two = Member::new(fixture, &topic, |_| {});
    poll_until([&mut one, &mut two], |both| {
        both.iter().all(|member| member.held() == 2)
    });
    // The first member kept two partitions throughout.
    assert_eq!((one.share.revoked, one.share.lost), (2, 0));
    for partition in 0..4 {
        send_batch(&producer, &topic, partition, &[b"1"]);
    }
    poll_until([&mut one, &mut two], |[one, two]| {
        one.read_count() + two.read_count() >= 8
    });
    for partition in 0..4 {
        let read = [one.values(partition), two.values(partition)].concat();
        assert_eq!(read, [b"0", b"1"], "partition {partition}");
    }
    // Members that are dropped without closing end as well.
    drop(two);
    drop(one);
}

fn a_member_that_holds_records_back_keeps_its_partitions_and_misses_nothing(fixture: &Fixture) {
    let topic = fixture.topic("t", 2);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[b"a0", b"a1", b"a2"]);
    let mut first = Member::new(fixture, &topic, |_| {});
    // Records of partitions that are assigned while records are held back are held back too.
    first.consumer.hold(true).unwrap();
    poll_until([&mut first], |[first]| first.held() == 2);
    first.poll_in_vain();

    first.consumer.hold(false).unwrap();
    let one_record = PollLimits { records: 1, ..ALL };
    while first.read_count() < 1 {
        first.poll(one_record, PATIENCE);
    }
    // Records that are prefetched by now are not handed over.
    first.consumer.hold(true).unwrap();
    send_batch(&producer, &topic, 1, &[b"b0"]);
    first.poll_in_vain();

    // A partition that is given up in the meantime is not held back when it is assigned again.
    let mut second = Member::new(fixture, &topic, |_| {});
    poll_until([&mut first, &mut second], |both| {
        both.iter().all(|member| member.held() == 1)
    });
    second.consumer.close(PATIENCE, &mut second.share);
    first.consumer.hold(false).unwrap();
    poll_until([&mut first], |[first]| first.held() == 2);
    for partition in 0..2 {
        send_batch(&producer, &topic, partition, &[b"last"]);
    }
    poll_until([&mut first], |[first]| {
        (0..2).all(|partition| first.values(partition).ends_with(&[b"last".to_vec()]))
    });
    let of_second = second.share.read.get(&PartitionId(0));
    for value in [b"a0", b"a1", b"a2"] {
        let mut both = of_second.into_iter().flatten().chain(first.values(0));
        assert!(both.any(|read| read == value), "{value:?}");
    }
}

fn a_member_without_a_partition_was_assigned_an_empty_share(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let mut one = Member::new(fixture, &topic, |_| {});
    let mut two = Member::new(fixture, &topic, |_| {});
    assert!(!one.consumer.was_assigned(), "nothing can have come yet");
    poll_until([&mut one, &mut two], |both| {
        both.iter().all(|member| member.consumer.was_assigned())
    });
    assert_eq!(one.held() + two.held(), 1);
}

/// A commit in flight when partitions are given up must not keep the member from leaving the group.
fn a_member_that_leaves_makes_room_immediately_and_its_finished_work_is_committed(
    fixture: &Fixture,
) {
    for instance_id in [None, Some("first")] {
        let topic = fixture.topic(instance_id.unwrap_or("nobody"), 2);
        send_batch(&fixture.producer(), &topic, 0, &[b"v"]);
        let mut first = Member::new(fixture, &topic, |options| {
            options.instance_id = instance_id.map(str::to_owned);
        });
        poll_until([&mut first], |[first]| first.read_count() == 1);
        fixture.slow_down(Duration::from_millis(50));
        first.consumer.close(PATIENCE, &mut first.share);
        assert_eq!(first.share.held, []);

        let mut second = Member::new(fixture, &topic, |_| {});
        poll_until([&mut second], |[second]| second.held() == 2);
        second.poll_in_vain();
        assert_eq!(committed(fixture, &fixture.name("g"), &topic, 0), Some(1));
        second.consumer.close(PATIENCE, &mut second.share);
        fixture.slow_down(Duration::ZERO);
    }
}

fn a_member_that_returns_under_its_name_takes_its_place_again(fixture: &Fixture) {
    let topic = fixture.topic("t", 4);
    let mut first = Member::named(fixture, &topic, "first");
    let mut other = Member::named(fixture, &topic, "other");
    poll_until([&mut first, &mut other], |both| {
        both.iter().all(|member| member.held() == 2)
    });
    for partition in 0..4 {
        send_batch(&fixture.producer(), &topic, partition, &[b"v"]);
    }
    poll_until([&mut first, &mut other], |both| {
        both.iter().all(|member| member.read_count() == 2)
    });
    let (mut held, revoked) = (first.share.held.clone(), other.share.revoked);
    // Without leaving the group, as when the process is killed.
    drop(first);
    let mut again = Member::named(fixture, &topic, "first");
    // It has its old partitions, reads uncommitted records again, and the other member was not
    // affected.
    poll_until([&mut again, &mut other], |[again, _]| {
        again.read_count() == 2
    });
    let mut got = again.share.held.clone();
    held.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, held);
    assert!(again.consumer.was_assigned());
    assert_eq!((other.share.revoked, other.read_count()), (revoked, 2));
}

/// Two processes with one name are an operator's mistake: one of them ends.
fn only_one_of_two_members_under_one_name_continues(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let mut first = Member::named(fixture, &topic, "name");
    poll_until([&mut first], |[first]| first.held() == 1);
    let mut second = Member::named(fixture, &topic, "name");
    poll_until([&mut second], |[second]| second.held() == 1);
    // Each takes the other's place, until one of them has used up its renewals.
    let deadline = Instant::now() + PATIENCE;
    let (error, mut other) = loop {
        assert!(Instant::now() < deadline, "both continue");
        if let Err(error) = first.consumer.poll(ALL, A_WHILE, &mut first.share) {
            break (error, second);
        }
        // Now poll the other one.
        std::mem::swap(&mut first, &mut second);
    };
    assert!(matches!(error, PollError::Fatal { .. }), "{error:?}");
    send_batch(&fixture.producer(), &topic, 0, &[b"a"]);
    poll_until([&mut other], |[other]| other.read_count() == 1);
    assert_eq!(other.held(), 1);
}

/// Dropped without leaving the group, as when the process is killed. Its session ends, and another
/// member does the uncommitted work again.
fn a_member_that_is_silent_loses_its_partitions_and_its_work_is_done_again(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    send_batch(&fixture.producer(), &topic, 0, &[b"a", b"b"]);
    let mut first = Member::new(fixture, &topic, |options| {
        options.session_timeout = Duration::from_secs(6);
        // A named member does not leave the group when it is dropped.
        options.instance_id = Some("first".to_owned());
    });
    poll_until([&mut first], |[first]| first.read_count() == 2);
    first
        .consumer
        .commit(&[(&topic, PartitionId(0), Offset(1))])
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while committed(fixture, &fixture.name("g"), &topic, 0) != Some(1) {
        assert!(Instant::now() < deadline);
        first.poll(ALL, A_WHILE);
    }
    drop(first);
    let mut second = Member::new(fixture, &topic, |_| {});
    poll_until([&mut second], |[second]| second.read_count() == 1);
    assert_eq!(second.values(0), [b"b"]);
}
