//! A connection to a server that a test can interrupt. While it is cut, data arrives later, as
//! after a network outage with retransmissions. It can also lose the server's answers: the server
//! performs requests whose answers never arrive.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A line, open at first.
pub struct Line {
    pub address: SocketAddr,
    state: watch::Sender<State>,
}

/// The state of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It forwards everything.
    Open,
    /// It forwards nothing until it is open again.
    Cut,
    /// It loses the server's answers. A connection that lost one is unusable, and is closed when
    /// the line opens again.
    Deaf,
}

/// In which direction something is carried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    FromServer,
}

impl Line {
    /// A line to `server` (`host:port`).
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let (state, of_line) = watch::channel(State::Open);
        let server = server.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(carry(
                    Direction::ToServer,
                    from_client,
                    to_server,
                    of_line.clone(),
                ));
                tokio::spawn(carry(
                    Direction::FromServer,
                    from_server,
                    to_client,
                    of_line.clone(),
                ));
            }
        });
        Self { address, state }
    }

    /// Changes the state.
    pub fn set(&self, state: State) {
        self.state.send_replace(state);
    }
}

async fn carry(
    direction: Direction,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let Ok(now) = state
            .wait_for(|state| *state != State::Cut)
            .await
            .map(|now| *now)
        else {
            break;
        };
        if now == State::Deaf && direction == Direction::FromServer {
            // After a gap the data stream would be invalid.
            let _ = state.wait_for(|state| *state == State::Open).await;
            break;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    // The peer may already have closed the connection.
    let _ = to.shutdown().await;
}
