//! The open tables, and how they are opened again after a write failed.
//!
//! After a failed write, flush or compaction, the key-value store refuses writes until it is opened
//! again; reads continue. So the writer opens it again in place, once there is room: as after a
//! crash, the journal holds every acknowledged commit.
//!
//! If writing or opening fails a second time within an hour although there is room, the disk is
//! failing or a compaction has met a damaged block. Then no more writes are accepted. If the next
//! start finds damage, it rebuilds the store from the readable data (`rebuild.rs`).
//!
//! What must hold: the old tables are closed before the new ones open, since closing flushes their
//! buffer. The journal is rewritten before it is read (`waybill_disk::prepare`), because the pages
//! of a failed sync might not be on disk.

use std::error::Error;
use std::io;
use std::iter;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use waybill_disk::is_full;
use waybill_telemetry::chain;

use super::damage::Damages;
use super::retention::Retention;
use super::tables::{Lasting, Tables};
use super::{EmbeddedConfig, rebuild};
use crate::StoreError;

/// How long after an attempt the tables are opened again at the earliest.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How much must be free on the file system before that: less would be used up by the next flush.
const ROOM_MIN: u64 = 16 << 20;
/// A write that fails again within this time though there is room has the same cause: a disk that
/// fails, or a damaged file.
const SAME_CAUSE_WITHIN: Duration = Duration::from_secs(60 * 60);
/// How long to wait for readers of the old tables.
const READERS_PATIENCE: Duration = Duration::from_millis(500);

/// Why a store cannot write at the moment.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{cause}")]
pub struct WriteFailure {
    /// What failed, with its causes.
    cause: String,
    /// Whether a full disk, or a quota, is the cause.
    pub is_full: bool,
}

impl WriteFailure {
    /// The error of `action`, which fails until the tables are open again.
    fn refuse(&self, action: &'static str) -> StoreError {
        match self.is_full {
            true => StoreError::full(action),
            false => StoreError::Reopening {
                action,
                source: self.clone(),
            },
        }
    }
}

/// The open tables, shared by readers and the writer.
pub(super) struct Reopening {
    config: EmbeddedConfig,
    /// The tables, or why they could not be opened again.
    tables: RwLock<Result<Arc<Tables>, WriteFailure>>,
    /// Why no write succeeds before they are opened again.
    failure: Mutex<Option<WriteFailure>>,
    /// When opening them again was last tried.
    tried: Mutex<Option<Instant>>,
    /// When a write, a flush or a compaction last failed although there was room.
    failed_with_room: Mutex<Option<Instant>>,
    lasting: Lasting,
}

impl Reopening {
    /// Opens the tables.
    pub(super) fn open(config: EmbeddedConfig) -> Result<Self, StoreError> {
        let tables = Tables::open(&config)?;
        Ok(Self {
            config,
            failure: Mutex::default(),
            tried: Mutex::new(None),
            failed_with_room: Mutex::default(),
            lasting: tables.lasting.clone(),
            tables: RwLock::new(Ok(Arc::new(tables))),
        })
    }

    /// The damage found since the store was first opened.
    pub(super) fn damages(&self) -> &Damages {
        &self.lasting.damages
    }

    /// The retention clock. It exists even while the tables do not.
    pub(super) fn retention(&self) -> &Retention {
        &self.lasting.retention
    }

    /// The tables, for a short while: they are not opened again until every holder has released
    /// them. Does not block.
    pub(super) fn get(&self) -> Result<Arc<Tables>, StoreError> {
        const ACTION: &str = "reopening";
        let tables = match self.tables.try_read() {
            Ok(tables) => tables,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // They are being opened again.
            Err(TryLockError::WouldBlock) => {
                return Err(match self.failure() {
                    Some(failure) => self.refuse(&failure, ACTION),
                    None => StoreError::full(ACTION),
                });
            }
        };
        let tables = tables.as_ref();
        tables.cloned().map_err(|why| self.refuse(why, ACTION))
    }

    /// The error of `action` while the tables are not open: until they are opened again, or for
    /// good.
    fn refuse(&self, failure: &WriteFailure, action: &'static str) -> StoreError {
        match self.lasting.damages.are_writes_refused() {
            true => StoreError::unavailable(action, failure.clone()),
            false => failure.refuse(action),
        }
    }

    /// Why writes fail until the tables are opened again; `None` if they do not fail.
    pub(super) fn failure(&self) -> Option<WriteFailure> {
        self.failure_now().clone()
    }

    fn failure_now(&self) -> MutexGuard<'_, Option<WriteFailure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records why the write `action` failed. Called by the writer.
    pub(super) fn failed(&self, action: &'static str, error: Arc<fjall::Error>) -> StoreError {
        let failure = self.failure().unwrap_or_else(|| {
            let failure = self.why(action, &*error);
            *self.failure_now() = Some(failure.clone());
            tracing::warn!(
                path = %self.config.path.display(),
                is_full = failure.is_full,
                error = &*error as &dyn Error,
                "the state store cannot write; reopening it"
            );
            self.end_if_repeated(&failure);
            failure
        });
        match is_poisoned(&*error) || is_full(&*error) {
            true if failure.is_full => StoreError::Full {
                action,
                source: Some(error.into()),
            },
            true => self.refuse(&failure, action),
            // Whether the change was made is unknown.
            false => StoreError::unavailable(action, error),
        }
    }

    /// Why `action` failed.
    fn why(&self, action: &str, error: &(dyn Error + 'static)) -> WriteFailure {
        // A flush or a compaction failed; the key-value store does not report its cause. No
        // acknowledged data depends on it.
        if is_poisoned(error) {
            return WriteFailure {
                cause: "a flush or a compaction failed".to_owned(),
                is_full: !self.has_room(),
            };
        }
        // The system's message is enough: the key-value store repeats it with its own names.
        let cause = io_error(error).map_or_else(|| chain(error), ToString::to_string);
        WriteFailure {
            cause: format!("{action} failed: {cause}"),
            is_full: is_full(error),
        }
    }

    /// Stops accepting writes if a failure came shortly before, too, although there was room.
    fn end_if_repeated(&self, failure: &WriteFailure) {
        if !failure.is_full && self.is_repeated() {
            self.end(failure);
        }
    }

    /// Records that a write failed although there is room. Returns whether one did shortly before.
    fn is_repeated(&self) -> bool {
        let mut last = self
            .failed_with_room
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(Instant::now());
        before.is_some_and(|before| before.elapsed() < SAME_CAUSE_WITHIN)
    }

    /// Stops accepting writes, and requests that the next start look for damage.
    fn end(&self, failure: &WriteFailure) {
        if let Err(error) = rebuild::ask(&self.config.path) {
            tracing::warn!(%error, "could not request a rebuild; the next start will not look for damage");
        }
        self.lasting.damages.writes_are_refused(&format!(
            "{failure}; this is the second failure within an hour despite free space: the disk is \
             failing, or a file is damaged. Check the disk, then start the process again: if a file \
             is damaged, it rebuilds the store from the readable data and keeps the damaged one \
             next to it"
        ));
    }

    /// The tables for a write: opened again if that is due and there is room. Called by the writer.
    pub(super) fn writable(&self) -> Result<Arc<Tables>, StoreError> {
        if let Some(failure) = self.failure() {
            if self.lasting.damages.are_writes_refused() {
                return Err(StoreError::unavailable("writing", failure));
            }
            self.open_again(&failure)?;
        }
        self.get()
    }

    fn open_again(&self, failure: &WriteFailure) -> Result<(), StoreError> {
        const ACTION: &str = "writing";
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if tried.is_some_and(|tried| tried.elapsed() < AGAIN_AFTER) {
            return Err(failure.refuse(ACTION));
        }
        if !self.has_room() {
            return Err(StoreError::full(ACTION));
        }
        *tried = Some(Instant::now());
        let mut open = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let known = match mem::replace(&mut *open, Err(failure.clone())) {
            Err(known) => Some(known),
            Ok(tables) => match close_tables(tables) {
                Ok(()) => None,
                Err(tables) => {
                    // The old tables are in use, for example by a backup.
                    *open = Ok(tables);
                    return Err(failure.refuse(ACTION));
                }
            },
        };
        let tables = match Tables::reopen(&self.config, self.lasting.clone()) {
            Ok(tables) => tables,
            Err(error) => {
                let why = self.why("reopening its files", &error);
                if known.as_ref() != Some(&why) {
                    let path = self.config.path.display();
                    let error = &error as &dyn Error;
                    tracing::error!(%path, is_full = why.is_full, error, "could not reopen the state store");
                }
                self.end_if_repeated(&why);
                *self.failure_now() = Some(why.clone());
                let refused = self.refuse(&why, ACTION);
                *open = Err(why);
                return Err(refused);
            }
        };
        *open = Ok(Arc::new(tables));
        drop(open);
        // Not before: a reader that finds the tables locked returns this failure.
        *self.failure_now() = None;
        let path = self.config.path.display();
        tracing::info!(%path, "the state store accepts writes again");
        Ok(())
    }

    /// Whether enough is free to try again; if that is unknown, it is worth a try.
    fn has_room(&self) -> bool {
        let stat = rustix::fs::statvfs(&self.config.path);
        stat.map_or(true, |stat| {
            stat.f_bavail.saturating_mul(stat.f_frsize) >= ROOM_MIN
        })
    }
}

/// An error and its causes.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |error| (**error).source())
}

/// Closes the tables once nothing else uses them; returns them if they stay in use.
fn close_tables(mut tables: Arc<Tables>) -> Result<(), Arc<Tables>> {
    let until = Instant::now() + READERS_PATIENCE;
    loop {
        match Arc::try_unwrap(tables) {
            Ok(last) => {
                drop(last);
                return Ok(());
            }
            Err(shared) if Instant::now() >= until => return Err(shared),
            Err(shared) => {
                tables = shared;
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Whether a flush or a compaction that failed is the cause.
fn is_poisoned(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| matches!(cause.downcast_ref(), Some(fjall::Error::Poisoned)))
}

/// The system's error, if it is the cause.
fn io_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use waybill_engine::{OperationId, PartitionId, Timestamp};

    use super::super::EmbeddedStore;
    use super::*;
    use crate::{DueEntry, Store as _, WriteBatch};

    const EIO: i32 = 5;

    #[test]
    fn only_a_full_disk_is_reported_as_full() {
        let dir = tempfile::tempdir().unwrap();
        let io = |kind: io::ErrorKind| fjall::Error::Io(kind.into());
        let cases = [
            (io(io::ErrorKind::StorageFull), true, "no storage space"),
            (io(io::ErrorKind::QuotaExceeded), true, "quota exceeded"),
            (
                fjall::Error::Poisoned,
                false,
                "a flush or a compaction failed",
            ),
            (
                fjall::Error::Io(io::Error::from_raw_os_error(EIO)),
                false,
                "a test failed: ",
            ),
            (fjall::Error::InvalidTrailer, false, "a test failed: "),
        ];
        for (at, (error, is_full, cause)) in cases.into_iter().enumerate() {
            let config = EmbeddedConfig::new(dir.path().join(at.to_string()));
            let tables = Reopening::open(config).unwrap();
            let is_poisoned = matches!(error, fjall::Error::Poisoned);
            let refused = tables.failed("a test", Arc::new(error));
            assert_eq!(matches!(refused, StoreError::Full { .. }), is_full);
            let is_reopening = matches!(refused, StoreError::Reopening { .. });
            assert_eq!(is_reopening, is_poisoned, "{refused:?}");
            let failure = tables.failure().unwrap();
            assert_eq!(failure.is_full, is_full, "{failure:?}");
            assert!(failure.cause.contains(cause), "{failure:?}");

            // All writes fail in this way from now on, and have the first one's cause.
            let next = tables.failed("the next", Arc::new(fjall::Error::Poisoned));
            assert_eq!(matches!(next, StoreError::Full { .. }), is_full, "{next:?}");
            assert_eq!(tables.failure(), Some(failure));
            assert!(tables.writable().is_ok(), "it is opened again");
            assert_eq!(tables.failure(), None);
        }
    }

    #[test]
    fn a_disk_that_fails_twice_within_an_hour_ends_all_writes() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Reopening::open(EmbeddedConfig::new(dir.path())).unwrap();
        let fail = || {
            let error = fjall::Error::Io(io::Error::from_raw_os_error(EIO));
            tables.failed("a group commit", Arc::new(error))
        };
        fail();
        fail();
        assert_eq!(tables.damages().report().refused, None, "one group");
        assert!(tables.writable().is_ok());
        fail();
        let refused = tables.damages().report().refused.unwrap();
        for part in ["a group commit failed", "os error 5", "second failure"] {
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn files_that_cannot_be_reopened_end_all_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let tables = Reopening::open(EmbeddedConfig::new(&path)).unwrap();
        tables.failed("a test", Arc::new(fjall::Error::Poisoned));
        block(&path);
        assert!(tables.writable().is_err());
        let refused = tables.damages().report().refused.unwrap();
        assert!(
            refused.starts_with("reopening its files failed: "),
            "{refused}"
        );
        unblock(&path);
        *tables.tried.lock().unwrap() = None;
        let ended = tables.writable();
        assert!(
            matches!(ended, Err(StoreError::Unavailable { .. })),
            "it is not opened again"
        );
    }

    /// Puts a file in the place of the store, which then cannot be opened again.
    fn block(store: &Path) {
        std::fs::rename(store, store.with_file_name("away")).unwrap();
        std::fs::write(store, "").unwrap();
    }

    fn unblock(store: &Path) {
        std::fs::remove_file(store).unwrap();
        std::fs::rename(store.with_file_name("away"), store).unwrap();
    }

    /// Something to write.
    fn batch() -> WriteBatch {
        let due = DueEntry {
            due: Timestamp(1),
            operation: OperationId(uuid::Uuid::nil()),
        };
        WriteBatch {
            due: vec![(PartitionId(0), due)],
            ..WriteBatch::default()
        }
    }

    #[tokio::test]
    async fn a_write_retries_the_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let store = EmbeddedStore::open(EmbeddedConfig::new(&path)).unwrap();
        let full = fjall::Error::Io(io::ErrorKind::StorageFull.into());
        store.tables.failed("a test", Arc::new(full));
        block(&path);
        let refused = store.write(batch()).await.unwrap_err();
        assert!(
            matches!(refused, StoreError::Reopening { .. }),
            "{refused:?}"
        );
        unblock(&path);
        let began = Instant::now();
        while let Err(refused) = store.write(batch()).await {
            assert!(began.elapsed() < Duration::from_secs(60), "{refused:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(store.write_failure(), None);
    }

    #[tokio::test]
    async fn calls_fail_as_unavailable_after_the_store_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let store = EmbeddedStore::open(EmbeddedConfig::new(&path)).unwrap();
        store
            .tables
            .failed("a test", Arc::new(fjall::Error::Poisoned));
        block(&path);
        for _ in 0..2 {
            let refused = store.write(batch()).await.unwrap_err();
            assert!(
                matches!(refused, StoreError::Unavailable { .. }),
                "{refused:?}"
            );
        }
        store.refuses_writes().await;
        let refused = store.get_many(Vec::new()).await.unwrap_err();
        assert!(
            matches!(refused, StoreError::Unavailable { .. }),
            "{refused:?}"
        );
    }

    #[test]
    fn tables_in_use_are_kept_and_reopened_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Reopening::open(EmbeddedConfig::new(dir.path())).unwrap();
        tables.failed("a test", Arc::new(fjall::Error::Poisoned));
        let reader = tables.get().unwrap();
        assert!(tables.writable().is_err(), "somebody reads");
        assert!(tables.get().is_ok(), "other causes may, too");
        drop(reader);
        *tables.tried.lock().unwrap() = None;
        assert!(tables.writable().is_ok());
        assert_eq!(tables.failure(), None);
    }
}
