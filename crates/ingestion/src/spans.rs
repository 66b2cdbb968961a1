//! The spans of requests and of their records.

use hyper::header::HeaderValue;
use hyper::{Request, StatusCode};
use waybill_api::request::TRACEPARENT;
use waybill_engine::{CreateRequest, Offset, PartitionId};
use waybill_kafka::ProduceError;
use waybill_telemetry::trace::{self, OpenSpan, SpanKind, names};

use super::route::{OPERATION, OPERATIONS, Route};

const SCOPE: &str = "waybill.ingestion";

/// The address pattern of requests that have a span.
///
/// Each line of a batch is a request, and an event stream lasts long: neither has a span as a
/// whole.
pub fn pattern(route: Route<'_>) -> Option<&'static str> {
    match route {
        Route::Requests(form) => Some(form.names.collection),
        Route::Request(form, _) => Some(form.names.item),
        Route::Operations => Some(OPERATIONS),
        Route::Operation(_) => Some(OPERATION),
        Route::Events(_)
        | Route::Batch
        | Route::OpenApi
        | Route::Docs
        | Route::DocsFile(_)
        | Route::Problem(_)
        | Route::Home
        | Route::Nothing => None,
    }
}

/// Begins the span of a request to an address of this pattern, and puts its context into the
/// request's head, so that later spans belong to it. A request that only reads begins no trace.
pub fn of_request<B>(request: &mut Request<B>, pattern: &'static str) -> Option<OpenSpan> {
    if !trace::is_on() {
        return None;
    }
    let parent = request.headers().get(TRACEPARENT);
    let parent = parent.and_then(|parent| parent.to_str().ok());
    let method = request.method();
    if parent.is_none() && method.is_safe() {
        return None;
    }
    let mut span = trace::begin(parent, SCOPE, SpanKind::Server, || {
        format!("{method} {pattern}").into()
    })?;
    span.set(names::HTTP_METHOD, method.as_str().to_owned());
    span.set(names::HTTP_ROUTE, pattern);
    let context = HeaderValue::try_from(span.context().to_string());
    let context = context.expect("digits and hyphens fit into a header");
    request.headers_mut().insert(TRACEPARENT, context);
    Some(span)
}

/// Ends the span of a request with the status of its answer.
pub fn answered(mut span: OpenSpan, status: StatusCode) {
    span.set(names::HTTP_STATUS, i64::from(status.as_u16()));
    if status.is_server_error() {
        span.set(names::ERROR_TYPE, status.as_u16().to_string());
        span.fail("");
    }
}

/// Begins the span of sending a request's record to `topic`.
pub fn of_record(record: &CreateRequest, topic: &str) -> Option<OpenSpan> {
    let parent = record.traceparent.as_deref();
    let mut span = trace::begin(parent, SCOPE, SpanKind::Producer, || {
        format!("send {topic}").into()
    })?;
    span.set(names::MESSAGING_SYSTEM, "kafka");
    span.set(names::MESSAGING_OPERATION, "send");
    span.set(names::MESSAGING_DESTINATION, topic.to_owned());
    span.set(names::OPERATION, record.operation.to_string());
    span.set(names::WORKFLOW, record.workflow.clone());
    if !record.tenant.is_empty() {
        span.set(names::TENANT, record.tenant.clone());
    }
    Some(span)
}

/// Ends the span of a record with its position, or with the error.
pub fn sent(mut span: OpenSpan, outcome: &Result<(PartitionId, Option<Offset>), ProduceError>) {
    match outcome {
        Ok((partition, offset)) => {
            span.set(names::MESSAGING_PARTITION, partition.to_string());
            if let Some(offset) = offset {
                span.set(names::MESSAGING_OFFSET, offset.0);
            }
        }
        Err(error) => span.fail(error.to_string()),
    }
}
