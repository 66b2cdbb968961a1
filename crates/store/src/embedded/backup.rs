//! The whole store at one instant, entry by entry, and a new store built from that.
//!
//! What must hold:
//!
//! * **One instant.** While the caller of [`EmbeddedStore::while_held`] records what else belongs
//!   to the instant, no change is in progress and none begins.
//! * **Commits are never held back for long.** The writer continues after [`HOLD_MAX`] whatever the
//!   caller does. The caller then gets an error and no snapshot.
//! * **Entries are bytes.** They are neither decoded nor validated: unreadable ones are copied,
//!   too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fjall::{OwnedWriteBatch, Readable, Snapshot, UserKey};
use tokio::sync::oneshot;
use waybill_engine::OperationId;

use super::damage;
use super::rebuild;
use super::tables::{Tables, failed};
use super::writer::Command;
use super::{Closed, EmbeddedConfig, EmbeddedStore};
use crate::{StoreError, codec, keys};

/// The longest time for which commits are held back. A lease lasts many times as long.
const HOLD_MAX: Duration = Duration::from_secs(2);

/// How many bytes of entries are gathered before they are handed to the database.
const GATHERED_BYTES: usize = 1 << 20;

/// A request to the writer to pause.
pub(super) struct Hold {
    /// Receives the tables and their snapshot at that moment.
    held: oneshot::Sender<(Arc<Tables>, Snapshot)>,
    /// Signals that the writer may continue.
    go_on: mpsc::Receiver<()>,
}

impl Hold {
    /// Pauses until the caller releases the writer, or for too long. Called by the writer between
    /// two commits.
    pub(super) fn stand_still(self, tables: Arc<Tables>) {
        let snapshot = tables.db.snapshot();
        if self.held.send((tables, snapshot)).is_ok()
            && let Err(RecvTimeoutError::Timeout) = self.go_on.recv_timeout(HOLD_MAX)
        {
            tracing::warn!(
                ?HOLD_MAX,
                "stopped holding back commits; the backup took too long"
            );
        }
    }
}

/// The store at one instant. While it exists, the space of entries that were overwritten or removed
/// since is not freed.
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
    /// Holds commits back, lets `note` record whatever belongs to the same instant, and resumes
    /// commits. Returns the store at that instant and the result of `note`. Blocks; do not call it
    /// from asynchronous code.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the store is closed, or `note` took longer than two seconds:
    /// commits resumed, so that the recorded data belongs to no single instant.
    pub fn while_held<T>(
        &self,
        note: impl FnOnce() -> T,
    ) -> Result<(EmbeddedSnapshot, T), StoreError> {
        const ACTION: &str = "holding back commits";
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
        // The writer may have continued already.
        release
            .send(())
            .map_err(|_| StoreError::unavailable(ACTION, "the backup took too long"))?;
        Ok((EmbeddedSnapshot { tables, snapshot }, noted))
    }
}

impl EmbeddedSnapshot {
    /// Every entry, table by table, in the order of the keys.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] instead of entries that the disk fails to read; it names the
    /// table, and the damaged files that a compaction has not replaced since.
    pub fn entries(&self) -> impl Iterator<Item = Result<StoreEntry, StoreError>> {
        self.tables.all().into_iter().flat_map(|(table, keyspace)| {
            let mut last: Option<UserKey> = None;
            self.snapshot.iter(keyspace).map(move |entry| {
                let (key, value) = entry.into_inner().map_err(|error| {
                    let Some(cause) = damage::cause(&error) else {
                        return failed("reading a snapshot")(error);
                    };
                    let files = damage::files_from(keyspace, last.as_deref()).join(", ");
                    let cause = format!("table {table}, file {files}: {cause}");
                    StoreError::unavailable("reading a snapshot", cause)
                })?;
                last = Some(key.clone());
                Ok(StoreEntry {
                    table,
                    key: key.to_vec(),
                    value: value.to_vec(),
                })
            })
        })
    }

    /// Whether an entry is an operation's. Each operation has one such entry.
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

/// A new store, filled entry by entry. It is usable once it is [finished](Self::finish).
pub struct EmbeddedRestore {
    path: PathBuf,
    tables: Tables,
    batch: OwnedWriteBatch,
    gathered_bytes: usize,
    /// The operations with parts that are marked as unreadable.
    lost: BTreeSet<OperationId>,
}

impl EmbeddedRestore {
    /// Begins a store in `path`, which must not hold one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Locked`] or [`StoreError::Unavailable`] if it cannot be created.
    pub fn begin(path: &Path) -> Result<Self, StoreError> {
        let tables = Tables::open(&EmbeddedConfig::new(path))?;
        Ok(Self {
            path: path.to_owned(),
            batch: tables.db.batch(),
            tables,
            gathered_bytes: 0,
            lost: BTreeSet::new(),
        })
    }

    /// Adds an entry to the table of this name.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if there is no such table, [`StoreError::Unavailable`] if the disk
    /// fails.
    pub fn put(&mut self, table: &str, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let all = self.tables.all();
        let Some((_, keyspace)) = all.into_iter().find(|(name, _)| *name == table) else {
            return Err(StoreError::Corrupt {
                what: "backup",
                key: format!("table {table}"),
                cause: "this program does not have this table".to_owned(),
            });
        };
        self.batch.insert(keyspace, key, value);
        if value == codec::LOST && matches!(table, "state" | "created") {
            self.lost.extend(keys::read_row(key));
        }
        self.gathered_bytes += key.len() + value.len();
        if self.gathered_bytes >= GATHERED_BYTES {
            self.write()?;
        }
        Ok(())
    }

    /// Writes the rest, and syncs everything. If operations have parts that are marked as
    /// unreadable, each opening of the store reports them. Returns how many these are.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the disk fails.
    pub fn finish(mut self) -> Result<usize, StoreError> {
        self.write()?;
        let synced = self.tables.synced.sync(&self.tables.db);
        synced.map_err(failed("syncing a restored store"))?;
        if !self.lost.is_empty() {
            rebuild::list_lost(&self.path, &self.lost)
                .map_err(|error| StoreError::unavailable("listing lost operations", error))?;
        }
        Ok(self.lost.len())
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
