//! The intended times of requests: a pure function of the phases.
//!
//! What must hold: the intended time of a request depends on its index alone, never on an answer.

use std::time::Duration;

use super::Phase;

/// The intended times of all requests.
#[derive(Clone, Debug)]
pub struct Schedule {
    parts: Vec<Part>,
    /// The number of requests.
    count: u64,
    /// How long requests are sent, in seconds.
    seconds: f64,
}

/// A phase with its position.
#[derive(Clone, Debug)]
struct Part {
    from_seconds: f64,
    seconds: f64,
    rate: f64,
    rate_end: f64,
    first: u64,
    count: u64,
}

impl Schedule {
    /// Puts the phases one after the other.
    pub fn new(phases: &[Phase]) -> Self {
        let mut schedule = Self {
            parts: Vec::new(),
            count: 0,
            seconds: 0.0,
        };
        for phase in phases {
            let count = phase.count();
            schedule.parts.push(Part {
                from_seconds: schedule.seconds,
                seconds: phase.length.as_secs_f64(),
                rate: phase.rate,
                rate_end: phase.rate_end(),
                first: schedule.count,
                count,
            });
            schedule.count += count;
            schedule.seconds += phase.length.as_secs_f64();
        }
        schedule
    }

    /// The number of requests.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// How long requests are sent.
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// The intended time of a request, relative to the first one, and its phase.
    pub fn at(&self, index: u64) -> (Duration, usize) {
        let behind = self.parts.iter().rposition(|part| part.first <= index);
        let number = behind.unwrap_or_default();
        let part = &self.parts[number];
        let seconds = part.from_seconds + part.seconds_until((index - part.first) as f64);
        (Duration::from_secs_f64(seconds), number)
    }

    /// How many of `size` requests are due within this time after the first of them, which has this
    /// index.
    pub fn within(&self, time: Duration, first: u64, size: u64) -> u64 {
        let until = self.at(first).0 + time;
        let (mut some, mut too_many) = (1, size + 1);
        while some + 1 < too_many {
            let middle = some.midpoint(too_many);
            match self.at(first + middle - 1).0 <= until {
                true => some = middle,
                false => too_many = middle,
            }
        }
        some
    }

    /// The number of requests that are due by then.
    pub fn due_by(&self, elapsed: Duration) -> u64 {
        let elapsed = elapsed.as_secs_f64();
        let due = self.parts.iter().map(|part| {
            let within = (elapsed - part.from_seconds).clamp(0.0, part.seconds);
            let slope = (part.rate_end - part.rate) / part.seconds;
            let requests = part.rate * within + slope * within * within / 2.0;
            // The first request is due immediately.
            let begun = if elapsed >= part.from_seconds { 1 } else { 0 };
            (requests as u64 + begun).min(part.count)
        });
        due.sum()
    }

    /// The start of a phase, in seconds, and its number of requests.
    pub fn phase(&self, number: usize) -> (f64, u64) {
        let part = &self.parts[number];
        (part.from_seconds, part.count)
    }

    /// The current phase after this time.
    pub fn phase_at(&self, elapsed: Duration) -> Option<usize> {
        let elapsed = elapsed.as_secs_f64();
        let is_now = |part: &Part| {
            part.from_seconds <= elapsed && elapsed < part.from_seconds + part.seconds
        };
        self.parts.iter().position(is_now)
    }
}

impl Part {
    /// The time after which this many requests are due: the solution of `rate t + slope t² / 2 =
    /// requests`.
    fn seconds_until(&self, requests: f64) -> f64 {
        let slope = (self.rate_end - self.rate) / self.seconds;
        if slope == 0.0 {
            return requests / self.rate;
        }
        // On a falling ramp the last request may be after the end because of a rounding error.
        let root = (self.rate * self.rate + 2.0 * slope * requests).max(0.0);
        (root.sqrt() - self.rate) / slope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(rate: f64, rate_end: Option<f64>, seconds: u64) -> Phase {
        Phase {
            name: "a".to_owned(),
            rate,
            rate_end,
            length: Duration::from_secs(seconds),
            tenants: None,
        }
    }

    #[test]
    fn a_flat_phase_is_evenly_spread_and_the_next_one_follows_it() {
        let schedule = Schedule::new(&[phase(10.0, None, 2), phase(100.0, None, 1)]);
        assert_eq!(schedule.count(), 120);
        assert_eq!(schedule.length(), Duration::from_secs(3));
        assert_eq!(schedule.at(0), (Duration::ZERO, 0));
        assert_eq!(schedule.at(19), (Duration::from_millis(1_900), 0));
        assert_eq!(schedule.at(20), (Duration::from_secs(2), 1));
        assert_eq!(schedule.at(70), (Duration::from_millis(2_500), 1));
        assert_eq!(schedule.phase_at(Duration::from_millis(2_500)), Some(1));
        assert_eq!(schedule.phase_at(Duration::from_secs(3)), None);
    }

    #[test]
    fn a_ramp_has_the_mean_rate_and_grows_denser() {
        let schedule = Schedule::new(&[phase(0.0, Some(100.0), 10)]);
        assert_eq!(schedule.count(), 500);
        // A quarter of the requests is due after half of the time.
        let (at, _) = schedule.at(125);
        assert!((at.as_secs_f64() - 5.0).abs() < 1e-6, "{at:?}");
        let falling = Schedule::new(&[phase(100.0, Some(0.0), 10)]);
        let (at, _) = falling.at(375);
        assert!((at.as_secs_f64() - 5.0).abs() < 1e-6, "{at:?}");
    }

    #[test]
    fn a_batch_holds_as_many_requests_as_the_current_rate_yields() {
        let schedule = Schedule::new(&[phase(100.0, None, 1), phase(10_000.0, None, 1)]);
        let soon = Duration::from_millis(20);
        for (first, size, within) in [
            (0, 100, 3),
            (0, 2, 2),
            (0, 1, 1),
            // Two of the first phase, and ten milliseconds of the second.
            (98, 500, 2 + 1),
            (99, 500, 1 + 101),
            (100, 100, 100),
            (100, 500, 201),
        ] {
            assert_eq!(
                schedule.within(soon, first, size),
                within,
                "{first}, {size}"
            );
        }
    }

    #[test]
    fn requests_are_due_at_their_intended_times() {
        let phases = [phase(10.0, None, 2), phase(10.0, Some(50.0), 4)];
        let schedule = Schedule::new(&phases);
        for tenths in 0..70 {
            let elapsed = Duration::from_millis(tenths * 100 + 50);
            let counted = (0..schedule.count()).filter(|index| schedule.at(*index).0 <= elapsed);
            assert_eq!(
                schedule.due_by(elapsed),
                counted.count() as u64,
                "{elapsed:?}"
            );
        }
    }
}
