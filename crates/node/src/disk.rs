//! Free space on the file system that the embedded broker and store share.
//!
//! Below `storage.freeMin` the disk is *low*: ingestion answers new requests 503, and the embedded
//! broker refuses records for its request topics, so that ingestion in another process answers 503,
//! too. Accepted operations continue in the remaining space. The state ends on its own once the
//! free space is a tenth above the limit.
//!
//! What must hold: the first check comes before the broker and the store open, so that a process
//! that starts on a full disk accepts nothing. A check that fails changes nothing.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use metrics::Gauge;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use waybill_store::Store;
use waybill_telemetry::health::{Condition, LowDisk, Readiness};
use waybill_telemetry::{Declared, Metric};
use waybill_units::{ByteSize, FreeMin};

use crate::data_dir::of_broker;

/// How often the free space is checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The fraction of the limit that must be free in addition before the disk no longer counts as low.
const BEYOND: u64 = 10;
/// The unit in which the operating system counts the blocks of a file, in bytes.
const BLOCK_BYTES: u64 = 512;

const FREE: Metric<Gauge> = Metric::new(
    "waybill_disk_free_bytes",
    "Bytes that are free on the file system of dataDir",
    [],
);
const SIZE: Metric<Gauge> = Metric::new(
    "waybill_disk_size_bytes",
    "Size of the file system of dataDir in bytes",
    [],
);
const FREE_MIN: Metric<Gauge> = Metric::new(
    "waybill_disk_free_min_bytes",
    "The threshold of storage.freeMin in bytes: with fewer free, new requests are refused",
    [],
);
const LOW: Metric<Gauge> = Metric::new(
    "waybill_disk_low",
    "1 while new requests are refused because free disk space is low, otherwise 0",
    [],
);

/// All metrics of the disk.
pub const METRICS: &[&dyn Declared] = &[&FREE, &SIZE, &FREE_MIN, &LOW];

/// The `storage` section: the disk that the embedded broker and store share.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct StorageConfig {
    /// How much of the file system of `dataDir` must stay free: below it new requests are refused.
    pub free_min: FreeMin,
}

/// The space of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes that a process may still write.
    pub free: u64,
    /// The total size in bytes.
    pub size: u64,
    /// How many files a process may still create; `None` if the file system has no such limit.
    pub free_files: Option<u64>,
}

impl Space {
    /// The space of the file system of `path`, or of its nearest existing parent.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let mut there = path;
        let stat = loop {
            match rustix::fs::statvfs(there) {
                Err(rustix::io::Errno::NOENT) => {
                    there = match there.parent() {
                        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
                        Some(parent) => parent,
                        None => return Err(rustix::io::Errno::NOENT.into()),
                    }
                }
                stat => break stat?,
            }
        };
        Ok(Self {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            size: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_files: (stat.f_files > 0).then_some(stat.f_favail),
        })
    }
}

/// Watches the free space and reports when it is low.
#[derive(Debug)]
pub struct DiskWatch {
    dir: PathBuf,
    free_min: FreeMin,
    low: LowDisk,
    store: Arc<OnceLock<Weak<dyn Store>>>,
    room: Condition,
    writes: Condition,
    free: Gauge,
    size: Gauge,
    mark: Gauge,
    is_low: Gauge,
}

impl DiskWatch {
    /// Creates the watch and checks once. Adds two conditions to `readiness`.
    pub fn new(dir: &Path, free_min: FreeMin, readiness: &Readiness) -> Self {
        let watch = Self {
            dir: dir.to_owned(),
            free_min,
            low: LowDisk::default(),
            store: Arc::default(),
            room: readiness.expect("free disk space"),
            writes: readiness.expect("a writable state store"),
            free: FREE.of([]),
            size: SIZE.of([]),
            mark: FREE_MIN.of([]),
            is_low: LOW.of([]),
        };
        watch.check();
        watch
    }

    /// The flag that the watch sets.
    pub fn low(&self) -> LowDisk {
        self.low.clone()
    }

    /// The place for the store once it is open. While a write of the store fails for lack of space,
    /// the disk counts as low, whatever the file system reports (because of a quota, for example).
    /// A write that fails for another reason is a separate condition.
    pub fn store(&self) -> Arc<OnceLock<Weak<dyn Store>>> {
        Arc::clone(&self.store)
    }

    /// Checks periodically until it is stopped.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut turns = tokio::time::interval(CHECK_EVERY);
        loop {
            tokio::select! {
                _ = turns.tick() => self.check(),
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    fn check(&self) {
        let store = self.store.get().and_then(Weak::upgrade);
        let failure = store.and_then(|store| store.write_failure());
        let store_waits = failure.as_ref().is_some_and(|failure| failure.is_full);
        let failure = failure.filter(|failure| !failure.is_full);
        self.writes.set(failure.is_none());
        let note = failure.map(|failure| {
            format!("{failure}; it reopens its files on its own: check the disk, for example with dmesg and smartctl")
        });
        self.writes.note(note.as_deref());
        let space = match Space::of(&self.dir) {
            Ok(space) => space,
            Err(error) => {
                let dir = self.dir.display();
                tracing::warn!(%dir, %error, "could not read the free disk space");
                return;
            }
        };
        let mark = self.free_min.bytes_of(space.size);
        let was_low = self.low.is_low();
        let is_low = store_waits || is_low(was_low, space.free, mark);
        self.low.set(is_low);
        self.free.set(space.free as f64);
        self.size.set(space.size as f64);
        self.mark.set(mark as f64);
        self.is_low.set(f64::from(u8::from(is_low)));
        self.room.set(!is_low);
        let note = is_low.then(|| self.note(space, mark, store_waits));
        self.room.note(note.as_deref());
        let (dir, free_bytes) = (self.dir.display(), space.free);
        match (was_low, is_low) {
            (false, true) => tracing::warn!(
                %dir,
                free_bytes,
                free_min_bytes = mark,
                store_waits,
                "disk space is low; new requests get 503 until space is freed"
            ),
            (true, false) => {
                tracing::info!(%dir, free_bytes, free_min_bytes = mark, "disk space is sufficient again");
            }
            (false, false) | (true, true) => {}
        }
    }

    /// The readiness note about a low disk.
    fn note(&self, space: Space, mark: u64, store_waits: bool) -> String {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let store = match store_waits {
            true => "the state store could not write, and ",
            false => "",
        };
        format!(
            "{store}{} of {} are free in {}, and storage.freeMin is {}: new requests get 503",
            mib(space.free),
            mib(space.size),
            self.dir.display(),
            mib(mark)
        )
    }
}

/// Whether this much free space counts as low.
fn is_low(was_low: bool, free: u64, mark: u64) -> bool {
    let beyond = if was_low { mark / BEYOND } else { 0 };
    free < mark.saturating_add(beyond)
}

/// The disk space for the topics of the embedded broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopicSpace {
    /// The file system of `dataDir`.
    pub disk: Space,
    /// Bytes that the logs of the topics already take.
    pub logs: u64,
    /// The threshold of `storage.freeMin` in bytes.
    pub free_min: u64,
}

impl TopicSpace {
    /// The space below `data_dir`.
    ///
    /// # Errors
    ///
    /// The error of the operating system, if the file system cannot be measured, or the broker's
    /// files cannot be read.
    pub fn of(data_dir: &Path, free_min: FreeMin) -> std::io::Result<Self> {
        let disk = Space::of(data_dir)?;
        Ok(Self {
            disk,
            logs: used_below(&of_broker(data_dir))?,
            free_min: free_min.bytes_of(disk.size),
        })
    }

    /// The warning if the disk bounds of all topics together exceed what the topics can have: what
    /// they already take, and what is free beyond `storage.freeMin`.
    pub fn exceeded_by(self, bounds: u64, data_dir: &Path) -> Option<String> {
        let Self {
            disk,
            logs,
            free_min,
        } = self;
        let available = disk.free.saturating_add(logs).saturating_sub(free_min);
        (bounds > available).then(|| {
            let rounded_alike = rounded(bounds).to_string() == rounded(available).to_string();
            let compared = if rounded_alike { in_mib } else { rounded };
            format!(
                "the topics of the embedded broker may grow to {} but {} has only {} for them ({} of {} are free, less \
                 storage.freeMin of {}; they take {} already). New requests will be refused while less than \
                 storage.freeMin is free. To avoid this, lower broker.requestsDiskBytesMax, partitions or \
                 kafka.stepPartitions (for new topics), free space, or use a larger disk",
                compared(bounds),
                data_dir.display(),
                compared(available),
                rounded(disk.free),
                rounded(disk.size),
                rounded(free_min),
                rounded(logs)
            )
        })
    }
}

/// The disk space of all files below a directory, without files that are deleted meanwhile.
///
/// # Errors
///
/// If a part cannot be read: the sum would be too small.
fn used_below(dir: &Path) -> std::io::Result<u64> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut used = 0_u64;
    for entry in entries {
        let entry = entry?;
        let of_entry = match entry.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Ok(found) if found.is_dir() => used_below(&entry.path())?,
            found => found?.blocks().saturating_mul(BLOCK_BYTES),
        };
        used = used.saturating_add(of_entry);
    }
    Ok(used)
}

/// Rounds to GiB, or to MiB below one GiB.
fn rounded(bytes: u64) -> ByteSize {
    match bytes >> 30 {
        0 => in_mib(bytes),
        gib => ByteSize::gib(gib),
    }
}

/// Rounds to MiB.
fn in_mib(bytes: u64) -> ByteSize {
    ByteSize::mib(bytes >> 20)
}

#[cfg(test)]
mod tests {
    use waybill_engine::{OperationId, ProcessState, Stamp, Timestamp};
    use waybill_store::{EmbeddedConfig, EmbeddedStore, RowWrite, WriteBatch};
    use waybill_test_support::rows::{created, untouched};

    use super::*;

    #[test]
    fn a_low_disk_recovers_a_tenth_above_the_minimum() {
        assert!(is_low(false, 99, 100));
        assert!(!is_low(false, 100, 100));
        assert!(is_low(true, 109, 100));
        assert!(!is_low(true, 110, 100));
        assert!(!is_low(false, 0, 0), "switched off");
    }

    #[test]
    fn the_file_system_of_a_missing_directory_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let here = Space::of(dir.path()).unwrap();
        let there = Space::of(&dir.path().join("a/b")).unwrap();
        assert_eq!(here.size, there.size);
        assert!(here.size > 0 && here.free <= here.size);
        assert!(Space::of(Path::new("not-there")).unwrap().size > 0);
    }

    #[test]
    fn readiness_names_the_directory_and_the_minimum() {
        let dir = tempfile::tempdir().unwrap();
        let readiness = Readiness::default();
        let size = ByteSize::bytes(u64::MAX);
        let watch = DiskWatch::new(dir.path(), FreeMin::Size(size), &readiness);
        assert!(watch.low().is_low());
        let missing = readiness.missing();
        assert!(missing[0].starts_with("free disk space ("), "{missing:?}");
        assert!(missing[0].contains("storage.freeMin is "), "{missing:?}");
        assert!(
            missing[0].contains(&dir.path().display().to_string()),
            "{missing:?}"
        );
        let readiness = Readiness::default();
        let enough = DiskWatch::new(dir.path(), FreeMin::Percent(0), &readiness);
        assert!(!enough.low().is_low());
        assert_eq!(readiness.missing(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_store_on_a_failing_disk_is_reported_with_the_cause() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = EmbeddedConfig::new(dir.path().join("store"));
        config.memtable_bytes = 16 << 10;
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(config).unwrap());
        let readiness = Readiness::default();
        let watch = DiskWatch::new(dir.path(), FreeMin::Percent(0), &readiness);
        watch.store().get_or_init(|| Arc::downgrade(&store));
        watch.check();
        assert_eq!(readiness.missing(), Vec::<String>::new());

        // Flushes fail from now on.
        let [tables, away] = ["keyspaces", "away"].map(|name| dir.path().join("store").join(name));
        std::fs::rename(&tables, &away).unwrap();
        let mut ids = (0_u128..).map(|number| OperationId(uuid::Uuid::from_u128(number)));
        let mut fill = async || {
            let rows = ids.by_ref().take(100).map(|id| RowWrite {
                id,
                created: Some(Arc::new(created("errand", &["go"]))),
                state: untouched(ProcessState::Processing, 1, Timestamp(1)),
                stamp: Stamp(1),
                keep_for: None,
            });
            let batch = WriteBatch {
                rows: rows.collect(),
                ..WriteBatch::default()
            };
            store.write(batch).await
        };
        while fill().await.is_ok() {}
        watch.check();
        assert!(!watch.low().is_low());
        let missing = readiness.missing();
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(
            missing[0].starts_with("a writable state store (a flush or a compaction failed; "),
            "{missing:?}"
        );

        std::fs::rename(&away, &tables).unwrap();
        while fill().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        watch.check();
        assert_eq!(readiness.missing(), Vec::<String>::new());
    }

    #[test]
    fn bounds_beyond_the_disk_are_reported_with_both_sizes() {
        let gib = |size: u64| size << 30;
        let exceeded = |bounds, free, logs| {
            let space = TopicSpace {
                disk: Space {
                    free: gib(free),
                    size: gib(100),
                    free_files: None,
                },
                logs: gib(logs),
                free_min: gib(5),
            };
            space.exceeded_by(gib(bounds), Path::new("data"))
        };
        assert_eq!(exceeded(50, 55, 0), None);
        assert_eq!(exceeded(50, 15, 40), None, "the topics have their space");
        let message = exceeded(50, 20, 7).expect("other files fill the disk");
        for part in [
            "may grow to 50GiB but data has only 22GiB for them",
            "20GiB of 100GiB are free",
            "less storage.freeMin of 5GiB",
            "they take 7GiB already",
            "broker.requestsDiskBytesMax",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
        let message = exceeded(200, 99, 0).expect("the disk is too small");
        assert!(message.contains("may grow to 200GiB"), "{message}");
        assert!(exceeded(1, 4, 0).is_some(), "the disk is low");
        let mib = 1 << 20;
        let space = TopicSpace {
            disk: Space {
                free: gib(50) + mib,
                size: gib(100),
                free_files: None,
            },
            logs: 0,
            free_min: 0,
        };
        let message = space.exceeded_by(gib(50) + 3 * mib, Path::new("data"));
        let message = message.expect("2 MiB are missing");
        assert!(
            message.contains("may grow to 51203MiB but data has only 51201MiB for them"),
            "{message}"
        );
    }

    #[test]
    fn space_of_topics_includes_what_their_logs_take() {
        let dir = tempfile::tempdir().unwrap();
        let min = FreeMin::Size(ByteSize::mib(1));
        assert_eq!(TopicSpace::of(dir.path(), min).unwrap().logs, 0);
        let logs = of_broker(dir.path()).join("logs/requests-0");
        fs::create_dir_all(&logs).unwrap();
        fs::write(logs.join("segment"), vec![1; 100_000]).unwrap();
        fs::write(dir.path().join("foreign"), vec![1; 100_000]).unwrap();
        let space = TopicSpace::of(dir.path(), min).unwrap();
        assert!((100_000..200_000).contains(&space.logs), "{space:?}");
        assert_eq!(space.free_min, 1 << 20);
    }
}
