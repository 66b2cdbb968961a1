//! One partition: its log, the part that consumers see, and the readers that wait for it.
//!
//! Appends take a short mutex and are written from the connection's own task: a small write into
//! the page cache costs less than handing it to another thread. Syncing is the sync thread's; it
//! asks for the files ([`Partition::begin_sync`]) and reports back (see `syncing`).
//!
//! What must hold:
//!
//! * **A failed sync or write takes the partition offline**, with the reason, until the broker is
//!   started again. Records that were not synced by then are never shown.
//! * **A full disk does not.** If a write reports it, the partial batch is cut off and refused, and
//!   the next one is tried like any other. If a sync reports it, nothing more is acknowledged or
//!   appended, and another `Partition` replaces this one once there is room (see
//!   `Topics::reopen_full`): opened as at a start, which rewrites the part that was not synced.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use bytes::Bytes;
use tokio::sync::Notify;
use waybill_disk::files::Disk;
use waybill_disk::is_full;
use waybill_disk::write_back::WriteBackProgress;
use waybill_wire::batch::{BatchHeader, REWRITTEN_BYTES, rewritten};

use super::damage::DamagedBatch;
use super::disk::LogFile;
use super::producers::{Producers, Sequence, SequenceError};
use super::recovery::{Recovered, recover};
use super::segment::{ClosedSegment, LogError, SegmentIndex};
use super::synced::Key;
use super::syncing::Unindexed;
use crate::log::SyncQueue;
use crate::{TopicConfig, locked};

/// Positions of the newest batches, so that consumers near the end need no scan.
const RECENT_MAX: usize = 256;
/// Damaged batches of a partition that are reported once each. Further ones are counted and logged
/// on every read.
const DAMAGED_MAX: usize = 64;

/// The limits and handles that partitions share.
#[derive(Clone)]
pub(crate) struct Limits {
    /// The disk of the logs.
    pub(crate) disk: Arc<dyn Disk>,
    /// Producers remembered per partition.
    pub(crate) producers_max: usize,
    /// The thread that syncs.
    pub(crate) syncs: Arc<SyncQueue>,
    /// Whether topics with `waybill.disk.low.refuse` refuse records.
    pub(crate) low_on_disk: Arc<AtomicBool>,
}

/// Whether a partition can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Condition {
    /// It can.
    Online = 0,
    /// Its disk failed; it stays so until the broker is started again.
    Offline = 1,
    /// Its disk was full at a sync. It is read, but not written; another one replaces it.
    Full = 2,
    /// Its topic was deleted.
    Deleted = 3,
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
    #[error("the broker's disk is low on free space (storage.freeMin)")]
    LowOnDisk,
    #[error("an earlier batch of this producer is missing")]
    OutOfOrder,
    #[error("a newer producer with this id has taken over")]
    Fenced,
    #[error("the broker's disk is full")]
    Full,
    #[error("the partition is offline: {cause}")]
    Offline { cause: String },
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

/// One partition of a topic.
pub(crate) struct Partition {
    pub(crate) topic: Arc<str>,
    pub(crate) index: i32,
    pub(super) topic_id: [u8; 16],
    pub(super) dir: PathBuf,
    pub(super) log: Mutex<Log>,
    /// Held while segments are deleted, which happens without the lock on the log.
    pub(super) trimming: Mutex<()>,
    /// Consumers see offsets below this (the high watermark).
    pub(super) visible: AtomicI64,
    pub(super) log_start: AtomicI64,
    /// Everything below this is durable. On a synced topic it is stored, too, before readers see
    /// the records (see [`SyncedEnds`](super::SyncedEnds)).
    pub(super) synced_end: AtomicI64,
    pub(super) condition: AtomicU8,
    /// Why it is offline.
    cause: OnceLock<String>,
    /// The damaged batches that were reported: their segments and positions.
    damaged: Mutex<BTreeSet<(PathBuf, u64)>>,
    readers: Mutex<Vec<Weak<Notify>>>,
    pub(super) synced: Notify,
    pub(super) sync_asked: AtomicBool,
    /// Bytes of all partitions of the topic.
    pub(super) topic_bytes: Arc<AtomicU64>,
    pub(super) limits: Limits,
}

/// The part of a partition that appends change.
pub(super) struct Log {
    pub(super) config: TopicConfig,
    pub(super) closed: VecDeque<Arc<ClosedSegment>>,
    pub(super) active: SegmentIndex,
    pub(super) file: Arc<LogFile>,
    pub(super) producers: Producers,
    /// Base offsets and positions of the active segment's newest batches.
    pub(super) recent: VecDeque<(i64, u64)>,
    /// Records since the last sync was requested.
    unsynced_records: u64,
    /// How far write-back of the active segment was asked for.
    pub(super) write_back: WriteBackProgress,
    /// Closed segments that the sync thread has not synced yet.
    pub(super) unsynced_segments: Vec<Unindexed>,
    /// Whether a file was created since the directory was synced.
    pub(super) unsynced_names: bool,
    /// Whether the sync thread has synced the active segment, which it then owns.
    pub(super) is_sync_threads: bool,
    /// Closed segments that the closing thread has yet to sync.
    pub(super) closing_unsynced: usize,
    /// Whether the last batch was refused because the disk is full.
    is_full: bool,
}

impl Log {
    fn waits_for_sync(&self) -> bool {
        self.config.flush_messages == Some(1)
    }

    /// The bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        let closed = self.closed.iter().map(|segment| segment.index.bytes);
        self.active.bytes + closed.sum::<u64>()
    }
}

impl Partition {
    /// Opens the partition in `dir`, or creates it. A torn tail is truncated.
    pub(crate) fn open(
        topic: Arc<str>,
        (topic_id, index): ([u8; 16], i32),
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
        } = recover(
            &*limits.disk,
            &dir,
            &config,
            limits.syncs.ends.known((topic_id, index)),
            limits.producers_max,
        )?;
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
        // Without syncs of the topic, the active segment is durable only after its next sync.
        let synced_end = match config.flush_messages {
            Some(_) => next_offset,
            None => active.base,
        };
        limits.syncs.ends.note((topic_id, index), synced_end);
        Ok(Self {
            topic,
            index,
            topic_id,
            dir,
            visible: AtomicI64::new(next_offset),
            log_start: AtomicI64::new(log_start.clamp(first, next_offset)),
            synced_end: AtomicI64::new(synced_end),
            condition: AtomicU8::new(Condition::Online as u8),
            cause: OnceLock::new(),
            damaged: Mutex::default(),
            readers: Mutex::new(Vec::new()),
            synced: Notify::new(),
            sync_asked: AtomicBool::new(false),
            trimming: Mutex::new(()),
            topic_bytes,
            limits,
            log: Mutex::new(Log {
                config,
                closed,
                write_back: WriteBackProgress::at(active.bytes),
                active,
                file,
                producers,
                recent: VecDeque::new(),
                unsynced_records: 0,
                unsynced_segments: Vec::new(),
                unsynced_names: false,
                is_sync_threads: false,
                closing_unsynced: 0,
                is_full: false,
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
            2 => Condition::Full,
            _ => Condition::Deleted,
        }
    }

    /// Its topic's id and its number.
    pub(crate) fn key(&self) -> Key {
        (self.topic_id, self.index)
    }

    /// Applies a changed configuration of the topic.
    pub(crate) fn set_config(self: &Arc<Self>, config: TopicConfig) {
        locked(&self.log).config = config;
        // Records that waited for a sync under the old configuration must not wait for ever.
        self.ask_for_sync();
    }

    /// The largest batch that is accepted.
    pub(crate) fn message_bytes_max(&self) -> u64 {
        locked(&self.log).config.message_bytes_max
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
            Condition::Offline => return Err(self.offline()),
            Condition::Full => {
                self.limits.syncs.count_full();
                return Err(AppendError::Full);
            }
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
        if config.refuse_on_low_disk && self.limits.low_on_disk.load(Ordering::Relaxed) {
            return Err(AppendError::LowOnDisk);
        }
        if log.active.bytes > 0 && log.active.bytes + header.bytes as u64 > config.segment_bytes {
            self.roll(&mut log).map_err(|error| {
                if is_full(&error) {
                    self.full(&mut log, &error)
                } else {
                    self.fail("begin a segment of", &error)
                }
            })?;
        }
        let base_offset = log.active.next_offset;
        let front = rewritten(batch, base_offset);
        if let Err(error) = log.file.append(&front, &batch[REWRITTEN_BYTES..]) {
            // Nothing may follow a partial batch.
            return Err(match log.file.cut(log.active.bytes) {
                Ok(()) if is_full(&error) => self.full(&mut log, &error),
                Ok(()) => self.fail("write to", &error),
                Err(error) => self.fail("cut a partly written batch off", &error),
            });
        }
        if log.is_full {
            log.is_full = false;
            tracing::info!(topic = %self.topic, partition = self.index, "the disk has room again");
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
        let mut unwritten = None;
        if !waits {
            self.visible.store(next_offset, Ordering::Release);
            unwritten = log.unwritten();
        }
        drop(log);
        if let Some(unwritten) = unwritten {
            self.limits.syncs.write_back(unwritten);
        }
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

    /// Marks the partition as deleted and ends every wait for it.
    pub(crate) fn delete(&self) {
        let log = locked(&self.log);
        self.condition
            .store(Condition::Deleted as u8, Ordering::Release);
        drop(log);
        self.wake_readers();
        self.synced.notify_waiters();
    }

    /// Counts and logs a damaged batch, once.
    pub(super) fn report_damage(&self, batch: &DamagedBatch) {
        let mut known = locked(&self.damaged);
        let key = (batch.path.clone(), batch.position);
        if known.contains(&key) {
            return;
        }
        if known.len() < DAMAGED_MAX {
            known.insert(key);
        }
        drop(known);
        self.limits.syncs.count_damaged();
        tracing::error!(
            topic = %self.topic,
            partition = self.index,
            path = %batch.path.display(),
            position = batch.position,
            offset = batch.offset,
            "a record batch on disk is damaged and is not served"
        );
    }

    pub(super) fn wake_readers(&self) {
        let readers = std::mem::take(&mut *locked(&self.readers));
        for reader in readers {
            if let Some(reader) = reader.upgrade() {
                reader.notify_one();
            }
        }
    }

    /// Refuses a batch because there is no space for it.
    fn full(&self, log: &mut Log, error: &io::Error) -> AppendError {
        self.limits.syncs.count_full();
        if !std::mem::replace(&mut log.is_full, true) {
            tracing::error!(
                topic = %self.topic, partition = self.index, %error,
                "the disk is full: records are refused until there is room"
            );
        }
        AppendError::Full
    }

    /// Takes the partition offline.
    pub(crate) fn fail(&self, action: &str, error: &io::Error) -> AppendError {
        let cause = format!(
            "cannot {action} partition {} of topic {} in {}: {error}",
            self.index,
            self.topic,
            self.dir.display()
        );
        // Set before any reader sees the condition.
        let _ = self.cause.set(cause.clone());
        let _ = self
            .condition
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                (now != Condition::Deleted as u8).then_some(Condition::Offline as u8)
            });
        if self.condition() == Condition::Deleted {
            return AppendError::Deleted;
        }
        self.limits.syncs.report_failure(cause);
        self.synced.notify_waiters();
        self.wake_readers();
        self.offline()
    }

    fn offline(&self) -> AppendError {
        let cause = self.cause.get().cloned().unwrap_or_default();
        AppendError::Offline { cause }
    }
}
