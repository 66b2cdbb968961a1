//! One walk over the attention table: pages of entries, their rows, and recoveries for those that
//! the last round also found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use waybill_engine::{
    Now, OperationId, OperationRow, PartitionId, Recovery, Supervision, Timestamp, partition_for,
};
use waybill_state::{AttentionCursor, AttentionOrder, DUE_BUCKETS_REREAD, DueBucket, RowRead};

use super::findings::{NAMED_MAX, SUSPECTS_MAX};
use super::{Audit, Effect, Event, Notice, State};
use crate::unexpected::UnexpectedEvent;

/// Maximum number of entries or rows in one read.
const PAGE: usize = 250;
/// The pause after each page, in which no other index shard of the process reads either.
const PAUSE: Duration = Duration::from_millis(50);
/// A row whose write time is this far ahead of the local clock was written by a wrong clock.
const CLOCK_AHEAD_MIN: Duration = Duration::from_secs(60);

/// The progress of a walk, and what it has found.
#[derive(Debug)]
pub(super) struct Walk {
    /// The partitions in which every recovery of the last round is done.
    settled: Vec<PartitionId>,
    /// Where the page after the current one begins; `None` after the last.
    next: Option<AttentionCursor>,
    /// The sweep cursors of index shards, each read once in a round.
    cursors: BTreeMap<PartitionId, Option<DueBucket>>,
    /// Operations whose due time is behind the cursor, with that due time.
    pub(super) due: BTreeMap<OperationId, Timestamp>,
    /// How many operations were woken.
    pub(super) woken: usize,
}

/// The effect in progress.
#[derive(Debug)]
pub(super) enum Doing {
    /// Waits until no other index shard reads, to read the page from here on.
    Locking(AttentionCursor),
    ReadingPage,
    ReadingRows,
    /// Reads the cursor of an index shard that these rows are compared with.
    ReadingCursor(PartitionId, Vec<OperationRow>),
    /// Pauses after a page, before its recoveries are published.
    Pausing(VecDeque<Recovery>),
    Reserving(VecDeque<Recovery>),
    /// Waits for the turn.
    Waiting(VecDeque<Recovery>),
    Publishing(VecDeque<Recovery>),
}

impl Walk {
    pub(super) fn new(settled: Vec<PartitionId>) -> Self {
        Self {
            settled,
            next: None,
            cursors: BTreeMap::new(),
            due: BTreeMap::new(),
            woken: 0,
        }
    }

    /// The lowest cursor of these index shards; `None` if one of them was never swept.
    fn lowest_cursor(&self, index_shards: [PartitionId; 2]) -> Option<DueBucket> {
        let [one, other] = index_shards.map(|of| self.cursors.get(&of).copied().flatten());
        Some(one?.min(other?))
    }
}

impl Audit {
    pub(super) fn walk(
        &mut self,
        mut walk: Walk,
        doing: Doing,
        event: Event,
        now: Now,
        partitions: u32,
    ) -> Result<Effect, UnexpectedEvent> {
        Ok(match (doing, event) {
            (Doing::Locking(cursor), Event::Locked) => {
                self.walking(walk, Doing::ReadingPage);
                Effect::ReadAttention {
                    cursor,
                    limit: PAGE,
                }
            }
            (Doing::ReadingPage, Event::Attention(page)) => {
                walk.next = page.next;
                let entries = page.entries.iter();
                let ids: Vec<OperationId> = entries.map(|entry| entry.operation).collect();
                if ids.is_empty() {
                    self.notices.push(Notice::UnlockReads);
                    return Ok(self.publish(walk, VecDeque::new(), partitions));
                }
                self.walking(walk, Doing::ReadingRows);
                Effect::ReadRows(ids)
            }
            (Doing::ReadingRows, Event::Rows(rows)) => {
                let rows = self.readable(rows);
                self.compare(walk, rows, now, partitions)
            }
            (Doing::ReadingCursor(index_shard, rows), Event::Cursor(cursor)) => {
                walk.cursors.insert(index_shard, cursor);
                self.compare(walk, rows, now, partitions)
            }
            (Doing::Pausing(recoveries), Event::Waited) => {
                self.notices.push(Notice::UnlockReads);
                self.publish(walk, recoveries, partitions)
            }
            (Doing::Reserving(recoveries), Event::Turn(wait)) if !wait.is_zero() => {
                self.walking(walk, Doing::Waiting(recoveries));
                Effect::Wait(wait)
            }
            (Doing::Reserving(mut recoveries), Event::Turn(_))
            | (Doing::Waiting(mut recoveries), Event::Waited) => {
                let count = self.settings.chunk.min(recoveries.len());
                let chunk = recoveries.drain(..count).collect();
                self.walking(walk, Doing::Publishing(recoveries));
                Effect::Publish(chunk)
            }
            (Doing::Publishing(recoveries), Event::Published) => {
                self.publish(walk, recoveries, partitions)
            }
            (
                Doing::ReadingPage
                | Doing::ReadingRows
                | Doing::ReadingCursor(..)
                | Doing::Publishing(_),
                Event::Failed,
            ) => self.fail(),
            (doing, event) => return Err(UnexpectedEvent::new(&doing, &event)),
        })
    }

    fn walking(&mut self, walk: Walk, doing: Doing) {
        self.state = State::Walking(Box::new(walk), doing);
    }

    /// Begins at the oldest entry.
    pub(super) fn begin(&mut self, walk: Walk) -> Effect {
        let (first, last) = (Timestamp(i64::MIN), Timestamp(i64::MAX));
        let cursor = AttentionCursor::new(AttentionOrder::OldestFirst, first, last);
        self.begin_page(walk, cursor)
    }

    fn begin_page(&mut self, walk: Walk, cursor: AttentionCursor) -> Effect {
        self.walking(walk, Doing::Locking(cursor));
        Effect::LockReads
    }

    /// The rows that were read. Reports unreadable ones, unless an earlier round did.
    fn readable(&mut self, rows: Vec<RowRead>) -> Vec<OperationRow> {
        let mut readable = Vec::new();
        for row in rows {
            match row {
                Ok(row) => readable.extend(row),
                Err(row) => {
                    let report = self.unreadable.note(row.id);
                    let (count, log) = (report.count, report.log);
                    self.notices.push(Notice::Unreadable { row, count, log });
                }
            }
        }
        readable
    }

    /// Compares rows with the cursors of their index shards, once these are read.
    fn compare(
        &mut self,
        mut walk: Walk,
        rows: Vec<OperationRow>,
        now: Now,
        partitions: u32,
    ) -> Effect {
        let own = self.settings.index_shard;
        let of_rows = rows.iter().map(|row| partition_for(row.id, partitions));
        let needed: BTreeSet<PartitionId> = match rows.is_empty() {
            true => BTreeSet::new(),
            false => of_rows.chain([own]).collect(),
        };
        let unread = needed.into_iter().find(|of| !walk.cursors.contains_key(of));
        if let Some(unread) = unread {
            self.walking(walk, Doing::ReadingCursor(unread, rows));
            return Effect::ReadCursor(unread);
        }
        let mut recoveries = VecDeque::new();
        for row in &rows {
            let partition = partition_for(row.id, partitions);
            let swept_to = walk.lowest_cursor([own, partition]);
            let due = swept_to.and_then(|swept_to| missed(row, swept_to, now.wall));
            if let Some(due) = due {
                recoveries.extend(self.suspect(&mut walk, row, partition, due, now.wall));
            }
        }
        self.walking(walk, Doing::Pausing(recoveries));
        Effect::Wait(PAUSE)
    }

    /// Remembers an operation that nothing would wake. Returns its recoveries if the last round
    /// also found it, and every recovery that could still arrive was done.
    fn suspect(
        &mut self,
        walk: &mut Walk,
        row: &OperationRow,
        partition: PartitionId,
        due: Timestamp,
        now: Timestamp,
    ) -> Vec<Recovery> {
        // One operation may have several entries.
        if walk.due.len() >= SUSPECTS_MAX || walk.due.insert(row.id, due).is_some() {
            return Vec::new();
        }
        if !walk.settled.contains(&partition) || !self.suspects.had(row, due) {
            return Vec::new();
        }
        if walk.woken < NAMED_MAX {
            let operation = row.id;
            self.notices.push(Notice::Waking { operation, due });
        }
        walk.woken += 1;
        let settings = &self.settings;
        let supervision = Supervision {
            name: &settings.name,
            workflows: &settings.workflows,
            timeout_grace: settings.timeout_grace,
        };
        supervision.entry_came_up(row, due, now)
    }

    /// Publishes the next recoveries of a page, or reads the next page.
    fn publish(&mut self, walk: Walk, recoveries: VecDeque<Recovery>, partitions: u32) -> Effect {
        match (self.settings.chunk.min(recoveries.len()), walk.next) {
            (0, Some(cursor)) => self.begin_page(walk, cursor),
            (0, None) => self.end_walk(walk, partitions),
            (count, _) => {
                self.walking(walk, Doing::Reserving(recoveries));
                Effect::TakeTurn(count)
            }
        }
    }
}

/// The due time of a live, handed-off operation that nothing would wake in time: it is too far
/// behind the cursor for a sweep, or a clock that has been set back since wrote the row.
pub(super) fn missed(row: &OperationRow, cursor: DueBucket, now: Timestamp) -> Option<Timestamp> {
    let state = &row.state;
    let due = state
        .next_due
        .filter(|_| state.handed_off && !state.state.is_final())?;
    let looked_at_from = DueBucket(cursor.0.saturating_sub(DUE_BUCKETS_REREAD));
    let is_behind = DueBucket::of(due) < looked_at_from;
    let clock_was_ahead = state.updated_at.since(now) > CLOCK_AHEAD_MIN;
    (is_behind || clock_was_ahead).then_some(due)
}
