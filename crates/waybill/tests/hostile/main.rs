//! Attacks on the running program by clients without a token. Honest requests must continue to
//! work.

mod batches;
mod browser;
mod connections;
mod pages;
mod replies;
mod unread;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use waybill_test_support::memory::MemoryLimit;
use waybill_test_support::process::Process;

/// The time limit of all waits: it limits only failures.
const PATIENCE: Duration = Duration::from_secs(60);

/// The connection limit of each listener.
const CONNECTIONS_MAX: usize = 40;

/// The default topic prefix.
const EMBEDDED_PREFIX: &str = "waybill";

/// The program in one process, without authentication and with a low connection limit.
struct Site {
    directory: tempfile::TempDir,
    _process: Process,
    addresses: HashMap<String, SocketAddr>,
    http: Client,
    /// Its topic prefix.
    prefix: String,
}

/// The broker with the program's topics.
#[derive(Clone, Copy, Debug)]
enum Broker {
    /// The embedded broker.
    Embedded,
    /// The Apache Kafka of `WAYBILL_TEST_BROKERS`.
    Kafka,
}

impl Broker {
    /// Both, or the embedded one and a line that begins with `SKIPPED:`.
    fn all() -> Vec<Self> {
        if kafka().is_some() {
            return vec![Self::Embedded, Self::Kafka];
        }
        println!("SKIPPED: attacks over Apache Kafka: WAYBILL_TEST_BROKERS names none");
        vec![Self::Embedded]
    }
}

fn kafka() -> Option<String> {
    std::env::var("WAYBILL_TEST_BROKERS").ok()
}

/// The request for a delivery.
fn delivery(id: &str) -> Value {
    json!({
        "deliveryId": id,
        "ownerId": "ada",
        "pickupLocation": "12 Harbour Street",
        "dropOffLocation": "7 Hill Road",
        "packageInfo": {"packageId": id, "size": "Small", "weight": 1.5},
    })
}

impl Site {
    fn start() -> Self {
        Self::start_within(None)
    }

    /// Starts the program with a memory limit.
    fn start_within(limit: Option<&MemoryLimit>) -> Self {
        Self::start_at(Broker::Embedded, limit, &[])
    }

    /// Starts the program with additional workflows.
    fn start_at(broker: Broker, limit: Option<&MemoryLimit>, workflows: &[(&str, &str)]) -> Self {
        Self::start_with(broker, limit, workflows, CONNECTIONS_MAX)
    }

    /// Starts the program with this connection limit.
    fn start_with(
        broker: Broker,
        limit: Option<&MemoryLimit>,
        workflows: &[(&str, &str)],
        connections_max: usize,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let configuration = directory.path().join("waybill.yaml");
        let limits = format!(
            "connectionsMax: {connections_max}, connectionsPerAddressMax: {connections_max}"
        );
        let text = format!(
            "http: {{listen: '127.0.0.1:0', hosts: [waybill.example], eventStreamsMax: 4, {limits}}}\n\
             admin: {{listen: '127.0.0.1:0', bodyBytesMax: 2KiB, bodyTimeout: 1s, {limits}}}\n\
             broker: {{listen: '127.0.0.1:0'}}\n\
             services: {{listen: '127.0.0.1:0', connectionsMax: {connections_max}}}\n"
        );
        let (prefix, text) = match broker {
            Broker::Embedded => (EMBEDDED_PREFIX.to_owned(), text),
            Broker::Kafka => {
                let prefix = format!("test_{}", uuid::Uuid::new_v4().simple());
                let brokers = kafka().expect("it is named");
                let kafka = format!("kafka: {{brokers: ['{brokers}'], topicPrefix: {prefix}}}\n");
                (prefix, text + &kafka)
            }
        };
        let mut files = Vec::new();
        for (name, workflow) in workflows {
            let file = directory.path().join(name);
            std::fs::write(&file, workflow).unwrap();
            files.push(format!("{file:?}"));
        }
        let text = format!("{text}workflows: {{files: [{}]}}\n", files.join(", "));
        std::fs::write(&configuration, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command.arg("up").arg("--config").arg(&configuration);
        command.arg("--data-dir").arg(directory.path().join("data"));
        if let Some(limit) = limit {
            command = limit.around(&command);
        }
        let log = directory.path().join("log");
        let mut listeners = vec!["http", "admin", "services"];
        if let Broker::Embedded = broker {
            listeners.push("broker");
        }
        let (process, mut addresses) = Process::start(command, &listeners, &log);
        if let Broker::Kafka = broker {
            let address = kafka().expect("it is named").parse();
            addresses.insert("broker".to_owned(), address.expect("it is an address"));
        }
        Self {
            directory,
            _process: process,
            addresses,
            // A new connection for each request, so that the listener must accept it.
            http: Client::builder().pool_max_idle_per_host(0).build().unwrap(),
            prefix,
        }
    }

    /// Stops it and removes its topics from Kafka.
    async fn remove(self) {
        let Self {
            _process: process,
            addresses,
            prefix,
            ..
        } = self;
        drop(process);
        if prefix == EMBEDDED_PREFIX {
            return;
        }
        let mut client = rdkafka::ClientConfig::new();
        client.set("bootstrap.servers", addresses["broker"].to_string());
        let admin: rdkafka::admin::AdminClient<_> = client.create().unwrap();
        let topics = admin.inner().fetch_metadata(None, PATIENCE).unwrap();
        let topics = topics.topics().iter().map(|topic| topic.name());
        let own: Vec<&str> = topics.filter(|name| name.starts_with(&prefix)).collect();
        let options = rdkafka::admin::AdminOptions::new();
        admin.delete_topics(&own, &options).await.unwrap();
    }

    /// The full name of a topic.
    fn topic(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn address(&self, listener: &str) -> SocketAddr {
        self.addresses[listener]
    }

    fn url(&self, listener: &str, path: &str) -> String {
        format!("http://{}{path}", self.address(listener))
    }

    fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    async fn get(&self, listener: &str, path: &str) -> (StatusCode, String) {
        let answer = self.http.get(self.url(listener, path)).send();
        let answer = answer.await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    /// Waits until the program is ready. Each try is a separate request, which an overloaded
    /// listener would not answer.
    async fn ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, page) = self.get("admin", "/readyz").await;
            if status == StatusCode::OK {
                return;
            }
            assert!(Instant::now() < deadline, "{status} {page}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Requests a delivery and waits until it is processed.
    async fn deliver(&self, id: &str) {
        let delivery = delivery(id);
        let url = self.url("http", "/api/deliveryrequests");
        let deadline = Instant::now() + PATIENCE;
        let taken = |status| status == StatusCode::ACCEPTED || status == StatusCode::OK;
        while !taken(self.post(&url, &delivery).await) {
            assert!(Instant::now() < deadline, "{id} was not accepted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        loop {
            let (_, page) = self.get("http", &format!("/v1/operations/{id}")).await;
            let page: Value = serde_json::from_str(&page).unwrap();
            if page["state"] == "Processed" {
                return;
            }
            assert!(Instant::now() < deadline, "{id} was not delivered: {page}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn post(&self, url: &str, body: &Value) -> StatusCode {
        let answer = self.http.post(url).json(body).send().await.unwrap();
        answer.status()
    }

    async fn metric(&self, name: &str) -> f64 {
        let (_, metrics) = self.get("admin", "/metrics").await;
        let values = metrics.lines().filter_map(|line| line.strip_prefix(name));
        let mut values = values.filter_map(|rest| rest.trim().parse().ok());
        values.next().unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_of_the_machine_cannot_read_the_data_directory() {
    let site = Site::start();
    let mode = std::fs::metadata(site.data_dir()).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o700);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invented_operation_is_not_found() {
    let site = Site::start();
    site.deliver("real").await;
    for at in ["0-999999-00000000", "0-0-12345678", "77-0-00000000"] {
        let path = format!("/v1/operations/made-up?at={at}");
        let (status, page) = site.get("http", &path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{at}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_a_topic_that_was_deleted() {
    for broker in Broker::all() {
        let site = Site::start_at(broker, None, &[]);
        deleted_topic_is_named(&site).await;
        site.remove().await;
    }
}

async fn deleted_topic_is_named(site: &Site) {
    site.deliver("before").await;
    let topic = &site.topic("operation-requests.v1");
    let brokers = site.address("broker").to_string();
    let client: rdkafka::admin::AdminClient<_> = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .create()
        .unwrap();
    let options = rdkafka::admin::AdminOptions::new();
    client.delete_topics(&[topic], &options).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, page) = site.get("admin", "/readyz").await;
        if status == StatusCode::SERVICE_UNAVAILABLE && page.contains("the topics of operations") {
            return;
        }
        assert!(Instant::now() < deadline, "{status} {page}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
