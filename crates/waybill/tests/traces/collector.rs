//! A collector of spans: OTLP over HTTP, in memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use tokio::net::TcpListener;

use super::PATIENCE;

/// A received span.
#[derive(Clone, Debug)]
pub struct Received {
    /// The service name of its process.
    pub service: String,
    /// The instrumentation scope.
    pub scope: String,
    pub trace: String,
    pub id: String,
    /// Empty for the root span of a trace.
    pub parent: String,
    pub name: String,
    pub kind: SpanKind,
    pub attributes: HashMap<String, String>,
    pub is_failure: bool,
    pub took: Duration,
}

impl Received {
    pub fn is(&self, attribute: &str, value: &str) -> bool {
        self.attributes
            .get(attribute)
            .is_some_and(|text| text == value)
    }
}

/// Stops with the runtime of its test.
pub struct Collector {
    pub address: SocketAddr,
    spans: Arc<Mutex<Vec<Received>>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&spans);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let service = service_fn(move |request| take(request, Arc::clone(&kept)));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { address, spans }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}/v1/traces", self.address)
    }

    /// The spans of an operation, once `wanted` accepts them.
    pub async fn of(&self, operation: &str, wanted: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let look = async {
            loop {
                let spans = self.all_of(operation);
                if wanted(&spans) {
                    return spans;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, look).await {
            Ok(spans) => spans,
            Err(_) => panic!("not as wanted: {:#?}", self.all_of(operation)),
        }
    }

    /// The spans that name an operation, and all others of their traces.
    pub fn all_of(&self, operation: &str) -> Vec<Received> {
        let spans = self.spans.lock().unwrap();
        let traces: Vec<&String> = spans
            .iter()
            .filter(|span| span.is("waybill.operation.id", operation))
            .map(|span| &span.trace)
            .collect();
        let belongs = |span: &&Received| traces.contains(&&span.trace);
        spans.iter().filter(belongs).cloned().collect()
    }
}

async fn take(
    request: Request<Incoming>,
    kept: Arc<Mutex<Vec<Received>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_ours = request.uri().path() == "/v1/traces"
        && request.headers()["content-type"] == "application/x-protobuf"
        && request
            .headers()
            .get("x-key")
            .is_some_and(|key| key == "open sesame");
    let body = request.into_body().collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let mut response = Response::new(Full::default());
    match ExportTraceServiceRequest::decode(body) {
        Ok(message) if is_ours => kept.lock().unwrap().extend(spans_of(message)),
        _ => *response.status_mut() = hyper::StatusCode::BAD_REQUEST,
    }
    Ok(response)
}

fn spans_of(message: ExportTraceServiceRequest) -> Vec<Received> {
    let mut received = Vec::new();
    for resource in message.resource_spans {
        let of_process = attributes(resource.resource.unwrap_or_default().attributes);
        for scope in resource.scope_spans {
            let of_part = scope.scope.unwrap_or_default().name;
            received.extend(scope.spans.into_iter().map(|span| Received {
                service: of_process["service.name"].clone(),
                scope: of_part.clone(),
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                kind: span.kind(),
                name: span.name,
                attributes: attributes(span.attributes),
                is_failure: span.status.unwrap_or_default().code == 2,
                took: Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano),
            }));
        }
    }
    received
}

fn attributes(pairs: Vec<KeyValue>) -> HashMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("no text and no number: {other:?}"),
    };
    let pairs = pairs.into_iter();
    pairs.map(|pair| (pair.key, text(pair.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
