//! The open tables, and how they are opened again after the disk was full.
//!
//! After a write, flush or compaction that failed, the key-value store takes no more writes until it is opened
//! anew; reads go on. So the writer opens it again in place, once there is room: the journal holds every
//! acknowledged commit, as after a crash.
//!
//! Where the store ends its work a second time within an hour though there is room, a compaction met a damaged block: no more writes are
//! taken, and the next start makes the store anew of what can be read (`rebuild.rs`).
//!
//! What must hold: the old tables are gone before the new ones open (they flush their buffer at their end); a
//! commit or a sync that failed for another reason than a full disk is never opened over, because what it left in
//! the page cache may not be on disk.

use std::error::Error;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::damage::Damages;
use super::tables::Tables;
use super::{EmbeddedConfig, rebuild};
use crate::StoreError;

/// How long after an attempt the tables are opened again at the earliest.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How much must be free on the file system before they are: less would be gone with the next flush.
const ROOM_MIN: u64 = 16 << 20;
/// A flush or compaction that fails again within this time has the same cause: a file that is damaged.
const SAME_CAUSE_WITHIN: Duration = Duration::from_secs(60 * 60);
/// How long those who read the old tables are waited for.
const READERS_PATIENCE: Duration = Duration::from_millis(500);

/// The open tables, shared by those who read and the one who writes.
pub(super) struct Reopening {
    config: EmbeddedConfig,
    /// Or why they could not be opened again.
    tables: RwLock<Result<Arc<Tables>, NotOpen>>,
    /// Whether no write succeeds before they are opened again.
    is_failed: AtomicBool,
    /// When that was tried last.
    tried: Mutex<Option<Instant>>,
    /// When a flush or a compaction failed last though there was room.
    failed_with_room: Mutex<Option<Instant>>,
    damages: Arc<Damages>,
}

impl Reopening {
    /// Opens the tables.
    pub(super) fn open(config: EmbeddedConfig) -> Result<Self, StoreError> {
        let tables = Tables::open(&config)?;
        Ok(Self {
            config,
            is_failed: AtomicBool::new(false),
            tried: Mutex::new(None),
            failed_with_room: Mutex::default(),
            damages: Arc::clone(&tables.damages),
            tables: RwLock::new(Ok(Arc::new(tables))),
        })
    }

    /// What was found to be damaged since the store was opened first.
    pub(super) fn damages(&self) -> &Damages {
        &self.damages
    }

    /// The tables, for a short while: they are not opened again before everyone has let go. Does not block.
    pub(super) fn get(&self) -> Result<Arc<Tables>, StoreError> {
        const ACTION: &str = "opening it again";
        let tables = match self.tables.try_read() {
            Ok(tables) => tables,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // They are being opened again.
            Err(TryLockError::WouldBlock) => return Err(StoreError::full(ACTION)),
        };
        let tables = tables.as_ref();
        tables.cloned().map_err(|why| match why.is_full {
            true => StoreError::full(ACTION),
            false => StoreError::unavailable(ACTION, why.clone()),
        })
    }

    /// Whether writes fail until there is room.
    pub(super) fn waits_for_room(&self) -> bool {
        self.is_failed.load(Ordering::Acquire)
    }

    /// Takes note of why `action` failed, which was a write. Called by the writer.
    pub(super) fn failed(&self, action: &'static str, error: Arc<fjall::Error>) -> StoreError {
        // Poisoned without a failed write before it: a flush or a compaction failed. Nothing that was acknowledged
        // rests on these.
        let is_poisoned = matches!(*error, fjall::Error::Poisoned);
        if !is_full(&*error) && !is_poisoned {
            return StoreError::unavailable(action, error);
        }
        if is_poisoned && !self.waits_for_room() && self.has_room() {
            let mut last = self
                .failed_with_room
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let before = last.replace(Instant::now());
            if before.is_some_and(|before| before.elapsed() < SAME_CAUSE_WITHIN) {
                self.end();
                return StoreError::unavailable(action, error);
            }
        }
        if !self.is_failed.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                path = %self.config.path.display(),
                error = &*error as &dyn Error,
                "the state store cannot write; opening it again once there is room"
            );
        }
        StoreError::Full {
            action,
            source: Some(error.into()),
        }
    }

    /// Takes no more writes, and has the next start make the store anew.
    fn end(&self) {
        if let Err(error) = rebuild::ask(&self.config.path) {
            tracing::warn!(%error, "could not request a rebuild; the next start will not look for damage");
        }
        let cause =
            "a flush or a compaction failed twice although there is free space: a file is damaged";
        self.damages.writes_are_refused(cause);
    }

    /// The tables for a write: opened again if that is due and there is room. Called by the writer.
    pub(super) fn writable(&self) -> Result<Arc<Tables>, StoreError> {
        if self.waits_for_room() {
            self.open_again()?;
        }
        self.get()
    }

    fn open_again(&self) -> Result<(), StoreError> {
        const ACTION: &str = "writing";
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if tried.is_some_and(|tried| tried.elapsed() < AGAIN_AFTER) || !self.has_room() {
            return Err(StoreError::full(ACTION));
        }
        *tried = Some(Instant::now());
        let mut open = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let known = match mem::replace(&mut *open, Err(NotOpen::default())) {
            Err(known) => Some(known),
            Ok(tables) => match let_go(tables) {
                Ok(()) => None,
                Err(tables) => {
                    // A backup is being read, say.
                    *open = Ok(tables);
                    return Err(StoreError::full(ACTION));
                }
            },
        };
        let mut tables = match Tables::open(&self.config) {
            Ok(tables) => tables,
            Err(error) => {
                let why = NotOpen {
                    cause: chain(&error),
                    is_full: is_full(&error),
                };
                if known.as_ref() != Some(&why) {
                    let path = self.config.path.display();
                    let error = &error as &dyn Error;
                    tracing::error!(%path, error, "could not reopen the state store; trying again");
                }
                let error = match why.is_full {
                    true => StoreError::full(ACTION),
                    false => error,
                };
                *open = Err(why);
                return Err(error);
            }
        };
        tables.damages = Arc::clone(&self.damages);
        *open = Ok(Arc::new(tables));
        self.is_failed.store(false, Ordering::Release);
        let path = self.config.path.display();
        tracing::info!(%path, "the state store writes again");
        Ok(())
    }

    /// Whether so much is free that it is worth trying. What cannot be told does not stop anything.
    fn has_room(&self) -> bool {
        let stat = rustix::fs::statvfs(&self.config.path);
        stat.map_or(true, |stat| {
            stat.f_bavail.saturating_mul(stat.f_frsize) >= ROOM_MIN
        })
    }
}

/// Why the tables could not be opened again.
#[derive(Clone, PartialEq, Eq, Debug, Default, thiserror::Error)]
#[error("{cause}")]
struct NotOpen {
    cause: String,
    is_full: bool,
}

/// An error and its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Ends the tables once nobody else uses them; gives them back if somebody goes on to.
fn let_go(mut tables: Arc<Tables>) -> Result<(), Arc<Tables>> {
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

/// Whether a full disk, or a quota, is the cause.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if let Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) = kind {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_or_a_failed_flush_is_opened_over() {
        let dir = tempfile::tempdir().unwrap();
        let io = |kind: io::ErrorKind| fjall::Error::Io(kind.into());
        let cases = [
            (io(io::ErrorKind::StorageFull), true),
            (io(io::ErrorKind::QuotaExceeded), true),
            (fjall::Error::Poisoned, true),
            (io(io::ErrorKind::Other), false),
            (fjall::Error::InvalidTrailer, false),
        ];
        for (at, (error, waits)) in cases.into_iter().enumerate() {
            let config = EmbeddedConfig::new(dir.path().join(at.to_string()));
            let tables = Reopening::open(config).unwrap();
            let told = tables.failed("a test", Arc::new(error));
            assert_eq!(tables.waits_for_room(), waits, "{told:?}");
            assert_eq!(matches!(told, StoreError::Full { .. }), waits, "{told:?}");
        }
    }

    #[test]
    fn tables_that_somebody_reads_are_kept_and_opened_again_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Reopening::open(EmbeddedConfig::new(dir.path())).unwrap();
        tables.failed("a test", Arc::new(fjall::Error::Poisoned));
        let reader = tables.get().unwrap();
        assert!(tables.writable().is_err(), "somebody reads");
        assert!(tables.get().is_ok(), "and others may, too");
        drop(reader);
        *tables.tried.lock().unwrap() = None;
        assert!(tables.writable().is_ok());
        assert!(!tables.waits_for_room());
    }
}
