//! The environment of an ingestion under test, and clients for it.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Headers;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::{ClientConfig, Message as _, Offset as KafkaOffset, TopicPartitionList};
use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use uuid::Uuid;
use waybill_api::form::Forms;
use waybill_broker::{Broker, BrokerSettings};
use waybill_drone_delivery::DroneDelivery;
use waybill_engine::{
    ByPriority, CreateRequest, Created, Epoch, Offset, OperationId, OperationRequest, OwnerId,
    PartitionId, Position, Priority, ProcessState, Recovery, ShardId, Stamp, Timestamp, Workflow,
    WorkflowDefinition, Workflows, partition_for,
};
use waybill_ingestion::{Guards, Ingestion, IngestionParts, IngestionSettings};
use waybill_kafka::{Admin, KafkaSettings, TopicSpec};
use waybill_messages::{Record, Topics};
use waybill_store::{
    EmbeddedConfig, EmbeddedStore, LayoutGeneration, Lease, LeaseKey, RowWrite, Store, WriteBatch,
};
use waybill_test_support::rows::{created, untouched};
use waybill_topology::partition_map::PartitionMap;

pub const PARTITIONS: u32 = 3;
pub const DELIVERIES: &str = "/api/deliveryrequests";
pub const OPERATIONS: &str = "/v1/operations";
pub const BATCH: &str = "/v1/operations:batch";
pub const PATIENCE: Duration = Duration::from_secs(20);

/// librdkafka's mock cluster.
pub type Mock = MockCluster<'static, DefaultProducerContext>;

/// The environment of one ingestion. Its broker is librdkafka's mock cluster or the embedded
/// broker.
pub struct Setup<C = Mock> {
    pub ingestion: Ingestion,
    pub store: Arc<EmbeddedStore>,
    pub cluster: C,
    pub kafka: KafkaSettings,
    pub topics: Topics,
    pub http: Client,
    _directory: tempfile::TempDir,
}

impl Setup {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut IngestionSettings)) -> Self {
        Self::guarded(Guards::default(), change).await
    }

    /// With these guards.
    pub async fn guarded(guards: Guards, change: impl FnOnce(&mut IngestionSettings)) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        let topics = Topics::default();
        for topic in [
            topics.requests(),
            topics.high_priority_requests(),
            topics.recovery(),
        ] {
            cluster.create_topic(topic, PARTITIONS as i32, 1).unwrap();
        }
        let kafka = KafkaSettings::new(cluster.bootstrap_servers());
        let directory = tempfile::tempdir().unwrap();
        Setup::around(cluster, kafka, directory, guards, change).await
    }
}

impl Setup<Broker> {
    /// On the embedded broker, with these settings of the topic of requests.
    pub async fn on_embedded_broker(settings: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = BrokerSettings::new(directory.path().join("broker"));
        config.listen.set_port(0);
        let broker = Broker::start(config).await.unwrap();
        let kafka = KafkaSettings::new(broker.address().to_string());
        let topic = TopicSpec {
            config: settings
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
            ..TopicSpec::new(Topics::default().requests(), PARTITIONS)
        };
        let admin = Admin::new(&kafka, "test").unwrap();
        admin.wait_ready(PATIENCE).await.unwrap();
        admin.create_topics(&[topic]).await.unwrap();
        Setup::around(broker, kafka, directory, Guards::default(), |_| {}).await
    }
}

impl<C> Setup<C> {
    async fn around(
        cluster: C,
        kafka: KafkaSettings,
        directory: tempfile::TempDir,
        guards: Guards,
        change: impl FnOnce(&mut IngestionSettings),
    ) -> Self {
        let store = EmbeddedConfig::new(directory.path().join("store"));
        let store = Arc::new(EmbeddedStore::open(store).unwrap());
        let topics = Topics::default();
        let mut config = IngestionSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            accept_timeout: Duration::from_secs(5),
            reply_to_prefixes: vec!["replies.".to_owned()],
            pending_read_timeout: PATIENCE,
            ..IngestionSettings::default()
        };
        change(&mut config);
        let parts = IngestionParts {
            store: Arc::clone(&store) as Arc<dyn Store>,
            kafka: kafka.clone(),
            topics: topics.clone(),
            partition_map: PartitionMap::fixed(PARTITIONS),
            workflows: workflows(),
            forms: Forms::new([&DroneDelivery as _]),
            guards,
        };
        let ingestion = Ingestion::start(config, parts).await.unwrap();
        let http = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self {
            ingestion,
            store,
            cluster,
            kafka,
            topics,
            http,
            _directory: directory,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.ingestion.address())
    }

    pub fn post(&self, path: &str, body: impl ToString) -> RequestBuilder {
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

    /// Sends a request for an operation.
    pub async fn request(&self, body: Value) -> Response {
        self.post(OPERATIONS, body).send().await.unwrap()
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.http.get(self.url(path)).send().await.unwrap()).await
    }

    /// Sends bytes unchanged and returns the answer until the server closes the connection.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut socket = TcpStream::connect(self.ingestion.address()).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        within(socket.read_to_end(&mut answer)).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// All create requests.
    pub fn records(&self) -> Vec<Taken> {
        let created = self.requests().into_iter().filter_map(|(record, request)| {
            let OperationRequest::Create(request) = request else {
                return None;
            };
            Some(Taken {
                key: record.key,
                partition: record.partition,
                offset: record.offset,
                traceparent: record.traceparent,
                request,
            })
        });
        created.collect()
    }

    /// All records on the topic of high-priority requests.
    pub fn high_priority(&self) -> Vec<(Lying, OperationRequest)> {
        self.decoded(self.topics.high_priority_requests())
    }

    /// All records on the topic of requests.
    pub fn requests(&self) -> Vec<(Lying, OperationRequest)> {
        self.decoded(self.topics.requests())
    }

    /// All records on the topic of recoveries.
    pub fn recoveries(&self) -> Vec<(Lying, Recovery)> {
        self.decoded(self.topics.recovery())
    }

    fn decoded<R: Record>(&self, topic: &str) -> Vec<(Lying, R)> {
        let lying = self.lying_in(topic).into_iter();
        lying
            .map(|lying| {
                let record = R::decode(&lying.value).unwrap();
                (lying, record)
            })
            .collect()
    }

    fn lying_in(&self, topic: &str) -> Vec<Lying> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.kafka.brokers.as_str())
            .set("group.id", "test")
            .create()
            .unwrap();
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
            records.push(Lying {
                key: String::from_utf8(message.key().unwrap().to_vec()).unwrap(),
                partition: PartitionId(message.partition() as u32),
                offset: Offset(message.offset()),
                traceparent: message.headers().and_then(traceparent),
                value: message.payload().unwrap().to_vec(),
            });
        }
        records
    }

    /// Writes the row that the scheduler would write for this record.
    pub async fn schedule(&self, record: &Taken, state: ProcessState) {
        let request = &record.request;
        let created = Created {
            tenant: request.tenant.as_str().into(),
            caller_id: request.caller_id.clone(),
            input: request.input.clone().into(),
            deadline: request.deadline,
            reply_to: request.reply_to.clone(),
            request_hash: request.request_hash,
            request: Position {
                priority: Priority::Normal,
                partition: record.partition,
                offset: record.offset,
            },
            requested_at: request.requested_at,
            created_at: request.requested_at,
            notify: request.notify.clone(),
            ..created(&request.workflow, &["one"])
        };
        let updated_at = Timestamp(request.requested_at.0 + 1);
        self.write(RowWrite {
            created: Some(Arc::new(created)),
            ..state_only(request.operation, state, updated_at)
        })
        .await;
    }

    pub async fn write(&self, row: RowWrite) {
        let batch = WriteBatch {
            rows: vec![row],
            ..WriteBatch::default()
        };
        self.store.write(batch).await.unwrap();
    }

    /// Sets how far a partition's scheduler has consumed.
    pub async fn consumed(&self, partition: PartitionId, consumed: Offset) {
        let lease = Lease {
            owner: Some(OwnerId(Uuid::new_v4())),
            epoch: Epoch(1),
            renewal: 1,
            duration: Duration::from_secs(10),
            stamp_limit: Stamp(1),
            consumed: ByPriority {
                normal: consumed,
                high: Offset(0),
            },
            ..Lease::new(
                LeaseKey::scheduler(LayoutGeneration(0), ShardId(partition.0)),
                partition,
            )
        };
        assert!(self.store.take_lease(None, lease).await.unwrap());
    }
}

/// A row's state without its immutable part. No scheduler writes such a row.
pub fn state_only(id: OperationId, state: ProcessState, updated_at: Timestamp) -> RowWrite {
    RowWrite {
        id,
        created: None,
        state: untouched(state, 1, updated_at),
        stamp: Stamp(1),
        keep_for: None,
    }
}

/// The row of an operation with one step that was not requested yet.
pub fn row(id: OperationId, workflow: &str, state: ProcessState) -> RowWrite {
    let created = Created {
        input: delivery_input().into(),
        request: Position {
            priority: Priority::Normal,
            partition: partition_for(id, PARTITIONS),
            offset: Offset(0),
        },
        requested_at: Timestamp(1),
        created_at: Timestamp(2),
        ..created(workflow, &["one"])
    };
    RowWrite {
        created: Some(Arc::new(created)),
        ..state_only(id, state, Timestamp(3))
    }
}

/// The input of a delivery.
pub fn delivery_input() -> Vec<u8> {
    waybill_drone_delivery::request::validate(&delivery())
        .unwrap()
        .canonical_json()
}

/// A record with its position.
pub struct Lying {
    pub key: String,
    pub partition: PartitionId,
    pub offset: Offset,
    pub traceparent: Option<String>,
    value: Vec<u8>,
}

/// A create request on the topic.
pub struct Taken {
    pub key: String,
    pub partition: PartitionId,
    pub offset: Offset,
    pub traceparent: Option<String>,
    pub request: CreateRequest,
}

fn traceparent(headers: &impl Headers) -> Option<String> {
    let header = headers.iter().find(|header| header.key == "traceparent")?;
    Some(String::from_utf8(header.value?.to_vec()).unwrap())
}

fn workflows() -> Arc<Workflows> {
    let workflow = |name: &str, cancel: &str| {
        let step = json!({
            "name": "one",
            "agent": "agent",
            "compensation": {},
            "uses": ["pickupTime"],
        });
        let definition: WorkflowDefinition = serde_json::from_value(
            json!({"name": name, "version": 1, "cancel": cancel, "steps": [step]}),
        )
        .unwrap();
        Workflow::try_from(definition).unwrap()
    };
    let workflows = vec![
        workflow("drone-delivery", "untilFinal"),
        workflow("order", "untilFinal"),
        workflow("reversible", "always"),
        one_way(),
        confidential(),
    ];
    Arc::new(Workflows::new(workflows).unwrap())
}

/// A workflow with sensitive fields.
fn confidential() -> Workflow {
    let definition: WorkflowDefinition = serde_json::from_value(json!({
        "name": "confidential",
        "version": 1,
        "sensitive": ["/card/number"],
        "steps": [{"name": "one", "agent": "agent", "sensitive": ["/token"]}],
    }))
    .unwrap();
    Workflow::try_from(definition).unwrap()
}

/// A workflow whose first step is never undone.
fn one_way() -> Workflow {
    let definition: WorkflowDefinition = serde_json::from_value(json!({
        "name": "one-way",
        "version": 1,
        "steps": [
            {"name": "pay", "agent": "bank", "kind": "pivot"},
            {"name": "ship", "agent": "carrier", "kind": "irreversible", "after": ["pay"], "onFailure": "retry"},
        ],
    }))
    .unwrap();
    Workflow::try_from(definition).unwrap()
}

pub fn delivery() -> Value {
    json!({
        "ownerId": "myowner",
        "pickupLocation": "my pickup",
        "dropoffLocation": "drop off",
        "pickupTime": "2030-05-08T20:00:00Z",
        "deadline": "2030-05-08T22:00:00Z",
        "expedited": false,
        "confirmationRequired": "None",
        "packageInfo": {"packageId": "mypackage", "size": "Small", "weight": 10, "tag": "mytag"},
    })
}

pub fn order(id: &str, number: i32) -> Value {
    json!({"workflow": "order", "id": id, "input": {"number": number}})
}

pub fn location(response: &Response) -> String {
    response.headers()[LOCATION].to_str().unwrap().to_owned()
}

pub async fn answer(response: Response) -> (StatusCode, Value) {
    let (status, text) = (response.status(), response.text().await.unwrap());
    (
        status,
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}")),
    )
}

/// Asserts that a response is a problem and returns its parts.
pub async fn problem(response: Response) -> (u16, String, Value) {
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    let (status, problem) = answer(response).await;
    assert_eq!(problem["status"], status.as_u16());
    for member in ["title", "detail"] {
        assert!(problem[member].is_string(), "{problem}");
    }
    let kind = problem["type"].as_str().unwrap().replace("/problems/", "");
    (status.as_u16(), kind, problem)
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("the program takes too long")
}
