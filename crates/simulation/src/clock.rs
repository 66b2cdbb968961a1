//! Time in a run: one true time, and the inexact clocks of the processes.

use std::time::Duration;

use waybill_engine::{BootTime, Timestamp};

use crate::rng::Rng;

/// Maximum error of a process's clock. The sweep of the deadline index allows for it.
pub const SKEW_MICROS: i64 = 150_000;
/// What every boot clock shows when a run begins.
pub const BOOTED: Duration = Duration::from_secs(1_000);
const MILLION: u32 = 1_000_000;
/// How fast a boot clock may be, per million.
const DRIFT_MAX: u64 = 10_000;

/// A process's clock: a wall clock that may be set forwards or backwards.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset_micros: i64,
    /// The latest time that it has returned.
    latest: Timestamp,
}

impl Clock {
    pub fn new(offset_micros: i64) -> Self {
        Self {
            offset_micros,
            latest: Timestamp::default(),
        }
    }

    /// The time according to this clock.
    pub fn read(&mut self, now: Timestamp) -> Timestamp {
        let local = shifted(now, self.offset_micros);
        self.latest = self.latest.max(local);
        local
    }

    /// The latest time that it has returned. No decision was made at a later one, even if the clock
    /// was set back since.
    pub fn latest(&self) -> Timestamp {
        self.latest
    }

    /// Sets the clock.
    pub fn set(&mut self, offset_micros: i64) {
        self.offset_micros = offset_micros;
    }
}

/// A process's boot clock: it is never set, but may be fast.
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    /// How much faster than the true time it runs, per million.
    drift: u32,
}

impl BootClock {
    pub fn new(rng: &mut Rng) -> Self {
        let drift = rng.below(DRIFT_MAX);
        Self {
            drift: u32::try_from(drift).unwrap(),
        }
    }

    /// What it shows after this much true time.
    pub fn read(self, time: Duration) -> BootTime {
        BootTime::new(BOOTED + time + time * self.drift / MILLION)
    }

    /// The true time after which it has advanced by this much, at microsecond resolution.
    pub fn true_time(self, shown: Duration) -> Duration {
        shown * MILLION / (MILLION + self.drift) + Duration::from_micros(2)
    }
}

/// How wrong a clock is.
pub fn skew(rng: &mut Rng) -> i64 {
    let span = 2 * SKEW_MICROS.unsigned_abs() + 1;
    i64::try_from(rng.below(span)).unwrap() - SKEW_MICROS
}

fn shifted(at: Timestamp, micros: i64) -> Timestamp {
    let by = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { at - by } else { at + by }
}
