//! What those who write files need of disks, beyond what the standard library has.
//!
//! * [`write_back`] starts to write what no sync waits for, so that no sync has to wait for it either.
//! * [`unsynced`] writes again what a failed sync may have left in memory alone.
//!
//! What must hold: neither changes what is in a file.
//!
//! Deliberately absent: when anything is synced. That is a promise of whoever writes.

pub mod unsynced;
pub mod write_back;
