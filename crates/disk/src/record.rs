//! The file `synced`: two slots that are written in turn, each with a number that rises and a
//! checksum.
//!
//! If the machine dies while a slot is being written, the other slot is still valid, only older. A
//! slot is `"WBJRNLS3" · XXH3 of the body u64 · length of the body u64 · body`, and the body is a
//! list of u64: the slot's number, the start of the machine (XXH3 of its boot id), a list of
//! tables, how many journals, and for each journal its number, the number of its last batch plus
//! one, and a list of tables. A list of tables is how many they are, and for each table its number
//! and that of its manifest. Numbers are little-endian.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::{boot_id, sync_dir};

/// The name of the file, below the store's directory.
const FILE: &str = "synced";
const MAGIC: &[u8; 8] = b"WBJRNLS3";
/// A slot begins on its own block, so that a torn write harms one slot alone.
const SLOT_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = MAGIC.len() + 8 + 8;
/// With eight tables each, this many journals fill about half of a slot.
const JOURNALS_MAX: usize = 200;

/// The known state of one journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KnownJournal {
    pub(crate) number: u64,
    /// The number of the last batch in it that is known to be synced; `None` if none is.
    pub(crate) last: Option<u64>,
    /// The tables whose entries may be in this journal alone.
    pub(crate) unflushed: Vec<KnownTable>,
}

/// A table, and its manifest at that time. A flush of its entries in memory raises the manifest's
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownTable {
    pub(crate) table: u64,
    pub(crate) manifest: u64,
}

/// The content of a slot.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Record {
    /// The number of the slot.
    pub(crate) number: u64,
    /// The start of the machine in which it was written; 0 if that is unknown.
    pub(crate) boot: u64,
    /// The tables that the program writes to, without the registry. A start without the directory
    /// of one is refused.
    pub(crate) tables: Vec<KnownTable>,
    /// In the order of their numbers. Batches are appended to the last one.
    pub(crate) journals: Vec<KnownJournal>,
}

/// The state of the file in a store's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    Missing,
    Unreadable,
    Found(Record),
}

impl Stored {
    /// The tables that the store had.
    pub(crate) fn tables(&self) -> &[KnownTable] {
        match self {
            Self::Found(record) => &record.tables,
            Self::Missing | Self::Unreadable => &[],
        }
    }

    /// Whether the power may have failed, and what follows the batch `last` of a journal was not
    /// synced as far as is known.
    pub(crate) fn is_unsynced(&self, journal: u64, last: Option<u64>) -> bool {
        let Self::Found(record) = self else {
            return false;
        };
        let known = record.journals.iter().find(|known| known.number == journal);
        let boots = (record.boot, boot());
        let has_rebooted = boots.0 != boots.1 && boots.0 != 0 && boots.1 != 0;
        has_rebooted && known.is_none_or(|known| known.last <= last)
    }
}

/// The present start of the machine; 0 if it is unknown.
pub(crate) fn boot() -> u64 {
    boot_id().map_or(0, |id| xxh3_64(id.as_bytes()))
}

pub(crate) fn path(store: &Path) -> PathBuf {
    store.join(FILE)
}

/// Reads the newest slot.
pub(crate) fn load(store: &Path) -> Stored {
    let bytes = match fs::read(path(store)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Stored::Missing,
        Err(_) => return Stored::Unreadable,
    };
    let slots = bytes.chunks(SLOT_BYTES).filter_map(Record::decode);
    let newest = slots.max_by_key(|record| record.number);
    newest.map_or(Stored::Unreadable, Stored::Found)
}

/// Makes the file with both slots, durably.
pub(crate) fn create(store: &Path, record: &mut Record) -> io::Result<File> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path(store))?;
    record.write(&file)?;
    record.write(&file)?;
    file.sync_all()?;
    sync_dir(store)?;
    Ok(file)
}

impl Record {
    /// Writes over the older slot. Not synced.
    pub(crate) fn write(&mut self, file: &File) -> io::Result<()> {
        self.number += 1;
        let slot = self.number % 2 * SLOT_BYTES as u64;
        file.write_all_at(&self.encode(), slot)
    }

    fn encode(&self) -> Vec<u8> {
        // The record leaves out the oldest journals beyond the bound.
        let from = self.journals.len().saturating_sub(JOURNALS_MAX);
        let journals = &self.journals[from..];
        let mut bytes = vec![0; HEADER_BYTES];
        put(&mut bytes, self.number);
        put(&mut bytes, self.boot);
        put_tables(&mut bytes, &self.tables);
        put(&mut bytes, journals.len() as u64);
        for journal in journals {
            put(&mut bytes, journal.number);
            put(&mut bytes, journal.last.map_or(0, |last| last + 1));
            put_tables(&mut bytes, &journal.unflushed);
        }
        let body = &bytes[HEADER_BYTES..];
        let (sum, length) = (xxh3_64(body), body.len() as u64);
        let (magic, rest) = bytes.split_at_mut(MAGIC.len());
        magic.copy_from_slice(MAGIC);
        rest[..8].copy_from_slice(&sum.to_le_bytes());
        rest[8..16].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn decode(slot: &[u8]) -> Option<Self> {
        let (sum, rest) = slot.strip_prefix(MAGIC)?.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let body = rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let mut rest = body;
        let (number, boot) = (take(&mut rest)?, take(&mut rest)?);
        let tables = take_tables(&mut rest)?;
        let mut journals = Vec::new();
        for _ in 0..take(&mut rest)? {
            journals.push(KnownJournal {
                number: take(&mut rest)?,
                last: take(&mut rest)?.checked_sub(1),
                unflushed: take_tables(&mut rest)?,
            });
        }
        Some(Self {
            number,
            boot,
            tables,
            journals,
        })
    }
}

fn put(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn put_tables(bytes: &mut Vec<u8>, tables: &[KnownTable]) {
    put(bytes, tables.len() as u64);
    for KnownTable { table, manifest } in tables {
        put(bytes, *table);
        put(bytes, *manifest);
    }
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let number;
    (number, *bytes) = bytes.split_first_chunk()?;
    Some(u64::from_le_bytes(*number))
}

fn take_tables(bytes: &mut &[u8]) -> Option<Vec<KnownTable>> {
    let mut tables = Vec::new();
    for _ in 0..take(bytes)? {
        let (table, manifest) = (take(bytes)?, take(bytes)?);
        tables.push(KnownTable { table, manifest });
    }
    Some(tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(last: u64) -> Vec<KnownJournal> {
        let unflushed = vec![KnownTable {
            table: 3,
            manifest: 0,
        }];
        let sealed = KnownJournal {
            number: 0,
            last: None,
            unflushed: vec![],
        };
        let active = KnownJournal {
            number: 1,
            last: Some(last),
            unflushed,
        };
        vec![sealed, active]
    }

    #[test]
    fn a_torn_slot_leaves_the_older_record() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()), Stored::Missing);
        fs::create_dir(path(dir.path())).unwrap();
        assert_eq!(
            load(dir.path()),
            Stored::Unreadable,
            "the system does not read it"
        );
        fs::remove_dir(path(dir.path())).unwrap();
        let tables = vec![KnownTable {
            table: 1,
            manifest: 4,
        }];
        let mut newest = Record {
            tables: tables.clone(),
            ..Record::default()
        };
        let file = create(dir.path(), &mut newest).unwrap();
        for last in [0, 10, 20] {
            newest.journals = record(last);
            newest.write(&file).unwrap();
        }
        let path = path(dir.path());
        let whole = fs::read(&path).unwrap();
        assert_eq!(load(dir.path()), Stored::Found(newest.clone()));
        let older = Record {
            boot: 0,
            number: newest.number - 1,
            tables,
            journals: record(10),
        };
        let slot = usize::try_from(newest.number % 2).unwrap() * SLOT_BYTES;
        let length = newest.encode().len();
        for at in slot..slot + length {
            let mut torn = whole.clone();
            torn[at] ^= 1;
            fs::write(&path, &torn).unwrap();
            let found = load(dir.path());
            assert_eq!(found, Stored::Found(older.clone()), "byte {at}");
        }
        fs::write(&path, b"").unwrap();
        assert_eq!(load(dir.path()), Stored::Unreadable);
    }

    #[test]
    fn all_kept_journals_fit_into_a_slot() {
        let tables = (0..10).map(|table| KnownTable { table, manifest: 1 });
        let journal = |number| KnownJournal {
            number,
            last: Some(number),
            unflushed: tables.clone().collect(),
        };
        let record = Record {
            boot: 0,
            number: 1,
            tables: tables.clone().collect(),
            journals: (0..1_000).map(journal).collect(),
        };
        let bytes = record.encode();
        assert!(bytes.len() <= SLOT_BYTES, "{}", bytes.len());
        let kept = Record::decode(&bytes).unwrap().journals;
        assert_eq!(kept, record.journals[1_000 - JOURNALS_MAX..]);
    }

    #[test]
    fn only_after_a_reboot_and_behind_the_known_end_is_a_journal_unsynced() {
        let of_boot = |boot| {
            Stored::Found(Record {
                number: 1,
                boot,
                tables: vec![],
                journals: record(7),
            })
        };
        let other = of_boot(boot().wrapping_add(1).max(1));
        assert!(other.is_unsynced(1, Some(7)));
        assert!(!other.is_unsynced(1, Some(6)));
        assert!(!other.is_unsynced(1, None));
        assert!(other.is_unsynced(0, None));
        assert!(other.is_unsynced(2, None));
        for same in [
            of_boot(boot()),
            of_boot(0),
            Stored::Missing,
            Stored::Unreadable,
        ] {
            assert!(!same.is_unsynced(1, Some(7)), "{same:?}");
        }
    }
}
