//! Time in a run: one true time, and the clocks of processes, which are not quite right.

use std::time::Duration;

use waybill_engine::Timestamp;

/// How far a process's clock may be off. The deadline index is swept with this in mind.
pub const SKEW_MICROS: i64 = 150_000;

/// A process's clock: a wall clock that somebody may set, forwards or backwards.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset_micros: i64,
    /// The latest that it has shown.
    latest: Timestamp,
}

impl Clock {
    pub fn new(offset_micros: i64) -> Self {
        Self {
            offset_micros,
            latest: Timestamp::default(),
        }
    }

    /// What the process takes for the time.
    pub fn read(&mut self, now: Timestamp) -> Timestamp {
        let local = shifted(now, self.offset_micros);
        self.latest = self.latest.max(local);
        local
    }

    /// The latest that it has shown: what was decided was decided by then at the latest, though it was set back since.
    pub fn latest(&self) -> Timestamp {
        self.latest
    }

    /// When the process's wall clock will show `local`.
    pub fn true_time_of(&self, local: Timestamp) -> Timestamp {
        shifted(local, -self.offset_micros)
    }

    /// Somebody sets the clock.
    pub fn set(&mut self, offset_micros: i64) {
        self.offset_micros = offset_micros;
    }
}

fn shifted(at: Timestamp, micros: i64) -> Timestamp {
    let by = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { at - by } else { at + by }
}
