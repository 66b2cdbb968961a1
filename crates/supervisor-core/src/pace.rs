//! How fast recoveries are published.
//!
//! Not governor: this crate has no clock, so the time is an argument, and the answer is a wait.

use std::time::Duration;

use waybill_engine::BootTime;

/// Maximum number of recoveries in flight.
const CHUNK_MAX: usize = 500;
/// A chunk of recoveries is as many as the maximum rate allows in this time, so that pauses between
/// chunks stay short.
const CHUNK_TIME: Duration = Duration::from_millis(250);

/// Spreads recoveries evenly: after a burst of `n`, the next one waits as long as `n` take at the
/// maximum rate. All loops of a process share one pace.
#[derive(Debug)]
pub struct Pace {
    per_second_max: u32,
    free_at: Option<BootTime>,
}

impl Pace {
    /// The pace for a maximum number of recoveries per second.
    #[must_use]
    pub fn new(per_second_max: u32) -> Self {
        Self {
            per_second_max: per_second_max.max(1),
            free_at: None,
        }
    }

    /// How many recoveries are published at once.
    #[must_use]
    pub fn chunk(&self) -> usize {
        let chunk = f64::from(self.per_second_max) * CHUNK_TIME.as_secs_f64();
        (chunk as usize).clamp(1, CHUNK_MAX)
    }

    /// Reserves slots for `recoveries`; returns how long to wait before the first.
    pub fn take(&mut self, recoveries: usize, now: BootTime) -> Duration {
        let begins = self.free_at.map_or(now, |free_at| free_at.max(now));
        let lasts = Duration::from_secs_f64(recoveries as f64 / f64::from(self.per_second_max));
        self.free_at = Some(begins + lasts);
        begins.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_waits_for_the_previous_one_and_a_pause_earns_no_credit() {
        let mut pace = Pace::new(1_000);
        let start = BootTime::new(Duration::from_secs(100));
        assert_eq!(pace.take(500, start), Duration::ZERO);
        assert_eq!(pace.take(500, start), Duration::from_millis(500));
        let later = start + Duration::from_secs(5);
        assert_eq!(pace.take(1, later), Duration::ZERO);
    }

    #[test]
    fn a_chunk_is_what_may_be_published_in_a_quarter_of_a_second() {
        let chunks = [1, 4, 100, 2_000, u32::MAX].map(|rate| Pace::new(rate).chunk());
        assert_eq!(chunks, [1, 1, 25, CHUNK_MAX, CHUNK_MAX]);
    }
}
