//! The parts that every process of Waybill has, whatever roles it runs.
//!
//! [`Role`] names the roles, [`config`] is the configuration, and [`exposure`] lists the listeners
//! of each role and refuses unauthenticated ones. [`admin`] and [`telemetry`] show the state of a
//! process, [`instrumented_store`] measures the state store, [`disk`] watches free space,
//! [`open_files`] raises the limit of open files, [`workflows`] loads the workflows, [`backup`]
//! makes backups, and [`shutdown`] ends everything in order.
//!
//! Deliberately absent: decisions about operations (in the engine), the roles (in their own
//! crates), their wiring (in `waybill`), and the operator commands (in `waybill-ops`).

pub mod admin;
pub mod backup;
pub mod broker_access;
pub mod broker_metrics;
pub mod config;
pub mod data_dir;
pub mod disk;
pub mod exposure;
pub mod instrumented_store;
pub mod log_filter;
pub mod open_files;
pub mod preparation;
mod role;
pub mod shutdown;
pub mod telemetry;
pub mod workflows;

pub use role::{Needs, Role};
