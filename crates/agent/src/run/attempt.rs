//! Runs one attempt, until its deadline and with panics caught.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout_at};
use waybill_agent_core::Work;
use waybill_clock::clocks;
use waybill_engine::{Action, Now, Outcome, StepRequest, panic_message};

use crate::handler::{Handler, StepCall, unknown};
use crate::spans;

/// An attempt that has ended.
pub(super) struct Performed<S> {
    pub(super) request: StepRequest,
    pub(super) source: S,
    /// `None` means no answer.
    pub(super) outcome: Option<Outcome>,
    pub(super) took: Duration,
    /// The time of its end.
    pub(super) ended: Now,
}

/// Makes one attempt immediately, unless it is late. `None` means no answer.
pub(crate) async fn attempt(handler: &dyn Handler, request: StepRequest) -> Option<Outcome> {
    let now = clocks();
    let work = Work::new(request, (), 0, None, now);
    if work.deadline.is_over(now) {
        return None;
    }
    perform(handler, work, None, now).await.outcome
}

/// Starts an attempt at `now`, and runs it in its own span, until its deadline and with panics
/// caught. The request arrived through `topic`, or from the scheduler directly.
pub(super) async fn perform<S>(
    handler: &dyn Handler,
    work: Work<S>,
    topic: Option<&str>,
    now: Now,
) -> Performed<S> {
    let start = Instant::now();
    let mut call = StepCall {
        sent: start.checked_sub(work.age(now)).unwrap_or(start),
        deadline: start + work.deadline.left(now.boot),
        request: work.request,
    };
    let span = spans::of_attempt(&mut call.request, topic);
    let outcome = perform_untraced(handler, &call).await;
    // The runtime's timers stop while the machine is suspended.
    let ended = clocks();
    let outcome = outcome.filter(|_| !work.deadline.is_over(ended));
    if let Some(span) = span {
        spans::attempted(span, outcome.as_ref());
    }
    if let Some(Outcome::Transient { error } | Outcome::Unknown { error }) = &outcome {
        // One log line per kind of failure: repeated ones are counted.
        let StepRequest { agent, step, .. } = &call.request;
        tracing::warn!(%agent, %step, error = error.code, "attempts fail");
    }
    Performed {
        request: call.request,
        source: work.source,
        outcome,
        took: start.elapsed(),
        ended,
    }
}

async fn perform_untraced(handler: &dyn Handler, call: &StepCall) -> Option<Outcome> {
    // All of the handler's code must run inside: before its first await, and when its future is
    // dropped at the deadline.
    let attempt = async {
        let attempt = async {
            match call.request.action {
                Action::Run => handler.run(call).await,
                Action::Compensate => handler.compensate(call).await,
                Action::Probe => handler.probe(call).await,
            }
        };
        timeout_at(call.deadline, attempt).await.ok()
    };
    AssertUnwindSafe(attempt)
        .catch_unwind()
        .await
        .unwrap_or_else(|payload| {
            let message = format!("the agent panicked: {}", panic_message(&*payload));
            Some(unknown("agent-panicked", message))
        })
}

/// Traces an attempt that is not started, because it is late.
pub(super) fn trace_late(request: &mut StepRequest, topic: Option<&str>) {
    if let Some(span) = spans::of_attempt(request, topic) {
        spans::attempted(span, None);
    }
}
