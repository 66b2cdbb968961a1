//! The key-value store of the metadata, opened again after its disk was full.
//!
//! The library refuses every write after a failed one, until the store is opened again. A write
//! that failed for lack of space may succeed later, so the store is opened again once there is
//! room. A flush or a compaction fails in the background without a cause: that counts as lack of
//! space, which may be over by the time that a write meets it.
//!
//! After any other failure, writes are refused until the broker is restarted. So are those to a
//! store that soon fails in the background again, after it was opened again because there was room.
//!
//! What must hold: **the journal is written again before the store is opened**, see [`prepare`].
//! The caller of `open` owns the data directory.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fjall::{
    AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode,
};
use waybill_disk::{Depth, Synced, is_full, prepare};

use crate::locked;
use crate::log::{has_room, system_disk};

/// The store holds little: small buffers keep its memory small.
const CACHE_BYTES: u64 = 1 << 20;
const MEMTABLE_BYTES: u64 = 2 << 20;
const JOURNAL_BYTES: u64 = 64 << 20;

/// How long to wait after a try to open it again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Within this time, a second background failure although there is room is not for lack of space.
const SAME_FAULT: Duration = Duration::from_secs(60 * 60);

/// The store and its tables.
pub(super) struct Store {
    pub(super) database: Database,
    pub(super) cluster: Keyspace,
    pub(super) offsets: Keyspace,
    pub(super) synced: Synced,
}

impl Store {
    fn open(path: &Path) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let prepared = prepare(path, Depth::Whole)?;
        let database = Database::builder(path)
            .cache_size(CACHE_BYTES)
            .worker_threads(1)
            .max_journaling_size(JOURNAL_BYTES)
            .open()?;
        // Rotated by `commit`.
        let options = || KeyspaceCreateOptions::default().max_memtable_size(u64::MAX);
        let cluster = database.keyspace("cluster", options)?;
        let offsets = database.keyspace("offsets", options)?;
        Ok(Self {
            synced: Synced::begin(prepared, [&cluster, &offsets])?,
            database,
            cluster,
            offsets,
        })
    }

    /// Commits a batch, synced or not, and flushes full memtables. The library asks its worker for
    /// that at each commit, and a thousand such requests block it:
    /// <https://github.com/fjall-rs/fjall/pull/323>.
    pub(super) fn commit(
        &self,
        batch: OwnedWriteBatch,
        mode: PersistMode,
    ) -> Result<(), fjall::Error> {
        match mode {
            PersistMode::Buffer => self.synced.commit(|| batch.commit())?,
            mode => self.synced.commit_synced(batch, mode)?,
        }
        for table in [&self.cluster, &self.offsets] {
            if table.tree.active_memtable().size() > MEMTABLE_BYTES
                && table.sealed_memtable_count() == 0
            {
                table.rotate_memtable()?;
            }
        }
        Ok(())
    }
}

/// A store that is opened again after its disk was full.
pub(super) struct Reopening {
    path: PathBuf,
    /// `None` while it could not be opened again.
    store: RwLock<Option<Arc<Store>>>,
    /// Whether it must be opened again before it takes a write.
    is_due: AtomicBool,
    failures: Mutex<Failures>,
}

#[derive(Default)]
struct Failures {
    /// Whether writes stay refused until the broker is started again.
    is_final: bool,
    /// Whether the failure named no cause, and there has been room since.
    is_unexplained: bool,
    /// When opening the store again was last tried in vain.
    tried: Option<Instant>,
    /// When the store was last opened again after an unexplained failure.
    opened_unexplained: Option<Instant>,
}

impl Reopening {
    pub(super) fn open(path: &Path) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self {
            path: path.to_owned(),
            store: RwLock::new(Some(Arc::new(Store::open(path)?))),
            is_due: AtomicBool::new(false),
            failures: Mutex::default(),
        })
    }

    /// The store. After a full disk, it is opened again first if there is room.
    pub(super) fn get(&self) -> Result<Arc<Store>, fjall::Error> {
        if self.is_due.load(Ordering::Acquire) {
            self.try_again();
        }
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        store.clone().ok_or(fjall::Error::Poisoned)
    }

    /// Records why a write failed, while the caller still has the store that it failed in.
    pub(super) fn note(&self, error: &fjall::Error) {
        if self.is_due.load(Ordering::Acquire) {
            return;
        }
        let mut failures = locked(&self.failures);
        if failures.is_final {
            return;
        }
        let is_unexplained = matches!(error, fjall::Error::Poisoned);
        let is_repeated = failures
            .opened_unexplained
            .is_some_and(|opened| opened.elapsed() < SAME_FAULT);
        if is_unexplained && is_repeated || !is_unexplained && !is_full(error) {
            failures.is_final = true;
            tracing::error!(
                error = error as &dyn Error,
                "the broker's metadata cannot be written until the broker is restarted"
            );
            return;
        }
        failures.is_unexplained = is_unexplained;
        failures.tried = None;
        self.is_due.store(true, Ordering::Release);
        tracing::error!(
            error = error as &dyn Error,
            "the broker's metadata cannot be written; reopening it once the disk has room"
        );
    }

    fn try_again(&self) {
        let mut failures = locked(&self.failures);
        if !self.is_due.load(Ordering::Acquire)
            || failures
                .tried
                .is_some_and(|tried| tried.elapsed() < REOPEN_PAUSE)
        {
            return;
        }
        if !has_room(&*system_disk(), &self.path).unwrap_or(false) {
            failures.is_unexplained = false;
            failures.tried = Some(Instant::now());
            return;
        }
        let mut slot = self.store.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = slot.take() {
            match Arc::try_unwrap(store) {
                // It must be closed before it is opened.
                Ok(store) => drop(store),
                // The store is in use, by a backup for instance.
                Err(store) => {
                    *slot = Some(store);
                    failures.tried = Some(Instant::now());
                    return;
                }
            }
        }
        match Store::open(&self.path) {
            Ok(store) => {
                *slot = Some(Arc::new(store));
                if failures.is_unexplained {
                    failures.opened_unexplained = Some(Instant::now());
                }
                self.is_due.store(false, Ordering::Release);
                tracing::info!("the disk has room; reopened the broker's metadata");
            }
            Err(error) => {
                failures.tried = Some(Instant::now());
                tracing::warn!(
                    error = &*error as &dyn Error,
                    "could not reopen the broker's metadata; retrying"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io;
    use std::sync::Weak;
    use std::time::SystemTime;

    use fjall::PersistMode;

    use super::*;

    /// Whether the store is opened again before its next use, after a write has failed with
    /// `error`.
    fn is_reopened_after(reopening: &Reopening, error: fjall::Error) -> bool {
        let store = reopening.get().unwrap();
        let before: Weak<Store> = Arc::downgrade(&store);
        reopening.note(&error);
        drop(store);
        reopening.get().unwrap();
        before.upgrade().is_none()
    }

    fn failed(kind: io::ErrorKind) -> fjall::Error {
        fjall::Error::Io(kind.into())
    }

    #[test]
    fn a_store_that_failed_in_the_background_is_reopened() {
        let dir = tempfile::tempdir().unwrap();
        let reopening = Reopening::open(&dir.path().join("meta")).unwrap();
        reopening.get().unwrap().cluster.insert("k", "v").unwrap();
        assert!(is_reopened_after(&reopening, fjall::Error::Poisoned));
        let value = reopening.get().unwrap().cluster.get("k").unwrap();
        assert_eq!(value.as_deref(), Some(&b"v"[..]));

        // Once: a failure right afterwards is not for lack of space.
        assert!(!is_reopened_after(&reopening, fjall::Error::Poisoned));
        assert!(!is_reopened_after(&reopening, fjall::Error::Poisoned));
        assert!(reopening.get().unwrap().cluster.get("k").is_ok());
    }

    #[test]
    fn a_store_is_reopened_after_a_full_disk_only() {
        let dir = tempfile::tempdir().unwrap();
        let reopening = Reopening::open(&dir.path().join("meta")).unwrap();
        for kind in [
            io::ErrorKind::StorageFull,
            io::ErrorKind::QuotaExceeded,
            io::ErrorKind::StorageFull,
        ] {
            assert!(is_reopened_after(&reopening, failed(kind)), "{kind}");
        }
        assert!(!is_reopened_after(&reopening, failed(io::ErrorKind::Other)));
        // The library gives no other error from then on.
        assert!(!is_reopened_after(&reopening, fjall::Error::Poisoned));
    }

    #[test]
    fn while_the_store_waits_for_room_further_failures_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meta");
        let reopening = Reopening::open(&path).unwrap();
        let reader = reopening.get().unwrap();
        reopening.note(&failed(io::ErrorKind::StorageFull));
        assert!(reopening.get().is_ok(), "it cannot be closed yet");
        reopening.note(&fjall::Error::Poisoned);
        reopening.note(&failed(io::ErrorKind::Other));
        drop(reader);
        locked(&reopening.failures).tried = None;
        reopening.get().unwrap();
        assert!(!reopening.is_due.load(Ordering::Acquire), "it is reopened");
    }

    #[test]
    fn flushing_continues_after_thousands_of_commits_to_full_memtables() {
        const COMMITS: u32 = 10_000;
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("meta")).unwrap();
        let tables = [&store.cluster, &store.offsets];
        let commit = |number: u32| {
            let mut batch = store.database.batch();
            for table in tables {
                batch.insert(table, number.to_be_bytes(), [7; 512]);
            }
            store.commit(batch, PersistMode::Buffer).unwrap();
        };
        (0..COMMITS).for_each(commit);
        let began = Instant::now();
        for table in tables {
            while table.sealed_memtable_count() > 0
                || table.tree.active_memtable().size() > MEMTABLE_BYTES
            {
                assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "it is written out"
                );
                std::thread::sleep(Duration::from_millis(5));
                commit(0);
            }
            assert_eq!(table.len().unwrap(), usize::try_from(COMMITS).unwrap());
        }
    }

    #[test]
    fn the_journal_is_written_again_unchanged_before_the_metadata_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meta");
        let store = Store::open(&path).unwrap();
        store.cluster.insert("key", "value").unwrap();
        store.database.persist(PersistMode::SyncAll).unwrap();
        let journals = || -> Vec<(PathBuf, Vec<u8>)> {
            let entries = fs::read_dir(&path).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths
                .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
                .map(|path| (path.clone(), fs::read(&path).unwrap()))
                .collect()
        };
        let before = journals();
        let is_written = |(_, bytes): &(_, Vec<u8>)| bytes.iter().any(|&byte| byte != 0);
        assert!(before.iter().any(is_written));
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (path, _) in &before {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        // The library does nothing in a directory that it has open already.
        let second = Store::open(&path).err().unwrap();
        let is_locked = matches!(second.downcast_ref(), Some(fjall::Error::Locked));
        assert!(is_locked, "{second:?}");
        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        assert!(before.iter().all(|(path, _)| modified(path) > long_ago));
        assert_eq!(journals(), before);
    }
}
