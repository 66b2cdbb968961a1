//! Time in a run: one true time, and the clocks of processes, which are not quite right.

use std::time::Duration;

use waybill_engine::Timestamp;

/// How far a process's clock may be off. The deadline index is swept with this in mind.
pub const SKEW_MICROS: i64 = 150_000;

/// A process's clock. As the scheduler's shell has it, it never goes back and never stands still.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset_micros: i64,
    last: Timestamp,
    read_at: Timestamp,
}

impl Clock {
    pub fn new(offset_micros: i64, now: Timestamp) -> Self {
        Self {
            offset_micros,
            last: shifted(now, offset_micros),
            read_at: now,
        }
    }

    /// What the process takes for the time.
    pub fn read(&mut self, now: Timestamp) -> Timestamp {
        let wall = shifted(now, self.offset_micros);
        self.last = if wall >= self.last {
            wall
        } else {
            self.last + now.since(self.read_at)
        };
        self.read_at = now;
        self.last
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
