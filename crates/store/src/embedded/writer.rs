//! The one thread that changes the embedded store.
//!
//! It takes a call and all others that are waiting, commits them as one group and answers each. It
//! never waits for more: calls that arrive during a sync form the next group.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::{mpsc, oneshot};
use waybill_engine::{OperationId, PartitionId, Timestamp};

use super::EmbeddedConfig;
use super::backup::Hold;
use super::damage::Damages;
use super::group::{EncodedBatch, Group};
use super::recent::RecentStamps;
use super::reopening::Reopening;
use super::tables::Tables;
use crate::{DueBucket, Layout, Lease, ReplyKey, StoreError, Written, keys};

const WRITER_PANICKED: &str =
    "its writer panicked. Start the process again, and report the panic that the log has";

/// Where the answer to a call goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// A change requested from the writer.
pub(super) enum Command {
    /// Write rows and index entries.
    Write(EncodedBatch, Reply<Written>),
    /// Take a lease if the stored one is exactly `seen`.
    TakeLease {
        seen: Option<Lease>,
        lease: Lease,
        reply: Reply<bool>,
    },
    /// Renew a lease.
    RenewLease { lease: Lease, reply: Reply<bool> },
    /// Replace the layout if the stored one is exactly `seen`.
    SetLayout {
        seen: Option<Layout>,
        layout: Layout,
        reply: Reply<bool>,
    },
    /// Read the reply key, and keep `candidate` as it if there is none.
    ReplyKey {
        candidate: ReplyKey,
        reply: Reply<ReplyKey>,
    },
    /// Move a sweep cursor forward.
    AdvanceCursor {
        index_shard: PartitionId,
        cursor: DueBucket,
        reply: Reply<()>,
    },
    /// Remove entries of the expiry index, and the rows whose retention has passed at `now`.
    Purge {
        entries: Vec<(i64, OperationId)>,
        now: Timestamp,
        reply: Reply<()>,
    },
    /// Commit nothing for a while.
    Hold(Hold),
}

/// The writer's state.
pub(super) struct Writer {
    tables: Arc<Reopening>,
    queue: mpsc::Receiver<Command>,
    recent: RecentStamps,
    group_rows_max: usize,
}

/// An answer that waits for the commit.
enum Pending {
    Done(Reply<()>),
    Written(Reply<Written>, Written),
    Decided(Reply<bool>, bool),
    Key(Reply<ReplyKey>, ReplyKey),
}

impl Writer {
    /// Starts the thread. It ends once every sender is dropped and the queue is empty.
    pub(super) fn spawn(
        tables: Arc<Reopening>,
        queue: mpsc::Receiver<Command>,
        config: &EmbeddedConfig,
    ) -> Result<JoinHandle<()>, StoreError> {
        let mut writer = Self {
            tables,
            queue,
            recent: RecentStamps::new(config.recent_stamps),
            group_rows_max: config.group_rows_max,
        };
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                let tables = Arc::clone(&writer.tables);
                refusing_writes_after_a_panic(tables.damages(), || writer.run());
            })
            .map_err(|error| StoreError::unavailable("opening", error))
    }

    fn run(&mut self) {
        while let Some(command) = self.queue.blocking_recv() {
            let had_failed = self.tables.failure().is_some();
            let tables = match self.tables.writable() {
                Ok(tables) => tables,
                Err(error) => {
                    command.refuse(error);
                    continue;
                }
            };
            if had_failed {
                // The failed group may have been written in part.
                self.recent.clear();
            }
            match self.commit_group(&tables, command) {
                None => {}
                Some(Between::Purge(purge)) => self.purge(&tables, purge),
                Some(Between::Hold(hold)) => hold.stand_still(Arc::clone(&tables)),
            }
            if let Err(error) = tables.write_out_full() {
                drop(self.tables.failed("flushing a full table", error.into()));
            }
        }
        self.sync();
    }

    /// Syncs purged entries. The key-value store would sync them as well, but would not record it.
    fn sync(&self) {
        if let Ok(tables) = self.tables.get()
            && self.tables.failure().is_none()
            && let Err(error) = tables.synced.sync(&tables.db)
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "could not sync the state store at shutdown");
        }
    }

    /// Commits `first` and the calls after it, up to a call that is handled between two groups,
    /// which it returns.
    fn commit_group(&mut self, tables: &Tables, first: Command) -> Option<Between> {
        let mut group = Group::new(tables, &mut self.recent);
        let mut pending = Vec::new();
        let mut between = None;
        let mut rows = 0;
        let mut next = Some(first);
        while let Some(command) = next {
            match command {
                Command::Write(batch, reply) => {
                    rows += batch.rows();
                    match group.write(batch) {
                        Ok(written) => pending.push(Pending::Written(reply, written)),
                        Err(error) => answer(reply, Err(error)),
                    }
                }
                Command::TakeLease { seen, lease, reply } => {
                    match group.take_lease(seen.as_ref(), lease) {
                        Ok(taken) => pending.push(Pending::Decided(reply, taken)),
                        Err(error) => answer(reply, Err(error)),
                    }
                }
                Command::RenewLease { lease, reply } => match group.renew_lease(lease) {
                    Ok(renewed) => pending.push(Pending::Decided(reply, renewed)),
                    Err(error) => answer(reply, Err(error)),
                },
                Command::SetLayout {
                    seen,
                    layout,
                    reply,
                } => match group.set_layout(seen.as_ref(), layout) {
                    Ok(set) => pending.push(Pending::Decided(reply, set)),
                    Err(error) => answer(reply, Err(error)),
                },
                Command::ReplyKey { candidate, reply } => match group.reply_key(candidate) {
                    Ok(key) => pending.push(Pending::Key(reply, key)),
                    Err(error) => answer(reply, Err(error)),
                },
                Command::AdvanceCursor {
                    index_shard,
                    cursor,
                    reply,
                } => match group.advance_cursor(index_shard, cursor) {
                    Ok(()) => pending.push(Pending::Done(reply)),
                    Err(error) => answer(reply, Err(error)),
                },
                Command::Purge {
                    entries,
                    now,
                    reply,
                } => {
                    between = Some(Between::Purge(PurgeCall {
                        entries,
                        now,
                        reply,
                    }));
                    break;
                }
                Command::Hold(hold) => {
                    between = Some(Between::Hold(hold));
                    break;
                }
            }
            next = if rows < self.group_rows_max {
                self.queue.try_recv().ok()
            } else {
                None
            };
        }
        let failed = group.commit().err().map(Arc::new);
        for pending in pending {
            let failed = failed.clone();
            let failed = failed.map(|error| self.tables.failed("a group commit", error));
            pending.answer(failed);
        }
        between
    }

    /// Removes rows past their retention. Not synced: rows that return after a crash are purged
    /// again.
    fn purge(&mut self, tables: &Tables, call: PurgeCall) {
        let outcome = self.remove_expired(tables, &call.entries, call.now);
        answer(call.reply, outcome);
    }

    fn remove_expired(
        &mut self,
        tables: &Tables,
        entries: &[(i64, OperationId)],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let snapshot = tables.db.snapshot();
        let mut batch = tables.db.batch();
        let mut removed = Vec::new();
        for &(hour, id) in entries {
            batch.remove(&tables.expiry, keys::expiry(hour, id));
            // The row may have been written again since, with a later expiry or none.
            let has_expired = match tables.state_of(&snapshot, id)? {
                None => false,
                Some(Ok((header, _))) => header.has_expired(now),
                Some(Err(corrupt)) => {
                    tracing::warn!(%corrupt, "keeping an unreadable row past its retention");
                    false
                }
            };
            if has_expired && !removed.contains(&id) {
                batch.remove(&tables.state, keys::row(id));
                batch.remove(&tables.created, keys::row(id));
                removed.push(id);
            }
        }
        let failed = |error| self.tables.failed("purging rows", Arc::new(error));
        tables.commit(batch).map_err(failed)?;
        for id in removed {
            self.recent.remove(id);
        }
        Ok(())
    }
}

impl Command {
    /// Answers the call with an error, because writes fail now.
    fn refuse(self, error: StoreError) {
        match self {
            Self::Write(_, reply) => answer(reply, Err(error)),
            Self::TakeLease { reply, .. }
            | Self::RenewLease { reply, .. }
            | Self::SetLayout { reply, .. } => answer(reply, Err(error)),
            Self::ReplyKey { reply, .. } => answer(reply, Err(error)),
            Self::AdvanceCursor { reply, .. } | Self::Purge { reply, .. } => {
                answer(reply, Err(error));
            }
            // Dropping it reports to the waiting caller that the store is closed.
            Self::Hold(hold) => drop(hold),
        }
    }
}

/// The work of the writer between two groups.
enum Between {
    Purge(PurgeCall),
    Hold(Hold),
}

/// A [`Command::Purge`], taken apart.
struct PurgeCall {
    entries: Vec<(i64, OperationId)>,
    now: Timestamp,
    reply: Reply<()>,
}

impl Pending {
    /// Answers the call, with the commit's error if it failed.
    fn answer(self, failed: Option<StoreError>) {
        let outcome = failed.map_or(Ok(()), Err);
        match self {
            Self::Done(reply) => answer(reply, outcome),
            Self::Written(reply, written) => answer(reply, outcome.map(|()| written)),
            Self::Decided(reply, decision) => answer(reply, outcome.map(|()| decision)),
            Self::Key(reply, key) => answer(reply, outcome.map(|()| key)),
        }
    }
}

/// Runs the writer. If it panics, nothing writes any more, and what it was writing is in doubt:
/// the process must end, and the next start reads what the disk holds.
fn refusing_writes_after_a_panic(damages: &Damages, run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        damages.writes_are_refused(WRITER_PANICKED);
        resume_unwind(panic);
    }
}

/// Answers a call. A caller that no longer waits needs no answer.
fn answer<T>(reply: Reply<T>, outcome: Result<T, StoreError>) {
    drop(reply.send(outcome));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_writer_refuses_further_writes() {
        let damages = Damages::default();
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| refusing_writes_after_a_panic(&damages, || panic!("a bug")));
            assert!(writer.join().is_err());
        });
        let refused = damages.report().refused;
        assert_eq!(refused.as_deref(), Some(WRITER_PANICKED));
    }
}
