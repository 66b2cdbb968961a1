//! How fast a client sends its requests, and reads its answers.
//!
//! What must hold: a client that sends or reads slowly counts as slow, even if it completes a small
//! request, or reads a small answer, now and then. So neither restarts the measurement.
//!
//! Deliberately absent: a rate for each request of an HTTP/2 connection.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Activity;

/// How long a listener waits for the rest of a request, or for the reading of an answer, before the
/// client can count as slow.
pub const SLOW_AFTER: Duration = Duration::from_secs(2);
/// A client that sends or reads less is slow: at a limit, its connection is replaced before idle
/// ones. Only time that the listener spends waiting for the client counts.
pub const SLOW_BYTES_PER_SECOND: u64 = 8 << 10;
/// At most this many bytes of the past count. Socket buffers take bytes that nobody reads, so that
/// a client that stops is slow after eight seconds at the latest, however much it moved before.
const COUNTED_BYTES_MAX: u64 = 8 * SLOW_BYTES_PER_SECOND;

/// How much a client sends, or reads, while its server waits for it.
#[derive(Default, Debug)]
pub struct ClientPace {
    bytes: u64,
    /// How long the connection has waited for its client, without the current wait.
    waited: Duration,
    waiting_since: Option<Instant>,
    /// When the last wait ended.
    waited_until: Option<Instant>,
    /// Incomplete requests, or unread answers, that the listener waits for.
    awaited: u32,
}

impl ClientPace {
    /// The bytes per second that the client moves, if it is slow: less than
    /// [`SLOW_BYTES_PER_SECOND`] for longer than [`SLOW_AFTER`].
    #[must_use]
    pub fn slow_rate(&self, now: Instant) -> Option<u64> {
        let waiting = self
            .waiting_since
            .map(|at| now.saturating_duration_since(at));
        let waited = self.waited + waiting.unwrap_or_default();
        if waited <= SLOW_AFTER {
            return None;
        }
        let rate = u128::from(self.bytes) * 1_000_000 / waited.as_micros();
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        (rate < SLOW_BYTES_PER_SECOND).then_some(rate)
    }

    /// Takes a report at `at`: the bytes since the one before, and whether the server waits for the
    /// client.
    pub fn report(&mut self, at: Instant, is_awaited: bool, bytes: usize) {
        self.note_moved(bytes);
        match (self.awaited > 0, is_awaited) {
            (false, true) => self.begin_wait(at),
            (true, false) => self.end_wait(at),
            (true, true) => self.count_wait(at),
            (false, false) => {}
        }
    }

    /// Whether the server waits for the client, and the rate of a slow one.
    pub(crate) fn state(&self, now: Instant) -> (bool, Option<u64>) {
        (self.is_awaited(), self.slow_rate(now))
    }

    /// Whether the server waits for the client.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Counts bytes that the client has sent or read.
    pub(crate) fn note_moved(&mut self, bytes: usize) {
        self.bytes = (self.bytes + bytes as u64).min(COUNTED_BYTES_MAX);
    }

    pub(crate) fn begin_wait(&mut self, now: Instant) {
        self.awaited += 1;
        if self.awaited > 1 {
            return;
        }
        let pause = self
            .waited_until
            .map(|at| now.saturating_duration_since(at));
        if pause.is_none_or(|pause| pause >= SLOW_AFTER) {
            self.bytes = 0;
            self.waited = Duration::ZERO;
        }
        self.waiting_since = Some(now);
    }

    pub(crate) fn end_wait(&mut self, now: Instant) {
        self.count_wait(now);
        self.awaited -= 1;
        if self.awaited == 0 {
            self.waiting_since = None;
            self.waited_until = Some(now);
        }
    }

    /// Counts the current wait so far. The more distant past counts for less.
    fn count_wait(&mut self, now: Instant) {
        if let Some(since) = self.waiting_since.replace(now) {
            self.waited += now.saturating_duration_since(since);
        }
        while self.waited > 2 * SLOW_AFTER {
            self.waited /= 2;
            self.bytes /= 2;
        }
    }
}

impl Activity {
    pub(crate) fn arrivals(&self) -> MutexGuard<'_, ClientPace> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn departures(&self) -> MutexGuard<'_, ClientPace> {
        let departures = self.departures.lock();
        departures.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of a request that arrives. Dropping it ends the wait for the rest.
#[derive(Debug)]
pub struct Arrival {
    activity: Arc<Activity>,
    is_awaited: bool,
}

impl Arrival {
    pub(crate) fn new(activity: Arc<Activity>) -> Self {
        Self {
            activity,
            is_awaited: false,
        }
    }

    /// Reports that the request cannot continue before the client sends more.
    pub fn wait(&mut self) {
        if !self.is_awaited {
            self.is_awaited = true;
            self.activity.arrivals().begin_wait(Instant::now());
        }
    }

    /// Reports bytes that have arrived.
    pub fn receive(&mut self, bytes: usize) {
        self.activity.arrivals().note_moved(bytes);
        self.end_wait();
    }

    fn end_wait(&mut self) {
        if std::mem::take(&mut self.is_awaited) {
            self.activity.arrivals().end_wait(Instant::now());
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.end_wait();
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{Connections, Limits};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_the_time_that_a_listener_waits_for_a_client_makes_it_slow() {
        let now = Instant::now();
        let at = |seconds| now + seconds * SECOND;
        let mut arrivals = ClientPace::default();
        arrivals.report(at(0), true, 1);
        assert_eq!(arrivals.slow_rate(at(2)), None);
        assert_eq!(arrivals.slow_rate(at(3)), Some(0));
        let fast = usize::try_from(3 * SLOW_BYTES_PER_SECOND).unwrap();
        arrivals.report(at(3), true, fast);
        assert_eq!(arrivals.slow_rate(at(3)), None);
        // From here on the listener takes its own time.
        arrivals.report(at(3), false, 0);
        assert_eq!(arrivals.slow_rate(at(4)), None);
        arrivals.report(at(4), true, 0);
        assert_eq!(arrivals.slow_rate(at(4)), None);
        assert!(arrivals.slow_rate(at(5)).is_some());
        // After a pause the measurement begins again.
        arrivals.report(at(5), false, 0);
        arrivals.report(at(8), true, 0);
        assert_eq!(arrivals.slow_rate(at(10)), None);
        assert_eq!(arrivals.slow_rate(at(11)), Some(0));
    }

    #[test]
    fn small_requests_that_each_take_their_time_make_a_client_slow() {
        let now = Instant::now();
        let mut arrivals = ClientPace::default();
        for request in 0..3 {
            let begin = now + request * Duration::from_millis(1_700);
            arrivals.report(begin, true, 50);
            arrivals.report(begin + Duration::from_millis(1_690), false, 50);
        }
        assert!(arrivals.slow_rate(now + 5 * SECOND).is_some());
    }

    #[test]
    fn a_large_burst_excuses_a_client_for_eight_seconds_at_most() {
        let now = Instant::now();
        let mut pace = ClientPace::default();
        pace.report(now, true, 0);
        pace.report(now, true, 100 << 20);
        assert_eq!(pace.slow_rate(now + 7 * SECOND), None);
        assert!(pace.slow_rate(now + 9 * SECOND).is_some());
    }

    #[test]
    fn a_client_that_was_fast_for_long_counts_as_slow_within_a_minute() {
        let now = Instant::now();
        let mut arrivals = ClientPace::default();
        for second in 0..100 {
            arrivals.report(now + second * SECOND, true, 10 << 20);
        }
        for second in 100..160 {
            arrivals.report(now + second * SECOND, true, 1);
        }
        assert!(arrivals.slow_rate(now + 160 * SECOND).is_some());
    }

    #[test]
    fn a_body_that_arrives_or_is_dropped_is_not_awaited() {
        let limits = Limits {
            max: 1,
            per_address_max: 1,
            stall_timeout: None,
            expects_login: false,
            requests: None,
        };
        let peer = IpAddr::from([192, 0, 2, 1]);
        let all = Connections::new("test", limits);
        let slot = all.admit(Instant::now(), peer, CancellationToken::new());
        let slot = slot.unwrap();
        let later = || Instant::now() + 2 * SLOW_AFTER;
        let rate = || slot.activity.arrivals().slow_rate(later());
        let mut first = slot.begin_arrival();
        let mut second = slot.begin_arrival();
        assert_eq!(rate(), None, "nothing is awaited");
        first.wait();
        second.wait();
        second.receive(1);
        assert_eq!(rate(), Some(0), "the first is awaited");
        drop(second);
        assert_eq!(rate(), Some(0), "the first is still awaited");
        drop(first);
        assert_eq!(rate(), None);
    }
}
