//! One pass over the open buckets of an index shard: entries are read page by page, their
//! recoveries are published, and the cursor moves.

use std::collections::VecDeque;

use waybill_engine::{Now, OperationId, Recovery, RecoveryVerb, Supervision, Timestamp};
use waybill_state::{DueBucket, DueEntry, RowRead};

use super::tenure::{Doing, Tenure, Then};
use super::{Effect, IndexShard, Notice};

/// Maximum number of entries in one read, and so of rows held at the same time.
const PAGE_ENTRIES: usize = 500;

/// The progress of a pass.
#[derive(Debug)]
pub(super) struct Pass {
    /// The buckets that are not read yet; the first is being read.
    buckets: VecDeque<DueBucket>,
    /// When reading the first bucket began.
    began: Timestamp,
    /// The last entry that was read of it.
    after: Option<DueEntry>,
    is_empty: bool,
}

/// The due entries of a page, which are being handled.
#[derive(Debug)]
pub(super) struct Page {
    due: Vec<DueEntry>,
    /// Whether the bucket has no further page.
    is_last: bool,
    /// Recoveries that are not published yet.
    recoveries: VecDeque<Recovery>,
}

impl Pass {
    pub(super) fn new(buckets: Vec<DueBucket>) -> Self {
        Self {
            buckets: buckets.into(),
            began: Timestamp::default(),
            after: None,
            is_empty: true,
        }
    }
}

impl Page {
    pub(super) fn take_chunk(&mut self, chunk: usize) -> Vec<Recovery> {
        let count = chunk.min(self.recoveries.len());
        self.recoveries.drain(..count).collect()
    }
}

impl IndexShard {
    /// Begins to read the next bucket, or moves the cursor after the last.
    pub(super) fn read_bucket(&mut self, tenure: Tenure, mut pass: Pass, now: Now) -> Effect {
        if !pass.buckets.is_empty() {
            pass.began = now.wall;
            pass.after = None;
            pass.is_empty = true;
            return self.keep(tenure, Then::Read(pass), now);
        }
        let next = tenure.sweep.next_cursor();
        match next.filter(|_| tenure.lease.is_valid(now.boot)) {
            Some(cursor) => {
                self.sweeping(tenure, Doing::MovingCursor(cursor));
                Effect::MoveCursor(cursor)
            }
            None => {
                self.notices.push(Notice::Swept);
                self.end_pass(tenure, false, now)
            }
        }
    }

    /// Reads a page of the first bucket.
    pub(super) fn read_entries(&mut self, tenure: Tenure, pass: Pass) -> Effect {
        let Some(&bucket) = pass.buckets.front() else {
            unreachable!("a pass reads entries while it has buckets");
        };
        let after = pass.after;
        self.sweeping(tenure, Doing::Reading(pass));
        Effect::ReadEntries {
            bucket,
            after,
            limit: PAGE_ENTRIES,
        }
    }

    /// Reads the rows of those entries that are due and were not handled.
    pub(super) fn look_at(
        &mut self,
        tenure: Tenure,
        mut pass: Pass,
        entries: Vec<DueEntry>,
        now: Now,
    ) -> Effect {
        let Some(&bucket) = pass.buckets.front() else {
            unreachable!("a pass reads entries while it has buckets");
        };
        pass.is_empty &= entries.is_empty();
        pass.after = entries.last().copied();
        let is_last = entries.len() < PAGE_ENTRIES;
        let is_new = |entry: &DueEntry| tenure.sweep.is_new(bucket, entry, now.wall);
        let due: Vec<DueEntry> = entries.into_iter().filter(is_new).collect();
        let ids: Vec<OperationId> = due.iter().map(|entry| entry.operation).collect();
        let page = Page {
            due,
            is_last,
            recoveries: VecDeque::new(),
        };
        if ids.is_empty() {
            return self.end_page(tenure, pass, page, now);
        }
        self.sweeping(tenure, Doing::Looking(pass, page));
        Effect::ReadRows(ids)
    }

    /// Decides which recoveries the due entries of a page need.
    pub(super) fn decide(
        &mut self,
        tenure: Tenure,
        pass: Pass,
        mut page: Page,
        rows: Vec<RowRead>,
        now: Now,
    ) -> Effect {
        let settings = &self.settings;
        let supervision = Supervision {
            name: &settings.name,
            workflows: &settings.workflows,
            timeout_grace: settings.timeout_grace,
        };
        for (entry, row) in page.due.iter().zip(rows) {
            match row {
                Ok(Some(row)) => {
                    if !row.state.state.is_final() {
                        let overdue = now.wall.since(entry.due);
                        self.notices.push(Notice::Overdue(overdue));
                    }
                    let asked = supervision.entry_came_up(&row, entry.due, now.wall);
                    page.recoveries.extend(asked);
                }
                // The row might not be visible yet, or its retention has passed. The scheduler can
                // tell.
                Ok(None) => page.recoveries.push_back(self.wake(*entry, now.wall)),
                Err(corrupt) => {
                    self.notices.push(Notice::Unreadable(corrupt));
                    page.recoveries.push_back(self.wake(*entry, now.wall));
                }
            }
        }
        self.publish(tenure, pass, page, now)
    }

    fn wake(&self, entry: DueEntry, now: Timestamp) -> Recovery {
        Recovery {
            id: entry.operation.event_id("wake"),
            operation: entry.operation,
            asked_by: self.settings.name.to_string(),
            reason: "an index entry is due, but its row is missing or unreadable".to_owned(),
            asked_at: now,
            due: Some(entry.due),
            verb: RecoveryVerb::Wake,
        }
    }

    /// Publishes the next recoveries of a page, or ends it.
    pub(super) fn publish(&mut self, tenure: Tenure, pass: Pass, page: Page, now: Now) -> Effect {
        match self.settings.chunk.min(page.recoveries.len()) {
            0 => self.end_page(tenure, pass, page, now),
            count => {
                self.sweeping(tenure, Doing::Reserving(pass, page));
                Effect::TakeTurn(count)
            }
        }
    }

    /// All due entries of a page were handled.
    fn end_page(&mut self, mut tenure: Tenure, mut pass: Pass, page: Page, now: Now) -> Effect {
        let Some(&bucket) = pass.buckets.front() else {
            unreachable!("a pass reads entries while it has buckets");
        };
        tenure.sweep.mark_handled(bucket, &page.due);
        if !page.is_last {
            return self.keep(tenure, Then::Read(pass), now);
        }
        tenure.sweep.was_read(bucket, pass.began, pass.is_empty);
        pass.buckets.pop_front();
        self.read_bucket(tenure, pass, now)
    }
}
