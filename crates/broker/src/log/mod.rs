//! The log of a partition: append-only segment files of record batches.
//!
//! * `disk`: the operations on files.
//! * `segment`: one file and its sparse index; `scan`: reading one; `recovery`: opening all of
//!   them.
//! * `synced`: how far each partition is known to be synced.
//! * `damage`, `repair`: damaged logs.
//! * `producers`: the sequences of idempotent producers.
//! * `partition`: appending, and waking readers; `syncing`: making data durable, closing segments.
//! * `reopening`: after a full disk.
//! * `read`: reading by offset and by time.
//! * `trim`: deleting old segments.
//! * `noted`: the content at one instant.

mod damage;
mod disk;
mod noted;
mod partition;
mod producers;
mod read;
mod recovery;
mod reopening;
mod repair;
mod scan;
mod segment;
mod sync_threads;
mod synced;
mod syncing;
mod trim;

pub use damage::{Damage, DamagedBatch};
#[cfg(test)]
pub(crate) use disk::faults;
pub(crate) use disk::{LogFile, has_room, system_disk};
pub(crate) use partition::{AppendError, Appended, Condition, Limits, Partition};
pub(crate) use read::ReadError;
pub(crate) use repair::{Repair, aside_path};
pub(crate) use scan::verify;
pub(crate) use segment::{LogError, segment_path};
pub(crate) use sync_threads::{SyncQueue, SyncThreads, spawn_reporting_panics};
pub(crate) use synced::SyncedEnds;
pub(crate) use syncing::{Closing, NotClosed, Unwritten};

#[cfg(test)]
#[path = "../../tests/log_simulation/mod.rs"]
mod simulation;
#[cfg(test)]
mod tests;
