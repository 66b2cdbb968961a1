//! The shop of the example with Waybill, and queries to both.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use waybill_test_support::ports::free_address;
use waybill_test_support::process::{Process, log_tail, without_variables};

use crate::postgres::Postgres;

/// The time limit of all waits. Generous, because it limits only failures.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A process of the example.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Member {
    /// Broker, ingestion, scheduler and supervisor.
    Up,
    Agents,
    Relay,
    Listener,
    Services,
}

impl Member {
    pub const ALL: [Self; 5] = [
        Self::Up,
        Self::Agents,
        Self::Relay,
        Self::Listener,
        Self::Services,
    ];
}

/// All processes, on ports that stay the same over restarts. Dropping it kills them.
pub struct Shop {
    running: BTreeMap<Member, Process>,
    pub postgres: Postgres,
    python: PathBuf,
    broker: SocketAddr,
    http: SocketAddr,
    services: SocketAddr,
    dir: TempDir,
}

impl Shop {
    /// Starts all processes. Without PostgreSQL or Python, prints a line and returns `None`.
    pub fn open() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let found = python().clone().and_then(|python| {
            let postgres = Postgres::start(dir.path())?;
            Ok((python, postgres))
        });
        let (python, postgres) = match found {
            Ok(found) => found,
            Err(reason) => {
                println!("SKIPPED: examples/orders: {reason}");
                return None;
            }
        };
        let mut shop = Self {
            running: BTreeMap::new(),
            postgres,
            python,
            broker: free_address(),
            http: free_address(),
            services: free_address(),
            dir,
        };
        shop.start(Member::Up);
        let init = shop.shop(&["init"]).output().unwrap();
        assert!(init.status.success(), "{init:?}");
        for member in Member::ALL {
            if member != Member::Up {
                shop.start(member);
            }
        }
        Some(shop)
    }

    pub fn start(&mut self, member: Member) {
        let (command, announces): (_, &[&str]) = match member {
            Member::Up => (self.up(), &["broker", "http"]),
            Member::Agents => (self.agents(), &[]),
            Member::Relay => (self.shop(&["relay"]), &[]),
            Member::Listener => (self.shop(&["listen"]), &[]),
            Member::Services => (self.shop(&["services"]), &[]),
        };
        let (process, _) = Process::start(command, announces, &self.log(member));
        self.running.insert(member, process);
    }

    /// Kills a process with SIGKILL.
    pub fn kill(&mut self, member: Member) {
        drop(self.running.remove(&member));
    }

    /// Places an order. A repeat has no effect.
    pub fn order(&self, id: &str, options: &[&str]) {
        let status = self.ordering(id, options).status().unwrap();
        assert!(status.success(), "order {id}: {status}");
    }

    /// The same as a separate process, which can be killed.
    pub fn ordering(&self, id: &str, options: &[&str]) -> Command {
        let mut command = self.shop(&["order", id]);
        command
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// The shop's status of an order.
    pub fn status(&self, id: &str) -> String {
        let query = format!("SELECT status FROM orders WHERE id = '{id}'");
        self.postgres.ask(&query)
    }

    pub fn wait_for_status(&self, id: &str, expected: &str) {
        wait_until(
            &format!("order {id} is {expected}\n{}", self.logs()),
            || self.status(id) == expected,
        );
    }

    /// The effects and undos of an order, in order.
    pub fn ledger(&self, id: &str) -> Vec<String> {
        let query = format!(
            "SELECT service || ' ' || change FROM services.ledger WHERE \"order\" = '{id}' ORDER BY entry"
        );
        self.postgres
            .ask(&query)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Waybill's view of an order's operation; `None` if it is unknown or Waybill is unavailable.
    pub fn operation(&self, id: &str) -> Option<Value> {
        get(self.http, &format!("/v1/operations/{id}")).ok()
    }

    /// The same for an operation that must exist.
    pub fn known_operation(&self, id: &str) -> Value {
        let mut known = None;
        wait_until(&format!("the operation of order {id} is known"), || {
            known = self.operation(id);
            known.is_some()
        });
        known.unwrap()
    }

    /// The number of records on a topic of four partitions.
    pub fn records(&self, topic: &str) -> i64 {
        use rdkafka::consumer::{BaseConsumer, Consumer as _};
        let consumer: BaseConsumer = rdkafka::ClientConfig::new()
            .set("bootstrap.servers", self.broker.to_string())
            .create()
            .unwrap();
        (0..4)
            .map(|partition| {
                let ends = consumer.fetch_watermarks(topic, partition, PATIENCE);
                ends.unwrap().1
            })
            .sum()
    }

    /// The ends of all logs, for a failure message.
    pub fn logs(&self) -> String {
        Member::ALL
            .iter()
            .map(|member| format!("-- {member:?}\n{}\n", log_tail(&self.log(*member))))
            .collect()
    }

    fn log(&self, member: Member) -> PathBuf {
        self.dir.path().join(format!("{member:?}.log"))
    }

    fn shop(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.python);
        command
            .arg(root().join("examples/orders/shop.py"))
            .args(arguments)
            .env("SHOP_DATABASE", self.postgres.database())
            .env("SHOP_BROKERS", self.broker.to_string())
            .env("SHOP_SERVICES", self.services.to_string());
        command
    }

    fn up(&self) -> Command {
        let mut command = self.waybill("up");
        command
            .args(["--no-agents", "--no-services"])
            .args(["--broker-listen", &self.broker.to_string()])
            .args(["--http", &self.http.to_string()]);
        command
    }

    fn agents(&self) -> Command {
        let mut command = self.waybill("agents");
        command.args(["--brokers", &self.broker.to_string()]);
        command
    }

    fn waybill(&self, role: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        without_variables(&mut command)
            .current_dir(root())
            .args([role, "--config", "examples/orders/waybill.yaml"])
            .args(["--services", &self.services.to_string()])
            .args(["--admin", "127.0.0.1:0"])
            .arg("--data-dir")
            .arg(self.dir.path().join(role));
        command
    }
}

/// Waits for a condition.
pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_until_or_say(what, is_so, String::new);
}

/// Waits for a condition. On a time-out, reports the actual state.
pub fn wait_until_or_say(
    what: &str,
    mut is_so: impl FnMut() -> bool,
    instead: impl FnOnce() -> String,
) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() >= deadline {
            panic!("timed out waiting until {what}\n{}", instead());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The JSON body of a 200 answer.
pub fn get(address: SocketAddr, path: &str) -> Result<Value, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    let written = write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    );
    let mut answer = String::new();
    written
        .and_then(|()| stream.read_to_string(&mut answer))
        .map_err(|error| error.to_string())?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => {
            serde_json::from_str(body).map_err(|error| format!("{error}: {answer}"))
        }
        _ => Err(answer),
    }
}

/// A Python with the example's dependencies: the machine's, or else one that is set up for the
/// tests.
fn python() -> &'static Result<PathBuf, String> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("orders-venv");
        let own = venv.join("bin/python");
        let found = [own.clone(), PathBuf::from("python3")];
        if let Some(python) = found.into_iter().find(|python| has_all(python)) {
            return Ok(python);
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            .map_err(|error| format!("Python's venv cannot be had: {error}"))?;
        run(Command::new(&own)
            .args(["-m", "pip", "install", "--quiet", "--requirement"])
            .arg(root().join("examples/orders/requirements.txt")))
        .map_err(|error| format!("Python's packages cannot be had: {error}"))?;
        Ok(own)
    })
}

fn has_all(python: &Path) -> bool {
    let imports = "import confluent_kafka, fastavro, psycopg
assert tuple(map(int, psycopg.__version__.split('.')[:2])) >= (3, 2)";
    run(Command::new(python).args(["-c", imports])).is_ok()
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = message.lines().last().unwrap_or_default();
    output.status.success().then_some(()).ok_or(last.to_owned())
}
