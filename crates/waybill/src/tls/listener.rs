//! A listener for servers that take connections one by one: handshakes go on beside each other.
//!
//! What must hold: handshakes are bounded, and those that dawdle keep nobody out. Where there are as many as there may
//! be, whoever comes takes the place of the one that has taken the longest: a probe gets in whoever else connects.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::{Stream, Tls};

/// How long a handshake may take.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// How many may be under way.
const HANDSHAKES_MAX: usize = 256;
/// How long to wait before accepting again when the system is out of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Gives out connections whose handshake is done.
pub(crate) struct Listener {
    socket: TcpListener,
    tls: Tls,
    handshakes: JoinSet<io::Result<(Stream, SocketAddr)>>,
    /// Those under way and some that have ended, in the order in which they began.
    begun: VecDeque<AbortHandle>,
}

impl Listener {
    /// On this socket.
    pub(crate) fn new(socket: TcpListener, tls: Tls) -> Self {
        Self {
            socket,
            tls,
            handshakes: JoinSet::new(),
            begun: VecDeque::new(),
        }
    }

    /// Begins a handshake with whoever has connected.
    fn secure(&mut self, socket: TcpStream, from: SocketAddr) {
        self.begun.retain(|begun| !begun.is_finished());
        if self.begun.len() >= HANDSHAKES_MAX
            && let Some(longest) = self.begun.pop_front()
        {
            longest.abort();
        }
        let tls = self.tls.clone();
        self.begun.push_back(self.handshakes.spawn(async move {
            let secured = tokio::time::timeout(HANDSHAKE_PATIENCE, tls.accept(socket));
            Ok((secured.await??, from))
        }));
    }
}

impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        loop {
            tokio::select! {
                // What is done goes first, so that no more wait to be taken than are under way.
                biased;
                Some(ended) = self.handshakes.join_next() => match ended {
                    Ok(Ok(secured)) => return secured,
                    Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
                    Err(error) if error.is_cancelled() => {
                        tracing::debug!("a handshake made room for another");
                    }
                    Err(error) => tracing::error!(%error, "a handshake panicked"),
                },
                accepted = self.socket.accept() => match accepted {
                    Ok((socket, from)) if self.tls.is_on() => self.secure(socket, from),
                    Ok((socket, from)) => return (Stream::Plain(socket), from),
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

#[cfg(test)]
mod tests {
    use axum::serve::Listener as _;

    use super::super::certificate::Certificate;
    use super::*;
    use crate::config::TlsConfig;

    #[tokio::test]
    async fn whoever_comes_gets_in_though_as_many_dawdle_as_there_is_room_for() {
        let certificate = Certificate::new();
        let directory = tempfile::tempdir().unwrap();
        let (cert_file, key_file) = certificate.write(directory.path());
        let config = TlsConfig {
            cert_file: Some(cert_file),
            key_file: Some(key_file),
        };
        let tls = Tls::load("admin.tls", &config).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut listener = Listener::new(socket, tls);
        let serving = tokio::spawn(async move { listener.accept().await.1 });
        let mut dawdlers = Vec::new();
        for _ in 0..=HANDSHAKES_MAX {
            dawdlers.push(TcpStream::connect(address).await.unwrap());
        }
        let connecting = certificate.connect(address, b"\x08http/1.1");
        let soon = HANDSHAKE_PATIENCE / 2;
        let connected = tokio::time::timeout(soon, connecting).await.unwrap();
        let served = tokio::time::timeout(soon, serving).await.unwrap();
        assert_eq!(served.unwrap(), connected.get_ref().local_addr().unwrap());
    }
}
