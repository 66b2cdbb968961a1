//! The slot of one connection, on which it reports what happens.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use crate::{Activity, Arrival, Connections, Full, RequestGuard, micros_of};

/// An admitted connection. Dropping it makes room for another.
#[derive(Debug)]
pub struct ConnectionSlot {
    pub(crate) id: u64,
    pub(crate) source: IpAddr,
    pub(crate) all: Arc<Connections>,
    pub(crate) activity: Arc<Activity>,
    /// How many connections were open when this one was admitted, including it.
    pub(crate) open_then: usize,
}

impl ConnectionSlot {
    /// The part of `total` that this connection may count on for its lifetime: `total` divided by
    /// the number of connections that were open when it was admitted, within `each`.
    #[must_use]
    pub fn part_of(&self, total: usize, each: RangeInclusive<usize>) -> usize {
        (total / self.open_then).clamp(*each.start(), *each.end())
    }

    /// Reports when bytes were last received or sent, how many requests are in progress or
    /// arriving, whether the connection waits for the rest of one, and how many bytes it has
    /// received since the last report.
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

    /// Reports that a request has arrived. It is in progress until the returned guard is dropped.
    /// For connections that do not [`report`](Self::report) on their own.
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

    /// Begins to time the body of a request. For connections that do not [`report`](Self::report)
    /// on their own.
    #[must_use]
    pub fn begin_arrival(&self) -> Arrival {
        Arrival::new(Arc::clone(&self.activity))
    }

    /// Reports that the client has logged in.
    pub fn set_logged_in(&self) {
        self.activity.is_logged_in.store(true, Relaxed);
    }

    /// How many requests of this connection are in progress.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.activity.requests.load(Relaxed)
    }

    /// The [`WriteMonitor`] on which the connection reports a client that keeps it from writing.
    #[must_use]
    pub fn write_monitor(&self) -> WriteMonitor {
        WriteMonitor {
            all: Arc::clone(&self.all),
            activity: Arc::clone(&self.activity),
            is_blocked: false,
        }
    }

    /// Resolves once the client has left a ready answer unread for `timeout`, and there was no
    /// other traffic. A client that reads others in the meantime gives way only at a limit, as a
    /// slow one.
    pub async fn unread_for(&self, timeout: Duration) {
        let timeout_us = micros_of(Some(timeout));
        loop {
            tokio::time::sleep(timeout / 4).await;
            let silent_since = self.activity.last_traffic_us.load(Relaxed);
            let silent_us = self.all.micros(Instant::now()).saturating_sub(silent_since);
            if self.activity.departures().is_awaited() && silent_us > timeout_us {
                return;
            }
        }
    }

    /// Resolves when the connection must end.
    pub async fn closing(&self) {
        self.activity.closing.cancelled().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.all.locked().remove(self.id);
    }
}

/// How many of the written bytes a connection's socket accepts.
#[derive(Debug)]
pub struct WriteMonitor {
    all: Arc<Connections>,
    activity: Arc<Activity>,
    is_blocked: bool,
}

impl WriteMonitor {
    /// Reports whether the client's unread bytes keep the socket from accepting more. A client that
    /// reads need not read answers: the bytes that it reads may be a reply to its pings.
    pub fn set_blocked(&mut self, is_blocked: bool) {
        if self.is_blocked == is_blocked {
            return;
        }
        let now = Instant::now();
        let now_us = self.all.micros(now);
        self.activity.last_traffic_us.store(now_us, Relaxed);
        let mut departures = self.activity.departures();
        match is_blocked {
            true => departures.begin_wait(now),
            false => departures.end_wait(now),
        }
        self.is_blocked = is_blocked;
    }

    /// Reports bytes that the socket has accepted.
    pub fn wrote(&mut self, bytes: usize) {
        self.activity.departures().note_moved(bytes);
    }
}

impl Drop for WriteMonitor {
    fn drop(&mut self) {
        self.set_blocked(false);
    }
}
