//! Early write-back of growing files, and rewriting of journals after a failed sync.
//!
//! * [`write_back`] has the kernel write early, so that no sync waits for much.
//! * [`rewrite`] writes again what a failed sync may have left in memory alone.
//!
//! What must hold: neither changes what is in a file.
//!
//! Deliberately absent: syncs. The caller decides when to sync.

pub mod rewrite;
pub mod write_back;
