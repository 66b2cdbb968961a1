//! Work on the files of the embedded stores that `fjall`, their key-value store, does not do.
//!
//! * [`prepare`] verifies all files that are read to open a store, and restores damaged ones from copies.
//! * [`keyspaces::copy`] keeps these copies.
//! * [`write_back`] has the kernel write early, so that no sync waits for much.
//!
//! What must hold: **a store with a damaged file is not opened** where that would lose entries or end the process, and one
//! whose creation was cut short is created anew.
//!
//! Deliberately absent: the syncs of commits. The caller decides when to sync.

mod journal;
pub mod keyspaces;
mod rewrite;
pub mod write_back;

use std::io;
use std::path::{Path, PathBuf};

pub use self::keyspaces::Depth;

/// Prepares the store in `dir` for being opened: verifies its journals and its other files, restores what is damaged from
/// copies where these are proven to be right, and writes its journals again (see `rewrite.rs`). Does nothing if there is
/// no store yet.
///
/// The caller has locked the store, or owns the directory that it lies in, and the store is not open.
///
/// # Errors
///
/// [`CheckError::Damaged`] names a damaged file that cannot be restored: the store must not be opened.
pub fn prepare(dir: &Path, depth: Depth) -> Result<(), CheckError> {
    keyspaces::remove_unfinished(dir)?;
    journal::check(dir)?;
    keyspaces::check(dir, depth)?;
    rewrite::rewrite_journals(dir).map_err(at(dir))?;
    keyspaces::copy_and_verify(dir);
    Ok(())
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A file is damaged or missing, and no copy can take its place.
    #[error(transparent)]
    Damaged(DamagedFile),
    /// The disk failed, or a file may not be read or written.
    #[error("cannot verify {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A file that is damaged or missing. To open the store in spite of it would lose entries.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{} cannot be used: {problem}. Opening the store in spite of it would lose acknowledged entries. Put a good copy of the file in its \
     place, or restore a backup into a new directory: waybill restore BACKUP --data-dir NEW{}",
    file.display(),
    self.cut()
)]
pub struct DamagedFile {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: String,
    /// Where a journal can be cut off to give up what follows.
    pub intact_bytes: Option<u64>,
}

impl DamagedFile {
    fn cut(&self) -> String {
        let file = self.file.display();
        self.intact_bytes.map_or(String::new(), |bytes| {
            format!(
                ". Or, to give up every entry from offset {bytes} on, cut the file: truncate --size {bytes} '{file}'"
            )
        })
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CheckError {
    move |source| CheckError::Io {
        path: path.to_owned(),
        source,
    }
}
