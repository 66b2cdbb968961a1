//! The clock that counts suspended time, and what tells that there was some.

use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

/// Two clocks that are read further apart than this are read again: the thread stood still in between.
const APART_MAX: Duration = Duration::from_millis(5);
/// How often they are read again at most. A machine that is so busy gets an inexact answer.
const READ_AGAIN_MAX: usize = 5;
/// From how long on a suspension is told of. Less is what the kernel's two clocks round apart.
const SUSPENDED_MIN: Duration = Duration::from_secs(1);

/// An instant of the clock that counts from when the machine was started, and goes on while it is
/// suspended: `CLOCK_BOOTTIME` on Linux, `CLOCK_MONOTONIC_RAW` on macOS.
///
/// On other systems it is `std::time::Instant`, which may stand still meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BootTime(Duration);

impl BootTime {
    /// The instant now.
    #[must_use]
    pub fn now() -> Self {
        Self(system::since_boot())
    }

    /// So many microseconds after the clock's zero.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(Duration::from_micros(micros))
    }

    /// Microseconds since the clock's zero.
    #[must_use]
    pub fn as_micros(self) -> i64 {
        i64::try_from(self.0.as_micros()).unwrap_or(i64::MAX)
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// How long ago this is.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for BootTime {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }
}

/// Tells that the machine was suspended: the boot-time clock went on, and the monotonic clock did not.
#[derive(Debug)]
pub struct Suspensions {
    boot: BootTime,
    monotonic: Instant,
}

impl Default for Suspensions {
    fn default() -> Self {
        let (monotonic, boot) = together(Instant::now, BootTime::now);
        Self { boot, monotonic }
    }
}

impl Suspensions {
    /// For how long the machine was suspended since this was last asked, if for a second at least.
    pub fn look(&mut self) -> Option<Duration> {
        let (monotonic, boot) = together(Instant::now, BootTime::now);
        self.compare(monotonic, boot)
    }

    fn compare(&mut self, monotonic: Instant, boot: BootTime) -> Option<Duration> {
        let counted = boot.since(self.boot);
        let suspended = counted.saturating_sub(monotonic - self.monotonic);
        *self = Self { boot, monotonic };
        (suspended >= SUSPENDED_MIN).then_some(suspended)
    }
}

/// Reads two clocks at about one instant, however busy the machine is.
pub(crate) fn together<A, B>(first: impl Fn() -> A, second: impl Fn() -> B) -> (A, B)
where
    A: Clock,
{
    let mut read = (first(), second());
    for _ in 0..READ_AGAIN_MAX {
        let after = first();
        if after.after(&read.0) <= APART_MAX {
            break;
        }
        read = (after, second());
    }
    read
}

/// A clock whose readings tell how far they are apart.
pub(crate) trait Clock {
    fn after(&self, earlier: &Self) -> Duration;
}

impl Clock for BootTime {
    fn after(&self, earlier: &Self) -> Duration {
        self.since(*earlier)
    }
}

impl Clock for Instant {
    fn after(&self, earlier: &Self) -> Duration {
        self.duration_since(*earlier)
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod system {
    //! The system's clock. It is asked through the C library, which std does not do for this clock, and where a
    //! test can put another clock in its place.
    #![allow(unsafe_code)]

    use std::time::Duration;

    #[cfg(not(target_vendor = "apple"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
    #[cfg(target_vendor = "apple")]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_RAW;

    pub(super) fn since_boot() -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is valid for writes for the call, and nothing keeps the pointer.
        let result = unsafe { libc::clock_gettime(CLOCK, &raw mut time) };
        assert_eq!(
            result,
            0,
            "the system has no clock that counts suspended time: {}",
            std::io::Error::last_os_error()
        );
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
        Duration::new(seconds, nanos)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod system {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    static ZERO: LazyLock<Instant> = LazyLock::new(Instant::now);

    pub(super) fn since_boot() -> Duration {
        ZERO.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_is_told_of_once_and_a_busy_machine_is_none() {
        let (monotonic, boot) = (Instant::now(), BootTime::from_micros(5_000_000));
        let mut suspensions = Suspensions { boot, monotonic };
        let mut look = |monotonic_s: u64, boot_s: u64| {
            let monotonic = monotonic + Duration::from_secs(monotonic_s);
            suspensions.compare(monotonic, boot + Duration::from_secs(boot_s))
        };
        assert_eq!(look(100, 100), None, "it stood still, and counted");
        assert_eq!(look(101, 3_701), Some(Duration::from_secs(3_600)));
        assert_eq!(look(102, 3_702), None);
    }

    #[test]
    fn the_systems_clock_goes_on() {
        let began = BootTime::now();
        let beside = Instant::now();
        while beside.elapsed() < Duration::from_millis(5) {
            std::thread::yield_now();
        }
        assert!(began.elapsed() >= Duration::from_millis(5));
    }
}
