//! Writing the journal again before it is read.
//!
//! After a failed write or sync the key-value store refuses every write until it is opened again. It then takes what it
//! reads of its journal for durable, goes on behind it, and syncs the same file. But what a failed sync has left in
//! the page cache counts as clean: no later sync writes it, and after a power loss it is a hole that everything behind
//! it in the journal is lost with. So all of the journal is made dirty, and synced, before the store is opened.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The kernel's pages are no smaller. Those that hold nothing are left alone: the file has holes.
const BLOCK_BYTES: usize = 4 << 10;
const READ_BYTES: usize = 256 * BLOCK_BYTES;

/// Writes the journal files of the store in `dir` again, byte for byte, and syncs them. The caller has locked the store.
pub(super) fn write_again(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};

    use super::super::EmbeddedConfig;
    use super::super::tables::Tables;
    use super::*;
    use crate::StoreError;

    fn journals(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(dir).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    #[test]
    fn the_journal_is_written_again_unchanged_before_a_store_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig::new(dir.path());
        let tables = Tables::open(&config).unwrap();
        tables.corrupt.insert("key", "value").unwrap();
        drop(tables);
        let before = journals(dir.path());
        assert!(
            before
                .iter()
                .any(|(_, bytes)| bytes.iter().any(|&byte| byte != 0)),
            "there is something to write again"
        );
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let age = || {
            for (path, _) in &before {
                let file = File::options().write(true).open(path).unwrap();
                file.set_modified(long_ago).unwrap();
            }
        };
        let is_written = || {
            before
                .iter()
                .all(|(path, _)| fs::metadata(path).unwrap().modified().unwrap() > long_ago)
        };
        age();
        let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
        let taken: Vec<_> = before.iter().map(|(path, _)| blocks(path)).collect();
        write_again(dir.path()).unwrap();
        assert!(is_written());
        assert_eq!(journals(dir.path()), before);
        let after: Vec<_> = before.iter().map(|(path, _)| blocks(path)).collect();
        assert_eq!(after, taken, "holes stay holes");

        age();
        let tables = Tables::open(&config).unwrap();
        assert!(is_written(), "opening a store writes its journal again");
        age();
        let second = Tables::open(&config).err();
        assert!(
            matches!(second, Some(StoreError::Locked { .. })),
            "{second:?}"
        );
        assert!(!is_written(), "the journal of an open store is left alone");
        drop(tables);
    }
}
