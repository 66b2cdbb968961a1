//! How far each partition is known to be synced, across restarts.
//!
//! What must hold:
//!
//! * **It never leads.** An end is recorded after its sync has succeeded.
//! * **It never lags behind what was acknowledged.** It is stored before anything below it is
//!   acknowledged or visible on a topic that is synced. So a start notices if a log has lost any
//!   such record, wherever, and after any restart of the machine. Exceptions: the disk cannot
//!   write this record, which is logged and retried; the record's newest file is damaged or
//!   missing as well; closed segments of a topic that has just become a synced one wait for a sync.
//!
//! The record also has the machine's boot id. If the machine has booted again since, its power may
//! have failed: then whatever was not synced may be damaged anywhere.
//!
//! On disk: two files that are written in turn, each with a rising number and a checksum. If the
//! machine dies while one is being written, the other is valid, only older.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use waybill_disk::files::{Disk, Open};

use crate::locked;

const NAMES: [&str; 2] = ["synced-0", "synced-1"];
const MAGIC: &[u8; 8] = b"WBSYNCD2";

/// A partition: its topic's id and its number.
pub(crate) type Key = ([u8; 16], i32);

/// The ends of all partitions.
pub(crate) struct SyncedEnds {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    table: Mutex<Table>,
    /// The id of the machine's present start, if it is known.
    boot_id: Option<String>,
    /// That of the stored record.
    boot_id_before: Option<String>,
    /// Whether no record was found, so that nothing is known of logs that exist already.
    pub(crate) is_new: bool,
    has_rebooted: AtomicBool,
}

/// What is known of a log before it is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownSync {
    /// Everything below is synced. `None` if nothing is known.
    pub(crate) end: Option<i64>,
    /// Whether the machine has booted since the log was open.
    has_rebooted: bool,
}

impl KnownSync {
    /// Whether a power failure may have damaged anything from `offset` on.
    pub(crate) fn may_be_lost_from(self, offset: i64) -> bool {
        self.has_rebooted && self.end.unwrap_or(0) <= offset
    }
}

#[derive(Default)]
struct Table {
    ends: HashMap<Key, i64>,
    /// The number of the newest file.
    number: u64,
    /// The newest file as it was read, which may be in memory only: an earlier process may have
    /// died before it was synced, or after that failed. `None` once it is surely on the disk.
    found: Option<Vec<u8>>,
    /// Whether neither file was intact. A power loss may undo an interrupted write to one, which
    /// then has a higher number and older ends.
    are_damaged: bool,
    /// Whether this process has made the names of the files durable.
    are_named: [bool; 2],
}

#[derive(Serialize, Deserialize)]
struct Stored {
    number: u64,
    boot_id: Option<String>,
    ends: Vec<(Key, i64)>,
}

impl SyncedEnds {
    /// Reads the record stored in `dir`; empty if there is none, or only damaged ones. `boot_id` is
    /// the id of the machine's present start, if it is known.
    ///
    /// # Errors
    ///
    /// The disk cannot read a file of the record, perhaps the newest one.
    pub(crate) fn load(
        disk: Arc<dyn Disk>,
        dir: &Path,
        boot_id: Option<String>,
    ) -> io::Result<Self> {
        let (newest, is_any_damaged) = newest(&*disk, dir)?;
        match (&newest, is_any_damaged) {
            (Some(_), true) => tracing::warn!(
                path = %dir.display(),
                "a file of the synced ends of logs is damaged, as after an interrupted write; using the other one"
            ),
            (None, true) => tracing::warn!(
                path = %dir.display(),
                "no file of the synced ends of logs is intact: this start cannot tell whether they lost records; check the disk"
            ),
            (_, false) => {}
        }
        let is_new = newest.is_none() && !is_any_damaged;
        let before = newest
            .as_ref()
            .and_then(|(stored, _)| stored.boot_id.clone());
        let has_rebooted = before.is_some() && boot_id.is_some() && before != boot_id;
        let mut table = Table {
            are_damaged: newest.is_none() && is_any_damaged,
            ..Table::default()
        };
        if let Some((stored, bytes)) = newest {
            table.ends = stored.ends.into_iter().collect();
            table.number = stored.number;
            table.found = Some(bytes);
        }
        Ok(Self {
            disk,
            dir: dir.to_owned(),
            table: Mutex::new(table),
            boot_id,
            boot_id_before: before,
            is_new,
            has_rebooted: AtomicBool::new(has_rebooted),
        })
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

    /// What is known of a partition before its log is opened.
    pub(crate) fn known(&self, key: Key) -> KnownSync {
        KnownSync {
            end: self.of(key),
            has_rebooted: self.has_rebooted(),
        }
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

    /// Stores the recorded ends in the older of the two files; durable when it returns. After an
    /// error, call it again.
    pub(crate) fn store(&self) -> io::Result<()> {
        let mut table = locked(&self.table);
        if table.are_damaged {
            self.store_next(&mut table)?;
            table.are_damaged = false;
        }
        self.store_next(&mut table)
    }

    fn store_next(&self, table: &mut Table) -> io::Result<()> {
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
        // The newest one must be on the disk before the other is overwritten.
        if let Some(found) = &table.found {
            let newest = table.number;
            self.write(newest, found)?;
            table.found = None;
            self.name(table, newest)?;
        }
        self.write(number, &bytes)?;
        self.name(table, number)?;
        table.number = number;
        Ok(())
    }

    /// Writes and syncs the file with this number: the older one of the two, or the newest again.
    fn write(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        // It is overwritten, not created again, so that it keeps its space.
        let path = self.dir.join(NAMES[slot(number)]);
        let file = self.disk.open(&path, Open::Create)?;
        file.write_all_at(bytes, 0)?;
        file.sync()
    }

    /// Makes the name of the file with this number durable, once in each process: an earlier one
    /// may have died before.
    fn name(&self, table: &mut Table, number: u64) -> io::Result<()> {
        if !table.are_named[slot(number)] {
            self.disk.sync_dir(&self.dir)?;
            table.are_named[slot(number)] = true;
        }
        Ok(())
    }
}

/// Which of the files has this number.
fn slot(number: u64) -> usize {
    usize::from(number % 2 == 1)
}

/// Stored ends, and their file's content.
type Found = (Stored, Vec<u8>);

/// The newest stored ends, and whether a file is damaged.
fn newest(disk: &dyn Disk, dir: &Path) -> io::Result<(Option<Found>, bool)> {
    let (mut found, mut is_any_damaged) = (Vec::new(), false);
    for name in NAMES {
        let path = dir.join(name);
        match disk.read(&path) {
            Ok(bytes) => match decode(&bytes) {
                Some(stored) => found.push((stored, bytes)),
                None => is_any_damaged = true,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let what = format!(
                    "cannot read {}, which stores how far each log is synced: {error}. Check the disk and start again. \
                     If the file stays unreadable, move it away: the start then uses the older file, and may not \
                     notice that a log lost its newest records",
                    path.display()
                );
                return Err(io::Error::new(error.kind(), what));
            }
        }
    }
    let newest = found.into_iter().max_by_key(|(stored, _)| stored.number);
    Ok((newest, is_any_damaged))
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
    use std::fs;

    use waybill_disk::files::SystemDisk;

    use super::*;

    fn load(dir: &Path) -> SyncedEnds {
        SyncedEnds::load(Arc::new(SystemDisk), dir, None).unwrap()
    }

    #[test]
    fn a_torn_file_leaves_the_older_ends() {
        let dir = tempfile::tempdir().unwrap();
        let key = ([1; 16], 3);
        let ends = load(dir.path());
        assert_eq!(ends.of(key), None);
        for end in [10, 20, 15] {
            ends.note(key, end);
            ends.store().unwrap();
        }
        assert_eq!(load(dir.path()).of(key), Some(20));
        ends.note(key, 30);
        ends.store().unwrap();
        // The fourth is in the first file.
        let newest = dir.path().join(NAMES[0]);
        let whole = fs::read(&newest).unwrap();
        for cut in 0..whole.len() {
            fs::write(&newest, &whole[..cut]).unwrap();
            assert_eq!(load(dir.path()).of(key), Some(20), "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            fs::write(&newest, &bad).unwrap();
            assert_eq!(load(dir.path()).of(key), Some(20), "byte {at}");
        }
        fs::write(&newest, &whole).unwrap();
        assert_eq!(load(dir.path()).of(key), Some(30));
    }

    #[test]
    fn damaged_files_are_distinguished_from_missing_and_unreadable_ones() {
        let dir = tempfile::tempdir().unwrap();
        let found = || {
            let found = newest(&SystemDisk, dir.path());
            found.map(|(newest, is_any_damaged)| (newest.is_some(), is_any_damaged))
        };
        assert_eq!(found().unwrap(), (false, false));
        let ends = load(dir.path());
        ends.store().unwrap();
        // The first one was cut short, and there is no other yet.
        let first = dir.path().join(NAMES[1]);
        let whole = fs::read(&first).unwrap();
        fs::write(&first, &whole[..10]).unwrap();
        assert_eq!(found().unwrap(), (false, true));
        ends.store().unwrap();
        assert_eq!(found().unwrap(), (true, true));
        let second = dir.path().join(NAMES[0]);
        fs::remove_file(&second).unwrap();
        fs::create_dir(&second).unwrap();
        let error = found().err().unwrap().to_string();
        assert!(error.contains("synced-0"), "{error}");
    }
}
