//! The spans of the whole program, as a collector receives them.

mod collector;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use waybill_engine::{
    CreateRequest, IdOrigin, OperationId, OperationRequest, RequestHash, Timestamp, partition_for,
};
use waybill_messages::Record as _;
use waybill_test_support::process::{Process, log_tail};

use self::collector::{Collector, Received};

/// The time limit of all waits. Generous, because it limits only failures.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program with a collector.
struct Setup {
    directory: TempDir,
    process: Process,
    addresses: HashMap<String, SocketAddr>,
    http: Client,
    settings: String,
}

impl Setup {
    /// Starts it with these settings of traces, and additional settings.
    fn start(traces: &str, settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path().display();
        std::fs::write(directory.path().join("headers"), "x-key: open sesame\n").unwrap();
        let settings = format!(
            "dataDir: {here}/data\n\
             http: {{listen: '127.0.0.1:0'}}\n\
             admin: {{listen: '127.0.0.1:0'}}\n\
             broker: {{listen: '127.0.0.1:0'}}\n\
             services: {{listen: '127.0.0.1:0'}}\n\
             telemetry: {{traces: {{headersFile: {here}/headers, {traces}}}}}\n\
             {settings}\n"
        );
        let (process, addresses) = Self::process(&directory, &settings);
        Self {
            directory,
            process,
            addresses,
            http: Client::new(),
            settings,
        }
    }

    fn process(directory: &TempDir, settings: &str) -> (Process, HashMap<String, SocketAddr>) {
        let file = directory.path().join("waybill.yaml");
        std::fs::write(&file, settings).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command.arg("up").arg("--config").arg(file);
        let announces = ["http", "admin", "broker", "services"];
        Process::start(command, &announces, &directory.path().join("log"))
    }

    fn kill_and_start_again(&mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
        (self.process, self.addresses) = Self::process(&self.directory, &self.settings);
    }

    fn url(&self, listener: &str, path: &str) -> String {
        format!("http://{}{path}", self.addresses[listener])
    }

    /// Sends a delivery until it is accepted, and returns its operation.
    async fn deliver(&self, traceparent: Option<&str>) -> String {
        let mut request = self.http.post(self.url("http", "/api/deliveryrequests"));
        if let Some(traceparent) = traceparent {
            request = request.header("traceparent", traceparent);
        }
        let answer = request.json(&delivery()).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        let answer: Value = answer.json().await.unwrap();
        answer["id"].as_str().unwrap().to_owned()
    }

    async fn break_service(&self, service: &str, fault: Value) {
        let url = self.url("services", &format!("/faults/{service}"));
        let answer = self.http.put(url).json(&fault).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }

    async fn restore_service(&self, service: &str) {
        let url = self.url("services", &format!("/faults/{service}"));
        let answer = self.http.delete(url).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }

    async fn wait_for_state(&self, operation: &str, state: &str) {
        let url = self.url("http", &format!("/v1/operations/{operation}"));
        let look = async {
            loop {
                let answer = self.http.get(&url).send().await.unwrap();
                let shown: Value = answer.json().await.unwrap();
                if shown["state"] == state {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, look).await.is_err() {
            let log = log_tail(&self.directory.path().join("log"));
            panic!("{operation} did not become {state}:\n{log}");
        }
    }

    async fn count(&self, outcome: &str) -> f64 {
        let url = self.url("admin", "/metrics");
        let metrics = self.http.get(url).send().await.unwrap();
        let metrics = metrics.text().await.unwrap();
        let metric = format!("waybill_trace_spans_total{{outcome=\"{outcome}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&metric));
        value.map_or(0.0, |value| value.parse().unwrap())
    }
}

fn delivery() -> Value {
    json!({
        "ownerId": "ada",
        "pickupLocation": "12 Harbour Street",
        "dropOffLocation": "7 Hill Road",
        "packageInfo": {"packageId": "p-1", "size": "Small", "weight": 1.5},
    })
}

/// Whether there is a span for the end of an operation.
fn has_ended(spans: &[Received], operation: &str, state: &str) -> bool {
    spans.iter().any(|span| {
        span.name == "drone-delivery"
            && span.is("waybill.operation.id", operation)
            && span.is("waybill.state", state)
    })
}

/// Whether every span has its parent in the trace, except those with the parent `above`.
fn is_whole(spans: &[Received], above: &str) -> bool {
    let ids: HashSet<&str> = spans.iter().map(|span| &*span.id).collect();
    let mut parents = spans.iter().map(|span| &*span.parent);
    parents.all(|parent| ids.contains(parent) || parent == above)
}

/// The spans of a processed operation, with all of its five steps.
async fn of_processed(collector: &Collector, operation: &str, above: &str) -> Vec<Received> {
    let is_attempt = |span: &&Received| {
        span.name.starts_with("process ") && span.is("waybill.outcome", "success")
    };
    let wanted = |spans: &[Received]| {
        let attempts = spans.iter().filter(is_attempt);
        let attempts = attempts.filter(|span| span.is("waybill.operation.id", operation));
        attempts.count() == 5 && has_ended(spans, operation, "Processed") && is_whole(spans, above)
    };
    collector.of(operation, wanted).await
}

fn only<'s>(spans: &'s [Received], name: &str) -> &'s Received {
    let mut named = spans.iter().filter(|span| span.name == name);
    let (Some(span), None) = (named.next(), named.next()) else {
        panic!("not one {name} in {spans:#?}");
    };
    span
}

fn below<'s>(spans: &'s [Received], parent: &Received) -> Vec<&'s Received> {
    let belongs = |span: &&Received| span.parent == parent.id;
    spans.iter().filter(belongs).collect()
}

const REQUESTS: &str = "waybill.operation-requests.v1";
const PARTITIONS: u32 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_covers_every_part_from_client_to_services() {
    let collector = Collector::start().await;
    let setup = Setup::start(&format!("endpoint: '{}'", collector.endpoint()), "");
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let from = format!("00-{trace}-b7ad6b7169203331-01");
    let id = setup.deliver(Some(&from)).await;
    let spans = of_processed(&collector, &id, "b7ad6b7169203331").await;

    let server = only(&spans, "POST /api/deliveryrequests");
    assert_eq!(
        (&*server.trace, &*server.parent),
        (trace, "b7ad6b7169203331")
    );
    assert_eq!(
        (server.kind, &*server.scope),
        (SpanKind::Server, "waybill.ingestion")
    );
    assert!(server.is("http.response.status_code", "202"), "{server:?}");
    assert_eq!(server.service, "waybill");
    let sent = only(&spans, &format!("send {REQUESTS}"));
    assert_eq!((sent.kind, &sent.parent), (SpanKind::Producer, &server.id));
    assert!(sent.took <= server.took, "{sent:?} {server:?}");
    let taken_up = only(&spans, &format!("process {REQUESTS}"));
    assert_eq!(
        (taken_up.kind, &taken_up.parent),
        (SpanKind::Consumer, &sent.id)
    );
    for key in [
        "messaging.destination.partition.id",
        "messaging.kafka.offset",
    ] {
        assert_eq!(taken_up.attributes[key], sent.attributes[key]);
    }
    let end = only(&spans, "drone-delivery");
    assert_eq!((end.kind, &end.parent), (SpanKind::Internal, &sent.id));
    assert!(!end.is_failure);

    // Each of the five agents received a message and called its service.
    let asked = below(&spans, taken_up);
    let mut steps: Vec<&str> = asked
        .iter()
        .map(|span| &*span.attributes["waybill.step"])
        .collect();
    steps.sort_unstable();
    assert_eq!(
        steps,
        ["account", "delivery", "drone", "package", "third-party"]
    );
    for asked in asked {
        assert_eq!(asked.kind, SpanKind::Producer);
        let topic = &asked.attributes["messaging.destination.name"];
        assert_eq!(asked.name, format!("send {topic}"));
        let [attempt] = below(&spans, asked)[..] else {
            panic!("not one attempt below {asked:#?}");
        };
        assert_eq!(
            (attempt.kind, &attempt.name),
            (SpanKind::Consumer, &format!("process {topic}"))
        );
        assert!(attempt.is("waybill.outcome", "success"), "{attempt:#?}");
        let [call] = below(&spans, attempt)[..] else {
            panic!("not one call below {attempt:#?}");
        };
        assert_eq!(call.kind, SpanKind::Client);
        assert!(["200", "201"].contains(&&*call.attributes["http.response.status_code"]));
        assert!(call.took <= attempt.took);
    }
    // Spans contain no data of the delivery.
    for text in spans.iter().flat_map(|span| span.attributes.values()) {
        for secret in ["Harbour", "Hill", "p-1", "ada"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_restarts_and_undos_stay_in_the_trace() {
    let collector = Collector::start().await;
    let mut setup = Setup::start(&format!("endpoint: '{}'", collector.endpoint()), "");
    setup
        .break_service("account", json!({"errorRate": 1.0}))
        .await;
    let id = setup.deliver(None).await;
    let failed = |spans: &[Received]| {
        let mut spans = spans.iter();
        spans.any(|span| span.is("waybill.step", "account") && span.is_failure)
    };
    collector.of(&id, failed).await;
    setup.kill_and_start_again();
    setup
        .break_service("drone", json!({"refuseRate": 1.0}))
        .await;
    setup.restore_service("account").await;
    let wanted = |spans: &[Received]| {
        let is_undone = |span: &Received| {
            span.name == "process waybill.package.requests.v1"
                && span.is("waybill.action", "Compensate")
        };
        has_ended(spans, &id, "Compensated") && spans.iter().any(is_undone)
    };
    let spans = collector.of(&id, wanted).await;

    // Unsent spans of a killed process are lost, but later ones belong to the same trace.
    let name = format!("process {REQUESTS}");
    let taken_up: Vec<&Received> = spans.iter().filter(|span| span.name == name).collect();
    let first_taken_up = taken_up[0];
    assert!(taken_up.iter().all(|span| span.id == first_taken_up.id));
    let taken_up = first_taken_up;
    for span in &spans {
        assert_eq!(span.trace, taken_up.trace);
        if span.kind == SpanKind::Producer && span.id != taken_up.parent {
            assert_eq!(span.parent, taken_up.id, "{span:#?}");
        }
    }
    let first: Vec<&Received> = spans.iter().filter(|span| span.parent.is_empty()).collect();
    assert_eq!(first.len(), 1, "{first:#?}");
    assert_eq!(first[0].name, "POST /api/deliveryrequests");
    let end = only(&spans, "drone-delivery");
    assert!(
        end.is_failure && end.is("waybill.step", "drone"),
        "{end:#?}"
    );
    let attempts = |action: &str, step: &str| {
        let is = |span: &&Received| {
            span.kind == SpanKind::Consumer
                && span.is("waybill.action", action)
                && span.is("waybill.step", step)
        };
        spans.iter().filter(is).count()
    };
    assert!(attempts("Run", "account") >= 2);
    assert_eq!(attempts("Compensate", "package"), 1);
    assert_eq!(attempts("Run", "delivery"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_span_of_a_trace_is_exported_or_none() {
    let collector = Collector::start().await;
    let traces = format!("sampleRatio: 0, endpoint: '{}'", collector.endpoint());
    let setup = Setup::start(&traces, "agents: {transport: direct}");
    let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let quiet = [
        setup.deliver(None).await,
        setup.deliver(Some(unsampled)).await,
    ];
    for id in &quiet {
        setup.wait_for_state(id, "Processed").await;
    }
    let from = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = setup.deliver(Some(from)).await;
    let spans = of_processed(&collector, &traced, "b7ad6b7169203331").await;
    // Spans arrive in the order of their ends, so those of the others would have arrived.
    for id in &quiet {
        assert_eq!(collector.all_of(id).len(), 0);
    }

    // Agents in the scheduler's own process receive no messages.
    let taken_up = only(&spans, &format!("process {REQUESTS}"));
    let attempts = below(&spans, taken_up);
    assert_eq!(attempts.len(), 5, "{attempts:#?}");
    for attempt in attempts {
        assert_eq!(attempt.kind, SpanKind::Internal);
        assert_eq!(below(&spans, attempt).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_trace_begins_one_that_has_the_operations_id() {
    let collector = Collector::start().await;
    let setup = Setup::start(&format!("endpoint: '{}'", collector.endpoint()), "");
    let operation = OperationId::of_caller("", "by-topic");
    write(&setup, operation);
    let id = operation.to_string();
    let spans = of_processed(&collector, &id, "").await;
    let taken_up = only(&spans, &format!("process {REQUESTS}"));
    assert_eq!(taken_up.trace, id.replace('-', ""));
    assert_eq!(taken_up.parent, "");
    assert_eq!(only(&spans, "drone-delivery").parent, taken_up.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_of_a_batch_is_a_trace_unless_the_batch_has_one() {
    let collector = Collector::start().await;
    let setup = Setup::start(&format!("endpoint: '{}'", collector.endpoint()), "");
    let line = json!({"workflow": "drone-delivery", "input": delivery()});
    let from = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for (traceparent, traces) in [(None, 2), (Some(from), 1)] {
        let mut request = setup
            .http
            .post(setup.url("http", "/v1/operations:batch"))
            .header("content-type", "application/x-ndjson")
            .body(format!("{line}\n{line}\n"));
        if let Some(traceparent) = traceparent {
            request = request.header("traceparent", traceparent);
        }
        let answers = request.send().await.unwrap().text().await.unwrap();
        let mut found = HashSet::new();
        for answer in answers.lines() {
            let answer: Value = serde_json::from_str(answer).unwrap();
            let id = answer["id"].as_str().unwrap();
            let above = traceparent.map_or("", |_| "b7ad6b7169203331");
            let spans = of_processed(&collector, id, above).await;
            found.insert(spans[0].trace.clone());
        }
        assert_eq!(found.len(), traces);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_outage_delays_no_operation() {
    // It accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/traces", silent.local_addr().unwrap());
    let traces = format!("queueMax: 3, requestTimeout: 1s, endpoint: '{endpoint}'");
    let mut setup = Setup::start(&traces, "");
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(setup.deliver(None).await);
    }
    for id in &ids {
        setup.wait_for_state(id, "Processed").await;
    }
    let counted = async {
        while setup.count("failed").await == 0.0 || setup.count("dropped").await == 0.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted)
        .await
        .expect("lost spans are counted");
    assert_eq!(setup.count("sent").await, 0.0);
    let pid = setup.process.child.id().to_string();
    let signalled = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(signalled.success());
    assert!(setup.process.child.wait().unwrap().success());
    let log = std::fs::read_to_string(setup.directory.path().join("log")).unwrap();
    assert!(log.contains("could not send spans"), "{log}");
    assert!(!log.contains("sesame"), "{log}");
}

/// Writes a delivery straight to the topic, without a trace.
fn write(setup: &Setup, operation: OperationId) {
    let create = CreateRequest {
        operation,
        id_origin: IdOrigin::Caller,
        workflow: "drone-delivery".to_owned(),
        tenant: String::new(),
        caller_id: Some("by-topic".to_owned()),
        input: delivery().to_string().into_bytes(),
        deadline: None,
        reply_to: None,
        request_hash: RequestHash([0; 16]),
        verify_hash: false,
        requested_at: Timestamp(jiff::Timestamp::now().as_microsecond()),
        traceparent: None,
        resubmission_of: None,
        notify: Vec::new(),
    };
    let mut value = Vec::new();
    OperationRequest::Create(create).encode(&mut value).unwrap();
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", setup.addresses["broker"].to_string())
        .create()
        .unwrap();
    let key = operation.key();
    let partition = partition_for(operation, PARTITIONS).0;
    let record = BaseRecord::to(REQUESTS)
        .partition(i32::try_from(partition).unwrap())
        .key(&key[..])
        .payload(&value);
    let sent = producer.send(record).map_err(|(error, _)| error);
    sent.and_then(|()| producer.flush(PATIENCE)).unwrap();
}
