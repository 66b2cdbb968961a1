//! The time that the engines are told: the wall clock, made never to go back and never to stand
//! still.

use std::time::Instant;

use waybill_engine::Timestamp;

use crate::clock::wall_clock;

/// Follows the wall clock. While that lies behind what was already told, because it was set back, time
/// goes on a little slower than the monotonic clock does, until the wall clock has caught up.
#[derive(Debug)]
pub(super) struct Clock {
    now: Timestamp,
    read_at: Instant,
}

/// How fast time goes while the wall clock lies behind.
const BEHIND_RATE: (u32, u32) = (7, 8);

impl Default for Clock {
    fn default() -> Self {
        Self {
            now: wall_clock(),
            read_at: Instant::now(),
        }
    }
}

impl Clock {
    /// The time now.
    pub(super) fn read(&mut self) -> Timestamp {
        let read_at = Instant::now();
        let elapsed = read_at - self.read_at;
        self.advance(wall_clock(), elapsed);
        self.read_at = read_at;
        self.now
    }

    /// What was read last.
    pub(super) fn last(&self) -> Timestamp {
        self.now
    }

    fn advance(&mut self, wall: Timestamp, elapsed: std::time::Duration) {
        self.now = if wall >= self.now {
            wall
        } else {
            self.now + elapsed * BEHIND_RATE.0 / BEHIND_RATE.1
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_back_neither_stops_time_nor_turns_it_back() {
        let mut clock = Clock {
            now: Timestamp(5_000_000),
            read_at: Instant::now(),
        };
        clock.advance(Timestamp(6_000_000), Duration::from_secs(1));
        assert_eq!(clock.last(), Timestamp(6_000_000));
        clock.advance(Timestamp(1_000_000), Duration::from_secs(8));
        assert_eq!(clock.last(), Timestamp(13_000_000));
        clock.advance(Timestamp(9_000_000), Duration::from_secs(8));
        assert_eq!(clock.last(), Timestamp(20_000_000));
        clock.advance(Timestamp(30_000_000), Duration::ZERO);
        assert_eq!(clock.last(), Timestamp(30_000_000));
    }

    #[test]
    fn the_wall_clock_catches_up() {
        let mut clock = Clock {
            now: Timestamp(1_000_000),
            read_at: Instant::now(),
        };
        for second in 1..=8 {
            clock.advance(Timestamp(second * 1_000_000), Duration::from_secs(1));
        }
        assert_eq!(clock.last(), Timestamp(8_000_000));
    }
}
