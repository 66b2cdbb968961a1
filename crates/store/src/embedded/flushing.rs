//! When a table in memory is written out, and what a commit waits for.
//!
//! The key-value store would do both itself, each in a way that can stop for good:
//!
//! * A commit to a full table asks the worker to put an empty one in its place. It asks again at each commit until the worker
//!   has done so, and the queue of the worker has a bound. Once it is full, the worker waits for room in the queue that nobody
//!   else empties: <https://github.com/fjall-rs/fjall/pull/323>.
//! * A commit that finds many full tables, or many files that are not compacted, waits until they are fewer. It does not
//!   notice that the worker has ended.
//!
//! So both are done here, once for each table, and before a commit rather than in it.

use std::thread;
use std::time::Duration;

use fjall::{AbstractTree as _, Keyspace, OwnedWriteBatch, PersistMode};

use super::tables::Tables;

/// From how many full tables in memory on a commit waits. Another one becomes full meanwhile at most, and the key-value store's
/// own wait begins at four.
const FULL_TABLES_MAX: usize = 3;
/// From how many runs of files that are not compacted on a commit waits. The key-value store's own wait begins at thirty.
const RUNS_MAX: usize = 20;
/// How long a commit waits before it looks again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);

impl Tables {
    /// Commits a batch, once what was written before is written out.
    ///
    /// # Errors
    ///
    /// If the disk fails, or a flush or a compaction failed before.
    pub(super) fn commit(&self, batch: OwnedWriteBatch) -> Result<(), fjall::Error> {
        self.wait_for_worker()?;
        batch.commit()
    }

    /// Has full tables written out. Called after a commit, by one thread alone.
    ///
    /// # Errors
    ///
    /// If a file that is of no use any more cannot be removed.
    pub(super) fn write_out_full(&self) -> Result<(), fjall::Error> {
        for (name, keyspace) in self.all() {
            if keyspace.tree.active_memtable().size() > self.memtable_bytes(name) {
                keyspace.rotate_memtable()?;
            }
        }
        Ok(())
    }

    fn wait_for_worker(&self) -> Result<(), fjall::Error> {
        while self
            .all()
            .into_iter()
            .any(|(_, keyspace)| is_behind(keyspace))
        {
            // Writes nothing that is of importance. It fails if the worker has ended.
            self.db.persist(PersistMode::Buffer)?;
            thread::sleep(LOOK_AGAIN_AFTER);
        }
        Ok(())
    }
}

/// Whether the worker has not got round to much of what a table needs.
fn is_behind(keyspace: &Keyspace) -> bool {
    keyspace.sealed_memtable_count() >= FULL_TABLES_MAX || keyspace.tree.l0_run_count() >= RUNS_MAX
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::super::EmbeddedConfig;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const MEMTABLE_BYTES: u64 = 64 << 10;

    fn config(dir: &tempfile::TempDir) -> EmbeddedConfig {
        let mut config = EmbeddedConfig::new(dir.path());
        config.memtable_bytes = MEMTABLE_BYTES;
        config
    }

    /// Without a sync, so that thousands are made while the worker writes one table out.
    #[test]
    fn thousands_of_commits_to_full_tables_do_not_end_writing_out() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::open(&config(&dir)).unwrap();
        for number in 0..10_000_u32 {
            let mut batch = tables.db.batch();
            for keyspace in [&tables.state, &tables.created] {
                batch.insert(keyspace, number.to_be_bytes(), [7; 200]);
            }
            tables.commit(batch).unwrap();
            tables.write_out_full().unwrap();
        }
        let began = Instant::now();
        for keyspace in [&tables.state, &tables.created] {
            while keyspace.sealed_memtable_count() > 0 {
                assert!(began.elapsed() < PATIENCE, "full tables are written out");
                thread::sleep(LOOK_AGAIN_AFTER);
            }
            assert!(keyspace.tree.active_memtable().size() <= MEMTABLE_BYTES);
            assert_eq!(keyspace.len().unwrap(), 10_000);
        }
    }

    #[test]
    fn a_commit_does_not_wait_for_a_worker_that_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::open(&config(&dir)).unwrap();
        // A flush finds no place for its file.
        let files = tables.state.path().join("tables");
        fs::remove_dir_all(&files).unwrap();
        for number in 0..3 {
            // Past the key-value store, which takes nothing any more once its worker has ended.
            let tree = &tables.state.tree;
            tree.insert([number], [7; 200], number.into());
            tables.state.rotate_memtable().unwrap();
        }
        let ended = tables.wait_for_worker();
        assert!(matches!(ended, Err(fjall::Error::Poisoned)), "{ended:?}");
    }
}
