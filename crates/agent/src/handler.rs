//! The interface that an agent author implements: one [`Handler`] per agent.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
pub use waybill_agent_core::not_attempted;
use waybill_engine::{Outcome, Outputs, StepError, StepRequest};

/// One attempt at a step, as passed to a [`Handler`].
#[derive(Clone, Debug)]
pub struct StepCall {
    /// The scheduler's request.
    pub request: StepRequest,
    /// When it was sent, on this process's monotonic clock: from the timestamp of its record, if it
    /// arrived in one.
    pub sent: Instant,
    /// The request's complete-by on this process's monotonic clock. When it passes, the run loop
    /// drops the handler's future and sends no answer.
    pub deadline: Instant,
}

impl StepCall {
    /// How much time is left; zero once the deadline has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The idempotency key that all attempts at this step share, so that the service has one
    /// effect: `operation id/step`.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        self.request.idempotency_key()
    }
}

/// Performs and undoes the steps of one agent.
///
/// An implementation must be:
///
/// * **Repeatable.** The same attempt may be delivered more than once, and attempts at one step may
///   overlap. All have the same [`StepCall::idempotency_key`]; the service must have one effect for
///   all of them.
/// * **Cancel-safe.** The returned future may be dropped before it is ready: at complete-by, and
///   when the process stops. Its calls so far count as possibly performed.
/// * **Honest.** [`Outcome::Transient`] and [`Outcome::Permanent`] promise that nothing took
///   effect; if that is not certain, the outcome is [`Outcome::Unknown`].
///
/// A panic is caught, answered as [`Outcome::Unknown`] with the code `agent-panicked`, and affects
/// only its own attempt.
pub trait Handler: Send + Sync + 'static {
    /// Performs one attempt.
    fn run<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome>;

    /// Undoes the step, under the key that it was performed with. Undoing a step that was never
    /// performed, or is already undone, is a success. Once a step is undone, the service should
    /// refuse to perform it under that key. Default: a permanent failure.
    fn compensate<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        async { permanent("compensation-unknown", "this agent cannot undo the step") }.boxed()
    }

    /// Reports whether the step was performed, without performing it: a success with the step's
    /// outputs, or [`Outcome::NotPerformed`]. Default: a permanent failure.
    fn probe<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        async { permanent("probe-unknown", "this agent does not support probes") }.boxed()
    }

    /// The maximum number of concurrent attempts. Read once, when the agent starts.
    fn concurrency_max(&self) -> usize {
        64
    }
}

/// A success with the step's outputs.
#[must_use]
pub fn success(outputs: Outputs) -> Outcome {
    Outcome::Success { outputs }
}

/// A failure without effect that may succeed when tried again.
#[must_use]
pub fn transient(code: impl Into<String>, message: impl Into<String>) -> Outcome {
    Outcome::Transient {
        error: step_error(code, message),
    }
}

/// A refusal without effect that would be repeated.
#[must_use]
pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Outcome {
    Outcome::Permanent {
        error: step_error(code, message),
    }
}

/// An outcome that may or may not have taken effect.
#[must_use]
pub fn unknown(code: impl Into<String>, message: impl Into<String>) -> Outcome {
    Outcome::Unknown {
        error: step_error(code, message),
    }
}

fn step_error(code: impl Into<String>, message: impl Into<String>) -> StepError {
    StepError {
        code: code.into(),
        message: message.into(),
    }
}
