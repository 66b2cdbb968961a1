use waybill_engine::Timestamp;

use super::*;

const PARTITION: PartitionId = PartitionId(1);

/// A machine whose driver performs nothing: the test says what each effect results in.
struct Driven {
    reroute: Reroute,
    boot: Duration,
    closes: bool,
}

fn requests(offset: i64) -> TopicOffsets {
    TopicOffsets {
        requests: Offset(offset),
        ..TopicOffsets::default()
    }
}

/// A time in which the partition was not in use, from one offset of each topic to another.
fn retired(from: i64, until: Option<i64>) -> Retired {
    let all = |offset| TopicOffsets {
        requests: Offset(offset),
        high_priority: Offset(offset),
        replies: Offset(offset),
        recoveries: Offset(offset),
    };
    Retired {
        partition: PARTITION,
        from: all(from),
        until: until.map(all),
    }
}

impl Driven {
    fn new(times: Vec<Retired>, from: TopicOffsets) -> (Self, Effect) {
        let mut driven = Self {
            reroute: Reroute::new(PARTITION, times, from),
            boot: Duration::ZERO,
            closes: false,
        };
        let effect = driven.next(Event::Started);
        (driven, effect)
    }

    fn next(&mut self, event: Event) -> Effect {
        let now = Now {
            wall: Timestamp(0),
            boot: BootTime::new(self.boot),
        };
        let output = self.reroute.handle(event, now).unwrap();
        self.closes = output.closes;
        output.effect
    }

    /// The topic exists, and has these offsets.
    fn has(&mut self, first: i64, end: i64) -> Effect {
        self.next(Event::Partitions(Some(2)));
        self.next(Event::Offsets(Some((Offset(first), Offset(end)))))
    }

    /// The topics that follow have no such partition.
    fn others_are_empty(&mut self, mut effect: Effect) -> TopicOffsets {
        loop {
            effect = match effect {
                Effect::ReadPartitions(_) => self.next(Event::Partitions(Some(1))),
                Effect::End(reached) => return reached,
                other => panic!("{other:?}"),
            };
        }
    }
}

#[test]
fn records_are_forwarded_before_their_offset_is_reached() {
    let (mut driven, effect) = Driven::new(vec![retired(5, None)], requests(7));
    assert_eq!(effect, Effect::ReadPartitions(Source::Requests));
    let opened = driven.has(0, 20);
    assert_eq!(opened, Effect::Open(Source::Requests, Offset(7)));
    assert_eq!(driven.next(Event::Opened), Effect::Read(Offset(20)));
    assert_eq!(driven.next(Event::Read(Offset(12))), Effect::Forward);
    assert_eq!(driven.next(Event::Forwarded), Effect::Read(Offset(20)));
    assert_eq!(driven.next(Event::Read(Offset(20))), Effect::Forward);
    let failed = driven.next(Event::Failed);
    assert_eq!(failed, Effect::ReadPartitions(Source::HighPriority));
    assert!(driven.closes);
    let reached = driven.others_are_empty(failed);
    assert_eq!(reached.on(Source::Requests), Offset(12));
    assert_eq!(reached.on(Source::Replies), Offset(5));
}

#[test]
fn the_next_topic_follows_when_the_time_is_up() {
    let (mut driven, _) = Driven::new(vec![retired(0, None)], requests(0));
    driven.has(3, 20);
    driven.next(Event::Opened);
    driven.next(Event::Read(Offset(4)));
    driven.boot = READ_TIME_MAX;
    let next = driven.next(Event::Forwarded);
    assert_eq!(next, Effect::ReadPartitions(Source::HighPriority));
    assert!(driven.closes);
    let reached = driven.others_are_empty(next);
    assert_eq!(reached.on(Source::Requests), Offset(4));
}

#[test]
fn each_time_ends_where_the_partition_is_used_again() {
    let times = vec![retired(0, Some(5)), retired(10, Some(12))];
    let (mut driven, _) = Driven::new(times, requests(0));
    driven.has(0, 100);
    assert_eq!(driven.next(Event::Opened), Effect::Read(Offset(5)));
    driven.next(Event::Read(Offset(5)));
    let next = driven.next(Event::Forwarded);
    assert_eq!(next, Effect::ReadPartitions(Source::Requests));
    assert!(driven.closes);
    let opened = driven.has(0, 100);
    assert_eq!(opened, Effect::Open(Source::Requests, Offset(10)));
    assert_eq!(driven.next(Event::Opened), Effect::Read(Offset(12)));
}

#[test]
fn a_partition_that_was_rerouted_completely_is_not_read() {
    let (_, effect) = Driven::new(vec![retired(0, Some(0))], requests(0));
    assert_eq!(effect, Effect::End(requests(0)));
}
