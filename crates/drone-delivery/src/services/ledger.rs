//! The ledger: an append-only file of the effects that the services made and undid.
//!
//! One line of JSON per entry. A line is written with one `write` before the effect is answered, so
//! that it survives the end of the process; nothing is synced. The file is the only state of the
//! services. At start, the function that applies new entries applies all lines. An incomplete last
//! line is left by a crash and is cut.
//!
//! Writes are not grouped: a write takes about two microseconds, less than waking a request that
//! waits for the write of another one.
//!
//! The file also holds tombstones and forward actions that were refused after their undo. These are
//! no effects, and readers leave them out by default.

mod filter;
mod index;
mod operations;
mod read;
mod states;
mod summary;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use waybill_disk::write_back::{self, WriteBackProgress};

use super::Service;
use super::key::IdempotencyKey;
use index::Index;
use states::EffectState;

pub(super) use operations::Operations;
pub(super) use read::{Reader, is_of_effect, line_start};
pub use states::SLOTS_MAX;
pub use summary::{StepCounts, Summary};

/// The name of the ledger's file.
const FILE_NAME: &str = "ledger.ndjson";

/// The action of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// An effect was made.
    Run,
    /// An effect was undone.
    Compensate,
}

/// One line of the ledger.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry<'a> {
    // `operation` must stay the first field, and `tombstone` and `refused` the last, because
    // readers look for them there. An entry has at most one of the last two.
    /// The operation, from the idempotency key.
    pub operation: &'a str,
    /// The step, from the idempotency key.
    pub step: &'a str,
    /// The action.
    pub action: Action,
    /// The idempotency key.
    pub key: &'a str,
    /// Whether the action was performed under this key before, so that nothing was done now.
    pub repeat: bool,
    /// The time.
    pub at: Timestamp,
    /// The service.
    pub service: Service,
    /// Whether there was nothing to undo, so that the key is barred from now on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tombstone: bool,
    /// Whether a forward action was refused after its undo.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
}

impl<'a> Entry<'a> {
    /// An entry with the current time.
    fn now(service: Service, key: IdempotencyKey<'a>, action: Action) -> Self {
        Self {
            operation: key.operation(),
            step: key.step(),
            action,
            key: key.as_str(),
            repeat: false,
            at: Timestamp::now(),
            service,
            tombstone: false,
            refused: false,
        }
    }
}

/// Why a ledger can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file cannot be created, read or cut.
    #[error("cannot use {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{path} is in use by another process")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A line other than the incomplete last one is not an entry.
    #[error("{path} has no ledger entry at byte {offset}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Where the line begins.
        offset: u64,
        /// The cause.
        source: serde_json::Error,
    },
    /// The file has too many combinations of service and step.
    #[error("{path} has more than {SLOTS_MAX} combinations of service and step")]
    TooManySteps {
        /// The file.
        path: PathBuf,
    },
}

/// The result of a forward action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Run {
    /// The effect exists: made now, or by an earlier request with the same key.
    Exists,
    /// The effect was undone and is not made again.
    Undone,
    /// The undo arrived before the forward action.
    UndoneFirst,
}

/// Why the entry could not be written, so that nothing was done.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("cannot write the ledger")]
    Write(#[from] io::Error),
    #[error("the ledger is limited to {SLOTS_MAX} combinations of service and step")]
    TooManySteps,
}

/// The ledger of all five services.
pub(super) struct Ledger {
    file: Arc<File>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The offset of the next line. It overwrites the remains of a failed write.
    end: u64,
    /// The offset up to which write-back has started.
    write_back: WriteBackProgress,
    line: Vec<u8>,
    index: Index,
}

impl Ledger {
    /// Opens the ledger in `directory` and reads it.
    pub(super) fn open(directory: &Path) -> Result<Self, LedgerError> {
        let path = directory.join(FILE_NAME);
        let file_error = |source| LedgerError::File {
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(directory).map_err(file_error)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(file_error)?;
        if !waybill_disk::lock(&file).map_err(file_error)? {
            return Err(LedgerError::InUse { path });
        }
        let (index, end) = read_index(&file, &path)?;
        file.set_len(end).map_err(file_error)?;
        Ok(Self {
            file: Arc::new(file),
            inner: Mutex::new(Inner {
                end,
                write_back: WriteBackProgress::at(end),
                line: Vec::with_capacity(512),
                index,
            }),
        })
    }

    /// Makes the effect of `key`, unless it was already made or undone.
    pub(super) fn run(
        &self,
        service: Service,
        key: IdempotencyKey<'_>,
    ) -> Result<Run, RecordError> {
        let mut inner = self.lock();
        let mut entry = Entry::now(service, key, Action::Run);
        let run = match inner.index.state(service, key.operation(), key.step()) {
            EffectState::None => Run::Exists,
            EffectState::Made => {
                entry.repeat = true;
                Run::Exists
            }
            EffectState::Undone => {
                entry.refused = true;
                Run::Undone
            }
            EffectState::Barred => {
                entry.refused = true;
                Run::UndoneFirst
            }
        };
        let due = inner.append(&self.file, &entry)?;
        drop(inner);
        self.begin_write_back(due);
        Ok(run)
    }

    /// Undoes the effect of `key`. If there is none yet, bars it.
    pub(super) fn undo(
        &self,
        service: Service,
        key: IdempotencyKey<'_>,
    ) -> Result<(), RecordError> {
        let mut inner = self.lock();
        let mut entry = Entry::now(service, key, Action::Compensate);
        match inner.index.state(service, key.operation(), key.step()) {
            EffectState::None => entry.tombstone = true,
            EffectState::Made => {}
            EffectState::Undone => entry.repeat = true,
            EffectState::Barred => return Ok(()),
        }
        let due = inner.append(&self.file, &entry)?;
        drop(inner);
        self.begin_write_back(due);
        Ok(())
    }

    /// Starts write-back of these bytes, if any. It may wait for the disk, so the lock must not be
    /// held.
    fn begin_write_back(&self, due: Option<Range<u64>>) {
        if let Some(due) = due {
            write_back::begin(&self.file, &due);
        }
    }

    /// Whether the effect of `key` exists at this service.
    pub(super) fn has_effect(&self, service: Service, key: IdempotencyKey<'_>) -> bool {
        self.state(service, key) == EffectState::Made
    }

    /// Whether the effect of `key` was undone or barred at this service.
    pub(super) fn is_undone(&self, service: Service, key: IdempotencyKey<'_>) -> bool {
        matches!(
            self.state(service, key),
            EffectState::Undone | EffectState::Barred
        )
    }

    /// Whether this service has any entry for `key`, including a tombstone.
    pub(super) fn has_record(&self, service: Service, key: IdempotencyKey<'_>) -> bool {
        self.state(service, key) != EffectState::None
    }

    fn state(&self, service: Service, key: IdempotencyKey<'_>) -> EffectState {
        let inner = self.lock();
        inner.index.state(service, key.operation(), key.step())
    }

    pub(super) fn summary(&self) -> Summary {
        self.lock().index.summary()
    }

    /// Reads all current entries of the ledger.
    pub(super) fn reader(&self) -> Reader {
        let end = self.lock().end;
        Reader::new(self.file.clone(), std::iter::once(0..end).collect())
    }

    /// Reads the parts of the ledger in which `operation` may occur.
    pub(super) fn reader_of(&self, operation: &str) -> Reader {
        let inner = self.lock();
        let ranges = inner.index.ranges_of(operation, inner.end);
        drop(inner);
        Reader::new(self.file.clone(), ranges)
    }

    /// Up to `limit` operations with their existing effects, after `after` or from the first one,
    /// in order of their first occurrence. `None` if `after` is unknown.
    pub(super) fn operations(&self, after: Option<&str>, limit: usize) -> Option<Operations> {
        let inner = self.lock();
        let listed = inner.index.operations(after, limit)?;
        let (end, steps) = (inner.end, inner.index.steps());
        drop(inner);
        Some(Operations::new(self.file.clone(), end, steps, listed))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of the lock panics")
    }
}

impl Inner {
    /// Appends an entry. Returns the bytes for which write-back is due.
    fn append(
        &mut self,
        file: &File,
        entry: &Entry<'_>,
    ) -> Result<Option<Range<u64>>, RecordError> {
        if !self.index.has_room_for(entry.service, entry.step) {
            return Err(RecordError::TooManySteps);
        }
        self.line.clear();
        serde_json::to_writer(&mut self.line, entry).map_err(io::Error::from)?;
        self.line.write_all(b"\n")?;
        file.write_all_at(&self.line, self.end)?;
        self.index.apply(entry, self.end);
        self.end += self.line.len() as u64;
        Ok(self.write_back.take_due(self.end))
    }
}

/// Reads the file's entries. Returns the end of the last complete line.
fn read_index(file: &File, path: &Path) -> Result<(Index, u64), LedgerError> {
    let mut index = Index::default();
    let mut lines = BufReader::with_capacity(256 * 1024, file);
    let mut line = Vec::with_capacity(512);
    let mut offset = 0;
    loop {
        line.clear();
        let read = lines
            .read_until(b'\n', &mut line)
            .map_err(|source| LedgerError::File {
                path: path.to_owned(),
                source,
            })?;
        if line.last() != Some(&b'\n') {
            if read > 0 {
                tracing::warn!(path = %path.display(), offset, "removed an incomplete last line \
                                                                of the ledger");
            }
            return Ok((index, offset));
        }
        let entry: Entry<'_> =
            serde_json::from_slice(&line).map_err(|source| LedgerError::Line {
                path: path.to_owned(),
                offset,
                source,
            })?;
        if !index.has_room_for(entry.service, entry.step) {
            return Err(LedgerError::TooManySteps {
                path: path.to_owned(),
            });
        }
        index.apply(&entry, offset);
        offset += read as u64;
    }
}
