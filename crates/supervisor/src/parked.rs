//! How many operations of an index shard are parked, and for how long, as gauges.
//!
//! Counters say what was parked lately; whoever waits for a person waits until a person comes. So whoever
//! has an index shard knows which operations of it are parked: it reads their rows again and again, and what was
//! added to the attention table since. Each index shard is counted by whoever has its lease, and by nobody else.
//!
//! What must hold:
//!
//! * **Parking is seen by its entry.** Whoever parks an operation writes an entry, before its row or with it. So
//!   what was read of the table once is not read again, but for what might have been under way then.
//! * **Every operation is counted once**: one may have several entries, of several times that it was parked, also in
//!   the index shard that was its own before the number of partitions changed.
//! * **The work is bounded**: one page at a time in a process, with a pause behind each, and no more than
//!   [`COUNTED_MAX`] operations of a state in an index shard. Many of one state hide none of another.
//!
//! Once an hour the table is looked at as a whole, for entries that stand under instants long past: those that were
//! imported, and those of a scheduler whose clock was wrong.

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

/// How many parked operations of one state are counted in an index shard.
const COUNTED_MAX: usize = 10_000;
/// How often it is looked at what is parked.
const EVERY: Duration = Duration::from_secs(30);
/// How often the whole table is looked at.
const WHOLE_EVERY: Duration = Duration::from_secs(60 * 60);
/// How many entries or rows are read at once.
const PAGE: usize = 250;
/// The rest after each page, in which no other index shard of the process reads either.
const PAUSE: Duration = Duration::from_millis(50);

/// The turn of one index shard of a process to read a page.
pub(super) type Turn = Arc<Mutex<()>>;

/// What is parked in one index shard.
#[derive(Debug)]
pub(super) struct Parked {
    index_shard: PartitionId,
    store: Arc<dyn Store>,
    partition_map: PartitionMap,
    metrics: Arc<SupervisorMetrics>,
    turn: Turn,
    /// How long after its instant an entry and its row may become visible.
    grace: Duration,
    known: HashMap<OperationId, Waiting>,
    /// From where on entries are to be looked at; `None` before all of them were.
    from: Option<Timestamp>,
    /// When all were last looked at.
    whole_at: Option<Timestamp>,
    /// Whether there was no room for some of them.
    left_out: bool,
    counted_max: usize,
}

/// An operation that waits for a person.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    state: ProcessState,
    since: Timestamp,
}

/// How many operations of one state wait, and since when the first does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Waits {
    pub(super) count: usize,
    pub(super) oldest: Option<Timestamp>,
}

impl Parked {
    pub(super) fn new(
        index_shard: PartitionId,
        store: Arc<dyn Store>,
        partition_map: PartitionMap,
        metrics: Arc<SupervisorMetrics>,
        turn: Turn,
        grace: Duration,
    ) -> Self {
        Self {
            index_shard,
            store,
            partition_map,
            metrics,
            turn,
            grace,
            known: HashMap::new(),
            from: None,
            whole_at: None,
            left_out: false,
            counted_max: COUNTED_MAX,
        }
    }

    /// Keeps the index shard's gauges for as long as it is polled.
    pub(super) async fn keep(mut self) -> Infallible {
        loop {
            if let Err(error) = self.look(wall_clock()).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(index_shard = %self.index_shard, error, "what is parked could not be counted, and is counted again");
            }
            self.tell();
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Says what is known to be parked.
    fn tell(&self) {
        self.metrics
            .parked(self.index_shard, wall_clock(), |state| self.waits(state));
    }

    fn waits(&self, state: ProcessState) -> Waits {
        let of_state = self.known.values().filter(|known| known.state == state);
        of_state.fold(Waits::default(), |waits, known| Waits {
            count: waits.count + 1,
            oldest: Some(waits.oldest.map_or(known.since, |at| at.min(known.since))),
        })
    }

    /// Looks at what was parked, and at what came since.
    async fn look(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.look_again().await?;
        // What had no room is looked for again, in place of what is parked no more.
        if self.left_out && self.room().values().all(|room| *room > 0) {
            self.whole_at = None;
            self.left_out = false;
        }
        let is_first = self.from.is_none();
        let whole_lately = self.whole_at.filter(|at| now.since(*at) < WHOLE_EVERY);
        let from = self.from.filter(|_| whole_lately.is_some());
        let from = from.unwrap_or(Timestamp(i64::MIN));
        // Nothing is too young, not even what another's clock says is yet to come.
        let mut cursor =
            AttentionCursor::new(AttentionOrder::OldestFirst, from, Timestamp(i64::MAX));
        loop {
            let turn = self.turn.clone().lock_owned().await;
            let index_shards = vec![self.index_shard];
            let page = self
                .store
                .attention_page(index_shards, cursor, PAGE)
                .await?;
            self.look_at(&page.entries).await?;
            if !page.entries.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
            drop(turn);
            if is_first {
                self.tell();
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

    /// Forgets what is parked no more.
    async fn look_again(&mut self) -> Result<(), StoreError> {
        let ids: Vec<OperationId> = self.known.keys().copied().collect();
        for ids in ids.chunks(PAGE) {
            let turn = self.turn.clone().lock_owned().await;
            let rows = self.store.get_many(ids.to_vec()).await?;
            for (id, row) in ids.iter().zip(rows) {
                // The audit reports what cannot be read. It was parked when it was read last.
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
            drop(turn);
        }
        Ok(())
    }

    /// How many more there is room for, by state.
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

    /// Looks at entries, oldest first.
    async fn look_at(&mut self, entries: &[AttentionEntry]) -> Result<(), StoreError> {
        let mut unknown = Vec::new();
        for entry in entries {
            match self.known.get_mut(&entry.operation) {
                // It went on, and was parked again.
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
            // The audit reports what cannot be read.
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

    /// Whether the operation went on since it was parked at `at`, and so, if it was parked again, has an entry in the
    /// index shard that is its own now, and not this one.
    fn is_of_another_index_shard(&self, row: &OperationRow, at: Timestamp) -> bool {
        let mut applied = row.state.history.iter().rev();
        let went_on = applied.find(|entry| entry.refused.is_none());
        self.partition_map.partition_of(row.id) != self.index_shard
            && went_on.is_some_and(|asked| asked.at > at)
    }
}

/// In which state an operation waits for a person, if it does.
fn waits_for_a_person(row: Option<&OperationRow>) -> Option<ProcessState> {
    let state = &row?.state;
    (state.state.is_parked() && !state.abandoned).then_some(state.state)
}

#[cfg(test)]
mod tests;
