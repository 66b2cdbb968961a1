//! Finding out what a partition's directory holds.
//!
//! Closed segments with a valid index are taken at its word; everything else is read and checked
//! batch by batch. So a start reads the active segment of each partition, and after an orderly
//! shutdown not even that.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::producers::Producers;
use super::segment::{
    ClosedSegment, IndexFile, LogError, SegmentIndex, index_path, list_segments, open_segment,
    scan, segment_path, sync_dir,
};
use crate::TopicConfig;

/// What was found.
pub(super) struct Recovered {
    pub(super) closed: VecDeque<Arc<ClosedSegment>>,
    pub(super) active: SegmentIndex,
    pub(super) file: Arc<File>,
    pub(super) producers: Producers,
}

/// Opens what is in `dir`, or begins a log there. A torn tail is cut.
pub(super) fn recover(
    dir: &Path,
    config: &TopicConfig,
    producers_max: usize,
) -> Result<Recovered, LogError> {
    fs::create_dir_all(dir).map_err(LogError::of("cannot create", dir))?;
    let bases = list_segments(dir).map_err(LogError::of("cannot list", dir))?;
    let (&last, others) = bases.split_last().unwrap_or((&0, &[]));
    let mut producers = Producers::default();
    let mut closed = VecDeque::with_capacity(others.len());
    for &base in others {
        let found = Segment::open(dir, base)?;
        let index = found.read(dir, &mut producers, producers_max, Segment::keep_closed)?;
        closed.push_back(Arc::new(ClosedSegment::new(index)));
    }
    let found = Segment::open(dir, last)?;
    let syncs = config.flush_messages.is_some();
    let active = found.read(
        dir,
        &mut producers,
        producers_max,
        |found, dir, index, _| {
            found.cut(dir, index)?;
            // What is in it will be visible, so it has to be durable where that is asked for.
            if syncs { found.sync(dir) } else { Ok(()) }
        },
    )?;
    // It describes the length that the active segment had; the next append makes it wrong.
    let index_path = index_path(dir, last);
    match fs::remove_file(&index_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(LogError::of("cannot remove", &index_path)(error));
        }
        _ => {}
    }
    sync_dir(dir).map_err(LogError::of("cannot sync", dir))?;
    Ok(Recovered {
        closed,
        active,
        file: found.file,
        producers,
    })
}

/// A segment that is being looked at.
struct Segment {
    base: i64,
    file: Arc<File>,
    file_bytes: u64,
}

impl Segment {
    fn open(dir: &Path, base: i64) -> Result<Self, LogError> {
        let path = segment_path(dir, base);
        let file = open_segment(dir, base).map_err(LogError::of("cannot open", &path))?;
        let file_bytes = file
            .metadata()
            .map_err(LogError::of("cannot read", &path))?
            .len();
        Ok(Self {
            base,
            file,
            file_bytes,
        })
    }

    /// Takes the segment's index, or reads the segment and then does with it what `scanned` says.
    fn read(
        &self,
        dir: &Path,
        producers: &mut Producers,
        producers_max: usize,
        scanned: impl FnOnce(&Self, &Path, &SegmentIndex, &Producers) -> Result<(), LogError>,
    ) -> Result<SegmentIndex, LogError> {
        if let Some(known) = IndexFile::load(dir, self.base, self.file_bytes) {
            *producers = known.producers;
            return Ok(known.index);
        }
        let index = scan(
            &self.file,
            self.base,
            self.file_bytes,
            producers,
            producers_max,
        )
        .map_err(LogError::of("cannot read", &segment_path(dir, self.base)))?;
        scanned(self, dir, &index, producers)?;
        Ok(index)
    }

    /// Gives a closed segment the index that it lacks.
    fn keep_closed(
        &self,
        dir: &Path,
        index: &SegmentIndex,
        producers: &Producers,
    ) -> Result<(), LogError> {
        if index.bytes < self.file_bytes {
            tracing::error!(
                path = %segment_path(dir, self.base).display(),
                unread_bytes = self.file_bytes - index.bytes,
                next_offset = index.next_offset,
                "the end of a closed segment is damaged and will not be read"
            );
            return Ok(());
        }
        self.sync(dir)?;
        IndexFile::encode(index, producers)
            .and_then(|encoded| IndexFile::store(dir, self.base, &encoded))
            .map_err(LogError::of("cannot write", &index_path(dir, self.base)))
    }

    /// Cuts what follows the last whole batch.
    fn cut(&self, dir: &Path, index: &SegmentIndex) -> Result<(), LogError> {
        if index.bytes == self.file_bytes {
            return Ok(());
        }
        let path = segment_path(dir, self.base);
        tracing::warn!(
            path = %path.display(),
            cut_bytes = self.file_bytes - index.bytes,
            next_offset = index.next_offset,
            "cut a torn tail"
        );
        self.file
            .set_len(index.bytes)
            .map_err(LogError::of("cannot cut", &path))
    }

    fn sync(&self, dir: &Path) -> Result<(), LogError> {
        let path = segment_path(dir, self.base);
        self.file
            .sync_data()
            .map_err(LogError::of("cannot sync", &path))
    }
}
