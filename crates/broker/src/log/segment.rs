//! One segment file with its sparse index.
//!
//! A segment is named after the offset of its first record. The active (last) one is appended to; a
//! closed one never changes again and has an index file next to it, which also holds the state of
//! the partition's producers at the segment's end. An index file is written only after its segment
//! was synced, so a closed segment with a valid index needs no scan. The active segment gets one at
//! an orderly shutdown, for its producers: it is valid for exactly the length that the segment had
//! then, and the next start still reads the segment.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use serde::{Deserialize, Serialize};
use waybill_disk::files::Disk;
use waybill_wire::batch::BatchHeader;

use super::damage::Damage;
use super::disk::{LogFile, replace};
use super::producers::Producers;
use crate::locked;

/// Bytes of log per entry of the sparse index: 10 GB of log take 10 MB of index.
const INDEX_INTERVAL_BYTES: u64 = 16 << 10;
const INDEX_MAGIC: &[u8; 8] = b"WBINDEX1";

/// Why a partition's log could not be opened or created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("{action} {path}")]
    Disk {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Damaged(#[from] Damage),
}

impl LogError {
    pub(crate) fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Disk {
            action,
            path,
            source,
        }
    }
}

/// The start of a batch, and the newest timestamp before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Entry {
    offset: u32,
    position: u32,
    max_timestamp_before: i64,
}

/// The known content of a segment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SegmentIndex {
    /// The offset that the segment is named after.
    pub(super) base: i64,
    /// The offset after its last record.
    pub(super) next_offset: i64,
    /// Bytes of whole batches in it.
    pub(super) bytes: u64,
    /// The newest timestamp in it; `i64::MIN` if it is empty.
    pub(super) max_timestamp: i64,
    entries: Vec<Entry>,
}

impl SegmentIndex {
    pub(super) fn new(base: i64) -> Self {
        Self {
            base,
            next_offset: base,
            bytes: 0,
            max_timestamp: i64::MIN,
            entries: Vec::new(),
        }
    }

    /// Adds a batch at the segment's end, whose first record has `base_offset`.
    pub(super) fn push(&mut self, batch: &BatchHeader, base_offset: i64) {
        let due = self
            .entries
            .last()
            .is_none_or(|last| self.bytes >= u64::from(last.position) + INDEX_INTERVAL_BYTES);
        // Batches that do not fit an entry are found by a scan from the entry before.
        if due
            && let Ok(offset) = u32::try_from(base_offset - self.base)
            && let Ok(position) = u32::try_from(self.bytes)
        {
            let max_timestamp_before = self.max_timestamp;
            self.entries.push(Entry {
                offset,
                position,
                max_timestamp_before,
            });
        }
        self.bytes += batch.bytes as u64;
        self.max_timestamp = self.max_timestamp.max(batch.max_timestamp);
        self.next_offset = base_offset + i64::from(batch.last_offset_delta) + 1;
    }

    /// A batch at or before the one that holds `offset`: its position and its first offset.
    pub(super) fn batch_before(&self, offset: i64) -> (u64, i64) {
        let relative = u32::try_from(offset - self.base).unwrap_or(u32::MAX);
        self.entry_before(
            self.entries
                .partition_point(|entry| entry.offset <= relative),
        )
    }

    /// A batch at or before the first one with a timestamp of at least `timestamp`: its position
    /// and its first offset.
    pub(super) fn batch_before_time(&self, timestamp: i64) -> (u64, i64) {
        self.entry_before(
            self.entries
                .partition_point(|e| e.max_timestamp_before < timestamp),
        )
    }

    /// Where the entry before the one at `after` leads.
    fn entry_before(&self, after: usize) -> (u64, i64) {
        let entry = after.checked_sub(1).and_then(|at| self.entries.get(at));
        entry.map_or((0, self.base), |entry| {
            (
                u64::from(entry.position),
                self.base + i64::from(entry.offset),
            )
        })
    }
}

/// The content of an index file.
#[derive(Serialize, Deserialize)]
pub(super) struct IndexFile {
    pub(super) index: SegmentIndex,
    pub(super) producers: Producers,
}

impl IndexFile {
    pub(super) fn encode(index: &SegmentIndex, producers: &Producers) -> io::Result<Vec<u8>> {
        let body = postcard::to_stdvec(&(index, producers)).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(body.len() + 12);
        bytes.extend_from_slice(INDEX_MAGIC);
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (sum, body) = bytes.strip_prefix(INDEX_MAGIC)?.split_first_chunk()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return None;
        }
        postcard::from_bytes(body).ok()
    }

    /// Reads the index of the segment at `base`, if there is one that fits its length.
    pub(super) fn load(disk: &dyn Disk, dir: &Path, base: i64, segment_bytes: u64) -> Option<Self> {
        let file = Self::decode(&disk.read(&index_path(dir, base)).ok()?)?;
        (file.index.base == base && file.index.bytes == segment_bytes).then_some(file)
    }

    /// Writes an encoded index next to its segment; readers see all of it or nothing.
    pub(super) fn store(disk: &dyn Disk, dir: &Path, base: i64, encoded: &[u8]) -> io::Result<()> {
        let path = index_path(dir, base);
        replace(disk, &path, &path.with_extension("index.new"), encoded)
    }
}

/// A closed segment. Its file is open only while it is read.
#[derive(Debug)]
pub(super) struct ClosedSegment {
    pub(super) index: SegmentIndex,
    open: Mutex<Weak<LogFile>>,
}

impl ClosedSegment {
    pub(super) fn new(index: SegmentIndex) -> Self {
        Self {
            index,
            open: Mutex::new(Weak::new()),
        }
    }

    pub(super) fn file(&self, disk: &dyn Disk, dir: &Path) -> io::Result<Arc<LogFile>> {
        let mut open = locked(&self.open);
        if let Some(file) = open.upgrade() {
            return Ok(file);
        }
        let path = segment_path(dir, self.index.base);
        let file = Arc::new(LogFile::open(disk, path)?);
        *open = Arc::downgrade(&file);
        Ok(file)
    }
}

/// The file of the segment that begins with `base`.
pub(crate) fn segment_path(dir: &Path, base: i64) -> PathBuf {
    dir.join(format!("{base:020}.log"))
}

pub(super) fn index_path(dir: &Path, base: i64) -> PathBuf {
    dir.join(format!("{base:020}.index"))
}

/// Opens a segment for appending and reading.
pub(super) fn open_segment(disk: &dyn Disk, dir: &Path, base: i64) -> io::Result<Arc<LogFile>> {
    LogFile::open_or_create(disk, segment_path(dir, base)).map(Arc::new)
}

/// The base offsets of the segments in `dir`, in order.
pub(super) fn list_segments(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<i64>> {
    list_bases(disk, dir, ".log")
}

/// The base offsets of the index files in `dir`, in order. A segment may be missing.
pub(super) fn list_indexes(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<i64>> {
    list_bases(disk, dir, ".index")
}

fn list_bases(disk: &dyn Disk, dir: &Path, suffix: &str) -> io::Result<Vec<i64>> {
    let mut bases = Vec::new();
    for name in disk.list(dir)? {
        let base = name
            .to_str()
            .and_then(|name| name.strip_suffix(suffix))
            .and_then(|digits| digits.parse::<i64>().ok())
            .filter(|&base| base >= 0);
        bases.extend(base);
    }
    bases.sort_unstable();
    Ok(bases)
}

#[cfg(test)]
pub(super) mod tests {
    use waybill_disk::files::SystemDisk;
    use waybill_wire::batch::made::batch;
    use waybill_wire::batch::rewritten;

    use super::*;

    pub(crate) fn filled_segment(
        dir: &Path,
        batches: i64,
    ) -> (Arc<LogFile>, SegmentIndex, Producers) {
        let file = open_segment(&SystemDisk, dir, 100).unwrap();
        let mut index = SegmentIndex::new(100);
        let mut producers = Producers::default();
        for n in 0..batches {
            let sent = batch(7, 0, n as i32 * 2, &[n * 10, n * 10 + 1]);
            let mut header = BatchHeader::read(&sent).unwrap();
            header.base_offset = index.next_offset;
            file.append(&rewritten(&sent, header.base_offset), &sent[16..])
                .unwrap();
            producers.record(&header, header.base_offset, 10);
            index.push(&header, header.base_offset);
        }
        (file, index, producers)
    }

    #[test]
    fn an_index_file_is_valid_for_its_segments_length_only() {
        let dir = tempfile::tempdir().unwrap();
        let (_, index, producers) = filled_segment(dir.path(), 3);
        let encoded = IndexFile::encode(&index, &producers).unwrap();
        IndexFile::store(&SystemDisk, dir.path(), 100, &encoded).unwrap();
        let loaded = IndexFile::load(&SystemDisk, dir.path(), 100, index.bytes).unwrap();
        assert_eq!((loaded.index, loaded.producers), (index.clone(), producers));
        assert!(IndexFile::load(&SystemDisk, dir.path(), 100, index.bytes + 1).is_none());
        for at in 0..encoded.len() {
            let mut bad = encoded.clone();
            bad[at] ^= 1;
            assert!(IndexFile::decode(&bad).is_none(), "byte {at}");
        }
    }
}
