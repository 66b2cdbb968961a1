//! A request on its way through a queue.

use std::time::Duration;

use waybill_engine::{BootTime, Now, StepRequest, Timestamp};

use crate::deadline::Deadline;

/// A queued or running request.
#[derive(Debug)]
pub struct Work<S> {
    /// The request.
    pub request: StepRequest,
    /// Its origin.
    pub source: S,
    /// The memory that it counts for.
    pub bytes: usize,
    /// When it was sent, if its record says so.
    pub sent: Option<Timestamp>,
    /// When it was received.
    pub received: BootTime,
    /// Its complete-by.
    pub deadline: Deadline,
}

impl<S> Work<S> {
    /// A request that is received at `now`.
    #[must_use]
    pub fn new(
        request: StepRequest,
        source: S,
        bytes: usize,
        sent: Option<Timestamp>,
        now: Now,
    ) -> Self {
        Self {
            deadline: Deadline::new(request.complete_by, now),
            request,
            source,
            bytes,
            sent,
            received: now.boot,
        }
    }

    /// How long ago it was sent; if that is unknown, how long ago it was received.
    #[must_use]
    pub fn age(&self, now: Now) -> Duration {
        let since_received = || now.boot.since(self.received);
        self.sent
            .map_or_else(since_received, |sent| now.wall.since(sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::{at, request};

    #[test]
    fn the_age_of_work_counts_from_its_record() {
        let mut work = Work::new(request(1, at(1_000)), (), 0, None, at(0));
        assert_eq!(work.age(at(30)), Duration::from_millis(30));
        work.sent = Some(at(0).wall - Duration::from_millis(500));
        assert_eq!(work.age(at(30)), Duration::from_millis(530));
    }
}
