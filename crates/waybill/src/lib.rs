//! The waybill program as a library: the wiring of roles, and the command line.
//!
//! [`program`] does what the command line asks for. [`cli`] has the commands, [`roles`] starts what a
//! process is to do, and [`catalogue`] knows every metric.
//!
//! Deliberately absent: what roles do, which is in their own crates, such as `waybill-ingestion` and
//! `waybill-scheduler`, and the operator commands, which are in `waybill-ops`.

mod broker_access;
pub mod catalogue;
pub mod cli;
pub mod program;
pub mod roles;
