//! A broker's data at one instant, and a new data directory built from that.
//!
//! What must hold:
//!
//! * **Offsets before logs.** Committed offsets are recorded before the ends of the logs. So no
//!   offset is beyond its log, and every record that was produced before a commit is included.
//! * **Recorded data stays readable.** Every segment is kept open, so that it can be read even if
//!   retention deletes it in the meantime.
//! * **No name leads out of the directory.** Restored data goes only to places that this broker
//!   would choose itself.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use waybill_disk::sync_dir;

use crate::log::{DamagedBatch, LogFile, segment_path, verify};
use crate::meta::{Meta, MetaError, MetaSnapshot, TOPIC_PREFIX};
use crate::server::Server;
use crate::topics::{is_topic_name, logs_dir, partition_dir};

/// Why logs could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The broker has stopped.
    #[error("the broker has stopped")]
    Stopped,
    /// A partition cannot be used, so that a copy would lack its records.
    #[error("partition {partition} of topic {topic} is offline")]
    Offline {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
    },
    /// A name or number that this broker would not assign.
    #[error("{what} is not valid in a backup")]
    Unknown {
        /// What it is.
        what: String,
    },
    /// The broker's metadata could not be read or written.
    #[error("cannot copy the broker's metadata")]
    Meta(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A batch is damaged.
    #[error("a log is damaged")]
    Damaged(#[source] DamagedBatch),
    /// The disk failed.
    #[error("cannot copy {path}")]
    Disk {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl From<MetaError> for CopyError {
    fn from(error: MetaError) -> Self {
        Self::Meta(Box::new(error))
    }
}

/// Begins copies of a running broker. It does not keep the broker running.
#[derive(Clone)]
pub struct Logs(Weak<Server>);

impl Logs {
    pub(crate) fn of(server: &Arc<Server>) -> Self {
        Self(Arc::downgrade(server))
    }

    /// Records everything at this instant. No topic is created, changed or deleted in the meantime;
    /// clients continue. Blocks.
    ///
    /// # Errors
    ///
    /// If the broker has stopped, or some of its data cannot be read.
    pub fn snapshot(&self) -> Result<LogsSnapshot, CopyError> {
        let server = self.0.upgrade().ok_or(CopyError::Stopped)?;
        server.topics.while_unchanged(|topics| {
            let meta = server.meta.snapshot()?;
            let mut segments = Vec::new();
            let mut records = 0;
            for partition in topics.iter().flat_map(|topic| &topic.partitions) {
                let noted = partition.segments().map_err(|error| match error {
                    Some(source) => CopyError::Disk {
                        path: partition.path().to_owned(),
                        source,
                    },
                    None => CopyError::Offline {
                        topic: partition.topic.to_string(),
                        partition: partition.index,
                    },
                })?;
                records += noted.records;
                segments.extend(
                    noted
                        .segments
                        .into_iter()
                        .map(|(base, file, bytes)| Segment {
                            topic: partition.topic.clone(),
                            partition: partition.index,
                            base,
                            file,
                            bytes,
                        }),
                );
            }
            Ok(LogsSnapshot {
                meta,
                segments,
                records,
            })
        })
    }
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").finish_non_exhaustive()
    }
}

/// A broker's data at one instant.
pub struct LogsSnapshot {
    meta: MetaSnapshot,
    segments: Vec<Segment>,
    records: u64,
}

impl LogsSnapshot {
    /// The entries of the broker's metadata: table, key and value.
    ///
    /// # Errors
    ///
    /// [`CopyError::Meta`] instead of an entry that cannot be read.
    pub fn meta(
        &self,
    ) -> impl Iterator<Item = Result<(&'static str, Vec<u8>, Vec<u8>), CopyError>> {
        self.meta.entries().map(|entry| Ok(entry?))
    }

    /// The segments of all partitions, those of one in order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// How many records they hold.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }
}

impl std::fmt::Debug for LogsSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogsSnapshot")
            .field("segments", &self.segments.len())
            .finish_non_exhaustive()
    }
}

/// A segment up to its end at one instant.
#[derive(Debug)]
pub struct Segment {
    /// Its topic.
    pub topic: Arc<str>,
    /// The number of its partition.
    pub partition: i32,
    /// The offset that it begins with.
    pub base: i64,
    /// How many bytes it had.
    pub bytes: u64,
    file: Arc<LogFile>,
}

impl Segment {
    /// Reads all of it and verifies every checksum. Blocks.
    ///
    /// # Errors
    ///
    /// [`CopyError::Damaged`] if a batch is damaged, [`CopyError::Disk`] if the disk fails.
    pub fn verify(&self) -> Result<(), CopyError> {
        let damaged = verify(&self.file, self.base, self.bytes).map_err(of(self.file.path()))?;
        damaged.map_or(Ok(()), |batch| Err(CopyError::Damaged(batch)))
    }

    /// Reads all of `buffer` from `at` on, which must not go beyond [`bytes`](Self::bytes).
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }
}

/// A broker's new data directory, built piece by piece. Usable once [finished](Self::finish).
pub struct LogsRestore {
    dir: PathBuf,
    meta: Meta,
    segment: Option<(PathBuf, File)>,
}

impl LogsRestore {
    /// Begins a data directory in `dir`, which must not hold one.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn begin(dir: &Path) -> Result<Self, CopyError> {
        fs::create_dir_all(dir).map_err(of(dir))?;
        Ok(Self {
            meta: Meta::open(&dir.join("meta"))?,
            dir: dir.to_owned(),
            segment: None,
        })
    }

    /// Adds an entry to the metadata.
    ///
    /// # Errors
    ///
    /// [`CopyError::Unknown`] for an impossible table or topic, others if it cannot be written.
    pub fn put_meta(&mut self, table: &str, key: &[u8], value: &[u8]) -> Result<(), CopyError> {
        if let Some(topic) = key.strip_prefix(TOPIC_PREFIX)
            && !std::str::from_utf8(topic).is_ok_and(is_topic_name)
        {
            return Err(CopyError::Unknown {
                what: format!("a topic {:?}", String::from_utf8_lossy(topic)),
            });
        }
        match self.meta.put_raw(table, key, value)? {
            true => Ok(()),
            false => Err(CopyError::Unknown {
                what: format!("a table {table}"),
            }),
        }
    }

    /// Begins a segment, which is empty at first, and ends the one before.
    ///
    /// # Errors
    ///
    /// [`CopyError::Unknown`] if no segment can have this name, [`CopyError::Disk`] if the disk
    /// fails.
    pub fn begin_segment(
        &mut self,
        topic: &str,
        partition: i32,
        base: i64,
    ) -> Result<(), CopyError> {
        self.end_segment()?;
        if !is_topic_name(topic) || partition < 0 || base < 0 {
            return Err(CopyError::Unknown {
                what: format!("a segment {base} of partition {partition} of {topic:?}"),
            });
        }
        let dir = partition_dir(&logs_dir(&self.dir), topic, partition);
        fs::create_dir_all(&dir).map_err(of(&dir))?;
        let path = segment_path(&dir, base);
        let file = File::create_new(&path).map_err(of(&path))?;
        self.segment = Some((path, file));
        Ok(())
    }

    /// Adds bytes to the segment that was begun last.
    ///
    /// # Errors
    ///
    /// [`CopyError::Unknown`] if none was begun, [`CopyError::Disk`] if the disk fails.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), CopyError> {
        let Some((path, file)) = &mut self.segment else {
            return Err(CopyError::Unknown {
                what: "data without a segment".to_owned(),
            });
        };
        file.write_all(bytes).map_err(of(path))
    }

    /// Ends the last segment, records that producers of the copied broker may still be active, and
    /// syncs everything. Records do not age before a restore: retention counts a broker's running
    /// time.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub fn finish(mut self) -> Result<(), CopyError> {
        self.end_segment()?;
        self.meta.note_restored()?;
        self.meta.sync()?;
        sync_below(&logs_dir(&self.dir))
    }

    fn end_segment(&mut self) -> Result<(), CopyError> {
        match self.segment.take() {
            None => Ok(()),
            Some((path, file)) => file.sync_all().map_err(of(&path)),
        }
    }
}

impl std::fmt::Debug for LogsRestore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogsRestore")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// Makes the names in `dir` and in the directories below durable.
fn sync_below(dir: &Path) -> Result<(), CopyError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(of(dir))?,
    };
    for entry in entries {
        let path = entry.map_err(of(dir))?.path();
        if path.is_dir() {
            sync_below(&path)?;
        }
    }
    sync_dir(dir).map_err(of(dir))
}

fn of(path: &Path) -> impl Fn(io::Error) -> CopyError + use<> {
    let path = path.to_owned();
    move |source| CopyError::Disk {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_name_that_escapes_the_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut restore = LogsRestore::begin(directory.path()).unwrap();
        for name in ["../x", "/x", "a/b", "..", "", "\u{fc}"] {
            let key = [TOPIC_PREFIX, name.as_bytes()].concat();
            let refused = restore.put_meta("cluster", &key, b"{}").unwrap_err();
            assert!(matches!(refused, CopyError::Unknown { .. }), "{refused}");
        }
        let other = restore.put_meta("nonsense", b"key", b"").unwrap_err();
        assert!(other.to_string().contains("nonsense"), "{other}");
    }
}
