//! Which connection makes room for a new one.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use tokio::time::Instant;

use crate::{Connections, Full, Open, micros_of};

/// Why a connection may be closed for a new one. The lowest is closed first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Replaceable {
    /// It has not logged in. The number rises with the time of its admission.
    NotLoggedIn(u64),
    /// Its client sends or reads so many bytes per second.
    Slow(u64),
    /// It has been idle since this microsecond.
    Idle(u64),
    /// Its address has at least twice as many connections as that of the new one will have, and it
    /// waits for its client, which was last active in this microsecond.
    OneOfMany(u64),
}

impl Connections {
    /// Closes a connection in favour of a new one from `source`, at the limit `full`.
    pub(crate) fn replace_one(
        &self,
        open: &mut Open,
        now: Instant,
        source: IpAddr,
        full: Full,
    ) -> Result<(), Full> {
        let replaceable = self.replaceable(open, now, source, full);
        let Some(entry) = replaceable.and_then(|id| open.remove(id)) else {
            return Err(full);
        };
        entry.activity.closing.cancel();
        self.replaced.fetch_add(1, Relaxed);
        Ok(())
    }

    fn replaceable(&self, open: &Open, now: Instant, source: IpAddr, full: Full) -> Option<u64> {
        let own = open.sources.connections_of(source);
        let stall_us = micros_of(self.limits.stall_timeout);
        let now_us = self.micros(now);
        let candidates = open.by_id.iter().filter_map(|(&id, entry)| {
            let connections = match full {
                Full::Address if entry.source != source => return None,
                Full::Address => own,
                Full::All => open.sources.connections_of(entry.source),
            };
            if connections < own {
                return None;
            }
            let activity = &entry.activity;
            let silent_since = activity.last_traffic_us.load(Relaxed);
            let (sends, sent) = activity.arrivals().state(now);
            let (reads, read) = activity.departures().state(now);
            let is_busy = reads || activity.requests.load(Relaxed) > 0;
            let reason = if !activity.is_logged_in.load(Relaxed) {
                Replaceable::NotLoggedIn(id)
            } else if let Some(rate) = sent.into_iter().chain(read).min() {
                Replaceable::Slow(rate)
            } else if !is_busy || now_us.saturating_sub(silent_since) > stall_us {
                Replaceable::Idle(silent_since)
            } else if (sends || reads) && 2 * (own + 1) <= connections {
                Replaceable::OneOfMany(silent_since)
            } else {
                return None;
            };
            Some((reason, id))
        });
        candidates.min().map(|(_, id)| id)
    }
}
