use uuid::Uuid;
use waybill_engine::{BootTime, OperationRow, ProcessState};
use waybill_state::{AttentionEntry, DUE_BUCKETS_REREAD};

use super::findings::{NAMED_MAX, Report};
use super::walk::missed;
use super::*;
use crate::rows;

fn at(second: i64) -> Timestamp {
    Timestamp(second * 1_000_000)
}

fn row(state: ProcessState, due: Option<i64>) -> OperationRow {
    rows::handed_off(OperationId(Uuid::from_u128(7)), state, due.map(at))
}

#[test]
fn only_a_live_operation_that_was_handed_off_can_miss_its_due_time() {
    let cursor = DueBucket(100 + DUE_BUCKETS_REREAD);
    let now = at(1_000);
    let due = |row: &OperationRow| missed(row, cursor, now);
    let behind = row(ProcessState::Processing, Some(99));
    assert_eq!(due(&behind), Some(at(99)));
    assert_eq!(
        due(&row(ProcessState::Compensating, Some(99))),
        Some(at(99))
    );
    assert_eq!(
        due(&row(ProcessState::Processing, Some(100))),
        None,
        "a sweep looks at it"
    );
    assert_eq!(due(&row(ProcessState::Processing, None)), None);
    assert_eq!(due(&row(ProcessState::Processed, Some(99))), None);
    assert_eq!(due(&row(ProcessState::Error, Some(99))), None);
    let mut in_memory = behind;
    in_memory.state.handed_off = false;
    assert_eq!(due(&in_memory), None);
}

#[test]
fn an_operation_that_a_clock_far_ahead_handed_off_misses_its_due_time() {
    let cursor = DueBucket(100);
    let mut ahead = row(ProcessState::Processing, Some(9_000));
    ahead.state.updated_at = at(8_000);
    assert_eq!(missed(&ahead, cursor, at(100)), Some(at(9_000)));
    assert_eq!(
        missed(&ahead, cursor, at(7_950)),
        None,
        "clocks may differ by this much"
    );
}

#[test]
fn a_suspect_is_woken_only_once_all_recoveries_of_the_last_round_are_done() {
    let row = row(ProcessState::Processing, Some(99));
    let [own, other] = [PartitionId(0), PartitionId(1)];
    let suspects = Suspects {
        due: BTreeMap::from([(row.id, at(99))]),
        ends: BTreeMap::from([(own, Offset(7)), (other, Offset(3))]),
    };
    assert!(suspects.had(&row, at(99)));
    assert!(!suspects.had(&row, at(98)), "the due time moved");
    assert!(!Suspects::default().had(&row, at(99)));
    let done = |own_done, other_done| {
        BTreeMap::from([(own, Offset(own_done)), (other, Offset(other_done))])
    };
    assert_eq!(suspects.settled(&done(6, 2)), []);
    assert_eq!(suspects.settled(&done(7, 2)), [own]);
    assert_eq!(suspects.settled(&done(6, 9)), [other]);
    assert_eq!(suspects.settled(&BTreeMap::new()), []);
}

/// Meets the first `rows` rows twice; returns how many are counted and how many are logged.
fn reported(unreadable: &mut Unreadable, rows: u128) -> (usize, usize) {
    let ids = (0..rows).map(|number| OperationId(Uuid::from_u128(number)));
    let reports: Vec<Report> = ids
        .flat_map(|id| [id, id])
        .map(|id| unreadable.note(id))
        .collect();
    let counted = reports.iter().filter(|report| report.count).count();
    let logged = reports.iter().filter(|report| report.log).count();
    (counted, logged)
}

#[test]
fn an_unreadable_row_is_counted_and_logged_once() {
    let mut unreadable = Unreadable::default();
    unreadable.begin_round();
    assert_eq!(reported(&mut unreadable, 30), (30, NAMED_MAX));
    // The round above ended early.
    unreadable.begin_round();
    assert_eq!(reported(&mut unreadable, 30), (0, 10));
    unreadable.end_round();
    unreadable.begin_round();
    assert_eq!(reported(&mut unreadable, 31), (1, 1));
    unreadable.end_round();
    unreadable.begin_round();
    assert_eq!(reported(&mut unreadable, 0), (0, 0));
    unreadable.end_round();
    unreadable.begin_round();
    assert_eq!(reported(&mut unreadable, 1), (1, 1), "they were removed");
}

/// An audit whose driver performs nothing: the test says what each effect results in.
struct Driven {
    audit: Audit,
    notices: Vec<Notice>,
}

impl Driven {
    fn new() -> Self {
        let audit = Audit::new(AuditSettings {
            index_shard: PartitionId(0),
            name: "supervisor".into(),
            workflows: Arc::new(Workflows::new(Vec::new()).unwrap()),
            timeout_grace: Duration::ZERO,
            interval: Duration::from_secs(60),
            chunk: 1,
        });
        let mut driven = Self {
            audit,
            notices: Vec::new(),
        };
        let paused = driven.next(Event::Started);
        assert_eq!(paused, Effect::Wait(Duration::from_secs(60)));
        driven
    }

    fn next(&mut self, event: Event) -> Effect {
        let now = Now {
            wall: at(1_000),
            boot: BootTime::new(Duration::ZERO),
        };
        let output = self.audit.handle(event, now, 1).unwrap();
        self.notices = output.notices;
        output.effect
    }

    /// A round up to the pause after its only page, which has the entries of these rows.
    fn reads(&mut self, rows: Vec<RowRead>) -> Effect {
        let entries = rows.iter().map(|_| AttentionEntry {
            at: at(1),
            operation: OperationId(Uuid::from_u128(7)),
        });
        let page = AttentionPage {
            entries: entries.collect(),
            next: None,
        };
        assert!(matches!(
            self.next(Event::Locked),
            Effect::ReadAttention { .. }
        ));
        assert!(matches!(
            self.next(Event::Attention(page)),
            Effect::ReadRows(_)
        ));
        let read = self.next(Event::Rows(rows));
        assert_eq!(read, Effect::ReadCursor(PartitionId(0)));
        self.next(Event::Cursor(Some(DueBucket(900))))
    }
}

#[test]
fn a_suspect_of_two_rounds_is_woken_once_the_recoveries_between_them_are_done() {
    let mut driven = Driven::new();
    let row = row(ProcessState::Processing, Some(99));
    let partition = PartitionId(0);
    let offset = |offset| Event::Offsets(BTreeMap::from([(partition, Offset(offset))]));
    let pause = Effect::Wait(Duration::from_secs(60));

    assert_eq!(driven.next(Event::Waited), Effect::LockReads);
    driven.reads(vec![Ok(Some(row.clone()))]);
    assert_eq!(driven.notices, []);
    let ends = driven.next(Event::Waited);
    assert_eq!(ends, Effect::ReadEnds(vec![partition]));
    assert_eq!(driven.notices, [Notice::UnlockReads]);
    assert_eq!(driven.next(offset(7)), pause);
    assert_eq!(driven.notices, [Notice::Audited(0)]);

    // A recovery of the last round may still arrive.
    let done = driven.next(Event::Waited);
    assert_eq!(done, Effect::ReadDone(vec![partition]));
    assert_eq!(driven.next(offset(6)), Effect::LockReads);
    driven.reads(vec![Ok(Some(row.clone()))]);
    driven.next(Event::Waited);
    driven.next(offset(7));
    assert_eq!(driven.notices, [Notice::Audited(0)]);

    driven.next(Event::Waited);
    assert_eq!(driven.next(offset(7)), Effect::LockReads);
    driven.reads(vec![Ok(Some(row.clone()))]);
    let waking = Notice::Waking {
        operation: row.id,
        due: at(99),
    };
    assert_eq!(driven.notices, [waking]);
    assert_eq!(driven.next(Event::Waited), Effect::TakeTurn(1));
    let wait = Duration::from_secs(2);
    assert_eq!(driven.next(Event::Turn(wait)), Effect::Wait(wait));
    let Effect::Publish(recoveries) = driven.next(Event::Waited) else {
        panic!("the operation is woken");
    };
    let named: Vec<_> = recoveries
        .iter()
        .map(|recovery| (recovery.operation, recovery.due))
        .collect();
    assert_eq!(named, [(row.id, Some(at(99)))]);
    assert_eq!(
        driven.next(Event::Published),
        Effect::ReadEnds(vec![partition])
    );
    assert_eq!(driven.next(offset(8)), pause);
    assert_eq!(driven.notices, [Notice::Audited(1)]);
}

#[test]
fn a_failure_ends_the_round_and_lets_others_read() {
    let mut driven = Driven::new();
    driven.next(Event::Waited);
    driven.next(Event::Locked);
    let paused = driven.next(Event::Failed);
    assert_eq!(paused, Effect::Wait(Duration::from_secs(60)));
    assert_eq!(driven.notices, [Notice::UnlockReads, Notice::Failed]);
    assert_eq!(driven.next(Event::Waited), Effect::LockReads);
}
