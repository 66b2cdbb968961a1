//! The supervisor's loops, and none of their effects.
//!
//! Each loop is a state machine. Its driver (`waybill-supervisor`, or a test) performs one effect
//! at a time on the state store, the topics and the clock, and passes the result back with the
//! time. So a test can drive exactly the code that runs in production, through any order of faults.
//!
//! * [`IndexShard`]: the lease of an index shard, the sweep of its due entries, and its cursor.
//! * [`Audit`]: finds operations of an index shard that nothing would wake, and wakes them.
//! * [`FailedOperations`]: publishes a decision about each operation that failed for good.
//! * [`Parked`]: counts the parked operations of an index shard.
//! * [`Reroute`]: forwards the records of a partition that is no longer in use.
//!
//! The engine's [`Supervision`](waybill_engine::Supervision) decides what an operation needs.
//!
//! What must hold here: the manifest cannot reach tokio, rdkafka or a database, `clippy.toml` bans
//! the parts of `std` that would give access to clocks, threads and files, and the same events at
//! the same times give the same effects.

pub mod audit;
pub mod failed;
pub mod index_shard;
mod lease;
mod pace;
pub mod parked;
pub mod reroute;
#[cfg(test)]
mod rows;
mod sweep;
mod unexpected;

pub use audit::{Audit, AuditSettings};
pub use failed::{FailedOperations, FailedSettings};
pub use index_shard::{IndexShard, IndexShardSettings};
pub use pace::Pace;
pub use parked::{Parked, ParkedStats};
pub use reroute::Reroute;
pub use unexpected::UnexpectedEvent;
