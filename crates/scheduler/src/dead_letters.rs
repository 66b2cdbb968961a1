//! The limit on dead letters in flight.
//!
//! A record that is no request may take a few bytes in its batch; its dead letter, with headers and
//! what the client keeps of it, takes about two kilobytes. A log of such records would fill the
//! producer's queue with hundreds of megabytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many dead letters of a process may wait for their acknowledgement.
pub(crate) const DEAD_LETTERS_MAX: usize = 10_000;

/// Acknowledgements come in batches, a few milliseconds apart.
const PAUSE: Duration = Duration::from_millis(1);

/// Counts what is in flight, up to a limit.
#[derive(Debug)]
pub(crate) struct InFlight {
    max: usize,
    count: Arc<AtomicUsize>,
}

/// The place of a dead letter in flight. It is free again once this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl InFlight {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            count: Arc::default(),
        }
    }

    /// Takes a place. Blocks the calling thread until one is free, but not beyond `until`.
    pub(crate) fn place(&self, until: Instant) -> Option<Place> {
        loop {
            if self.count.fetch_add(1, Ordering::Relaxed) < self.max {
                return Some(Place(self.count.clone()));
            }
            self.count.fetch_sub(1, Ordering::Relaxed);
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_once_it_is_dropped() {
        let in_flight = InFlight::new(2);
        let past = Instant::now();
        let first = in_flight.place(past).expect("none is taken");
        let _second = in_flight.place(past).expect("one is taken");
        assert!(in_flight.place(past).is_none(), "both are taken");
        drop(first);
        let _third = in_flight.place(past).expect("one is taken");
        assert!(in_flight.place(past).is_none(), "both are taken");
    }

    #[test]
    fn a_thread_waits_for_a_place() {
        let in_flight = InFlight::new(1);
        let first = in_flight.place(Instant::now()).expect("none is taken");
        let until = Instant::now() + Duration::from_secs(60);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| in_flight.place(until).is_some());
            drop(first);
            assert!(waiting.join().unwrap());
        });
    }
}
