//! Requests of a person who repairs operations, and their effects.

use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::setup::Setup;

impl Setup {
    /// Resets the faults of a service.
    pub async fn reset_faults(&self, service: &str) {
        let url = self.url("services", &format!("/faults/{service}"));
        let answer = self.client.delete(url).send().await;
        assert!(answer.is_ok_and(|answer| answer.status().is_success()));
    }

    /// Sends a request to the API and returns its answer.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let mut request = self.client.request(method, self.url("http", path));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.expect("the API answers");
        let status = answer.status();
        (status, answer.json().await.expect("answers are JSON"))
    }

    /// The operation as the API shows it.
    pub async fn shown(&self, id: &str) -> Value {
        let path = format!("/v1/operations/{id}");
        self.request(Method::GET, &path, None).await.1
    }

    /// Sends a verb, which must be accepted. Returns the operation after it.
    pub async fn verb(&self, id: &str, verb: &str, body: Value) -> Value {
        let path = format!("/v1/operations/{id}:{verb}");
        let (status, view) = self.request(Method::POST, &path, Some(body)).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{verb}: {view}");
        view
    }

    /// Waits until an operation is in this state, and returns it.
    pub async fn reaches(&self, id: &str, state: &str) -> Value {
        self.eventually(&format!("{id} is {state}"), async || {
            self.state(id).await.as_deref() == Some(state)
        })
        .await;
        self.shown(id).await
    }

    /// The steps of an operation with existing effects, and those with undone ones.
    pub async fn balance(&self, id: &str) -> (Vec<String>, Vec<String>) {
        let url = self.url("services", "/ledger/operations?limit=10000");
        let answer = self.client.get(url).send().await;
        let lines = answer.expect("the services answer").text().await;
        let lines = lines.expect("the ledger is text");
        let found = lines.lines().find_map(|line| {
            let line: Value = serde_json::from_str(line).expect("a line is JSON");
            (line["operation"] == id).then_some(line)
        });
        let line = found.unwrap_or_else(|| panic!("{id} is in the ledger"));
        let steps = |name: &str| -> Vec<String> {
            let steps = line[name].as_array().expect("steps are listed").iter();
            steps
                .map(|step| step.as_str().expect("a step has a name").to_owned())
                .collect()
        };
        (steps("standing"), steps("undone"))
    }

    /// Waits until the gauge of parked operations in this state has this value.
    pub async fn parked_become(&self, state: &str, count: f64) {
        self.eventually(&format!("{count} are parked in {state}"), async || {
            let label = format!("state=\"{state}\"");
            let index_shards = self.samples("waybill_parked_operations", &label).await;
            index_shards.len() == 4 && index_shards.iter().sum::<f64>() == count
        })
        .await;
    }

    /// The (type, state) of every event of an operation, up to its end.
    pub async fn events(&self, id: &str) -> Vec<(String, String)> {
        let url = self.url("http", &format!("/v1/operations/{id}/events"));
        let answer = self.client.get(url).send().await.expect("the API answers");
        assert_eq!(answer.status(), StatusCode::OK);
        let text = answer.text().await.expect("the stream ends");
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| {
            let event: Value = serde_json::from_str(data).expect("data is JSON");
            let word = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            (word("type"), word("state"))
        })
        .collect()
    }
}
