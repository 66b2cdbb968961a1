//! Every file of a store's directory, damaged in every way that is likely: no row is lost silently.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fjall::AbstractTree as _;
use waybill_engine::{OperationId, PartitionId, Timestamp};
use waybill_store::{
    DueBucket, DueEntry, EmbeddedConfig, EmbeddedStore, Lease, LeaseKey, Store, StoreError,
    WriteBatch,
};

use super::contract::{fresh_id, row, rows, write};

const INDEX_SHARD: PartitionId = PartitionId(0);
/// How many rows have a newer state in the journal.
const IN_JOURNAL: usize = 20;

/// A store that was flushed and compacted, has copies of its small files, and entries that are in
/// its journal alone.
struct Sample {
    dir: tempfile::TempDir,
    ids: Vec<OperationId>,
    due: Vec<DueEntry>,
    lease: Lease,
}

/// The outcome of opening a store with a damaged file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    /// It has all entries.
    Whole,
    /// It names what cannot be read, and has all else.
    DamageNamed,
    /// It is not opened, and the file is named.
    Refused,
}

impl Sample {
    async fn new(rows_count: usize) -> Self {
        let dir = temporary();
        let ids: Vec<_> = (0..rows_count).map(|_| fresh_id()).collect();
        let due: Vec<_> = (0..)
            .zip(&ids)
            .map(|(at, &operation)| DueEntry {
                due: Timestamp(at),
                operation,
            })
            .collect();
        let lease = Lease::new(LeaseKey::supervisor(INDEX_SHARD), INDEX_SHARD);
        let store = open(dir.path()).unwrap();
        assert!(store.take_lease(None, lease.clone()).await.unwrap());
        for stamp in 1..=2 {
            for (ids, due) in ids.chunks(100).zip(due.chunks(100)) {
                let batch = WriteBatch {
                    due: due.iter().map(|&entry| (INDEX_SHARD, entry)).collect(),
                    ..rows(ids.iter().map(|&id| write(id, stamp, stamp == 1)))
                };
                store.write(batch).await.unwrap();
            }
        }
        drop(store);
        write_out(dir.path());
        let store = open(dir.path()).unwrap();
        let newer = ids[..IN_JOURNAL].iter().map(|&id| write(id, 3, false));
        store.write(rows(newer)).await.unwrap();
        drop(store);
        // Cuts off the room that the journal was made with.
        drop(open(dir.path()).unwrap());
        Self {
            dir,
            ids,
            due,
            lease,
        }
    }

    /// The files, relative to the directory.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut left = vec![self.dir.path().to_owned()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => left.push(path),
                    false => found.push(path.strip_prefix(self.dir.path()).unwrap().to_owned()),
                }
            }
        }
        // Journals are damaged in another way, and nothing is in the lock.
        found.retain(|path| path.extension().is_none_or(|of| of != "jnl") && path != "lock");
        // One table of each kind: the registry, leases, states, the deadline index.
        let is_other = |path: &PathBuf| {
            let number = path.iter().nth(1).and_then(|number| number.to_str());
            number.is_some_and(|number| !["0", "1", "2", "5"].contains(&number))
        };
        found.retain(|path| !is_other(path));
        found.sort();
        found
    }

    /// A copy of the directory in which one file is changed.
    fn damaged(&self, file: &Path, has_copies: bool, change: &Change) -> tempfile::TempDir {
        let dir = temporary();
        copy_dir(self.dir.path(), dir.path());
        let path = dir.path().join(file);
        let bytes = change.apply(fs::read(&path).unwrap());
        fs::write(&path, bytes).unwrap();
        if !has_copies {
            fs::remove_dir_all(dir.path().join("copies")).unwrap();
        }
        dir
    }

    /// Opens a store and compares its content with everything that was written.
    async fn outcome(&self, dir: &Path, file: &Path) -> Outcome {
        let opened = catch_unwind(AssertUnwindSafe(|| open(dir)));
        let opened = opened.unwrap_or_else(|_| panic!("opening panics: {}", file.display()));
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                let text = error.to_string();
                let path = dir.join(file);
                assert!(matches!(error, StoreError::Damaged(_)), "{error:?}");
                for part in [path.to_str().unwrap(), "waybill restore"] {
                    assert!(text.contains(part), "{part:?} is not in {text:?}");
                }
                return Outcome::Refused;
            }
        };
        let read = store.get_many(self.ids.clone()).await.unwrap();
        for (at, (&id, read)) in self.ids.iter().zip(read).enumerate() {
            let stamp = if at < IN_JOURNAL { 3 } else { 2 };
            if let Ok(read) = read {
                assert_eq!(read, Some(row(id, stamp, 1)), "{}", file.display());
            }
        }
        if let Ok(lease) = store.lease(self.lease.key).await {
            assert_eq!(lease, Some(self.lease.clone()), "{}", file.display());
        }
        let bucket = DueBucket::of(Timestamp(0));
        let due = store
            .due(INDEX_SHARD, bucket, None, usize::MAX)
            .await
            .unwrap();
        match store.damage().is_empty() {
            true => {
                assert_eq!(due, self.due, "{}", file.display());
                Outcome::Whole
            }
            false => Outcome::DamageNamed,
        }
    }
}

/// A directory in memory if the system has one: hundreds of stores are opened, each with many
/// syncs.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn open(path: &Path) -> Result<EmbeddedStore, StoreError> {
    let mut config = EmbeddedConfig::new(path);
    config.memtable_bytes = 64 << 10;
    EmbeddedStore::open(config)
}

/// Writes every table out to files, and compacts one.
fn write_out(path: &Path) {
    let db = fjall::Database::builder(path).open().unwrap();
    for name in db.list_keyspace_names() {
        let table = db
            .keyspace(&name, fjall::KeyspaceCreateOptions::default)
            .unwrap();
        table.rotate_memtable_and_wait().unwrap();
        if ["state", "due"].contains(&&*name) {
            table.tree.major_compact(u64::MAX, 0).unwrap();
        }
    }
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy_dir(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// How a file is damaged.
#[derive(Debug)]
enum Change {
    Bit { byte: usize, bit: u8 },
    Cut { len: usize },
}

impl Change {
    /// The changes of a file: both cuts, and single bits, more densely at its end.
    fn all(len: usize) -> Vec<Self> {
        let mut bytes = vec![0, 3, 12, len / 3, len / 2];
        bytes.extend((0..6).map(|part| len.saturating_sub(9 + part * 50)));
        bytes.retain(|&byte| byte < len);
        bytes.sort_unstable();
        bytes.dedup();
        let bits = bytes.into_iter().zip([0, 5, 7, 2].into_iter().cycle());
        let bits = bits.map(|(byte, bit)| Self::Bit { byte, bit });
        let cuts = [0, len / 2].map(|len| Self::Cut { len });
        bits.chain(cuts).collect()
    }

    fn apply(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        match *self {
            Self::Bit { byte, bit } => bytes[byte] ^= 1 << bit,
            Self::Cut { len } => bytes.truncate(len),
        }
        bytes
    }
}

/// The kind of a file.
fn kind(file: &Path) -> &'static str {
    let name = file.file_name().unwrap().to_str().unwrap();
    let is_registry = file.starts_with("keyspaces/0");
    match name {
        _ if file.starts_with("copies") => "copy",
        "version" => "format",
        "synced" => "record of the journals",
        "current" => "current",
        name if name.starts_with('v') => "manifest",
        _ if is_registry => "table of the registry",
        _ => "table",
    }
}

async fn outcomes(
    sample: &Sample,
    has_copies: bool,
) -> BTreeMap<&'static str, BTreeMap<Outcome, usize>> {
    let mut found: BTreeMap<_, BTreeMap<_, usize>> = BTreeMap::new();
    for file in sample.files() {
        if file.starts_with("copies") && !has_copies {
            continue;
        }
        let len = sample.dir.path().join(&file).metadata().unwrap().len();
        let mut changes = Change::all(usize::try_from(len).unwrap());
        if file.starts_with("copies") {
            changes.drain(..changes.len() - 2);
        }
        for change in changes {
            let dir = sample.damaged(&file, has_copies, &change);
            let outcome = sample.outcome(dir.path(), &file).await;
            let of_kind = found.entry(kind(&file)).or_default();
            *of_kind.entry(outcome).or_default() += 1;
        }
    }
    found
}

#[tokio::test]
async fn a_damaged_file_is_restored_from_its_copy() {
    let sample = Sample::new(1_200).await;
    let found = outcomes(&sample, true).await;
    for (kind, outcomes) in &found {
        assert!(
            outcomes.keys().eq([&Outcome::Whole]),
            "{kind}: {outcomes:?}"
        );
    }
    assert_eq!(found.len(), 7, "{found:?}");
}

#[tokio::test]
async fn a_damaged_file_without_a_copy_is_reported() {
    let sample = Sample::new(1_200).await;
    let found = outcomes(&sample, false).await;
    let of = |kind: &str| -> Vec<Outcome> { found[kind].keys().copied().collect() };
    assert_eq!(of("format"), [Outcome::Whole]);
    assert_eq!(of("record of the journals"), [Outcome::Whole]);
    // The checksum next to a number reveals that it no longer matches.
    assert_eq!(of("current"), [Outcome::Whole, Outcome::Refused]);
    assert_eq!(of("manifest"), [Outcome::Refused]);
    assert_eq!(of("table of the registry"), [Outcome::Refused]);
    assert_eq!(of("table"), [Outcome::DamageNamed, Outcome::Refused]);
}

/// Only the end of a large file is copied, which is needed to find its rows.
#[tokio::test]
async fn a_large_file_whose_end_is_damaged_is_restored_and_loses_no_more_than_its_damaged_rows() {
    let sample = Sample::new(12_000).await;
    let len = |file: &Path| sample.dir.path().join(file).metadata().unwrap().len();
    let files = sample.files().into_iter();
    let file = files
        .filter(|file| kind(file) == "table")
        .max_by_key(|file| len(file))
        .unwrap();
    let len = usize::try_from(len(&file)).unwrap();
    assert!(len > 300 << 10, "{len}");
    let bit = |byte| Change::Bit { byte, bit: 3 };
    // The trailer, the directory of sections, the metadata.
    let end = [10, 60, 500].map(|from_end| bit(len - from_end));
    for (changes, wanted) in [
        (&end[..], Outcome::Whole),
        (&[bit(len / 3)], Outcome::DamageNamed),
        (
            &[0, len / 2].map(|len| Change::Cut { len }),
            Outcome::DamageNamed,
        ),
    ] {
        for change in changes {
            let dir = sample.damaged(&file, true, change);
            let outcome = sample.outcome(dir.path(), &file).await;
            assert_eq!(outcome, wanted, "{change:?}");
        }
    }
    for change in &end {
        let dir = sample.damaged(&file, false, change);
        let outcome = sample.outcome(dir.path(), &file).await;
        assert_eq!(outcome, Outcome::Refused, "{change:?}");
    }
}

/// The large file with states of a sample, its length, and where what follows its data blocks
/// begins.
fn large_file(sample: &Sample) -> (PathBuf, usize, usize) {
    let len = |path: &Path| usize::try_from(path.metadata().unwrap().len()).unwrap();
    let in_sample = |file: &Path| len(&sample.dir.path().join(file));
    let files = sample.files();
    let states = files
        .iter()
        .filter(|file| file.starts_with("keyspaces/2/tables"));
    let file = states.max_by_key(|file| in_sample(file)).unwrap();
    // A copy has a checksum, the length of the file, and then all after the data blocks.
    let copies = files.iter().filter(|file| kind(file) == "copy");
    let number = format!("{}-", file.file_name().unwrap().to_str().unwrap());
    let table = file.iter().nth(1).unwrap();
    let copy = copies
        .filter(|copy| copy.iter().nth(1) == Some(table))
        .find(|copy| {
            copy.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(&number)
        })
        .unwrap();
    let len = in_sample(file);
    (file.clone(), len, len - (in_sample(copy) - 24))
}

/// Adds a large file to the states. It has entries that no operation has.
fn add_large_file(store: &Path) {
    let db = fjall::Database::builder(store).open().unwrap();
    let options = fjall::KeyspaceCreateOptions::default;
    let states = db.keyspace("state", options).unwrap();
    for _ in 0..20_000 {
        let [key, value] = [fresh_id(), fresh_id()].map(|id| id.0.into_bytes());
        states.insert(key, value).unwrap();
    }
    states.rotate_memtable_and_wait().unwrap();
}

fn flip(path: &Path, at: usize) {
    let change = Change::Bit { byte: at, bit: 3 };
    fs::write(path, change.apply(fs::read(path).unwrap())).unwrap();
}

#[tokio::test]
async fn a_large_file_with_a_damaged_filter_or_index_loses_no_readable_row() {
    const PLACES: usize = 25;
    let sample = Sample::new(12_000).await;
    let (file, len, end) = large_file(&sample);
    let (mut refused, mut rebuilt) = (0, 0);
    for place in 0..PLACES {
        let at = end + (len - end) * place / PLACES + 40;
        let change = Change::Bit { byte: at, bit: 3 };
        let dir = sample.damaged(&file, true, &change);
        let outcome = sample.outcome(dir.path(), &file).await;
        assert_eq!(outcome, Outcome::Whole, "byte {at} of {len}");

        // Without a copy, and with a damaged data block, which a rebuild leaves out.
        let dir = temporary();
        let path = dir.path().join("store");
        fs::create_dir(&path).unwrap();
        copy_dir(sample.dir.path(), &path);
        fs::remove_dir_all(path.join("copies")).unwrap();
        flip(&path.join(&file), at);
        flip(&path.join(&file), len / 3);
        File::create(path.join("rebuild")).unwrap();
        match open(&path) {
            Ok(store) => {
                let read = store.get_many(sample.ids.clone()).await.unwrap();
                let lost = read.iter().filter(|row| row.is_err()).count();
                assert!((1..400).contains(&lost), "byte {at}: {lost} rows are lost");
                assert!(read.iter().all(|row| *row != Ok(None)), "byte {at}");
                rebuilt += 1;
            }
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged(_)), "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(
        refused > 0 && rebuilt > 0,
        "{refused} refused, {rebuilt} rebuilt"
    );
}

#[tokio::test]
async fn a_walk_ends_although_an_index_is_damaged() {
    let sample = Sample::new(12_000).await;
    let (file, len, end) = large_file(&sample);
    let store = open(sample.dir.path()).unwrap();
    let path = sample.dir.path().join(&file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[end..len].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let read = store.rows().map(|row| row.unwrap()).filter(Result::is_ok);
    assert_eq!(read.count(), IN_JOURNAL, "those in another file");
    assert!(!store.damage().is_empty());
}

/// The process was killed just after a flush.
#[tokio::test]
async fn old_copies_restore_no_old_rows() {
    let sample = Sample::new(400).await;
    write_out(sample.dir.path());
    let found = outcomes(&sample, true).await;
    for kind in ["current", "manifest", "table"] {
        assert!(
            found[kind].contains_key(&Outcome::Refused),
            "{kind}: {found:?}"
        );
    }
    assert!(found["copy"].keys().eq([&Outcome::Whole]), "{found:?}");
}

/// All that it holds is in the journal.
#[tokio::test]
async fn an_unflushed_table_is_not_deleted() {
    let dir = temporary();
    let id = fresh_id();
    let store = open(dir.path()).unwrap();
    store.write(rows([write(id, 1, true)])).await.unwrap();
    drop(store);
    drop(open(dir.path()).unwrap());
    fs::remove_dir_all(dir.path().join("copies")).unwrap();
    for table in 0..=8 {
        let current = dir.path().join(format!("keyspaces/{table}/current"));
        let aside = dir.path().join("aside");
        fs::rename(&current, &aside).unwrap();
        let text = open(dir.path()).unwrap_err().to_string();
        assert!(text.contains(current.to_str().unwrap()), "{text}");
        fs::rename(&aside, &current).unwrap();
    }
    // A crash left it before it was registered.
    fs::create_dir_all(dir.path().join("keyspaces/9/tables")).unwrap();
    let store = open(dir.path()).unwrap();
    let read = store.get_many(vec![id]).await.unwrap();
    assert_eq!(read, [Ok(Some(row(id, 1, 1)))]);
}

/// The key-value store would open without it, and drop its entries in the journal.
#[tokio::test]
async fn a_store_without_the_directory_of_a_table_is_refused() {
    let sample = Sample::new(200).await;
    for table in 1..=8 {
        let dir = temporary();
        copy_dir(sample.dir.path(), dir.path());
        let file = PathBuf::from(format!("keyspaces/{table}"));
        let (path, aside) = (dir.path().join(&file), dir.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        let outcome = sample.outcome(dir.path(), &file).await;
        assert_eq!(outcome, Outcome::Refused, "{table}");
        fs::rename(&aside, &path).unwrap();
        let outcome = sample.outcome(dir.path(), &file).await;
        assert_eq!(outcome, Outcome::Whole, "{table}");
    }
}

#[tokio::test]
async fn another_file_of_the_table_in_the_place_of_a_large_one_refuses_the_start() {
    let sample = Sample::new(12_000).await;
    add_large_file(sample.dir.path());
    let mut large = sample.files();
    large.retain(|file| {
        let len = sample.dir.path().join(file).metadata().unwrap().len();
        file.starts_with("keyspaces/2/tables") && len > 256 << 10
    });
    let [file, other] = &large[..] else {
        panic!("{large:?}");
    };
    for has_copies in [true, false] {
        let bytes = fs::read(sample.dir.path().join(other)).unwrap();
        let dir = sample.damaged(file, has_copies, &Change::Cut { len: 0 });
        let path = dir.path().join(file);
        fs::write(&path, &bytes).unwrap();
        let text = open(dir.path()).unwrap_err().to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        let name = other.file_name().unwrap().to_str().unwrap();
        let problem = format!("it is table file {name}, not ");
        assert!(text.contains(&problem), "{text}");
        // It is left as it was.
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[tokio::test]
async fn any_damaged_byte_of_the_end_of_a_large_file_or_of_its_copy_does_no_harm() {
    let sample = Sample::new(12_000).await;
    let (file, len, end) = large_file(&sample);
    let copies = sample.files().into_iter();
    let copy = copies
        .filter(|copy| copy.starts_with("copies/2"))
        .max_by_key(|copy| sample.dir.path().join(copy).metadata().unwrap().len())
        .unwrap();
    let copy_len = len - end + 24;
    // What has no checksum of its own is at the end.
    let near_the_end = (1..=600).step_by(13);
    for from_end in near_the_end.chain([len - end - 1]) {
        for (file, len) in [(&file, len), (&copy, copy_len)] {
            let byte = len - from_end;
            let dir = sample.damaged(file, true, &Change::Bit { byte, bit: 0 });
            let outcome = sample.outcome(dir.path(), file).await;
            assert_eq!(outcome, Outcome::Whole, "{}: byte {byte}", file.display());
        }
    }
    for copies in ["copies", "copies/2", "copies/2/current"] {
        let dir = temporary();
        copy_dir(sample.dir.path(), dir.path());
        let path = dir.path().join(copies);
        match path.is_dir() {
            true => fs::remove_dir_all(&path).unwrap(),
            false => fs::remove_file(&path).unwrap(),
        }
        match copies.ends_with("current") {
            true => fs::create_dir(&path).unwrap(),
            false => fs::write(&path, b"a file").unwrap(),
        }
        let outcome = sample.outcome(dir.path(), &file).await;
        assert_eq!(outcome, Outcome::Whole, "{copies}");
    }
}

/// A store with a large file and copies, that file, and the content of a file that has the same
/// number in another store.
async fn with_a_file_of_another_store() -> (Sample, PathBuf, Vec<u8>) {
    let sample = Sample::new(200).await;
    let other = temporary();
    copy_dir(sample.dir.path(), other.path());
    add_large_file(sample.dir.path());
    add_large_file(other.path());
    // Makes copies.
    drop(open(sample.dir.path()).unwrap());
    let (file, ..) = large_file(&sample);
    let bytes = fs::read(other.path().join(&file)).unwrap();
    assert!(bytes.len() > 256 << 10);
    (sample, file, bytes)
}

/// Without copies it opens, and no copy is made of the wrong file.
#[tokio::test]
async fn the_right_file_in_the_place_of_a_wrong_one_is_accepted() {
    let (sample, file, wrong) = with_a_file_of_another_store().await;
    let dir = sample.damaged(&file, false, &Change::Cut { len: 0 });
    let path = dir.path().join(&file);
    fs::write(&path, wrong).unwrap();
    drop(open(dir.path()).unwrap());
    fs::copy(sample.dir.path().join(&file), &path).unwrap();
    drop(open(dir.path()).unwrap());
}

/// Numbers are unique only in one table of one store.
#[tokio::test]
async fn a_large_file_of_another_store_with_the_same_number_refuses_the_start() {
    let (sample, file, bytes) = with_a_file_of_another_store().await;
    let dir = sample.damaged(&file, true, &Change::Cut { len: 0 });
    fs::write(dir.path().join(&file), &bytes).unwrap();
    assert_eq!(sample.outcome(dir.path(), &file).await, Outcome::Refused);
    assert_eq!(fs::read(dir.path().join(&file)).unwrap(), bytes);
}

/// Its copy is a whole file.
#[tokio::test]
async fn another_file_of_the_table_in_the_place_of_a_small_one_is_replaced() {
    let sample = Sample::new(200).await;
    let mut files = sample.files();
    files.retain(|file| file.iter().nth(2).is_some_and(|dir| dir == "tables"));
    let is_state = |file: &&PathBuf| file.starts_with("keyspaces/2");
    let states = files.iter().find(is_state).unwrap();
    let mut others = files.iter();
    let other = others.find(|file| file.file_name() != states.file_name());
    let dir = sample.damaged(states, true, &Change::Cut { len: 0 });
    let replaced = dir.path().join(states);
    fs::copy(dir.path().join(other.unwrap()), replaced).unwrap();
    let outcome = sample.outcome(dir.path(), states).await;
    assert_eq!(outcome, Outcome::Whole);
}

/// All of the directory is older, and each file in it is intact.
#[tokio::test]
async fn an_older_copy_of_the_directory_of_a_table_is_refused() {
    let sample = Sample::new(400).await;
    let older = temporary();
    copy_dir(sample.dir.path(), older.path());
    let table = Path::new("keyspaces/2");
    let names_newer = || {
        let current = |dir: &tempfile::TempDir| fs::read(dir.path().join(table).join("current"));
        current(&sample.dir).unwrap() != current(&older).unwrap()
    };
    let store = open(sample.dir.path()).unwrap();
    let mut ids = sample.ids.iter().copied().cycle();
    while !names_newer() {
        let batch = ids.by_ref().take(100).map(|id| write(id, 4, false));
        store.write(rows(batch)).await.unwrap();
    }
    // The next sync records the manifest.
    store
        .write(rows([write(sample.ids[0], 5, false)]))
        .await
        .unwrap();
    drop(store);
    fs::remove_dir_all(sample.dir.path().join(table)).unwrap();
    fs::create_dir(sample.dir.path().join(table)).unwrap();
    copy_dir(&older.path().join(table), &sample.dir.path().join(table));
    let text = open(sample.dir.path()).unwrap_err().to_string();
    let current = sample.dir.path().join(table).join("current");
    assert!(text.contains(current.to_str().unwrap()), "{text}");
    assert!(text.contains("was current"), "{text}");
}

/// The newest manifest is gone as well, so that nothing says which it was.
#[tokio::test]
async fn an_older_current_does_not_come_back() {
    let sample = Sample::new(400).await;
    let table = sample.dir.path().join("keyspaces/2");
    let numbers = || {
        let names = fs::read_dir(&table).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter_map(|name| name.strip_prefix('v')?.parse::<u64>().ok())
    };
    let old = numbers().max().unwrap();
    let kept = fs::read(table.join(format!("v{old}"))).unwrap();
    write_out(sample.dir.path());
    let new = numbers().max().unwrap();
    assert!(new > old);
    // As if the process had been killed before it removed the older manifest.
    fs::write(table.join(format!("v{old}")), kept).unwrap();
    fs::remove_file(table.join(format!("v{new}"))).unwrap();
    let current = Path::new("keyspaces/2/current");
    fs::remove_file(sample.dir.path().join(current)).unwrap();
    let outcome = sample.outcome(sample.dir.path(), current).await;
    assert_eq!(outcome, Outcome::Refused);
}

#[tokio::test]
async fn a_missing_file_is_restored_or_reported() {
    let sample = Sample::new(200).await;
    for (has_copies, wanted) in [(true, Outcome::Whole), (false, Outcome::Refused)] {
        for file in sample.files() {
            if file.starts_with("copies") || kind(&file) == "format" {
                continue;
            }
            let dir = sample.damaged(&file, has_copies, &Change::Cut { len: 0 });
            fs::remove_file(dir.path().join(&file)).unwrap();
            let wanted = match kind(&file) {
                "record of the journals" => Outcome::Whole,
                _ => wanted,
            };
            // Without `current` it cannot be said which manifest is missing, and the other way
            // round.
            let outcome = sample.outcome(dir.path(), file.parent().unwrap()).await;
            assert_eq!(outcome, wanted, "{}", file.display());
        }
    }
}

/// Where the batches of a journal end.
fn batch_ends(journal: &[u8]) -> Vec<usize> {
    let ends = journal.windows(4).enumerate();
    let ends = ends.filter(|(_, bytes)| bytes == b"FJL\x03");
    ends.map(|(at, _)| at + 4).collect()
}

#[tokio::test]
async fn a_deleted_truncated_zeroed_or_older_journal_is_reported() {
    let sample = Sample::new(200).await;
    let file = Path::new("0.jnl");
    let whole = fs::read(sample.dir.path().join(file)).unwrap();
    let mut ends = batch_ends(&whole);
    assert_eq!(ends.pop(), Some(whole.len()));
    assert!(ends.len() > 1, "{ends:?}");
    let tenths = (0..10).map(|tenth| whole.len() * tenth / 10);
    for at in tenths.chain(ends) {
        let mut zeroed = whole.clone();
        zeroed[at..].fill(0);
        // An older copy has the room that the journal was made with.
        for bytes in [&whole[..at], &zeroed] {
            let dir = temporary();
            copy_dir(sample.dir.path(), dir.path());
            fs::write(dir.path().join(file), bytes).unwrap();
            let outcome = sample.outcome(dir.path(), file).await;
            assert_eq!(outcome, Outcome::Refused, "{at} of {}", whole.len());
            let left = fs::read(dir.path().join(file)).unwrap();
            assert_eq!(left, bytes, "it is left as it was");
        }
    }
    let dir = temporary();
    copy_dir(sample.dir.path(), dir.path());
    fs::remove_file(dir.path().join(file)).unwrap();
    let outcome = sample.outcome(dir.path(), file).await;
    assert_eq!(outcome, Outcome::Refused);
    assert!(!dir.path().join(file).exists());
}

#[tokio::test]
async fn an_interrupted_creation_is_repeated() {
    type Leave = fn(&Path);
    let cut_short: [Leave; 4] = [
        |dir| {
            File::create(dir.join("0.jnl"))
                .unwrap()
                .set_len(64 << 20)
                .unwrap()
        },
        |dir| fs::write(dir.join("version"), b"").unwrap(),
        |dir| {
            fs::create_dir(dir.join("keyspaces")).unwrap();
            File::create(dir.join("0.jnl")).unwrap();
            fs::write(dir.join("version"), b"FJL").unwrap();
        },
        |dir| {
            drop(open(dir).unwrap());
            fs::remove_file(dir.join("lock")).unwrap();
        },
    ];
    for leave in cut_short {
        let dir = temporary();
        fs::write(dir.path().join("lock"), b"").unwrap();
        leave(dir.path());
        drop(open(dir.path()).unwrap());
    }
}
