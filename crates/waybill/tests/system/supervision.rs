//! Supervision, proved from outside: services that fail, hang, refuse and go away, under processes
//! that are killed. At the end every accepted delivery has ended or waits for a person, and the
//! services' ledger balances.

mod balance;
mod faults;
mod outage;
mod parked;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::world::{PATIENCE, World};
use balance::Unbalanced;

/// The services, as their faults are called.
const SERVICES: [&str; 5] = ["account", "package", "third-party", "drone", "delivery"];

/// How many questions are asked at once.
const QUESTIONS: usize = 16;

/// A workflow, its agents and what else a world is configured with. Everything takes a fraction of
/// the time that it takes in the files as they are shipped.
struct Setting {
    agents: String,
    workflows: Vec<String>,
    more: String,
}

impl Setting {
    fn hasty() -> Self {
        let mut workflow = waybill_drone_delivery::WORKFLOW_YAML.to_owned();
        for (shipped, hasty) in [
            ("completeBy: 5s", "completeBy: 1s"),
            ("initial: 200ms", "initial: 50ms"),
            ("max: 30s", "max: 1s"),
            ("settle: 1s", "settle: 200ms"),
        ] {
            workflow = replaced(&workflow, shipped, hasty, usize::MAX);
        }
        // Agents of the first kind answer that they do not know; the others are past complete-by.
        let agents = replaced(
            waybill_drone_delivery::AGENTS_YAML,
            "concurrencyMax: 256\n",
            "concurrencyMax: 256\n      timeout: 600ms\n",
            3,
        );
        Self {
            agents,
            workflows: vec![workflow],
            more: String::new(),
        }
    }

    /// With faults that every start of the services begins with.
    fn with_faults(mut self, faults: &Value) -> Self {
        self.more.push_str("services:\n  faults:\n");
        for service in SERVICES {
            writeln!(self.more, "    {service}: {faults}").expect("a text takes whatever comes");
        }
        self
    }

    fn world(self) -> World {
        let world = World::new("");
        let write = |name: &str, text: &str| {
            std::fs::write(world.path(name), text).expect("the directory is writable");
            world.path(name).display().to_string()
        };
        let agents = write("agents.yaml", &self.agents);
        let files: Vec<String> = (0..)
            .zip(&self.workflows)
            .map(|(number, text): (u32, _)| write(&format!("workflow-{number}.yaml"), text))
            .collect();
        let config = format!(
            "partitions: 4\n\
             scheduler: {{ handOffAfter: 1s, timeoutGrace: 200ms }}\n\
             workflows: {{ builtIn: false, files: [{}] }}\n\
             agents: {{ builtIn: false, files: [{agents}] }}\n\
             {}",
            files.join(", "),
            self.more
        );
        write("waybill.yaml", &config);
        world
    }
}

/// `text` with the first `count` occurrences of `from` replaced, of which there must be one.
fn replaced(text: &str, from: &str, to: &str, count: usize) -> String {
    assert!(text.contains(from), "{from:?} is not in:\n{text}");
    text.replacen(from, to, count)
}

impl World {
    /// Changes the faults of a service.
    async fn put_faults(&self, service: &str, faults: &Value) {
        let url = self.url("services", &format!("/faults/{service}"));
        let answer = self.client.put(url).json(faults).send().await;
        let status = answer.expect("the services answer").status();
        assert!(status.is_success(), "{status} to {faults} for {service}");
    }

    /// Makes all services faultless, whatever they were configured with.
    async fn clear_faults(&self) {
        let none = json!({
            "errorRate": 0, "hangRate": 0, "doThenTimeoutRate": 0,
            "refuseRate": 0, "undoRefuseRate": 0,
        });
        for service in SERVICES {
            self.put_faults(service, &none).await;
        }
    }

    /// Sends these deliveries, some at once, and returns their ids in order.
    async fn deliver_each(&self, deliveries: impl IntoIterator<Item = Value>) -> Vec<String> {
        let sent = stream::iter(deliveries).map(|body| async move { self.deliver(&body).await });
        sent.buffered(QUESTIONS).collect().await
    }

    /// The operation as the API shows it; `None` while nobody answers.
    async fn operation(&self, id: &str) -> Option<Value> {
        let url = self.url("http", &format!("/v1/operations/{id}"));
        let answer = self.client.get(url).send().await.ok()?;
        answer
            .error_for_status()
            .ok()?
            .json()
            .await
            .ok()
            .filter(|body: &Value| body["state"].is_string())
    }

    /// Waits until every operation has ended or is parked, and returns how each one is then.
    async fn all_end(&self, ids: &[String]) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        let mut ends = vec![Value::Null; ids.len()];
        let mut open: Vec<usize> = (0..ids.len()).collect();
        loop {
            let asked = stream::iter(&open).map(|index| self.operation(&ids[*index]));
            let answers: Vec<Option<Value>> = asked.buffered(QUESTIONS).collect().await;
            let mut still_open = Vec::new();
            for (index, answer) in open.into_iter().zip(answers) {
                let has_ended = answer.as_ref().is_some_and(has_ended);
                ends[index] = answer.unwrap_or_default();
                if !has_ended {
                    still_open.push(index);
                }
            }
            open = still_open;
            let Some(first) = open.first() else {
                return ends;
            };
            assert!(
                Instant::now() < deadline,
                "{} of {} operations have not ended; one is {:#}\n{}",
                open.len(),
                ids.len(),
                ends[*first],
                self.log_tail()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until every operation has ended and the ledger agrees with how it did. What ended may
    /// move again: an effect that comes late is undone.
    async fn all_end_in_balance(&self, ids: &[String], remote: impl Fn(usize) -> bool) -> Ends {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ends = self.all_end(ids).await;
            let ledger = self.ledger().await;
            match balance::check(&ends, &ledger, &remote) {
                Ok(counts) => return counts,
                Err(Unbalanced(findings)) => assert!(
                    Instant::now() < deadline,
                    "the ledger does not balance:\n{findings}\n{}",
                    self.log_tail()
                ),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// The sum of a metric's samples that carry `labels`.
    async fn metric(&self, name: &str, labels: &str) -> f64 {
        self.samples(name, labels).await.into_iter().sum()
    }

    async fn samples(&self, name: &str, labels: &str) -> Vec<f64> {
        let answer = self.client.get(self.url("admin", "/metrics")).send().await;
        let answer = answer.expect("the admin port answers");
        let text = answer.text().await.expect("metrics are text");
        let of_name = text.lines().filter_map(|line| line.strip_prefix(name));
        of_name
            .filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
            .filter_map(|rest| rest.rsplit_once(' ')?.1.parse().ok())
            .collect()
    }
}

fn has_ended(operation: &Value) -> bool {
    matches!(
        operation["state"].as_str(),
        Some("Processed" | "Compensated" | "Cancelled" | "Error" | "CompensationFailed")
    )
}

/// How many operations ended in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Ends {
    processed: usize,
    compensated: usize,
    cancelled: usize,
    error: usize,
    compensation_failed: usize,
}
