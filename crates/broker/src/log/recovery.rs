//! Determines the contents of a partition's directory.
//!
//! A closed segment is not read if its valid index fits its length and the next segment's name: its
//! batches are checked whenever they are read. Everything else, always including the active
//! segment, is read and checked batch by batch. So a start reads the active segment of each
//! partition.
//!
//! What must hold:
//!
//! * **A tail is torn only if nothing valid follows it**, in its segment or a later one, or if the
//!   machine has booted since and the tail was not synced: a power failure leaves unsynced writes
//!   out of order. It is then cut off. Other damage, or an end before the synced end, refuses the
//!   log; `repair` is for that.
//! * **Unsynced data is rewritten before it is visible**, or on a topic that is not synced before
//!   it counts as synced. It may be clean in the page cache although the disk never got it; a sync
//!   alone would succeed and write nothing.
//! * **An index is only for the segment that it was written for.** A power failure may remove a
//!   segment and leave its index. A new segment with the same first offset and length would be
//!   taken as synced. So a start removes all indexes but those of closed segments.
//! * **A start needs no space.** Anything that a full disk cannot take is optional.
//!
//! Not detected: a damaged batch of a closed segment with an index, until it is read; lost records
//! whose synced end could not be stored, or is damaged or missing as well (see
//! [`synced`](super::synced)); damage of another cause behind the synced end, if the machine has
//! booted since. On a synced topic, nothing behind a stored synced end was acknowledged.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use waybill_disk::files::Disk;
use waybill_disk::is_full;

use super::damage::Damage;
use super::disk::LogFile;
use super::producers::Producers;
use super::scan::{find, scan};
use super::segment::{
    ClosedSegment, IndexFile, LogError, SegmentIndex, index_path, list_indexes, list_segments,
    open_segment, segment_path,
};
use super::synced::KnownSync;
use crate::TopicConfig;

/// The result of recovery.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) closed: VecDeque<Arc<ClosedSegment>>,
    pub(super) active: SegmentIndex,
    pub(super) file: Arc<LogFile>,
    pub(super) producers: Producers,
}

/// Opens the log in `dir`, or begins one there. A torn tail is truncated.
pub(super) fn recover(
    disk: &dyn Disk,
    dir: &Path,
    config: &TopicConfig,
    known: KnownSync,
    producers_max: usize,
) -> Result<Recovered, LogError> {
    let synced_end = known.end;
    disk.create_dir_all(dir)
        .map_err(LogError::of("cannot create", dir))?;
    let mut bases = list_segments(disk, dir).map_err(LogError::of("cannot list", dir))?;
    if bases.is_empty() {
        if let Some(synced_end) = synced_end.filter(|end| *end > 0) {
            return Err(LogError::Damaged(Damage::Missing {
                path: dir.to_owned(),
                synced_end,
            }));
        }
        bases.push(0);
    }
    let mut producers = Producers::default();
    let mut segments = Vec::with_capacity(bases.len());
    for (at, &base) in bases.iter().enumerate() {
        let next_base = bases.get(at + 1).copied();
        let segment = Segment::read(disk, dir, base, next_base, &mut producers, producers_max)?;
        let is_whole = segment.is_whole(next_base);
        segments.push(segment);
        if !is_whole {
            break;
        }
    }
    let later = &bases[segments.len()..];
    let Some(active) = segments.pop() else {
        unreachable!("there is at least one segment");
    };
    let end = active.index.next_offset;
    if !active.is_whole(later.first().copied()) && !known.may_be_lost_from(end) {
        active.refuse_unless_torn(disk, dir, later)?;
    }
    if let Some(synced_end) = synced_end
        && end < synced_end
    {
        return Err(LogError::Damaged(Damage::Short {
            path: segment_path(dir, active.index.base),
            position: active.index.bytes,
            offset: end,
            synced_end,
        }));
    }
    for &base in later {
        remove(disk, dir, base)?;
    }
    for segment in segments.iter().filter(|segment| !segment.has_index) {
        segment.write_again(disk, synced_end)?;
        // Also if nothing was written: else a tail that was cut when this segment was the active
        // one could return in a power loss, before the valid data that follows.
        let synced = segment.file.sync(disk);
        synced.map_err(LogError::of("cannot sync", segment.file.path()))?;
        segment.store_index(disk, dir)?;
    }
    active.cut(disk)?;
    // Its content will be visible, so it must be durable if the topic is synced.
    match (config.flush_messages, active.unsynced(synced_end)) {
        (Some(_), _) => active.write_again(disk, synced_end)?,
        (None, Some(bytes)) => active.file.rewrite_at_sync(bytes),
        (None, None) => {}
    }
    remove_indexes(disk, dir, &segments)?;
    disk.sync_dir(dir)
        .map_err(LogError::of("cannot sync", dir))?;
    let closed = segments
        .into_iter()
        .map(|segment| Arc::new(ClosedSegment::new(segment.index)))
        .collect();
    Ok(Recovered {
        closed,
        active: active.index,
        file: active.file,
        producers,
    })
}

/// A segment that was examined.
struct Segment {
    file: Arc<LogFile>,
    file_bytes: u64,
    /// Its valid part.
    index: SegmentIndex,
    /// Whether `index` is from its index file.
    has_index: bool,
    /// The producers at its end.
    producers: Producers,
}

impl Segment {
    /// Takes the segment's index, or reads the segment.
    fn read(
        disk: &dyn Disk,
        dir: &Path,
        base: i64,
        next_base: Option<i64>,
        producers: &mut Producers,
        producers_max: usize,
    ) -> Result<Self, LogError> {
        let path = segment_path(dir, base);
        let file = open_segment(disk, dir, base).map_err(LogError::of("cannot open", &path))?;
        let file_bytes = file.bytes().map_err(LogError::of("cannot read", &path))?;
        let known = IndexFile::load(disk, dir, base, file_bytes);
        let has_index = known.is_some() && next_base.is_some();
        let index = match known {
            Some(known) if has_index => {
                *producers = known.producers;
                known.index
            }
            known => {
                let scanned = scan(&file, base, file_bytes, producers, producers_max)
                    .map_err(LogError::of("cannot read", &path))?;
                // The index knows of producers whose segments are deleted.
                if let Some(known) = known
                    && known.index == scanned
                {
                    *producers = known.producers;
                }
                scanned
            }
        };
        Ok(Self {
            file,
            file_bytes,
            index,
            has_index,
            producers: producers.clone(),
        })
    }

    /// Whether all of it is valid and the next segment follows on it.
    fn is_whole(&self, next_base: Option<i64>) -> bool {
        self.index.bytes == self.file_bytes
            && next_base.is_none_or(|next| next == self.index.next_offset)
    }

    /// Refuses the log if valid data follows the first invalid data.
    fn refuse_unless_torn(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        later: &[i64],
    ) -> Result<(), LogError> {
        let path = segment_path(dir, self.index.base);
        let bound = later.first().copied().unwrap_or(i64::MAX);
        let offsets = self.index.next_offset..bound;
        let mut found = find(&self.file, self.index.bytes + 1, self.file_bytes, &offsets)
            .map_err(LogError::of("cannot read", &path))?
            .map(|next| (path.clone(), next));
        for (at, &base) in later.iter().enumerate() {
            if found.is_some() {
                break;
            }
            let bound = later.get(at + 1).copied().unwrap_or(i64::MAX);
            let path = segment_path(dir, base);
            let failed = |error| LogError::of("cannot read", &path)(error);
            let file = LogFile::open(disk, path.clone()).map_err(failed)?;
            let bytes = file.bytes().map_err(failed)?;
            let next = find(&file, 0, bytes, &(base..bound)).map_err(failed)?;
            found = next.map(|next| (path, next));
        }
        match found {
            None => Ok(()),
            Some((next_path, next)) => Err(LogError::Damaged(Damage::Inside {
                path,
                position: self.index.bytes,
                offset: self.index.next_offset,
                next_path,
                next_position: next.boundary.position,
                next_offset: next.boundary.offset,
                is_verified: next.is_verified,
            })),
        }
    }

    /// Cuts off what follows the last whole batch. Durable when it returns: else a part of it could
    /// return in a power loss, behind what was appended in its place.
    fn cut(&self, disk: &dyn Disk) -> Result<(), LogError> {
        if self.index.bytes == self.file_bytes {
            return Ok(());
        }
        let path = self.file.path();
        tracing::warn!(
            path = %path.display(),
            cut_bytes = self.file_bytes - self.index.bytes,
            next_offset = self.index.next_offset,
            "cut a torn tail"
        );
        let cut = self.file.cut(self.index.bytes);
        cut.map_err(LogError::of("cannot cut", path))?;
        let synced = self.file.sync(disk);
        synced.map_err(LogError::of("cannot sync", path))
    }

    /// Rewrites and syncs the part that is not known to be synced.
    fn write_again(&self, disk: &dyn Disk, synced_end: Option<i64>) -> Result<(), LogError> {
        let Some(bytes) = self.unsynced(synced_end) else {
            return Ok(());
        };
        self.file
            .rewrite(disk, bytes.start, bytes.end)
            .map_err(LogError::of("cannot write again", self.file.path()))
    }

    /// The whole batches that are not known to be synced.
    fn unsynced(&self, synced_end: Option<i64>) -> Option<Range<u64>> {
        let index = &self.index;
        let synced_end = synced_end.unwrap_or(0).max(index.base);
        (synced_end < index.next_offset).then(|| {
            let (from, _) = index.batch_before(synced_end);
            from..index.bytes
        })
    }

    /// Writes the missing index of a closed segment. A failure does no harm.
    fn store_index(&self, disk: &dyn Disk, dir: &Path) -> Result<(), LogError> {
        let path = index_path(dir, self.index.base);
        let stored = IndexFile::encode(&self.index, &self.producers)
            .and_then(|encoded| IndexFile::store(disk, dir, self.index.base, &encoded));
        match stored {
            Err(error) if is_full(&error) => {
                tracing::warn!(path = %path.display(), %error, "the disk is full: could not write the index of a closed segment");
                Ok(())
            }
            stored => stored.map_err(LogError::of("cannot write", &path)),
        }
    }
}

/// Removes a segment that follows a torn tail.
fn remove(disk: &dyn Disk, dir: &Path, base: i64) -> Result<(), LogError> {
    let path = segment_path(dir, base);
    tracing::warn!(path = %path.display(), "removed a segment after a torn tail");
    disk.remove(&path)
        .map_err(LogError::of("cannot remove", &path))
}

/// Removes the indexes of all segments but the closed ones. That of the active segment describes
/// the length that it had, and an append makes it wrong; that of a missing one would count for a
/// new one.
fn remove_indexes(disk: &dyn Disk, dir: &Path, closed: &[Segment]) -> Result<(), LogError> {
    let indexes = list_indexes(disk, dir).map_err(LogError::of("cannot list", dir))?;
    for base in indexes {
        let found = closed.binary_search_by_key(&base, |segment| segment.index.base);
        if found.is_ok() {
            continue;
        }
        let path = index_path(dir, base);
        match disk.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(LogError::of("cannot remove", &path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
