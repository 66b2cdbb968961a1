//! The open connections of a listener, and which of them makes room for a new one.
//!
//! What must hold: idle connections do not block new ones. At the limit a new connection replaces
//! the one that has been idle longest; at the limit of one address, the longest idle one of that
//! address. A connection on which a request is under way or arriving is not idle, unless it has had
//! no traffic for longer than the listener allows, or its client has left answers unread for that
//! long. Connections whose clients send a request [slowly](SLOW_BYTES_PER_SECOND) are replaced
//! first, before idle ones.
//!
//! Each connection may have a few requests under way; further ones count against a limit that all
//! connections share. Slow clients do not withhold the memory for large requests and answers from
//! others: see [`Buffers`].
//!
//! Deliberately absent: sockets. A listener asks for a [`Place`] per connection, reports what happens on it,
//! and closes the connection once the place is cancelled.

mod arrivals;
mod buffers;
mod requests;
mod sources;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::arrivals::{Arrival, Arrivals, SLOW_ARRIVAL, SLOW_BYTES_PER_SECOND};
pub use self::buffers::{Buffers, Permit, Reservation, SMALL_BUFFER_BYTES};
use self::requests::Shared;
pub use self::requests::{RequestGuard, RequestLimits};
use self::sources::{Sources, source_of};

/// The share of one address in a limit, three quarters: it cannot take everything.
#[must_use]
pub const fn share_of_one_address(max: usize) -> usize {
    max - max / 4
}

/// How many connections there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// In all.
    pub max: usize,
    /// From one address. For IPv6 that is a /64 network, the smallest that a site is assigned.
    pub per_address_max: usize,
    /// A connection without traffic for longer than this counts as idle even if a request is under
    /// way on it. `None` if the connection ends such requests itself.
    pub stall_timeout: Option<Duration>,
    /// A connection counts as idle if its client has left a ready answer unread for longer than
    /// this.
    pub unread_timeout: Option<Duration>,
    /// How many requests may be under way; `None` if connections have one at a time.
    pub requests: Option<RequestLimits>,
}

/// The open connections of one listener.
#[derive(Debug)]
pub struct Connections {
    listener: &'static str,
    limits: Limits,
    started: Instant,
    open: Mutex<Open>,
    shared: Mutex<Shared>,
    replaced: AtomicU64,
    refused: AtomicU64,
    requests_refused: AtomicU64,
}

#[derive(Default, Debug)]
struct Open {
    by_id: HashMap<u64, Connection>,
    sources: Sources,
    next_id: u64,
}

#[derive(Debug)]
struct Connection {
    source: IpAddr,
    activity: Arc<Activity>,
}

/// What a connection last did.
#[derive(Debug)]
struct Activity {
    /// Microseconds since the set of connections was made.
    last_traffic_us: AtomicU64,
    /// Requests that are under way or arriving.
    requests: AtomicU32,
    arrivals: Mutex<Arrivals>,
    /// Answers with a part that is ready and waits for the client to read on.
    unread: AtomicU32,
    closing: CancellationToken,
}

/// A limit that is reached. If it refuses a new connection, no idle or slow one could be closed
/// instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// The address has as many connections as it may have.
    Address,
    /// There are as many connections as there may be.
    All,
}

/// How many connections there are, and were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Connections that are open.
    pub open: usize,
    /// Connections of the address that has the most.
    pub per_address: usize,
    /// Idle or slow connections that were closed to make room for a new one, so far.
    pub replaced: u64,
    /// New connections that were refused, so far.
    pub refused: u64,
    /// Requests under way beyond the few that each connection may have.
    pub requests_shared: usize,
    /// The shared requests of the address that has the most.
    pub requests_shared_per_address: usize,
    /// Requests that were refused for lack of room, so far.
    pub requests_refused: u64,
}

impl Connections {
    /// A set without connections. Log lines name its listener.
    #[must_use]
    pub fn new(listener: &'static str, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            listener,
            limits,
            started: Instant::now(),
            open: Mutex::default(),
            shared: Mutex::default(),
            replaced: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            requests_refused: AtomicU64::new(0),
        })
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns a place for a connection that `peer` opened at `now`. The connection must end once
    /// `closing` is cancelled. Warns when a limit is reached.
    ///
    /// # Errors
    ///
    /// If a limit is reached, and no connection is idle or slow that could be closed instead.
    pub fn admit(
        self: &Arc<Self>,
        now: Instant,
        peer: IpAddr,
        closing: CancellationToken,
    ) -> Result<Place, Full> {
        let admitted = self.place(now, peer, closing);
        self.log_full(peer, admitted.as_ref().map(|&(_, replaced_at)| replaced_at));
        admitted.map(|(place, _)| place)
    }

    /// A place, and the limit at which another connection was closed for it.
    fn place(
        self: &Arc<Self>,
        now: Instant,
        peer: IpAddr,
        closing: CancellationToken,
    ) -> Result<(Place, Option<Full>), Full> {
        let source = source_of(peer);
        let mut open = self.locked();
        let replaced_at = if open.sources.connections_of(source) >= self.limits.per_address_max {
            let is_of_source = |entry: &Connection| entry.source == source;
            self.replace_one(&mut open, now, is_of_source, Full::Address)?;
            Some(Full::Address)
        } else if open.by_id.len() >= self.limits.max {
            self.replace_one(&mut open, now, |_| true, Full::All)?;
            Some(Full::All)
        } else {
            None
        };
        let activity = Arc::new(Activity {
            last_traffic_us: AtomicU64::new(self.micros(now)),
            requests: AtomicU32::new(0),
            arrivals: Mutex::default(),
            unread: AtomicU32::new(0),
            closing,
        });
        let id = open.insert(Connection {
            source,
            activity: Arc::clone(&activity),
        });
        let open_then = open.by_id.len();
        drop(open);
        let place = Place {
            id,
            source,
            all: Arc::clone(self),
            activity,
            open_then,
        };
        Ok((place, replaced_at))
    }

    /// Warns of a reached limit. The line is the same for every connection at one limit, so that
    /// the log suppresses repetitions.
    fn log_full(&self, address: IpAddr, replaced_at: Result<Option<Full>, &Full>) {
        let (listener, max) = (self.listener, self.limits.max);
        let per_address_max = self.limits.per_address_max;
        match replaced_at {
            Ok(None) => {}
            Ok(Some(Full::Address)) => tracing::warn!(
                listener,
                %address,
                max = per_address_max,
                "closed an idle or slow connection for a new one: its address has reached its limit"
            ),
            Ok(Some(Full::All)) => tracing::warn!(
                listener,
                max,
                "closed an idle or slow connection for a new one: the listener has reached its limit"
            ),
            Err(Full::Address) => tracing::warn!(
                listener,
                %address,
                max = per_address_max,
                "refused a new connection: its address has reached its limit, and no connection \
                 from it is idle or slow"
            ),
            Err(Full::All) => tracing::warn!(
                listener,
                max,
                "refused a new connection: the listener has reached its limit, and no connection \
                 is idle or slow"
            ),
        }
    }

    /// How many connections there are, and were.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (requests_shared, requests_shared_per_address) = {
            let shared = self.shared();
            let most = shared.by_source.values().max();
            (shared.requests, most.copied().unwrap_or(0))
        };
        let open = self.locked();
        Counts {
            open: open.by_id.len(),
            per_address: open.sources.most,
            replaced: self.replaced.load(Relaxed),
            refused: self.refused.load(Relaxed),
            requests_shared,
            requests_shared_per_address,
            requests_refused: self.requests_refused.load(Relaxed),
        }
    }

    /// The requests under way on the connection that has the most. Looks at each connection.
    #[must_use]
    pub fn requests_of_busiest(&self) -> u32 {
        let open = self.locked();
        let requests = open.by_id.values();
        let requests = requests.map(|entry| entry.activity.requests.load(Relaxed));
        requests.max().unwrap_or(0)
    }

    fn replace_one(
        &self,
        open: &mut Open,
        now: Instant,
        may_close: impl Fn(&Connection) -> bool,
        full: Full,
    ) -> Result<(), Full> {
        let replaceable = self.replaceable(open, now, may_close);
        let Some(entry) = replaceable.and_then(|id| open.remove(id)) else {
            self.refused.fetch_add(1, Relaxed);
            return Err(full);
        };
        entry.activity.closing.cancel();
        self.replaced.fetch_add(1, Relaxed);
        Ok(())
    }

    fn replaceable(
        &self,
        open: &Open,
        now: Instant,
        may_close: impl Fn(&Connection) -> bool,
    ) -> Option<u64> {
        let now_us = self.micros(now);
        let stall_us = micros_of(self.limits.stall_timeout);
        let unread_us = micros_of(self.limits.unread_timeout);
        let silent_since = |entry: &Connection| entry.activity.last_traffic_us.load(Relaxed);
        let is_idle = |entry: &Connection| {
            let silent_us = now_us.saturating_sub(silent_since(entry));
            let is_unread = entry.activity.unread.load(Relaxed) > 0;
            let is_busy = is_unread || entry.activity.requests.load(Relaxed) > 0;
            !is_busy || silent_us > stall_us || is_unread && silent_us > unread_us
        };
        // Slow senders come first, the slowest before the others.
        let order = |entry: &Connection| match entry.activity.arrivals().slow_rate(now) {
            Some(bytes_per_second) => Some((0, bytes_per_second)),
            None => is_idle(entry).then(|| (1, silent_since(entry))),
        };
        let candidates = open.by_id.iter().filter(|(_, entry)| may_close(entry));
        let candidates = candidates.filter_map(|(&id, entry)| Some((order(entry)?, id)));
        candidates.min().map(|(_, id)| id)
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_micros()).unwrap_or(u64::MAX)
    }

    fn locked(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns that a request was refused for lack of room.
    fn log_no_room(&self, address: IpAddr, limits: RequestLimits, full: Full) {
        let listener = self.listener;
        match full {
            Full::Address => tracing::warn!(
                listener,
                %address,
                max = limits.shared_per_address,
                "refused a request: its address has too many requests in progress"
            ),
            Full::All => tracing::warn!(
                listener,
                max = limits.shared,
                "refused a request: the listener has too many requests in progress"
            ),
        }
    }
}

impl Open {
    fn insert(&mut self, entry: Connection) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.sources.add(entry.source);
        self.by_id.insert(id, entry);
        id
    }

    fn remove(&mut self, id: u64) -> Option<Connection> {
        let entry = self.by_id.remove(&id)?;
        self.sources.remove(entry.source);
        Some(entry)
    }
}

/// A time-out in microseconds; an absent one is never reached.
fn micros_of(timeout: Option<Duration>) -> u64 {
    let micros = timeout.map(|timeout| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX));
    micros.unwrap_or(u64::MAX)
}

/// The place of one connection. Dropping it makes room for another.
#[derive(Debug)]
pub struct Place {
    id: u64,
    source: IpAddr,
    all: Arc<Connections>,
    activity: Arc<Activity>,
    /// How many connections were open when this one was admitted, including it.
    open_then: usize,
}

impl Place {
    /// The part of `total` that this connection may count on for its lifetime: `total` divided by
    /// the number of connections that were open when it was admitted, within `each`.
    #[must_use]
    pub fn part_of(&self, total: usize, each: RangeInclusive<usize>) -> usize {
        (total / self.open_then).clamp(*each.start(), *each.end())
    }

    /// Reports when bytes were last received or sent, how many requests are under way or arriving,
    /// whether the connection waits for the rest of one, and how many bytes it has received since
    /// the last report.
    pub fn report(
        &self,
        last_traffic: Instant,
        requests: usize,
        is_awaited: bool,
        received_bytes: usize,
    ) {
        let mut arrivals = self.activity.arrivals();
        arrivals.report(last_traffic, is_awaited, received_bytes);
        drop(arrivals);
        let at = self.all.micros(last_traffic);
        self.activity.last_traffic_us.store(at, Relaxed);
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.activity.requests.store(requests, Relaxed);
    }

    /// Reports that a request has arrived. It is under way until the returned guard is dropped. For connections that do
    /// not [`report`](Self::report) by themselves.
    ///
    /// # Errors
    ///
    /// If the limit of requests is reached, which is also logged.
    pub fn begin_request(&self) -> Result<RequestGuard, Full> {
        self.all.begin(&self.activity, self.source)?;
        Ok(RequestGuard {
            all: Arc::clone(&self.all),
            activity: Arc::clone(&self.activity),
            source: self.source,
            is_unread: false,
        })
    }

    /// Begins to time the body of a request. For connections that do not [`report`](Self::report) by themselves.
    #[must_use]
    pub fn begin_arrival(&self) -> Arrival {
        Arrival::new(Arc::clone(&self.activity))
    }

    /// How many requests of this connection are under way.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.activity.requests.load(Relaxed)
    }

    /// The [`Outlet`] on which the connection reports a client that keeps it from writing.
    #[must_use]
    pub fn outlet(&self) -> Outlet {
        Outlet {
            all: Arc::clone(&self.all),
            activity: Arc::clone(&self.activity),
            is_blocked: false,
        }
    }

    /// Resolves once the client has left a ready answer unread for `timeout`.
    pub async fn unread_for(&self, timeout: Duration) {
        let timeout_us = micros_of(Some(timeout));
        loop {
            tokio::time::sleep(timeout / 4).await;
            let silent_since = self.activity.last_traffic_us.load(Relaxed);
            let silent_us = self.all.micros(Instant::now()).saturating_sub(silent_since);
            if self.activity.unread.load(Relaxed) > 0 && silent_us > timeout_us {
                return;
            }
        }
    }

    /// Resolves when the connection has to end.
    pub async fn closing(&self) {
        self.activity.closing.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.locked().remove(self.id);
    }
}

/// Whether a connection's socket accepts what is written to it.
#[derive(Debug)]
pub struct Outlet {
    all: Arc<Connections>,
    activity: Arc<Activity>,
    is_blocked: bool,
}

impl Outlet {
    /// Reports whether the client's unread bytes keep the socket from accepting more. A client that
    /// reads need not read answers: what it reads may be a reply to its pings.
    pub fn set_blocked(&mut self, is_blocked: bool) {
        if self.is_blocked == is_blocked {
            return;
        }
        let now = self.all.micros(Instant::now());
        self.activity.last_traffic_us.store(now, Relaxed);
        match is_blocked {
            true => self.activity.unread.fetch_add(1, Relaxed),
            false => self.activity.unread.fetch_sub(1, Relaxed),
        };
        self.is_blocked = is_blocked;
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.set_blocked(false);
    }
}

#[cfg(test)]
mod tests;
