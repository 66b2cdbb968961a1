//! One HTTP/1.1 connection at a time, opened again when it breaks.

use std::net::SocketAddr;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A connection to the API or the services.
pub struct Client {
    address: SocketAddr,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connection: None,
        }
    }

    /// Posts `body` and returns the status and the answer.
    pub async fn post(
        &mut self,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::post(path)
            .header(header::HOST, self.address.to_string())
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body))?;
        self.send(request).await
    }

    /// Gets what is there and returns the status and the answer.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::get(path)
            .header(header::HOST, self.address.to_string())
            .body(Full::default())?;
        self.send(request).await
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
        let answer = self.try_send(request).await;
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    async fn try_send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let address = self.address;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect(address).await?),
        };
        connection.ready().await.context("the connection is gone")?;
        let answer = connection.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, body))
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("{address} cannot be reached"))?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Ends with the connection; an error shows up as a failed request.
    tokio::spawn(connection);
    Ok(sender)
}
