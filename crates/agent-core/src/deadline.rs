//! Until when an attempt may run and be answered.

use std::time::Duration;

use waybill_engine::{BootTime, Now, Timestamp};

/// A request's complete-by on both clocks. Once either has reached it, no attempt starts and no
/// outcome is answered: the boot clock does not follow steps of the wall clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline {
    boot: BootTime,
    complete_by: Timestamp,
}

impl Deadline {
    /// The deadline of a request that was received at `now`.
    #[must_use]
    pub fn new(complete_by: Timestamp, now: Now) -> Self {
        Self {
            boot: now.boot + complete_by.since(now.wall),
            complete_by,
        }
    }

    /// How much time is left at `at`; zero once the deadline has passed.
    #[must_use]
    pub fn left(self, at: BootTime) -> Duration {
        self.boot.since(at)
    }

    /// Whether complete-by has passed: nothing starts and nothing is answered any more.
    #[must_use]
    pub fn is_over(self, now: Now) -> bool {
        now.boot >= self.boot || now.wall >= self.complete_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall: i64, boot: u64) -> Now {
        Now {
            wall: Timestamp(wall),
            boot: BootTime::from_micros(boot),
        }
    }

    #[test]
    fn either_clock_ends_an_attempt() {
        let deadline = Deadline::new(Timestamp(1_000), at(400, 50));
        assert_eq!(
            deadline.left(BootTime::from_micros(150)),
            Duration::from_micros(500)
        );
        assert!(!deadline.is_over(at(999, 649)));
        assert!(deadline.is_over(at(0, 650)), "the wall clock went back");
        assert!(deadline.is_over(at(1_000, 60)), "the wall clock went ahead");
        assert!(Deadline::new(Timestamp(400), at(400, 50)).is_over(at(400, 50)));
    }
}
