//! Locks on files, which keep a second process away from a directory.

use std::fs::{File, TryLockError};
use std::io;
use std::thread;
use std::time::Duration;

/// How many times a lock is tried. A child process that is being started holds its parent's locks
/// for a moment, also if the parent has dropped them.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Locks `file` until it is dropped. Returns whether it is locked: `false` if another process holds
/// it for longer than half a second. Blocks for this time.
///
/// # Errors
///
/// If the file system cannot lock.
pub fn lock(file: &File) -> io::Result<bool> {
    let mut tries = 1;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if tries < TRIES => thread::sleep(BETWEEN_TRIES),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        tries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_briefly_held_lock_is_awaited_and_a_permanent_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = File::create(&path).unwrap();
        held.lock().unwrap();
        let second = File::open(&path).unwrap();
        assert!(!lock(&second).unwrap());
        let releasing = thread::spawn(move || {
            thread::sleep(BETWEEN_TRIES);
            drop(held);
        });
        assert!(lock(&second).unwrap());
        releasing.join().unwrap();
    }
}
