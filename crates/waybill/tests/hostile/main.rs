//! Attacks on the running program by clients without a token. Honest requests must continue to
//! work.

mod batches;
mod browser;
mod connections;
mod frames;
mod pages;
mod records;
mod replies;
mod tenants;
mod unread;

use std::collections::HashMap;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use waybill_test_support::memory::MemoryLimit;
use waybill_test_support::process::{Process, without_variables};

/// The time limit of all waits: it limits only failures.
const PATIENCE: Duration = Duration::from_secs(60);

/// The topics that the program itself reads, without their prefix.
const TOPICS: [&str; 4] = [
    "operation-requests.v1",
    "step-replies.v1",
    "recovery.v1",
    "drone.requests.v1",
];
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
    /// Its tokens, by name.
    tokens: HashMap<String, String>,
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

/// Creates tokens and their file. Returns them by name.
fn make_tokens(tokens: &[(&str, &str, &str)], file: &Path) -> HashMap<String, String> {
    let mut entries = Vec::new();
    let mut made = HashMap::new();
    for (name, scopes, tenant) in tokens {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command.args(["token", "create", "--name", name]);
        command.args(["--scopes", scopes, "--tenant", tenant]);
        let output = without_variables(&mut command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        entries.extend(output.stdout);
        let token = String::from_utf8(output.stderr).unwrap();
        made.insert((*name).to_owned(), token.trim().to_owned());
    }
    std::fs::write(file, entries).unwrap();
    made
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

/// What differs between sites.
struct Options<'a> {
    broker: Broker,
    /// A memory limit.
    limit: Option<&'a MemoryLimit>,
    /// Additional workflows, by file name.
    workflows: &'a [(&'a str, &'a str)],
    connections_max: usize,
    /// The name, scopes and tenant of tokens. With any, authentication is on.
    tokens: &'a [(&'a str, &'a str, &'a str)],
    /// More settings of the section `http`.
    http: &'a str,
    /// More settings of the section `broker`.
    broker_settings: &'a str,
    /// The mode of a data directory that exists before the start.
    data_dir_mode: Option<u32>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            broker: Broker::Embedded,
            limit: None,
            workflows: &[],
            connections_max: CONNECTIONS_MAX,
            tokens: &[],
            http: "",
            broker_settings: "",
            data_dir_mode: None,
        }
    }
}

impl Site {
    fn start() -> Self {
        Self::start_with(&Options::default())
    }

    /// Starts the program with a memory limit.
    fn start_within(limit: Option<&MemoryLimit>) -> Self {
        Self::start_with(&Options {
            limit,
            ..Options::default()
        })
    }

    /// Starts the program on a broker.
    fn start_at(broker: Broker) -> Self {
        Self::start_with(&Options {
            broker,
            ..Options::default()
        })
    }

    fn start_with(options: &Options<'_>) -> Self {
        let Options {
            broker,
            limit,
            workflows,
            connections_max,
            tokens,
            http,
            broker_settings,
            data_dir_mode,
        } = options;
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        if let Some(mode) = data_dir_mode {
            std::fs::create_dir(&data).unwrap();
            std::fs::set_permissions(&data, Permissions::from_mode(*mode)).unwrap();
        }
        let configuration = directory.path().join("waybill.yaml");
        let limits = format!(
            "connectionsMax: {connections_max}, connectionsPerAddressMax: {connections_max}"
        );
        let mut text = format!(
            "http: {{listen: '127.0.0.1:0', hosts: [waybill.example], eventStreamsMax: 4, {http} {limits}}}\n\
             admin: {{listen: '127.0.0.1:0', bodyBytesMax: 2KiB, bodyTimeout: 1s, {limits}}}\n\
             broker: {{listen: '127.0.0.1:0', {broker_settings}}}\n\
             services: {{listen: '127.0.0.1:0', connectionsMax: {connections_max}}}\n"
        );
        let mut prefix = EMBEDDED_PREFIX.to_owned();
        if let Broker::Kafka = broker {
            prefix = format!("test_{}", uuid::Uuid::new_v4().simple());
            let brokers = kafka().expect("it is named");
            text += &format!("kafka: {{brokers: ['{brokers}'], topicPrefix: {prefix}}}\n");
        }
        let mut files = Vec::new();
        for (name, workflow) in *workflows {
            let file = directory.path().join(name);
            std::fs::write(&file, workflow).unwrap();
            files.push(format!("{file:?}"));
        }
        text += &format!("workflows: {{files: [{}]}}\n", files.join(", "));
        let tokens: HashMap<String, String> = match tokens {
            [] => HashMap::new(),
            tokens => {
                let file = directory.path().join("tokens.yaml");
                text += &format!("auth: {{tokensFile: {file:?}}}\n");
                make_tokens(tokens, &file)
            }
        };
        std::fs::write(&configuration, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command.arg("up").arg("--config").arg(&configuration);
        command.arg("--data-dir").arg(&data);
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
            tokens,
        }
    }

    /// What the program has logged.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
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
    assert!(!site.log().contains("chmod 700"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_that_others_may_read_is_reported_at_start() {
    let site = Site::start_with(&Options {
        data_dir_mode: Some(0o755),
        ..Options::default()
    });
    let deadline = Instant::now() + PATIENCE;
    while !site.log().contains("run chmod 700") {
        assert!(Instant::now() < deadline, "{}", site.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invented_operation_is_not_found() {
    for broker in Broker::all() {
        let site = Site::start_at(broker);
        site.deliver("real").await;
        for at in ["0-999999-00000000", "0-0-12345678", "77-0-00000000"] {
            let path = format!("/v1/operations/made-up?at={at}");
            let (status, page) = site.get("http", &path).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{broker:?} {at}: {page}");
        }
        site.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_a_topic_that_was_deleted() {
    for broker in Broker::all() {
        let site = Site::start_at(broker);
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
