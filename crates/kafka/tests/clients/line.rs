//! A line to a broker that may be slow.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) struct Line {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    delay_ms: Arc<AtomicU64>,
}

impl Line {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            listener,
            delay_ms: Arc::default(),
        }
    }

    pub(crate) fn lead_to(&self, broker: SocketAddr) {
        let (listener, delay_ms) = (self.listener.try_clone().unwrap(), self.delay_ms.clone());
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(broker) else {
                    continue;
                };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(from, to, &AtomicU64::new(0)));
                let delay_ms = delay_ms.clone();
                thread::spawn(move || carry(server, client, &delay_ms));
            }
        });
    }

    /// Lets every answer of the broker take this much longer from now on.
    pub(crate) fn slow_down(&self, delay: Duration) {
        let delay_ms = delay.as_millis().try_into().unwrap();
        self.delay_ms.store(delay_ms, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay_ms: &AtomicU64) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        thread::sleep(Duration::from_millis(delay_ms.load(Ordering::Relaxed)));
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The other side may be gone already.
    _ = to.shutdown(Shutdown::Both);
}
