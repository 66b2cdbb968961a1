//! The waybill program as a library: the command line and the wiring of roles.
//!
//! [`program`] runs the command line. `cli` defines the commands, `roles` starts the roles of a
//! process, and [`catalogue`] lists every metric.
//!
//! Deliberately absent: the roles themselves, which have their own crates such as
//! `waybill-ingestion` and `waybill-scheduler`, and the operator commands, which are in
//! `waybill-ops`.

pub mod catalogue;
mod cli;
pub mod program;
mod roles;
