//! The spans of operations: the start of an operation, each request to an agent, and the end.
//!
//! All spans of an operation are children of one span, whose ID follows from the operation's ID:
//! every owner can derive it, and it needs no column in the row. It is recorded when the operation
//! is created and not when it ends, so that a trace is complete at any time, however long the
//! operation takes. An owner that takes the request up again records it once more with the same ID,
//! because the first may have been lost with its process.

use std::time::{Duration, SystemTime};

use waybill_engine::{Message, OperationId, ProcessState, StepRequest, Timestamp};
use waybill_messages::Topics;
use waybill_state::RowWrite;
use waybill_telemetry::trace::{self, OpenSpan, SpanId, SpanKind, TraceContext, TraceId, names};

const SCOPE: &str = "waybill.scheduler";

/// The trace context for a request without one: a trace that begins with the operation, and has its
/// ID. `None` if tracing is off.
pub(super) fn context_of(operation: OperationId) -> Option<String> {
    trace::is_on().then(|| {
        let trace = TraceId(*operation.0.as_bytes());
        TraceContext::beginning(trace, taken_up(operation)).to_string()
    })
}

/// The spans of a row: its operation was started, or has ended.
pub(super) fn of_row(row: &RowWrite, topics: &Topics, spans: &mut Vec<OpenSpan>) {
    if !trace::is_on() {
        return;
    }
    // The immutable part is present in the first row and in each row of a final state.
    let Some(created) = row.created.as_deref() else {
        return;
    };
    let Some(parent) = created.traceparent.as_deref() else {
        return;
    };
    let requests = topics.of_priority(created.request.priority);
    let is_final = row.state.state.is_final();
    let is_first = !is_final || row.state.steps.iter().all(|step| !step.was_asked_for());
    if is_first
        && let Some(mut span) = trace::begin(Some(parent), SCOPE, SpanKind::Consumer, || {
            format!("process {requests}").into()
        })
    {
        span.set_id(taken_up(row.id));
        span.set_start(instant(created.created_at));
        span.set(names::MESSAGING_SYSTEM, "kafka");
        span.set(names::MESSAGING_OPERATION, "process");
        span.set(names::MESSAGING_DESTINATION, requests.to_owned());
        span.set(
            names::MESSAGING_PARTITION,
            created.request.partition.to_string(),
        );
        span.set(names::MESSAGING_OFFSET, created.request.offset.0);
        about(&mut span, row.id, &created.workflow, &created.tenant);
        spans.push(span);
    }
    if is_final
        && let Some(mut span) = trace::begin(Some(parent), SCOPE, SpanKind::Internal, || {
            created.workflow.to_string().into()
        })
    {
        span.set_start(instant(created.requested_at));
        span.set_end(instant(row.state.updated_at));
        about(&mut span, row.id, &created.workflow, &created.tenant);
        span.set(names::STATE, row.state.state.as_str());
        if let Some(failure) = row.state.failure() {
            if let Some(step) = &failure.step {
                span.set(names::STEP, step.clone());
            }
            span.set(names::ERROR_TYPE, failure.error.code.clone());
        }
        if !matches!(
            row.state.state,
            ProcessState::Processed | ProcessState::Cancelled
        ) {
            span.fail(row.state.state.as_str());
        }
        spans.push(span);
    }
}

/// Begins the spans of requests to agents, and stores their contexts in the requests. Agents with a
/// topic, which `topic` returns, receive a record.
pub(super) fn of_messages<'t>(
    messages: &mut [Message],
    topic: impl Fn(&StepRequest) -> Option<&'t str>,
) -> Vec<OpenSpan> {
    if !trace::is_on() {
        return Vec::new();
    }
    let mut spans = Vec::new();
    for message in messages {
        if let Message::Step(request) = message {
            let topic = topic(request);
            spans.extend(of_request(request, topic));
        }
    }
    spans
}

fn of_request(request: &mut StepRequest, topic: Option<&str>) -> Option<OpenSpan> {
    let came_with = TraceContext::parse(request.traceparent.as_deref()?)?;
    let parent = TraceContext {
        span: taken_up(request.operation),
        ..came_with
    };
    if !parent.is_sampled {
        return None;
    }
    let parent = parent.to_string();
    let Some(topic) = topic else {
        // The agent runs in this process: no record is sent.
        request.traceparent = Some(parent.into());
        return None;
    };
    let mut span = trace::begin(Some(&parent), SCOPE, SpanKind::Producer, || {
        format!("send {topic}").into()
    })?;
    span.set(names::MESSAGING_SYSTEM, "kafka");
    span.set(names::MESSAGING_OPERATION, "send");
    span.set(names::MESSAGING_DESTINATION, topic.to_owned());
    about(
        &mut span,
        request.operation,
        &request.workflow,
        &request.tenant,
    );
    span.set(names::AGENT, request.agent.to_string());
    span.set(names::STEP, request.step.to_string());
    span.set(names::ACTION, request.action.as_str());
    span.set(names::ATTEMPT, i64::from(request.attempt.0));
    request.traceparent = Some(span.context().to_string().into());
    Some(span)
}

/// Ends the spans of sent records, with the failure if they were not acknowledged.
pub(super) fn sent(spans: Vec<OpenSpan>, failure: Option<&str>) {
    for mut span in spans {
        if let Some(failure) = failure {
            span.fail(failure.to_owned());
        }
    }
}

fn about(span: &mut OpenSpan, operation: OperationId, workflow: &str, tenant: &str) {
    span.set(names::OPERATION, operation.to_string());
    span.set(names::WORKFLOW, workflow.to_owned());
    if !tenant.is_empty() {
        span.set(names::TENANT, tenant.to_owned());
    }
}

/// The span of the start of an operation.
fn taken_up(operation: OperationId) -> SpanId {
    SpanId::of(operation.0)
}

fn instant(at: Timestamp) -> SystemTime {
    let since_epoch = u64::try_from(at.as_micros()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_micros(since_epoch)
}
