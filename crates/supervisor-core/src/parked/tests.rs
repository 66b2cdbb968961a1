use std::collections::BTreeSet;

use uuid::Uuid;
use waybill_engine::{BootTime, HistoryEntry};

use super::*;
use crate::rows;

const INDEX_SHARD: PartitionId = PartitionId(0);
const GRACE: Duration = Duration::from_secs(20);

/// The state store, and the machine of its only index shard.
struct Fixture {
    rows: BTreeMap<OperationId, OperationRow>,
    entries: BTreeSet<AttentionEntry>,
    partitions: u32,
    parked: Parked,
    /// The event that begins the next check.
    begins: Event,
}

fn at(second: i64) -> Timestamp {
    Timestamp(second * 1_000_000)
}

fn id(number: u128) -> OperationId {
    OperationId(Uuid::from_u128(number))
}

impl Fixture {
    fn new(partitions: u32) -> Self {
        Self {
            rows: BTreeMap::new(),
            entries: BTreeSet::new(),
            partitions,
            parked: Parked::new(INDEX_SHARD, GRACE),
            begins: Event::Started,
        }
    }

    /// Writes a row in this state.
    fn row(&mut self, id: OperationId, state: ProcessState) {
        self.row_with(id, state, |_| {});
    }

    fn row_with(
        &mut self,
        id: OperationId,
        state: ProcessState,
        more: impl FnOnce(&mut waybill_engine::OperationState),
    ) {
        let mut row = rows::handed_off(id, state, None);
        more(&mut row.state);
        self.rows.insert(id, row);
    }

    fn entry(&mut self, operation: OperationId, second: i64) {
        let at = at(second);
        self.entries.insert(AttentionEntry { at, operation });
    }

    /// Performs an effect other than a wait for the next check.
    fn perform(&self, effect: Effect) -> Event {
        match effect {
            Effect::Wait(_) => Event::Waited,
            Effect::LockReads => Event::Locked,
            Effect::ReadRows(ids) => {
                let rows = ids.iter().map(|id| Ok(self.rows.get(id).cloned()));
                Event::Rows(rows.collect())
            }
            Effect::ReadAttention { cursor, limit } => {
                let entries = self.entries.iter().copied();
                let entries = entries.filter(|entry| entry.at >= cursor.since);
                let mut rest =
                    entries.filter(|entry| cursor.after.is_none_or(|after| *entry > after));
                let entries: Vec<_> = rest.by_ref().take(limit).collect();
                let next = rest.next().map(|_| AttentionCursor {
                    after: entries.last().copied(),
                    ..cursor
                });
                Event::Attention(AttentionPage { entries, next })
            }
        }
    }

    /// The counts of `Error` and `CompensationFailed` at this second, and since when each is
    /// parked.
    fn counted(&mut self, second: i64) -> [(usize, Option<Timestamp>); 2] {
        let now = Now {
            wall: at(second),
            boot: BootTime::new(Duration::ZERO),
        };
        let mut event = mem::replace(&mut self.begins, Event::Waited);
        loop {
            let output = self.parked.handle(event, now, self.partitions).unwrap();
            if output.effect == Effect::Wait(CHECK_INTERVAL) {
                assert_eq!(output.notices.last(), Some(&Notice::UpdateGauges));
                break;
            }
            event = self.perform(output.effect);
        }
        [ProcessState::Error, ProcessState::CompensationFailed].map(|state| {
            let stats = self.parked.stats(state);
            (stats.count, stats.oldest)
        })
    }
}

const NONE: (usize, Option<Timestamp>) = (0, None);

#[test]
fn long_parked_operations_are_counted_and_others_are_not() {
    let mut fixture = Fixture::new(1);
    assert_eq!(fixture.counted(1), [NONE, NONE]);
    let mut fixture = Fixture::new(1);
    let states = [
        ProcessState::Error,
        ProcessState::Error,
        ProcessState::CompensationFailed,
        ProcessState::Processing,
        ProcessState::Processed,
        ProcessState::Compensated,
    ];
    for (number, state) in (1..).zip(states) {
        fixture.row(id(number), state);
        fixture.entry(id(number), 100 + number as i64);
    }
    let abandon = |state: &mut waybill_engine::OperationState| state.abandoned = true;
    fixture.row_with(id(50), ProcessState::Error, abandon);
    fixture.entry(id(50), 100);
    fixture.entry(id(51), 100);
    let day_after = 100_000;
    assert_eq!(
        fixture.counted(day_after),
        [(2, Some(at(101))), (1, Some(at(103)))]
    );
}

#[test]
fn a_repaired_operation_is_not_counted_and_one_parked_again_counts_from_then() {
    let mut fixture = Fixture::new(1);
    for number in [1, 2] {
        fixture.row(id(number), ProcessState::Error);
        // It lingered first, and was parked later.
        fixture.entry(id(number), 90);
        fixture.entry(id(number), 100);
    }
    assert_eq!(fixture.counted(101), [(2, Some(at(100))), NONE]);
    fixture.row(id(1), ProcessState::Processed);
    fixture.row(id(2), ProcessState::Processing);
    fixture.entry(id(2), 200);
    assert_eq!(fixture.counted(201), [NONE, NONE]);
    fixture.row(id(2), ProcessState::CompensationFailed);
    fixture.entry(id(2), 300);
    assert_eq!(fixture.counted(301), [NONE, (1, Some(at(300)))]);
    fixture.row(id(2), ProcessState::Error);
    fixture.entry(id(2), 400);
    assert_eq!(fixture.counted(401), [(1, Some(at(400))), NONE]);
}

#[test]
fn recent_entries_are_read_again_and_older_ones_once_an_hour() {
    let mut fixture = Fixture::new(1);
    assert_eq!(fixture.counted(100), [NONE, NONE]);
    // The entry is visible before its row, and is older than the last check.
    fixture.entry(id(1), 90);
    assert_eq!(fixture.counted(105), [NONE, NONE]);
    fixture.row(id(1), ProcessState::Error);
    assert_eq!(fixture.counted(106), [(1, Some(at(90))), NONE]);

    fixture.row(id(2), ProcessState::Error);
    fixture.entry(id(2), 50);
    assert_eq!(fixture.counted(200), [(1, Some(at(90))), NONE]);
    let an_hour_later = 100 + 60 * 60;
    assert_eq!(fixture.counted(an_hour_later), [(2, Some(at(50))), NONE]);
}

#[test]
fn an_entry_with_a_future_time_counts_immediately() {
    let mut fixture = Fixture::new(1);
    fixture.row(id(1), ProcessState::Error);
    fixture.entry(id(1), 5_000);
    assert_eq!(fixture.counted(100), [(1, Some(at(5_000))), NONE]);
}

#[test]
fn counting_is_bounded_and_repaired_operations_make_room_for_others() {
    let mut fixture = Fixture::new(1);
    fixture.parked.counted_max = 150;
    for number in 1..=260 {
        fixture.row(id(number), ProcessState::Error);
        fixture.entry(id(number), 100);
    }
    assert_eq!(fixture.counted(101), [(150, Some(at(100))), NONE]);
    let known: Vec<OperationId> = fixture.parked.known.keys().copied().collect();
    for id in &known[..50] {
        fixture.row(*id, ProcessState::Processed);
    }
    assert_eq!(fixture.counted(1_000), [(150, Some(at(100))), NONE]);
    for number in 1..=250 {
        fixture.row(id(number), ProcessState::Processed);
    }
    assert_eq!(fixture.counted(2_000), [(10, Some(at(100))), NONE]);
}

#[test]
fn many_operations_of_one_state_do_not_hide_those_of_another() {
    let mut fixture = Fixture::new(1);
    fixture.parked.counted_max = 20;
    for number in 1..=300 {
        fixture.row(id(number), ProcessState::Error);
        fixture.entry(id(number), 100);
    }
    let undo_failed = ProcessState::CompensationFailed;
    fixture.row(id(301), undo_failed);
    fixture.entry(id(301), 101);
    let first = (1, Some(at(101)));
    assert_eq!(fixture.counted(102), [(20, Some(at(100))), first]);
    fixture.row(id(302), undo_failed);
    fixture.entry(id(302), 110);
    let both = (2, Some(at(101)));
    assert_eq!(fixture.counted(111), [(20, Some(at(100))), both]);
}

#[test]
fn an_operation_parked_again_after_repartitioning_is_counted_once() {
    let mut fixture = Fixture::new(2);
    let mut others = (1..).filter(|number| partition_for(id(*number), 2) != INDEX_SHARD);
    let [stayed, went_on] = [(); 2].map(|()| id(others.next().unwrap()));
    let resubmitted = |refused: Option<&str>| HistoryEntry {
        id: Uuid::from_u128(1),
        at: at(200),
        by: "kim".to_owned(),
        verb: "resubmit".to_owned(),
        reason: String::new(),
        refused: refused.map(str::to_owned),
    };
    let refused = resubmitted(Some("workflow-unknown"));
    fixture.row_with(stayed, ProcessState::Error, |state| {
        state.history.push(refused)
    });
    let applied = resubmitted(None);
    fixture.row_with(went_on, ProcessState::Error, |state| {
        state.history.push(applied)
    });
    for operation in [stayed, went_on] {
        fixture.entry(operation, 100);
    }
    assert_eq!(fixture.counted(400), [(1, Some(at(100))), NONE]);
    assert!(fixture.parked.known.contains_key(&stayed));
    // This also covers an operation that was known, resubmitted, and parked again between two
    // checks.
    let again = HistoryEntry {
        at: at(450),
        ..resubmitted(None)
    };
    fixture.row_with(stayed, ProcessState::Error, |state| {
        state.history.push(again)
    });
    assert_eq!(fixture.counted(470), [NONE, NONE]);
}
