//! The drone-delivery application: the delivery request, its workflow, and five simulated services.
//!
//! To the rest of the program the application is a workflow and a file of agents, which are data,
//! and a [form](DroneDelivery) of requests, which the program hands to the HTTP API and to
//! schedulers. The services simulate other teams' systems. They can be slow, fail and hang, and
//! they record every effect in a [ledger](services). Tests read the ledger to check that each step
//! took effect once.
//!
//! Deliberately absent: schedulers, topics and stores.

pub mod field;
mod form;
pub mod request;
pub mod services;

pub use self::form::DroneDelivery;

/// The workflow `drone-delivery`, as YAML.
pub const WORKFLOW_YAML: &str = include_str!("../../../workflows/drone-delivery.yaml");

/// The agents of the workflow, as YAML. `{services}` is a placeholder for the services' base URL.
pub const AGENTS_YAML: &str = include_str!("../../../workflows/drone-delivery-agents.yaml");
