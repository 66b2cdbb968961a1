//! What every process of Waybill has, whatever roles it runs.
//!
//! [`Role`] names the roles, [`config`] is the configuration, and [`exposure`] has the listeners of each role and
//! refuses unauthenticated ones. [`admin`] and [`telemetry`] show what a process does, [`instrumented_store`] measures
//! the state store, [`disk`] watches free space, [`open_files`] raises the limit of open files, [`backup`] makes
//! backups, and [`shutdown`] ends everything in order.
//!
//! Deliberately absent: decisions about operations, which are the engine's; what the roles do, which is in crates of
//! their own; their wiring, which is in `waybill`; and the operator commands, which are in `waybill-ops`.

pub mod admin;
pub mod backup;
pub mod config;
pub mod data_dir;
pub mod disk;
pub mod exposure;
pub mod instrumented_store;
pub mod open_files;
mod role;
pub mod shutdown;
pub mod telemetry;

pub use role::{Needs, Role};
