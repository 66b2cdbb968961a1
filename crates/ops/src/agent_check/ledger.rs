//! The ledger of the simulated services, read over HTTP.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::Client;
use reqwest::redirect::Policy;
use serde::Deserialize;
use waybill_agent_check::{EffectCounts, Ledger, LedgerError};
use waybill_engine::OperationId;

use crate::runtime::{Runtime, runtime};

/// The maximum time for an answer of the services.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Reads the ledger from `GET /ledger`.
pub(super) struct HttpLedger {
    runtime: Runtime,
    client: Client,
    address: String,
}

impl HttpLedger {
    pub(super) fn new(address: &str) -> anyhow::Result<Self> {
        let runtime = runtime()?;
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .timeout(ANSWER_PATIENCE)
            .build()
            .context("cannot create the HTTP client")?;
        Ok(Self {
            runtime,
            client,
            address: address.trim_end_matches('/').to_owned(),
        })
    }

    async fn entries(&self, operation: OperationId) -> Result<Vec<Entry>, reqwest::Error> {
        let url = format!("{}/ledger?operation={operation}", self.address);
        let answer = self.client.get(url).send().await?.error_for_status()?;
        answer.json().await
    }
}

impl Ledger for HttpLedger {
    fn effects(&self, operation: OperationId, step: &str) -> Result<EffectCounts, LedgerError> {
        let entries = self.runtime.block_on(self.entries(operation))?;
        let mut counts = EffectCounts::default();
        for entry in entries {
            if entry.step != step || entry.repeat {
                continue;
            }
            match entry.action {
                Action::Run => counts.made += 1,
                Action::Compensate => counts.undone += 1,
            }
        }
        Ok(counts)
    }
}

/// An entry of the ledger. The services leave out tombstones and refusals.
#[derive(Deserialize)]
struct Entry {
    step: String,
    action: Action,
    repeat: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Run,
    Compensate,
}
