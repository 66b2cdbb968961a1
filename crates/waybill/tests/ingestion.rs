//! Ingestion as its clients and the topic see it: a real server, librdkafka's mock cluster, and the
//! embedded store.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Headers;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::{ClientConfig, Message as _, Offset as KafkaOffset, TopicPartitionList};
use reqwest::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use uuid::Uuid;
use waybill::ingestion::{Ingestion, IngestionConfig};
use waybill_engine::{
    CreateRequest, Created, Epoch, IdOrigin, Offset, OperationId, OperationState, OwnerId,
    PartitionId, Position, ProcessState, Stamp, Timestamp, Workflow, WorkflowDefinition, Workflows,
    partition_for,
};
use waybill_kafka::KafkaSettings;
use waybill_messages::{Record as _, Topics};
use waybill_store::{
    Checkpoint, EmbeddedConfig, EmbeddedStore, Lease, RowWrite, Store, WriteBatch,
};

const PARTITIONS: u32 = 3;
const DELIVERIES: &str = "/api/deliveryrequests";
const OPERATIONS: &str = "/v1/operations";
const BATCH: &str = "/v1/operations:batch";
const PATIENCE: Duration = Duration::from_secs(20);

/// Everything around one ingestion.
struct World {
    ingestion: Ingestion,
    store: Arc<EmbeddedStore>,
    cluster: MockCluster<'static, DefaultProducerContext>,
    topics: Topics,
    http: Client,
    _directory: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut IngestionConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(directory.path())).unwrap();
        let store = Arc::new(store);
        let topics = Topics::default();
        let cluster = MockCluster::new(1).unwrap();
        cluster
            .create_topic(topics.requests(), PARTITIONS as i32, 1)
            .unwrap();
        let mut config = IngestionConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            accept_timeout: Duration::from_secs(5),
            reply_to_prefixes: vec!["replies.".to_owned()],
            ..IngestionConfig::default()
        };
        change(&mut config);
        let ingestion = Ingestion::start(
            config,
            Arc::clone(&store) as Arc<dyn Store>,
            KafkaSettings::new(cluster.bootstrap_servers()),
            topics.clone(),
            PARTITIONS,
            workflows(),
        )
        .await
        .unwrap();
        let http = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self {
            ingestion,
            store,
            cluster,
            topics,
            http,
            _directory: directory,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.ingestion.address())
    }

    fn post(&self, path: &str, body: impl ToString) -> RequestBuilder {
        let media_type = if path == BATCH {
            "application/x-ndjson"
        } else {
            "application/json"
        };
        self.http
            .post(self.url(path))
            .header(CONTENT_TYPE, media_type)
            .body(body.to_string())
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.http.get(self.url(path)).send().await.unwrap()).await
    }

    /// Sends bytes as they are and returns what comes back until the server closes.
    async fn raw(&self, bytes: &[u8]) -> String {
        let mut socket = TcpStream::connect(self.ingestion.address()).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        within(socket.read_to_end(&mut answer)).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// All records of the requests topic.
    fn records(&self) -> Vec<Taken> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.cluster.bootstrap_servers())
            .set("group.id", "test")
            .create()
            .unwrap();
        let topic = self.topics.requests();
        let mut assignment = TopicPartitionList::new();
        let mut expected = 0;
        for partition in 0..PARTITIONS as i32 {
            assignment
                .add_partition_offset(topic, partition, KafkaOffset::Beginning)
                .unwrap();
            let (low, high) = consumer
                .fetch_watermarks(topic, partition, PATIENCE)
                .unwrap();
            expected += high - low;
        }
        consumer.assign(&assignment).unwrap();
        let began = Instant::now();
        let mut records = Vec::new();
        while (records.len() as i64) < expected {
            assert!(began.elapsed() < PATIENCE, "records are missing");
            let Some(message) = consumer.poll(Duration::from_millis(100)) else {
                continue;
            };
            let message = message.unwrap().detach();
            records.push(Taken {
                key: String::from_utf8(message.key().unwrap().to_vec()).unwrap(),
                partition: PartitionId(message.partition() as u32),
                offset: Offset(message.offset()),
                traceparent: message.headers().and_then(traceparent),
                request: CreateRequest::decode(message.payload().unwrap()).unwrap(),
            });
        }
        records
    }

    /// What the scheduler would have written of this record.
    async fn schedule(&self, record: &Taken, state: ProcessState) {
        let request = &record.request;
        let created = Created {
            workflow: request.workflow.as_str().into(),
            workflow_version: 1,
            step_names: vec!["one".into()],
            tenant: request.tenant.as_str().into(),
            caller_id: request.caller_id.clone(),
            input: request.input.clone().into(),
            deadline: request.deadline,
            reply_to: request.reply_to.clone(),
            request_hash: request.request_hash,
            request: Position {
                partition: record.partition,
                offset: record.offset,
            },
            requested_at: request.requested_at,
            created_at: request.requested_at,
            traceparent: None,
        };
        let state = OperationState {
            state,
            locked_by: None,
            epoch: Epoch(1),
            next_due: None,
            handed_off: false,
            failure_count: 0,
            sequence: 0,
            updated_at: Timestamp(request.requested_at.0 + 1),
            error: None,
            steps: vec![Default::default()],
        };
        let row = RowWrite {
            id: request.operation,
            created: Some(Arc::new(created)),
            state,
            stamp: Stamp(1),
            keep_for: None,
        };
        self.store
            .write(WriteBatch {
                rows: vec![row],
                ..WriteBatch::default()
            })
            .await
            .unwrap();
    }

    /// Says how far the scheduler of a partition has got.
    async fn consumed(&self, partition: PartitionId, consumed: Offset) {
        let lease = Lease {
            partition,
            owner: Some(OwnerId(Uuid::new_v4())),
            epoch: Epoch(1),
            renewal: 1,
            duration: Duration::from_secs(10),
            stamp_limit: Stamp(1),
            checkpoint: Checkpoint::default(),
            consumed,
        };
        assert!(self.store.take_lease(None, lease).await.unwrap());
    }
}

/// A record of the requests topic.
struct Taken {
    key: String,
    partition: PartitionId,
    offset: Offset,
    traceparent: Option<String>,
    request: CreateRequest,
}

fn traceparent(headers: &impl Headers) -> Option<String> {
    let header = headers.iter().find(|header| header.key == "traceparent")?;
    Some(String::from_utf8(header.value?.to_vec()).unwrap())
}

fn workflows() -> Arc<Workflows> {
    let workflow = |name: &str| {
        let definition: WorkflowDefinition = serde_json::from_value(
            json!({"name": name, "version": 1, "steps": [{"name": "one", "agent": "agent"}]}),
        )
        .unwrap();
        Workflow::try_from(definition).unwrap()
    };
    Arc::new(Workflows::new(vec![workflow("drone-delivery"), workflow("order")]).unwrap())
}

fn delivery() -> Value {
    json!({
        "ownerId": "myowner",
        "pickupLocation": "my pickup",
        "dropoffLocation": "drop off",
        "pickupTime": "2030-05-08T20:00:00Z",
        "deadline": "2030-05-08T22:00:00Z",
        "expedited": true,
        "confirmationRequired": "None",
        "packageInfo": {"packageId": "mypackage", "size": "Small", "weight": 10, "tag": "mytag"},
    })
}

fn order(id: &str, number: i32) -> Value {
    json!({"workflow": "order", "id": id, "input": {"number": number}})
}

fn location(response: &Response) -> String {
    response.headers()[LOCATION].to_str().unwrap().to_owned()
}

async fn answer(response: Response) -> (StatusCode, Value) {
    let (status, text) = (response.status(), response.text().await.unwrap());
    (
        status,
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}")),
    )
}

/// The problem that a response must be.
async fn problem(response: Response) -> (u16, String, Value) {
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    let (status, problem) = answer(response).await;
    assert_eq!(problem["status"], status.as_u16());
    for member in ["title", "detail"] {
        assert!(problem[member].is_string(), "{problem}");
    }
    let kind = problem["type"].as_str().unwrap().replace("/problems/", "");
    (status.as_u16(), kind, problem)
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it takes too long")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_is_accepted_once_its_record_lies_on_its_partition() {
    let world = World::start().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let response = world
        .post(DELIVERIES, delivery())
        .header("traceparent", trace)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let location = location(&response);
    let (_, accepted) = answer(response).await;

    let records = world.records();
    let [record] = records.as_slice() else {
        panic!("one record")
    };
    let id = record.request.operation;
    assert_eq!(record.key, id.to_string());
    assert_eq!(record.partition, partition_for(id, PARTITIONS));
    assert_eq!(record.traceparent.as_deref(), Some(trace));
    assert_eq!(record.request.id_origin, IdOrigin::Server);
    assert_eq!(id.0.get_version_num(), 7);
    assert_eq!(record.request.workflow, "drone-delivery");

    assert_eq!(accepted["id"], id.to_string());
    assert_eq!(accepted["state"], "Pending");
    assert_eq!(accepted["request"]["deliveryId"], id.to_string());
    assert_eq!(accepted["request"]["dropOffLocation"], "drop off");
    let input: Value = serde_json::from_slice(&record.request.input).unwrap();
    assert_eq!(accepted["request"], input);

    let prefix = &record.request.request_hash.to_string()[..8];
    let token = format!("{}-{}-{prefix}", record.partition, record.offset);
    assert_eq!(location, format!("{DELIVERIES}/{id}?at={token}"));
    for path in [
        location,
        format!("{DELIVERIES}/{id}"),
        format!("{OPERATIONS}/{id}"),
    ] {
        let (status, pending) = world.get(&path).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        assert_eq!(
            (&pending["state"], &pending["ahead"]),
            (&json!("Pending"), &json!(0))
        );
        assert_eq!(pending["workflow"], "drone-delivery");
        assert_eq!(
            pending["steps"],
            json!([{"name": "one", "state": "NotStarted", "attempt": 0}])
        );
    }
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_input_gets_its_problem_and_reaches_no_topic() {
    let world = World::start().await;
    let mut two_wrong = delivery();
    two_wrong["packageInfo"]["size"] = "Huge".into();
    two_wrong["deadline"] = "soon".into();
    let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
    let order_with = |field: &str, value: Value| {
        let mut body = order("o-1", 1);
        body[field] = value;
        body.to_string()
    };
    let cases: Vec<(&str, String, u16, &str, &[&str])> = vec![
        (
            DELIVERIES,
            "{\n  \"ownerId\": oops}".into(),
            400,
            "malformed-json",
            &[],
        ),
        (DELIVERIES, String::new(), 400, "malformed-json", &[]),
        (
            DELIVERIES,
            format!("{} x", delivery()),
            400,
            "malformed-json",
            &[],
        ),
        (
            DELIVERIES,
            r#"{"ownerId": "a", "ownerId": "b"}"#.into(),
            400,
            "duplicate-key",
            &["/ownerId"],
        ),
        (
            DELIVERIES,
            format!(r#"{{"packageInfo": {deep}}}"#),
            400,
            "nesting-too-deep",
            &["/packageInfo/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0"],
        ),
        (
            DELIVERIES,
            format!("\"{}\"", "x".repeat(65 * 1024)),
            413,
            "body-too-large",
            &[],
        ),
        (
            DELIVERIES,
            two_wrong.to_string(),
            422,
            "invalid-values",
            &["/deadline", "/packageInfo/size"],
        ),
        (DELIVERIES, "[]".into(), 422, "invalid-values", &[""]),
        (
            OPERATIONS,
            "{}".into(),
            422,
            "invalid-values",
            &["/workflow", "/input"],
        ),
        (
            OPERATIONS,
            order_with("workflow", json!("nope")),
            422,
            "invalid-values",
            &["/workflow"],
        ),
        (
            OPERATIONS,
            order_with("id", json!("a b")),
            422,
            "invalid-values",
            &["/id"],
        ),
        (
            OPERATIONS,
            order_with("replyTo", json!("elsewhere")),
            422,
            "invalid-values",
            &["/replyTo"],
        ),
        (
            OPERATIONS,
            order_with("deadline", json!("2030")),
            422,
            "invalid-values",
            &["/deadline"],
        ),
        (
            OPERATIONS,
            order_with("tenant", json!("a\u{0}")),
            422,
            "invalid-values",
            &["/tenant"],
        ),
        (
            OPERATIONS,
            order_with("extra", json!(1)),
            422,
            "invalid-values",
            &["/extra"],
        ),
    ];
    for (path, body, status, kind, pointers) in cases {
        let shown = body.chars().take(80).collect::<String>();
        let (got_status, got_kind, problem) =
            problem(world.post(path, body).send().await.unwrap()).await;
        assert_eq!(
            (got_status, got_kind.as_str()),
            (status, kind),
            "{shown}: {problem}"
        );
        let mut got: Vec<_> = problem["errors"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|error| error["pointer"].as_str().unwrap())
            .collect();
        got.sort_unstable();
        let mut pointers = pointers.to_vec();
        pointers.sort_unstable();
        assert_eq!(got, pointers, "{shown}");
    }

    let malformed = world
        .post(DELIVERIES, "{\n  \"ownerId\": oops}")
        .send()
        .await
        .unwrap();
    let (.., malformed) = problem(malformed).await;
    assert_eq!(malformed["detail"], "Line 2, column 14: expected value.");

    let invalid_utf8 = world
        .post(DELIVERIES, "")
        .body(b"{\"ownerId\": \"\xff\"}".to_vec());
    let (status, kind, _) = problem(invalid_utf8.send().await.unwrap()).await;
    assert_eq!((status, kind.as_str()), (400, "malformed-json"));

    for media_type in [
        "text/plain",
        "application/json; charset=utf-16",
        "application/x-ndjson",
    ] {
        let request = world
            .http
            .post(world.url(DELIVERIES))
            .header(CONTENT_TYPE, media_type);
        let (status, kind, _) = problem(request.body("{}").send().await.unwrap()).await;
        assert_eq!(
            (status, kind.as_str()),
            (415, "unsupported-media-type"),
            "{media_type}"
        );
    }

    let two_ids = world
        .post(OPERATIONS, order("o-1", 1))
        .header("idempotency-key", "o-2");
    assert_eq!(
        problem(two_ids.send().await.unwrap()).await.1,
        "invalid-values"
    );
    assert_eq!(world.records().len(), 0);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_addresses_and_methods_are_told_as_problems() {
    let world = World::start().await;
    for path in [
        "/nope",
        "/api/deliveryrequests/",
        "/v1",
        "/problems/nope",
        "/v1/operations/a%ff",
    ] {
        let (status, kind, _) =
            problem(world.http.get(world.url(path)).send().await.unwrap()).await;
        assert_eq!((status, kind.as_str()), (404, "not-found"), "{path}");
    }
    for path in [
        "/v1/operations/x",
        "/api/deliveryrequests/00000000-0000-0000-0000-000000000000",
    ] {
        let (status, kind, _) =
            problem(world.http.get(world.url(path)).send().await.unwrap()).await;
        assert_eq!(
            (status, kind.as_str()),
            (404, "unknown-or-expired"),
            "{path}"
        );
    }
    for (path, allow) in [
        (DELIVERIES, "POST"),
        (OPERATIONS, "POST"),
        (BATCH, "POST"),
        ("/v1/operations/x", "GET, HEAD"),
        ("/docs", "GET, HEAD"),
        ("/", "GET, HEAD"),
    ] {
        let response = world
            .http
            .put(world.url(path))
            .body("{}")
            .send()
            .await
            .unwrap();
        assert_eq!(response.headers()["allow"], allow, "{path}");
        assert_eq!(problem(response).await.1, "method-not-allowed");
    }
    let wrong_token = world
        .http
        .get(world.url("/v1/operations/x?at=1-2"))
        .send()
        .await
        .unwrap();
    assert_eq!(problem(wrong_token).await.0, 422);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_describes_itself() {
    let world = World::start().await;
    let (status, openapi) = world.get("/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    for path in [DELIVERIES, OPERATIONS, BATCH] {
        assert!(openapi["paths"][path]["post"].is_object(), "{path}");
    }
    let home = world.http.get(world.url("/")).send().await.unwrap();
    assert_eq!(
        (home.status(), location(&home).as_str()),
        (StatusCode::FOUND, "/docs")
    );
    for page in ["/docs", "/problems/id-conflict"] {
        let response = world.http.get(world.url(page)).send().await.unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(
            response
                .text()
                .await
                .unwrap()
                .starts_with("<!doctype html>")
        );
        let head = world.http.head(world.url(page)).send().await.unwrap();
        assert_eq!(head.status(), StatusCode::OK);
    }
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_smuggling_shapes_are_refused_and_reach_no_topic() {
    let world = World::start().await;
    let body = delivery().to_string();
    let length = format!("Content-Length: {}", body.len());
    let chunked = "Transfer-Encoding: chunked";
    let in_chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let cases = [
        (
            format!("{length}\r\n{chunked}"),
            &in_chunks,
            "ambiguous-length",
        ),
        (
            format!("{chunked}\r\n{length}"),
            &in_chunks,
            "ambiguous-length",
        ),
        (
            format!("{length}\r\nContent-Length: 1"),
            &body,
            "ambiguous-length",
        ),
        (format!("{length}\r\n{length}"), &body, "ambiguous-length"),
        (
            "Transfer-Encoding: xchunked".to_owned(),
            &in_chunks,
            "ambiguous-length",
        ),
        (
            "Transfer-Encoding: chunked, chunked".to_owned(),
            &in_chunks,
            "ambiguous-length",
        ),
        (
            format!("{length}\r\nX: a\r\n folded"),
            &body,
            "malformed-request",
        ),
        (format!("{length}\nX: a"), &body, "malformed-request"),
        (
            format!("Transfer-Encoding : chunked\r\n{length}"),
            &body,
            "malformed-request",
        ),
        (format!("{length}\r\nX: a\0b"), &body, "malformed-request"),
        (format!("{length}\r\nHost: b"), &body, "malformed-request"),
    ];
    for (fields, body, kind) in cases {
        let request = format!(
            "POST {DELIVERIES} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{fields}\r\n\r\n{body}"
        );
        let answer = world.raw(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{fields:?}: {answer}");
        assert!(answer.contains("connection: close"), "{fields:?}: {answer}");
        assert!(
            answer.contains(&format!("\"type\":\"/problems/{kind}\"")),
            "{fields:?}: {answer}"
        );
        assert_eq!(
            answer.matches("\r\ncontent-length: ").count(),
            1,
            "{fields:?}: {answer}"
        );
    }
    assert_eq!(world.records().len(), 0);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_is_answered_in_its_turn_and_nothing_after_it() {
    let world = World::start().await;
    let body = order("turn-1", 1).to_string();
    let head =
        format!("POST {OPERATIONS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n");
    let good = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let smuggled =
        format!("{head}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n");
    let later = good.replace("turn-1", "turn-2");
    let answer = world
        .raw(format!("{good}{chunked}{smuggled}{later}").as_bytes())
        .await;
    let statuses: Vec<_> = answer
        .matches("HTTP/1.1 ")
        .zip(answer.split("HTTP/1.1 ").skip(1))
        .map(|(_, rest)| &rest[..3])
        .collect();
    assert_eq!(statuses, ["202", "202", "400"], "{answer}");
    let records = world.records();
    assert!(
        records
            .iter()
            .all(|record| record.request.caller_id.as_deref() == Some("turn-1"))
    );
    assert_eq!(records.len(), 1, "the repeat met its first");
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_bodies_that_are_too_long_slow_or_broken_are_refused() {
    let world = World::with(|config| {
        config.header_read_timeout = Duration::from_millis(100);
        config.body_read_timeout = Duration::from_millis(100);
    })
    .await;
    let head = format!(
        "POST {DELIVERIES} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
    );
    let cases = [
        (
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
                "x".repeat(200_000)
            ),
            "431",
            "head-too-large",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(80)),
            "431",
            "head-too-large",
        ),
        (
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(20_000)),
            "431",
            "head-too-large",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n".to_owned(),
            "408",
            "request-timeout",
        ),
        (
            format!("{head}Content-Length: 100\r\n\r\n{{"),
            "408",
            "request-timeout",
        ),
        (
            format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nab"),
            "408",
            "request-timeout",
        ),
        (
            format!("{head}Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
            "400",
            "incomplete-body",
        ),
        (
            format!("{head}Content-Length: 70000\r\n\r\n{}", "x".repeat(70_000)),
            "413",
            "body-too-large",
        ),
        (
            format!(
                "{head}Transfer-Encoding: chunked\r\n\r\n11170\r\n{}\r\n0\r\n\r\n",
                "x".repeat(70_000)
            ),
            "413",
            "body-too-large",
        ),
        (
            "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".to_owned(),
            "400",
            "malformed-request",
        ),
    ];
    for (request, status, kind) in cases {
        let shown: String = request.chars().take(120).collect();
        let answer = world.raw(request.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{shown:?}: {answer}"
        );
        assert!(
            answer.contains(&format!("/problems/{kind}")),
            "{shown:?}: {answer}"
        );
    }
    assert_eq!(world.records().len(), 0);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_gets_the_same_operation_and_another_body_is_a_conflict() {
    let world = World::start().await;
    let first = world
        .post(OPERATIONS, order("o-1", 1))
        .send()
        .await
        .unwrap();
    assert_eq!(first.status(), StatusCode::ACCEPTED);
    let first_location = location(&first);
    let id = OperationId::of_caller("", "o-1").to_string();

    let repeat = world
        .post(OPERATIONS, order("o-1", 1))
        .send()
        .await
        .unwrap();
    assert_eq!(
        (repeat.status(), location(&repeat)),
        (StatusCode::ACCEPTED, first_location)
    );
    let other = world
        .post(OPERATIONS, order("o-1", 2))
        .send()
        .await
        .unwrap();
    let (status, kind, conflict) = problem(other).await;
    assert_eq!(
        (status, kind.as_str(), &conflict["id"]),
        (409, "id-conflict", &json!("o-1"))
    );

    let records = world.records();
    assert_eq!(records.len(), 1);
    world.schedule(&records[0], ProcessState::Processing).await;
    let repeat = world
        .post(OPERATIONS, order("o-1", 1))
        .send()
        .await
        .unwrap();
    assert_eq!(location(&repeat), format!("{OPERATIONS}/{id}"));
    let (status, operation) = answer(repeat).await;
    assert_eq!((status, &operation["id"]), (StatusCode::OK, &json!(id)));
    assert_eq!(operation["state"], "Processing");
    let other = world
        .post(OPERATIONS, order("o-1", 2))
        .send()
        .await
        .unwrap();
    assert_eq!(problem(other).await.0, 409);

    for path in [format!("{OPERATIONS}/o-1"), format!("{OPERATIONS}/{id}")] {
        let (status, found) = world.get(&path).await;
        assert_eq!((status, &found), (StatusCode::OK, &operation), "{path}");
    }
    let (status, _) = world.get(&format!("{DELIVERIES}/o-1")).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "an order is no delivery");
    assert_eq!(world.records().len(), 1);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_repeated_through_either_form_is_one_delivery() {
    let world = World::start().await;
    let mut named = delivery();
    named["deliveryId"] = "d/1".into();
    let first = world.post(DELIVERIES, &named).send().await.unwrap();
    assert_eq!(first.status(), StatusCode::ACCEPTED);
    world
        .schedule(&world.records()[0], ProcessState::Processed)
        .await;

    let with_key = world
        .post(DELIVERIES, delivery())
        .header("idempotency-key", "\"d/1\"");
    let (status, repeat) = answer(with_key.send().await.unwrap()).await;
    assert_eq!(
        (status, &repeat["state"]),
        (StatusCode::OK, &json!("Processed"))
    );
    assert_eq!(repeat["request"]["deliveryId"], "d/1");
    let general = json!({"workflow": "drone-delivery", "id": "d/1", "input": delivery()});
    let (status, _) = answer(world.post(OPERATIONS, general).send().await.unwrap()).await;
    assert_eq!(status, StatusCode::OK);

    let (status, shown) = world.get(&format!("{DELIVERIES}/d%2F1")).await;
    assert_eq!((status, &shown), (StatusCode::OK, &repeat));
    assert_eq!(world.records().len(), 1);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_tells_pending_rejected_and_forgotten_apart() {
    // Nothing is remembered: the token alone has to do.
    let world = World::with(|config| config.recent_accepted_max = 0).await;
    let mut locations = Vec::new();
    for number in [1, 2] {
        let response = world
            .post(OPERATIONS, order("twin", number))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        locations.push(location(&response));
    }
    let id = OperationId::of_caller("", "twin");
    for (ahead, location) in locations.iter().enumerate() {
        let (_, pending) = world.get(location).await;
        assert_eq!(
            (&pending["state"], &pending["ahead"]),
            (&json!("Pending"), &json!(ahead))
        );
        assert_eq!(pending["id"], id.to_string());
        let as_delivery = location.replace(OPERATIONS, DELIVERIES);
        assert_eq!(
            world.get(&as_delivery).await.1["workflow"],
            "drone-delivery"
        );
    }

    let records = world.records();
    let winner = records.iter().min_by_key(|record| record.offset).unwrap();
    world.consumed(winner.partition, Offset(2)).await;
    for location in &locations {
        let (status, gone) = world.get(location).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(gone["type"], "/problems/unknown-or-expired");
    }

    world.schedule(winner, ProcessState::Processed).await;
    assert_eq!(world.get(&locations[0]).await.1["state"], "Processed");
    let (status, rejected) = world.get(&locations[1]).await;
    assert_eq!(
        (status, &rejected["state"]),
        (StatusCode::OK, &json!("Rejected"))
    );
    assert_eq!(rejected["error"]["code"], "id-conflict");
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_answers_each_line_in_order_and_bad_lines_harm_no_other() {
    let world = World::start().await;
    world
        .post(OPERATIONS, order("taken", 1))
        .send()
        .await
        .unwrap();
    let lines = [
        order("b-1", 1).to_string(),
        "{oops".to_owned(),
        format!("\"{}\"", "x".repeat(65 * 1024)),
        String::new(),
        json!({"workflow": "drone-delivery", "input": delivery()}).to_string() + "\r",
        order("taken", 2).to_string(),
        json!({"workflow": "nope", "input": {}}).to_string(),
        order("b-2", 1).to_string(),
    ];
    let response = world.post(BATCH, lines.join("\n")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/x-ndjson");
    let text = response.text().await.unwrap();
    let answers: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let statuses: Vec<_> = answers
        .iter()
        .map(|answer| answer["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [202, 400, 413, 400, 202, 409, 422, 202], "{text}");
    assert_eq!(
        answers[0]["id"],
        OperationId::of_caller("", "b-1").to_string()
    );
    assert!(answers[0]["location"].as_str().unwrap().contains("?at="));
    assert_eq!(answers[1]["problem"]["type"], "/problems/malformed-json");
    assert_eq!(answers[6]["problem"]["errors"][0]["pointer"], "/workflow");
    assert_eq!(world.records().len(), 4);

    let with_key = world.post(BATCH, "").header("idempotency-key", "k");
    assert_eq!(problem(with_key.send().await.unwrap()).await.0, 422);
    let (status, ..) = problem(
        world
            .http
            .post(world.url(BATCH))
            .header(CONTENT_TYPE, "application/json")
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(status, 415);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_streams_and_a_line_that_was_cut_off_is_not_taken() {
    let world = World::with(|config| config.batch_lines_max = 50).await;
    let count = 2_000;
    let mut body = String::new();
    for number in 0..count {
        body.push_str(&order(&format!("n-{number}"), number).to_string());
        body.push('\n');
    }
    let text = world
        .post(BATCH, body)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert_eq!(
        text.lines()
            .filter(|line| line.contains("\"status\":202"))
            .count(),
        count as usize
    );
    for (number, line) in text.lines().enumerate() {
        let id = OperationId::of_caller("", &format!("n-{number}")).to_string();
        assert!(line.contains(&id), "line {number} is {line}");
    }
    assert_eq!(world.records().len(), count as usize);

    let whole = order("whole", 1).to_string();
    let cut = order("cut-off", 1).to_string();
    let mut socket = TcpStream::connect(world.ingestion.address()).await.unwrap();
    let head = format!(
        "POST {BATCH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson\r\nContent-Length: 9999\r\n\r\n"
    );
    socket
        .write_all(format!("{head}{whole}\n{cut}").as_bytes())
        .await
        .unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    within(socket.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains("\"status\":202"), "{answer}");
    assert!(answer.contains("/problems/incomplete-body"), "{answer}");
    let records = world.records();
    assert_eq!(records.len(), count as usize + 1);
    assert!(
        records
            .iter()
            .all(|record| record.request.caller_id.as_deref() != Some("cut-off"))
    );
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_a_503_and_back_again_a_202() {
    let world = World::with(|config| config.accept_timeout = Duration::from_millis(1_500)).await;
    world.cluster.broker_down(1).unwrap();
    let response = world.post(DELIVERIES, delivery()).send().await.unwrap();
    assert_eq!(response.headers()[RETRY_AFTER], "1");
    let (status, kind, _) = problem(response).await;
    assert_eq!((status, kind.as_str()), (503, "broker-unavailable"));

    world.cluster.broker_up(1).unwrap();
    let began = Instant::now();
    loop {
        let response = world.post(DELIVERIES, delivery()).send().await.unwrap();
        if response.status() == StatusCode::ACCEPTED {
            break;
        }
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(began.elapsed() < PATIENCE);
    }
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_is_a_504_with_the_id_to_repeat_it_with() {
    let world = World::with(|config| config.accept_timeout = Duration::from_millis(1_500)).await;
    let warm = world
        .post(OPERATIONS, order("warm", 1))
        .send()
        .await
        .unwrap();
    assert_eq!(warm.status(), StatusCode::ACCEPTED);
    world
        .cluster
        .broker_round_trip_time(1, Duration::from_secs(4))
        .unwrap();
    let response = world.post(DELIVERIES, delivery()).send().await.unwrap();
    let (status, kind, unknown) = problem(response).await;
    assert_eq!((status, kind.as_str()), (504, "outcome-unknown"));
    let id = unknown["id"].as_str().unwrap().to_owned();

    world
        .cluster
        .broker_round_trip_time(1, Duration::ZERO)
        .unwrap();
    let began = Instant::now();
    let accepted = loop {
        let repeat = world
            .post(DELIVERIES, delivery())
            .header("idempotency-key", &id);
        let response = repeat.send().await.unwrap();
        if response.status() == StatusCode::ACCEPTED {
            break answer(response).await.1;
        }
        assert!(response.status().is_server_error());
        assert!(began.elapsed() < PATIENCE);
    };
    assert_eq!(accepted["id"], id);
    let records = world.records();
    let deliveries: Vec<_> = records
        .iter()
        .filter(|record| record.request.workflow == "drone-delivery")
        .collect();
    assert!(!deliveries.is_empty());
    for record in &deliveries {
        assert_eq!(record.request.operation.to_string(), id);
        assert_eq!(
            record.request.request_hash,
            deliveries[0].request.request_hash
        );
    }
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_exceed_the_memory_for_bodies_is_turned_away() {
    let world = World::with(|config| config.body_bytes_max = 1_000).await;
    for (path, body) in [(DELIVERIES, delivery()), (BATCH, order("o", 1))] {
        let response = world.post(path, body).send().await.unwrap();
        assert!(response.headers().contains_key(RETRY_AFTER));
        let (status, kind, _) = problem(response).await;
        assert_eq!((status, kind.as_str()), (503, "overloaded"), "{path}");
    }
    assert_eq!(world.records().len(), 0);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_without_tls_is_spoken_too() {
    let world = World::start().await;
    let http2 = Client::builder().http2_prior_knowledge().build().unwrap();
    let requests = (0..50).map(|number| {
        let body = order(&format!("h2-{number}"), number).to_string();
        let request = http2
            .post(world.url(OPERATIONS))
            .header(CONTENT_TYPE, "application/json");
        request.body(body).send()
    });
    for response in futures_util::future::join_all(requests).await {
        let response = response.unwrap();
        assert_eq!(response.version(), reqwest::Version::HTTP_2);
        assert_eq!(response.status(), StatusCode::ACCEPTED);
    }
    assert_eq!(world.records().len(), 50);
    world.ingestion.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_answers_what_is_under_way_and_refuses_what_comes_after() {
    let world = World::start().await;
    let body = order("late", 1).to_string();
    let head = format!(
        "POST {OPERATIONS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let address = world.ingestion.address();
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    within(socket.read_exact(&mut go_on)).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");

    let shutdown = tokio::spawn(world.ingestion.shutdown());
    let refuses = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within(refuses).await;
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(socket.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    within(shutdown).await.unwrap();
}
