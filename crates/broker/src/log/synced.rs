//! How far each partition is known to be synced, across restarts.
//!
//! What must hold: **it may lag, but it never leads.** An end is recorded after its sync has
//! succeeded, and stored within [`STORE_EVERY`] or at an orderly shutdown, never on the path of a
//! produce request. So if a log loses its end, only the loss of records that were acknowledged in
//! the last second before the broker died is not noticed.
//!
//! The record also has the machine's boot id. If the machine has booted again since, its power may
//! have failed: then whatever was not synced may be damaged anywhere.
//!
//! On disk: two files that are written in turn, each with a rising number and a checksum. If the
//! machine dies while one is being written, the other is valid, only older.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_disk::boot_id;

use crate::locked;

/// How soon an end is stored.
pub(crate) const STORE_EVERY: Duration = Duration::from_secs(1);

const NAMES: [&str; 2] = ["synced-0", "synced-1"];
const MAGIC: &[u8; 8] = b"WBSYNCD2";

/// A partition: its topic's id and its number.
pub(crate) type Key = ([u8; 16], i32);

/// The ends of all partitions.
pub(crate) struct SyncedEnds {
    dir: PathBuf,
    table: Mutex<Table>,
    /// The id of the machine's present start, if it is known.
    boot_id: Option<String>,
    /// That of the stored record.
    boot_id_before: Option<String>,
    has_rebooted: AtomicBool,
}

#[derive(Default)]
struct Table {
    ends: HashMap<Key, i64>,
    /// The number of the newest file.
    number: u64,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    number: u64,
    boot_id: Option<String>,
    ends: Vec<(Key, i64)>,
}

impl SyncedEnds {
    /// Reads the record stored in `dir`; empty if nothing can be read.
    pub(crate) fn load(dir: &Path) -> Self {
        Self::load_on(dir, boot_id())
    }

    /// The same, on a machine whose present start has this id.
    pub(crate) fn load_on(dir: &Path, boot_id: Option<String>) -> Self {
        let newest = newest(dir).unwrap_or_else(|Unreadable| {
            tracing::warn!(
                path = %dir.display(),
                "cannot read the synced ends of logs; log truncation goes undetected at this start"
            );
            None
        });
        let before = newest.as_ref().and_then(|stored| stored.boot_id.clone());
        let has_rebooted = before.is_some() && boot_id.is_some() && before != boot_id;
        let table = newest.map_or_else(Table::default, |stored| Table {
            ends: stored.ends.into_iter().collect(),
            number: stored.number,
        });
        Self {
            dir: dir.to_owned(),
            table: Mutex::new(table),
            boot_id,
            boot_id_before: before,
            has_rebooted: AtomicBool::new(has_rebooted),
        }
    }

    /// Whether the machine has booted since the record was stored, and no log was
    /// [opened](Self::logs_are_open) since.
    pub(crate) fn has_rebooted(&self) -> bool {
        self.has_rebooted.load(Ordering::Relaxed)
    }

    /// All logs are open: from now on, damage in them has another cause than a power failure.
    pub(crate) fn logs_are_open(&self) -> io::Result<()> {
        self.has_rebooted.store(false, Ordering::Relaxed);
        self.store()
    }

    /// The known end of a partition; `None` if there is none.
    pub(crate) fn of(&self, key: Key) -> Option<i64> {
        locked(&self.table).ends.get(&key).copied()
    }

    /// Records that everything of a partition below `end` is synced.
    pub(crate) fn note(&self, key: Key, end: i64) {
        let mut table = locked(&self.table);
        let known = table.ends.entry(key).or_insert(end);
        *known = end.max(*known);
    }

    /// Forgets the partitions that are not `kept`.
    pub(crate) fn retain(&self, kept: impl Fn(&Key) -> bool) {
        locked(&self.table).ends.retain(|key, _| kept(key));
    }

    /// Stores the recorded ends; durable when it returns. After an error the next call stores them.
    pub(crate) fn store(&self) -> io::Result<()> {
        let mut table = locked(&self.table);
        let number = table.number + 1;
        // A start that fails may leave logs that it has not opened.
        let boot_id = match self.has_rebooted() {
            true => &self.boot_id_before,
            false => &self.boot_id,
        };
        let stored = Stored {
            number,
            boot_id: boot_id.clone(),
            ends: table.ends.iter().map(|(&key, &end)| (key, end)).collect(),
        };
        let body = postcard::to_stdvec(&stored).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(body.len() + 16);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&body);
        // The other, older file. It is overwritten, not created again, so that it keeps its space.
        let path = self.dir.join(NAMES[usize::from(number % 2 == 1)]);
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        if is_new {
            File::open(&self.dir)?.sync_all()?;
        }
        table.number = number;
        Ok(())
    }
}

/// Neither of the two files is whole. An interrupted write damages only one of them.
#[derive(Debug)]
struct Unreadable;

/// The newest stored ends in `dir`, if there are any.
fn newest(dir: &Path) -> Result<Option<Stored>, Unreadable> {
    let files = NAMES.map(|name| fs::read(dir.join(name)));
    let decoded = files
        .iter()
        .filter_map(|file| decode(file.as_deref().ok()?));
    let newest = decoded.max_by_key(|stored| stored.number);
    let is_missing = |file: &io::Result<Vec<u8>>| matches!(file, Err(error) if error.kind() == io::ErrorKind::NotFound);
    if newest.is_none() && !files.iter().any(is_missing) {
        return Err(Unreadable);
    }
    Ok(newest)
}

fn decode(bytes: &[u8]) -> Option<Stored> {
    let (sum, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let body = rest.get(..u32::from_le_bytes(*length) as usize)?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return None;
    }
    postcard::from_bytes(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_file_leaves_the_older_ends() {
        let dir = tempfile::tempdir().unwrap();
        let key = ([1; 16], 3);
        let ends = SyncedEnds::load(dir.path());
        assert_eq!(ends.of(key), None);
        for end in [10, 20, 15] {
            ends.note(key, end);
            ends.store().unwrap();
        }
        assert_eq!(SyncedEnds::load(dir.path()).of(key), Some(20));
        ends.note(key, 30);
        ends.store().unwrap();
        // The fourth is in the first file.
        let newest = dir.path().join(NAMES[0]);
        let whole = fs::read(&newest).unwrap();
        for cut in 0..whole.len() {
            fs::write(&newest, &whole[..cut]).unwrap();
            assert_eq!(
                SyncedEnds::load(dir.path()).of(key),
                Some(20),
                "cut at {cut}"
            );
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            fs::write(&newest, &bad).unwrap();
            assert_eq!(SyncedEnds::load(dir.path()).of(key), Some(20), "byte {at}");
        }
        fs::write(&newest, &whole).unwrap();
        assert_eq!(SyncedEnds::load(dir.path()).of(key), Some(30));
    }

    #[test]
    fn unreadable_files_are_distinguished_from_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(newest(dir.path()), Ok(None)));
        let ends = SyncedEnds::load(dir.path());
        ends.store().unwrap();
        // The first one was cut short, and there is no other yet.
        let first = dir.path().join(NAMES[1]);
        let whole = fs::read(&first).unwrap();
        fs::write(&first, &whole[..10]).unwrap();
        assert!(matches!(newest(dir.path()), Ok(None)));
        ends.store().unwrap();
        assert!(matches!(newest(dir.path()), Ok(Some(_))));
        fs::write(dir.path().join(NAMES[0]), b"").unwrap();
        assert!(newest(dir.path()).is_err());
    }
}
