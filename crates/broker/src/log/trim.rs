//! Deleting the beginning of a log: by age, by size, and when a client asks for it.
//!
//! Ages are [measured by the broker](crate::retention), whatever the records' timestamps. Only
//! whole closed segments are deleted. An active one with nothing worth keeping is closed first, so
//! that its space is freed too.
//!
//! What must hold: **the log never has a gap**, whatever fails and whenever power is lost. So
//! segments are deleted in order, each durably before the next.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::partition::{Condition, Log, Partition};
use super::segment::{ClosedSegment, index_path, segment_path};
use crate::locked;
use crate::retention::SegmentAges;

impl Partition {
    /// Applies the topic's retention at the run time `now_ms`, and brings `ages` up to date.
    pub(crate) fn apply_retention(
        self: &Arc<Self>,
        ages: &mut SegmentAges,
        now_ms: u64,
    ) -> io::Result<()> {
        let _trimming = locked(&self.trimming);
        let mut log = locked(&self.log);
        if self.condition() != Condition::Online {
            return Ok(());
        }
        let retention = log.config.retention;
        let segments = log.closed.iter().map(|segment| &segment.index);
        let segments = segments.chain((log.active.bytes > 0).then_some(&log.active));
        // If nothing expires, no ages are needed.
        let aging = segments.filter(|_| retention.is_some());
        ages.observe(aging.map(|index| (index.base, index.next_offset)), now_ms);
        let is_expired =
            |base| retention.is_some_and(|retention| ages.is_older(base, retention, now_ms));
        if is_expired(log.active.base) && self.is_visible_whole(&log) {
            self.roll(&mut log)?;
        }
        let mut bytes = log.bytes();
        let mut deleted = Vec::new();
        while let Some(first) = log.closed.front() {
            let is_surplus = log
                .config
                .retention_bytes
                .is_some_and(|kept| bytes.saturating_sub(first.index.bytes) >= kept);
            let durable = first.index.next_offset <= self.high_watermark();
            // One that could not be deleted earlier.
            let is_left = first.index.next_offset <= self.log_start();
            if !durable || !(is_surplus || is_left || is_expired(first.index.base)) {
                break;
            }
            bytes -= first.index.bytes;
            deleted.extend(log.closed.pop_front());
        }
        self.remove(log, &deleted)
    }

    /// Moves the log start up to `offset`, which is within the log, and deletes the segments below
    /// it, unless the partition waits for room: then the next call does. Returns the log start.
    pub(crate) fn delete_records(self: &Arc<Self>, offset: i64) -> io::Result<i64> {
        let _trimming = locked(&self.trimming);
        let mut log = locked(&self.log);
        self.log_start.fetch_max(offset, Ordering::AcqRel);
        let log_start = self.log_start();
        if self.condition() != Condition::Online {
            return Ok(log_start);
        }
        if log_start == log.active.next_offset && log.active.bytes > 0 {
            self.roll(&mut log)?;
        }
        let mut deleted = Vec::new();
        while log
            .closed
            .front()
            .is_some_and(|first| first.index.next_offset <= log_start)
        {
            deleted.extend(log.closed.pop_front());
        }
        self.remove(log, &deleted)?;
        Ok(log_start)
    }

    fn is_visible_whole(&self, log: &Log) -> bool {
        log.active.bytes > 0 && self.high_watermark() >= log.active.next_offset
    }

    /// Deletes segments that were removed from the log, the oldest first. After an error, those
    /// that are left return to it: if later ones were deleted before them, a start would find a
    /// gap.
    fn remove(
        &self,
        log: std::sync::MutexGuard<'_, Log>,
        deleted: &[Arc<ClosedSegment>],
    ) -> io::Result<()> {
        let first = log
            .closed
            .front()
            .map_or(log.active.base, |segment| segment.index.base);
        self.log_start.fetch_max(first, Ordering::AcqRel);
        drop(log);
        for (at, segment) in deleted.iter().enumerate() {
            // The names of the segments that stay become durable first: without any segment, the
            // log would begin at 0 again.
            let named = match at {
                0 => self.limits.disk.sync_dir(&self.dir),
                _ => Ok(()),
            };
            if let Err(error) = named.and_then(|()| self.delete_segment(segment)) {
                let mut log = locked(&self.log);
                for left in deleted[at..].iter().rev() {
                    log.closed.push_front(Arc::clone(left));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Deletes the files of a segment. Durable when it returns: in a power loss, the deletion of
    /// the next one must not survive without this one.
    fn delete_segment(&self, segment: &ClosedSegment) -> io::Result<()> {
        let disk = &*self.limits.disk;
        let base = segment.index.base;
        // The index first: without its segment it would never be deleted.
        for path in [index_path(&self.dir, base), segment_path(&self.dir, base)] {
            match disk.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        disk.sync_dir(&self.dir)?;
        self.topic_bytes
            .fetch_sub(segment.index.bytes, Ordering::Relaxed);
        tracing::info!(
            topic = %self.topic,
            partition = self.index,
            base,
            bytes = segment.index.bytes,
            "deleted a segment"
        );
        Ok(())
    }
}
