//! Every file of the broker's metadata, damaged in every way that is likely: nothing of it is lost
//! silently.

use std::error::Error;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};
use waybill_broker::{Broker, BrokerSettings, StartError, repair_logs};

use crate::common::{broker, client, create_topic};

type Entry = (&'static str, Vec<u8>, Vec<u8>);

/// The data directory of a broker with topics and committed offsets, and all of its metadata.
struct Sample {
    dir: tempfile::TempDir,
    entries: Vec<Entry>,
}

impl Sample {
    async fn new(is_written_out: bool) -> Self {
        let dir = temporary();
        let broker = broker(dir.path()).await;
        let address = broker.address();
        for n in 0..3 {
            let (topic, group) = (format!("topic-{n}"), format!("group-{n}"));
            create_topic(address, &topic, 2, &[]).await;
            let consumer: BaseConsumer = client(address, &[("group.id", &group)]).create().unwrap();
            let mut at = TopicPartitionList::new();
            at.add_partition_offset(&topic, 1, Offset::Offset(0))
                .unwrap();
            consumer.commit(&at, CommitMode::Sync).unwrap();
        }
        let entries = entries(&broker);
        assert!(broker.shutdown().await);
        if is_written_out {
            let meta = dir.path().join("meta");
            let db = fjall::Database::builder(meta).open().unwrap();
            for name in db.list_keyspace_names() {
                let options = fjall::KeyspaceCreateOptions::default;
                let table = db.keyspace(&name, options).unwrap();
                table.rotate_memtable_and_wait().unwrap();
            }
        }
        // A start makes copies, and cuts off the room that the journal was made with. Once it is
        // open, the store may write another manifest, of which the next start makes a copy.
        for _ in 0..20 {
            assert!(start(dir.path()).await.unwrap().shutdown().await);
            if has_copies(&dir.path().join("meta")) {
                return Self { dir, entries };
            }
        }
        panic!("the store writes another manifest after every start");
    }

    /// Starts a broker on a copy of the directory with one changed file, or without it. Returns
    /// whether it starts, and has all metadata.
    async fn starts_with(&self, file: &Path, bytes: Option<&[u8]>, has_copies: bool) -> bool {
        let dir = temporary();
        copy_dir(self.dir.path(), dir.path());
        let path = dir.path().join(file);
        match bytes {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        if !has_copies {
            fs::remove_dir_all(dir.path().join("meta/copies")).unwrap();
        }
        match start(dir.path()).await {
            Ok(broker) => {
                assert_eq!(entries(&broker), self.entries, "{}", file.display());
                assert!(broker.shutdown().await);
                true
            }
            Err(error) => {
                assert_names(&error, &path);
                // A repair does not report an undamaged log either.
                let repair = repair_logs(dir.path(), None, None, false).unwrap_err();
                assert_names(&repair, &path);
                false
            }
        }
    }
}

/// Whether there is a copy of what names the current manifest of each table.
fn has_copies(store: &Path) -> bool {
    let tables = fs::read_dir(store.join("keyspaces")).unwrap();
    let mut numbers = tables.map(|table| table.unwrap().file_name());
    numbers.all(|number| {
        let current = fs::read(store.join("keyspaces").join(&number).join("current"));
        let copy = fs::read(store.join("copies").join(&number).join("current"));
        current.ok() == copy.ok()
    })
}

fn assert_names(error: &(dyn Error + 'static), path: &Path) {
    let chain = iter::successors(Some(error), |error| (**error).source());
    let text: Vec<String> = chain.map(ToString::to_string).collect();
    let text = text.join(": ");
    for part in [path.to_str().unwrap(), "waybill restore"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

async fn start(dir: &Path) -> Result<Broker, StartError> {
    let mut config = BrokerSettings::new(dir);
    config.listen = "127.0.0.1:0".parse().unwrap();
    Broker::start(config).await
}

/// All metadata but what changes on its own.
fn entries(broker: &Broker) -> Vec<Entry> {
    let snapshot = broker.logs().snapshot().unwrap();
    let entries = snapshot.meta().map(Result::unwrap);
    entries
        .filter(|(_, key, _)| !key.starts_with(b"run-time") && !key.starts_with(b"ages/"))
        .collect()
}

/// A directory in memory if the system has one: hundreds of brokers are started.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
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

/// The files below a directory, in order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_metadata_file_is_restored_from_its_copy_or_reported() {
    let sample = Sample::new(true).await;
    let (mut restored, mut refused) = (0, 0);
    for path in files(&sample.dir.path().join("meta")) {
        let file = path.strip_prefix(sample.dir.path()).unwrap();
        let is_journal = path.extension().is_some_and(|of| of == "jnl");
        let is_copy = file.starts_with("meta/copies");
        if is_journal || is_copy || file.ends_with("lock") {
            continue;
        }
        let whole = fs::read(&path).unwrap();
        let len = whole.len();
        let mut changed = vec![Vec::new(), whole[..len / 2].to_vec()];
        for byte in [0, len / 3, len / 2, len.saturating_sub(60), len - 1] {
            let mut bytes = whole.clone();
            bytes[byte] ^= 0x20;
            changed.push(bytes);
        }
        for bytes in changed {
            assert!(
                sample.starts_with(file, Some(&bytes), true).await,
                "{}",
                file.display()
            );
            restored += 1;
            if !sample.starts_with(file, Some(&bytes), false).await {
                refused += 1;
            }
        }
    }
    assert!(restored > 60, "{restored}");
    assert!(
        (restored / 2..restored).contains(&refused),
        "{refused} of {restored}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_without_the_directory_of_a_table_refuses_the_start() {
    let sample = Sample::new(true).await;
    let mut tables = 0;
    for table in fs::read_dir(sample.dir.path().join("meta/keyspaces")).unwrap() {
        let dir = temporary();
        copy_dir(sample.dir.path(), dir.path());
        let path = dir.path().join("meta/keyspaces");
        let path = path.join(table.unwrap().file_name());
        let aside = dir.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        assert_names(&start(dir.path()).await.unwrap_err(), &path);
        fs::rename(&aside, &path).unwrap();
        let broker = start(dir.path()).await.unwrap();
        assert_eq!(entries(&broker), sample.entries);
        assert!(broker.shutdown().await);
        tables += 1;
    }
    assert!(tables > 2, "{tables}");
}

/// The journal of the metadata, below the data directory, what it holds, and where its batches end.
fn journal(sample: &Sample) -> (PathBuf, Vec<u8>, Vec<usize>) {
    let journals = files(&sample.dir.path().join("meta")).into_iter();
    let mut journals = journals.filter(|path| path.extension().is_some_and(|of| of == "jnl"));
    let (path, more) = (journals.next().unwrap(), journals.next());
    assert_eq!(more, None);
    let whole = fs::read(&path).unwrap();
    let ends = whole.windows(4).enumerate();
    let ends = ends.filter(|(_, bytes)| bytes == b"FJL\x03");
    let ends: Vec<usize> = ends.map(|(at, _)| at + 4).collect();
    assert!(ends.len() > 6, "{ends:?}");
    let file = path.strip_prefix(sample.dir.path()).unwrap();
    (file.to_owned(), whole, ends)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_byte_in_the_metadata_journal_is_detected() {
    let sample = Sample::new(false).await;
    let (file, whole, ends) = journal(&sample);
    let mut refused = 0;
    for byte in (0..*ends.last().unwrap()).step_by(41) {
        let mut bytes = whole.clone();
        bytes[byte] ^= 0x55;
        refused += u32::from(!sample.starts_with(&file, Some(&bytes), true).await);
    }
    assert!(refused > 5, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_truncated_zeroed_or_older_metadata_journal_is_reported() {
    let sample = Sample::new(false).await;
    let (file, whole, mut ends) = journal(&sample);
    let end = ends.pop().unwrap();
    assert!(!sample.starts_with(&file, None, true).await, "deleted");
    for at in (0..10).map(|tenth| end * tenth / 10).chain(ends) {
        // An older copy has the room that the journal was made with.
        let mut zeroed = whole.clone();
        zeroed[at..].fill(0);
        for bytes in [&whole[..at], &zeroed] {
            let starts = sample.starts_with(&file, Some(bytes), true).await;
            assert!(!starts, "{at} of {end}");
        }
    }
}
