//! What a power cut leaves of a directory: takes back what a killed process had written there and
//! not synced. `unsynced.c` records that while the process runs.
//!
//! Everything that POSIX permits may happen: each sector that was not synced has its old or its new
//! content, a file has its old or its new length, and a directory has its present entries or those
//! of its last sync. A file whose directory was not synced may be gone, though it was synced
//! itself.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use waybill_test_support::setup::Dice;

/// The unit that is written as a whole.
const SECTOR: u64 = 512;
/// The size of a record without its bytes.
const HEAD_BYTES: usize = 29;

/// A directory whose unsynced changes are recorded.
pub struct UnsyncedDisk {
    library: PathBuf,
    root: PathBuf,
    log: PathBuf,
    hold: PathBuf,
    boot_id: PathBuf,
    boots: Cell<u32>,
}

/// What was taken back.
#[derive(Clone, Copy, Default, Debug)]
pub struct Lost {
    /// Sectors that have their old content again.
    pub sectors: u64,
    /// Files that have another length again.
    pub lengths: u64,
    /// Entries of directories that are gone again.
    pub entries: u64,
    /// Entries of directories that are back.
    pub restored: u64,
}

impl Lost {
    /// Adds what another power cut took back.
    pub fn add(&mut self, other: Self) {
        self.sectors += other.sectors;
        self.lengths += other.lengths;
        self.entries += other.entries;
        self.restored += other.restored;
    }
}

/// How much of what was not synced is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    All,
    Some,
    None,
}

impl Mode {
    fn of(dice: &mut Dice) -> Self {
        [Self::All, Self::Some, Self::Some, Self::None][dice.below(4) as usize]
    }
}

#[derive(Debug)]
struct Record {
    kind: u8,
    file: u64,
    a: u64,
    b: u64,
    bytes: Vec<u8>,
}

impl UnsyncedDisk {
    /// Compiles the library that records, in `dir`, for the directory `root`, which is made.
    pub fn new(dir: &Path, root: &Path) -> Self {
        fs::create_dir_all(root).expect("the directory is writable");
        let library = dir.join("unsynced.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power_cuts/unsynced.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .status();
        assert!(
            compiled.is_ok_and(|status| status.success()),
            "a C compiler translates the library"
        );
        Self {
            library,
            root: root.canonicalize().expect("it was made"),
            log: dir.join("unsynced.log"),
            hold: dir.join("unsynced.hold"),
            boot_id: dir.join("unsynced.boot"),
            boots: Cell::new(0),
        }
    }

    /// The environment of the processes.
    pub fn env(&self) -> Vec<(String, String)> {
        [
            ("LD_PRELOAD", &self.library),
            ("UNSYNCED_ROOT", &self.root),
            ("UNSYNCED_LOG", &self.log),
            ("UNSYNCED_HOLD", &self.hold),
            ("UNSYNCED_BOOT", &self.boot_id),
        ]
        .map(|(name, path)| (name.to_owned(), path.display().to_string()))
        .into()
    }

    /// The machine starts: everything in the directory counts as synced.
    pub fn boot(&self) {
        self.boots.set(self.boots.get() + 1);
        fs::write(&self.boot_id, self.boots.get().to_string()).expect("the directory is writable");
        let _ = fs::remove_dir_all(&self.hold);
        fs::create_dir(&self.hold).expect("the directory is writable");
    }

    /// Takes back what the process, which was killed, had not synced, as `dice` decide.
    pub fn cut(&self, dice: &mut Dice) -> Lost {
        let records = records(&fs::read(&self.log).expect("the process has recorded"));
        let mut lost = Lost::default();
        self.cut_files(&records, dice, &mut lost);
        self.cut_directories(&records, dice, &mut lost);
        lost
    }

    fn cut_files(&self, records: &[Record], dice: &mut Dice, lost: &mut Lost) {
        let mut synced = HashMap::new();
        for record in records.iter().filter(|record| record.kind == b'S') {
            synced.insert(record.file, record.a);
        }
        let mut unsynced = BTreeMap::<u64, Vec<&Record>>::new();
        for (at, record) in (0..).zip(records) {
            let is_change = matches!(record.kind, b'N' | b'T' | b'W');
            if is_change && synced.get(&record.file).is_none_or(|&end| at >= end) {
                unsynced.entry(record.file).or_default().push(record);
            }
        }
        let mut paths = HashMap::new();
        for dir in [&self.hold, &self.root] {
            files_below(dir, &mut paths);
        }
        for (file, changes) in unsynced {
            let mode = Mode::of(dice);
            if let Some(path) = paths.get(&file)
                && mode != Mode::None
            {
                take_back(path, &changes, mode, dice, lost);
            }
        }
    }

    fn cut_directories(&self, records: &[Record], dice: &mut Dice, lost: &mut Lost) {
        let mut synced = HashMap::new();
        for record in records.iter().filter(|record| record.kind == b'D') {
            let (path, entries) = listing(&record.bytes);
            synced.insert(path, entries);
        }
        let mut left = vec![PathBuf::new()];
        while let Some(below) = left.pop() {
            let path = self.root.join(&below);
            let none = BTreeMap::new();
            let entries = synced.get(&below).unwrap_or(&none);
            if dice.below(2) == 0 {
                self.restore(&path, entries, lost);
            }
            for entry in fs::read_dir(&path).expect("it is a directory").flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    left.push(below.join(entry.file_name()));
                }
            }
        }
    }

    /// Gives a directory the entries of its last sync.
    fn restore(&self, path: &Path, entries: &BTreeMap<String, (bool, u64)>, lost: &mut Lost) {
        for entry in fs::read_dir(path).expect("it is a directory").flatten() {
            let kind = entry.file_type().expect("it has a kind");
            let name = entry.file_name().into_string().expect("names are text");
            let known = entries.get(&name);
            let is_same = known.is_some_and(|&(is_dir, file)| {
                is_dir == kind.is_dir() && (is_dir || file == id_of(&entry))
            });
            if kind.is_symlink() || is_same {
                continue;
            }
            match kind.is_dir() {
                true => fs::remove_dir_all(entry.path()),
                false => fs::remove_file(entry.path()),
            }
            .expect("it can be removed");
            lost.entries += 1;
        }
        for (name, (is_dir, file)) in entries {
            let there = path.join(name);
            if there.exists() {
                continue;
            }
            match is_dir {
                // What it had is not known any more, unless it was synced as well.
                true => fs::create_dir(&there).expect("the directory is writable"),
                false => fs::hard_link(self.hold.join(file.to_string()), &there)
                    .expect("files of synced directories are held"),
            }
            lost.restored += 1;
        }
    }
}

/// What identifies a file, as in `unsynced.c`: inodes are used again.
fn id_of(entry: &fs::DirEntry) -> u64 {
    let metadata = entry.metadata().expect("it exists");
    let created = metadata.created().expect("the file system knows it");
    let created = created.duration_since(UNIX_EPOCH).expect("it is later");
    let created = u64::try_from(created.as_nanos()).expect("it is before 2500");
    metadata.ino().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ created
}

/// The files below a directory, by what identifies them.
fn files_below(dir: &Path, paths: &mut HashMap<u64, PathBuf>) {
    for entry in fs::read_dir(dir).expect("it is a directory").flatten() {
        let kind = entry.file_type().expect("it has a kind");
        if kind.is_dir() {
            files_below(&entry.path(), paths);
        } else if kind.is_file() {
            paths.insert(id_of(&entry), entry.path());
        }
    }
}

/// Takes back changes of one file: all, or those of some sectors.
fn take_back(path: &Path, changes: &[&Record], mode: Mode, dice: &mut Dice, lost: &mut Lost) {
    let file = File::options().read(true).write(true).open(path);
    let file = file.expect("it can be written");
    let length_of = |file: &File| file.metadata().expect("it is open").len();
    let new_length = length_of(&file);
    let mut new = BTreeMap::new();
    for change in changes.iter().filter(|change| change.kind == b'N') {
        for sector in change.a / SECTOR..(change.a + change.b).div_ceil(SECTOR) {
            new.entry(sector)
                .or_insert_with(|| read_sector(&file, sector));
        }
    }
    for change in changes.iter().rev() {
        match change.kind {
            b'W' => file.write_all_at(&change.bytes, change.a),
            b'T' => file.set_len(change.b),
            _ => {
                let before = change.bytes.first_chunk().expect("a length has 8 bytes");
                let before = u64::from_ne_bytes(*before);
                match length_of(&file) > before {
                    true => file.set_len(before),
                    false => Ok(()),
                }
            }
        }
        .expect("it can be written");
    }
    let old_length = length_of(&file);
    let keeps_length = mode == Mode::Some && dice.below(2) == 0;
    let length = if keeps_length { new_length } else { old_length };
    lost.lengths += u64::from(length != new_length);
    file.set_len(length).expect("it can be written");
    for (sector, content) in new {
        if mode == Mode::All || dice.below(2) == 0 {
            lost.sectors += 1;
            continue;
        }
        let at = sector * SECTOR;
        let end = (at + content.len() as u64).min(length);
        if at < end {
            let kept = &content[..(end - at) as usize];
            file.write_all_at(kept, at).expect("it can be written");
        }
    }
}

fn read_sector(file: &File, sector: u64) -> Vec<u8> {
    let mut content = vec![0; SECTOR as usize];
    let mut length = 0;
    while length < content.len() {
        let at = sector * SECTOR + length as u64;
        match file.read_at(&mut content[length..], at) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) => panic!("a sector cannot be read: {error}"),
        }
    }
    content.truncate(length);
    content
}

/// The records of a log. The last one may be incomplete: its change was not made.
fn records(mut log: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some((head, rest)) = log.split_first_chunk::<HEAD_BYTES>() {
        let number = |at: usize| {
            let bytes = head[at..at + 8].first_chunk().expect("a head has them");
            u64::from_ne_bytes(*bytes)
        };
        let length = u32::from_ne_bytes(*head[25..].first_chunk().expect("a head has it"));
        let Some((bytes, rest)) = rest.split_at_checked(length as usize) else {
            break;
        };
        records.push(Record {
            kind: head[0],
            file: number(1),
            a: number(9),
            b: number(17),
            bytes: bytes.to_vec(),
        });
        log = rest;
    }
    records
}

/// The path of a directory, and of each entry whether it is a directory, and which file it is.
fn listing(bytes: &[u8]) -> (PathBuf, BTreeMap<String, (bool, u64)>) {
    let mut texts = bytes
        .split(|&byte| byte == 0)
        .map(|text| String::from_utf8_lossy(text).into_owned());
    let path = PathBuf::from(texts.next().unwrap_or_default());
    let mut entries = BTreeMap::new();
    while let (Some(name), Some(kind), Some(file)) = (texts.next(), texts.next(), texts.next()) {
        let file = file.parse().expect("a file is a number");
        entries.insert(name, (kind == "d", file));
    }
    (path, entries)
}
