//! The services under test, and a client.

use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::{Client, Method, Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use waybill_drone_delivery::services::{Services, ServicesSettings};

/// Long enough for any event that does happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough to show that nothing happens.
pub const SILENCE: Duration = Duration::from_millis(300);

pub struct Site {
    pub services: Services,
    pub client: Client,
}

impl Site {
    pub async fn start(directory: &Path) -> Self {
        Self::start_with(config(directory)).await
    }

    pub async fn start_with(config: ServicesSettings) -> Self {
        let services = Services::start(config).await.expect("the services start");
        let client = Client::builder()
            .timeout(PATIENCE)
            .build()
            .expect("a client");
        Self { services, client }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.services.address())
    }

    pub async fn send(&self, method: &str, path: &str, key: &str, body: Value) -> Response {
        self.request(method, path)
            .header("Idempotency-Key", key)
            .json(&body)
            .send()
            .await
            .expect("an answer")
    }

    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.client.request(method, self.url(path))
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.request("GET", path).send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        answer.json().await.expect("JSON")
    }

    pub async fn faults(&self, service: &str, faults: Value) {
        let path = format!("/faults/{service}");
        let answer = self.request("PUT", &path).json(&faults).send().await;
        assert_eq!(answer.expect("an answer").status(), StatusCode::OK);
    }

    /// The ledger of one operation as (step, action, repeat).
    pub async fn entries(&self, operation: &str) -> Vec<(String, String, bool)> {
        let entries = self.get(&format!("/ledger?operation={operation}")).await;
        let entries = entries.as_array().expect("an array").clone();
        entries
            .iter()
            .map(|entry| {
                let step = entry["step"].as_str().expect("a step");
                assert_eq!(entry["operation"], operation);
                assert_eq!(entry["key"], format!("{operation}/{step}"));
                assert!(entry["at"].as_str().is_some_and(|at| at.ends_with('Z')));
                (
                    step.to_owned(),
                    entry["action"].as_str().expect("an action").to_owned(),
                    entry["repeat"].as_bool().expect("a flag"),
                )
            })
            .collect()
    }

    /// All ledger entries of one operation, including those without effect, as (step, kind).
    pub async fn all_entries(&self, operation: &str) -> Vec<(String, &'static str)> {
        let path = format!("/ledger?operation={operation}&tombstones=true");
        let entries = self.get(&path).await;
        let outcome = |entry: &Value| match (
            entry["action"].as_str(),
            entry["repeat"] == true,
            entry["tombstone"] == true,
            entry["refused"] == true,
        ) {
            (Some("run"), false, false, false) => "made",
            (Some("run"), true, false, false) => "made again",
            (Some("run"), false, false, true) => "refused",
            (Some("compensate"), false, false, false) => "undone",
            (Some("compensate"), true, false, false) => "undone again",
            (Some("compensate"), false, true, false) => "barred",
            _ => panic!("{entry} says nothing that makes sense"),
        };
        let entries = entries.as_array().expect("an array");
        entries
            .iter()
            .map(|entry| {
                let step = entry["step"].as_str().expect("a step");
                (step.to_owned(), outcome(entry))
            })
            .collect()
    }

    /// Lines of JSON.
    pub async fn lines(&self, path: &str) -> Vec<Value> {
        let answer = self.request("GET", path).send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
        let text = answer.text().await.expect("text");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    }

    /// Waits until the ledger of an operation has this many entries.
    pub async fn wait_for_entries(&self, operation: &str, count: usize) {
        self.wait_for(async || self.entries(operation).await.len() == count)
            .await;
    }

    pub async fn wait_for(&self, holds: impl AsyncFn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds().await {
            assert!(Instant::now() < end, "what was waited for never came");
            tokio::task::yield_now().await;
        }
    }
}

pub fn config(directory: &Path) -> ServicesSettings {
    ServicesSettings::new(([127, 0, 0, 1], 0).into(), directory.to_owned())
}

pub fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

pub fn entry(step: &str, action: &str, repeat: bool) -> (String, String, bool) {
    (step.to_owned(), action.to_owned(), repeat)
}

pub async fn code(answer: Response) -> (u16, String) {
    let status = answer.status().as_u16();
    assert_eq!(
        answer.headers()["content-type"],
        "application/problem+json",
        "{status}"
    );
    let problem: Value = answer.json().await.expect("JSON");
    assert_eq!(problem["status"], status);
    for field in ["type", "title", "detail"] {
        assert!(problem[field].is_string(), "{problem}");
    }
    (status, problem["code"].as_str().expect("a code").to_owned())
}

/// Ends the services as `kill -9` would, without a message or a write.
pub fn kill(site: Site, runtime: Runtime) {
    std::mem::forget(site.services);
    drop(runtime);
}

pub fn locations(pickup: &str, drop_off: &str) -> Value {
    json!({ "pickupLocation": pickup, "dropOffLocation": drop_off })
}
