//! Removes entries that are no longer read: rows past their retention, deadline entries behind the
//! sweep cursor, and attention entries that lead to nothing. After each pass it copies the files
//! that damaged ones are restored from.
//!
//! Runs on its own thread, in bounded passes of small pages, so that it never delays a write for
//! long. The writer removes the rows and checks each once more: it may have been written again.
//! This thread removes the index entries. A deadline entry that is written again behind the cursor
//! may be removed without loss, and an operation that needs attention again gets a new entry, of
//! another instant.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;
use waybill_clock::wall_clock;
use waybill_disk::keyspaces;
use waybill_engine::{OperationId, PartitionId, Timestamp};

use super::EmbeddedConfig;
use super::attention::IndexKey;
use super::reopening::Reopening;
use super::writer::Command;
use crate::{DUE_BUCKETS_REREAD, DueBucket, StoreError, keys};

/// How many entries are removed at a time.
const PAGE: usize = 256;

/// How old an attention entry is when it is looked at for the first time.
const ATTENTION_AGE: Duration = Duration::from_secs(24 * 3_600);

/// How often a walk over the attention table begins.
const WALK_INTERVAL: Duration = Duration::from_secs(3_600);

/// The thread that purges.
pub(super) struct Purge {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Purge {
    /// Starts the thread. It does not keep the writer's queue open.
    pub(super) fn spawn(
        tables: Arc<Reopening>,
        commands: tokio::sync::mpsc::WeakSender<Command>,
        config: &EmbeddedConfig,
    ) -> Result<Self, StoreError> {
        let (stop, stopped) = mpsc::channel();
        let mut purger = Purger {
            path: config.path.clone(),
            tables,
            commands,
            stopped,
            entries_max: config.purge_entries_max,
            attention_checks_max: config.attention_checks_max,
            first_hour: i64::MIN,
            due_from: HashMap::new(),
            walk: Walk::default(),
        };
        let interval = config.purge_interval;
        let thread = thread::Builder::new()
            .name("store-purge".to_owned())
            .spawn(move || purger.run(interval))
            .map_err(|error| StoreError::unavailable("opening", error))?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread after the page that it is at.
    pub(super) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the state store's purge panicked");
        }
    }
}

struct Purger {
    /// The store's directory.
    path: PathBuf,
    tables: Arc<Reopening>,
    commands: tokio::sync::mpsc::WeakSender<Command>,
    stopped: mpsc::Receiver<()>,
    entries_max: usize,
    attention_checks_max: usize,
    /// Everything in earlier hours is purged. The next pass does not read it again.
    first_hour: i64,
    /// Likewise per index shard of the deadline index.
    due_from: HashMap<PartitionId, Timestamp>,
    walk: Walk,
}

/// A walk over the old entries of the attention table.
#[derive(Default)]
struct Walk {
    /// When the last one began.
    began: Option<Timestamp>,
    /// Where it continues; `None` once it is complete.
    next: Option<IndexKey>,
}

impl Walk {
    /// Where to continue at `now`, if it is time to.
    fn next(&mut self, now: Timestamp) -> Option<IndexKey> {
        // A wall clock that was set back must not keep the next walk waiting.
        let is_over = |began| !(began..began + WALK_INTERVAL).contains(&now);
        if self.next.is_none() && self.began.is_none_or(is_over) {
            self.began = Some(now);
            self.next = Some([0; keys::INDEX_KEY_LEN]);
        }
        self.next
    }
}

impl Purger {
    fn run(&mut self, interval: Duration) {
        while let Err(mpsc::RecvTimeoutError::Timeout) = self.stopped.recv_timeout(interval) {
            let passed = catch_unwind(AssertUnwindSafe(|| {
                let now = self.tables.retention().now();
                self.pass(now, wall_clock())?;
                self.save_retention()
            }));
            match passed {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a purge pass failed"
                ),
                Err(_) => {
                    tracing::error!("a purge pass panicked; the next pass starts over");
                    self.first_hour = i64::MIN;
                    self.due_from.clear();
                    self.walk = Walk::default();
                }
            }
            if catch_unwind(AssertUnwindSafe(|| keyspaces::copy(&self.path))).is_err() {
                tracing::error!("copying the store's files panicked; the next pass tries again");
            }
        }
        keyspaces::copy(&self.path);
        if let Err(error) = self.save_retention() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "could not save the retention time; rows are kept longer"
            );
        }
    }

    fn save_retention(&self) -> Result<(), StoreError> {
        let tables = self.tables.get()?;
        tables.lasting.retention.save(&tables)
    }

    /// Removes expired entries: rows by the retention clock, `now`, and attention entries of a
    /// certain age by the wall clock.
    fn pass(&mut self, now: Timestamp, wall: Timestamp) -> Result<(), StoreError> {
        self.purge_rows(now)?;
        for (index_shard, cursor) in self.tables.get()?.cursors()? {
            let (until, _) = DueBucket(cursor.0.saturating_sub(DUE_BUCKETS_REREAD)).bounds();
            self.purge_due(index_shard, until)?;
        }
        self.purge_attention(now, wall)
    }

    /// Purges the hours that have wholly passed.
    fn purge_rows(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let this_hour = keys::hour(now);
        let mut left = self.entries_max;
        while left > 0 && !self.is_stopped() {
            let page = left.min(PAGE);
            let tables = self.tables.get()?;
            let entries = tables.expired(self.first_hour, this_hour, page)?;
            // The writer may have to open them again.
            drop(tables);
            let Some(&(last_hour, _)) = entries.last() else {
                self.first_hour = this_hour;
                break;
            };
            self.first_hour = last_hour;
            left -= entries.len();
            self.remove_rows(entries, now)?;
        }
        Ok(())
    }

    fn remove_rows(
        &self,
        entries: Vec<(i64, OperationId)>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(commands) = self.commands.upgrade() else {
            return Ok(());
        };
        let (reply, answer) = oneshot::channel();
        let command = Command::Purge {
            entries,
            now,
            reply,
        };
        if commands.blocking_send(command).is_err() {
            return Ok(());
        }
        drop(commands);
        // Without an answer the writer has ended, and with it the store.
        answer.blocking_recv().unwrap_or(Ok(()))
    }

    fn purge_due(&mut self, index_shard: PartitionId, until: Timestamp) -> Result<(), StoreError> {
        let mut from = *self
            .due_from
            .entry(index_shard)
            .or_insert(Timestamp(i64::MIN));
        let mut left = self.entries_max;
        while left > 0 && !self.is_stopped() {
            let page = left.min(PAGE);
            let tables = self.tables.get()?;
            let keys = tables.due_keys(index_shard, from, until, page)?;
            let Some((last, _)) = keys.last().and_then(|key| keys::read_index(key)) else {
                from = from.max(until);
                break;
            };
            from = last;
            left -= keys.len();
            let mut batch = tables.db.batch();
            for key in keys {
                batch.remove(&tables.due, key);
            }
            tables
                .commit(batch)
                .and_then(|()| tables.write_out_full())
                .map_err(|error| StoreError::unavailable("purging deadline entries", error))?;
        }
        self.due_from.insert(index_shard, from);
        Ok(())
    }

    fn purge_attention(&mut self, now: Timestamp, wall: Timestamp) -> Result<(), StoreError> {
        let mut left = self.attention_checks_max;
        while left > 0
            && !self.is_stopped()
            && let Some(from) = self.walk.next(wall)
        {
            let page = left.min(PAGE);
            let tables = self.tables.get()?;
            let spent = tables.spent_attention(from, wall - ATTENTION_AGE, now, page)?;
            // An index shard without old entries counts, too, so that a pass is bounded by all that
            // it reads.
            left -= spent.looked_at.max(1);
            let mut batch = tables.db.batch();
            for key in spent.keys {
                batch.remove(&tables.attention, key);
            }
            tables
                .commit(batch)
                .and_then(|()| tables.write_out_full())
                .map_err(|error| StoreError::unavailable("purging attention entries", error))?;
            self.walk.next = spent.next;
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        matches!(
            self.stopped.try_recv(),
            Err(mpsc::TryRecvError::Disconnected)
        )
    }
}

#[cfg(test)]
mod tests;
