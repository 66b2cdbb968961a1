//! Faults of the services for the duration of a run.

use std::net::SocketAddr;

use anyhow::Context as _;
use hyper::StatusCode;

use crate::load::client::Client;
use crate::scenario::Scenario;

/// Current faults, until they are removed.
pub struct InForce {
    client: Client,
    services: Vec<String>,
}

impl InForce {
    /// Applies a scenario's faults to the services.
    ///
    /// # Errors
    ///
    /// If faults cannot be applied. The ones applied so far are removed.
    pub async fn put(
        scenario: &Scenario,
        services: Option<SocketAddr>,
    ) -> anyhow::Result<Option<Self>> {
        if scenario.faults.is_empty() {
            return Ok(None);
        }
        let services = services
            .context("the scenario has faults: give the address of the services with --services")?;
        let mut in_force = Self {
            client: Client::new(services),
            services: Vec::new(),
        };
        for (service, faults) in &scenario.faults {
            let body = serde_json::to_vec(faults)?;
            in_force.services.push(service.clone());
            let put = in_force.client.put(&path(service), body.into()).await;
            if let Err(error) = put.and_then(answered_well) {
                in_force.remove().await?;
                return Err(error.context(format!("cannot set the faults of {service}")));
            }
        }
        Ok(Some(in_force))
    }

    /// Restores the configured faults of the services.
    ///
    /// # Errors
    ///
    /// If a service fails. The other services are restored.
    pub async fn remove(mut self) -> anyhow::Result<()> {
        let mut removed = Ok(());
        for service in &self.services {
            let answer = self.client.delete(&path(service)).await;
            if let Err(error) = answer.and_then(answered_well) {
                removed = Err(error.context(format!("cannot remove the faults of {service}")));
            }
        }
        removed
    }
}

fn path(service: &str) -> String {
    format!("/faults/{service}")
}

fn answered_well<B: AsRef<[u8]>>((status, body): (StatusCode, B)) -> anyhow::Result<()> {
    let message = String::from_utf8_lossy(body.as_ref());
    anyhow::ensure!(
        status.is_success(),
        "the services answered {status}: {message}"
    );
    Ok(())
}
