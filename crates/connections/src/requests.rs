//! Limits the requests that connections have in progress.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::time::Instant;

use crate::{Activity, Connections, Full};

/// How many requests may be in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLimits {
    /// On each connection, regardless of the others; at least 1.
    pub each: u32,
    /// Beyond those, on all connections together.
    pub shared: usize,
    /// The part of the shared ones that connections from one address may use.
    pub shared_per_address: usize,
}

/// The requests in progress beyond the few that each connection may have.
#[derive(Default, Debug)]
pub(crate) struct Shared {
    pub(crate) requests: usize,
    pub(crate) by_source: HashMap<IpAddr, usize>,
}

impl Shared {
    pub(crate) fn take(&mut self, source: IpAddr, limits: RequestLimits) -> Result<(), Full> {
        if self.requests >= limits.shared {
            return Err(Full::All);
        }
        let of_source = self.by_source.entry(source).or_default();
        if *of_source >= limits.shared_per_address {
            return Err(Full::Address);
        }
        *of_source += 1;
        self.requests += 1;
        Ok(())
    }

    pub(crate) fn give_back(&mut self, source: IpAddr) {
        if let Entry::Occupied(mut of_source) = self.by_source.entry(source) {
            *of_source.get_mut() -= 1;
            self.requests -= 1;
            if *of_source.get() == 0 {
                of_source.remove();
            }
        }
    }
}

impl Connections {
    /// Counts one more request of a connection, if there is room for it. Requests of a connection
    /// beyond `each` are shared; their number changes only under the lock.
    pub(crate) fn begin(&self, activity: &Activity, source: IpAddr) -> Result<(), Full> {
        let Some(limits) = self.limits.requests else {
            activity.requests.fetch_add(1, Relaxed);
            return Ok(());
        };
        let requests = &activity.requests;
        let one_of_each = |n| (n < limits.each).then_some(n + 1);
        if requests.fetch_update(Relaxed, Relaxed, one_of_each).is_ok() {
            return Ok(());
        }
        let mut shared = self.shared();
        // A request within `each` may have ended in the meantime.
        if requests.fetch_update(Relaxed, Relaxed, one_of_each).is_ok() {
            return Ok(());
        }
        if let Err(full) = shared.take(source, limits) {
            drop(shared);
            self.requests_refused.fetch_add(1, Relaxed);
            self.log_no_room(source, limits, full);
            return Err(full);
        }
        let one_beyond = |n| (n >= limits.each).then_some(n + 1);
        while requests.fetch_update(Relaxed, Relaxed, one_beyond).is_err() {
            if requests.fetch_update(Relaxed, Relaxed, one_of_each).is_ok() {
                shared.give_back(source);
                break;
            }
        }
        Ok(())
    }

    /// Removes a request of a connection from the count.
    fn end(&self, activity: &Activity, source: IpAddr) {
        let requests = &activity.requests;
        let Some(limits) = self.limits.requests else {
            requests.fetch_sub(1, Relaxed);
            return;
        };
        let one_of_each = |n| (n <= limits.each).then(|| n - 1);
        if requests.fetch_update(Relaxed, Relaxed, one_of_each).is_ok() {
            return;
        }
        let mut shared = self.shared();
        if requests
            .fetch_update(Relaxed, Relaxed, one_of_each)
            .is_err()
        {
            requests.fetch_sub(1, Relaxed);
            shared.give_back(source);
        }
    }
}

/// A request that is in progress on a connection.
#[derive(Debug)]
pub struct RequestGuard {
    pub(crate) all: Arc<Connections>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) source: IpAddr,
    pub(crate) is_unread: bool,
}

impl RequestGuard {
    /// Reports whether a part of the answer was handed over and the next one waits for the client
    /// to read on.
    pub fn set_unread(&mut self, is_unread: bool) {
        if !is_unread && !self.is_unread {
            return;
        }
        let now = self.touch();
        match (self.is_unread, is_unread) {
            (false, true) => self.activity.departures().begin_wait(now),
            (true, false) => self.activity.departures().end_wait(now),
            (true, true) | (false, false) => {}
        }
        self.is_unread = is_unread;
    }

    fn touch(&self) -> Instant {
        let now = Instant::now();
        let now_us = self.all.micros(now);
        self.activity.last_traffic_us.store(now_us, Relaxed);
        now
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let now = self.touch();
        if self.is_unread {
            self.activity.departures().end_wait(now);
        }
        self.all.end(&self.activity, self.source);
    }
}
