//! Finds live operations that nothing would wake, and wakes them.
//!
//! A handed-off operation wakes when its entry in the deadline index comes up: the supervisor then
//! sends a recovery to the scheduler. If the entry or the recovery is lost (retention, an old
//! backup, a bug), the operation would stay live for ever. So the owner of an index shard walks its
//! attention table, which lists every operation that was handed off.
//!
//! What must hold:
//!
//! * **The audit is an exception.** An operation counts as unwoken only if its due time is further
//!   behind the sweep cursor than a sweep looks back, or was set by a clock that was ahead; if the
//!   same held one round earlier; and if its scheduler has done every recovery that was in the
//!   topic then. The audit ignores operations whose scheduler is stopped, blocked or slow.
//! * **Waking is idempotent.** The audit sends the recovery that the sweep would have sent. It
//!   names the attempt in the row, and the scheduler writes the index entry again.
//! * **A row that cannot be read is reported.** The audit cannot tell whether anything would wake
//!   its operation. The row is counted when a round first meets it and logged once, in that round
//!   or a later one, because a round names at most [`NAMED_MAX`]. It is reported again only if a
//!   whole round has not met it in between, or if [`SUSPECTS_MAX`] others are remembered.
//! * **The work is bounded**: one page at a time in a process, with a pause after each; at most
//!   [`SUSPECTS_MAX`] operations of an index shard in a round; recoveries at the shared rate.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use waybill_clock::time_text;
use waybill_clock::wall_clock;
use waybill_engine::{
    Offset, OperationId, OperationRow, PartitionId, Recovery, Source, Supervision, Timestamp,
    Workflows,
};
use waybill_kafka::{Admin, AdminError};
use waybill_messages::Topics;
use waybill_store::{
    AttentionCursor, AttentionOrder, CorruptRow, DUE_BUCKETS_AGAIN, DueBucket, Store, StoreError,
};
use waybill_topology::partition_map::PartitionMap;
use waybill_topology::shards;

use super::ask::{AskError, Asker};
use super::metrics::SupervisorMetrics;
use super::parked::ReadLock;

/// How many suspects, and how many unreadable rows, an index shard remembers from one round to the
/// next. Further suspects are found later. Further unreadable rows are reported in each round.
const SUSPECTS_MAX: usize = 10_000;
/// Maximum number of entries or rows in one read.
const PAGE: usize = 250;
/// The pause after each page, in which no other index shard of the process reads either.
const PAUSE: Duration = Duration::from_millis(50);
/// A row whose write time is this far ahead of the local clock was written by a wrong clock.
const CLOCK_AHEAD_MIN: Duration = Duration::from_secs(60);
/// How many woken operations, and how many unreadable rows, one round names in the log.
const NAMED_MAX: usize = 20;

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum AuditError {
    #[error("cannot read the state store")]
    Store(#[from] StoreError),
    #[error("cannot read the end of the recoveries topic")]
    Admin(#[from] AdminError),
    #[error("recoveries were not acknowledged")]
    Ask(#[from] AskError),
}

/// State that the audits of all index shards of a process share.
#[derive(Debug)]
pub(super) struct Auditor {
    pub(super) name: Arc<str>,
    pub(super) store: Arc<dyn Store>,
    pub(super) workflows: Arc<Workflows>,
    pub(super) timeout_grace: Duration,
    pub(super) partition_map: PartitionMap,
    pub(super) asker: Arc<Asker>,
    pub(super) admin: Admin,
    pub(super) topics: Topics,
    pub(super) metrics: Arc<SupervisorMetrics>,
    pub(super) read_lock: ReadLock,
    /// How often an index shard is audited.
    pub(super) every: Duration,
}

/// The audit of one index shard.
#[derive(Debug)]
pub(super) struct Audit {
    index_shard: PartitionId,
    auditor: Arc<Auditor>,
    suspects: Suspects,
    unreadable: Unreadable,
}

/// Operations that the last round found to have nothing that would wake them in time.
#[derive(Debug, Default)]
struct Suspects {
    /// The due time of each, from its row.
    due: HashMap<OperationId, Timestamp>,
    /// The end of the recovery topic after that round, by partition.
    ends: HashMap<PartitionId, Offset>,
}

/// Unreadable rows, as met by the last complete round and the rounds after it.
#[derive(Debug, Default)]
struct Unreadable {
    rows: HashMap<OperationId, UnreadableRow>,
    /// How many more rows this round logs.
    logs_left: usize,
}

#[derive(Clone, Copy, Debug)]
struct UnreadableRow {
    is_logged: bool,
    /// The current round has met this row.
    is_noted: bool,
}

/// What to report about an unreadable row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Report {
    count: bool,
    log: bool,
}

/// What a walk over the attention table found.
#[derive(Default)]
struct Findings {
    /// Operations whose due time is behind the cursor, with that due time.
    due: HashMap<OperationId, Timestamp>,
    /// How many operations were woken.
    woken: usize,
}

impl Suspects {
    /// The partitions in which every recovery of the last round is done, according to `done`.
    fn settled(&self, done: &HashMap<PartitionId, Offset>) -> Vec<PartitionId> {
        let ends = self.ends.iter();
        let is_done = |partition, end: &Offset| done.get(partition).is_some_and(|done| done >= end);
        let settled = ends.filter(|(partition, end)| is_done(*partition, end));
        settled.map(|(partition, _)| *partition).collect()
    }

    /// Whether the last round found the operation with the same due time.
    fn had(&self, row: &OperationRow, due: Timestamp) -> bool {
        self.due.get(&row.id) == Some(&due)
    }
}

impl Unreadable {
    /// Begins a round. Rows that a round met before it ended early stay marked.
    fn begin_round(&mut self) {
        self.logs_left = NAMED_MAX;
        for row in self.rows.values_mut() {
            row.is_noted = false;
        }
    }

    /// Records that this round met an unreadable row. One operation may have several entries.
    fn note(&mut self, operation: OperationId) -> Report {
        let known = self.rows.get(&operation);
        let count = known.is_none();
        let was_logged = known.is_some_and(|row| row.is_logged);
        let log = !was_logged && self.logs_left > 0;
        if log {
            self.logs_left -= 1;
        }
        if !count || self.rows.len() < SUSPECTS_MAX {
            let row = UnreadableRow {
                is_logged: was_logged || log,
                is_noted: true,
            };
            self.rows.insert(operation, row);
        }
        Report { count, log }
    }

    /// Ends a complete round. Rows that it did not meet can be read again, or were deleted.
    fn end_round(&mut self) {
        self.rows.retain(|_, row| row.is_noted);
    }
}

/// The due time of a live, handed-off operation that nothing would wake in time: it is too far
/// behind the cursor for a sweep, or a clock that has been set back since wrote the row.
fn missed(row: &OperationRow, cursor: DueBucket, now: Timestamp) -> Option<Timestamp> {
    let state = &row.state;
    let due = state
        .next_due
        .filter(|_| state.handed_off && !state.state.is_final())?;
    let looked_at_from = DueBucket(cursor.0.saturating_sub(DUE_BUCKETS_AGAIN));
    let is_behind = DueBucket::of(due) < looked_at_from;
    let clock_was_ahead = state.updated_at.since(now) > CLOCK_AHEAD_MIN;
    (is_behind || clock_was_ahead).then_some(due)
}

impl Audit {
    pub(super) fn new(index_shard: PartitionId, auditor: Arc<Auditor>) -> Self {
        Self {
            index_shard,
            auditor,
            suspects: Suspects::default(),
            unreadable: Unreadable::default(),
        }
    }

    /// Audits the index shard until the future is dropped.
    pub(super) async fn keep(mut self) -> Infallible {
        loop {
            tokio::time::sleep(self.auditor.every).await;
            match self.round().await {
                Ok(()) => {}
                Err(AuditError::Ask(AskError::Stopping)) => std::future::pending().await,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(index_shard = %self.index_shard, error, "audit failed; retrying");
                }
            }
        }
    }

    /// Walks the attention table once.
    async fn round(&mut self) -> Result<(), AuditError> {
        let auditor = Arc::clone(&self.auditor);
        let done = auditor.done(self.suspects.ends.keys()).await?;
        let settled = self.suspects.settled(&done);
        self.unreadable.begin_round();
        let found = self.walk(&settled).await?;
        self.unreadable.end_round();
        let due = found.due.keys();
        let mut partitions: Vec<PartitionId> = due.map(|id| auditor.partition_of(*id)).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let ends = auditor.ends(&partitions).await?;
        self.suspects = Suspects {
            due: found.due,
            ends,
        };
        auditor.metrics.unwoken(self.index_shard, found.woken);
        Ok(())
    }

    /// Wakes operations that the last round also found, in `settled` partitions.
    async fn walk(&mut self, settled: &[PartitionId]) -> Result<Findings, AuditError> {
        let auditor = Arc::clone(&self.auditor);
        let mut cursors = Cursors::default();
        let mut found = Findings::default();
        let mut cursor = AttentionCursor::new(
            AttentionOrder::OldestFirst,
            Timestamp(i64::MIN),
            Timestamp(i64::MAX),
        );
        loop {
            let read_lock = auditor.read_lock.clone().lock_owned().await;
            let store = &*auditor.store;
            let page = store
                .attention_page(vec![self.index_shard], cursor, PAGE)
                .await?;
            let ids: Vec<OperationId> = page.entries.iter().map(|entry| entry.operation).collect();
            let rows = match ids.is_empty() {
                true => Vec::new(),
                false => store.get_many(ids).await?,
            };
            let now = wall_clock();
            let mut recoveries: Vec<Recovery> = Vec::new();
            for row in rows {
                let row = match row {
                    Ok(Some(row)) => row,
                    Ok(None) => continue,
                    Err(corrupt) => {
                        self.report_unreadable(&corrupt);
                        continue;
                    }
                };
                let partition = auditor.partition_of(row.id);
                let swept_to = cursors.lowest(store, [self.index_shard, partition]).await?;
                let Some(due) = swept_to.and_then(|swept_to| missed(&row, swept_to, now)) else {
                    continue;
                };
                // One operation may have several entries.
                if found.due.len() >= SUSPECTS_MAX || found.due.insert(row.id, due).is_some() {
                    continue;
                }
                if settled.contains(&partition) && self.suspects.had(&row, due) {
                    if found.woken < NAMED_MAX {
                        tracing::error!(
                            operation = %row.id,
                            due = %time_text(due),
                            index_shard = %self.index_shard,
                            "audit found a live operation that nothing would resume; requesting \
                             its recovery"
                        );
                    }
                    found.woken += 1;
                    recoveries.extend(auditor.supervision().entry_came_up(&row, due, now));
                }
            }
            if !page.entries.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
            drop(read_lock);
            auditor.asker.ask(&recoveries).await?;
            match page.next {
                Some(next) => cursor = next,
                None => return Ok(found),
            }
        }
    }

    /// Counts and logs an unreadable row, unless an earlier round did.
    fn report_unreadable(&mut self, corrupt: &CorruptRow) {
        let report = self.unreadable.note(corrupt.id);
        if report.count {
            self.auditor.metrics.unreadable.increment(1);
        }
        if report.log {
            tracing::error!(
                operation = %corrupt.id,
                index_shard = %self.index_shard,
                error = corrupt as &dyn std::error::Error,
                "could not read the row of an operation that was handed off or parked"
            );
        }
    }
}

/// The sweep cursors of index shards, each read once in a round.
#[derive(Default)]
struct Cursors(HashMap<PartitionId, Option<DueBucket>>);

impl Cursors {
    /// The lowest cursor of these index shards; `None` if one of them was never swept.
    async fn lowest(
        &mut self,
        store: &dyn Store,
        index_shards: [PartitionId; 2],
    ) -> Result<Option<DueBucket>, StoreError> {
        let mut lowest = DueBucket(i64::MAX);
        for index_shard in index_shards {
            let cursor = match self.0.get(&index_shard) {
                Some(cursor) => *cursor,
                None => {
                    let cursor = store.due_cursor(index_shard).await?;
                    self.0.insert(index_shard, cursor);
                    cursor
                }
            };
            let Some(cursor) = cursor else {
                return Ok(None);
            };
            lowest = lowest.min(cursor);
        }
        Ok(Some(lowest))
    }
}

impl Auditor {
    fn partition_of(&self, operation: OperationId) -> PartitionId {
        self.partition_map.partition_of(operation)
    }

    fn supervision(&self) -> Supervision<'_> {
        Supervision {
            name: &self.name,
            workflows: &self.workflows,
            timeout_grace: self.timeout_grace,
        }
    }

    /// The offset below which every recovery of a partition is done.
    async fn done(
        &self,
        partitions: impl Iterator<Item = &PartitionId>,
    ) -> Result<HashMap<PartitionId, Offset>, StoreError> {
        let layout = self.partition_map.layout();
        let mut done = HashMap::new();
        for partition in partitions {
            let of_it = shards::done(&*self.store, &layout, Source::Recoveries, *partition).await?;
            done.insert(*partition, of_it);
        }
        Ok(done)
    }

    /// The end offsets of the recovery topic, by partition.
    async fn ends(
        &self,
        partitions: &[PartitionId],
    ) -> Result<HashMap<PartitionId, Offset>, AdminError> {
        if partitions.is_empty() {
            return Ok(HashMap::new());
        }
        let topic = self.topics.recovery();
        let offsets = self.admin.offsets(topic, partitions).await?;
        let ends = offsets.into_iter().map(|(_, end)| end);
        Ok(partitions.iter().copied().zip(ends).collect())
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::ProcessState;

    use super::*;
    use waybill_test_support::rows;

    fn at(second: i64) -> Timestamp {
        Timestamp(second * 1_000_000)
    }

    fn row(state: ProcessState, due: Option<i64>) -> OperationRow {
        let mut row = rows::row(state, &["pay"]);
        row.state.handed_off = true;
        row.state.next_due = due.map(at);
        row
    }

    #[test]
    fn only_a_live_operation_that_was_handed_off_can_miss_its_due_time() {
        let cursor = DueBucket(100 + DUE_BUCKETS_AGAIN);
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
            due: HashMap::from([(row.id, at(99))]),
            ends: HashMap::from([(own, Offset(7)), (other, Offset(3))]),
        };
        assert!(suspects.had(&row, at(99)));
        assert!(!suspects.had(&row, at(98)), "the due time moved");
        assert!(!Suspects::default().had(&row, at(99)));
        let done = |own_done, other_done| {
            HashMap::from([(own, Offset(own_done)), (other, Offset(other_done))])
        };
        assert_eq!(suspects.settled(&done(6, 2)), []);
        assert_eq!(suspects.settled(&done(7, 2)), [own]);
        assert_eq!(suspects.settled(&done(6, 9)), [other]);
        assert_eq!(suspects.settled(&HashMap::new()), []);
    }

    /// Meets the first `rows` rows twice; returns how many are counted and how many are logged.
    fn reported(unreadable: &mut Unreadable, rows: u128) -> (usize, usize) {
        let ids = (0..rows).map(|number| OperationId(uuid::Uuid::from_u128(number)));
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
}
