//! One segment file with its sparse index.
//!
//! A segment is named after the offset of its first record. The active (last) one is appended to;
//! a closed one never changes again and has an index file beside it, which also holds the state
//! of the partition's producers at the segment's end. An index file is written only after its
//! segment was synced, so a segment with a valid index needs no scan. The active segment gets one
//! at an orderly shutdown; it is valid for exactly the length that the segment had then.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use serde::{Deserialize, Serialize};

use super::batch::{BatchHeader, HEADER_BYTES};
use super::producers::Producers;
use crate::locked;

/// Bytes of log per entry of the sparse index: 10 GB of log take 10 MB of index.
const INDEX_INTERVAL_BYTES: u64 = 16 << 10;
/// Bytes read at a time where headers are looked for.
pub(super) const SCAN_BYTES: usize = 64 << 10;
const INDEX_MAGIC: &[u8; 8] = b"WBINDEX1";

/// Why a partition's log could not be opened or created.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}")]
pub(crate) struct LogError {
    pub(crate) action: &'static str,
    pub(crate) path: PathBuf,
    #[source]
    pub(crate) source: io::Error,
}

impl LogError {
    pub(crate) fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self {
            action,
            path,
            source,
        }
    }
}

/// Where a batch begins, and the newest timestamp before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Entry {
    offset: u32,
    position: u32,
    max_timestamp_before: i64,
}

/// What is known of a segment's content.
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

    /// Takes note of a batch at the segment's end, whose first record has `base_offset`.
    pub(super) fn push(&mut self, batch: &BatchHeader, base_offset: i64) {
        let due = self
            .entries
            .last()
            .is_none_or(|last| self.bytes >= u64::from(last.position) + INDEX_INTERVAL_BYTES);
        // What does not fit an entry is found by scanning from the entry before.
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

    /// A position at or before the batch that holds `offset`.
    pub(super) fn position_before(&self, offset: i64) -> u64 {
        let relative = u32::try_from(offset - self.base).unwrap_or(u32::MAX);
        let after = self
            .entries
            .partition_point(|entry| entry.offset <= relative);
        after
            .checked_sub(1)
            .map_or(0, |at| u64::from(self.entries[at].position))
    }

    /// A position at or before the first batch with a timestamp of at least `timestamp`.
    pub(super) fn position_before_time(&self, timestamp: i64) -> u64 {
        let after = self
            .entries
            .partition_point(|e| e.max_timestamp_before < timestamp);
        after
            .checked_sub(1)
            .map_or(0, |at| u64::from(self.entries[at].position))
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
    pub(super) fn load(dir: &Path, base: i64, segment_bytes: u64) -> Option<Self> {
        let file = Self::decode(&fs::read(index_path(dir, base)).ok()?)?;
        (file.index.base == base && file.index.bytes == segment_bytes).then_some(file)
    }

    /// Writes an encoded index beside its segment; readers see all of it or nothing.
    pub(super) fn store(dir: &Path, base: i64, encoded: &[u8]) -> io::Result<()> {
        let path = index_path(dir, base);
        let unfinished = path.with_extension("index.new");
        fs::write(&unfinished, encoded)?;
        fs::rename(&unfinished, &path)
    }
}

/// A segment that is no longer appended to. Its file is open only while someone reads it.
#[derive(Debug)]
pub(super) struct ClosedSegment {
    pub(super) index: SegmentIndex,
    open: Mutex<Weak<File>>,
}

impl ClosedSegment {
    pub(super) fn new(index: SegmentIndex) -> Self {
        Self {
            index,
            open: Mutex::new(Weak::new()),
        }
    }

    pub(super) fn file(&self, dir: &Path) -> io::Result<Arc<File>> {
        let mut open = locked(&self.open);
        if let Some(file) = open.upgrade() {
            return Ok(file);
        }
        let file = Arc::new(File::open(segment_path(dir, self.index.base))?);
        *open = Arc::downgrade(&file);
        Ok(file)
    }
}

pub(super) fn segment_path(dir: &Path, base: i64) -> PathBuf {
    dir.join(format!("{base:020}.log"))
}

pub(super) fn index_path(dir: &Path, base: i64) -> PathBuf {
    dir.join(format!("{base:020}.index"))
}

/// Opens a segment for appending and reading.
pub(super) fn open_segment(dir: &Path, base: i64) -> io::Result<Arc<File>> {
    let path = segment_path(dir, base);
    OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .open(path)
        .map(Arc::new)
}

/// Begins a segment that is not there yet.
pub(crate) fn new_segment(dir: &Path, base: i64) -> io::Result<(PathBuf, File)> {
    let path = segment_path(dir, base);
    let file = File::create_new(&path)?;
    Ok((path, file))
}

/// Makes the names in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The base offsets of the segments in `dir`, in order.
pub(super) fn list_segments(dir: &Path) -> io::Result<Vec<i64>> {
    let mut bases = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let base = name
            .to_str()
            .and_then(|name| name.strip_suffix(".log"))
            .and_then(|digits| digits.parse::<i64>().ok())
            .filter(|&base| base >= 0);
        bases.extend(base);
    }
    bases.sort_unstable();
    Ok(bases)
}

/// Reads a segment from its start, checking every batch, and stops at the first that is torn or
/// makes no sense.
pub(super) fn scan(
    file: &File,
    base: i64,
    file_bytes: u64,
    producers: &mut Producers,
    producers_max: usize,
) -> io::Result<SegmentIndex> {
    let mut index = SegmentIndex::new(base);
    let mut buffer = vec![0; 1 << 20];
    // The part of `buffer` that holds the file's bytes from `index.bytes` on.
    let (mut from, mut filled) = (0, 0);
    loop {
        let header = BatchHeader::read(&buffer[from..filled]);
        let whole = header.is_some_and(|header| header.bytes <= filled - from);
        if whole
            && let Some(header) = header
            && let Some(last_offset) = header.last_offset()
        {
            let sound = header.magic == 2
                && header.base_offset >= index.next_offset
                && last_offset < i64::MAX
                && header.is_intact(&buffer[from..]);
            if !sound {
                return Ok(index);
            }
            index.push(&header, header.base_offset);
            producers.record(&header, header.base_offset, producers_max);
            from += header.bytes;
            continue;
        }
        let wanted = header.map_or(HEADER_BYTES, |header| header.bytes);
        let left = file_bytes.saturating_sub(index.bytes);
        if whole || (wanted as u64) > left || (header.is_none() && filled - from >= HEADER_BYTES) {
            return Ok(index);
        }
        buffer.copy_within(from..filled, 0);
        filled -= from;
        from = 0;
        if buffer.len() < wanted {
            buffer.resize(wanted, 0);
        }
        let take = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = file.read_at(&mut buffer[filled..take], index.bytes + filled as u64)?;
        if read == 0 {
            return Ok(index);
        }
        filled += read;
    }
}

/// Appends `front` and `rest` as one piece.
pub(super) fn append(mut file: &File, front: &[u8], rest: &[u8]) -> io::Result<()> {
    let mut slices = [io::IoSlice::new(front), io::IoSlice::new(rest)];
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => io::IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::batch::{rewritten, tests::batch};
    use super::*;

    fn filled_segment(dir: &Path, batches: i64) -> (Arc<File>, SegmentIndex, Producers) {
        let file = open_segment(dir, 100).unwrap();
        let mut index = SegmentIndex::new(100);
        let mut producers = Producers::default();
        for n in 0..batches {
            let sent = batch(7, 0, n as i32 * 2, &[n * 10, n * 10 + 1]);
            let mut header = BatchHeader::read(&sent).unwrap();
            header.base_offset = index.next_offset;
            append(&file, &rewritten(&sent, header.base_offset), &sent[16..]).unwrap();
            producers.record(&header, header.base_offset, 10);
            index.push(&header, header.base_offset);
        }
        (file, index, producers)
    }

    #[test]
    fn a_scan_finds_what_was_appended() {
        let dir = tempfile::tempdir().unwrap();
        let (file, index, producers) = filled_segment(dir.path(), 20_000);
        let mut found = Producers::default();
        let scanned = scan(&file, 100, index.bytes, &mut found, 10).unwrap();
        assert_eq!(scanned, index);
        assert_eq!(found, producers);
        assert!(index.entries.len() > 50);
    }

    #[test]
    fn a_scan_stops_at_the_last_whole_batch_wherever_the_file_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (file, index, _) = filled_segment(dir.path(), 3);
        let batch_bytes = index.bytes / 3;
        for end in 0..index.bytes {
            let scanned = scan(&file, 100, end, &mut Producers::default(), 10).unwrap();
            assert_eq!(
                scanned.bytes,
                end / batch_bytes * batch_bytes,
                "cut at {end}"
            );
        }
    }

    #[test]
    fn an_index_file_is_valid_for_its_segments_length_only() {
        let dir = tempfile::tempdir().unwrap();
        let (_, index, producers) = filled_segment(dir.path(), 3);
        let encoded = IndexFile::encode(&index, &producers).unwrap();
        IndexFile::store(dir.path(), 100, &encoded).unwrap();
        let loaded = IndexFile::load(dir.path(), 100, index.bytes).unwrap();
        assert_eq!((loaded.index, loaded.producers), (index.clone(), producers));
        assert!(IndexFile::load(dir.path(), 100, index.bytes + 1).is_none());
        for at in 0..encoded.len() {
            let mut bad = encoded.clone();
            bad[at] ^= 1;
            assert!(IndexFile::decode(&bad).is_none(), "byte {at}");
        }
    }
}
