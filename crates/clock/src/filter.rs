//! Decides which changes of the wall clock to follow.

use std::time::Duration;

use waybill_engine::{BootTime, Timestamp};

/// How long a step of the wall clock must last before it is adopted.
pub const HOLD: Duration = Duration::from_secs(30);

/// Smallest difference between the clocks that counts as a step. Smaller ones are drift and
/// followed immediately.
pub const STEP_MIN: Duration = Duration::from_millis(500);

/// After a longer gap between readings the [`HOLD`] time starts again: nothing observed the step in
/// the gap.
const UNSEEN_MAX: Duration = Duration::from_secs(5);

/// Follows the wall clock, but holds back a step that the boot-time clock contradicts.
///
/// While a step is held back, time advances with the boot-time clock. A step that lasts for
/// [`HOLD`] is adopted, forwards or backwards. One that ends earlier has no effect.
#[derive(Debug)]
pub struct StepFilter {
    /// Time is the boot time plus this many microseconds.
    offset: i64,
    held: Option<Held>,
}

/// A step that is held back.
#[derive(Debug)]
struct Held {
    /// The offset after adopting the step.
    offset: i64,
    since: BootTime,
    last_seen: BootTime,
}

/// What a reading changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The wall clock has stepped, and the step is held back.
    Held {
        /// The size of the step in microseconds; negative if the clock was set back.
        by_micros: i64,
    },
    /// The step was undone: the wall clock is back where it was before.
    Dropped,
    /// The step lasted, and time now follows it.
    Adopted {
        /// By how many microseconds time jumped; negative if it went back.
        by_micros: i64,
    },
}

impl StepFilter {
    /// Starts with the first reading, which nothing can contradict.
    #[must_use]
    pub fn new(wall: Timestamp, boot: BootTime) -> Self {
        Self {
            offset: offset(wall, boot),
            held: None,
        }
    }

    /// The time at these readings of the two clocks, and what they changed.
    pub fn read(&mut self, wall: Timestamp, boot: BootTime) -> (Timestamp, Option<Change>) {
        let change = self.compare(offset(wall, boot), boot);
        let now = boot.as_micros().saturating_add(self.offset);
        (Timestamp(now), change)
    }

    fn compare(&mut self, seen: i64, boot: BootTime) -> Option<Change> {
        if !is_step(self.offset, seen) {
            self.offset = seen;
            return self.held.take().map(|_| Change::Dropped);
        }
        let by_micros = seen.saturating_sub(self.offset);
        match &mut self.held {
            Some(held)
                if !is_step(held.offset, seen) && boot.since(held.last_seen) <= UNSEEN_MAX =>
            {
                held.offset = seen;
                held.last_seen = boot;
                if boot.since(held.since) < HOLD {
                    return None;
                }
                self.offset = seen;
                self.held = None;
                Some(Change::Adopted { by_micros })
            }
            held => {
                let is_new = held.as_ref().is_none_or(|held| is_step(held.offset, seen));
                *held = Some(Held {
                    offset: seen,
                    since: boot,
                    last_seen: boot,
                });
                is_new.then_some(Change::Held { by_micros })
            }
        }
    }
}

fn offset(wall: Timestamp, boot: BootTime) -> i64 {
    wall.as_micros().saturating_sub(boot.as_micros())
}

fn is_step(from: i64, to: i64) -> bool {
    u128::from(from.abs_diff(to)) >= STEP_MIN.as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wall clock's reading when the boot-time clock reads zero, in milliseconds.
    const WALL_AT_BOOT: i64 = 1_000_000_000_000;
    const HOUR: i64 = 3_600_000;

    /// A filter, with time given in milliseconds since it began.
    struct Clocks {
        filter: StepFilter,
        at: i64,
    }

    impl Clocks {
        fn new() -> Self {
            let (wall, boot) = readings(0, 0);
            Self {
                filter: StepFilter::new(wall, boot),
                at: 0,
            }
        }

        /// Advances time with four readings per second while the wall clock is `ahead`. Returns how
        /// far the resulting time is ahead, and what changed.
        fn pass(&mut self, millis: i64, ahead: i64) -> (i64, Vec<Change>) {
            let until = self.at + millis;
            let (mut shown, mut changes) = (0, Vec::new());
            while self.at < until {
                self.at = (self.at + 250).min(until);
                let (of_now, change) = self.read(ahead);
                shown = of_now;
                changes.extend(change);
            }
            (shown, changes)
        }

        fn read(&mut self, ahead: i64) -> (i64, Option<Change>) {
            let (wall, boot) = readings(self.at, ahead);
            let (now, change) = self.filter.read(wall, boot);
            ((now.as_micros() - WALL_AT_BOOT) / 1_000 - self.at, change)
        }
    }

    fn readings(at: i64, ahead: i64) -> (Timestamp, BootTime) {
        let boot = BootTime::from_micros(u64::try_from(at * 1_000).unwrap());
        (Timestamp(WALL_AT_BOOT + (at + ahead) * 1_000), boot)
    }

    fn held(millis: i64) -> Change {
        Change::Held {
            by_micros: millis * 1_000,
        }
    }

    fn adopted(millis: i64) -> Change {
        Change::Adopted {
            by_micros: millis * 1_000,
        }
    }

    #[test]
    fn a_brief_step_of_an_hour_is_ignored() {
        for step in [HOUR, -HOUR] {
            let mut clocks = Clocks::new();
            assert_eq!(clocks.pass(10_000, 0), (0, vec![]));
            assert_eq!(clocks.pass(2_000, step), (0, vec![held(step)]));
            assert_eq!(clocks.pass(100_000, 0), (0, vec![Change::Dropped]));
        }
    }

    #[test]
    fn a_lasting_step_is_adopted_once_in_both_directions() {
        for step in [HOUR, -HOUR] {
            let mut clocks = Clocks::new();
            assert_eq!(clocks.pass(30_000, step), (0, vec![held(step)]));
            assert_eq!(clocks.pass(250, step), (step, vec![adopted(step)]));
            assert_eq!(clocks.pass(60_000, step), (step, vec![]));
            assert_eq!(clocks.pass(30_000, 0), (step, vec![held(-step)]));
            assert_eq!(clocks.pass(250, 0), (0, vec![adopted(-step)]));
        }
    }

    #[test]
    fn drift_is_followed_immediately_also_while_a_step_is_held_back() {
        let mut clocks = Clocks::new();
        for ahead in (0..5_000).step_by(100) {
            assert_eq!(clocks.pass(1_000, ahead), (ahead, vec![]));
        }
        for behind in (0..5_000).step_by(100) {
            assert_eq!(clocks.pass(1_000, 4_900 - behind), (4_900 - behind, vec![]));
        }
        // A held step that is slewed stays the same step.
        assert_eq!(clocks.pass(10_000, HOUR).1, [held(HOUR)]);
        assert_eq!(clocks.pass(10_000, HOUR + 300), (0, vec![]));
        assert_eq!(clocks.pass(10_250, HOUR + 600).1, [adopted(HOUR + 600)]);
    }

    #[test]
    fn an_oscillating_clock_is_not_followed() {
        let mut clocks = Clocks::new();
        for _ in 0..100 {
            assert_eq!(clocks.pass(20_000, HOUR), (0, vec![held(HOUR)]));
            assert_eq!(clocks.pass(20_000, -HOUR), (0, vec![held(-HOUR)]));
        }
    }

    #[test]
    fn two_distant_readings_do_not_confirm_a_step() {
        let mut clocks = Clocks::new();
        assert_eq!(clocks.pass(250, HOUR), (0, vec![held(HOUR)]));
        clocks.at += 600_000;
        assert_eq!(
            clocks.read(HOUR),
            (0, None),
            "no reading happened meanwhile"
        );
        assert_eq!(clocks.pass(29_750, HOUR), (0, vec![]));
        assert_eq!(clocks.pass(250, HOUR), (HOUR, vec![adopted(HOUR)]));
    }

    #[test]
    fn a_suspended_machine_whose_clocks_both_counted_has_not_stepped() {
        let mut clocks = Clocks::new();
        clocks.at += 8 * HOUR;
        assert_eq!(clocks.read(0), (0, None));
    }
}
