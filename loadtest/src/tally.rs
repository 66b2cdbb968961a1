//! Counts and times of a group of requests, and the hash of their IDs.

use std::hash::Hasher;
use std::time::Duration;

use hdrhistogram::Histogram;

/// The counts of a group of requests.
#[derive(Clone)]
pub struct Tally {
    /// Accepted requests.
    pub accepted: u64,
    /// Ended operations.
    pub ended: u64,
    /// From the intended time to the acceptance, in microseconds.
    pub acceptance_us: Histogram<u64>,
    /// From the intended time to the first final state's arrival, in microseconds.
    pub end_to_end_us: Histogram<u64>,
}

impl Tally {
    /// An empty tally.
    pub(super) fn new() -> Self {
        let histogram = || Histogram::new(3).expect("3 significant digits are valid");
        Self {
            accepted: 0,
            ended: 0,
            acceptance_us: histogram(),
            end_to_end_us: histogram(),
        }
    }

    /// Counts a request, accepted this long after its intended time.
    pub(super) fn accept(&mut self, after: Duration) {
        self.accepted += 1;
        record(&mut self.acceptance_us, after);
    }

    /// Counts an operation, ended this long after its intended time.
    pub(super) fn end(&mut self, after: Duration) {
        self.ended += 1;
        record(&mut self.end_to_end_us, after);
    }
}

/// Adds a time. The histogram grows as needed, without a practical limit.
fn record(histogram: &mut Histogram<u64>, time: Duration) {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    histogram
        .record(us.max(1))
        .expect("a growing histogram takes every time");
}

/// IDs are random or already hashes, so any of their bits can be used.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            // The first half of an ID has its version and time.
            self.0 = (self.0.rotate_left(29) ^ u64::from_le_bytes(word))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
