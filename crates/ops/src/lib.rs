//! The operator commands: what looks at an installation or repairs it, and ends by itself.
//!
//! Operations are seen and repaired over the HTTP API, topics and dead letters on the brokers, rows in the store, and a
//! running process at its admin port. What must hold: a command that only looks changes nothing.
//!
//! Deliberately absent: roles and how they start. What only the program knows, such as the agents that are built in, it
//! hands in.

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
mod readers;
mod ready;
mod records;
mod schemas;
mod shown;
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
pub use operations::{DoctorArgs, ExplainArgs, FileCheck, OpsArgs, OpsError};
pub use readers::ReadersCommand;
pub use ready::ReadyArgs;
pub use records::RecordsArgs;
pub use schemas::SchemasCommand;
pub use shown::Written;
pub use store::StoreCommand;
pub use topics::TopicsCommand;
pub use transfer::{ExportArgs, ImportArgs};

/// What is said of agents that are in no file.
#[must_use]
pub fn named_elsewhere(agents: &[String]) -> String {
    match agents {
        [] => String::new(),
        agents => format!(
            "; agents that are in none of the files: {}",
            agents.join(", ")
        ),
    }
}
