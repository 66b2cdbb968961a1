//! Runs the program as processes, and uses them from outside as a user would.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ports::free_address;
pub use crate::process::PATIENCE;
use crate::process::{Process, log_tail};
use crate::servers::Servers;

/// Metrics by name, each with its kind and its labels.
pub type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

/// One setup: a data directory, a configuration, and the addresses that its first process got.
pub struct Setup {
    dir: TempDir,
    /// The addresses of its own and of external listeners, by name.
    pub addresses: HashMap<String, SocketAddr>,
    /// The HTTP client for its listeners.
    pub client: reqwest::Client,
    /// The environment of its processes.
    pub env: Vec<(String, String)>,
    /// The program of processes that start from now on.
    program: Mutex<PathBuf>,
    /// The servers that replace the embedded broker and store.
    servers: Option<Servers>,
    only_normal: AtomicBool,
}

impl Setup {
    /// A setup with the configuration file `yaml`.
    pub fn new(yaml: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        std::fs::write(dir.path().join("waybill.yaml"), yaml).expect("the directory is writable");
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(15))
            .build()
            .expect("the client needs nothing");
        Self {
            dir,
            addresses: HashMap::new(),
            client,
            env: Vec::new(),
            program: Mutex::new(program()),
            servers: None,
            only_normal: AtomicBool::new(false),
        }
    }

    /// The same, but on Apache Kafka and a CQL database if the environment selects them.
    pub fn of_either_kind(yaml: &str) -> Self {
        let mut setup = Self::new(yaml);
        if let Some(servers) = Servers::wanted() {
            let brokers = servers.brokers.parse().expect("brokers are an address");
            setup.addresses.insert("broker".to_owned(), brokers);
            setup.env = servers.env();
            setup.servers = Some(servers);
        }
        setup
    }

    /// Sends no high-priority requests.
    pub fn send_only_normal(&self) {
        self.only_normal.store(true, Ordering::Relaxed);
    }

    /// Whether its processes use Apache Kafka and a CQL database.
    pub fn is_on_servers(&self) -> bool {
        self.servers.is_some()
    }

    /// The settings that open the state store, if it is a CQL database.
    pub fn cql(&self) -> Option<waybill_store::CqlConfig> {
        self.servers.as_ref().map(Servers::cql)
    }

    /// The name of a topic.
    pub fn topic(&self, name: &str) -> String {
        let prefix = self.servers.as_ref();
        let prefix = prefix.map_or("waybill", |servers| &servers.name);
        format!("{prefix}.{name}.v1")
    }

    /// A path in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The address that `name` (http, admin, broker, services) listens on.
    pub fn address(&self, name: &str) -> SocketAddr {
        self.addresses[name]
    }

    /// The address of a path at a listener.
    pub fn url(&self, name: &str, path: &str) -> String {
        format!("http://{}{path}", self.address(name))
    }

    /// Starts a role and waits until it has announced the listeners named in `announces`. A
    /// listener that was started before gets its old address again.
    pub fn start(&mut self, role: &str, extra: &[&str], announces: &[&str]) -> Process {
        let (process, addresses) = self.spawn(role, extra, announces);
        self.addresses.extend(addresses);
        process
    }

    /// Starts later processes from another program.
    pub fn set_program(&self, program: &Path) {
        *self.program.lock().expect("the lock is not poisoned") = program.to_owned();
    }

    /// Starts a role again, with the old addresses of all its listeners.
    pub fn again(&self, role: &str, extra: &[&str], announces: &[&str]) -> Process {
        self.spawn(role, extra, announces).0
    }

    fn spawn(
        &self,
        role: &str,
        extra: &[&str],
        announces: &[&str],
    ) -> (Process, HashMap<String, SocketAddr>) {
        // With servers, no process listens as a broker.
        let mut announces = announces.to_vec();
        announces.retain(|name| self.servers.is_none() || *name != "broker");
        let announces = announces.as_slice();
        let mut command = Command::new(&*self.program.lock().expect("the lock is not poisoned"));
        command.arg(role).args(extra);
        command.envs(self.env.iter().cloned());
        command.arg("--config").arg(self.path("waybill.yaml"));
        command.arg("--data-dir").arg(self.path("data"));
        if !announces.contains(&"admin") {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        for (name, flag) in LISTENERS {
            if announces.contains(name) {
                let address = self.addresses.get(*name).copied();
                let address = address.unwrap_or_else(free_address);
                command.arg(flag).arg(address.to_string());
            }
        }
        Process::start(command, announces, &self.path("log.txt"))
    }

    /// Starts `waybill up` with all roles.
    pub fn up(&mut self) -> Process {
        self.start("up", &[], &["http", "admin", "broker", "services"])
    }

    /// Waits until the process is ready.
    pub async fn ready(&self) {
        let url = self.url("admin", "/readyz");
        self.eventually("the process is ready", async || {
            self.client
                .get(&url)
                .send()
                .await
                .is_ok_and(|answer| answer.status().is_success())
        })
        .await;
    }

    /// Waits until `holds` returns true.
    pub async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds().await {
            assert!(
                Instant::now() < deadline,
                "not reached: {what}\n{}",
                self.log_tail()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The sum of a metric's samples that carry `labels`.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        self.samples(name, labels).await.into_iter().sum()
    }

    /// A metric's samples that carry `labels`.
    pub async fn samples(&self, name: &str, labels: &str) -> Vec<f64> {
        let text = self.metrics_text().await;
        let of_name = text.lines().filter_map(|line| line.strip_prefix(name));
        of_name
            .filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
            .filter_map(|rest| rest.rsplit_once(' ')?.1.parse().ok())
            .collect()
    }

    /// The kinds and labels of all of Waybill's metrics in the output.
    pub async fn shown_metrics(&self) -> Metrics {
        let text = self.metrics_text().await;
        let mut shown = Metrics::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some((name, kind)) = line
                .strip_prefix("# TYPE ")
                .and_then(|line| line.split_once(' '))
            {
                name.clone_into(&mut current);
                if name.starts_with("waybill_") {
                    shown.insert(current.clone(), (kind.to_owned(), BTreeSet::new()));
                }
            } else if let Some((_, labels)) = shown.get_mut(&current)
                && let Some((_, rest)) = line.split_once('{')
                && let Some((pairs, _)) = rest.rsplit_once('}')
            {
                // No label value contains a comma.
                let names = pairs.split(',').filter_map(|pair| pair.split_once('='));
                let names = names.map(|(name, _)| name.to_owned());
                labels.extend(names.filter(|name| name != "le"));
            }
        }
        shown
    }

    async fn metrics_text(&self) -> String {
        let answer = self.client.get(self.url("admin", "/metrics")).send().await;
        let answer = answer.expect("the admin port answers");
        answer.text().await.expect("metrics are text")
    }

    /// Sends one delivery until it is accepted, even if processes die in the meantime or its tenant
    /// has reached a limit, and returns its ID.
    pub async fn deliver(&self, delivery: &Value) -> String {
        let mut delivery = delivery.clone();
        if self.only_normal.load(Ordering::Relaxed) {
            delivery["expedited"] = json!(false);
        }
        let url = self.url("http", "/api/deliveryrequests");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let last = match self.client.post(&url).json(&delivery).send().await {
                Ok(answer) => {
                    let status = answer.status();
                    let body: Value = answer.json().await.unwrap_or_default();
                    if status.is_success() {
                        return body["id"].as_str().expect("an answer has an id").to_owned();
                    }
                    let is_temporary = status.is_server_error()
                        || status == reqwest::StatusCode::TOO_MANY_REQUESTS;
                    assert!(is_temporary, "{status}: {body}");
                    format!("{status}: {body}")
                }
                Err(error) => format!("{error:?}"),
            };
            assert!(
                Instant::now() < deadline,
                "{delivery} is not accepted by {url}; the last answer: {last}\n{}",
                self.log_tail()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The state of an operation; `None` while the API is unavailable.
    pub async fn state(&self, id: &str) -> Option<String> {
        let url = self.url("http", &format!("/v1/operations/{id}"));
        let body: Value = self.client.get(url).send().await.ok()?.json().await.ok()?;
        Some(body["state"].as_str()?.to_owned())
    }

    /// Waits until all operations are in `state`.
    pub async fn all_reach(&self, ids: &[String], state: &str) {
        let deadline = Instant::now() + PATIENCE;
        for id in ids {
            loop {
                let now = self.state(id).await;
                if now.as_deref() == Some(state) {
                    break;
                }
                assert_ne!(
                    now.as_deref(),
                    Some("Error"),
                    "{id} failed\n{}",
                    self.log_tail()
                );
                assert!(
                    Instant::now() < deadline,
                    "{id} is {now:?}, not {state}\n{}",
                    self.log_tail()
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// The ledger: for each operation, its effects as (step, action) with the number of times each
    /// was made, without repeats of a key.
    pub async fn ledger(&self) -> HashMap<String, HashMap<(String, String), u32>> {
        let text = self
            .client
            .get(self.url("services", "/ledger"))
            .send()
            .await
            .expect("the services answer")
            .text()
            .await
            .expect("the ledger is text");
        let mut ledger: HashMap<String, HashMap<(String, String), u32>> = HashMap::new();
        for line in text.lines() {
            let entry: Value = serde_json::from_str(line).expect("a ledger line is JSON");
            if entry["repeat"] == json!(true) {
                continue;
            }
            let word = |name: &str| entry[name].as_str().expect("a ledger word").to_owned();
            *ledger
                .entry(word("operation"))
                .or_default()
                .entry((word("step"), word("action")))
                .or_default() += 1;
        }
        ledger
    }

    /// Asserts that each operation's effects were made exactly once: a package, a delivery, and a
    /// drone or, for a remote delivery, third-party transport.
    pub async fn assert_one_effect_per_step(&self, ids: &[String], remote: impl Fn(usize) -> bool) {
        let ledger = self.ledger().await;
        for (index, id) in ids.iter().enumerate() {
            let carrier = if remote(index) {
                "third-party"
            } else {
                "drone"
            };
            let expected: HashMap<(String, String), u32> = ["package", carrier, "delivery"]
                .into_iter()
                .map(|step| ((step.to_owned(), "run".to_owned()), 1))
                .collect();
            assert_eq!(ledger.get(id), Some(&expected), "the effects of {id}");
        }
    }

    /// The end of the processes' log.
    pub fn log_tail(&self) -> String {
        log_tail(&self.path("log.txt"))
    }
}

/// The listeners and their flags.
const LISTENERS: &[(&str, &str)] = &[
    ("http", "--http"),
    ("admin", "--admin"),
    ("broker", "--broker-listen"),
    ("services", "--services"),
];

/// Whether a delivery is expedited: one in three, by its ID.
fn is_expedited(id: &str) -> bool {
    id.bytes().map(u32::from).sum::<u32>().is_multiple_of(3)
}

/// A delivery with this ID.
pub fn delivery(id: &str, remote: bool) -> Value {
    json!({
        "deliveryId": id,
        "ownerId": "owner-1",
        "pickupLocation": "12 Harbour Street",
        "dropOffLocation": if remote { "remote island" } else { "7 Hill Road" },
        "pickupTime": "2030-01-01T10:00:00Z",
        "deadline": "2030-01-01T18:00:00Z",
        "expedited": is_expedited(id),
        "confirmationRequired": "None",
        "packageInfo": { "packageId": format!("package-{id}"), "size": "Small", "weight": 1.5, "tag": "test" },
    })
}

/// Pseudorandom numbers that depend on the seed alone (xorshift64*).
pub struct Dice(pub u64);

impl Dice {
    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// The program, which cargo builds next to the tests' directory.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test is a file");
    let built = test
        .ancestors()
        .nth(2)
        .expect("it is in a directory of tests");
    built.join("waybill")
}
