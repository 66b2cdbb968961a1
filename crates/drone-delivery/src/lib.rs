//! The drone-delivery application: what a delivery request is, the workflow that runs it, and five
//! simulated services that a delivery passes through.
//!
//! The application is data to the rest of the program: a workflow, a file of agents, and a type
//! that a request is checked against. The services stand in for other teams' systems: they can be
//! made slow, failing and hanging, and they keep a [ledger](services) of every effect, by which an
//! outside judge tells whether each step took effect once.
//!
//! Deliberately absent: anything that knows of schedulers, topics or stores.

pub mod field;
pub mod request;
pub mod services;

/// The workflow `drone-delivery`, as YAML.
pub const WORKFLOW_YAML: &str = include_str!("../../../workflows/drone-delivery.yaml");

/// The agents of the workflow, as YAML. `{services}` stands for the base URL of the services.
pub const AGENTS_YAML: &str = include_str!("../../../workflows/drone-delivery-agents.yaml");
