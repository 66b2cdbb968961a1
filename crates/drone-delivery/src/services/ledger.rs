//! The ledger: an append-only file of the effects that the services made and undid.
//!
//! One line of JSON an entry. A line is written with one `write` before the effect is answered, so
//! that it survives the end of the process; nothing is synced. What the file says is all that the
//! services know: at start it is read from the beginning, through the same function that applies a
//! new entry. A last line without its end is what a crash leaves behind and is cut.
//!
//! A write costs about two microseconds, less than waking a request that waited for another one's
//! write would, so writes are not grouped.
//!
//! Tombstones stand in the file too, and forward actions that were refused because their undo had
//! come. They are no effects: readers leave them out unless asked.

mod filter;
mod index;
mod operations;
mod read;
mod states;
mod summary;

use std::fs::{File, OpenOptions, TryLockError};
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

/// The ledger's file in its directory.
const FILE_NAME: &str = "ledger.ndjson";

/// What an entry says was done.
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
    // `operation` stays the first field, and `tombstone` and `refused`, of which an entry has one at
    // most, the last: readers look for them there.
    /// The operation, from the idempotency key.
    pub operation: &'a str,
    /// The step, from the idempotency key.
    pub step: &'a str,
    /// What was done.
    pub action: Action,
    /// The idempotency key.
    pub key: &'a str,
    /// Whether it had been done under this key before: then nothing was done now.
    pub repeat: bool,
    /// When.
    pub at: Timestamp,
    /// By which service.
    pub service: Service,
    /// Whether there was nothing to undo: the key is barred from now on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tombstone: bool,
    /// Whether a forward action was refused, because its undo had come before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
}

impl<'a> Entry<'a> {
    /// The entry of an effect that is made or undone now.
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
    /// The file can't be made, read or cut.
    #[error("can't use {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{path} belongs to another process")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A line in it, not the torn last one, is no entry.
    #[error("{path} has no ledger entry at byte {offset}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Where the line begins.
        offset: u64,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It has more combinations of service and step than can be told apart.
    #[error("{path} has more than {SLOTS_MAX} combinations of service and step")]
    TooManySteps {
        /// The file.
        path: PathBuf,
    },
}

/// What came of a forward action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Run {
    /// Its effect stands: made now, or by an earlier request with the same key.
    Stands,
    /// Its effect was undone; it is not made again.
    Undone,
    /// It was undone before it came.
    UndoneFirst,
}

/// Why nothing could be written down, and so nothing was done.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("the ledger can't be written")]
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
    /// Where the next line goes. What a failed write left behind it is overwritten.
    end: u64,
    /// How far write-back was started.
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
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LedgerError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(file_error(source)),
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

    /// Makes the effect of `key`, unless it was made or undone before.
    pub(super) fn run(
        &self,
        service: Service,
        key: IdempotencyKey<'_>,
    ) -> Result<Run, RecordError> {
        let mut inner = self.lock();
        let mut entry = Entry::now(service, key, Action::Run);
        let run = match inner.index.state(service, key.operation(), key.step()) {
            EffectState::None => Run::Stands,
            EffectState::Made => {
                entry.repeat = true;
                Run::Stands
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

    /// Undoes the effect of `key`; if there is none yet, sees to it that there never will be.
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

    /// Begins write-back of these bytes, if any. It may wait for the disk: the lock is not held.
    fn begin_write_back(&self, due: Option<Range<u64>>) {
        if let Some(due) = due {
            write_back::begin(&self.file, &due);
        }
    }

    /// Whether the effect of `key` stands at this service.
    pub(super) fn stands(&self, service: Service, key: IdempotencyKey<'_>) -> bool {
        self.state(service, key) == EffectState::Made
    }

    /// Whether the effect of `key` was undone at this service, or has a tombstone.
    pub(super) fn is_undone(&self, service: Service, key: IdempotencyKey<'_>) -> bool {
        matches!(
            self.state(service, key),
            EffectState::Undone | EffectState::Barred
        )
    }

    /// Whether anything was ever done under `key` at this service, a tombstone included.
    pub(super) fn knows(&self, service: Service, key: IdempotencyKey<'_>) -> bool {
        self.state(service, key) != EffectState::None
    }

    fn state(&self, service: Service, key: IdempotencyKey<'_>) -> EffectState {
        let inner = self.lock();
        inner.index.state(service, key.operation(), key.step())
    }

    pub(super) fn summary(&self) -> Summary {
        self.lock().index.summary()
    }

    /// A reader of everything that is in the ledger now.
    pub(super) fn reader(&self) -> Reader {
        let end = self.lock().end;
        Reader::new(self.file.clone(), std::iter::once(0..end).collect())
    }

    /// A reader of the parts of the ledger in which `operation` may occur.
    pub(super) fn reader_of(&self, operation: &str) -> Reader {
        let inner = self.lock();
        let ranges = inner.index.ranges_of(operation, inner.end);
        drop(inner);
        Reader::new(self.file.clone(), ranges)
    }

    /// Up to `limit` operations with what stands of each, behind `after` or from the first one, in
    /// the order in which they first occurred. `None` if `after` is unknown.
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

/// Reads the file's entries; answers where the last whole line ends.
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
                tracing::warn!(path = %path.display(), offset, "a torn last line of the ledger is cut");
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
