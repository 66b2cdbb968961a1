//! One partition: its log, what of it consumers may see, and who waits for it.
//!
//! Appends take a short mutex and are written from the connection's own task: a small write into
//! the page cache costs less than handing it to another thread. Syncing is the sync thread's; it
//! asks for the files ([`Partition::begin_sync`]) and reports back.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tokio::sync::Notify;

use super::batch::{BatchHeader, REWRITTEN_BYTES, rewritten};
use super::producers::{Producers, Sequence, SequenceError};
use super::recovery::{Recovered, recover};
use super::segment::{
    self, ClosedSegment, IndexFile, LogError, SegmentIndex, open_segment, sync_dir,
};
use crate::sync::SyncQueue;
use crate::{TopicConfig, locked};

/// Positions of the newest batches, so that consumers near the end need no scan.
const RECENT_MAX: usize = 256;

/// What partitions share.
#[derive(Clone)]
pub(crate) struct Limits {
    /// Producers remembered per partition.
    pub(crate) producers_max: usize,
    /// The thread that syncs.
    pub(crate) syncs: Arc<SyncQueue>,
}

/// Whether a partition can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Condition {
    /// It can.
    Online = 0,
    /// Its disk failed; it stays so until the broker is started again.
    Offline = 1,
    /// Its topic was deleted.
    Deleted = 2,
}

/// Where a batch was appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Appended {
    pub(crate) base_offset: i64,
    /// The batch may be acknowledged once the log is synced up to this offset.
    pub(crate) sync_to: Option<i64>,
}

/// Why a batch was not appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    #[error("the batch of {bytes} bytes is larger than max.message.bytes ({max})")]
    TooLarge { bytes: usize, max: u64 },
    #[error("the topic's log has reached waybill.disk.bytes.max ({max} bytes)")]
    DiskBound { max: u64 },
    #[error("batches of this producer before this one are missing")]
    OutOfOrder,
    #[error("a newer producer with this id has taken over")]
    Fenced,
    #[error("the partition is offline because its disk failed")]
    Offline,
    #[error("the topic was deleted")]
    Deleted,
}

impl From<SequenceError> for AppendError {
    fn from(error: SequenceError) -> Self {
        match error {
            SequenceError::OutOfOrder => Self::OutOfOrder,
            SequenceError::Epoch => Self::Fenced,
        }
    }
}

/// A segment that was closed and needs its index file.
pub(crate) struct Closing {
    pub(crate) partition: Arc<Partition>,
    pub(super) file: Arc<File>,
    pub(super) index: SegmentIndex,
    pub(super) producers: Producers,
}

/// One partition of a topic.
pub(crate) struct Partition {
    pub(crate) topic: Arc<str>,
    pub(crate) index: i32,
    pub(super) dir: PathBuf,
    pub(super) log: Mutex<Log>,
    /// Consumers see offsets below this (the high watermark).
    visible: AtomicI64,
    pub(super) log_start: AtomicI64,
    condition: AtomicU8,
    readers: Mutex<Vec<Weak<Notify>>>,
    synced: Notify,
    sync_asked: AtomicBool,
    /// Bytes of all partitions of the topic.
    pub(super) topic_bytes: Arc<AtomicU64>,
    limits: Limits,
}

/// The part of a partition that appends change.
pub(super) struct Log {
    pub(super) config: TopicConfig,
    pub(super) closed: VecDeque<Arc<ClosedSegment>>,
    pub(super) active: SegmentIndex,
    pub(super) file: Arc<File>,
    pub(super) producers: Producers,
    /// Base offsets and positions of the active segment's newest batches.
    pub(super) recent: VecDeque<(i64, u64)>,
    /// Records since the last sync was asked for.
    unsynced_records: u64,
    /// Closed segments that the sync thread has not synced yet.
    unsynced_files: Vec<Arc<File>>,
    /// Whether a file was created since the directory was synced.
    unsynced_names: bool,
}

impl Log {
    fn waits_for_sync(&self) -> bool {
        self.config.flush_messages == Some(1)
    }
}

impl Partition {
    /// Opens the partition in `dir`, or creates it. A torn tail is cut.
    pub(crate) fn open(
        topic: Arc<str>,
        index: i32,
        dir: PathBuf,
        config: TopicConfig,
        log_start: i64,
        topic_bytes: Arc<AtomicU64>,
        limits: Limits,
    ) -> Result<Self, LogError> {
        let Recovered {
            closed,
            active,
            file,
            producers,
        } = recover(&dir, &config, limits.producers_max)?;
        let bytes = active.bytes
            + closed
                .iter()
                .map(|segment| segment.index.bytes)
                .sum::<u64>();
        topic_bytes.fetch_add(bytes, Ordering::Relaxed);
        let first = closed
            .front()
            .map_or(active.base, |segment| segment.index.base);
        let next_offset = active.next_offset;
        Ok(Self {
            topic,
            index,
            dir,
            visible: AtomicI64::new(next_offset),
            log_start: AtomicI64::new(log_start.clamp(first, next_offset)),
            condition: AtomicU8::new(Condition::Online as u8),
            readers: Mutex::new(Vec::new()),
            synced: Notify::new(),
            sync_asked: AtomicBool::new(false),
            topic_bytes,
            limits,
            log: Mutex::new(Log {
                config,
                closed,
                active,
                file,
                producers,
                recent: VecDeque::new(),
                unsynced_records: 0,
                unsynced_files: Vec::new(),
                unsynced_names: false,
            }),
        })
    }

    /// The high watermark: consumers see the offsets below it.
    pub(crate) fn high_watermark(&self) -> i64 {
        self.visible.load(Ordering::Acquire)
    }

    /// The first offset that can be read.
    pub(crate) fn log_start(&self) -> i64 {
        self.log_start.load(Ordering::Acquire)
    }

    /// Whether the partition can be used.
    pub(crate) fn condition(&self) -> Condition {
        match self.condition.load(Ordering::Acquire) {
            0 => Condition::Online,
            1 => Condition::Offline,
            _ => Condition::Deleted,
        }
    }

    /// Applies a changed configuration of the topic.
    pub(crate) fn set_config(self: &Arc<Self>, config: TopicConfig) {
        locked(&self.log).config = config;
        // What waited for a sync under the old configuration must not wait for ever.
        self.ask_for_sync();
    }

    /// Appends one batch whose header was read and checked by [`BatchHeader::of_produced`].
    pub(crate) fn append(
        self: &Arc<Self>,
        header: &BatchHeader,
        batch: &Bytes,
    ) -> Result<Appended, AppendError> {
        let mut log = locked(&self.log);
        match self.condition() {
            Condition::Online => {}
            Condition::Offline => return Err(AppendError::Offline),
            Condition::Deleted => return Err(AppendError::Deleted),
        }
        let config = log.config;
        if header.bytes as u64 > config.message_bytes_max {
            let (bytes, max) = (header.bytes, config.message_bytes_max);
            return Err(AppendError::TooLarge { bytes, max });
        }
        if let Sequence::Duplicate {
            base_offset,
            last_offset,
        } = log.producers.check(header)?
        {
            let sync_to = log.waits_for_sync().then_some(last_offset + 1);
            return Ok(Appended {
                base_offset,
                sync_to,
            });
        }
        if let Some(max) = config.disk_bytes_max
            && self.topic_bytes.load(Ordering::Relaxed) + header.bytes as u64 > max
        {
            return Err(AppendError::DiskBound { max });
        }
        if log.active.bytes > 0 && log.active.bytes + header.bytes as u64 > config.segment_bytes {
            self.roll(&mut log)
                .map_err(|error| self.fail("begin a segment of", &error))?;
        }
        let base_offset = log.active.next_offset;
        let front = rewritten(batch, base_offset);
        if let Err(error) = segment::append(&log.file, &front, &batch[REWRITTEN_BYTES..]) {
            // Offline either way; a tail that cannot be cut now is cut at the next start.
            if let Err(error) = log.file.set_len(log.active.bytes) {
                tracing::warn!(%error, "a partly written batch could not be cut off");
            }
            return Err(self.fail("write to", &error));
        }
        let position = log.active.bytes;
        log.active.push(header, base_offset);
        log.producers
            .record(header, base_offset, self.limits.producers_max);
        if log.recent.len() == RECENT_MAX {
            log.recent.pop_front();
        }
        log.recent.push_back((base_offset, position));
        self.topic_bytes
            .fetch_add(header.bytes as u64, Ordering::Relaxed);
        let next_offset = log.active.next_offset;
        log.unsynced_records += u64::from(header.records.unsigned_abs());
        let sync = config
            .flush_messages
            .is_some_and(|every| log.unsynced_records >= every);
        if sync {
            log.unsynced_records = 0;
        }
        let waits = log.waits_for_sync();
        if !waits {
            self.visible.store(next_offset, Ordering::Release);
        }
        drop(log);
        if sync {
            self.ask_for_sync();
        }
        if !waits {
            self.wake_readers();
        }
        Ok(Appended {
            base_offset,
            sync_to: waits.then_some(next_offset),
        })
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

    /// Wakes `reader` once when the high watermark next moves or the partition's condition
    /// changes. The caller looks again after this call, before it waits.
    pub(crate) fn wake(&self, reader: &Arc<Notify>) {
        let mut readers = locked(&self.readers);
        if readers
            .iter()
            .any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(reader)))
        {
            return;
        }
        readers.retain(|known| known.strong_count() > 0);
        readers.push(Arc::downgrade(reader));
    }

    /// Marks the partition as deleted and sends everyone away who waits for it.
    pub(crate) fn delete(&self) {
        let log = locked(&self.log);
        self.condition
            .store(Condition::Deleted as u8, Ordering::Release);
        drop(log);
        self.wake_readers();
        self.synced.notify_waiters();
    }

    /// Writes what makes the next start quick, with everything synced.
    pub(crate) fn close(&self) -> Result<(), LogError> {
        let log = locked(&self.log);
        if self.condition() != Condition::Online {
            return Ok(());
        }
        log.file
            .sync_all()
            .map_err(LogError::of("cannot sync", &self.dir))?;
        IndexFile::encode(&log.active, &log.producers)
            .and_then(|encoded| IndexFile::store(&self.dir, log.active.base, &encoded))
            .map_err(LogError::of("cannot write the index in", &self.dir))
    }

    /// The sync thread takes what has to be synced.
    pub(crate) fn begin_sync(&self) -> SyncJob {
        self.sync_asked.store(false, Ordering::SeqCst);
        let mut log = locked(&self.log);
        let mut files = std::mem::take(&mut log.unsynced_files);
        files.push(Arc::clone(&log.file));
        SyncJob {
            files,
            names: std::mem::take(&mut log.unsynced_names).then(|| self.dir.clone()),
            up_to: log.active.next_offset,
        }
    }

    /// The sync thread is done with a job of this partition.
    pub(crate) fn end_sync(&self, job: &SyncJob, result: io::Result<()>) {
        match result {
            // After a failed sync a later one may succeed without having written what was lost.
            Ok(()) if self.condition() != Condition::Online => {}
            Ok(()) => {
                self.visible.fetch_max(job.up_to, Ordering::AcqRel);
            }
            Err(error) => {
                self.fail("sync", &error);
            }
        }
        self.synced.notify_waiters();
        self.wake_readers();
    }

    /// The closing thread syncs a closed segment and writes its index.
    pub(crate) fn finish_closing(&self, closing: &Closing) -> io::Result<()> {
        if self.condition() == Condition::Deleted {
            return Ok(());
        }
        closing.file.sync_data()?;
        let encoded = IndexFile::encode(&closing.index, &closing.producers)?;
        // Under the lock, so that retention does not delete the segment in between.
        let log = locked(&self.log);
        let kept = log
            .closed
            .iter()
            .any(|segment| segment.index.base == closing.index.base);
        if kept && self.condition() != Condition::Deleted {
            IndexFile::store(&self.dir, closing.index.base, &encoded)?;
        }
        Ok(())
    }

    /// Begins a new active segment.
    pub(super) fn roll(self: &Arc<Self>, log: &mut Log) -> io::Result<()> {
        let base = log.active.next_offset;
        let file = open_segment(&self.dir, base)?;
        let old = std::mem::replace(&mut log.active, SegmentIndex::new(base));
        let old_file = std::mem::replace(&mut log.file, file);
        log.recent.clear();
        log.unsynced_names = true;
        if log.config.flush_messages.is_some() {
            log.unsynced_files.push(Arc::clone(&old_file));
        }
        log.closed
            .push_back(Arc::new(ClosedSegment::new(old.clone())));
        self.limits.syncs.close(Closing {
            partition: Arc::clone(self),
            file: old_file,
            index: old,
            producers: log.producers.clone(),
        });
        Ok(())
    }

    fn ask_for_sync(self: &Arc<Self>) {
        if !self.sync_asked.swap(true, Ordering::SeqCst) {
            self.limits.syncs.sync(Arc::clone(self));
        }
    }

    fn wake_readers(&self) {
        let readers = std::mem::take(&mut *locked(&self.readers));
        for reader in readers {
            if let Some(reader) = reader.upgrade() {
                reader.notify_one();
            }
        }
    }

    /// Takes the partition offline.
    pub(super) fn fail(&self, action: &str, error: &io::Error) -> AppendError {
        let _ = self.condition.compare_exchange(
            Condition::Online as u8,
            Condition::Offline as u8,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if self.condition() == Condition::Deleted {
            return AppendError::Deleted;
        }
        self.limits.syncs.report_failure(format!(
            "cannot {action} partition {} of topic {} in {}: {error}",
            self.index,
            self.topic,
            self.dir.display()
        ));
        AppendError::Offline
    }
}

/// What one sync of a partition covers.
pub(crate) struct SyncJob {
    files: Vec<Arc<File>>,
    names: Option<PathBuf>,
    up_to: i64,
}

impl SyncJob {
    /// Syncs it.
    pub(crate) fn run(&self) -> io::Result<()> {
        for file in &self.files {
            file.sync_data()?;
        }
        self.names.as_deref().map_or(Ok(()), sync_dir)
    }
}
