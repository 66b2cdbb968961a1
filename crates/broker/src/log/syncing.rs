//! Syncing a partition, and the work that follows: the synced end is recorded, requests that wait
//! are answered, and closed segments are indexed.
//!
//! What must hold:
//!
//! * **One thread syncs a file.** The sync thread owns a synced topic's files, and any that it ever
//!   synced, until they are durable. The closing thread then indexes them, and syncs all others.
//! * **Records that were not synced are never shown** to the readers of a topic that is synced.
//! * **No sync is retried.** After a failed one, a later one may succeed without writing the lost
//!   data. After a full disk, the log is opened again instead.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use waybill_disk::files::Disk;
use waybill_disk::is_full;
use waybill_disk::write_back::WriteBackProgress;

use super::disk::LogFile;
use super::partition::{Condition, Log, Partition};
use super::producers::Producers;
use super::segment::{ClosedSegment, IndexFile, LogError, SegmentIndex, open_segment};
use crate::locked;

/// A segment that was closed and needs its index file.
pub(crate) struct Closing {
    pub(crate) partition: Arc<Partition>,
    segment: Unindexed,
    /// Whether the sync thread has synced it.
    is_synced: bool,
}

/// The data of a closed segment's index.
pub(super) struct Unindexed {
    pub(super) file: Arc<LogFile>,
    pub(super) index: SegmentIndex,
    pub(super) producers: Producers,
}

/// Bytes of a segment for which write-back is to start.
pub(crate) struct Unwritten {
    file: Arc<LogFile>,
    bytes: Range<u64>,
}

impl Unwritten {
    /// Starts it, and does not wait for it.
    pub(crate) fn begin_write_back(&self) {
        self.file.begin_write_back(&self.bytes);
    }
}

/// Why a closed segment has no index yet.
#[derive(Debug)]
pub(crate) enum NotClosed {
    /// The disk is full; a retry may succeed.
    Full(io::Error),
    /// The partition is no longer written.
    Failed,
}

/// The files that one sync of a partition covers.
pub(crate) struct SyncJob {
    closed: Vec<Unindexed>,
    active: Arc<LogFile>,
    names: Option<PathBuf>,
    up_to: i64,
    /// Whether everything below `up_to` is durable then.
    is_all: bool,
}

impl SyncJob {
    /// Syncs it.
    pub(crate) fn run(&self, disk: &dyn Disk) -> io::Result<()> {
        for segment in &self.closed {
            segment.file.sync(disk)?;
        }
        self.active.sync(disk)?;
        let names = self.names.as_deref();
        names.map_or(Ok(()), |dir| disk.sync_dir(dir))
    }
}

impl Log {
    /// The bytes of the active segment for which write-back is due.
    pub(super) fn unwritten(&mut self) -> Option<Unwritten> {
        let bytes = self.write_back.take_due(self.active.bytes)?;
        let file = Arc::clone(&self.file);
        Some(Unwritten { file, bytes })
    }
}

impl Partition {
    /// Begins a new active segment.
    pub(super) fn roll(self: &Arc<Self>, log: &mut Log) -> io::Result<()> {
        let base = log.active.next_offset;
        let file = open_segment(&*self.limits.disk, &self.dir, base)?;
        let old = std::mem::replace(&mut log.active, SegmentIndex::new(base));
        let old_file = std::mem::replace(&mut log.file, file);
        log.recent.clear();
        log.write_back = WriteBackProgress::default();
        log.unsynced_names = true;
        log.closed
            .push_back(Arc::new(ClosedSegment::new(old.clone())));
        let segment = Unindexed {
            file: old_file,
            index: old,
            producers: log.producers.clone(),
        };
        if log.config.flush_messages.is_some() || log.is_sync_threads {
            log.unsynced_segments.push(segment);
            self.ask_for_sync();
        } else {
            log.closing_unsynced += 1;
            self.close_segment(segment, false);
        }
        log.is_sync_threads = false;
        Ok(())
    }

    /// Waits until the log is synced up to `offset`; `false` if that can no longer happen.
    pub(crate) async fn synced(&self, offset: i64) -> bool {
        loop {
            let notified = self.synced.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            if self.high_watermark() >= offset {
                return true;
            }
            if self.condition() != Condition::Online {
                return false;
            }
            notified.await;
        }
    }

    /// Gives the sync thread its next job of this partition.
    pub(crate) fn begin_sync(&self) -> SyncJob {
        self.sync_asked.store(false, Ordering::SeqCst);
        let mut log = locked(&self.log);
        log.is_sync_threads = true;
        SyncJob {
            closed: std::mem::take(&mut log.unsynced_segments),
            active: Arc::clone(&log.file),
            names: std::mem::take(&mut log.unsynced_names).then(|| self.dir.clone()),
            up_to: log.active.next_offset,
            is_all: log.closing_unsynced == 0,
        }
    }

    /// Records how far the partition is synced after a successful `job`. Returns whether that is
    /// further than recorded before.
    pub(super) fn note_end(&self, job: &SyncJob) -> bool {
        if !job.is_all || self.condition() != Condition::Online {
            return false;
        }
        let before = self.synced_end.fetch_max(job.up_to, Ordering::AcqRel);
        let ends = &self.limits.syncs.ends;
        ends.note(self.key(), job.up_to);
        if self.condition() == Condition::Deleted {
            ends.retain(|key| *key != self.key());
        }
        before < job.up_to
    }

    /// Makes the result of the sync thread's job visible.
    pub(crate) fn end_sync(self: &Arc<Self>, job: SyncJob, result: io::Result<()>) {
        match result {
            // After a failed sync, a later one may succeed without writing the lost data.
            Ok(()) if self.condition() != Condition::Online => {}
            Ok(()) => {
                self.visible.fetch_max(job.up_to, Ordering::AcqRel);
                for segment in job.closed {
                    self.close_segment(segment, true);
                }
            }
            Err(error) => self.sync_failed(&error),
        }
        self.synced.notify_waiters();
        self.wake_readers();
    }

    /// Syncs a closed segment, unless it is synced, and writes its index, in the closing thread.
    pub(crate) fn finish_closing(&self, closing: &mut Closing) -> Result<(), NotClosed> {
        let Unindexed {
            file,
            index,
            producers,
        } = &closing.segment;
        if self.condition() != Condition::Online {
            return Ok(());
        }
        if !closing.is_synced {
            let disk = &*self.limits.disk;
            let synced = file.sync(disk).and_then(|()| disk.sync_dir(&self.dir));
            synced.map_err(|error| {
                self.sync_failed(&error);
                NotClosed::Failed
            })?;
            closing.is_synced = true;
            let mut log = locked(&self.log);
            log.closing_unsynced -= 1;
            let is_last = log.closing_unsynced == 0 && log.config.flush_messages.is_some();
            drop(log);
            if is_last {
                // Since the topic became a synced one, nothing of it could be recorded.
                closing.partition.ask_for_sync();
            }
        }
        let stored = IndexFile::encode(index, producers).and_then(|encoded| {
            // Under the lock, so that retention does not delete the segment in between.
            let log = locked(&self.log);
            let mut closed = log.closed.iter();
            let is_kept = closed.any(|segment| segment.index.base == index.base);
            if is_kept && self.condition() == Condition::Online {
                IndexFile::store(&*self.limits.disk, &self.dir, index.base, &encoded)?;
            }
            Ok(())
        });
        match stored {
            Ok(()) => Ok(()),
            Err(error) if is_full(&error) => Err(NotClosed::Full(error)),
            Err(error) => {
                self.fail("write an index of", &error);
                Err(NotClosed::Failed)
            }
        }
    }

    /// Syncs everything, and writes what makes the next start quick.
    pub(crate) fn close(&self) -> Result<(), LogError> {
        let log = locked(&self.log);
        match self.condition() {
            Condition::Online => {}
            Condition::Full => {
                let full = io::ErrorKind::StorageFull;
                return Err(LogError::of("cannot sync", &self.dir)(full.into()));
            }
            Condition::Offline | Condition::Deleted => return Ok(()),
        }
        let disk = &*self.limits.disk;
        for segment in &log.unsynced_segments {
            let path = segment.file.path();
            segment
                .file
                .sync(disk)
                .map_err(LogError::of("cannot sync", path))?;
        }
        let path = log.file.path();
        log.file
            .sync(disk)
            .map_err(LogError::of("cannot sync", path))?;
        disk.sync_dir(&self.dir)
            .map_err(LogError::of("cannot sync", &self.dir))?;
        self.limits
            .syncs
            .ends
            .note(self.key(), log.active.next_offset);
        let stored = IndexFile::encode(&log.active, &log.producers)
            .and_then(|encoded| IndexFile::store(disk, &self.dir, log.active.base, &encoded));
        match stored {
            Err(error) if is_full(&error) => {
                tracing::warn!(topic = %self.topic, partition = self.index, %error, "the disk is full: could not write an index");
                Ok(())
            }
            stored => stored.map_err(LogError::of("cannot write the index in", &self.dir)),
        }
    }

    pub(super) fn close_segment(self: &Arc<Self>, segment: Unindexed, is_synced: bool) {
        self.limits.syncs.close(Closing {
            partition: Arc::clone(self),
            segment,
            is_synced,
        });
    }

    pub(super) fn ask_for_sync(self: &Arc<Self>) {
        if !self.sync_asked.swap(true, Ordering::SeqCst) {
            self.limits.syncs.sync(Arc::clone(self));
        }
    }
}
