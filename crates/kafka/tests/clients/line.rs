//! A proxy to a broker that can delay and damage the broker's answers.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::raw::POISON_LENGTH;

pub(crate) struct Line {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    answers: Arc<Answers>,
}

/// The magic byte is at 16 in the batch, the first record at 61, and its value, after a key of
/// three bytes, at 9 in the record.
const VALUE: usize = 61 + 9;
const VALUE_BEHIND_MAGIC: usize = VALUE - 16;

/// How the proxy changes the broker's answers.
#[derive(Default)]
struct Answers {
    delay_ms: AtomicU64,
    damaged: Mutex<Vec<Vec<u8>>>,
    poisoned: Mutex<Option<Vec<u8>>>,
    connections: AtomicUsize,
}

impl Line {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            listener,
            answers: Arc::default(),
        }
    }

    pub(crate) fn lead_to(&self, broker: SocketAddr) {
        let (listener, answers) = (self.listener.try_clone().unwrap(), self.answers.clone());
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                answers.connections.fetch_add(1, Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(broker) else {
                    continue;
                };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(from, to, |_| {}));
                let answers = answers.clone();
                thread::spawn(move || carry(server, client, |answer| answers.change(answer)));
            }
        });
    }

    /// Delays every answer of the broker by this much from now on.
    pub(crate) fn slow_down(&self, delay: Duration) {
        let delay_ms = delay.as_millis().try_into().unwrap();
        self.answers.delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    /// Damages, in answers, the batches of these values and no others. Each value must be the only
    /// one of its batch, and at most 40 bytes long. A client that does not know the batch's format
    /// continues right after it.
    pub(crate) fn damage(&self, values: &[&[u8]]) {
        let values = values.iter().map(|value| value.to_vec()).collect();
        *self.answers.damaged.lock().unwrap() = values;
    }

    /// Makes the batch of this value, in answers, one whose record cannot be parsed, as if it had
    /// been written so. `None` stops that. The value must be as for [`Line::damage`].
    pub(crate) fn poison(&self, value: Option<&[u8]>) {
        *self.answers.poisoned.lock().unwrap() = value.map(<[u8]>::to_vec);
    }

    /// The number of connections opened so far.
    pub(crate) fn connections(&self) -> usize {
        self.answers.connections.load(Ordering::Relaxed)
    }
}

impl Answers {
    fn change(&self, answer: &mut [u8]) {
        thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)));
        for value in self.damaged.lock().unwrap().iter() {
            let at = (0..answer.len()).filter(|at| answer[*at..].starts_with(value));
            for at in at.collect::<Vec<_>>() {
                let magic = &mut answer[at - VALUE_BEHIND_MAGIC];
                assert_eq!(*magic, 2, "the format of the batch");
                *magic = 3;
            }
        }
        for value in self.poisoned.lock().unwrap().iter() {
            let at = (0..answer.len()).filter(|at| answer[*at..].starts_with(value));
            for at in at.collect::<Vec<_>>() {
                answer[at - 1] = POISON_LENGTH;
                let batch = &mut answer[at - VALUE..];
                let length = u32::from_be_bytes(batch[8..12].try_into().unwrap());
                let checksum = crc32c::crc32c(&batch[21..12 + length as usize]);
                batch[17..21].copy_from_slice(&checksum.to_be_bytes());
            }
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8])) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        change(&mut buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The other side may have closed already.
    _ = to.shutdown(Shutdown::Both);
}
