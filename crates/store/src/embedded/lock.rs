//! The lock on a store's directory, for work on its files before the key-value store opens them.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::StoreError;

/// The file that the key-value store locks for as long as the store is open.
const FILE: &str = "lock";

/// Locks the store in `dir` until the file is dropped; `None` if there is no store yet.
///
/// # Errors
///
/// [`StoreError::Locked`] if the store is open, [`StoreError::Unavailable`] if the lock cannot be
/// tried.
pub(super) fn lock(dir: &Path) -> Result<Option<File>, StoreError> {
    let failed = |error| StoreError::unavailable("locking the directory", error);
    let file = match File::open(dir.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    if !waybill_disk::lock(&file).map_err(failed)? {
        return Err(StoreError::Locked {
            path: dir.display().to_string(),
        });
    }
    Ok(Some(file))
}
