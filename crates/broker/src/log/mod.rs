//! The log of a partition: append-only segment files of record batches.
//!
//! * `batch`: what is read of a batch.
//! * `segment`: one file and its sparse index; `recovery`: finding out what they hold.
//! * `producers`: the sequences of idempotent producers.
//! * `partition`: appending, syncing and who waits for it.
//! * `read`: reading by offset and by time.
//! * `trim`: deleting old segments.
//! * `noted`: what there is at one instant.

mod batch;
mod noted;
mod partition;
mod producers;
mod read;
mod recovery;
mod segment;
mod trim;

pub(crate) use batch::{BatchError, BatchHeader, LEADER_EPOCH};
pub(crate) use partition::{AppendError, Appended, Closing, Condition, Limits, Partition};
pub(crate) use read::ReadError;
pub(crate) use segment::{LogError, new_segment, sync_dir};
