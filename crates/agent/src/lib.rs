//! The library for agent authors.
//!
//! An agent wraps one remote service and performs the steps of operations that workflows give to
//! it. There are three ways to have one:
//!
//! * **By declaration**: a YAML mapping from step to HTTP request, see [`http`].
//! * **In Rust**: implement [`Handler`] and hand it to [`Agents::start`].
//! * **In any other language**: keep the topic contract, which `docs/agents.md` describes.
//!
//! [`Agents`] is the run loop that serves the first two over their topics, [`DirectAgents`] the one in a
//! scheduler's own process; [`testing`] runs a handler without Kafka, and
//! [`check`] plays against an agent of any of the three.
//!
//! What must hold of every agent: it may be asked for the same attempt more than once, and makes
//! one effect of them by the idempotency key; it does not work past complete-by; and it calls an
//! attempt failed without effect only where that is sure.
//!
//! Deliberately absent: any state. What an operation has done, and what comes next, is the
//! scheduler's business.

mod breaker;
pub mod check;
mod handler;
pub mod http;
mod instance;
mod metrics;
mod raw;
mod run;
mod spans;
mod template;
pub mod testing;

pub use futures_util::future::BoxFuture;
pub use handler::{Handler, StepCall, not_attempted, permanent, success, transient, unknown};
pub use instance::{InstanceError, InstancePlace};
pub use metrics::METRICS;
pub use run::{Agents, AgentsConfig, AgentsError, DirectAgents, DirectConfig, StartError};
pub use template::{RenderError, TemplateError};
pub use waybill_engine::{Action, Outcome, Outputs, StepError, StepRequest};
