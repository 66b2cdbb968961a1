//! Runs one attempt, until its deadline and with panics caught.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout_at};
use waybill_clock::wall_clock;
use waybill_engine::{Action, Outcome, StepRequest, Timestamp};

use super::queue::RETRY_AFTER_MIN;
use crate::handler::{Handler, StepCall, not_attempted, unknown};
use crate::spans;

/// A request with its times on the monotonic clock. `sent` defaults to now.
pub(crate) fn call_of(request: StepRequest, sent: Option<Timestamp>) -> StepCall {
    let (now, wall_now) = (Instant::now(), wall_clock());
    let deadline = now + request.complete_by.since(wall_now);
    let age = sent.map_or(Duration::ZERO, |sent| wall_now.since(sent));
    StepCall {
        request,
        sent: now.checked_sub(age).unwrap_or(now),
        deadline,
    }
}

/// Runs one attempt in its own span, until its deadline and with panics caught. `None` means no
/// answer. The request arrived through `topic`, or from the scheduler directly.
pub(crate) async fn perform(
    handler: &dyn Handler,
    call: &mut StepCall,
    topic: Option<&str>,
) -> Option<Outcome> {
    let span = spans::of_attempt(call, topic);
    let outcome = perform_untraced(handler, call).await;
    if let Some(span) = span {
        spans::attempted(span, outcome.as_ref());
    }
    if let Some(Outcome::Transient { error } | Outcome::Unknown { error }) = &outcome {
        // One log line per kind of failure: repeated ones are counted.
        let StepRequest { agent, step, .. } = &call.request;
        tracing::warn!(%agent, %step, error = error.code, "attempts fail");
    }
    outcome
}

async fn perform_untraced(handler: &dyn Handler, call: &StepCall) -> Option<Outcome> {
    if is_over(call) {
        return None;
    }
    // The handler's code before its first await must run inside, too.
    let attempt = async {
        match call.request.action {
            Action::Run => handler.run(call).await,
            Action::Compensate => handler.compensate(call).await,
            Action::Probe => handler.probe(call).await,
        }
    };
    let attempt = AssertUnwindSafe(attempt).catch_unwind();
    match timeout_at(call.deadline, attempt).await {
        Ok(Ok(outcome)) => Some(outcome).filter(|_| !is_over(call)),
        Ok(Err(panic)) => Some(unknown("agent-panicked", panic_message(&*panic))),
        Err(_) => None,
    }
}

/// Whether complete-by has passed. (The runtime's timers stop while the machine is suspended.)
fn is_over(call: &StepCall) -> bool {
    Instant::now() >= call.deadline || wall_clock() >= call.request.complete_by
}

/// The answer for requests that are handed back because the process stops.
pub(super) fn stopping() -> Outcome {
    let message = "the agent's process is stopping";
    not_attempted("agent-stopping", message, RETRY_AFTER_MIN)
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) => format!("the agent panicked: {text}"),
        None => "the agent panicked".to_owned(),
    }
}
