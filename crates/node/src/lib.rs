//! What runs on a node of Waybill, whatever roles it has.
//!
//! [`config`] says what is wanted, [`ingestion`], [`scheduler`] and [`supervisor`] do the work, [`auth`] says who may ask,
//! [`admin`] and [`telemetry`] show it, [`topology`] knows the topics and [`readers`] which process reads what, [`backup`] keeps a copy, and [`shutdown`] ends it in order.
//!
//! Deliberately absent: any decision about an operation, which is the engine's; the wiring of roles and the commands, which
//! are the program's.

pub mod admin;
pub mod auth;
pub mod backup;
pub mod config;
pub mod data_dir;
pub mod disk;
pub mod growing;
pub mod ingestion;
pub mod readers;
pub mod scheduler;
pub mod shutdown;
pub mod spread;
pub mod supervisor;
pub mod telemetry;
pub mod topology;
