//! The waybill program as a library: every role, and what they share at run time.
//!
//! `main.rs` only reads the command line and starts what it asks for; everything else lives here,
//! so that tests drive the same code in process. The modules split by responsibility: [`cli`] and
//! [`config`] say what is wanted, [`roles`] wires it, [`ingestion`], [`scheduler`] and
//! [`supervisor`] do the work,
//! [`auth`] says who may ask, [`admin`] and [`telemetry`] show it, [`alerts`] tells people, [`contact`] says whom it may tell, [`backup`] keeps a copy, `transfer` moves operations elsewhere, and [`shutdown`] ends it in order.
//!
//! Deliberately absent: any decision about an operation. Those are the engine's.

pub mod admin;
pub mod alerts;
pub mod auth;
pub mod backup;
mod broker_access;
mod chain;
pub mod cli;
mod clock;
pub mod config;
pub mod contact;
mod data_dir;
pub mod disk;
pub(crate) mod growing;
pub mod ingestion;
mod letters;
mod open_files;
mod readers;
mod registry;
pub mod roles;
pub mod scheduler;
pub mod shutdown;
pub mod spread;
pub mod supervisor;
pub mod telemetry;
mod transfer;
mod visible;

pub use visible::escaped_lines;
