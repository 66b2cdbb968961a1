//! A line to a server that can stand still: what is sent meanwhile arrives later, as when a network is
//! cut for a while and packets are sent again.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A line. It is open at first.
pub struct Line {
    pub address: SocketAddr,
    open: watch::Sender<bool>,
}

impl Line {
    /// A line to `server` (`host:port`).
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (open, is_open) = watch::channel(true);
        let server = server.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(carry(from_client, to_server, is_open.clone()));
                tokio::spawn(carry(from_server, to_client, is_open.clone()));
            }
        });
        Self { address, open }
    }

    /// Lets nothing through, or everything.
    pub fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let opened = is_open.wait_for(|open| *open).await.is_ok();
        if !opened || to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    // The other side may be gone already.
    let _ = to.shutdown().await;
}
