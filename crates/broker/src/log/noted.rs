//! The content of a partition at one instant, for a copy of it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::disk::LogFile;
use super::partition::{Condition, Partition};
use crate::locked;

/// The content of a partition.
pub(crate) struct Noted {
    /// The first offset, the file, and the bytes of whole batches of each segment.
    pub(crate) segments: Vec<(i64, Arc<LogFile>, u64)>,
    /// How many offsets they span.
    pub(crate) records: u64,
}

impl Partition {
    /// The directory of its files.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Opens every segment, and records how far it is filled, including batches that are not synced
    /// yet. Fails without a cause if the partition cannot be used.
    pub(crate) fn segments(&self) -> Result<Noted, Option<io::Error>> {
        let log = locked(&self.log);
        if self.condition() != Condition::Online {
            return Err(None);
        }
        let mut segments = Vec::with_capacity(log.closed.len() + 1);
        for segment in &log.closed {
            let file = segment.file(&*self.limits.disk, &self.dir)?;
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
