//! Writing the journal again before the key-value store reads it, as the state store does (`unsynced.rs` of
//! `waybill-store`, a crate that this one does not depend on).
//!
//! After a failed write or sync the key-value store refuses every write until it is opened again. It then takes what it
//! reads of its journal for durable and goes on behind it. But pages that a failed sync has left in the page cache count
//! as clean: no later sync writes them, and after a power loss all that follows them in the journal is lost.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The kernel's pages are no smaller. Those that hold nothing are left alone: the file has holes.
const BLOCK_BYTES: usize = 4 << 10;
const READ_BYTES: usize = 256 * BLOCK_BYTES;

/// Writes the journal files of the store in `dir` again, byte for byte, and syncs them. The caller owns the data
/// directory, and the store is closed.
pub(super) fn write_again(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            write_file_again(&path)?;
        }
    }
    Ok(())
}

fn write_file_again(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut position = 0;
    loop {
        let read = file.read_at(&mut buffer, position)?;
        if read == 0 {
            return file.sync_data();
        }
        let mut at = position;
        for block in buffer[..read].chunks(BLOCK_BYTES) {
            if block.iter().any(|&byte| byte != 0) {
                file.write_all_at(block, at)?;
            }
            at += block.len() as u64;
        }
        position = at;
    }
}
