//! The whole store as it is at one instant, entry by entry, and a new store made of that.
//!
//! What must hold:
//!
//! * **Of one instant.** While the caller of [`EmbeddedStore::while_held`] notes what else belongs to the
//!   instant, no change is under way and none begins.
//! * **Commits are never held back for long.** The writer goes on after [`HOLD_MAX`] whatever the caller
//!   does, who is told so, and has nothing then.
//! * **Entries are bytes.** They are neither decoded nor judged: what cannot be read travels as well.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fjall::{OwnedWriteBatch, Readable, Snapshot};
use tokio::sync::oneshot;

use super::tables::{Tables, failed};
use super::writer::Command;
use super::{Closed, EmbeddedConfig, EmbeddedStore};
use crate::StoreError;

/// How long commits are held back at most. A lease lives many times as long.
const HOLD_MAX: Duration = Duration::from_secs(2);

/// What a change is gathered up to before it is handed to the database, in bytes.
const GATHERED_BYTES: usize = 1 << 20;

/// What the writer is told to stand still by.
pub(super) struct Hold {
    /// Gets what the store holds by then.
    held: oneshot::Sender<(Arc<Tables>, Snapshot)>,
    /// Says that the writer may go on.
    go_on: mpsc::Receiver<()>,
}

impl Hold {
    /// Stands still until it is told to go on, or for too long. Called by the writer between two commits.
    pub(super) fn stand_still(self, tables: Arc<Tables>) {
        let snapshot = tables.db.snapshot();
        if self.held.send((tables, snapshot)).is_ok()
            && let Err(RecvTimeoutError::Timeout) = self.go_on.recv_timeout(HOLD_MAX)
        {
            tracing::warn!(?HOLD_MAX, "commits were held back for long enough");
        }
    }
}

/// The store as it was at one instant. While it is there, the space of what was written over or removed
/// since is not given back.
pub struct EmbeddedSnapshot {
    tables: Arc<Tables>,
    snapshot: Snapshot,
}

/// An entry of a table, as bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreEntry {
    /// The table's name.
    pub table: &'static str,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

impl EmbeddedStore {
    /// Holds commits back, has `note` look at whatever belongs to the same instant, and lets them go on.
    /// Returns the store as it was then, and what was noted. Blocks; not to be called from asynchronous code.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the store is closed, or `note` took longer than two seconds: commits
    /// went on, and what was noted is of no one instant.
    pub fn while_held<T>(
        &self,
        note: impl FnOnce() -> T,
    ) -> Result<(EmbeddedSnapshot, T), StoreError> {
        const ACTION: &str = "holding commits back";
        let closed = || StoreError::unavailable(ACTION, Closed);
        let commands = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let running = running.as_ref().ok_or_else(closed)?;
            running.commands.clone()
        };
        let (held, snapshot) = oneshot::channel();
        let (release, go_on) = mpsc::channel();
        commands
            .blocking_send(Command::Hold(Hold { held, go_on }))
            .map_err(|_| closed())?;
        drop(commands);
        let (tables, snapshot) = snapshot.blocking_recv().map_err(|_| closed())?;
        let noted = note();
        // Nobody hears it who has gone on before.
        release
            .send(())
            .map_err(|_| StoreError::unavailable(ACTION, "it took too long"))?;
        Ok((EmbeddedSnapshot { tables, snapshot }, noted))
    }
}

impl EmbeddedSnapshot {
    /// Every entry, table by table, in the order of the keys.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] in the place of what the disk does not give.
    pub fn entries(&self) -> impl Iterator<Item = Result<StoreEntry, StoreError>> {
        self.tables.all().into_iter().flat_map(|(table, keyspace)| {
            self.snapshot.iter(keyspace).map(move |entry| {
                let (key, value) = entry.into_inner().map_err(failed("reading a snapshot"))?;
                Ok(StoreEntry {
                    table,
                    key: key.to_vec(),
                    value: value.to_vec(),
                })
            })
        })
    }

    /// Whether an entry is an operation's: there is one such for each.
    #[must_use]
    pub fn is_operation(entry: &StoreEntry) -> bool {
        entry.table == "state"
    }
}

impl std::fmt::Debug for EmbeddedSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedSnapshot").finish_non_exhaustive()
    }
}

/// A new store, filled entry by entry. It is of use once it is [finished](Self::finish).
pub struct EmbeddedRestore {
    tables: Tables,
    batch: OwnedWriteBatch,
    gathered_bytes: usize,
}

impl EmbeddedRestore {
    /// Begins a store in `path`, where none may be.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] or [`StoreError::Unavailable`] if it cannot be made.
    pub fn begin(path: &Path) -> Result<Self, StoreError> {
        let tables = Tables::open(&EmbeddedConfig::new(path))?;
        Ok(Self {
            batch: tables.db.batch(),
            tables,
            gathered_bytes: 0,
        })
    }

    /// Adds an entry to the table of this name.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if there is no such table, [`StoreError::Unavailable`] if the disk fails.
    pub fn put(&mut self, table: &str, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let all = self.tables.all();
        let Some((_, keyspace)) = all.into_iter().find(|(name, _)| *name == table) else {
            return Err(StoreError::Corrupt {
                what: "backup",
                key: format!("table {table}"),
                cause: "this program knows no such table".to_owned(),
            });
        };
        self.batch.insert(keyspace, key, value);
        self.gathered_bytes += key.len() + value.len();
        if self.gathered_bytes >= GATHERED_BYTES {
            self.write()?;
        }
        Ok(())
    }

    /// Writes what is left, and syncs everything.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the disk fails.
    pub fn finish(mut self) -> Result<(), StoreError> {
        self.write()?;
        let synced = self.tables.synced.sync(&self.tables.db);
        synced.map_err(failed("syncing a restored store"))
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let batch = std::mem::replace(&mut self.batch, self.tables.db.batch());
        self.gathered_bytes = 0;
        let committed = self.tables.commit(batch);
        let written = committed.and_then(|()| self.tables.write_out_full());
        written.map_err(failed("restoring"))
    }
}

impl std::fmt::Debug for EmbeddedRestore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedRestore").finish_non_exhaustive()
    }
}
