//! The open connections of a listener, and which of them makes room for a new one.
//!
//! What must hold: idle connections do not block new ones. At the limit a new connection replaces
//! the one that has been idle longest; at the limit of one address, the longest idle one of that
//! address. A connection on which a request is in progress or arriving is not idle, unless it has
//! had no traffic for longer than the listener allows. Connections that have not logged in, where a
//! login is expected, are replaced first, and those whose clients send a request or read an answer
//! [slowly](SLOW_BYTES_PER_SECOND) second, before idle ones.
//!
//! A new connection replaces none of an address that has fewer connections than its own. If there
//! is none of these, a connection from an address that has, with it, at most half of the
//! connections of another replaces one of that other address that waits for its client. So clients
//! with many connections keep no probe out.
//!
//! Each connection may have a few requests in progress; further ones count against a limit that all
//! connections share. Slow clients do not withhold the memory for large requests and answers from
//! others: see [`Buffers`].
//!
//! Deliberately absent: sockets. A listener asks for a [`ConnectionSlot`] per connection, reports
//! what happens on it, and closes the connection once the slot is cancelled.

mod buffers;
mod client_pace;
mod replacement;
mod requests;
mod slot;
mod sources;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::buffers::{Buffers, Permit, Reservation, SMALL_BUFFER_BYTES};
pub use self::client_pace::{Arrival, ClientPace, SLOW_AFTER, SLOW_BYTES_PER_SECOND};
use self::requests::Shared;
pub use self::requests::{RequestGuard, RequestLimits};
pub use self::slot::{ConnectionSlot, WriteMonitor};
use self::sources::Sources;
pub use self::sources::source_of;

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
    /// A connection without traffic for longer than this counts as idle even if a request is in
    /// progress on it. `None` if the connection ends such requests itself.
    pub stall_timeout: Option<Duration>,
    /// Whether each connection begins with a login. One that has not logged in yet is replaced
    /// before any that has.
    pub expects_login: bool,
    /// How many requests may be in progress; `None` if connections have one at a time.
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
    /// Requests that are in progress or arriving.
    requests: AtomicU32,
    is_logged_in: AtomicBool,
    /// The requests that the client sends.
    arrivals: Mutex<ClientPace>,
    /// The answers with a part that is ready and waits for the client to read on.
    departures: Mutex<ClientPace>,
    closing: CancellationToken,
}

/// A limit that is reached. If it refuses a new connection, no open one may be closed for it.
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
    /// Connections that were closed to make room for a new one, so far.
    pub replaced: u64,
    /// New connections that were not admitted so far, because no open one could be closed for them.
    pub refused: u64,
    /// Requests in progress beyond the few that each connection may have.
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

    /// Returns a slot for a connection that `peer` opened at `now`. The connection must end once
    /// `closing` is cancelled. Warns when a limit is reached.
    ///
    /// # Errors
    ///
    /// If a limit is reached, and no open connection may be closed for it.
    pub fn admit(
        self: &Arc<Self>,
        now: Instant,
        peer: IpAddr,
        closing: CancellationToken,
    ) -> Result<ConnectionSlot, Full> {
        let admitted = self.slot(now, peer, closing);
        if admitted.is_err() {
            self.refused.fetch_add(1, Relaxed);
        }
        self.log_full(peer, admitted.as_ref().map(|&(_, replaced_at)| replaced_at));
        admitted.map(|(slot, _)| slot)
    }

    /// Like [`Self::admit`], for a connection that could not be admitted before. If it still
    /// cannot, that is neither counted nor logged again.
    ///
    /// # Errors
    ///
    /// If the connection still cannot be admitted.
    pub fn readmit(
        self: &Arc<Self>,
        now: Instant,
        peer: IpAddr,
        closing: CancellationToken,
    ) -> Result<ConnectionSlot, Full> {
        let (slot, replaced_at) = self.slot(now, peer, closing)?;
        self.log_full(peer, Ok(replaced_at));
        Ok(slot)
    }

    /// The open connections of the address of a client.
    #[must_use]
    pub fn connections_of(&self, peer: IpAddr) -> usize {
        self.locked().sources.connections_of(source_of(peer))
    }

    /// A slot, and the limit at which another connection was closed for it.
    fn slot(
        self: &Arc<Self>,
        now: Instant,
        peer: IpAddr,
        closing: CancellationToken,
    ) -> Result<(ConnectionSlot, Option<Full>), Full> {
        let source = source_of(peer);
        let mut open = self.locked();
        let reached = if open.sources.connections_of(source) >= self.limits.per_address_max {
            Some(Full::Address)
        } else {
            (open.by_id.len() >= self.limits.max).then_some(Full::All)
        };
        if let Some(full) = reached {
            self.replace_one(&mut open, now, source, full)?;
        }
        let activity = Arc::new(Activity {
            last_traffic_us: AtomicU64::new(self.micros(now)),
            requests: AtomicU32::new(0),
            is_logged_in: AtomicBool::new(!self.limits.expects_login),
            arrivals: Mutex::default(),
            departures: Mutex::default(),
            closing,
        });
        let id = open.insert(Connection {
            source,
            activity: Arc::clone(&activity),
        });
        let open_then = open.by_id.len();
        drop(open);
        let slot = ConnectionSlot {
            id,
            source,
            all: Arc::clone(self),
            activity,
            open_then,
        };
        Ok((slot, reached))
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
                "closed a connection for a new one: its address has reached its limit"
            ),
            Ok(Some(Full::All)) => tracing::warn!(
                listener,
                max,
                "closed a connection for a new one: the listener has reached its limit"
            ),
            Err(Full::Address) => tracing::warn!(
                listener,
                %address,
                max = per_address_max,
                "no room for a new connection: its address has reached its limit, and none of its \
                 connections may be closed for it"
            ),
            Err(Full::All) => tracing::warn!(
                listener,
                max,
                "no room for a new connection: the listener has reached its limit, and no open \
                 connection may be closed for it"
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

    /// The requests in progress on the connection that has the most. Looks at each connection.
    #[must_use]
    pub fn requests_of_busiest(&self) -> u32 {
        let open = self.locked();
        let requests = open.by_id.values();
        let requests = requests.map(|entry| entry.activity.requests.load(Relaxed));
        requests.max().unwrap_or(0)
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

#[cfg(test)]
mod tests;
