//! Schedulers that stand still for a while, told so on the admin port.

use std::net::SocketAddr;

use anyhow::Context as _;
use hyper::StatusCode;
use serde::Deserialize;

use crate::load::client::Client;

/// All schedulers of a process, standing still.
pub struct Schedulers {
    client: Client,
    readers: Vec<Reader>,
}

#[derive(Deserialize)]
struct Reader {
    reader: u32,
}

impl Schedulers {
    /// Stops them in order.
    ///
    /// # Errors
    ///
    /// If one does not stop.
    pub async fn stop(admin: SocketAddr) -> anyhow::Result<Self> {
        let mut client = Client::new(admin);
        let (_, body) = client.get("/schedulers").await?;
        let readers: Vec<Reader> = serde_json::from_slice(&body)
            .with_context(|| format!("{admin} does not say which schedulers there are"))?;
        let mut schedulers = Self { client, readers };
        schedulers.tell(r#"{"running": false}"#).await?;
        Ok(schedulers)
    }

    /// Starts them again.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub async fn start(mut self) -> anyhow::Result<()> {
        self.tell(r#"{"running": true}"#).await
    }

    async fn tell(&mut self, what: &'static str) -> anyhow::Result<()> {
        for Reader { reader } in &self.readers {
            let path = format!("/schedulers/{reader}");
            let (status, body) = self.client.put(&path, what.into()).await?;
            let said = String::from_utf8_lossy(&body);
            anyhow::ensure!(
                status == StatusCode::OK,
                "scheduler {reader} answered PUT {what} with {status}: {said}"
            );
        }
        Ok(())
    }
}
