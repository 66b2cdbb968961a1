//! Timed waits that a step of the wall clock cannot prolong.
//!
//! librdkafka waits until a time of the wall clock
//! (<https://github.com/confluentinc/librdkafka/issues/2145>). If that clock is set back by an hour
//! during a wait, the wait lasts an hour longer: in the meantime the main thread refreshes no
//! metadata and sends no heartbeats, and records are not delivered. All its timed waits call one
//! function of the C library, [`cnd_timedwait`]. The definition here replaces it, because the
//! linker finds it first. It computes the length of the wait, and waits that long by the monotonic
//! clock.
//!
//! This module is compiled on 64-bit Linux with glibc only, where C11's condition variables are
//! those of POSIX. It needs glibc 2.30. Elsewhere librdkafka waits by the wall clock.
#![allow(unsafe_code)]

use std::time::Duration;

use libc::{
    CLOCK_MONOTONIC, CLOCK_REALTIME, ETIMEDOUT, c_int, clockid_t, pthread_cond_t, pthread_mutex_t,
    timespec,
};

/// Return values of C11's functions, in glibc's numbers.
const THRD_SUCCESS: c_int = 0;
const THRD_ERROR: c_int = 2;
const THRD_TIMEDOUT: c_int = 4;

/// Longer waits end early, as a spurious wakeup, which callers must expect. If the wall clock steps
/// after the caller read it and before this module does, the wait is wrong by at most this.
const WAIT_MAX: Duration = Duration::from_secs(10);

unsafe extern "C" {
    /// Waits until a time of the given clock (glibc from 2.30 on; POSIX.1-2024).
    fn pthread_cond_clockwait(
        cond: *mut pthread_cond_t,
        mutex: *mut pthread_mutex_t,
        clock: clockid_t,
        until: *const timespec,
    ) -> c_int;
}

/// C11's function of this name (7.26.3.5). Its `cnd_t` and `mtx_t` are glibc's `pthread_cond_t` and
/// `pthread_mutex_t`.
///
/// # Safety
///
/// As C11 requires of callers: all three pointers are valid, and this thread has locked the mutex.
#[unsafe(no_mangle)]
unsafe extern "C" fn cnd_timedwait(
    cond: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    #[cfg(test)]
    tests::CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: as the caller promises.
    unsafe { wait(cond, mutex, &*until, WAIT_MAX) }
}

/// Waits until a time of the wall clock as it is now, but no longer than `wait_max`.
///
/// # Safety
///
/// As for [`cnd_timedwait`].
unsafe fn wait(
    cond: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: &timespec,
    wait_max: Duration,
) -> c_int {
    let (wall, monotonic) = (now(CLOCK_REALTIME), now(CLOCK_MONOTONIC));
    let Some(end) = End::of(until, wall, monotonic, wait_max) else {
        return THRD_ERROR;
    };
    // SAFETY: as the caller promises; `end` is a local value.
    match unsafe { pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, &raw const end.at) } {
        0 => THRD_SUCCESS,
        ETIMEDOUT if end.is_early => THRD_SUCCESS,
        ETIMEDOUT => THRD_TIMEDOUT,
        _ => THRD_ERROR,
    }
}

/// When a wait ends.
#[derive(Debug)]
struct End {
    /// By the monotonic clock.
    at: timespec,
    /// Whether that is before the time that the caller gave.
    is_early: bool,
}

impl End {
    /// The end of a wait until a time of the wall clock, given the time of both clocks. `None` if
    /// the time is invalid.
    fn of(
        until: &timespec,
        wall: Duration,
        monotonic: Duration,
        wait_max: Duration,
    ) -> Option<Self> {
        let wait = since_zero(until)?.saturating_sub(wall);
        Some(Self {
            at: time(monotonic.saturating_add(wait.min(wait_max))),
            is_early: wait > wait_max,
        })
    }
}

/// The current time of a clock.
fn now(clock: clockid_t) -> Duration {
    let mut now = time(Duration::ZERO);
    // SAFETY: the call writes to a local variable, and reads nothing.
    let result = unsafe { libc::clock_gettime(clock, &raw mut now) };
    assert_eq!(result, 0, "Linux has both clocks");
    // Before 1970 every wait is long; `wait_max` bounds it.
    since_zero(&now).unwrap_or_default()
}

/// Time since the clock's zero; `None` if negative or invalid.
fn since_zero(time: &timespec) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
}

/// The `timespec` for a time since the clock's zero.
fn time(since_zero: Duration) -> timespec {
    timespec {
        tv_sec: since_zero.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: since_zero.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use rdkafka::config::ClientConfig;
    use rdkafka::producer::BaseProducer;

    use super::*;

    /// How many times the replacement of the C library's function was called.
    pub(super) static CALLS: AtomicUsize = AtomicUsize::new(0);

    const SHORT: Duration = Duration::from_millis(30);
    const HOUR: Duration = Duration::from_secs(60 * 60);

    /// Waits without a waker, until this long after now.
    fn wait_for(after_now: Duration, wait_max: Duration) -> c_int {
        let until = time(now(CLOCK_REALTIME) + after_now);
        wait_until(until, wait_max)
    }

    fn wait_until(until: timespec, wait_max: Duration) -> c_int {
        let mut cond = libc::PTHREAD_COND_INITIALIZER;
        let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        let (cond, mutex) = (ptr::from_mut(&mut cond), ptr::from_mut(&mut mutex));
        // SAFETY: both outlive the calls, and no other code refers to them.
        unsafe {
            assert_eq!(libc::pthread_mutex_lock(mutex), 0);
            let result = wait(cond, mutex, &until, wait_max);
            assert_eq!(libc::pthread_mutex_unlock(mutex), 0);
            result
        }
    }

    #[test]
    fn a_wait_lasts_until_its_time_has_come() {
        let began = Instant::now();
        assert_eq!(wait_for(SHORT, HOUR), THRD_TIMEDOUT);
        assert!(began.elapsed() >= SHORT);
        assert_eq!(wait_for(Duration::ZERO, HOUR), THRD_TIMEDOUT);
        assert_eq!(wait_until(time(Duration::ZERO), HOUR), THRD_TIMEDOUT);
    }

    #[test]
    fn a_wait_ends_by_the_monotonic_clock_despite_steps_of_the_wall_clock() {
        let (wall, monotonic) = (Duration::from_secs(1_000_000), Duration::from_secs(50));
        let end = |wall| {
            let until = time(Duration::from_secs(1_000_002));
            let end = End::of(&until, wall, monotonic, WAIT_MAX).unwrap();
            (since_zero(&end.at).unwrap() - monotonic, end.is_early)
        };
        assert_eq!(end(wall), (Duration::from_secs(2), false));
        assert_eq!(end(wall - HOUR), (WAIT_MAX, true));
        assert_eq!(end(wall + HOUR), (Duration::ZERO, false));
    }

    #[test]
    fn a_wait_longer_than_the_bound_ends_as_a_spurious_wakeup() {
        let began = Instant::now();
        assert_eq!(wait_for(HOUR, SHORT), THRD_SUCCESS);
        assert!(began.elapsed() >= SHORT);
    }

    #[test]
    fn an_invalid_timespec_is_an_error() {
        for (tv_sec, tv_nsec) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            let until = timespec { tv_sec, tv_nsec };
            assert_eq!(wait_until(until, HOUR), THRD_ERROR);
        }
    }

    #[test]
    fn librdkafka_uses_the_replaced_wait() {
        let before = CALLS.load(Ordering::Relaxed);
        let client: BaseProducer = ClientConfig::new().create().unwrap();
        client.poll(SHORT);
        assert!(CALLS.load(Ordering::Relaxed) > before);
    }
}
