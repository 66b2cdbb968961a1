use uuid::Uuid;
use waybill_engine::{Offset, Timestamp};
use waybill_state::DUE_BUCKETS_REREAD;

use super::*;

const LEASE: Duration = Duration::from_secs(12);
const MARGIN: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(500);
const CHUNK: usize = 2;
/// The wall clock when the boot clock is at 0.
const START: i64 = 1_000;

/// An index shard without a driver: the test supplies the result of each effect.
struct Driven {
    shard: IndexShard,
    boot: Duration,
    /// The notices of the last output.
    notices: Vec<Notice>,
}

impl Driven {
    fn new() -> Self {
        let settings = IndexShardSettings {
            index_shard: PartitionId(3),
            owner: OwnerId(Uuid::from_u128(1)),
            name: "supervisor".into(),
            workflows: Arc::new(Workflows::new(Vec::new()).unwrap()),
            timeout_grace: Duration::ZERO,
            lease: LEASE,
            lease_margin: MARGIN,
            is_store_exclusive: false,
            grace: GRACE,
            interval: INTERVAL,
            audit_interval: Duration::from_secs(60),
            chunk: CHUNK,
        };
        Self {
            shard: IndexShard::new(settings),
            boot: Duration::ZERO,
            notices: Vec::new(),
        }
    }

    /// An index shard that has acquired the lease, read the cursor, and reread the buckets before
    /// the cursor.
    fn sweeping(cursor: i64) -> Self {
        let mut driven = Self::new();
        driven.next(Event::Started);
        driven.next(Event::Lease(None));
        driven.next(Event::LeaseWritten(true));
        let mut effect = driven.next(Event::Cursor(Some(DueBucket(cursor))));
        for bucket in cursor - DUE_BUCKETS_REREAD..cursor {
            assert_eq!(effect, read(bucket, None));
            effect = driven.next(Event::Entries(Vec::new()));
        }
        assert_eq!(effect, read(cursor, None));
        driven
    }

    fn next(&mut self, event: Event) -> Effect {
        let now = Now {
            wall: second(START) + self.boot,
            boot: BootTime::new(self.boot),
        };
        let output = self.shard.handle(event, now).unwrap();
        self.notices = output.notices;
        output.effect
    }

    /// Advances both clocks by `time`, then handles `event`.
    fn after(&mut self, time: Duration, event: Event) -> Effect {
        self.boot += time;
        self.next(event)
    }
}

fn second(at: i64) -> Timestamp {
    Timestamp::from_millis(at * 1_000)
}

fn entry(at: i64, number: u128) -> DueEntry {
    DueEntry {
        due: second(at),
        operation: OperationId(Uuid::from_u128(number)),
    }
}

fn read(bucket: i64, after: Option<DueEntry>) -> Effect {
    Effect::ReadEntries {
        bucket: DueBucket(bucket),
        after,
        limit: 500,
    }
}

/// The operations whose recovery is published.
fn published(effect: &Effect) -> Vec<OperationId> {
    let Effect::Publish(recoveries) = effect else {
        panic!("{effect:?}");
    };
    recoveries
        .iter()
        .map(|recovery| recovery.operation)
        .collect()
}

fn lease(epoch: u64, renewal: u64) -> Lease {
    let index_shard = PartitionId(3);
    Lease {
        owner: Some(OwnerId(Uuid::from_u128(1))),
        epoch: Epoch(epoch),
        renewal,
        duration: LEASE,
        ..Lease::new(LeaseKey::supervisor(index_shard), index_shard)
    }
}

#[test]
fn the_lease_of_a_silent_owner_is_taken_with_the_next_epoch_after_it_expires() {
    let mut driven = Driven::new();
    let key = LeaseKey::supervisor(PartitionId(3));
    assert_eq!(driven.next(Event::Started), Effect::ReadLease(key));
    let other = Lease {
        owner: Some(OwnerId(Uuid::from_u128(2))),
        ..lease(4, 7)
    };
    let wait = Effect::Wait(LeaseWatch::INTERVAL);
    assert_eq!(driven.next(Event::Lease(Some(other.clone()))), wait);
    let almost = LEASE + MARGIN - Duration::from_millis(1);
    assert_eq!(driven.after(almost, Event::Waited), Effect::ReadLease(key));
    assert_eq!(driven.next(Event::Lease(Some(other.clone()))), wait);
    driven.after(LeaseWatch::INTERVAL, Event::Waited);
    let taken = driven.next(Event::Lease(Some(other.clone())));
    let expected = Effect::TakeLease {
        seen: Some(other),
        lease: lease(5, 0),
    };
    assert_eq!(taken, expected);
    assert_eq!(driven.notices, [Notice::TakingOver(Epoch(4))]);
    // Another candidate was faster.
    let watched = driven.next(Event::LeaseWritten(false));
    assert_eq!(watched, Effect::ReadLease(key));
}

#[test]
fn the_owner_of_an_index_shard_without_a_cursor_renews_its_lease_and_does_not_sweep() {
    let mut driven = Driven::new();
    driven.next(Event::Started);
    driven.next(Event::Lease(None));
    assert_eq!(driven.next(Event::LeaseWritten(true)), Effect::ReadCursor);
    for _ in 0..3 {
        let paused = driven.next(Event::Cursor(None));
        assert_eq!(paused, Effect::Wait(Duration::from_secs(1)));
        assert_eq!(driven.notices, [Notice::Swept]);
        let again = driven.after(Duration::from_secs(1), Event::Waited);
        assert_eq!(again, Effect::ReadCursor);
    }
    driven.next(Event::Cursor(None));
    let kept = driven.after(Duration::from_secs(1), Event::Waited);
    assert_eq!(kept, Effect::RenewLease(lease(1, 1)));
    assert_eq!(driven.next(Event::LeaseWritten(true)), Effect::ReadCursor);
    driven.next(Event::Cursor(None));
    driven.shard.stop();
    let released = driven.next(Event::Waited);
    let expected = Effect::TakeLease {
        seen: Some(lease(1, 1)),
        lease: Lease {
            owner: None,
            ..lease(1, 2)
        },
    };
    assert_eq!(released, expected);
    assert_eq!(driven.next(Event::LeaseWritten(true)), Effect::End);
}

#[test]
fn the_cursor_moves_once_the_recoveries_of_due_entries_are_acknowledged() {
    // The first bucket ended before the grace period began.
    let first = START - 7;
    let mut driven = Driven::sweeping(first);
    let due = vec![entry(first, 1), entry(first, 2), entry(first, 3)];
    let ids: Vec<_> = due.iter().map(|entry| entry.operation).collect();
    let rows = driven.next(Event::Entries(due));
    assert_eq!(rows, Effect::ReadRows(ids.clone()));
    let turn = driven.next(Event::Rows(vec![Ok(None); 3]));
    assert_eq!(turn, Effect::TakeTurn(CHUNK));
    let one = driven.next(Event::Turn(Duration::ZERO));
    assert_eq!(published(&one), ids[..2]);
    assert_eq!(driven.next(Event::Published), Effect::TakeTurn(1));
    let other = driven.next(Event::Turn(Duration::ZERO));
    assert_eq!(published(&other), ids[2..]);
    let mut effect = driven.next(Event::Published);
    for bucket in first + 1..=START {
        assert_eq!(effect, read(bucket, None));
        effect = driven.next(Event::Entries(Vec::new()));
    }
    // The next bucket ended less than the grace period ago.
    assert_eq!(effect, Effect::MoveCursor(DueBucket(first + 2)));
    let paused = driven.next(Event::CursorMoved);
    assert_eq!(paused, Effect::Wait(INTERVAL));
    let swept = [Notice::Swept, Notice::Behind(Duration::ZERO)];
    assert_eq!(driven.notices, swept);
    // Before the cursor moves again, the passed buckets are read a last time.
    let again = driven.after(INTERVAL, Event::Waited);
    assert_eq!(again, read(first, None));
}

#[test]
fn a_page_whose_recoveries_were_not_acknowledged_is_repeated_after_a_rest() {
    let mut driven = Driven::sweeping(START - 7);
    let due = entry(START - 7, 1);
    driven.next(Event::Entries(vec![due]));
    driven.next(Event::Rows(vec![Ok(None)]));
    driven.next(Event::Turn(Duration::ZERO));
    let rested = driven.next(Event::Failed);
    assert_eq!(rested, Effect::Wait(RETRY_PAUSE + INTERVAL));
    let behind = Notice::Behind(Duration::from_secs(6));
    assert_eq!(driven.notices, [behind, Notice::PassFailed]);
    let again = driven.after(RETRY_PAUSE + INTERVAL, Event::Waited);
    assert_eq!(again, read(START - 7, None));
    let rows = driven.next(Event::Entries(vec![due]));
    assert_eq!(rows, Effect::ReadRows(vec![due.operation]));
}

#[test]
fn the_lease_is_renewed_while_recoveries_wait_for_their_turn() {
    let mut driven = Driven::sweeping(START);
    let due = entry(START, 1);
    driven.next(Event::Entries(vec![due]));
    driven.next(Event::Rows(vec![Ok(None)]));
    let third = LEASE / 3;
    let waits = driven.next(Event::Turn(Duration::from_secs(10)));
    assert_eq!(waits, Effect::Wait(third));
    for renewal in 1..=2 {
        let kept = driven.after(third, Event::Waited);
        assert_eq!(kept, Effect::RenewLease(lease(1, renewal)));
        let rest = third.min(Duration::from_secs(10) - third * renewal as u32);
        assert_eq!(driven.next(Event::LeaseWritten(true)), Effect::Wait(rest));
    }
    let sent = driven.after(Duration::from_secs(2), Event::Waited);
    assert_eq!(published(&sent), [due.operation]);
}

#[test]
fn an_owner_whose_lease_has_ended_publishes_nothing() {
    let mut driven = Driven::sweeping(START);
    driven.next(Event::Entries(vec![entry(START, 1)]));
    driven.next(Event::Rows(vec![Ok(None)]));
    // The process was paused.
    let kept = driven.after(LEASE, Event::Turn(Duration::ZERO));
    assert_eq!(kept, Effect::RenewLease(lease(1, 1)));
    // The renewal is acknowledged only after the lease has ended.
    let paused = driven.after(LEASE, Event::LeaseWritten(true));
    assert_eq!(paused, Effect::Wait(INTERVAL));
    assert_eq!(
        driven.after(INTERVAL, Event::Waited),
        Effect::RenewLease(lease(1, 2))
    );
    let lost = driven.next(Event::LeaseWritten(false));
    assert_eq!(
        lost,
        Effect::ReadLease(LeaseKey::supervisor(PartitionId(3)))
    );
    assert_eq!(driven.notices, [Notice::Lost, Notice::Ended]);
}

#[test]
fn a_stop_ends_the_wait_for_a_turn_and_releases_the_lease() {
    let mut driven = Driven::sweeping(START);
    driven.next(Event::Entries(vec![entry(START, 1)]));
    driven.next(Event::Rows(vec![Ok(None)]));
    driven.next(Event::Turn(Duration::from_secs(3_600)));
    driven.shard.stop();
    assert!(!driven.shard.may_be_abandoned());
    assert_eq!(driven.next(Event::Waited), Effect::Wait(INTERVAL));
    assert!(!driven.notices.contains(&Notice::PassFailed));
    let Effect::TakeLease { lease, .. } = driven.next(Event::Waited) else {
        panic!("expected TakeLease");
    };
    assert_eq!(lease.owner, None);
    assert_eq!(driven.next(Event::LeaseWritten(true)), Effect::End);
    assert_eq!(driven.notices, [Notice::Ended]);
}

#[test]
fn a_failure_outside_a_pass_ends_ownership() {
    let mut driven = Driven::sweeping(START);
    driven.next(Event::Entries(Vec::new()));
    driven.after(LEASE / 3, Event::Waited);
    assert_eq!(driven.next(Event::Failed), Effect::Wait(RETRY_PAUSE));
    assert_eq!(driven.notices, [Notice::Ended, Notice::Failed]);
    let again = driven.after(RETRY_PAUSE, Event::Waited);
    assert_eq!(
        again,
        Effect::ReadLease(LeaseKey::supervisor(PartitionId(3)))
    );
}

#[test]
fn the_offsets_of_a_reroute_are_stored_with_a_renewal() {
    let mut driven = Driven::sweeping(START);
    driven.next(Event::Entries(Vec::new()));
    let at = TopicOffsets::default();
    let rerouted = driven.after(Duration::from_secs(3), Event::Waited);
    assert_eq!(rerouted, Effect::Reroute(at));
    let to = TopicOffsets {
        replies: Offset(7),
        ..at
    };
    let Effect::RenewLease(lease) = driven.next(Event::Rerouted(to)) else {
        panic!("expected RenewLease");
    };
    assert_eq!(lease.checkpoint.at, to);
    assert_eq!(driven.next(Event::LeaseWritten(true)), read(START, None));
}

#[test]
fn a_sweep_a_week_behind_skips_only_after_an_audit_interval() {
    let cursor = START - 7 * 24 * 3_600 - 20_000;
    let mut driven = Driven::sweeping(cursor);
    let mut effect = read(cursor, None);
    let mut paused = Duration::ZERO;
    let skipped_to = loop {
        let event = match &effect {
            Effect::ReadEntries { .. } => Event::Entries(Vec::new()),
            Effect::RenewLease(_) => Event::LeaseWritten(true),
            Effect::Reroute(from) => Event::Rerouted(*from),
            Effect::MoveCursor(cursor) if driven.notices.len() == 1 => break *cursor,
            Effect::MoveCursor(_) => Event::CursorMoved,
            Effect::Wait(_) => Event::Waited,
            other => panic!("{other:?}"),
        };
        if let Effect::Wait(wait) = effect {
            driven.boot += wait;
            paused += wait;
        }
        effect = driven.next(event);
    };
    assert!(matches!(driven.notices[..], [Notice::Skipping(_)]));
    assert!(paused >= Duration::from_secs(60), "{paused:?}");
    let now = START + i64::try_from(driven.boot.as_secs()).unwrap();
    assert_eq!(skipped_to, DueBucket(now - 3_600));
    let again = driven.next(Event::CursorMoved);
    assert_eq!(again, read(now - 3_600 - DUE_BUCKETS_REREAD, None));
}

#[test]
fn an_event_that_does_not_match_the_effect_is_refused() {
    let mut driven = Driven::sweeping(START);
    let now = Now {
        wall: second(START),
        boot: BootTime::new(Duration::ZERO),
    };
    let refused = driven.shard.handle(Event::Published, now).unwrap_err();
    let text = "unexpected event Published in state Reading";
    assert_eq!(refused.to_string(), text);
}
