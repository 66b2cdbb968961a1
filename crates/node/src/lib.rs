//! What every process of Waybill has, whatever roles it runs.
//!
//! [`config`] says what is wanted, [`admin`] and [`telemetry`] show what is going on, [`disk`] watches the free space,
//! [`backup`] keeps a copy, and [`shutdown`] ends everything in order.
//!
//! Deliberately absent: any decision about an operation, which is the engine's; the roles, which have crates of their own;
//! their wiring and the commands, which are the program's.

pub mod admin;
pub mod backup;
pub mod config;
pub mod data_dir;
pub mod disk;
pub mod exposure;
pub mod measured_store;
pub mod open_files;
mod role;
pub mod shutdown;
pub mod telemetry;

pub use role::{Needs, Role};
