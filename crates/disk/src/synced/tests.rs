use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use fjall::KeyspaceCreateOptions;

use super::*;
use crate::{Depth, prepare};

/// How long a test waits for a flush.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
/// Journals are rotated at 64 MB.
const JOURNAL: usize = 64 * MIB;

/// A store of two tables.
struct Store {
    db: Database,
    tables: [Keyspace; 2],
    synced: Synced,
}

impl Store {
    fn open(dir: &Path) -> Result<Self, CheckError> {
        let prepared = prepare(dir, Depth::Opening)?;
        let db = Database::builder(dir).worker_threads(1).open().unwrap();
        let options = || KeyspaceCreateOptions::default().max_memtable_size(u64::MAX);
        let tables = ["one", "two"].map(|name| db.keyspace(name, options).unwrap());
        let synced = Synced::begin(prepared, &tables).unwrap();
        Ok(Self { db, tables, synced })
    }

    fn batch(&self, key: u64, bytes: usize, tables: &[usize]) -> OwnedWriteBatch {
        let mut batch = self.db.batch();
        // It does not compress.
        let mut random = key + 1;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.to_be_bytes()
        };
        let value: Vec<u8> = (0..bytes / 8).flat_map(|_| next()).collect();
        for &table in tables {
            batch.insert(&self.tables[table], key.to_be_bytes(), &value[..]);
        }
        batch
    }

    fn commit(&self, key: u64) {
        let batch = self.batch(key, 100, &[0, 1]);
        let committed = self.synced.commit_synced(batch, PersistMode::SyncData);
        committed.unwrap();
    }

    /// Fills the journal, so that the next flush rotates it.
    fn fill_journal(&self, table: usize) {
        for key in 0..JOURNAL / MIB {
            let batch = self.batch(1_000_000 + key as u64, MIB, &[table]);
            self.synced.commit(|| batch.commit()).unwrap();
        }
    }

    fn flush(&self, table: usize) {
        self.tables[table].rotate_memtable_and_wait().unwrap();
    }

    fn has(&self, key: u64) -> bool {
        let has = |table: &Keyspace| table.get(key.to_be_bytes()).unwrap().is_some();
        self.tables.iter().all(has)
    }
}

/// A temporary directory, in memory if the system has such a file system.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Every file of a directory, with its content.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    found
}

/// The refusal of a store names the journal, and changes no file.
fn assert_refused(dir: &Path, journal: u64, case: &str) {
    let before = files(dir);
    let Err(CheckError::Damaged(damaged)) = prepare(dir, Depth::Opening).map(drop) else {
        panic!("{case}: it is not refused");
    };
    assert_eq!(damaged.file, journal::path(dir, journal), "{case}");
    let text = damaged.to_string();
    for part in ["were synced", "waybill restore", "rm '", "/synced'"] {
        assert!(text.contains(part), "{case}: {part:?} is not in {text:?}");
    }
    assert_eq!(files(dir), before, "{case}");
}

fn last_of(dir: &Path, number: u64) -> Journal {
    let journals = journal::check(dir, |_, _| false).unwrap();
    let mut journals = journals.into_iter();
    journals.find(|found| found.number == number).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (path, bytes) in files(from) {
        let to = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
}

#[test]
fn a_journal_that_lost_synced_batches_refuses_the_start() {
    let dir = temporary();
    let store = Store::open(dir.path()).unwrap();
    let journal = journal::path(dir.path(), 0);
    let mut ends = vec![0];
    for key in 0..20 {
        store.commit(key);
        ends.push(last_of(dir.path(), 0).bytes);
    }
    drop(store);
    let end = ends.pop().unwrap();
    let whole = fs::read(&journal).unwrap();
    let whole = &whole[..usize::try_from(end).unwrap()];
    fs::write(&journal, whole).unwrap();
    prepare(dir.path(), Depth::Opening).unwrap();

    fs::remove_file(&journal).unwrap();
    assert_refused(dir.path(), 0, "deleted");
    // An older copy ends between two batches.
    for at in (0..end).step_by(97).chain(ends) {
        let at = usize::try_from(at).unwrap();
        fs::write(&journal, &whole[..at]).unwrap();
        assert_refused(dir.path(), 0, &format!("cut at {at}"));
        let mut zeroed = whole.to_vec();
        zeroed[at..].fill(0);
        fs::write(&journal, zeroed).unwrap();
        assert_refused(dir.path(), 0, &format!("zeroed from {at}"));
    }
    // The refusal names this way to open the store.
    fs::write(&journal, &whole[..whole.len() / 2]).unwrap();
    fs::remove_file(record::path(dir.path())).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert!(store.has(0) && !store.has(19));
}

#[test]
fn a_start_succeeds_after_any_power_loss() {
    let dir = temporary();
    let store = Store::open(dir.path()).unwrap();
    let mut records = vec![fs::read(record::path(dir.path())).unwrap()];
    for key in 0..5 {
        store.commit(key);
        records.push(fs::read(record::path(dir.path())).unwrap());
    }
    let synced = last_of(dir.path(), 0).bytes;
    for key in 5..8 {
        let batch = store.batch(key, 100, &[0]);
        store.synced.commit(|| batch.commit()).unwrap();
    }
    let written = last_of(dir.path(), 0).bytes;
    drop(store);
    let journal = journal::path(dir.path(), 0);
    let whole = fs::read(&journal).unwrap();
    for end in synced..=written {
        fs::write(&journal, &whole[..usize::try_from(end).unwrap()]).unwrap();
        for record in &records {
            fs::write(record::path(dir.path()), record).unwrap();
            prepare(dir.path(), Depth::Opening).unwrap();
        }
    }
    for record in [None, Some(&b""[..]), Some(b"nonsense")] {
        fs::remove_file(record::path(dir.path())).unwrap();
        if let Some(bytes) = record {
            fs::write(record::path(dir.path()), bytes).unwrap();
        }
        drop(Store::open(dir.path()).unwrap());
        fs::write(&journal, b"").unwrap();
        assert_refused(dir.path(), 0, "the record was made again");
        fs::write(&journal, &whole[..usize::try_from(written).unwrap()]).unwrap();
    }
}

#[test]
fn a_sealed_journal_may_be_missing_once_all_of_it_is_in_tables() {
    let dir = temporary();
    let store = Store::open(dir.path()).unwrap();
    store.commit(1);
    store.fill_journal(0);
    store.synced.sync(&store.db).unwrap();
    let before_rotation = fs::read(record::path(dir.path())).unwrap();
    store.flush(0);
    assert!(journal::path(dir.path(), 1).exists());
    assert!(journal::path(dir.path(), 0).exists(), "table two is in it");
    store.commit(2);
    let last = last_of(dir.path(), 0).last;
    assert!(last_of(dir.path(), 1).last > last);
    let with_both = temporary();
    copy(dir.path(), with_both.path());
    let noted = |store: &Store| store.synced.state().record.journals.clone();
    assert_eq!(noted(&store)[0].last, last);

    store.flush(1);
    // Journals are deleted after a flush.
    let began = std::time::Instant::now();
    while journal::path(dir.path(), 0).exists() {
        assert!(began.elapsed() < PATIENCE, "the journal is deleted");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Killed here, whatever is left of the record.
    let newest = fs::read(record::path(dir.path())).unwrap();
    for record in [&before_rotation, &newest] {
        let killed = temporary();
        copy(dir.path(), killed.path());
        fs::write(record::path(killed.path()), record).unwrap();
        let opened = Store::open(killed.path()).unwrap();
        assert!(opened.has(1) && opened.has(2));
    }
    store.commit(3);
    assert_eq!(noted(&store).len(), 1);
    drop(store);
    assert!(Store::open(dir.path()).unwrap().has(3));

    // Until the second table is flushed, each journal is needed.
    for record in [&before_rotation, &newest] {
        fs::write(record::path(with_both.path()), record).unwrap();
        let sealed = journal::path(with_both.path(), 0);
        let aside = with_both.path().join("aside");
        fs::rename(&sealed, &aside).unwrap();
        assert_refused(with_both.path(), 0, "the sealed journal is deleted");
        fs::rename(&aside, &sealed).unwrap();
    }
    let active = journal::path(with_both.path(), 1);
    fs::write(&active, b"").unwrap();
    assert_refused(with_both.path(), 1, "the active journal is cut");
    fs::remove_file(&active).unwrap();
    assert_refused(with_both.path(), 1, "the active journal is deleted");
}

/// The process that `a_store_that_is_killed_at_any_moment_opens_again` kills. It prints each key
/// once it is synced.
#[test]
#[ignore = "started by another test"]
fn writer() {
    let Some(dir) = std::env::var_os("STORE") else {
        return;
    };
    let store = Store::open(Path::new(&dir)).unwrap();
    let first = store.tables[0].last_key_value();
    let first = first.map_or(0, |last| {
        u64::from_be_bytes((*last.key().unwrap()).try_into().unwrap()) + 1
    });
    for key in first.. {
        let (bytes, tables): (_, &[usize]) = match key % 4 {
            0 => (100, &[0, 1]),
            1 => (MIB, &[0]),
            2 => (1_000, &[1]),
            _ => (MIB / 2, &[0, 1]),
        };
        let batch = store.batch(key, bytes, tables);
        match key % 3 {
            0 => store.synced.commit(|| batch.commit()).unwrap(),
            _ => {
                let committed = store.synced.commit_synced(batch, PersistMode::SyncData);
                committed.unwrap();
                println!("synced {key}");
            }
        }
        for table in &store.tables {
            if table.tree.active_memtable().size() > 8 * MIB as u64
                && table.sealed_memtable_count() < 3
            {
                table.rotate_memtable().unwrap();
            }
        }
    }
}

#[test]
fn a_store_that_is_killed_at_any_moment_opens_again() {
    let dir = temporary();
    let store = dir.path().join("store");
    let (mut synced, mut rotated) = (None, 0);
    for round in 0..12_u64 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args([
                "synced::tests::writer",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env("STORE", &store)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(writer.stdout.take().unwrap()).lines();
        // Some hundred keys fill a journal.
        let mut left = round * 37 % 150;
        while left > 0 {
            let line = output.next().unwrap().unwrap();
            left -= u64::from(line.contains("synced "));
            synced = line.split("synced ").nth(1).map(str::to_owned).or(synced);
        }
        std::thread::sleep(Duration::from_millis(round * 7 % 20));
        writer.kill().unwrap();
        writer.wait().unwrap();
        for line in output {
            let line = line.unwrap();
            synced = line.split("synced ").nth(1).map(str::to_owned).or(synced);
        }
        let opened = Store::open(&store).unwrap_or_else(|error| panic!("round {round}: {error}"));
        rotated = journal::numbers(&store).unwrap().pop().unwrap();
        if let Some(key) = &synced {
            let key: u64 = key.trim().parse().unwrap();
            let table = usize::from(key % 4 == 2);
            let found = opened.tables[table].get(key.to_be_bytes()).unwrap();
            assert!(found.is_some(), "round {round}: {key}");
        }
    }
    assert!(synced.is_some());
    assert!(rotated > 0, "journals are rotated");
}
