//! Reading a partition by offset and by time.
//!
//! What must hold: **no batch leaves unchecked.** Its checksum is verified at every read, and what
//! that does not cover, above all its base offset, must follow the batch before. A damaged batch is
//! an error, never a gap; batches before it are served.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use waybill_wire::batch::{self, BatchHeader, HEADER_BYTES};

use super::damage::DamagedBatch;
use super::disk::LogFile;
use super::partition::{Condition, Log, Partition};
use crate::locked;

/// Bytes read at a time in a search for headers.
const SCAN_BYTES: usize = 64 << 10;

/// Why a partition could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the offset is outside the log")]
    OutOfRange,
    #[error("the partition is offline because its disk failed")]
    Offline,
    #[error("the topic was deleted")]
    Deleted,
    #[error(transparent)]
    Damaged(#[from] DamagedBatch),
    #[error("cannot read the log")]
    Io(#[from] io::Error),
}

/// The start of the searched batch, or of one before it.
#[derive(Clone)]
struct BatchCursor {
    file: Arc<LogFile>,
    position: u64,
    /// The batch's first offset.
    offset: i64,
    /// Whether it is the searched one.
    is_exact: bool,
    /// Where the segment's whole batches end.
    end: u64,
}

impl BatchCursor {
    /// The whole batch at the cursor, whose header is `header`. Verifies its checksum.
    fn batch(&self, header: &BatchHeader) -> Result<Bytes, ReadError> {
        let damaged = || self.damaged(self.position, self.offset);
        if header.bytes as u64 > self.end - self.position {
            return Err(damaged());
        }
        let mut bytes = vec![0; header.bytes];
        self.file.read_exact_at(&mut bytes, self.position)?;
        if !header.is_intact(&bytes) {
            return Err(damaged());
        }
        Ok(Bytes::from(bytes))
    }

    /// The batch at `position`, which should begin with `offset`, is damaged.
    fn damaged(&self, position: u64, offset: i64) -> ReadError {
        ReadError::Damaged(DamagedBatch {
            path: self.file.path().to_owned(),
            position,
            offset,
        })
    }
}

impl Partition {
    /// Refuses to read a partition that is offline or deleted. A full one is read; see
    /// [`Self::report_if_damaged`].
    fn check_condition(&self) -> Result<(), ReadError> {
        match self.condition() {
            Condition::Online | Condition::Full => Ok(()),
            Condition::Offline => Err(ReadError::Offline),
            Condition::Deleted => Err(ReadError::Deleted),
        }
    }

    /// Whether something can be read at `offset`.
    pub(crate) fn has_records(&self, offset: i64) -> Result<bool, ReadError> {
        self.check_condition()?;
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
        let cursor = self.cursor(&locked(&self.log), offset)?;
        Ok(cursor.end - cursor.position)
    }

    /// Appends whole batches from the one that holds `offset` on to `out`: at most `bytes_max`, but
    /// the first one even if it is larger, if `first_whole` is set.
    pub(crate) fn read(
        &self,
        offset: i64,
        bytes_max: usize,
        first_whole: bool,
        out: &mut BytesMut,
    ) -> Result<usize, ReadError> {
        let high_watermark = self.high_watermark();
        if !self.has_records(offset)? {
            return Ok(0);
        }
        let cursor = self.cursor(&locked(&self.log), offset)?;
        let holds = |header: &BatchHeader| header.last_offset().is_some_and(|last| last >= offset);
        let found = if cursor.is_exact {
            Ok(Ok(cursor))
        } else {
            seek(cursor, holds).map(|found| found.map(|(cursor, _)| cursor))
        };
        found
            .and_then(|found| match found {
                Ok(cursor) => copy(&cursor, high_watermark, bytes_max, first_whole, out),
                // It is below the end of the segment, so it must be there.
                Err(cursor) => Err(cursor.damaged(cursor.position, cursor.offset)),
            })
            .map_err(|error| self.report_if_damaged(error))
    }

    /// The offset and timestamp of the first record at or after `timestamp`, if there is one.
    pub(crate) fn offset_at_time(&self, timestamp: i64) -> Result<Option<(i64, i64)>, ReadError> {
        self.find_time(timestamp)
            .map_err(|error| self.report_if_damaged(error))
    }

    fn find_time(&self, timestamp: i64) -> Result<Option<(i64, i64)>, ReadError> {
        self.check_condition()?;
        let (log_start, high_watermark) = (self.log_start(), self.high_watermark());
        let mut cursors = Vec::new();
        {
            let log = locked(&self.log);
            for segment in &log.closed {
                let index = &segment.index;
                if index.max_timestamp >= timestamp && index.next_offset > log_start {
                    let (position, offset) = index.batch_before_time(timestamp);
                    cursors.push(BatchCursor {
                        file: segment.file(&*self.limits.disk, &self.dir)?,
                        position,
                        offset,
                        is_exact: false,
                        end: index.bytes,
                    });
                    // Else the record with that time may be before the log start.
                    if index.base >= log_start {
                        break;
                    }
                }
            }
            if log.active.max_timestamp >= timestamp {
                let (position, offset) = log.active.batch_before_time(timestamp);
                cursors.push(BatchCursor {
                    file: Arc::clone(&log.file),
                    position,
                    offset,
                    is_exact: false,
                    end: log.active.bytes,
                });
            }
        }
        for cursor in cursors {
            let found = seek(cursor, |header| {
                header.max_timestamp >= timestamp
                    && header.last_offset().is_some_and(|last| last >= log_start)
            })?;
            let Ok((cursor, header)) = found else {
                continue;
            };
            let found = batch::first_at(&cursor.batch(&header)?, timestamp)
                .unwrap_or((header.base_offset, header.base_timestamp));
            let found = (found.0.max(log_start), found.1);
            return Ok((found.0 < high_watermark).then_some(found));
        }
        Ok(None)
    }

    /// The offset and timestamp of the first record with the largest timestamp; `None` in an empty
    /// log. The records of a compressed batch are not decoded: there it is the first record if that
    /// one has the timestamp, and the last one otherwise.
    pub(crate) fn largest_timestamp(&self) -> Result<Option<(i64, i64)>, ReadError> {
        self.find_largest_timestamp()
            .map_err(|error| self.report_if_damaged(error))
    }

    fn find_largest_timestamp(&self) -> Result<Option<(i64, i64)>, ReadError> {
        self.check_condition()?;
        let (log_start, high_watermark) = (self.log_start(), self.high_watermark());
        let is_visible = |header: &BatchHeader| {
            header.last_offset().is_some_and(|last| last >= log_start)
                && header.base_offset < high_watermark
        };
        let mut largest: Option<(i64, BatchCursor)> = None;
        for (cursor, known) in self.visible_segments(log_start, high_watermark)? {
            let found = match known {
                Some(known) => Some(known),
                None => {
                    let mut found = None;
                    let _end = seek(cursor.clone(), |header| {
                        if is_visible(header) {
                            found = found.max(Some(header.max_timestamp));
                        }
                        false
                    })?;
                    found
                }
            };
            // Of equal timestamps, the first.
            if let Some(found) = found
                && largest.as_ref().is_none_or(|(largest, _)| found > *largest)
            {
                largest = Some((found, cursor));
            }
        }
        let Some((timestamp, cursor)) = largest else {
            return Ok(None);
        };
        let wanted = |header: &BatchHeader| is_visible(header) && header.max_timestamp == timestamp;
        let Ok((cursor, header)) = seek(cursor, wanted)? else {
            return Ok(None);
        };
        let offset = match batch::first_at(&cursor.batch(&header)?, timestamp) {
            Some((offset, at)) if at == timestamp => offset,
            Some(_) | None => header.last_offset().unwrap_or(header.base_offset),
        };
        Ok(Some((offset.max(log_start), timestamp)))
    }

    /// The segments with visible records, in order, with the largest timestamp of completely
    /// visible ones, from the index. The others, at the ends of the log, must be read.
    fn visible_segments(
        &self,
        log_start: i64,
        high_watermark: i64,
    ) -> io::Result<Vec<(BatchCursor, Option<i64>)>> {
        let log = locked(&self.log);
        let closed = log
            .closed
            .iter()
            .map(|closed| (&closed.index, Some(closed)));
        let all = closed.chain([(&log.active, None)]);
        let visible =
            all.filter(|(index, _)| index.next_offset > log_start && index.base < high_watermark);
        visible
            .map(|(index, closed)| {
                let cursor = BatchCursor {
                    file: match closed {
                        Some(segment) => segment.file(&*self.limits.disk, &self.dir)?,
                        None => Arc::clone(&log.file),
                    },
                    position: 0,
                    offset: index.base,
                    is_exact: false,
                    end: index.bytes,
                };
                let is_whole = log_start <= index.base && index.next_offset <= high_watermark;
                Ok((cursor, is_whole.then_some(index.max_timestamp)))
            })
            .collect()
    }

    /// Reports a damaged batch. An unsynced one of a partition that is out of service is not
    /// reported: a failed sync may have lost it. (Until the partition learns of the failure, within
    /// microseconds, it is.)
    fn report_if_damaged(&self, error: ReadError) -> ReadError {
        let ReadError::Damaged(batch) = &error else {
            return error;
        };
        let is_synced = batch.offset < self.synced_end.load(Ordering::Acquire);
        if !is_synced && self.condition() != Condition::Online {
            return self.check_condition().err().unwrap_or(ReadError::Offline);
        }
        self.report_damage(batch);
        error
    }

    /// Where to begin reading for `offset`.
    fn cursor(&self, log: &Log, offset: i64) -> io::Result<BatchCursor> {
        if offset < log.active.base {
            let at = log
                .closed
                .partition_point(|segment| segment.index.next_offset <= offset);
            if let Some(segment) = log.closed.get(at) {
                let (position, offset) = segment.index.batch_before(offset);
                return Ok(BatchCursor {
                    file: segment.file(&*self.limits.disk, &self.dir)?,
                    position,
                    offset,
                    is_exact: false,
                    end: segment.index.bytes,
                });
            }
        }
        let after = log.recent.partition_point(|&(base, _)| base <= offset);
        let recent = after.checked_sub(1).and_then(|at| log.recent.get(at));
        let (position, offset) = match recent {
            Some(&(base, position)) => (position, base),
            None => log.active.batch_before(offset),
        };
        Ok(BatchCursor {
            file: Arc::clone(&log.file),
            position,
            offset,
            is_exact: recent.is_some(),
            end: log.active.bytes,
        })
    }
}

/// The first batch from the cursor on whose header is `wanted`; the end of the segment if there is
/// none.
fn seek(
    mut cursor: BatchCursor,
    mut wanted: impl FnMut(&BatchHeader) -> bool,
) -> Result<Result<(BatchCursor, BatchHeader), BatchCursor>, ReadError> {
    let mut buffer = [0; SCAN_BYTES];
    let mut filled = 0..0;
    while cursor.position < cursor.end {
        let left = cursor.end - cursor.position;
        let at =
            usize::try_from(cursor.position.saturating_sub(filled.start)).unwrap_or(usize::MAX);
        let known = usize::try_from(filled.end - filled.start).unwrap_or(0);
        let header = match buffer[..known].get(at..).and_then(BatchHeader::read) {
            Some(header) => header,
            None if at == 0 && known > 0 => {
                return Err(cursor.damaged(cursor.position, cursor.offset));
            }
            None => {
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(SCAN_BYTES);
                cursor
                    .file
                    .read_exact_at(&mut buffer[..take], cursor.position)?;
                filled = cursor.position..cursor.position + take as u64;
                continue;
            }
        };
        if !header.is_stored_at(cursor.offset) || header.bytes as u64 > left {
            return Err(cursor.damaged(cursor.position, cursor.offset));
        }
        if wanted(&header) {
            return Ok(Ok((cursor, header)));
        }
        cursor.position += header.bytes as u64;
        cursor.offset = header.last_offset().map_or(i64::MAX, |last| last + 1);
    }
    Ok(Err(cursor))
}

/// Copies whole, valid batches below the high watermark from the cursor on.
fn copy(
    cursor: &BatchCursor,
    high_watermark: i64,
    bytes_max: usize,
    first_whole: bool,
    out: &mut BytesMut,
) -> Result<usize, ReadError> {
    let start = out.len();
    let read = copy_checked(cursor, high_watermark, bytes_max, first_whole, out);
    out.truncate(start + *read.as_ref().unwrap_or(&0));
    read
}

fn copy_checked(
    cursor: &BatchCursor,
    high_watermark: i64,
    bytes_max: usize,
    first_whole: bool,
    out: &mut BytesMut,
) -> Result<usize, ReadError> {
    let start = out.len();
    let available = usize::try_from(cursor.end - cursor.position).unwrap_or(usize::MAX);
    let mut take = available.min(bytes_max);
    if first_whole {
        take = take.max(HEADER_BYTES.min(available));
    }
    out.resize(start + take, 0);
    cursor
        .file
        .read_exact_at(&mut out[start..], cursor.position)?;
    let mut whole = 0;
    let mut offset = cursor.offset;
    while whole < available && offset < high_watermark {
        // Batches before it can be served; the next fetch begins with this one.
        let damaged = || match whole {
            0 => Err(cursor.damaged(cursor.position, offset)),
            whole => Ok(whole),
        };
        let Some(header) = BatchHeader::read(&out[start + whole..]) else {
            let is_cut_off = take - whole < HEADER_BYTES && take < available;
            return if is_cut_off { Ok(whole) } else { damaged() };
        };
        if !header.is_stored_at(offset) || header.bytes > available - whole {
            return damaged();
        }
        if header.bytes > take - whole {
            if whole > 0 || !first_whole {
                break;
            }
            out.resize(start + header.bytes, 0);
            let rest = &mut out[start + take..];
            cursor
                .file
                .read_exact_at(rest, cursor.position + take as u64)?;
            take = header.bytes;
        }
        if !header.is_intact(&out[start + whole..]) {
            return damaged();
        }
        whole += header.bytes;
        offset = header.last_offset().map_or(i64::MAX, |last| last + 1);
    }
    Ok(whole)
}
