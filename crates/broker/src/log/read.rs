//! Reading a partition by offset and by time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::batch::{self, BatchHeader, HEADER_BYTES};
use super::partition::{Condition, Log, Partition};
use super::segment::SCAN_BYTES;
use crate::locked;

/// Why a partition could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the offset is outside of the log")]
    OutOfRange,
    #[error("the partition is offline because its disk failed")]
    Offline,
    #[error("the topic was deleted")]
    Deleted,
    #[error("the log cannot be read")]
    Io(#[from] io::Error),
}

/// A place in a segment at or before the batch that is looked for.
struct Place {
    file: Arc<File>,
    position: u64,
    /// The segment's whole batches end here.
    end: u64,
    /// Whether `position` is the batch's own.
    exact: bool,
    /// Where to go on if the rest of the segment holds nothing of use.
    next_segment: i64,
}

impl Partition {
    /// Whether something can be read at `offset`.
    pub(crate) fn has_records(&self, offset: i64) -> Result<bool, ReadError> {
        match self.condition() {
            Condition::Online => {}
            Condition::Offline => return Err(ReadError::Offline),
            Condition::Deleted => return Err(ReadError::Deleted),
        }
        let high_watermark = self.high_watermark();
        if offset < self.log_start() || offset > high_watermark {
            return Err(ReadError::OutOfRange);
        }
        Ok(offset < high_watermark)
    }

    /// How many bytes can be read from `offset` on, at least: those of its segment.
    pub(crate) fn bytes_from(&self, offset: i64) -> Result<u64, ReadError> {
        if !self.has_records(offset)? {
            return Ok(0);
        }
        let log = locked(&self.log);
        Ok(self
            .place(&log, offset)?
            .map_or(0, |place| place.end - place.position))
    }

    /// Appends whole batches from the one that holds `offset` on to `out`: at most `bytes_max`,
    /// but the first one even if it is larger where `first_whole` says so.
    pub(crate) fn read(
        &self,
        mut offset: i64,
        bytes_max: usize,
        first_whole: bool,
        out: &mut BytesMut,
    ) -> Result<usize, ReadError> {
        let high_watermark = self.high_watermark();
        while self.has_records(offset)? {
            let Some(place) = self.place(&locked(&self.log), offset)? else {
                break;
            };
            let position = if place.exact {
                Some(place.position)
            } else {
                seek(&place, |header| {
                    header.last_offset().is_some_and(|last| last >= offset)
                })?
                .map(|(position, _)| position)
            };
            if let Some(position) = position {
                return copy(
                    &place,
                    position,
                    high_watermark,
                    bytes_max,
                    first_whole,
                    out,
                );
            }
            // Offsets that were lost with a damaged end of a segment: go on with the next one.
            if place.next_segment <= offset {
                break;
            }
            offset = place.next_segment;
        }
        Ok(0)
    }

    /// The offset and timestamp of the first record at or after `timestamp`, if there is one.
    pub(crate) fn offset_at_time(&self, timestamp: i64) -> Result<Option<(i64, i64)>, ReadError> {
        let (log_start, high_watermark) = (self.log_start(), self.high_watermark());
        let mut places = Vec::new();
        {
            let log = locked(&self.log);
            for segment in &log.closed {
                let index = &segment.index;
                if index.max_timestamp >= timestamp && index.next_offset > log_start {
                    places.push(Place {
                        file: segment.file(&self.dir)?,
                        position: index.position_before_time(timestamp),
                        end: index.bytes,
                        exact: false,
                        next_segment: index.next_offset,
                    });
                    break;
                }
            }
            if log.active.max_timestamp >= timestamp {
                places.push(Place {
                    file: Arc::clone(&log.file),
                    position: log.active.position_before_time(timestamp),
                    end: log.active.bytes,
                    exact: false,
                    next_segment: log.active.next_offset,
                });
            }
        }
        for place in places {
            let found = seek(&place, |header| {
                header.max_timestamp >= timestamp
                    && header.last_offset().is_some_and(|last| last >= log_start)
            })?;
            let Some((position, header)) = found else {
                continue;
            };
            let mut bytes = vec![0; header.bytes];
            place.file.read_exact_at(&mut bytes, position)?;
            let found = batch::first_at(&Bytes::from(bytes), timestamp)
                .unwrap_or((header.base_offset, header.base_timestamp));
            let found = (found.0.max(log_start), found.1);
            return Ok((found.0 < high_watermark).then_some(found));
        }
        Ok(None)
    }

    /// Where to begin to read for `offset`.
    fn place(&self, log: &Log, offset: i64) -> io::Result<Option<Place>> {
        if offset >= log.active.base {
            let after = log.recent.partition_point(|&(base, _)| base <= offset);
            let recent = after.checked_sub(1).and_then(|at| log.recent.get(at));
            return Ok(Some(Place {
                file: Arc::clone(&log.file),
                position: recent.map_or_else(
                    || log.active.position_before(offset),
                    |&(_, position)| position,
                ),
                end: log.active.bytes,
                exact: recent.is_some(),
                next_segment: log.active.next_offset,
            }));
        }
        let at = log
            .closed
            .partition_point(|segment| segment.index.next_offset <= offset);
        let Some(segment) = log.closed.get(at) else {
            return Ok(Some(Place {
                file: Arc::clone(&log.file),
                position: 0,
                end: log.active.bytes,
                exact: true,
                next_segment: log.active.next_offset,
            }));
        };
        Ok(Some(Place {
            file: segment.file(&self.dir)?,
            position: segment.index.position_before(offset),
            end: segment.index.bytes,
            exact: false,
            next_segment: segment.index.next_offset,
        }))
    }
}

/// The first batch from the place on whose header is `wanted`, and its position.
fn seek(
    place: &Place,
    wanted: impl Fn(&BatchHeader) -> bool,
) -> io::Result<Option<(u64, BatchHeader)>> {
    let mut position = place.position;
    let mut buffer = [0; SCAN_BYTES];
    while position + (HEADER_BYTES as u64) <= place.end {
        let take = usize::try_from(place.end - position)
            .unwrap_or(SCAN_BYTES)
            .min(SCAN_BYTES);
        place.file.read_exact_at(&mut buffer[..take], position)?;
        let mut at = 0;
        while let Some(header) = buffer.get(at..take).and_then(BatchHeader::read) {
            if wanted(&header) {
                return Ok(Some((position + at as u64, header)));
            }
            at += header.bytes;
        }
        if at == 0 {
            break;
        }
        position += at as u64;
    }
    Ok(None)
}

/// Copies whole batches below the high watermark.
fn copy(
    place: &Place,
    position: u64,
    high_watermark: i64,
    bytes_max: usize,
    first_whole: bool,
    out: &mut BytesMut,
) -> Result<usize, ReadError> {
    let start = out.len();
    let available = usize::try_from(place.end - position).unwrap_or(usize::MAX);
    let mut take = available.min(bytes_max);
    if first_whole {
        take = take.max(HEADER_BYTES.min(available));
    }
    out.resize(start + take, 0);
    if let Err(error) = place.file.read_exact_at(&mut out[start..], position) {
        out.truncate(start);
        return Err(error.into());
    }
    let mut whole = 0;
    while let Some(header) = BatchHeader::read(&out[start + whole..]) {
        if header.base_offset >= high_watermark {
            break;
        }
        if header.bytes > take - whole {
            if whole == 0 && first_whole && header.bytes <= available {
                out.resize(start + header.bytes, 0);
                let rest = &mut out[start + take..];
                if let Err(error) = place.file.read_exact_at(rest, position + take as u64) {
                    out.truncate(start);
                    return Err(error.into());
                }
                whole = header.bytes;
            }
            break;
        }
        whole += header.bytes;
    }
    out.truncate(start + whole);
    Ok(whole)
}
