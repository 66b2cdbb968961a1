//! The purge, with a clock of the test's own.

use std::sync::Arc;

use uuid::Uuid;
use waybill_engine::{
    Created, Epoch, Offset, OperationId, OperationState, Position, Priority, ProcessState,
    RequestHash, Stamp,
};

use super::*;
use crate::embedded::tables::Tables;
use crate::{
    AttentionCursor, AttentionEntry, AttentionOrder, DUE_BUCKETS_REREAD, DueBucket, DueEntry,
    EmbeddedStore, RowWrite, Store, WriteBatch,
};

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
        path: dir.path().to_owned(),
        tables: Arc::clone(&store.tables),
        commands,
        stopped,
        entries_max,
        attention_checks_max: entries_max,
        first_hour: i64::MIN,
        due_from: HashMap::new(),
        walk: Walk::default(),
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
            self.purger.pass(now, now).unwrap();
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

    /// Makes the stored state of an operation unreadable.
    fn spoil(&self, id: OperationId) {
        let state = &self.store.tables.get().unwrap().state;
        state.insert(keys::row(id), [99]).unwrap();
    }

    async fn write_attention(&self, entries: &[(PartitionId, AttentionEntry)]) {
        let batch = WriteBatch {
            attention: entries.to_vec(),
            ..WriteBatch::default()
        };
        self.store.write(batch).await.unwrap();
    }

    /// All attention entries of the index shards that the tests use, the oldest first.
    async fn attention(&self) -> Vec<AttentionEntry> {
        let index_shards = [PartitionId(0), PartitionId(1), PartitionId(u32::MAX)];
        let all = AttentionCursor::new(
            AttentionOrder::OldestFirst,
            Timestamp(i64::MIN),
            Timestamp(i64::MAX),
        );
        let page = self
            .store
            .attention_page(index_shards.to_vec(), all, usize::MAX);
        page.await.unwrap().entries
    }

    fn stored(&self) -> [usize; 3] {
        let tables = self.store.tables.get().unwrap();
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
            priority: Priority::Normal,
            partition: PartitionId(0),
            offset: Offset(0),
        },
        requested_at: Timestamp(0),
        created_at: Timestamp(0),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
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
        ..OperationState::default()
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
async fn a_row_is_removed_after_the_hour_of_its_expiry() {
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
async fn a_row_written_by_a_slow_clock_is_kept_for_its_retention() {
    let dir = tempfile::tempdir().unwrap();
    let open = || EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
    let year = 365 * 24 * HOUR;
    {
        // The store was made when the clock was a year behind.
        let tables = Tables::open(&EmbeddedConfig::new(dir.path())).unwrap();
        let mut encoder = crate::codec::Encoder::default();
        let saved = encoder.retention(wall_clock() - year).to_vec();
        tables.leases.insert(keys::RETENTION, saved).unwrap();
    }
    {
        let store = open();
        let behind = wall_clock().since(store.tables.retention().now());
        assert!(behind > year - HOUR, "{behind:?}");
        let rows = vec![row(1, 1, Some(24 * HOUR))];
        let batch = WriteBatch {
            rows,
            ..WriteBatch::default()
        };
        store.write(batch).await.unwrap();
        store.close().await.unwrap();
    }
    // Since then the clock is right.
    let store = open();
    let read = store.get_many(vec![id(1)]).await.unwrap();
    assert!(matches!(read[..], [Ok(Some(_))]), "{read:?}");
    let kept: Vec<_> = store.rows().map(|row| row.unwrap().unwrap()).collect();
    let left = kept[0].expires_at.unwrap().since(wall_clock());
    assert!(23 * HOUR < left && left <= 24 * HOUR, "{left:?}");
}

#[tokio::test]
async fn a_rewritten_row_expires_by_its_newest_state() {
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
    assert!(matches!(rows[..], [Ok(Some(_)), Ok(None)]), "{rows:?}");
}

#[tokio::test]
async fn a_reopened_row_survives_its_purge() {
    let fixture = fixture(1000);
    let finals = (1..=3).map(|n| row(n, 1, Some(HOUR))).collect();
    fixture.write(finals).await;
    let without_created = RowWrite {
        created: None,
        ..row(2, 2, None)
    };
    fixture.write(vec![row(1, 2, None), without_created]).await;
    // A late write with a lower stamp reopens nothing.
    fixture.write(vec![row(3, 0, None)]).await;
    let now = wall_clock();
    let mut fixture = fixture;
    for hours in [3, 6] {
        fixture = fixture.pass(now + hours * HOUR).await;
        assert_eq!(fixture.stored(), [2, 2, 0], "after {hours} hours");
    }
    let rows = fixture.store.get_many(vec![id(1), id(2), id(3)]).await;
    let rows = rows.unwrap();
    let is_whole = matches!(rows[..], [Ok(Some(_)), Ok(Some(_)), Ok(None)]);
    assert!(is_whole, "{rows:?}");
}

#[tokio::test]
async fn a_purged_row_can_be_written_again() {
    let fixture = fixture(1000);
    fixture.write(vec![row(1, 5, Some(HOUR))]).await;
    let fixture = fixture.pass(wall_clock() + 3 * HOUR).await;
    fixture.write(vec![row(1, 4, None)]).await;
    let rows = fixture.store.get_many(vec![id(1)]).await.unwrap();
    let row = rows[0].as_ref().unwrap().as_ref();
    assert_eq!(row.unwrap().stamp, Stamp(4));
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
async fn a_clock_that_was_set_back_leaves_no_expired_rows() {
    let fixture = fixture(1000);
    let now = wall_clock();
    let fixture = fixture.pass(now + 100 * HOUR).await;
    fixture.write(vec![row(1, 1, Some(HOUR))]).await;
    let fixture = fixture.pass(now).await;
    let fixture = fixture.pass(now + 3 * HOUR).await;
    assert_eq!(fixture.stored(), [0; 3]);
}

#[tokio::test]
async fn an_unreadable_row_is_kept_and_blocks_no_other() {
    let fixture = fixture(1000);
    fixture
        .write(vec![row(1, 1, Some(HOUR)), row(2, 1, Some(HOUR))])
        .await;
    fixture.spoil(id(1));
    let fixture = fixture.pass(wall_clock() + 3 * HOUR).await;
    assert_eq!(fixture.stored(), [1, 1, 0]);
}

#[tokio::test]
async fn only_deadline_entries_behind_the_cursor_are_removed() {
    let fixture = fixture(1000);
    let entry = |second: i64| DueEntry {
        due: Timestamp(second * 1_000_000 + 500_000),
        operation: id(second.unsigned_abs().into()),
    };
    let due = (0..600)
        .flat_map(|second| [0, 1].map(|index_shard| (PartitionId(index_shard), entry(second))));
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
    let kept_behind = DUE_BUCKETS_REREAD.unsigned_abs() as usize;
    assert_eq!(
        fixture.store.tables.get().unwrap().due.len().unwrap(),
        600 + 10 + kept_behind
    );
    let kept = fixture
        .store
        .due(PartitionId(1), cursor, None, 10)
        .await
        .unwrap();
    assert_eq!(kept, [entry(590)]);
    let gone = fixture
        .store
        .due(
            PartitionId(1),
            DueBucket(589 - DUE_BUCKETS_REREAD),
            None,
            10,
        )
        .await
        .unwrap();
    assert_eq!(gone, []);
}

const DAY: Duration = Duration::from_secs(86_400);

fn attention(n: u128, at: Timestamp) -> AttentionEntry {
    AttentionEntry {
        at,
        operation: id(n),
    }
}

fn row_in(n: u128, state: ProcessState, keep_for: Option<Duration>) -> RowWrite {
    let mut row = row(n, 1, keep_for);
    row.state.state = state;
    row
}

#[tokio::test]
async fn dangling_attention_entries_are_removed_after_a_day() {
    let fixture = fixture(1000);
    let now = wall_clock();
    let rows = vec![
        row_in(1, ProcessState::Processed, Some(99 * DAY)),
        row_in(2, ProcessState::Error, Some(99 * DAY)),
        row_in(3, ProcessState::Processing, None),
        row_in(4, ProcessState::Processed, Some(99 * DAY)),
        row_in(6, ProcessState::Error, Some(HOUR)),
    ];
    fixture.write(rows).await;
    fixture.spoil(id(4));
    let last = PartitionId(u32::MAX);
    let entries: Vec<_> = (1..=6).map(|n| attention(n, now)).collect();
    for (index_shard, entries) in [(PartitionId(0), &entries[..2]), (last, &entries[2..])] {
        let entries: Vec<_> = entries.iter().map(|&entry| (index_shard, entry)).collect();
        fixture.write_attention(&entries).await;
    }
    let young = attention(1, now + DAY);
    fixture.write_attention(&[(PartitionId(0), young)]).await;

    let fixture = fixture.pass(now + DAY - HOUR).await;
    assert_eq!(fixture.attention().await.len(), 7, "all are too young");

    // 5 never had a row, the retention of 6 has passed, 4 cannot be read.
    let fixture = fixture.pass(now + DAY + HOUR).await;
    let kept = [2, 3, 4].map(|n| attention(n, now));
    assert_eq!(fixture.attention().await, [&kept[..], &[young]].concat());

    let fixture = fixture.pass(now + 3 * DAY).await;
    assert_eq!(fixture.attention().await, kept);
}

#[tokio::test]
async fn a_pass_reads_a_bounded_number_of_attention_entries() {
    let fixture = fixture(300);
    let now = wall_clock();
    // Entries that lead to nothing follow 400 that still need attention.
    let parked = (0..400).map(|n| row_in(n, ProcessState::Error, None));
    fixture.write(parked.collect()).await;
    let entries: Vec<_> = (0..700)
        .map(|n| {
            let index_shard = PartitionId(u32::from(n >= 400));
            (index_shard, attention(n, now - 3 * DAY))
        })
        .collect();
    fixture.write_attention(&entries).await;
    let mut fixture = fixture;
    for (pass, left) in [(1, 700), (2, 500), (3, 400)] {
        fixture = fixture.pass(now).await;
        assert_eq!(fixture.attention().await.len(), left, "pass {pass}");
    }
}

#[tokio::test]
async fn the_attention_table_is_walked_once_an_hour() {
    let now = wall_clock();
    let mut fixture = fixture(1000).pass(now).await;
    for (later, left) in [
        (now + HOUR / 2, 1),
        (now + HOUR, 0),
        (now + HOUR, 1),
        (now, 0),
    ] {
        fixture
            .write_attention(&[(PartitionId(1), attention(9, now - 3 * DAY))])
            .await;
        fixture = fixture.pass(later).await;
        assert_eq!(fixture.attention().await.len(), left, "{later:?}");
    }
}
