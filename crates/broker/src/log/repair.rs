//! Makes a damaged log usable on request: drops damaged data, and keeps everything valid.
//!
//! What must hold:
//!
//! * **Nothing happens on its own.** Only [`Repair::apply`] changes files; a plan reports the
//!   damage.
//! * **No offset is assigned twice.** A batch without records replaces the lost ones and spans
//!   their offsets, as in a compacted log: consumers continue after it.
//! * **Damaged bytes are saved** in separate files before the log is changed.
//! * **An interrupted repair does no harm**: a segment is replaced as a whole; a retry does the
//!   rest.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use waybill_disk::files::{Disk, DiskFile, Open};
use waybill_wire::batch::filler;

use super::disk::LogFile;
use super::scan::{Boundary, find_verified, walk};
use super::segment::{LogError, index_path, list_segments, segment_path};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// A part of a segment that is dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Dropped {
    /// The segment's file.
    pub(crate) path: PathBuf,
    /// The bytes that are no valid batches; none if the file lacks data.
    pub(crate) bytes: Range<u64>,
    /// The offsets that are lost with them.
    pub(crate) offsets: Range<i64>,
}

/// A part of a segment.
#[derive(Debug)]
enum Piece {
    Kept(Range<u64>),
    Dropped(Dropped),
}

/// The repair of a segment.
#[derive(Debug)]
struct Segment {
    base: i64,
    path: PathBuf,
    /// `None` if it is missing.
    file: Option<LogFile>,
    pieces: Vec<Piece>,
}

/// The repair of a partition's log.
#[derive(Debug)]
pub(crate) struct Repair {
    dir: PathBuf,
    segments: Vec<Segment>,
}

impl Repair {
    /// Reads the whole log in `dir` and plans what to drop. Changes nothing.
    pub(crate) fn plan(
        disk: &dyn Disk,
        dir: &Path,
        synced_end: Option<i64>,
    ) -> Result<Self, LogError> {
        let mut plan = Self {
            dir: dir.to_owned(),
            segments: Vec::new(),
        };
        let mut bases = match list_segments(disk, dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            bases => bases.map_err(LogError::of("cannot list", dir))?,
        };
        // A start removes segments that follow a torn tail and hold nothing.
        while let [.., before, last] = bases[..]
            && before < last
            && synced_end.is_none_or(|end| end <= last)
            && holds_nothing(disk, dir, last)?
        {
            bases.pop();
        }
        if bases.is_empty() && synced_end.is_some_and(|end| end > 0) {
            bases.push(0);
        }
        for (at, &base) in bases.iter().enumerate() {
            let next_base = bases.get(at + 1).copied();
            plan.segments
                .push(Segment::plan(disk, dir, base, next_base, synced_end)?);
        }
        Ok(plan)
    }

    /// The dropped parts.
    pub(crate) fn dropped(&self) -> impl Iterator<Item = &Dropped> {
        self.segments.iter().flat_map(Segment::dropped)
    }

    /// Drops it. The damaged bytes are kept in files in `aside`, whose names are
    /// `base offset-position.damaged`.
    pub(crate) fn apply(&self, disk: &dyn Disk, aside: &Path) -> Result<(), LogError> {
        for segment in &self.segments {
            if segment.dropped().next().is_none() {
                continue;
            }
            segment
                .keep_aside(disk, aside)
                .map_err(LogError::of("cannot keep damaged bytes in", aside))?;
            segment
                .replace(disk, &self.dir)
                .map_err(LogError::of("cannot replace", &segment.path))?;
            tracing::warn!(path = %segment.path.display(), "repaired a segment");
        }
        Ok(())
    }
}

impl Segment {
    fn plan(
        disk: &dyn Disk,
        dir: &Path,
        base: i64,
        next_base: Option<i64>,
        synced_end: Option<i64>,
    ) -> Result<Self, LogError> {
        let path = segment_path(dir, base);
        let failed = |error| LogError::of("cannot read", &path)(error);
        let file = match LogFile::open(disk, path.clone()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => Some(file.map_err(failed)?),
        };
        let end = match &file {
            None => 0,
            Some(file) => file.bytes().map_err(failed)?,
        };
        let bound = next_base.unwrap_or(i64::MAX);
        let mut pieces = Vec::new();
        let mut at = Boundary {
            position: 0,
            offset: base,
        };
        let drop = |bytes: Range<u64>, offsets: Range<i64>| {
            Piece::Dropped(Dropped {
                path: path.clone(),
                bytes,
                offsets,
            })
        };
        while let Some(file) = &file {
            let reached = walk(file, at, end, |_| {}).map_err(failed)?;
            pieces.push(Piece::Kept(at.position..reached.position));
            at = reached;
            let offsets = at.offset..bound;
            let next = find_verified(file, at.position + 1, end, &offsets).map_err(failed)?;
            let Some(next) = next else {
                break;
            };
            pieces.push(drop(at.position..next.position, at.offset..next.offset));
            at = next;
        }
        let until = next_base.unwrap_or_else(|| synced_end.unwrap_or(at.offset).max(at.offset));
        if until > at.offset || (next_base.is_some() && at.position < end) {
            pieces.push(drop(at.position..end, at.offset..until));
        } else {
            // A torn tail, which a start cuts.
            pieces.push(Piece::Kept(at.position..end));
        }
        Ok(Self {
            base,
            path,
            file,
            pieces,
        })
    }

    fn dropped(&self) -> impl Iterator<Item = &Dropped> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Dropped(dropped) => Some(dropped),
            Piece::Kept(_) => None,
        })
    }

    fn keep_aside(&self, disk: &dyn Disk, aside: &Path) -> io::Result<()> {
        for dropped in self.dropped().filter(|dropped| !dropped.bytes.is_empty()) {
            disk.create_dir_all(aside)?;
            let mut copy = Copy::begin(disk, &aside_path(aside, dropped))?;
            self.copy(dropped.bytes.clone(), &mut copy)?;
            copy.file.sync()?;
            disk.sync_dir(aside)?;
        }
        Ok(())
    }

    /// Writes the kept parts to a new file, which then replaces the old one.
    fn replace(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        disk.create_dir_all(dir)?;
        let repaired = self.path.with_extension("log.repaired");
        let mut copy = Copy::begin(disk, &repaired)?;
        for piece in &self.pieces {
            match piece {
                Piece::Kept(bytes) => self.copy(bytes.clone(), &mut copy)?,
                Piece::Dropped(dropped) => {
                    let mut first = dropped.offsets.start;
                    while first < dropped.offsets.end {
                        let last = (dropped.offsets.end - 1).min(first + i64::from(i32::MAX));
                        copy.write(&filler(first, last))?;
                        first = last + 1;
                    }
                }
            }
        }
        copy.file.sync()?;
        match disk.remove(&index_path(dir, self.base)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // In a power loss, the new segment must not survive with the index of the old one.
        disk.sync_dir(dir)?;
        disk.rename(&repaired, &self.path)?;
        disk.sync_dir(dir)
    }

    fn copy(&self, bytes: Range<u64>, to: &mut Copy) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut buffer = vec![0; COPY_BYTES];
        let mut at = bytes.start;
        while at < bytes.end {
            let left = usize::try_from(bytes.end - at).unwrap_or(usize::MAX);
            let piece = &mut buffer[..left.min(COPY_BYTES)];
            file.read_exact_at(piece, at)?;
            to.write(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

/// A new file that is written from its beginning.
struct Copy {
    file: Box<dyn DiskFile>,
    bytes: u64,
}

impl Copy {
    fn begin(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let file = disk.open(path, Open::Empty)?;
        Ok(Self { file, bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Where dropped bytes are kept.
pub(crate) fn aside_path(aside: &Path, dropped: &Dropped) -> PathBuf {
    let base = dropped.path.file_stem().unwrap_or_default();
    let name = format!("{}-{}.damaged", base.display(), dropped.bytes.start);
    aside.join(name)
}

/// Whether there is no valid batch in a segment.
fn holds_nothing(disk: &dyn Disk, dir: &Path, base: i64) -> Result<bool, LogError> {
    let path = segment_path(dir, base);
    let failed = |error| LogError::of("cannot read", &path)(error);
    let file = LogFile::open(disk, path.clone()).map_err(failed)?;
    let end = file.bytes().map_err(failed)?;
    let found = find_verified(&file, 0, end, &(base..i64::MAX)).map_err(failed)?;
    Ok(found.is_none())
}
