//! Shared parts of test programs. A failure panics.

pub mod batches;
pub mod bombs;
pub mod certificate;
pub mod clock;
pub mod log;
pub mod memory;
pub mod ports;
pub mod previous;
pub mod process;
pub mod registry;
mod repair;
pub mod rows;
mod servers;
pub mod setup;
pub mod smtp_server;
pub mod supervision;
pub mod webhook_receiver;

pub use self::servers::drop_keyspace;
