//! The waybill program as a library: the wiring of roles, and the commands.
//!
//! `main.rs` only reads the command line and starts what it asks for. [`cli`] has the commands, [`roles`] starts what a
//! process is to do, [`catalogue`] knows every metric, and `transfer` moves operations elsewhere.
//!
//! Deliberately absent: what roles do, which is in their own crates, such as `waybill-ingestion` and
//! `waybill-scheduler`.

mod broker_access;
pub mod catalogue;
pub mod cli;
mod open_files;
mod registry;
pub mod roles;
mod transfer;
