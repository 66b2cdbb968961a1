//! Gauges for the parked operations of an index shard: how many there are, and for how long.
//!
//! Counters show only recent parking, but a parked operation waits until a person acts. So the
//! owner of an index shard tracks which of its operations are parked: it rereads their rows, and
//! reads the entries that were added to the attention table since. Each index shard is counted by
//! the holder of its lease alone.
//!
//! What must hold:
//!
//! * **Parking is seen by its entry.** A scheduler that parks an operation writes an entry, before
//!   its row or with it. So the table is read only once, except for entries that might have been in
//!   flight then.
//! * **Every operation is counted once.** It may have several entries, one for each time that it
//!   was parked, also in the index shard that owned it before the number of partitions changed.
//! * **The work is bounded**: one page at a time in a process, with a pause after each, and at most
//!   [`COUNTED_MAX`] operations of a state in an index shard. The limit of one state does not
//!   affect the other.
//!
//! Once an hour the whole table is read, for entries with instants long past: imported entries, and
//! those of a scheduler whose clock was wrong.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use waybill_clock::wall_clock;
use waybill_engine::{OperationId, OperationRow, PartitionId, ProcessState, Timestamp};
use waybill_store::{AttentionCursor, AttentionEntry, AttentionOrder, RowRead, Store, StoreError};
use waybill_topology::partition_map::PartitionMap;

use super::metrics::SupervisorMetrics;
use super::parked_stats::ParkedStats;

/// Maximum number of parked operations of one state that are counted in an index shard.
const COUNTED_MAX: usize = 10_000;
/// How often parked operations are checked.
const EVERY: Duration = Duration::from_secs(30);
/// How often the whole table is read.
const WHOLE_EVERY: Duration = Duration::from_secs(60 * 60);
/// Maximum number of entries or rows in one read.
const PAGE: usize = 250;
/// The pause after each page, in which no other index shard of the process reads either.
const PAUSE: Duration = Duration::from_millis(50);

/// Lets one index shard of a process at a time read a page.
pub(super) type ReadLock = Arc<Mutex<()>>;

/// The parked operations of one index shard.
#[derive(Debug)]
pub(super) struct Parked {
    index_shard: PartitionId,
    store: Arc<dyn Store>,
    partition_map: PartitionMap,
    metrics: Arc<SupervisorMetrics>,
    read_lock: ReadLock,
    /// How long after its instant an entry or its row may become visible.
    grace: Duration,
    known: HashMap<OperationId, Waiting>,
    /// The instant of the first entry to read next; `None` until the whole table was read.
    from: Option<Timestamp>,
    /// When the whole table was last read.
    whole_at: Option<Timestamp>,
    /// Whether some parked operations exceeded [`COUNTED_MAX`].
    left_out: bool,
    counted_max: usize,
}

/// A parked operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    state: ProcessState,
    since: Timestamp,
}

impl Parked {
    pub(super) fn new(
        index_shard: PartitionId,
        store: Arc<dyn Store>,
        partition_map: PartitionMap,
        metrics: Arc<SupervisorMetrics>,
        read_lock: ReadLock,
        grace: Duration,
    ) -> Self {
        Self {
            index_shard,
            store,
            partition_map,
            metrics,
            read_lock,
            grace,
            known: HashMap::new(),
            from: None,
            whole_at: None,
            left_out: false,
            counted_max: COUNTED_MAX,
        }
    }

    /// Keeps the gauges of the index shard current until the future is dropped.
    pub(super) async fn keep(mut self) -> Infallible {
        loop {
            if let Err(error) = self.refresh(wall_clock()).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    index_shard = %self.index_shard,
                    error,
                    "could not count parked operations; retrying"
                );
            }
            self.show();
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Updates the gauges.
    fn show(&self) {
        self.metrics
            .parked(self.index_shard, wall_clock(), |state| self.stats(state));
    }

    fn stats(&self, state: ProcessState) -> ParkedStats {
        let of_state = self.known.values().filter(|known| known.state == state);
        of_state.fold(ParkedStats::default(), |stats, known| ParkedStats {
            count: stats.count + 1,
            oldest: Some(stats.oldest.map_or(known.since, |at| at.min(known.since))),
        })
    }

    /// Rereads the known parked operations, and reads entries added since.
    async fn refresh(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.remove_settled().await?;
        // There is room again: read the whole table for the operations that were left out.
        if self.left_out && self.room().values().all(|room| *room > 0) {
            self.whole_at = None;
            self.left_out = false;
        }
        let is_first = self.from.is_none();
        let whole_lately = self.whole_at.filter(|at| now.since(*at) < WHOLE_EVERY);
        let from = self.from.filter(|_| whole_lately.is_some());
        let from = from.unwrap_or(Timestamp(i64::MIN));
        // No upper bound: another process's clock may be ahead.
        let mut cursor =
            AttentionCursor::new(AttentionOrder::OldestFirst, from, Timestamp(i64::MAX));
        loop {
            let read_lock = self.read_lock.clone().lock_owned().await;
            let index_shards = vec![self.index_shard];
            let page = self
                .store
                .attention_page(index_shards, cursor, PAGE)
                .await?;
            self.look_at(&page.entries).await?;
            if !page.entries.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
            drop(read_lock);
            if is_first {
                self.show();
            }
            match page.next {
                Some(next) => cursor = next,
                None => {
                    self.whole_at = Some(whole_lately.unwrap_or(now));
                    break;
                }
            }
        }
        self.from = Some(now - self.grace);
        Ok(())
    }

    /// Removes operations that are no longer parked.
    async fn remove_settled(&mut self) -> Result<(), StoreError> {
        let ids: Vec<OperationId> = self.known.keys().copied().collect();
        for ids in ids.chunks(PAGE) {
            let read_lock = self.read_lock.clone().lock_owned().await;
            let rows = self.store.get_many(ids.to_vec()).await?;
            for (id, row) in ids.iter().zip(rows) {
                // The audit reports unreadable rows. This operation was parked when last read.
                let (Ok(row), Some(known)) = (row, self.known.get(id)) else {
                    continue;
                };
                let row = row.filter(|row| !self.is_of_another_index_shard(row, known.since));
                match waits_for_a_person(row.as_ref()) {
                    Some(state) => {
                        let since = known.since;
                        self.known.insert(*id, Waiting { state, since });
                    }
                    None => drop(self.known.remove(id)),
                }
            }
            tokio::time::sleep(PAUSE).await;
            drop(read_lock);
        }
        Ok(())
    }

    /// How many more operations can be counted, by state.
    fn room(&self) -> HashMap<ProcessState, usize> {
        let parked = ProcessState::ALL
            .into_iter()
            .filter(|state| state.is_parked());
        let mut room: HashMap<_, _> = parked.map(|state| (state, self.counted_max)).collect();
        for known in self.known.values() {
            if let Some(room) = room.get_mut(&known.state) {
                *room = room.saturating_sub(1);
            }
        }
        room
    }

    /// Reads the operations of entries, oldest first.
    async fn look_at(&mut self, entries: &[AttentionEntry]) -> Result<(), StoreError> {
        let mut unknown = Vec::new();
        for entry in entries {
            match self.known.get_mut(&entry.operation) {
                // It was resumed, and parked again.
                Some(known) => known.since = known.since.max(entry.at),
                None => unknown.push(*entry),
            }
        }
        let ids = unknown.iter().map(|entry| entry.operation).collect();
        let rows: Vec<RowRead> = match unknown.is_empty() {
            true => Vec::new(),
            false => self.store.get_many(ids).await?,
        };
        let mut room = self.room();
        for (entry, row) in unknown.into_iter().zip(rows) {
            // The audit reports unreadable rows.
            let Ok(Some(row)) = row else { continue };
            let Some(state) = waits_for_a_person(Some(&row)) else {
                continue;
            };
            if self.is_of_another_index_shard(&row, entry.at) {
                continue;
            }
            let since = entry.at;
            match (self.known.entry(row.id), room.get_mut(&state)) {
                (Entry::Occupied(mut known), _) => {
                    let known = known.get_mut();
                    known.since = known.since.max(since);
                }
                (Entry::Vacant(unknown), Some(room)) if *room > 0 => {
                    *room -= 1;
                    unknown.insert(Waiting { state, since });
                }
                (Entry::Vacant(_), _) => self.left_out = true,
            }
        }
        Ok(())
    }

    /// Whether the operation was resumed after it was parked at `at`. If it was parked again, its
    /// entry is in the index shard that owns it now, and not in this one.
    fn is_of_another_index_shard(&self, row: &OperationRow, at: Timestamp) -> bool {
        let mut applied = row.state.history.iter().rev();
        let went_on = applied.find(|entry| entry.refused.is_none());
        self.partition_map.partition_of(row.id) != self.index_shard
            && went_on.is_some_and(|asked| asked.at > at)
    }
}

/// The state in which an operation is parked, if it is.
fn waits_for_a_person(row: Option<&OperationRow>) -> Option<ProcessState> {
    let state = &row?.state;
    (state.state.is_parked() && !state.abandoned).then_some(state.state)
}

#[cfg(test)]
mod tests;
