//! A listener for servers that take connections one by one: handshakes go on beside each other.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Stream, Tls};

/// How long a handshake may take.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// How many may be under way; whoever else connects waits.
const HANDSHAKES_MAX: usize = 64;
/// How long to wait before accepting again when the system is out of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Gives out connections whose handshake is done.
pub(crate) struct Listener {
    socket: TcpListener,
    tls: Tls,
    handshakes: JoinSet<io::Result<(Stream, SocketAddr)>>,
}

impl Listener {
    /// On this socket.
    pub(crate) fn new(socket: TcpListener, tls: Tls) -> Self {
        Self {
            socket,
            tls,
            handshakes: JoinSet::new(),
        }
    }
}

impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        loop {
            let has_room = self.handshakes.len() < HANDSHAKES_MAX;
            tokio::select! {
                Some(ended) = self.handshakes.join_next() => match ended {
                    Ok(Ok(secured)) => return secured,
                    Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
                    Err(error) => tracing::error!(%error, "a handshake panicked"),
                },
                accepted = self.socket.accept(), if has_room => match accepted {
                    Ok((socket, from)) => {
                        let tls = self.tls.clone();
                        self.handshakes.spawn(async move {
                            let handshake = tls.accept(socket);
                            let secured = tokio::time::timeout(HANDSHAKE_PATIENCE, handshake);
                            Ok((secured.await??, from))
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "no connection could be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}
