//! The purge, with a clock of the test's own.

use std::sync::Arc;

use uuid::Uuid;
use waybill_engine::{
    Created, Epoch, Offset, OperationId, OperationState, Position, ProcessState, RequestHash, Stamp,
};

use super::*;
use crate::{DueBucket, DueEntry, EmbeddedStore, RowWrite, Store, WriteBatch};

const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    store: EmbeddedStore,
    purger: Purger,
    _stop: mpsc::Sender<()>,
    _dir: tempfile::TempDir,
}

/// An open store whose own purge never runs, and a purger to drive by hand.
fn fixture(entries_max: usize) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let mut config = EmbeddedConfig::new(dir.path());
    config.purge_interval = Duration::from_secs(86_400);
    config.purge_entries_max = entries_max;
    let store = EmbeddedStore::open(config).unwrap();
    let (stop, stopped) = mpsc::channel();
    let commands = store
        .running
        .lock()
        .unwrap()
        .as_ref()
        .unwrap()
        .commands
        .downgrade();
    let purger = Purger {
        tables: Arc::clone(&store.tables),
        commands,
        stopped,
        entries_max,
        first_hour: i64::MIN,
        due_from: HashMap::new(),
    };
    Fixture {
        store,
        purger,
        _stop: stop,
        _dir: dir,
    }
}

impl Fixture {
    /// Runs one pass where it may block.
    async fn pass(mut self, now: Timestamp) -> Self {
        tokio::task::spawn_blocking(move || {
            self.purger.pass(now).unwrap();
            self
        })
        .await
        .unwrap()
    }

    async fn write(&self, rows: Vec<RowWrite>) {
        let batch = WriteBatch {
            rows,
            ..WriteBatch::default()
        };
        self.store.write(batch).await.unwrap();
    }

    fn stored(&self) -> [usize; 3] {
        let tables = &self.store.tables;
        [&tables.state, &tables.created, &tables.expiry].map(|table| table.len().unwrap())
    }
}

fn id(n: u128) -> OperationId {
    OperationId(Uuid::from_u128(n))
}

fn row(n: u128, stamp: i64, keep_for: Option<Duration>) -> RowWrite {
    let created = Created {
        workflow: "w".into(),
        workflow_version: 1,
        step_names: Vec::new(),
        tenant: "".into(),
        caller_id: None,
        input: Arc::from(&b"{}"[..]),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash::default(),
        request: Position {
            partition: PartitionId(0),
            offset: Offset(0),
        },
        requested_at: Timestamp(0),
        created_at: Timestamp(0),
        traceparent: None,
    };
    let state = OperationState {
        state: ProcessState::Processed,
        locked_by: None,
        epoch: Epoch(1),
        next_due: None,
        handed_off: false,
        failure_count: 0,
        sequence: 1,
        updated_at: Timestamp(0),
        error: None,
        steps: Vec::new(),
    };
    RowWrite {
        id: id(n),
        created: Some(Arc::new(created)),
        state,
        stamp: Stamp(stamp),
        keep_for,
    }
}

#[tokio::test]
async fn a_row_is_removed_once_the_hour_of_its_expiry_is_over() {
    let fixture = fixture(1000);
    fixture
        .write((0..600).map(|n| row(n, 1, Some(HOUR))).collect())
        .await;
    fixture.write(vec![row(1000, 1, None)]).await;
    let now = wall_clock();

    let fixture = fixture.pass(now).await;
    assert_eq!(fixture.stored(), [601, 601, 600], "nothing has expired yet");

    let fixture = fixture.pass(now + 3 * HOUR).await;
    assert_eq!(fixture.stored(), [1, 1, 0], "what has no retention stays");
}

#[tokio::test]
async fn a_row_that_was_written_again_is_judged_by_its_newest_state() {
    let fixture = fixture(1000);
    let rows = vec![
        row(1, 1, Some(HOUR)),
        row(2, 1, Some(HOUR)),
        row(3, 1, Some(HOUR)),
    ];
    fixture.write(rows).await;
    fixture
        .write(vec![row(1, 2, None), row(2, 2, Some(10 * HOUR))])
        .await;
    let now = wall_clock();

    let fixture = fixture.pass(now + 3 * HOUR).await;
    assert_eq!(fixture.stored(), [2, 2, 1]);

    let fixture = fixture.pass(now + 12 * HOUR).await;
    assert_eq!(fixture.stored(), [1, 1, 0]);
    let rows = fixture.store.get_many(vec![id(1), id(2)]).await.unwrap();
    assert!(rows[0].is_some() && rows[1].is_none());
}

#[tokio::test]
async fn a_purged_row_can_be_written_anew() {
    let fixture = fixture(1000);
    fixture.write(vec![row(1, 5, Some(HOUR))]).await;
    let fixture = fixture.pass(wall_clock() + 3 * HOUR).await;
    fixture.write(vec![row(1, 4, None)]).await;
    let rows = fixture.store.get_many(vec![id(1)]).await.unwrap();
    assert_eq!(rows[0].as_ref().unwrap().stamp, Stamp(4));
}

#[tokio::test]
async fn a_pass_removes_no_more_than_its_bound() {
    let fixture = fixture(300);
    fixture
        .write((0..700).map(|n| row(n, 1, Some(HOUR))).collect())
        .await;
    let later = wall_clock() + 3 * HOUR;
    let mut fixture = fixture;
    for left in [400, 100, 0] {
        fixture = fixture.pass(later).await;
        assert_eq!(fixture.stored(), [left; 3]);
    }
}

#[tokio::test]
async fn a_clock_that_was_set_back_leaves_nothing_behind() {
    let fixture = fixture(1000);
    let now = wall_clock();
    let fixture = fixture.pass(now + 100 * HOUR).await;
    fixture.write(vec![row(1, 1, Some(HOUR))]).await;
    let fixture = fixture.pass(now).await;
    let fixture = fixture.pass(now + 3 * HOUR).await;
    assert_eq!(fixture.stored(), [0; 3]);
}

#[tokio::test]
async fn an_unreadable_row_is_left_and_holds_up_no_other() {
    let fixture = fixture(1000);
    fixture
        .write(vec![row(1, 1, Some(HOUR)), row(2, 1, Some(HOUR))])
        .await;
    fixture
        .store
        .tables
        .state
        .insert(keys::row(id(1)), [99])
        .unwrap();
    let fixture = fixture.pass(wall_clock() + 3 * HOUR).await;
    assert_eq!(fixture.stored(), [1, 1, 0]);
}

#[tokio::test]
async fn deadline_entries_behind_the_cursor_are_forgotten_and_no_others() {
    let fixture = fixture(1000);
    let entry = |second: i64| DueEntry {
        due: Timestamp(second * 1_000_000 + 500_000),
        operation: id(second.unsigned_abs().into()),
    };
    let due = (0..600).flat_map(|second| [0, 1].map(|shard| (PartitionId(shard), entry(second))));
    let batch = WriteBatch {
        due: due.collect(),
        ..WriteBatch::default()
    };
    fixture.store.write(batch).await.unwrap();
    let cursor = DueBucket(590);
    fixture
        .store
        .advance_due_cursor(PartitionId(1), cursor)
        .await
        .unwrap();

    let fixture = fixture.pass(Timestamp(0)).await;
    assert_eq!(fixture.store.tables.due.len().unwrap(), 600 + 10);
    let kept = fixture
        .store
        .due(PartitionId(1), cursor, None, 10)
        .await
        .unwrap();
    assert_eq!(kept, [entry(590)]);
    let gone = fixture
        .store
        .due(PartitionId(1), DueBucket(589), None, 10)
        .await
        .unwrap();
    assert_eq!(gone, []);
}
