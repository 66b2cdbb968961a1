//! Waiting until operations have ended, in balance with the services' ledger.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::balance::{self, Unbalanced};
use super::setting::SERVICES;
use crate::setup::{PATIENCE, Setup};

/// The number of concurrent requests.
pub const QUESTIONS: usize = 16;

impl Setup {
    /// Changes the faults of a service.
    pub async fn put_faults(&self, service: &str, faults: &Value) {
        let url = self.url("services", &format!("/faults/{service}"));
        let answer = self.client.put(url).json(faults).send().await;
        let status = answer.expect("the services answer").status();
        assert!(status.is_success(), "{status} to {faults} for {service}");
    }

    /// Removes the faults of all services, including the configured ones.
    pub async fn clear_faults(&self) {
        let none = json!({
            "errorRate": 0, "hangRate": 0, "doThenTimeoutRate": 0,
            "refuseRate": 0, "undoRefuseRate": 0,
        });
        for service in SERVICES {
            self.put_faults(service, &none).await;
        }
    }

    /// Sends these deliveries, some concurrently, and returns their IDs in order.
    pub async fn deliver_each(&self, deliveries: impl IntoIterator<Item = Value>) -> Vec<String> {
        let sent = stream::iter(deliveries).map(|body| async move { self.deliver(&body).await });
        sent.buffered(QUESTIONS).collect().await
    }

    /// The operation as the API shows it; `None` while the API is unavailable.
    pub async fn operation(&self, id: &str) -> Option<Value> {
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

    /// Waits until every operation has ended or is parked, and returns their states. Asks for few
    /// at a time, the oldest first: requests that arrive too early cost the servers more than the
    /// operations do.
    pub async fn all_end(&self, ids: &[String]) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        let mut ends = vec![Value::Null; ids.len()];
        let mut open: VecDeque<usize> = (0..ids.len()).collect();
        while !open.is_empty() {
            let first: Vec<usize> = open.drain(..open.len().min(QUESTIONS)).collect();
            let asked = stream::iter(&first).map(|index| self.operation(&ids[*index]));
            let answers: Vec<Option<Value>> = asked.buffered(QUESTIONS).collect().await;
            let mut still_open = Vec::new();
            for (index, answer) in first.into_iter().zip(answers) {
                let has_ended = answer.as_ref().is_some_and(has_ended);
                ends[index] = answer.unwrap_or_default();
                if !has_ended {
                    still_open.push(index);
                }
            }
            let Some(first) = still_open.first() else {
                continue;
            };
            assert!(
                Instant::now() < deadline,
                "{} of {} operations have not ended, and {} were not requested again; one is {:#}\n{}",
                still_open.len(),
                ids.len(),
                open.len(),
                ends[*first],
                self.log_tail()
            );
            for index in still_open.into_iter().rev() {
                open.push_front(index);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        ends
    }

    /// Waits until every operation has ended and the ledger agrees with its state. An ended
    /// operation may change again, because late effects are undone.
    pub async fn all_end_in_balance(&self, ids: &[String], remote: impl Fn(usize) -> bool) -> Ends {
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
}

fn has_ended(operation: &Value) -> bool {
    matches!(
        operation["state"].as_str(),
        Some("Processed" | "Compensated" | "Cancelled" | "Error" | "CompensationFailed")
    )
}

/// The number of operations by final state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ends {
    /// In the state `Processed`.
    pub processed: usize,
    /// In the state `Compensated`.
    pub compensated: usize,
    /// In the state `Cancelled`.
    pub cancelled: usize,
    /// In the state `Error`.
    pub error: usize,
    /// In the state `CompensationFailed`.
    pub compensation_failed: usize,
}
