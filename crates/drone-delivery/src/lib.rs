//! The drone-delivery application: the delivery request, its workflow, and five simulated services.
//!
//! To the rest of the program the application is data: a workflow, a file of agents, and a type
//! that validates a request. The services simulate other teams' systems. They can be slow, fail and
//! hang, and they record every effect in a [ledger](services). Tests read the ledger to check that
//! each step took effect once.
//!
//! Deliberately absent: schedulers, topics and stores.

pub mod field;
pub mod request;
pub mod services;

/// The workflow `drone-delivery`, as YAML.
pub const WORKFLOW_YAML: &str = include_str!("../../../workflows/drone-delivery.yaml");

/// The agents of the workflow, as YAML. `{services}` is a placeholder for the services' base URL.
pub const AGENTS_YAML: &str = include_str!("../../../workflows/drone-delivery-agents.yaml");
