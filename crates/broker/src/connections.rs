//! The connections that are open, and which of them gives way to another.
//!
//! What must hold: idle connections keep nobody out. Where there are as many as there may be, a new one takes
//! the place of the one that has been idle for longest. A connection on which a request is under way, or arrives,
//! is not idle, unless nothing has moved on it for longer than a request or an answer may take.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::locked;

/// All connections of a broker.
pub(crate) struct Connections {
    max: usize,
    stall_timeout: Duration,
    started: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    by_id: HashMap<u64, Arc<Activity>>,
    next_id: u64,
}

/// What a connection last did.
struct Activity {
    /// Microseconds after the start of the broker.
    last_traffic_us: AtomicU64,
    is_busy: AtomicBool,
    closing: CancellationToken,
}

impl Connections {
    /// At most `max` at once. A request or an answer takes at most `stall_timeout`.
    pub(crate) fn new(max: usize, stall_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            max,
            stall_timeout,
            started: Instant::now(),
            open: Mutex::default(),
        })
    }

    /// A place for a connection that is new at `now`, and has to end when `closing` is cancelled. `None` if
    /// there are too many and none of them is idle.
    pub(crate) fn admit(
        self: &Arc<Self>,
        now: Instant,
        closing: CancellationToken,
    ) -> Option<Place> {
        let mut open = locked(&self.open);
        if open.by_id.len() >= self.max {
            let id = self.to_give_way(&open, now)?;
            if let Some(idle) = open.by_id.remove(&id) {
                idle.closing.cancel();
            }
        }
        let id = open.next_id;
        open.next_id += 1;
        let activity = Arc::new(Activity {
            last_traffic_us: AtomicU64::new(self.micros(now)),
            is_busy: AtomicBool::new(false),
            closing,
        });
        open.by_id.insert(id, Arc::clone(&activity));
        Some(Place {
            id,
            all: Arc::clone(self),
            activity,
        })
    }

    fn to_give_way(&self, open: &Open, now: Instant) -> Option<u64> {
        let now = self.micros(now);
        let stall = u64::try_from(self.stall_timeout.as_micros()).unwrap_or(u64::MAX);
        let silent_since = |activity: &Activity| activity.last_traffic_us.load(Relaxed);
        let idle = open.by_id.iter().filter(|(_, activity)| {
            !activity.is_busy.load(Relaxed) || now.saturating_sub(silent_since(activity)) > stall
        });
        let longest = idle.min_by_key(|(_, activity)| silent_since(activity));
        longest.map(|(&id, _)| id)
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_micros()).unwrap_or(u64::MAX)
    }
}

/// The place of one connection. Dropping it makes room for another.
pub(crate) struct Place {
    id: u64,
    all: Arc<Connections>,
    activity: Arc<Activity>,
}

impl Place {
    /// Takes note of when bytes were last received or sent, and whether a request is under way or arrives.
    pub(crate) fn note(&self, last_traffic: Instant, is_busy: bool) {
        let at = self.all.micros(last_traffic);
        self.activity.last_traffic_us.store(at, Relaxed);
        self.activity.is_busy.store(is_busy, Relaxed);
    }

    /// Resolves when the connection has to end.
    pub(crate) async fn closing(&self) {
        self.activity.closing.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.all.open).by_id.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(60);

    #[test]
    fn the_longest_idle_connection_gives_way_and_a_busy_one_does_not() {
        let all = Connections::new(3, STALL);
        let closing = [(); 4].map(|()| CancellationToken::new());
        let now = all.started;
        let admit = |n: usize| all.admit(now, closing[n].clone());
        let places: Vec<Place> = (0..3).map(|n| admit(n).unwrap()).collect();
        // The first waits for an answer, and the second was used later than the third.
        let later = now + Duration::from_secs(1);
        places[0].note(now, true);
        places[1].note(later, false);
        let fourth = all.admit(later, closing[3].clone()).unwrap();
        let closed = closing.each_ref().map(CancellationToken::is_cancelled);
        assert_eq!(closed, [false, false, true, false]);

        // With all of them busy nobody gives way, before one has stalled.
        places[1].note(later, true);
        fourth.note(later, true);
        let next = |at| all.admit(at, CancellationToken::new());
        assert!(next(now + STALL).is_none());
        assert!(next(now + STALL + Duration::from_millis(1)).is_some());
        assert!(closing[0].is_cancelled());
    }

    #[test]
    fn a_connection_that_ends_makes_room() {
        let all = Connections::new(1, STALL);
        let now = all.started;
        let first = all.admit(now, CancellationToken::new()).unwrap();
        first.note(now, true);
        assert!(all.admit(now, CancellationToken::new()).is_none());
        drop(first);
        assert!(all.admit(now, CancellationToken::new()).is_some());
    }
}
