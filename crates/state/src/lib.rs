//! The data of the state store: rows, leases, the layout of the shards, and the entries of its indexes.
//!
//! This crate exists so that whatever decides by this data needs no store. `waybill_store` keeps the
//! data, and exports these types too.
//!
//! Deliberately absent: the store, its errors, and every encoding of its own.

mod attention;
mod due;
mod layout;
mod lease;
mod row;

pub use attention::{AttentionCursor, AttentionEntry, AttentionOrder, AttentionPage};
pub use due::{DUE_BUCKETS_AGAIN, DueBucket, DueEntry};
pub use layout::{Layout, LayoutError, LayoutGeneration, Retired};
pub use lease::{Begins, Checkpoint, Followed, Lease, LeaseKey, LeaseRole};
pub use row::{CorruptRow, KeptRow, RowRead, RowWrite, WriteBatch, Written};
