//! The detection of pauses of the loop.

use std::time::Duration;

use waybill_engine::BootTime;

/// If this much more time passes than allowed, the process was paused.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Why the loop did not run for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standstill {
    /// The machine was suspended for this long.
    Suspended(Duration),
    /// The process was paused or busy for this long.
    Paused(Duration),
}

/// Detects that the loop did not run for a while.
#[derive(Debug)]
pub(crate) struct Standstills {
    ran_at: BootTime,
}

impl Standstills {
    /// The loop begins to run.
    pub(crate) fn new(now: BootTime) -> Self {
        Self { ran_at: now }
    }

    /// Marks that the loop runs, which was due within `patience` of the previous call. `suspended`
    /// is how long the machine was suspended in between. Returns the pause, if there was one.
    pub(crate) fn ran(
        &mut self,
        now: BootTime,
        suspended: Option<Duration>,
        patience: Duration,
    ) -> Option<Standstill> {
        let pause = now.since(self.ran_at);
        self.ran_at = now;
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
        let (second, patience) = (Duration::from_secs(1), Duration::from_millis(50));
        let began = BootTime::from_micros(60_000_000);
        let mut standstills = Standstills::new(began);
        let mut ran =
            |seconds, suspended| standstills.ran(began + seconds * second, suspended, patience);
        assert_eq!(ran(1, None), None);
        assert_eq!(ran(4, None), Some(Standstill::Paused(3 * second)));
        let suspended = Some(Standstill::Suspended(second));
        assert_eq!(ran(5, Some(second)), suspended);
        assert_eq!(ran(6, None), None);
    }
}
