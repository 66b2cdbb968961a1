//! A running `waybill up`, and `waybill ops` on it.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use waybill_test_support::process::{Process, log_tail, without_variables};

/// The time limit of all waits. Generous, because it limits only failures.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A workflow that parks failed operations; the built-in one compensates them.
pub const PARCEL: &str = "
name: parcel
version: 1
onFailure: park
steps:
  - name: package
    agent: package
    timeout: 5s
    compensation: { timeout: 5s, tombstones: true }
  - name: drone
    agent: drone
    timeout: 5s
    compensation: { timeout: 5s, tombstones: true }
";

/// A running `waybill up`. Dropping it kills it.
pub struct Setup {
    pub dir: TempDir,
    _process: Process,
    pub addresses: HashMap<String, SocketAddr>,
    pub client: reqwest::Client,
}

/// The output of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Setup {
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let workflow = dir.path().join("parcel.yaml");
        std::fs::write(&workflow, PARCEL).unwrap();
        let config = format!("workflows: {{files: ['{}']}}\n", workflow.display());
        std::fs::write(dir.path().join("waybill.yaml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command
            .arg("up")
            .arg("--config")
            .arg(dir.path().join("waybill.yaml"))
            .arg("--data-dir")
            .arg(dir.path().join("data"));
        for flag in ["--http", "--admin", "--broker-listen", "--services"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        let listeners = ["http", "admin", "services"];
        let (process, addresses) = Process::start(command, &listeners, &dir.path().join("log.txt"));
        let setup = Self {
            dir,
            _process: process,
            addresses,
            client: reqwest::Client::new(),
        };
        let url = setup.url("admin", "/readyz");
        setup
            .eventually("it is ready", async || {
                let answer = setup.client.get(&url).send().await;
                answer.is_ok_and(|answer| answer.status().is_success())
            })
            .await;
        setup
    }

    pub fn url(&self, name: &str, path: &str) -> String {
        format!("http://{}{path}", self.addresses[name])
    }

    pub async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds().await {
            assert!(
                Instant::now() < deadline,
                "not reached: {what}\n{}",
                log_tail(&self.dir.path().join("log.txt"))
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn ops(&self, line: &str) -> Ran {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let http = self.addresses["http"].to_string();
        run(&[&arguments[..], &["--http", &http]].concat())
    }

    /// The same on a terminal, where a person types `answer`. Both streams are in `out`.
    pub fn ops_on_a_terminal(&self, line: &str, answer: &str) -> Ran {
        // An empty variable counts as none.
        self.ops_on_a_terminal_with(line, answer, "")
    }

    /// The same with `NO_COLOR`.
    pub fn ops_without_colors(&self, line: &str) -> Ran {
        self.ops_on_a_terminal_with(line, "", "1")
    }

    fn ops_on_a_terminal_with(&self, line: &str, answer: &str, no_color: &str) -> Ran {
        let (program, http) = (env!("CARGO_BIN_EXE_waybill"), self.addresses["http"]);
        let command = format!("{program} ops {line} --http {http}");
        let mut script = Command::new("script");
        without_variables(&mut script)
            .env("NO_COLOR", no_color)
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut script = script.spawn().unwrap();
        let mut keyboard = script.stdin.take().unwrap();
        keyboard.write_all(answer.as_bytes()).unwrap();
        // The end of the terminal's input would also end the command.
        let output = script.wait_with_output().unwrap();
        drop(keyboard);
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::new(),
        }
    }

    /// The operations that a command lists, as JSON.
    pub fn listed(&self, flags: &str) -> Vec<Value> {
        let ran = self.ops(&format!("list --output json {flags}"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.json()
    }

    pub fn show(&self, id: &str) -> Value {
        let ran = self.ops(&format!("show {id} --output json"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.json().remove(0)
    }

    /// Sets a service's faults, or restores the configured ones.
    pub async fn faults(&self, service: &str, faults: Option<Value>) {
        let url = self.url("services", &format!("/faults/{service}"));
        let request = match faults {
            Some(faults) => self.client.put(url).json(&faults),
            None => self.client.delete(url),
        };
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{answer:?}");
    }

    /// Requests an operation, and returns its id.
    pub async fn request(&self, workflow: &str, id: &str) -> String {
        let input = json!({
            "ownerId": "owner-1",
            "pickupLocation": "12 Harbour Street",
            "dropOffLocation": "7 Hill Road",
            "pickupTime": "2030-01-01T10:00:00Z",
            "expedited": false,
            "confirmationRequired": "None",
            "packageInfo": {
                "packageId": format!("package-{id}"),
                "size": "Small",
                "weight": 1.5,
                "tag": "test",
            },
        });
        let body = json!({"workflow": workflow, "id": id, "input": input});
        let url = self.url("http", "/v1/operations");
        let answer = self.client.post(url).json(&body).send().await.unwrap();
        let status = answer.status();
        let body: Value = answer.json().await.unwrap();
        assert_eq!(status.as_u16(), 202, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    /// Requests operations and waits until all are in `state`.
    pub async fn bring_to(&self, state: &str, workflow: &str, ids: &[String]) -> Vec<String> {
        let mut operations = Vec::new();
        for id in ids {
            operations.push(self.request(workflow, id).await);
        }
        for operation in &operations {
            self.eventually(&format!("{operation} is {state}"), async || {
                self.show(operation)["state"] == state
            })
            .await;
        }
        operations
    }

    /// The existing effects of an operation by step, from the services' ledger: effects minus
    /// undos.
    pub async fn standing(&self, operation: &str) -> BTreeMap<String, i32> {
        let url = self.url("services", &format!("/ledger?operation={operation}"));
        let entries: Value = self
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let mut standing = BTreeMap::new();
        for entry in entries.as_array().unwrap() {
            if entry["repeat"] == true {
                continue;
            }
            let change = match entry["action"].as_str().unwrap() {
                "run" => 1,
                "compensate" => -1,
                other => panic!("{other}: {entry}"),
            };
            let step = entry["step"].as_str().unwrap().to_owned();
            *standing.entry(step).or_insert(0) += change;
        }
        standing.retain(|_, effects| *effects != 0);
        standing
    }
}

impl Ran {
    pub fn json(&self) -> Vec<Value> {
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn column(&self, name: &str) -> Vec<String> {
        let lines = self.json();
        let cells = lines.iter().map(|line| line[name].as_str().unwrap_or("-"));
        cells.map(str::to_owned).collect()
    }
}

pub fn run(arguments: &[&str]) -> Ran {
    let output = without_variables(&mut Command::new(env!("CARGO_BIN_EXE_waybill")))
        .arg("ops")
        .args(arguments)
        .env("USER", "kim")
        .output()
        .unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{prefix}-{number}"))
        .collect()
}

pub fn standing(steps: &[&str]) -> BTreeMap<String, i32> {
    steps.iter().map(|step| ((*step).to_owned(), 1)).collect()
}
