//! The lock on a store's directory, for work on its files before the key-value store opens them.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::StoreError;

/// The file that the key-value store locks for as long as the store is open.
const FILE: &str = "lock";
/// How often the lock is tried. A child process that is being started holds its parent's locks for
/// a moment.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

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
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => thread::sleep(BETWEEN_TRIES),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(StoreError::Locked {
        path: dir.display().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_briefly_held_lock_is_awaited_and_a_permanent_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(lock(dir.path()).unwrap().is_none(), "there is no store");
        let held = File::create(dir.path().join(FILE)).unwrap();
        held.lock().unwrap();
        assert!(matches!(lock(dir.path()), Err(StoreError::Locked { .. })));
        let releasing = thread::spawn(move || {
            thread::sleep(BETWEEN_TRIES);
            drop(held);
        });
        assert!(lock(dir.path()).unwrap().is_some());
        releasing.join().unwrap();
    }
}
