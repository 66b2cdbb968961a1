use uuid::Uuid;
use waybill_engine::{HistoryEntry, Stamp, partition_for};
use waybill_store::{EmbeddedConfig, EmbeddedStore, RowWrite, WriteBatch};
use waybill_test_support::rows;

use super::*;

const INDEX_SHARD: PartitionId = PartitionId(0);
const GRACE: Duration = Duration::from_secs(20);

/// A store, and the gauges of its only index shard.
struct Fixture {
    store: Arc<EmbeddedStore>,
    parked: Parked,
    _dir: tempfile::TempDir,
}

fn at(second: i64) -> Timestamp {
    Timestamp(second * 1_000_000)
}

fn id(number: u128) -> OperationId {
    OperationId(Uuid::from_u128(number))
}

impl Fixture {
    fn new(partitions: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        let store = Arc::new(store);
        let parked = Parked::new(
            INDEX_SHARD,
            store.clone(),
            PartitionMap::fixed(partitions),
            Arc::new(SupervisorMetrics::new()),
            ReadLock::default(),
            GRACE,
        );
        Self {
            store,
            parked,
            _dir: dir,
        }
    }

    /// Writes a row in this state at second `stamp`.
    async fn row(&self, id: OperationId, stamp: i64, state: ProcessState) {
        self.row_with(id, stamp, state, |_| {}).await;
    }

    async fn row_with(
        &self,
        id: OperationId,
        stamp: i64,
        state: ProcessState,
        more: impl FnOnce(&mut waybill_engine::OperationState),
    ) {
        let mut row = rows::row(state, &["pay"]);
        more(&mut row.state);
        let row = RowWrite {
            id,
            created: Some(row.created),
            state: row.state,
            stamp: Stamp(at(stamp).as_micros()),
            keep_for: None,
        };
        let batch = WriteBatch {
            rows: vec![row],
            ..WriteBatch::default()
        };
        self.store.write(batch).await.unwrap();
    }

    async fn entry(&self, id: OperationId, second: i64) {
        let entry = AttentionEntry {
            at: at(second),
            operation: id,
        };
        let batch = WriteBatch {
            attention: vec![(INDEX_SHARD, entry)],
            ..WriteBatch::default()
        };
        self.store.write(batch).await.unwrap();
    }

    /// The counts of `Error` and `CompensationFailed` at this second, and since when each is
    /// parked.
    async fn counted(&mut self, second: i64) -> [(usize, Option<Timestamp>); 2] {
        self.parked.refresh(at(second)).await.unwrap();
        [ProcessState::Error, ProcessState::CompensationFailed].map(|state| {
            let stats = self.parked.stats(state);
            (stats.count, stats.oldest)
        })
    }
}

const NONE: (usize, Option<Timestamp>) = (0, None);

#[tokio::test]
async fn long_parked_operations_are_counted_and_others_are_not() {
    let mut fixture = Fixture::new(1);
    assert_eq!(fixture.counted(1).await, [NONE, NONE]);
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
        fixture.row(id(number), 100, state).await;
        fixture.entry(id(number), 100 + number as i64).await;
    }
    let abandon = |state: &mut waybill_engine::OperationState| state.abandoned = true;
    fixture
        .row_with(id(50), 100, ProcessState::Error, abandon)
        .await;
    fixture.entry(id(50), 100).await;
    fixture.entry(id(51), 100).await;
    let day_after = 100_000;
    assert_eq!(
        fixture.counted(day_after).await,
        [(2, Some(at(101))), (1, Some(at(103)))]
    );
}

#[tokio::test]
async fn a_repaired_operation_is_not_counted_and_one_parked_again_counts_from_then() {
    let mut fixture = Fixture::new(1);
    for number in [1, 2] {
        fixture.row(id(number), 100, ProcessState::Error).await;
        // It lingered first, and was parked later.
        fixture.entry(id(number), 90).await;
        fixture.entry(id(number), 100).await;
    }
    assert_eq!(fixture.counted(101).await, [(2, Some(at(100))), NONE]);
    fixture.row(id(1), 200, ProcessState::Processed).await;
    fixture.row(id(2), 200, ProcessState::Processing).await;
    fixture.entry(id(2), 200).await;
    assert_eq!(fixture.counted(201).await, [NONE, NONE]);
    fixture
        .row(id(2), 300, ProcessState::CompensationFailed)
        .await;
    fixture.entry(id(2), 300).await;
    assert_eq!(fixture.counted(301).await, [NONE, (1, Some(at(300)))]);
    fixture.row(id(2), 400, ProcessState::Error).await;
    fixture.entry(id(2), 400).await;
    assert_eq!(fixture.counted(401).await, [(1, Some(at(400))), NONE]);
}

#[tokio::test]
async fn recent_entries_are_read_again_and_older_ones_once_an_hour() {
    let mut fixture = Fixture::new(1);
    assert_eq!(fixture.counted(100).await, [NONE, NONE]);
    // The entry is visible before its row, and is older than the last check.
    fixture.entry(id(1), 90).await;
    assert_eq!(fixture.counted(105).await, [NONE, NONE]);
    fixture.row(id(1), 90, ProcessState::Error).await;
    assert_eq!(fixture.counted(106).await, [(1, Some(at(90))), NONE]);

    fixture.row(id(2), 50, ProcessState::Error).await;
    fixture.entry(id(2), 50).await;
    assert_eq!(fixture.counted(200).await, [(1, Some(at(90))), NONE]);
    let an_hour_later = 100 + 60 * 60;
    assert_eq!(
        fixture.counted(an_hour_later).await,
        [(2, Some(at(50))), NONE]
    );
}

#[tokio::test]
async fn an_entry_with_a_future_time_counts_immediately() {
    let mut fixture = Fixture::new(1);
    fixture.row(id(1), 100, ProcessState::Error).await;
    fixture.entry(id(1), 5_000).await;
    assert_eq!(fixture.counted(100).await, [(1, Some(at(5_000))), NONE]);
}

#[tokio::test]
async fn counting_is_bounded_and_repaired_operations_make_room_for_others() {
    let mut fixture = Fixture::new(1);
    fixture.parked.counted_max = 150;
    for number in 1..=260 {
        fixture.row(id(number), 100, ProcessState::Error).await;
        fixture.entry(id(number), 100).await;
    }
    assert_eq!(fixture.counted(101).await, [(150, Some(at(100))), NONE]);
    let known: Vec<OperationId> = fixture.parked.known.keys().copied().collect();
    for id in &known[..50] {
        fixture.row(*id, 200, ProcessState::Processed).await;
    }
    assert_eq!(fixture.counted(1_000).await, [(150, Some(at(100))), NONE]);
    for number in 1..=250 {
        fixture.row(id(number), 300, ProcessState::Processed).await;
    }
    assert_eq!(fixture.counted(2_000).await, [(10, Some(at(100))), NONE]);
}

#[tokio::test]
async fn many_operations_of_one_state_do_not_hide_those_of_another() {
    let mut fixture = Fixture::new(1);
    fixture.parked.counted_max = 20;
    for number in 1..=300 {
        fixture.row(id(number), 100, ProcessState::Error).await;
        fixture.entry(id(number), 100).await;
    }
    let undo_failed = ProcessState::CompensationFailed;
    fixture.row(id(301), 101, undo_failed).await;
    fixture.entry(id(301), 101).await;
    let first = (1, Some(at(101)));
    assert_eq!(fixture.counted(102).await, [(20, Some(at(100))), first]);
    fixture.row(id(302), 110, undo_failed).await;
    fixture.entry(id(302), 110).await;
    let both = (2, Some(at(101)));
    assert_eq!(fixture.counted(111).await, [(20, Some(at(100))), both]);
}

#[tokio::test]
async fn an_operation_parked_again_after_repartitioning_is_counted_once() {
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
    fixture
        .row_with(stayed, 300, ProcessState::Error, |state| {
            state.history.push(refused)
        })
        .await;
    let applied = resubmitted(None);
    fixture
        .row_with(went_on, 300, ProcessState::Error, |state| {
            state.history.push(applied)
        })
        .await;
    for operation in [stayed, went_on] {
        fixture.entry(operation, 100).await;
    }
    assert_eq!(fixture.counted(400).await, [(1, Some(at(100))), NONE]);
    assert!(fixture.parked.known.contains_key(&stayed));
    // This also covers an operation that was known, resubmitted, and parked again between two
    // checks.
    let again = HistoryEntry {
        at: at(450),
        ..resubmitted(None)
    };
    fixture
        .row_with(stayed, 460, ProcessState::Error, |state| {
            state.history.push(again)
        })
        .await;
    assert_eq!(fixture.counted(470).await, [NONE, NONE]);
}
