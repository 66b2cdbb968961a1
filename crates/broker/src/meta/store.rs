//! The key-value store beneath the metadata, opened again after its disk was full.
//!
//! The library refuses every write after one that has failed, until the store is opened again. What failed for want of
//! space may succeed later, so the store is opened again once there is room. What failed for another reason stays
//! refused until the broker is started again.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace, KeyspaceCreateOptions};

use crate::locked;
use crate::log::is_full;

/// The store holds little: small buffers keep its memory small.
const CACHE_BYTES: u64 = 1 << 20;
const MEMTABLE_BYTES: u64 = 2 << 20;
const JOURNAL_BYTES: u64 = 64 << 20;

/// How much room there has to be before the store is opened again.
const ROOM_BYTES: usize = 256 << 10;
/// How long to wait after a try to open it again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// The store and its tables.
pub(super) struct Store {
    pub(super) database: Database,
    pub(super) cluster: Keyspace,
    pub(super) offsets: Keyspace,
}

impl Store {
    fn open(path: &Path) -> Result<Self, fjall::Error> {
        let database = Database::builder(path)
            .cache_size(CACHE_BYTES)
            .worker_threads(1)
            .max_journaling_size(JOURNAL_BYTES)
            .open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let cluster = database.keyspace("cluster", options)?;
        let offsets = database.keyspace("offsets", options)?;
        Ok(Self {
            database,
            cluster,
            offsets,
        })
    }
}

/// A store that is opened again after its disk was full.
pub(super) struct Reopening {
    path: PathBuf,
    /// `None` while it could not be opened again.
    store: RwLock<Option<Arc<Store>>>,
    /// Whether a write has failed for want of space since the store was opened.
    is_full: AtomicBool,
    tried: Mutex<Option<Instant>>,
}

impl Reopening {
    pub(super) fn open(path: &Path) -> Result<Self, fjall::Error> {
        Ok(Self {
            path: path.to_owned(),
            store: RwLock::new(Some(Arc::new(Store::open(path)?))),
            is_full: AtomicBool::new(false),
            tried: Mutex::new(None),
        })
    }

    /// The store. Where its disk was full and there is room by now, it is opened again first.
    pub(super) fn get(&self) -> Result<Arc<Store>, fjall::Error> {
        if self.is_full.load(Ordering::Acquire) {
            self.try_again();
        }
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        store.clone().ok_or(fjall::Error::Poisoned)
    }

    /// Takes note of how a write ended.
    pub(super) fn note(&self, error: &fjall::Error) {
        // A write that failed in the background names no cause.
        let lacks_room = match error {
            fjall::Error::Poisoned => !has_room(&self.path).unwrap_or(true),
            error => is_for_want_of_space(error),
        };
        if lacks_room && !self.is_full.swap(true, Ordering::AcqRel) {
            tracing::error!(
                error = error as &dyn Error,
                "the disk is full: the broker's metadata cannot be written until there is room"
            );
        }
    }

    fn try_again(&self) {
        let mut tried = locked(&self.tried);
        if tried.is_some_and(|tried| tried.elapsed() < REOPEN_PAUSE) {
            return;
        }
        if !has_room(&self.path).unwrap_or(false) {
            *tried = Some(Instant::now());
            return;
        }
        let mut slot = self.store.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = slot.take() {
            match Arc::try_unwrap(store) {
                // It has to be closed before it is opened.
                Ok(store) => drop(store),
                // Somebody reads it, a backup for instance.
                Err(store) => {
                    *slot = Some(store);
                    *tried = Some(Instant::now());
                    return;
                }
            }
        }
        match Store::open(&self.path) {
            Ok(store) => {
                *slot = Some(Arc::new(store));
                *tried = None;
                self.is_full.store(false, Ordering::Release);
                tracing::info!("the disk has room again; reopened the broker's metadata");
            }
            Err(error) => {
                *tried = Some(Instant::now());
                tracing::warn!(
                    error = &error as &dyn Error,
                    "could not reopen the broker's metadata; trying again"
                );
            }
        }
    }
}

fn is_for_want_of_space(error: &fjall::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(is_full) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether something can be written.
fn has_room(dir: &Path) -> io::Result<bool> {
    let path = dir.with_extension("probe");
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&[0; ROOM_BYTES])?;
        file.sync_data()
    });
    let removed = fs::remove_file(&path);
    match written {
        Err(error) if is_full(&error) => Ok(false),
        written => written.and(removed).map(|()| true),
    }
}
