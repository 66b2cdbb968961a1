//! How fast the requests of a connection arrive.
//!
//! Deliberately absent: a rate for each request of an HTTP/2 connection. A connection on which
//! requests keep arriving completely is in use, even if others on it arrive slowly.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Activity;

/// How long a listener waits for the rest of a request before its client can count as slow.
pub const SLOW_ARRIVAL: Duration = Duration::from_secs(2);
/// A client that sends less is slow: at a limit, its connection is replaced before idle ones. Only
/// time that the listener spends waiting for the client counts.
pub const SLOW_BYTES_PER_SECOND: u64 = 8 << 10;

/// A request that the client has not sent all of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arriving {
    /// When the listener began to wait for it.
    pub since: Instant,
    /// How many bytes of it have arrived.
    pub bytes: usize,
}

/// How much a connection has received since a request last arrived completely, or none was
/// incomplete.
#[derive(Default, Debug)]
pub(crate) struct Arrivals {
    bytes: u64,
    /// How long the connection has waited for its client, without the current wait.
    waited: Duration,
    waiting_since: Option<Instant>,
    /// Requests that have not arrived completely.
    incomplete: u32,
    /// Incomplete requests that the listener waits for.
    awaited: u32,
}

impl From<Option<Arriving>> for Arrivals {
    fn from(arriving: Option<Arriving>) -> Self {
        Self {
            bytes: arriving.map_or(0, |request| request.bytes as u64),
            waiting_since: arriving.map(|request| request.since),
            ..Self::default()
        }
    }
}

impl Arrivals {
    /// The bytes per second that the client sends, if it is slow.
    pub(crate) fn slow_rate(&self, now: Instant) -> Option<u64> {
        let waiting = self
            .waiting_since
            .map(|at| now.saturating_duration_since(at));
        let waited = self.waited + waiting.unwrap_or_default();
        if waited <= SLOW_ARRIVAL {
            return None;
        }
        let rate = u128::from(self.bytes) * 1_000_000 / waited.as_micros();
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        (rate < SLOW_BYTES_PER_SECOND).then_some(rate)
    }

    fn begin_wait(&mut self, now: Instant) {
        self.awaited += 1;
        self.waiting_since.get_or_insert(now);
    }

    fn end_wait(&mut self, now: Instant) {
        self.awaited -= 1;
        if self.awaited == 0
            && let Some(since) = self.waiting_since.take()
        {
            self.waited += now.saturating_duration_since(since);
        }
    }

    fn restart(&mut self, now: Instant) {
        self.bytes = 0;
        self.waited = Duration::ZERO;
        self.waiting_since = (self.awaited > 0).then_some(now);
    }
}

impl Activity {
    pub(crate) fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
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
        activity.arrivals().incomplete += 1;
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
        let is_awaited = std::mem::take(&mut self.is_awaited);
        let mut arrivals = self.activity.arrivals();
        arrivals.bytes += bytes as u64;
        if is_awaited {
            arrivals.end_wait(Instant::now());
        }
    }

    /// Reports that the body is complete.
    pub fn complete(self) {
        self.activity.arrivals().restart(Instant::now());
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut arrivals = self.activity.arrivals();
        if self.is_awaited {
            arrivals.end_wait(now);
        }
        arrivals.incomplete -= 1;
        if arrivals.incomplete == 0 {
            arrivals.restart(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{Connections, Limits};

    #[test]
    fn only_the_time_that_a_listener_waits_for_a_client_makes_it_slow() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut arrivals = Arrivals::default();
        arrivals.begin_wait(now);
        assert_eq!(arrivals.slow_rate(at(2)), None);
        assert_eq!(arrivals.slow_rate(at(3)), Some(0));
        arrivals.bytes = 4 * SLOW_BYTES_PER_SECOND - 1;
        assert_eq!(arrivals.slow_rate(at(4)), Some(SLOW_BYTES_PER_SECOND - 1));
        // The listener does not wait for the client here.
        arrivals.end_wait(at(3));
        assert_eq!(arrivals.slow_rate(at(100)), None);
        arrivals.begin_wait(at(100));
        assert_eq!(arrivals.slow_rate(at(101)), Some(SLOW_BYTES_PER_SECOND - 1));
        // Another request has arrived.
        arrivals.restart(at(101));
        assert_eq!(arrivals.slow_rate(at(103)), None);
        assert_eq!(arrivals.slow_rate(at(104)), Some(0));
    }

    #[test]
    fn a_body_that_arrives_or_is_dropped_makes_nobody_slow() {
        let limits = Limits {
            max: 1,
            per_address_max: 1,
            stall_timeout: None,
            unread_timeout: None,
            requests: None,
        };
        let peer = IpAddr::from([192, 0, 2, 1]);
        let all = Connections::new("test", limits);
        let place = all.admit(Instant::now(), peer, CancellationToken::new());
        let place = place.unwrap();
        let later = || Instant::now() + 2 * SLOW_ARRIVAL;
        let rate = || place.activity.arrivals().slow_rate(later());
        let mut first = place.begin_arrival();
        let mut second = place.begin_arrival();
        assert_eq!(rate(), None, "nothing is awaited");
        first.wait();
        second.wait();
        second.receive(1);
        assert_eq!(rate(), Some(0), "the first is awaited");
        second.complete();
        assert_eq!(rate(), Some(0), "the first is still awaited");
        drop(first);
        assert_eq!(rate(), None);
        assert_eq!(place.activity.arrivals().bytes, 0);
    }
}
