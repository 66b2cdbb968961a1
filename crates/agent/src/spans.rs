//! The spans of attempts, and of the service calls that they make.

use bytes::Bytes;
use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};
use waybill_engine::{Outcome, StepRequest};
use waybill_telemetry::trace::{self, OpenSpan, SpanKind, names};

/// The header that carries the trace context to services.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

const SCOPE: &str = "waybill.agent";

/// Begins the span of an attempt, and makes it the parent of the attempt's spans. The request
/// arrived through `topic`, or from the scheduler directly.
pub(crate) fn of_attempt(request: &mut StepRequest, topic: Option<&str>) -> Option<OpenSpan> {
    let parent = request.traceparent.as_deref()?;
    let kind = match topic {
        Some(_) => SpanKind::Consumer,
        None => SpanKind::Internal,
    };
    let mut span = trace::begin(Some(parent), SCOPE, kind, || {
        format!("process {}", topic.unwrap_or(&request.agent)).into()
    })?;
    if let Some(topic) = topic {
        span.set(names::MESSAGING_SYSTEM, "kafka");
        span.set(names::MESSAGING_OPERATION, "process");
        span.set(names::MESSAGING_DESTINATION, topic.to_owned());
    }
    span.set(names::OPERATION, request.operation.to_string());
    span.set(names::WORKFLOW, request.workflow.to_string());
    span.set(names::AGENT, request.agent.to_string());
    span.set(names::STEP, request.step.to_string());
    span.set(names::ACTION, request.action.as_str());
    span.set(names::ATTEMPT, i64::from(request.attempt.0));
    request.traceparent = Some(span.context().to_string().into());
    Some(span)
}

/// Ends the span of an attempt; `outcome` is `None` if there was no answer in time.
pub(crate) fn attempted(mut span: OpenSpan, outcome: Option<&Outcome>) {
    let (name, error) = match outcome {
        Some(Outcome::Success { .. }) => ("success", None),
        Some(Outcome::NotPerformed) => ("not-performed", None),
        Some(Outcome::Transient { error }) => ("transient", Some(error)),
        Some(Outcome::Permanent { error }) => ("permanent", Some(error)),
        Some(Outcome::Unknown { error }) => ("unknown", Some(error)),
        Some(Outcome::NotAttempted { error, .. }) => ("not-attempted", Some(error)),
        None => {
            span.fail("complete-by has passed");
            ("late", None)
        }
    };
    span.set(names::OUTCOME, name);
    if let Some(error) = error {
        span.set(names::ERROR_TYPE, error.code.clone());
        // Not the message: it may contain text of the service.
        span.fail(error.code.clone());
    }
}

/// Begins the span of a service call as a child of the request's trace context, and puts the call's
/// context into the request.
pub(crate) fn of_call(request: &mut Request<Bytes>) -> Option<OpenSpan> {
    let parent = request.headers().get(TRACEPARENT)?.to_str().ok()?;
    let method = request.method();
    let mut span = trace::begin(Some(parent), SCOPE, SpanKind::Client, || {
        method.as_str().to_owned().into()
    })?;
    span.set(names::HTTP_METHOD, method.as_str().to_owned());
    // Not the path: it may contain data of the operation.
    if let Some(host) = request.uri().host() {
        span.set(names::SERVER_ADDRESS, host.to_owned());
    }
    if let Some(port) = request.uri().port_u16() {
        span.set(names::SERVER_PORT, i64::from(port));
    }
    let context = HeaderValue::try_from(span.context().to_string());
    let context = context.expect("digits and hyphens fit into a header");
    request.headers_mut().insert(TRACEPARENT, context);
    Some(span)
}

/// Ends the span of a call that got a response with this status, or no response.
pub(crate) fn called(mut span: OpenSpan, status: Option<u16>) {
    match status {
        Some(status) => {
            span.set(names::HTTP_STATUS, i64::from(status));
            if status >= 400 {
                span.set(names::ERROR_TYPE, status.to_string());
                span.fail("");
            }
        }
        None => {
            span.set(names::ERROR_TYPE, "no-answer");
            span.fail("the service has not answered");
        }
    }
}
