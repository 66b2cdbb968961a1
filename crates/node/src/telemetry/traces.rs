//! Sends spans to a collector, by OTLP over HTTP (<https://opentelemetry.io/docs/specs/otlp/>).
//!
//! What must hold: no operation ever waits for a collector. A span is dropped and counted if the
//! queue is full or the collector refuses it.

use std::time::Duration;

use anyhow::Context as _;
use metrics::Counter;
use opentelemetry::trace::{SpanContext, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{
    SpanExporter as OtlpExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use waybill_telemetry::chain;
use waybill_telemetry::trace::{self, Recorder, Span, SpanKind, TraceId, Value};
use waybill_telemetry::{Declared, Metric};

use super::{TracesConfig, VERSION};

/// The limit on spans in one request.
const BATCH_MAX: usize = 2_000;
/// How long a span waits for others to share its request.
const GATHER: Duration = Duration::from_millis(500);
/// How long an orderly shutdown waits for the collector.
const FLUSH_MAX: Duration = Duration::from_secs(3);

const SPANS: Metric<Counter, 1> =
    Metric::new("waybill_trace_spans_total", "Spans by outcome", ["outcome"]);

/// The metrics of traces.
pub(super) const METRICS: &[&dyn Declared] = &[&SPANS];

/// Records spans of `service` from now on, if a collector is configured. The returned sender sends
/// them.
///
/// # Errors
///
/// If the configuration is invalid.
pub fn install(config: &TracesConfig, service: &'static str) -> anyhow::Result<Option<Sender>> {
    let (Some(endpoint), Some(client)) = (&config.endpoint, config.client()?) else {
        return Ok(None);
    };
    let mut exporter = OtlpExporter::builder()
        .with_http()
        .with_endpoint(endpoint)
        .with_http_client(client)
        .with_timeout(config.request_timeout)
        .build()
        .context("telemetry.traces is invalid")?;
    exporter.set_resource(&resource(service));
    let (queue, spans) = mpsc::channel(config.queue_max);
    trace::install(Box::new(Queue {
        queue,
        sample_ratio: config.sample_ratio,
        dropped: SPANS.of(["dropped"]),
    }))?;
    Ok(Some(Sender {
        exporter,
        spans,
        sent: SPANS.of(["sent"]),
        failed: SPANS.of(["failed"]),
    }))
}

/// The service name in traces: `service`, unless OpenTelemetry's own variables, `OTEL_SERVICE_NAME`
/// and `OTEL_RESOURCE_ATTRIBUTES`, set another.
fn resource(service: &'static str) -> Resource {
    let resource = Resource::builder().build();
    let is_given = |name: &'static str| {
        let value = resource.get_ref(&name.into());
        value.is_some_and(|value| !value.as_str().starts_with("unknown_service"))
    };
    let ours = [("service.name", service), ("service.version", VERSION)];
    let missing = ours.into_iter().filter(|(name, _)| !is_given(name));
    Resource::builder()
        .with_attributes(missing.map(|(name, value)| KeyValue::new(name, value)))
        .build()
}

/// The queue of spans to send.
struct Queue {
    queue: mpsc::Sender<Span>,
    sample_ratio: f64,
    dropped: Counter,
}

impl Recorder for Queue {
    fn record(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.increment(1);
        }
    }

    fn samples(&self, trace: TraceId) -> bool {
        trace.share() < self.sample_ratio
    }
}

/// Sends the spans in the queue.
pub struct Sender {
    exporter: OtlpExporter,
    spans: mpsc::Receiver<Span>,
    sent: Counter,
    failed: Counter,
}

impl Sender {
    /// Sends spans until `stop` is cancelled, and then the remaining ones.
    ///
    /// # Errors
    ///
    /// Never: it returns a result as every task of the program does.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                () = gather(&mut self.spans, &mut batch) => {}
                () = stop.cancelled() => break,
            }
            self.send(&mut batch).await;
        }
        self.spans.close();
        let rest = async {
            while !batch.is_empty() || self.spans.recv_many(&mut batch, BATCH_MAX).await > 0 {
                self.send(&mut batch).await;
            }
        };
        if tokio::time::timeout(FLUSH_MAX, rest).await.is_err() {
            tracing::warn!("could not send the last spans: the collector did not answer in time");
        }
        Ok(())
    }

    async fn send(&self, batch: &mut Vec<Span>) {
        let spans: Vec<SpanData> = batch.drain(..).map(exported).collect();
        let count = spans.len() as u64;
        match self.exporter.export(spans).await {
            Ok(()) => self.sent.increment(count),
            Err(error) => {
                self.failed.increment(count);
                tracing::warn!(error = %chain(&error), "could not send spans");
            }
        }
    }
}

/// Waits for a span, and for those that follow soon. If the future is dropped, the spans that it
/// took from the queue are in the batch.
async fn gather(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
    spans.recv_many(batch, BATCH_MAX).await;
    let others = async {
        while batch.len() < BATCH_MAX {
            spans.recv_many(batch, BATCH_MAX - batch.len()).await;
        }
    };
    // A batch is sent when it is full or its time is over.
    _ = tokio::time::timeout(GATHER, others).await;
}

/// A span in OpenTelemetry's form.
fn exported(span: Span) -> SpanData {
    let context = SpanContext::new(
        opentelemetry::TraceId::from_bytes(span.context.trace.0),
        opentelemetry::SpanId::from_bytes(span.context.span.0),
        TraceFlags::SAMPLED,
        false,
        TraceState::default(),
    );
    let parent = span.parent.map(|parent| parent.0).unwrap_or_default();
    let attributes = span
        .attributes
        .into_iter()
        .map(|(name, value)| match value {
            Value::Text(text) => KeyValue::new(name, text.into_owned()),
            Value::Number(number) => KeyValue::new(name, number),
        });
    SpanData {
        span_context: context,
        parent_span_id: opentelemetry::SpanId::from_bytes(parent),
        parent_span_is_remote: matches!(span.kind, SpanKind::Server | SpanKind::Consumer),
        span_kind: match span.kind {
            SpanKind::Server => opentelemetry::trace::SpanKind::Server,
            SpanKind::Client => opentelemetry::trace::SpanKind::Client,
            SpanKind::Producer => opentelemetry::trace::SpanKind::Producer,
            SpanKind::Consumer => opentelemetry::trace::SpanKind::Consumer,
            SpanKind::Internal => opentelemetry::trace::SpanKind::Internal,
        },
        name: span.name,
        start_time: span.began,
        end_time: span.ended,
        attributes: attributes.collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: match span.failure {
            Some(why) => Status::error(why),
            None => Status::Unset,
        },
        instrumentation_scope: InstrumentationScope::builder(span.scope)
            .with_version(VERSION)
            .build(),
    }
}
