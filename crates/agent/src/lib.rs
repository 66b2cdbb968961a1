//! The library for agent authors.
//!
//! An agent wraps one remote service and performs the steps that workflows assign to it. There are
//! three ways to write one:
//!
//! * **By declaration**: a YAML mapping from step to HTTP request, see [`http`].
//! * **In Rust**: implement [`Handler`] and pass it to [`Agents::start`].
//! * **In any other language**: follow the topic contract, which `docs/agents.md` describes.
//!
//! [`Agents`] is the run loop that serves the first two over their topics; [`DirectAgents`] runs in
//! a scheduler's own process. [`testing`] runs a handler without Kafka. The crate `agent-check`
//! tests an agent of any of the three kinds.
//!
//! What must hold for every agent: it may receive the same attempt more than once, and has one
//! effect for all of them, by the idempotency key. It does not work past complete-by. It reports a
//! failure without effect only if that is certain.
//!
//! Deliberately absent: any state. The scheduler tracks what an operation has done, and what comes
//! next.

mod breaker;
mod config;
mod handler;
pub mod http;
mod instance;
mod metrics;
mod raw;
mod run;
mod spans;
mod template;
pub mod testing;

pub use config::{AgentTransport, AgentsConfig, BuiltInCalls};
pub use futures_util::future::BoxFuture;
pub use handler::{Handler, StepCall, not_attempted, permanent, success, transient, unknown};
pub use instance::{InstanceError, InstancePlace};
pub use metrics::METRICS;
pub use run::{
    Agents, AgentsError, AgentsSettings, DirectAgents, DirectConfig, Membership, StartError,
    WorkerPanicked,
};
pub use template::{RenderError, TemplateError};
pub use waybill_engine::{Action, Outcome, Outputs, StepError, StepRequest};
