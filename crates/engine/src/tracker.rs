//! Tracks which records are done, and the offset below which all of them are.
//!
//! Records finish in any order, but a checkpoint must not pass a record that is not done. What must
//! hold: [`OffsetTracker::low`] never passes a record that was begun and is not done. Deliberately
//! absent: any bound. The caller limits how many records are in progress, and how many are kept
//! after one that is not done ([`OffsetTracker::kept`]).

use std::collections::VecDeque;

use crate::id::Offset;

/// Tracks the records of one log, which begin in order and are done in any order.
#[derive(Clone, Debug)]
pub struct OffsetTracker {
    /// Records from the first that is not done, ascending; done ones wait here for it.
    records: VecDeque<Record>,
    /// One past the highest offset begun.
    next: Offset,
    /// The fingerprint of the last record that left `records`.
    fingerprint: Option<u64>,
    /// How many of `records` are not done.
    pending: usize,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    offset: Offset,
    /// The record's fingerprint, if the caller gave one.
    fingerprint: u64,
    done: bool,
}

impl OffsetTracker {
    /// A tracker for a log that is read from `next` on.
    #[must_use]
    pub fn new(next: Offset) -> Self {
        Self {
            records: VecDeque::new(),
            next,
            fingerprint: None,
            pending: 0,
        }
    }

    /// Begins a record without a fingerprint; see [`OffsetTracker::begin_with`].
    pub fn begin(&mut self, offset: Offset) -> bool {
        self.begin_with(offset, 0)
    }

    /// Begins the record at `offset`. Skipped offsets count as done. Returns whether the record is
    /// new: one at or below an offset that was begun before is not, and changes nothing.
    pub fn begin_with(&mut self, offset: Offset, fingerprint: u64) -> bool {
        if offset < self.next {
            return false;
        }
        self.records.push_back(Record {
            offset,
            fingerprint,
            done: false,
        });
        self.next = offset.next();
        self.pending += 1;
        true
    }

    /// Skips the records up to `offset`: they belong to other shards, and are done immediately.
    /// Records at or below an offset that was begun before change nothing.
    pub fn pass(&mut self, offset: Offset, fingerprint: u64) {
        if offset < self.next {
            return;
        }
        self.next = offset.next();
        match self.records.back_mut() {
            None => self.fingerprint = Some(fingerprint),
            // Consecutive skipped records share one entry, with the last offset.
            Some(last) if last.done => {
                last.offset = offset;
                last.fingerprint = fingerprint;
            }
            Some(_) => self.records.push_back(Record {
                offset,
                fingerprint,
                done: true,
            }),
        }
    }

    /// Marks a record as done. Has no effect if it is done already, or was never begun.
    pub fn done(&mut self, offset: Offset) {
        let Some(index) = self.position(offset) else {
            return;
        };
        let record = &mut self.records[index];
        if record.done {
            return;
        }
        record.done = true;
        self.pending -= 1;
        while let Some(front) = self.records.front()
            && front.done
        {
            self.fingerprint = Some(front.fingerprint);
            self.records.pop_front();
        }
    }

    /// The lowest offset that is not done: that of the first unfinished record, or the next one if
    /// there is none.
    #[must_use]
    pub fn low(&self) -> Offset {
        self.records.front().map_or(self.next, |front| front.offset)
    }

    /// One past the highest offset begun.
    #[must_use]
    pub fn next(&self) -> Offset {
        self.next
    }

    /// The fingerprint of the last record below [`OffsetTracker::low`]; `None` if none was done
    /// since the tracker was made.
    #[must_use]
    pub fn fingerprint_below_low(&self) -> Option<u64> {
        self.fingerprint
    }

    /// The number of records in memory: those that are not done, and those after the first of
    /// these.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.records.len()
    }

    /// How many records were begun and are not done.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending
    }

    fn position(&self, offset: Offset) -> Option<usize> {
        let first = self.records.front()?.offset;
        // Without gaps the record is exactly at this index; a gap before it can only lower the
        // index.
        let guess = usize::try_from(offset.0.checked_sub(first.0)?).ok()?;
        match self.records.get(guess) {
            Some(record) if record.offset == offset => Some(guess),
            _ => self
                .records
                .binary_search_by_key(&offset, |record| record.offset)
                .ok(),
        }
    }
}

#[cfg(test)]
mod tests;
