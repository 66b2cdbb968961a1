//! Opening a partition again after its disk was full at a sync.
//!
//! After a sync that failed a later one may succeed without having written what was lost, and a read may find what was
//! there before. So the log is opened as at a start (see [`recovery`](super::recovery)): what is whole of the part that
//! was not synced is written again, and the rest is cut off. None of that was acknowledged on a topic that is synced.
//!
//! What must hold: **what is opened is another partition.** Whoever waits for a sync of the old one is told that it
//! failed, whatever is appended to the new one at the same offsets.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::disk::is_full;
use super::partition::{Condition, Partition};
use super::segment::LogError;
use crate::locked;

impl Partition {
    /// A sync failed: takes the partition offline, or out of service until there is room.
    pub(super) fn sync_failed(&self, error: &io::Error) {
        if !is_full(error) {
            self.fail("sync", error);
            return;
        }
        // With the lock, so that no append is under way afterwards.
        let log = locked(&self.log);
        let was_online = self.condition.compare_exchange(
            Condition::Online as u8,
            Condition::Full as u8,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        drop(log);
        if was_online.is_ok() {
            tracing::error!(
                topic = %self.topic, partition = self.index, %error,
                "the disk is full: records are refused until there is room"
            );
            self.limits.syncs.report_full();
        }
        self.synced.notify_waiters();
        self.wake_readers();
    }

    /// Opens the log again, as at a start, after its disk was full at a sync. What is opened takes the place of this
    /// partition. Blocks.
    pub(crate) fn reopen(&self) -> Result<Self, LogError> {
        let _trimming = locked(&self.trimming);
        let log = locked(&self.log);
        let (config, bytes) = (log.config, log.bytes());
        drop(log);
        // What is known to be synced has to be there, and need not be written again.
        let synced_end = self.synced_end.load(Ordering::Acquire);
        self.limits.syncs.ends.note(self.key(), synced_end);
        self.topic_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let opened = Self::open(
            Arc::clone(&self.topic),
            self.key(),
            self.dir.clone(),
            config,
            self.log_start(),
            Arc::clone(&self.topic_bytes),
            self.limits.clone(),
        );
        if opened.is_err() {
            self.topic_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        opened
    }
}
