//! Restores a backup into a data directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use waybill_broker::{CopyError, LogsRestore};
use waybill_store::{EmbeddedRestore, LOST_OPERATIONS, StoreError};

use super::file::{Contents, Database, FileError, Piece, Reader};
use super::{partial_of, put_in_place};
use crate::data_dir;

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file is not usable.
    #[error(transparent)]
    File(#[from] FileError),
    /// The target already exists.
    #[error("{0} already exists: restore a backup to a directory that is new or empty")]
    Taken(PathBuf),
    /// The directory cannot be created.
    #[error("cannot create {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The store cannot be created.
    #[error("cannot restore the store")]
    Store(#[from] StoreError),
    /// The logs cannot be created.
    #[error("cannot restore the logs")]
    Logs(#[from] CopyError),
}

/// What was restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    /// The contents of the backup.
    pub contents: Contents,
    /// How many of its operations had lost parts before. The store lists them in the file
    /// [`lost_operations`] and reports them.
    pub lost: usize,
}

/// Restores the backup in `file` to `data_dir`. Checks the file against its manifest first. Writes
/// everything to `data_dir` with the suffix `.partial`, and renames that at the end.
///
/// # Errors
///
/// See [`RestoreError`]. `data_dir` is then unchanged.
pub fn restore(file: &Path, data_dir: &Path) -> Result<Restored, RestoreError> {
    let backup = Reader::open(file)?;
    if !is_free(data_dir) {
        return Err(RestoreError::Taken(data_dir.to_owned()));
    }
    let partial = partial_of(data_dir);
    if let Some(parent) = partial.parent() {
        fs::create_dir_all(parent).map_err(of(parent))?;
    }
    // The directory holds the backup's content, which other users must not read.
    match DirBuilder::new().mode(0o700).create(&partial) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(RestoreError::Taken(partial));
        }
        made => made.map_err(of(&partial))?,
    }
    let made = fill(&backup, &partial).and_then(|lost| {
        put_in_place(&partial, data_dir).map_err(of(data_dir))?;
        Ok(lost)
    });
    if made.is_err() {
        // The first failure is the one to report.
        let _ = fs::remove_dir_all(&partial);
    }
    made.map(|lost| Restored {
        contents: backup.contents(),
        lost,
    })
}

/// The file that lists the operations with lost parts.
#[must_use]
pub fn lost_operations(data_dir: &Path) -> PathBuf {
    data_dir::of_store(data_dir).join(LOST_OPERATIONS)
}

/// Whether the path does not exist, or is an empty directory.
fn is_free(dir: &Path) -> bool {
    match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Returns how many operations have lost parts.
fn fill(backup: &Reader, dir: &Path) -> Result<usize, RestoreError> {
    let (store_dir, broker_dir) = (data_dir::of_store(dir), data_dir::of_broker(dir));
    fs::create_dir_all(&store_dir).map_err(of(&store_dir))?;
    let mut store = EmbeddedRestore::begin(&store_dir)?;
    let mut logs = LogsRestore::begin(&broker_dir)?;
    backup.read(|piece| {
        match piece {
            Piece::Entry {
                database,
                table,
                key,
                value,
            } => match database {
                Database::Store => store.put(table, key, value)?,
                Database::Broker => logs.put_meta(table, key, value)?,
            },
            Piece::Segment {
                topic,
                partition,
                base,
            } => logs.begin_segment(topic, partition, base)?,
            Piece::LogBytes(bytes) => logs.append(bytes)?,
        }
        Ok::<_, RestoreError>(())
    })?;
    let lost = store.finish()?;
    logs.finish()?;
    for dir in [&store_dir, &broker_dir, dir] {
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(of(dir))?;
    }
    Ok(lost)
}

fn of(path: &Path) -> impl FnOnce(io::Error) -> RestoreError + use<> {
    let path = path.to_owned();
    move |source| RestoreError::Directory { path, source }
}
