//! What a partition holds at one instant, for a copy of it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::disk::LogFile;
use super::partition::{Condition, Partition};
use crate::locked;

/// What there is of a partition.
pub(crate) struct Noted {
    /// Of each segment its first offset, its file, and how many bytes of it are whole batches.
    pub(crate) segments: Vec<(i64, Arc<LogFile>, u64)>,
    /// How many offsets they span.
    pub(crate) records: u64,
}

impl Partition {
    /// Where its files lie.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Opens every segment, and notes how far it is filled. What was appended and is not synced yet is a part
    /// of it. Fails without a cause where the partition cannot be used.
    pub(crate) fn segments(&self) -> Result<Noted, Option<io::Error>> {
        let log = locked(&self.log);
        if self.condition() != Condition::Online {
            return Err(None);
        }
        let mut segments = Vec::with_capacity(log.closed.len() + 1);
        for segment in &log.closed {
            let file = segment.file(&self.dir)?;
            segments.push((segment.index.base, file, segment.index.bytes));
        }
        segments.push((log.active.base, Arc::clone(&log.file), log.active.bytes));
        let records = log.active.next_offset.saturating_sub(self.log_start());
        Ok(Noted {
            segments,
            records: u64::try_from(records).unwrap_or(0),
        })
    }
}
