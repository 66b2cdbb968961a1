//! File handling for the embedded stores that their key-value store, `fjall`, lacks, and the disk
//! that the broker's logs use.
//!
//! * [`files`]: the operations of a disk, real or simulated.
//! * [`prepare`] verifies all files that opening a store reads, and restores damaged ones from
//!   copies.
//! * [`keyspaces::copy`] keeps these copies.
//! * [`Synced`] records how far the journals are synced and which tables there are, and [`prepare`]
//!   verifies both.
//! * [`write_back`] has the kernel write early, so that no sync waits for much.
//!
//! What must hold: **a store with a damaged file is not opened** if that would lose entries or end
//! the process. A store whose creation was interrupted is created again.
//!
//! Deliberately absent: the syncs of commits. The caller decides when to sync.

pub mod files;
mod journal;
pub mod keyspaces;
mod lock;
mod record;
mod rewrite;
mod synced;
pub mod write_back;

use std::error::Error;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub use self::keyspaces::{Depth, is_created};
pub use self::lock::lock;
pub use self::synced::{Prepared, Synced};

/// Prepares the store in `dir` for opening: verifies its journals and its other files, restores
/// damaged files from copies that are proven right, and rewrites the journals (see `rewrite.rs`).
/// Does nothing if there is no store yet. Once the store is open, [`Synced::begin`] takes over.
///
/// The caller has locked the store or owns its directory, and the store is not open.
///
/// # Errors
///
/// [`CheckError::Damaged`] names a damaged file that cannot be restored: the store must not be
/// opened.
pub fn prepare(dir: &Path, depth: Depth) -> Result<Prepared, CheckError> {
    keyspaces::remove_unfinished(dir)?;
    let record = record::load(dir);
    let is_unsynced = |journal: u64, last: Option<u64>| record.is_unsynced(journal, last);
    let journals = journal::check(dir, is_unsynced)?;
    let prepared = synced::check(dir, journals, record)?;
    keyspaces::check(dir, depth, |table| prepared.manifest_min(table))?;
    rewrite::rewrite_journals(dir).map_err(at(dir))?;
    keyspaces::copy_and_verify(dir);
    Ok(prepared)
}

/// A random id of the present start of the machine, if it has one. If it has changed since data was
/// written, the power may have failed: then what was not synced may be damaged anywhere.
#[must_use]
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Makes the names in a directory durable. A file or directory that was created in it may otherwise
/// be gone after a power failure, together with what was synced in it.
///
/// # Errors
///
/// The error of the operating system.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    // The parent of a relative path of one part.
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    File::open(dir)?.sync_all()
}

/// Whether a full disk or quota failed an operation. Either may end.
pub fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if let Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) = kind {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A file is damaged or missing, and no copy can take its place.
    #[error(transparent)]
    Damaged(DamagedFile),
    /// The disk failed, or a file may not be read or written.
    #[error("cannot read or write {}; check the disk, and the owner and mode of the file", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A file that is damaged or missing. Opening the store in spite of it would lose entries.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{} cannot be used: {problem}. Opening the store anyway would lose acknowledged entries. Put \
     an intact copy in its place, or restore a backup into a new directory: waybill \
     restore BACKUP --data-dir NEW{}",
    file.display(),
    self.give_up()
)]
pub struct DamagedFile {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: String,
    /// How to open the store without the entries that a journal has lost.
    pub give_up: Option<GiveUp>,
}

/// How to open a store without the entries that a journal has lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GiveUp {
    /// Cut the journal off where its damage begins, and remove the record of how far it was synced.
    Damaged {
        /// Where it begins.
        offset: u64,
        /// The record.
        record: PathBuf,
    },
    /// Remove the record of how far the journal was synced.
    Lost {
        /// The record.
        record: PathBuf,
    },
}

impl DamagedFile {
    fn give_up(&self) -> String {
        let file = self.file.display();
        match &self.give_up {
            None => String::new(),
            Some(GiveUp::Damaged { offset, record }) => format!(
                ". Alternatively, to give up every entry from offset {offset} on, truncate the \
                 file and remove the record of synced journals: truncate --size {offset} '{file}' \
                 && rm -f '{}'",
                record.display()
            ),
            Some(GiveUp::Lost { record }) => format!(
                ". Alternatively, to accept the loss, remove the record of synced journals: rm \
                 '{}'",
                record.display()
            ),
        }
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CheckError {
    move |source| CheckError::Io {
        path: path.to_owned(),
        source,
    }
}
