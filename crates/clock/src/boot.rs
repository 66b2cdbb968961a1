//! The boot-time clock, which counts suspended time, and the detection of suspensions.
//!
//! The clock is `CLOCK_BOOTTIME` on Linux and `CLOCK_MONOTONIC_RAW` on macOS. On other systems it
//! is `std::time::Instant`, which may stop during a suspension.

use std::time::{Duration, Instant};

use waybill_engine::BootTime;

/// If more time than this passes between reading two clocks, the thread was preempted: read both
/// again.
const APART_MAX: Duration = Duration::from_millis(5);
/// Maximum number of repeated readings. On a very busy machine the result is inexact.
const READ_AGAIN_MAX: usize = 5;
/// Shortest suspension that is reported. Shorter differences are rounding between the two kernel
/// clocks.
const SUSPENDED_MIN: Duration = Duration::from_secs(1);

/// The time since the machine booted.
#[must_use]
pub fn boot_clock() -> BootTime {
    BootTime::new(system::since_boot())
}

/// Detects that the machine was suspended: the boot-time clock advanced and the monotonic clock did
/// not.
#[derive(Debug)]
pub struct Suspensions {
    boot: BootTime,
    monotonic: Instant,
}

impl Default for Suspensions {
    fn default() -> Self {
        let (monotonic, boot) = together(Instant::now, boot_clock);
        Self { boot, monotonic }
    }
}

impl Suspensions {
    /// How long the machine was suspended since the last call; `None` for less than a second.
    pub fn check(&mut self) -> Option<Duration> {
        let (monotonic, boot) = together(Instant::now, boot_clock);
        self.compare(monotonic, boot)
    }

    fn compare(&mut self, monotonic: Instant, boot: BootTime) -> Option<Duration> {
        let counted = boot.since(self.boot);
        let suspended = counted.saturating_sub(monotonic - self.monotonic);
        *self = Self { boot, monotonic };
        (suspended >= SUSPENDED_MIN).then_some(suspended)
    }
}

/// Reads two clocks at nearly the same instant, even on a busy machine.
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

/// A clock whose readings can be compared.
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
    //! The system's clock, read through the C library: std has no access to this clock, and a test
    //! can replace a C function.
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
    fn a_suspension_is_reported_once_and_a_busy_machine_is_not() {
        let (monotonic, boot) = (Instant::now(), BootTime::from_micros(5_000_000));
        let mut suspensions = Suspensions { boot, monotonic };
        let mut check = |monotonic_s: u64, boot_s: u64| {
            let monotonic = monotonic + Duration::from_secs(monotonic_s);
            suspensions.compare(monotonic, boot + Duration::from_secs(boot_s))
        };
        assert_eq!(
            check(100, 100),
            None,
            "it was suspended, and the clock counted"
        );
        assert_eq!(check(101, 3_701), Some(Duration::from_secs(3_600)));
        assert_eq!(check(102, 3_702), None);
    }

    /// The time since boot outside of the time namespace, in seconds.
    const BEFORE: &str = "WAYBILL_TEST_SECONDS_SINCE_BOOT";

    /// Runs in a time namespace whose boot-time clock is a day ahead of the monotonic one, as it is
    /// after a suspension of a day.
    #[test]
    #[ignore = "started by the test below"]
    #[cfg(target_os = "linux")]
    fn process_after_a_suspension() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let before: f64 = std::env::var(BEFORE).unwrap().parse().unwrap();
        assert!(uptime > before + 86_399.0, "{before} {uptime}");
        let counted = system::since_boot().as_secs_f64();
        assert!((counted - uptime).abs() < 60.0, "{counted} {uptime}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_boot_clock_counts_a_suspension() {
        let suspended = ["--fork", "--time", "--boottime", "86400", "--"];
        let in_namespace = |program: &std::path::Path| {
            let mut command = std::process::Command::new("unshare");
            command.args(suspended).arg(program);
            command
        };
        let is_available = in_namespace("true".as_ref()).output();
        if !is_available.is_ok_and(|output| output.status.success()) {
            println!(
                "SKIPPED: the boot clock after a suspension: this user cannot create a time namespace"
            );
            return;
        }
        let ended = in_namespace(&std::env::current_exe().unwrap())
            .args(["--exact", "boot::tests::process_after_a_suspension"])
            .arg("--ignored")
            .env(BEFORE, system::since_boot().as_secs_f64().to_string())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.status.success() && output.contains("1 passed"),
            "{output}"
        );
    }

    #[test]
    fn the_boot_clock_advances() {
        let began = boot_clock();
        let beside = Instant::now();
        while beside.elapsed() < Duration::from_millis(5) {
            std::thread::yield_now();
        }
        assert!(boot_clock().since(began) >= Duration::from_millis(5));
    }
}
