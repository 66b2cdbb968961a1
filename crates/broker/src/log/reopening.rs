//! Opening a partition again after its disk was full at a sync.
//!
//! After a failed sync, a later one may succeed without writing the lost data, and reads may return
//! older data. So the log is opened as at a start (see [`recovery`](super::recovery)): whole
//! unsynced batches are rewritten, and the rest is cut off. None of that was acknowledged on a
//! synced topic.
//!
//! What must hold: **the reopened partition is another one.** Waits for a sync of the old one fail,
//! whatever is appended to the new one at the same offsets.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use waybill_disk::is_full;

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
        // Under the lock, so that no append is in progress afterwards.
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

    /// Opens the log again, as at a start, after its disk was full at a sync. Returns the partition
    /// that replaces this one. Blocks.
    pub(crate) fn reopen(&self) -> Result<Self, LogError> {
        let _trimming = locked(&self.trimming);
        let log = locked(&self.log);
        let (config, bytes) = (log.config, log.bytes());
        drop(log);
        // Synced data must be there, and need not be written again.
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
        if opened.is_ok() {
            // Its records become visible, so their end is stored first.
            self.limits.syncs.store_ends();
        } else {
            self.topic_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        opened
    }
}
