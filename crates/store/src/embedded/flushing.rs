//! When memtables are flushed, and what a commit waits for.
//!
//! The key-value store would do both itself, but each in a way that can stall for good:
//!
//! * A commit to a full memtable asks the worker to rotate it. Every commit asks again until the
//!   worker has done so, and the worker's queue is bounded. Once it is full, the worker waits for
//!   room in the queue that only the worker itself empties:
//!   <https://github.com/fjall-rs/fjall/pull/323>.
//! * A commit that finds many full memtables, or many runs of files that are not compacted, waits
//!   until they are fewer. It does not notice that the worker has ended.
//! * The worker compacts once for each flush. If that is not enough, runs pile up until commits
//!   wait for compactions that nothing has requested.
//!
//! So this module does all three: memtables are rotated once, commits wait beforehand, and a commit
//! that waits for runs compacts them.

use std::thread;
use std::time::Duration;

use fjall::{AbstractTree as _, Keyspace, OwnedWriteBatch, PersistMode};

use super::tables::Tables;

/// With this many full memtables a commit waits, and none is rotated. The key-value store's own
/// wait begins at four.
const FULL_MEMTABLES_MAX: usize = 3;
/// With this many uncompacted runs of files a commit waits. The key-value store's own wait begins
/// at thirty.
const RUNS_MAX: usize = 20;
/// How long a commit waits before it looks again.
const CHECK_AGAIN_AFTER: Duration = Duration::from_millis(2);

impl Tables {
    /// Commits a batch without a sync, after it has waited for the worker.
    ///
    /// # Errors
    ///
    /// If the disk fails, or a flush or a compaction failed before.
    pub(super) fn commit(&self, batch: OwnedWriteBatch) -> Result<(), fjall::Error> {
        self.wait_for_worker()?;
        self.synced.commit(|| batch.commit())
    }

    /// Like [`Self::commit`], and syncs the batch.
    ///
    /// # Errors
    ///
    /// If the disk fails, or a flush or a compaction failed before.
    pub(super) fn commit_synced(&self, batch: OwnedWriteBatch) -> Result<(), fjall::Error> {
        self.wait_for_worker()?;
        self.synced.commit_synced(batch, PersistMode::SyncData)
    }

    /// Flushes full memtables. Called after each commit.
    ///
    /// # Errors
    ///
    /// If an obsolete file cannot be removed. Memtables that were not checked are rotated after a
    /// later commit.
    pub(super) fn write_out_full(&self) -> Result<(), fjall::Error> {
        for (name, keyspace) in self.all() {
            if keyspace.tree.active_memtable().size() > self.memtable_bytes(name)
                && keyspace.sealed_memtable_count() < FULL_MEMTABLES_MAX
            {
                keyspace.rotate_memtable()?;
                self.wake_write_back();
            }
        }
        Ok(())
    }

    /// Writes out what a table has in memory.
    ///
    /// # Errors
    ///
    /// If the disk fails, or a flush or a compaction failed before.
    pub(super) fn write_out(&self, keyspace: &Keyspace) -> Result<(), fjall::Error> {
        keyspace.rotate_memtable()?;
        self.wake_write_back();
        while keyspace.sealed_memtable_count() > 0 {
            self.check_worker()?;
            thread::sleep(CHECK_AGAIN_AFTER);
        }
        Ok(())
    }

    /// Fails if the worker has ended. Only flushes the journal's buffer.
    fn check_worker(&self) -> Result<(), fjall::Error> {
        self.db.persist(PersistMode::Buffer)
    }

    fn wait_for_worker(&self) -> Result<(), fjall::Error> {
        for (name, keyspace) in self.all() {
            while keyspace.sealed_memtable_count() >= FULL_MEMTABLES_MAX {
                self.check_worker()?;
                thread::sleep(CHECK_AGAIN_AFTER);
            }
            let runs = keyspace.tree.l0_run_count();
            if runs >= RUNS_MAX {
                tracing::warn!(table = name, runs, "writes wait for compactions");
            }
            while keyspace.tree.l0_run_count() >= RUNS_MAX {
                self.check_worker()?;
                if self.db.active_compactions() == 0 {
                    self.wake_write_back();
                    compact(keyspace)?;
                }
                // Another thread may be compacting, which does not count as active.
                thread::sleep(CHECK_AGAIN_AFTER);
            }
        }
        Ok(())
    }
}

/// Runs the most urgent compaction of the table. Keeps old versions of entries, because it does not
/// know which of them snapshots need.
fn compact(keyspace: &Keyspace) -> Result<(), fjall::Error> {
    let strategy = keyspace.config.compaction_strategy.clone();
    Ok(keyspace.tree.compact(strategy, 0)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::super::EmbeddedConfig;
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const MEMTABLE_BYTES: u64 = 64 << 10;

    fn config(dir: &tempfile::TempDir) -> EmbeddedConfig {
        let mut config = EmbeddedConfig::new(dir.path());
        config.memtable_bytes = MEMTABLE_BYTES;
        config
    }

    /// Without a sync, so that thousands are made while the worker writes one table out.
    #[test]
    fn flushing_continues_after_thousands_of_commits_to_full_tables() {
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
                assert!(began.elapsed() < TIMEOUT, "full tables are written out");
                thread::sleep(CHECK_AGAIN_AFTER);
            }
            assert!(keyspace.tree.active_memtable().size() <= MEMTABLE_BYTES);
            assert_eq!(keyspace.len().unwrap(), 10_000);
        }
    }

    /// Like a store that needs more compactions than flushes.
    #[test]
    fn commits_continue_with_uncompacted_runs() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::open_idle(&config(&dir)).unwrap();
        let table = &tables.state;
        for number in 0..RUNS_MAX as u64 + 5 {
            for key in 0..10_u8 {
                table.tree.insert([key], number.to_be_bytes(), number);
            }
            table.tree.flush_active_memtable(0).unwrap();
        }
        assert!(table.tree.l0_run_count() >= RUNS_MAX);
        let mut batch = tables.db.batch();
        batch.insert(table, [10], [10]);
        tables.commit(batch).unwrap();
        assert!(table.tree.l0_run_count() < RUNS_MAX);
        assert_eq!(table.len().unwrap(), 11);
        let newest = (RUNS_MAX as u64 + 4).to_be_bytes();
        assert_eq!(*table.get([0]).unwrap().unwrap(), newest);
    }

    #[test]
    fn a_commit_does_not_wait_for_a_worker_that_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::open(&config(&dir)).unwrap();
        // A flush cannot create its file.
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
        let ended = tables.write_out(&tables.state);
        assert!(matches!(ended, Err(fjall::Error::Poisoned)), "{ended:?}");
    }
}
