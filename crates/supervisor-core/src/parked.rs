//! Gauges for the parked operations of an index shard: how many there are, and for how long.
//!
//! Counters show only recent parking, but a parked operation waits until a person acts. So the
//! owner of an index shard tracks which of its operations are parked: it rereads their rows, and
//! reads the entries that were added to the attention table since. Only the holder of an index
//! shard's lease counts it.
//!
//! What must hold:
//!
//! * **Every parking writes an entry.** A scheduler that parks an operation writes an entry, before
//!   its row or with it. So the table is read only once, except for entries that might have been in
//!   flight then.
//! * **Every operation is counted once.** It may have several entries, one per parking, and in
//!   several index shards if the number of partitions has changed.
//! * **The work is bounded**: one page at a time in a process, with a pause after each, and at most
//!   `COUNTED_MAX` operations of a state in an index shard. The limit of one state does not
//!   affect the other.
//!
//! Once an hour the whole table is read, for entries with old timestamps: imported entries, and
//! those of a scheduler whose clock was wrong.
//!
//! [`Parked`] is a state machine, driven like [`IndexShard`](crate::IndexShard), for as long as
//! this process sweeps the index shard.

mod stats;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::Duration;

use waybill_engine::{
    Now, OperationId, OperationRow, PartitionId, ProcessState, Timestamp, partition_for,
};
use waybill_state::{AttentionCursor, AttentionEntry, AttentionOrder, AttentionPage, RowRead};

pub use self::stats::ParkedStats;

use crate::unexpected::UnexpectedEvent;

/// Maximum number of parked operations of one state that are counted in an index shard.
const COUNTED_MAX: usize = 10_000;
/// How often parked operations are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How often the whole table is read.
const FULL_READ_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Maximum number of entries or rows in one read.
const PAGE: usize = 250;
/// The pause after each page, in which no other index shard of the process reads either.
const PAUSE: Duration = Duration::from_millis(50);

/// What the driver performs next. Each effect has one result, an [`Event`]. All but
/// [`Effect::Wait`] and [`Effect::LockReads`] may also end in [`Event::Failed`].
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Wait for this long; then [`Event::Waited`].
    Wait(Duration),
    /// Acquire the read lock that the index shards of the process share, and hold it until
    /// [`Notice::UnlockReads`]; then [`Event::Locked`].
    LockReads,
    /// Read entries of the attention table of the index shard; then [`Event::Attention`].
    ReadAttention {
        /// Where to continue.
        cursor: AttentionCursor,
        /// Maximum number of entries.
        limit: usize,
    },
    /// Read these rows; then [`Event::Rows`].
    ReadRows(Vec<OperationId>),
}

/// The result of an [`Effect`].
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The driver has started.
    Started,
    /// The time has passed.
    Waited,
    /// No other index shard of the process reads.
    Locked,
    /// A page of the attention table.
    Attention(AttentionPage),
    /// The rows, in the order in which they were named.
    Rows(Vec<RowRead>),
    /// The effect failed.
    Failed,
}

/// What the driver does at once, before the next effect. Nothing comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Let other index shards read.
    UnlockReads,
    /// Update the gauges from [`Parked::stats`].
    UpdateGauges,
    /// The last effect failed; the remaining operations are counted later.
    Failed,
}

/// The driver's next work.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// What to do at once, in order.
    pub notices: Vec<Notice>,
    /// What to perform then.
    pub effect: Effect,
}

/// The parked operations of one index shard.
#[derive(Debug)]
pub struct Parked {
    index_shard: PartitionId,
    /// How long after its instant an entry or its row may become visible.
    grace: Duration,
    known: BTreeMap<OperationId, ParkedOperation>,
    /// The instant of the first entry to read next; `None` until the whole table was read.
    from: Option<Timestamp>,
    /// When the whole table was last read.
    whole_at: Option<Timestamp>,
    /// Whether parked operations are missing from `known` because of [`COUNTED_MAX`].
    left_out: bool,
    counted_max: usize,
    state: State,
    notices: Vec<Notice>,
}

/// A parked operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ParkedOperation {
    state: ProcessState,
    since: Timestamp,
}

#[derive(Debug)]
enum State {
    New,
    /// Waits for the next check.
    Pausing,
    /// Rereads the rows of known operations.
    Rereading(Reread, Doing),
    /// Reads the attention table.
    Reading(Reading, Doing),
    /// Got an unexpected event.
    Ended,
}

/// The known operations whose rows are reread, in pages; the first one is being read.
#[derive(Debug)]
struct Reread {
    began: Timestamp,
    pages: VecDeque<Vec<OperationId>>,
}

/// The progress through the attention table.
#[derive(Debug)]
struct Reading {
    began: Timestamp,
    /// When the whole table was last read; `None` if it must be read now.
    last_full_read: Option<Timestamp>,
    is_first: bool,
    /// Where the current page begins.
    cursor: AttentionCursor,
    /// Where the page after the current one begins; `None` after the last.
    next: Option<AttentionCursor>,
    /// The entries of unknown operations in the current page.
    unknown: Vec<AttentionEntry>,
}

/// The effect in progress.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Locking,
    ReadingPage,
    ReadingRows,
    /// Pauses after a page.
    Pausing,
}

impl Parked {
    /// The machine of an index shard. Begins with [`Event::Started`]. `grace` is how long after its
    /// instant an entry or its row may become visible.
    #[must_use]
    pub fn new(index_shard: PartitionId, grace: Duration) -> Self {
        Self {
            index_shard,
            grace,
            known: BTreeMap::new(),
            from: None,
            whole_at: None,
            left_out: false,
            counted_max: COUNTED_MAX,
            state: State::New,
            notices: Vec::new(),
        }
    }

    /// How many operations of one state are parked, and since when the oldest is.
    #[must_use]
    pub fn stats(&self, state: ProcessState) -> ParkedStats {
        let of_state = self.known.values().filter(|known| known.state == state);
        of_state.fold(ParkedStats::default(), |stats, known| ParkedStats {
            count: stats.count + 1,
            oldest: Some(stats.oldest.map_or(known.since, |at| at.min(known.since))),
        })
    }

    /// Handles the result of the last effect. `partitions` is the current number of partitions.
    ///
    /// # Errors
    ///
    /// If the event is not a result of that effect.
    pub fn handle(
        &mut self,
        event: Event,
        now: Now,
        partitions: u32,
    ) -> Result<Output, UnexpectedEvent> {
        let effect = match (mem::replace(&mut self.state, State::Ended), event) {
            (State::New, Event::Started) | (State::Pausing, Event::Waited) => self.begin(now.wall),
            (State::Rereading(_, Doing::ReadingRows), Event::Failed)
            | (State::Reading(_, Doing::ReadingPage | Doing::ReadingRows), Event::Failed) => {
                self.notices.extend([Notice::UnlockReads, Notice::Failed]);
                self.pause()
            }
            (State::Rereading(reread, doing), event) => {
                self.reread(reread, doing, event, partitions)?
            }
            (State::Reading(reading, doing), event) => {
                self.read(reading, doing, event, partitions)?
            }
            (state, event) => return Err(UnexpectedEvent::new(&state, &event)),
        };
        Ok(Output {
            notices: mem::take(&mut self.notices),
            effect,
        })
    }

    fn begin(&mut self, now: Timestamp) -> Effect {
        let ids: Vec<OperationId> = self.known.keys().copied().collect();
        let pages = ids.chunks(PAGE).map(<[OperationId]>::to_vec).collect();
        self.reread_page(Reread { began: now, pages })
    }

    fn pause(&mut self) -> Effect {
        self.notices.push(Notice::UpdateGauges);
        self.state = State::Pausing;
        Effect::Wait(CHECK_INTERVAL)
    }

    /// Rereads the next page of known operations, or begins to read entries.
    fn reread_page(&mut self, reread: Reread) -> Effect {
        if reread.pages.is_empty() {
            return self.begin_table(reread.began);
        }
        self.state = State::Rereading(reread, Doing::Locking);
        Effect::LockReads
    }

    fn reread(
        &mut self,
        mut reread: Reread,
        doing: Doing,
        event: Event,
        partitions: u32,
    ) -> Result<Effect, UnexpectedEvent> {
        Ok(match (doing, event) {
            (Doing::Locking, Event::Locked) => {
                let ids = reread.pages.front().cloned().unwrap_or_default();
                self.state = State::Rereading(reread, Doing::ReadingRows);
                Effect::ReadRows(ids)
            }
            (Doing::ReadingRows, Event::Rows(rows)) => {
                let ids = reread.pages.pop_front().unwrap_or_default();
                self.update_known(ids, rows, partitions);
                self.state = State::Rereading(reread, Doing::Pausing);
                Effect::Wait(PAUSE)
            }
            (Doing::Pausing, Event::Waited) => {
                self.notices.push(Notice::UnlockReads);
                self.reread_page(reread)
            }
            (doing, event) => return Err(UnexpectedEvent::new(&doing, &event)),
        })
    }

    /// Updates known operations from their rows; removes those that are no longer parked.
    fn update_known(&mut self, ids: Vec<OperationId>, rows: Vec<RowRead>, partitions: u32) {
        for (id, row) in ids.into_iter().zip(rows) {
            // Keeps an operation whose row is unreadable: it was parked when last read, and the
            // audit reports the row.
            let (Ok(row), Some(known)) = (row, self.known.get(&id)) else {
                continue;
            };
            let since = known.since;
            let row = row.filter(|row| !self.is_of_another_index_shard(row, since, partitions));
            match parked_state(row.as_ref()) {
                Some(state) => {
                    self.known.insert(id, ParkedOperation { state, since });
                }
                None => {
                    self.known.remove(&id);
                }
            }
        }
    }

    /// Reads the entries that were added since the last check, or the whole table.
    fn begin_table(&mut self, began: Timestamp) -> Effect {
        // There is room again: read the whole table for the operations that were left out.
        if self.left_out && self.room().iter().all(|(_, room)| *room > 0) {
            self.whole_at = None;
            self.left_out = false;
        }
        let last_full_read = self
            .whole_at
            .filter(|at| began.since(*at) < FULL_READ_INTERVAL);
        let from = self.from.filter(|_| last_full_read.is_some());
        let from = from.unwrap_or(Timestamp(i64::MIN));
        // No upper bound: another process's clock may be ahead.
        let last = Timestamp(i64::MAX);
        self.read_page(Reading {
            began,
            last_full_read,
            is_first: self.from.is_none(),
            cursor: AttentionCursor::new(AttentionOrder::OldestFirst, from, last),
            next: None,
            unknown: Vec::new(),
        })
    }

    fn read_page(&mut self, reading: Reading) -> Effect {
        self.state = State::Reading(reading, Doing::Locking);
        Effect::LockReads
    }

    fn read(
        &mut self,
        mut reading: Reading,
        doing: Doing,
        event: Event,
        partitions: u32,
    ) -> Result<Effect, UnexpectedEvent> {
        Ok(match (doing, event) {
            (Doing::Locking, Event::Locked) => {
                let (cursor, limit) = (reading.cursor, PAGE);
                self.state = State::Reading(reading, Doing::ReadingPage);
                Effect::ReadAttention { cursor, limit }
            }
            (Doing::ReadingPage, Event::Attention(page)) => {
                reading.next = page.next;
                if page.entries.is_empty() {
                    return Ok(self.end_page(reading));
                }
                reading.unknown = self.update_since(page.entries);
                let unknown = reading.unknown.iter();
                let ids: Vec<OperationId> = unknown.map(|entry| entry.operation).collect();
                let (doing, effect) = match ids.is_empty() {
                    true => (Doing::Pausing, Effect::Wait(PAUSE)),
                    false => (Doing::ReadingRows, Effect::ReadRows(ids)),
                };
                self.state = State::Reading(reading, doing);
                effect
            }
            (Doing::ReadingRows, Event::Rows(rows)) => {
                let unknown = mem::take(&mut reading.unknown);
                self.add_parked(unknown, rows, partitions);
                self.state = State::Reading(reading, Doing::Pausing);
                Effect::Wait(PAUSE)
            }
            (Doing::Pausing, Event::Waited) => self.end_page(reading),
            (doing, event) => return Err(UnexpectedEvent::new(&doing, &event)),
        })
    }

    fn end_page(&mut self, mut reading: Reading) -> Effect {
        self.notices.push(Notice::UnlockReads);
        let Some(next) = reading.next else {
            let whole_at = reading.last_full_read.unwrap_or(reading.began);
            self.whole_at = Some(whole_at);
            self.from = Some(reading.began - self.grace);
            return self.pause();
        };
        if reading.is_first {
            self.notices.push(Notice::UpdateGauges);
        }
        reading.cursor = next;
        self.read_page(reading)
    }

    /// Updates the known operations of these entries. Returns the entries of unknown ones, oldest
    /// first.
    fn update_since(&mut self, entries: Vec<AttentionEntry>) -> Vec<AttentionEntry> {
        let mut unknown = Vec::new();
        for entry in entries {
            match self.known.get_mut(&entry.operation) {
                // It was resumed, and parked again.
                Some(known) => known.since = known.since.max(entry.at),
                None => unknown.push(entry),
            }
        }
        unknown
    }

    /// Adds the operations whose rows say that they are parked.
    fn add_parked(&mut self, unknown: Vec<AttentionEntry>, rows: Vec<RowRead>, partitions: u32) {
        let mut room = self.room();
        for (entry, row) in unknown.into_iter().zip(rows) {
            // The audit reports unreadable rows.
            let Ok(Some(row)) = row else { continue };
            let Some(state) = parked_state(Some(&row)) else {
                continue;
            };
            if self.is_of_another_index_shard(&row, entry.at, partitions) {
                continue;
            }
            let since = entry.at;
            let of_state = room.iter_mut().find(|(of, _)| *of == state);
            match (self.known.entry(row.id), of_state) {
                (Entry::Occupied(mut known), _) => {
                    let known = known.get_mut();
                    known.since = known.since.max(since);
                }
                (Entry::Vacant(vacant), Some((_, room))) if *room > 0 => {
                    *room -= 1;
                    vacant.insert(ParkedOperation { state, since });
                }
                (Entry::Vacant(_), _) => self.left_out = true,
            }
        }
    }

    /// How many more operations can be counted of each state in which one is parked.
    fn room(&self) -> Vec<(ProcessState, usize)> {
        let states = ProcessState::ALL.into_iter();
        let parked = states.filter(|state| state.is_parked());
        let room = |state| self.counted_max.saturating_sub(self.stats(state).count);
        parked.map(|state| (state, room(state))).collect()
    }

    /// Whether another index shard counts the operation: its id belongs to that shard now, and it
    /// was resumed after `at`. A later parking writes its entry there.
    fn is_of_another_index_shard(
        &self,
        row: &OperationRow,
        at: Timestamp,
        partitions: u32,
    ) -> bool {
        let mut applied = row.state.history.iter().rev();
        let resumed = applied.find(|entry| entry.refused.is_none());
        partition_for(row.id, partitions) != self.index_shard
            && resumed.is_some_and(|asked| asked.at > at)
    }
}

/// The state in which an operation is parked, if it is.
fn parked_state(row: Option<&OperationRow>) -> Option<ProcessState> {
    let state = &row?.state;
    (state.state.is_parked() && !state.abandoned).then_some(state.state)
}

#[cfg(test)]
mod tests;
