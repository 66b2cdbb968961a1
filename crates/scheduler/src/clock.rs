//! The time that the loop passes to the engines, and the detection of pauses of the loop.

use std::time::Duration;

use waybill_clock::{BootTime, Suspensions, wall_clock};
use waybill_engine::Timestamp;

/// A turn that takes this much longer than allowed means that the process was paused.
const STANDSTILL: Duration = Duration::from_secs(2);

/// The time as the loop last read it, so that all decisions of a turn use the same time. It may go
/// back; the engine then re-evaluates everything that waits.
#[derive(Debug)]
pub(super) struct Clock {
    now: Timestamp,
    turned: BootTime,
    suspensions: Suspensions,
}

/// Why the loop did not run for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standstill {
    /// The machine was suspended for this long.
    Suspended(Duration),
    /// The process was paused or busy for this long.
    Paused(Duration),
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            now: wall_clock(),
            turned: BootTime::now(),
            suspensions: Suspensions::default(),
        }
    }
}

impl Clock {
    /// Reads the current time.
    pub(super) fn read(&mut self) -> Timestamp {
        self.now = wall_clock();
        self.now
    }

    /// The last reading.
    pub(super) fn last(&self) -> Timestamp {
        self.now
    }

    /// Marks the start of a turn, which was due within `patience` of the previous one. Returns the
    /// pause in between, if there was one.
    pub(super) fn standstill(&mut self, patience: Duration) -> Option<Standstill> {
        let now = BootTime::now();
        let suspended = self.suspensions.check();
        self.classify(now, suspended, patience)
    }

    fn classify(
        &mut self,
        now: BootTime,
        suspended: Option<Duration>,
        patience: Duration,
    ) -> Option<Standstill> {
        let pause = now.since(self.turned);
        self.turned = now;
        match suspended {
            Some(suspended) => Some(Standstill::Suspended(suspended)),
            None => (pause > patience + STANDSTILL).then_some(Standstill::Paused(pause)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_is_distinguished_from_a_pause() {
        let mut clock = Clock::default();
        let (second, patience) = (Duration::from_secs(1), Duration::from_millis(50));
        let began = clock.turned;
        assert_eq!(clock.classify(began + second, None, patience), None);
        let paused = Some(Standstill::Paused(3 * second));
        assert_eq!(clock.classify(began + 4 * second, None, patience), paused);
        let suspended = clock.classify(began + 5 * second, Some(second), patience);
        assert_eq!(suspended, Some(Standstill::Suspended(second)));
        assert_eq!(clock.classify(began + 6 * second, None, patience), None);
    }
}
