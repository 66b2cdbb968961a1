//! What runs on a node of Waybill, whatever roles it has.
//!
//! [`config`] says what is wanted, [`ingestion`] and [`scheduler`] do the work,
//! [`admin`] and [`telemetry`] show it, [`backup`] keeps a copy, and [`shutdown`] ends it in order.
//!
//! Deliberately absent: any decision about an operation, which is the engine's; the wiring of roles and the commands, which
//! are the program's.

pub mod admin;
pub mod backup;
pub mod config;
pub mod data_dir;
pub mod disk;
pub mod ingestion;
pub mod scheduler;
pub mod shutdown;
pub mod telemetry;
