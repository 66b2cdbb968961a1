//! What an agent author writes: one [`Handler`] per agent.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use waybill_engine::{Outcome, Outputs, StepError, StepRequest};

/// One attempt at a step, as it is handed to a [`Handler`].
#[derive(Clone, Debug)]
pub struct StepCall {
    /// What the scheduler asks for.
    pub request: StepRequest,
    /// When it was sent, on this process's monotonic clock: by the timestamp of its record, where it came in one.
    pub sent: Instant,
    /// The request's complete-by on this process's monotonic clock. The run loop drops the
    /// handler's future when it passes, and answers nothing.
    pub deadline: Instant,
}

impl StepCall {
    /// How much time is left; zero once the deadline has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The key that makes every attempt at this step one effect at the service:
    /// `operation id/step`.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        self.request.idempotency_key()
    }
}

/// Performs, and undoes, the steps of one agent.
///
/// What an implementation must keep:
///
/// * **Repeatable.** The same attempt may be delivered more than once, and attempts of one step may
///   overlap. All of them carry the same [`StepCall::idempotency_key`]; the service must make one
///   effect of them.
/// * **Cancel-safe.** The returned future is dropped at complete-by and when the process stops
///   before it is ready. Whatever it had sent by then counts as possibly performed.
/// * **Honest.** [`Outcome::Transient`] and [`Outcome::Permanent`] promise that nothing took effect;
///   where that is not sure, the outcome is [`Outcome::Unknown`].
///
/// A panic is caught, answered as [`Outcome::Unknown`] with the code `agent-panicked`, and harms
/// only its own attempt.
pub trait Handler: Send + Sync + 'static {
    /// Performs one attempt.
    fn run<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome>;

    /// Undoes the step, under the key that it was performed with. To undo what was never performed,
    /// or is undone already, is a success; and once a step is undone, the service should refuse to
    /// perform it under that key. Default: a permanent failure.
    fn compensate<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        async { permanent("compensation-unknown", "this agent cannot undo the step") }.boxed()
    }

    /// Says whether the step was performed, without performing it: a success, with what it produced,
    /// or [`Outcome::NotPerformed`]. Default: a permanent failure.
    fn probe<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        async { permanent("probe-unknown", "this agent cannot say") }.boxed()
    }

    /// How many attempts may run at once. Read once, when the agent starts.
    fn concurrency_max(&self) -> usize {
        64
    }
}

/// A successful outcome with what it produced.
#[must_use]
pub fn success(outputs: Outputs) -> Outcome {
    Outcome::Success { outputs }
}

/// An outcome that failed without effect and may succeed when tried again.
#[must_use]
pub fn transient(code: impl Into<String>, message: impl Into<String>) -> Outcome {
    Outcome::Transient {
        error: step_error(code, message),
    }
}

/// An outcome that was refused without effect, and would be again.
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

/// An attempt that was not made, with how long to wait before it is asked for again.
#[must_use]
pub fn not_attempted(
    code: impl Into<String>,
    message: impl Into<String>,
    retry_after: Duration,
) -> Outcome {
    Outcome::NotAttempted {
        error: step_error(code, message),
        retry_after_ms: u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX),
    }
}

fn step_error(code: impl Into<String>, message: impl Into<String>) -> StepError {
    StepError {
        code: code.into(),
        message: message.into(),
    }
}
