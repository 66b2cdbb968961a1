//! The operator commands. They inspect or repair an installation, and exit.
//!
//! They read and repair operations over the HTTP API, topics and dead letters on the brokers, rows
//! in the state store, and a running process over its admin port. What must hold: a command that
//! only reads changes nothing.
//!
//! Deliberately absent: roles and how they start. The program passes in what only it knows, such as
//! the built-in agents.

mod access;
mod address;
mod admin_port;
mod agent_check;
mod avro;
mod backup;
mod broker;
mod broker_login;
mod broker_ready;
mod capacity;
mod connection;
mod credentials;
mod dead_letter_topics;
mod dlq;
mod log;
mod operations;
mod ready;
mod records;
mod runtime;
mod same_configuration;
mod schemas;
mod shards;
mod store;
mod topics;
mod transfer;

pub use access::AdminArgs;
pub use agent_check::AgentCheckArgs;
pub use backup::{BackupArgs, RestoreArgs};
pub use broker::BrokerCommand;
pub use capacity::CapacityArgs;
pub use credentials::named_file;
pub use dlq::DlqCommand;
pub use log::LogArgs;
pub use operations::{DoctorArgs, ExplainArgs, FileCheck, OpsArgs, OpsError, named_elsewhere};
pub use ready::ReadyArgs;
pub use records::RecordsArgs;
pub use schemas::SchemasCommand;
pub use shards::ShardsCommand;
pub use store::StoreCommand;
pub use topics::TopicsCommand;
pub use transfer::{ExportArgs, ImportArgs};
