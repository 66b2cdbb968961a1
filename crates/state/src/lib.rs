//! The data of the state store: rows, leases, the layout of the shards, and the entries of its
//! indexes. Also when a lease may be taken, and with which one a shard begins.
//!
//! These are types and rules without I/O, so that the pure loops around the engine can use them:
//! the manifest cannot reach a store, a clock or a thread, and `clippy.toml` bans those of `std`.
//! Time is an argument. `waybill-store` exports the types with the stores that keep them.

mod attention;
mod due;
mod layout;
mod lease;
mod lease_watch;
mod predecessors;
mod row;

pub use attention::{AttentionCursor, AttentionEntry, AttentionOrder, AttentionPage};
pub use due::{DUE_BUCKETS_REREAD, DueBucket, DueEntry};
pub use layout::{Layout, LayoutError, LayoutGeneration, Retired};
pub use lease::{Checkpoint, Lease, LeaseKey, LeaseRole};
pub use lease_watch::{LeaseStatus, LeaseWatch};
pub use predecessors::{CurrentLeases, Predecessor, Successor};
pub use row::{CorruptRow, KeptRow, RowRead, RowWrite, WriteBatch, Written};
