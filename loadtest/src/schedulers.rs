//! Stops schedulers for a while, over the admin port.

use std::net::SocketAddr;

use anyhow::Context as _;
use hyper::StatusCode;
use serde::Deserialize;

use crate::load::client::Client;

/// All schedulers of a process, stopped.
pub struct Schedulers {
    client: Client,
    shards: Vec<Shard>,
}

#[derive(Deserialize)]
struct Shard {
    shard: u32,
}

impl Schedulers {
    /// Stops the schedulers gracefully.
    ///
    /// # Errors
    ///
    /// If one does not stop.
    pub async fn stop(admin: SocketAddr) -> anyhow::Result<Self> {
        let mut client = Client::new(admin);
        let (_, body) = client.get("/schedulers").await?;
        let shards: Vec<Shard> = serde_json::from_slice(&body)
            .with_context(|| format!("cannot read the schedulers of {admin}"))?;
        let mut schedulers = Self { client, shards };
        schedulers.put_all(r#"{"running": false}"#).await?;
        Ok(schedulers)
    }

    /// Starts them again.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub async fn start(mut self) -> anyhow::Result<()> {
        self.put_all(r#"{"running": true}"#).await
    }

    async fn put_all(&mut self, what: &'static str) -> anyhow::Result<()> {
        for Shard { shard } in &self.shards {
            let path = format!("/schedulers/{shard}");
            let (status, body) = self.client.put(&path, what.into()).await?;
            let message = String::from_utf8_lossy(&body);
            anyhow::ensure!(
                status == StatusCode::OK,
                "scheduler {shard} answered PUT {what} with {status}: {message}"
            );
        }
        Ok(())
    }
}
