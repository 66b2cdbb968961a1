//! Starts write-back of tables' files while they grow.
//!
//! The key-value store writes a file of up to [`FILE_BYTES`](super::tables) in one go and syncs it when it is complete. All of it
//! would go to the disk at once, and the syncs of requests on that disk would wait for it.
//!
//! The thread looks at files only while some may grow: it is woken when a memtable has been rotated, and sleeps again once
//! there was nothing to flush or compact and no file has grown for a while.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fjall::{AbstractTree as _, AnyTree, Database, Keyspace};
use waybill_disk::write_back::{self, Started};

use crate::StoreError;

/// How long between two looks at the files that may grow. A compaction writes a megabyte or two meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A file that has not grown for this long is complete, and a store in which none has grown is at rest.
const AT_REST_AFTER: Duration = Duration::from_secs(1);

/// The thread. It ends when this is dropped, and holds nothing of the store any more then.
pub(super) struct WriteBack {
    thread: Option<JoinHandle<()>>,
    ends: Arc<AtomicBool>,
}

impl WriteBack {
    /// Starts it.
    pub(super) fn start<'a>(
        db: &Database,
        tables: impl Iterator<Item = &'a Keyspace>,
    ) -> Result<Self, StoreError> {
        let ends = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            db: db.clone(),
            tables: tables.map(Table::new).collect(),
            growing: Vec::new(),
            ends: Arc::clone(&ends),
        };
        let thread = thread::Builder::new()
            .name("store-write-back".to_owned())
            .spawn(move || watch.run())
            .map_err(|error| StoreError::unavailable("opening", error))?;
        Ok(Self {
            thread: Some(thread),
            ends,
        })
    }

    /// Has the thread look at files again: one is about to grow.
    pub(super) fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // It has panicked otherwise, which the program reports; nothing rests on it.
            drop(thread.join());
        }
    }
}

/// A table, as far as the thread needs it.
struct Table {
    tree: AnyTree,
    /// Where its files are, each named by its number.
    dir: PathBuf,
    /// The number of the first file that was not seen yet.
    next: u64,
}

impl Table {
    fn new(keyspace: &Keyspace) -> Self {
        Self {
            next: keyspace.tree.next_table_id(),
            dir: keyspace.path().join("tables"),
            tree: keyspace.tree.clone(),
        }
    }

    /// The files that were begun since this was called last. Those that are gone again are left out.
    fn begun(&mut self) -> impl Iterator<Item = File> {
        let begun = self.next..self.tree.next_table_id();
        self.next = begun.end;
        begun.filter_map(|number| File::open(self.dir.join(number.to_string())).ok())
    }
}

/// A file that may grow.
struct Growing {
    file: File,
    started: Started,
    bytes: u64,
    /// When it was last seen to have grown.
    grown: Instant,
}

struct Watch {
    db: Database,
    tables: Vec<Table>,
    growing: Vec<Growing>,
    ends: Arc<AtomicBool>,
}

impl Watch {
    fn run(mut self) {
        let mut busy = Instant::now();
        while !self.ends.load(Ordering::Acquire) {
            let now = Instant::now();
            self.look(now);
            if !self.growing.is_empty()
                || self.db.outstanding_flushes() > 0
                || self.db.active_compactions() > 0
            {
                busy = now;
            }
            match now.duration_since(busy) < AT_REST_AFTER {
                true => thread::park_timeout(LOOK_EVERY),
                false => {
                    thread::park();
                    busy = Instant::now();
                }
            }
        }
    }

    /// Starts write-back of what has been written since the last look.
    fn look(&mut self, now: Instant) {
        for table in &mut self.tables {
            self.growing.extend(table.begun().map(|file| Growing {
                file,
                started: Started::default(),
                bytes: 0,
                grown: now,
            }));
        }
        self.growing.retain_mut(|growing| {
            // The file's own writer meets what is wrong with it.
            let bytes = growing.file.metadata().map_or(0, |file| file.len());
            if bytes > growing.bytes {
                growing.bytes = bytes;
                growing.grown = now;
            }
            if let Some(due) = growing.started.due(bytes) {
                write_back::begin(&growing.file, &due);
            }
            now.duration_since(growing.grown) < AT_REST_AFTER
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::EmbeddedConfig;
    use super::super::tables::Tables;
    use super::*;

    #[test]
    fn a_new_file_is_followed_until_it_has_not_grown_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let tables = Tables::open_idle(&EmbeddedConfig::new(dir.path())).unwrap();
        let table = &tables.state;
        let mut watch = Watch {
            db: tables.db.clone(),
            tables: vec![Table::new(table)],
            growing: Vec::new(),
            ends: Arc::default(),
        };
        let now = Instant::now();
        watch.look(now);
        assert!(watch.growing.is_empty(), "nothing was written yet");

        for key in 0..1_000_u64 {
            table.tree.insert(key.to_be_bytes(), [7; 1_000], key);
        }
        table.tree.flush_active_memtable(0).unwrap();
        watch.look(now);
        let [growing] = &watch.growing[..] else {
            panic!("one file: {}", watch.growing.len());
        };
        assert!(growing.bytes > 0);
        let mut started = growing.started;
        assert_eq!(started.due(growing.bytes), None, "all of it was started");

        watch.look(now + AT_REST_AFTER);
        assert!(watch.growing.is_empty());
    }

    /// Otherwise the tables could not be opened again.
    #[test]
    fn closed_tables_are_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let config = EmbeddedConfig::new(dir.path());
        for _ in 0..3 {
            let tables = Tables::open(&config).unwrap();
            tables.wake_write_back();
            drop(tables);
        }
    }
}
