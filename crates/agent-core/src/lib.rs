//! The agents' run loop: all of its decisions, and none of its effects.
//!
//! * [`AgentLoop`]: for agents that read their requests from topics. It decides which requests
//!   start, which are refused, which are late, and which offsets may be committed.
//! * [`Queues`]: for agents that a scheduler in the same process calls directly, without records.
//!   [`AgentLoop`] uses it, too.
//!
//! Requests, outcomes, deliveries and the time go in; what to start, to answer, to send again and
//! to commit comes out. `crates/agent` is the driver. It calls the loop from several threads, each
//! call under one lock, and encodes, sends and runs handlers without the lock.
//!
//! What must hold here: the manifest cannot reach tokio, rdkafka or a database, `clippy.toml` bans
//! the parts of `std` that would give access to clocks, threads and files, and the same calls at
//! the same times have the same results. Nothing here formats text under the driver's lock: a
//! [`Refusal`] becomes an outcome later.

mod agent_loop;
mod deadline;
mod epochs;
mod queue;
mod queues;
mod refusal;
#[cfg(test)]
mod requests;
mod resends;
mod work;

pub use agent_loop::{AgentLoop, Attempted, Ended, Source};
pub use deadline::Deadline;
pub use queue::QueueLimits;
pub use queues::{Admission, Next, Queues};
pub use refusal::{Refusal, Refused, not_attempted};
pub use resends::{Failed, Failure, Purpose, Sent};
pub use work::Work;
