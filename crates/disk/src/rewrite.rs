//! Rewrites the journals before they are read.
//!
//! After a failed write or sync the key-value store `fjall` refuses every write until it is opened
//! again. It then assumes that the journal it has read is durable, appends to it, and syncs the
//! same file. But the kernel counts pages that a failed sync has left in the page cache as clean:
//! no later sync writes them. A power loss leaves a hole there, and everything after it in the
//! journal is lost. So the whole journal is made dirty and synced before the store is opened.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Kernel pages are no smaller. Empty blocks are skipped: the file has holes.
const BLOCK_BYTES: usize = 4 << 10;
const READ_BYTES: usize = 256 * BLOCK_BYTES;

/// Rewrites the journal files (`*.jnl`) of the store in `dir` byte for byte, and syncs them. Does
/// nothing if the directory does not exist.
///
/// The caller has locked the store or owns its directory, and the store is not open.
///
/// # Errors
///
/// If a file cannot be read, written or synced. The content of the files stays the same.
pub(crate) fn rewrite_journals(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            write_again(&path)?;
        }
    }
    Ok(())
}

fn write_again(path: &Path) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn only_journals_are_rewritten_and_holes_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, other) = (dir.path().join("0.jnl"), dir.path().join("lock"));
        let file = File::create(&journal).unwrap();
        file.set_len(3 * READ_BYTES as u64).unwrap();
        file.write_all_at(b"entry", READ_BYTES as u64 - 2).unwrap();
        fs::write(&other, "other").unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for path in [&journal, &other] {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        let (bytes, blocks) = (
            fs::read(&journal).unwrap(),
            file.metadata().unwrap().blocks(),
        );

        rewrite_journals(dir.path()).unwrap();
        assert_eq!(fs::read(&journal).unwrap(), bytes);
        assert_eq!(file.metadata().unwrap().blocks(), blocks);
        assert!(file.metadata().unwrap().modified().unwrap() > long_ago);
        assert_eq!(fs::metadata(&other).unwrap().modified().unwrap(), long_ago);
    }

    #[test]
    fn a_missing_store_needs_no_rewrite() {
        let dir = tempfile::tempdir().unwrap();
        rewrite_journals(&dir.path().join("new")).unwrap();
    }
}
