//! Starts write-back of tables' files while they grow.
//!
//! The key-value store writes a file of up to 32 MiB in one go and syncs it when it is complete.
//! Without early write-back, all of it would go to the disk in one burst, and the syncs of requests
//! on that disk would wait for it.
//!
//! The thread looks at files only while some may grow: it wakes when memtables are rotated or a
//! commit compacts, and sleeps again a second after the last flush, compaction and growth. Files
//! that the key-value store begins while it opens the tables are not followed.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fjall::{AbstractTree as _, AnyTree, Database, Keyspace};
use waybill_disk::write_back::{self, WriteBackProgress};

use crate::StoreError;

/// The interval of checks for growth. A compaction writes a megabyte or two in between.
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// How long after the last growth a file is no longer followed, and the thread sleeps.
const AT_REST_AFTER: Duration = Duration::from_secs(1);

/// The thread. Dropping this joins it and releases its handles to the store.
pub(super) struct WriteBack {
    thread: Option<JoinHandle<()>>,
    is_stopping: Arc<AtomicBool>,
}

impl WriteBack {
    /// Starts the thread.
    pub(super) fn start<'a>(
        db: &Database,
        tables: impl Iterator<Item = &'a Keyspace>,
    ) -> Result<Self, StoreError> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            db: db.clone(),
            tables: tables.map(Table::new).collect(),
            is_stopping: Arc::clone(&is_stopping),
        };
        let thread = thread::Builder::new()
            .name("store-write-back".to_owned())
            .spawn(move || watch.run())
            .map_err(|error| StoreError::unavailable("opening", error))?;
        Ok(Self {
            thread: Some(thread),
            is_stopping,
        })
    }

    /// Wakes the thread because a file is about to grow.
    pub(super) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "the thread that starts write-back of the state store's files panicked"
            );
        }
    }
}

/// A table, and the files of it that may grow.
struct Table {
    tree: AnyTree,
    /// Where its files are, each named by its number.
    dir: PathBuf,
    /// The number of the first file that was not seen yet.
    next: u64,
    /// In the order of their numbers.
    growing: Vec<Growing>,
}

/// A file that may grow.
struct Growing {
    path: PathBuf,
    /// `None` until it can be opened: its number is taken before it is created.
    file: Option<File>,
    progress: WriteBackProgress,
    bytes: u64,
    /// When it was last seen to have grown.
    grown: Instant,
}

impl Table {
    fn new(keyspace: &Keyspace) -> Self {
        Self {
            next: keyspace.tree.next_table_id(),
            dir: keyspace.path().join("tables"),
            tree: keyspace.tree.clone(),
            growing: Vec::new(),
        }
    }

    /// Starts write-back of what has been written since the last check. While the store is flushing
    /// or compacting, the newest file is followed even if it does not grow.
    fn check(&mut self, now: Instant, is_working: bool) {
        let new = self.next..self.tree.next_table_id();
        self.next = new.end;
        self.growing.extend(new.map(|number| Growing {
            path: self.dir.join(number.to_string()),
            file: None,
            progress: WriteBackProgress::default(),
            bytes: 0,
            grown: now,
        }));
        let mut behind = self.growing.len();
        self.growing.retain_mut(|growing| {
            behind -= 1;
            growing.check(now);
            let is_newest = behind == 0;
            now.duration_since(growing.grown) < AT_REST_AFTER || (is_newest && is_working)
        });
    }
}

impl Growing {
    /// Errors surface in the file's writer.
    fn check(&mut self, now: Instant) {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &self.file else { return };
        let bytes = file.metadata().map_or(0, |file| file.len());
        if bytes > self.bytes {
            self.bytes = bytes;
            self.grown = now;
        }
        if let Some(due) = self.progress.take_due(bytes) {
            write_back::begin(file, &due);
        }
    }
}

struct Watch {
    db: Database,
    tables: Vec<Table>,
    is_stopping: Arc<AtomicBool>,
}

impl Watch {
    fn run(mut self) {
        let mut busy = Instant::now();
        while !self.is_stopping.load(Ordering::Acquire) {
            let now = Instant::now();
            match catch_unwind(AssertUnwindSafe(|| self.check(now))) {
                Ok(true) => busy = now,
                Ok(false) => {}
                Err(_) => {
                    tracing::error!("a check for growing files of the state store panicked");
                    thread::sleep(AT_REST_AFTER);
                }
            }
            match now.duration_since(busy) < AT_REST_AFTER {
                true => thread::park_timeout(CHECK_EVERY),
                false => {
                    thread::park();
                    busy = Instant::now();
                }
            }
        }
    }

    /// Checks all tables. Returns whether files may grow.
    fn check(&mut self, now: Instant) -> bool {
        let is_working = self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0;
        for table in &mut self.tables {
            table.check(now, is_working);
        }
        is_working || self.tables.iter().any(|table| !table.growing.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use waybill_disk::write_back::WRITE_BACK_BYTES;

    use super::super::EmbeddedConfig;
    use super::super::tables::Tables;
    use super::*;

    #[test]
    fn a_new_file_is_followed_until_it_has_not_grown_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::open_idle(&EmbeddedConfig::new(dir.path())).unwrap();
        let keyspace = &tables.state;
        let mut table = Table::new(keyspace);
        let now = Instant::now();
        table.check(now, true);
        assert!(table.growing.is_empty(), "nothing was written yet");

        // Values that do not compress.
        let mut random = 1_u64;
        for key in 0..1_000_u64 {
            let mut value = Vec::new();
            for _ in 0..128 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                value.extend(random.to_be_bytes());
            }
            keyspace.tree.insert(key.to_be_bytes(), value, key);
        }
        keyspace.tree.flush_active_memtable(0).unwrap();
        table.check(now, true);
        let [growing] = &mut table.growing[..] else {
            panic!("one file: {}", table.growing.len());
        };
        assert!(growing.bytes >= WRITE_BACK_BYTES, "{}", growing.bytes);
        let due = growing.progress.take_due(growing.bytes);
        assert_eq!(due, None, "all of it was started");

        let later = now + AT_REST_AFTER;
        table.check(later, true);
        assert_eq!(table.growing.len(), 1, "the next bytes may come late");
        table.check(later, false);
        assert!(table.growing.is_empty());
    }

    #[test]
    fn a_file_that_is_created_after_its_number_was_taken_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::open_idle(&EmbeddedConfig::new(dir.path())).unwrap();
        let mut table = Table::new(&tables.state);
        let number = tables.state.tree.get_next_table_id();
        let now = Instant::now();
        table.check(now, true);
        assert!(table.growing[0].file.is_none());
        let file = File::create(table.dir.join(number.to_string())).unwrap();
        file.set_len(1).unwrap();
        table.check(now, true);
        assert_eq!(table.growing[0].bytes, 1);
    }

    #[test]
    fn dropping_tables_releases_their_lock() {
        let dir = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig::new(dir.path());
        for _ in 0..3 {
            let tables = Tables::open(&config).unwrap();
            tables.wake_write_back();
            drop(tables);
        }
    }
}
