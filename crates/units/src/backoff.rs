//! The waits between retries.
//!
//! Not backon, because callers share this formula alone: each has its own source of jitter, such as
//! an ID, and loops that also heed `Retry-After`, a deadline or a cancellation. A workflow's
//! retries have a multiplier of their own (`retry_wait` in the engine).

use std::time::Duration;

/// The wait before a retry, numbered from 0: `initial`, doubled with each retry, at most `max`; of
/// that between half, with a `spread` of 0, and all, with a `spread` of 1.
#[must_use]
pub fn backoff(initial: Duration, max: Duration, retry: u32, spread: f64) -> Duration {
    let whole = initial.saturating_mul(2_u32.saturating_pow(retry));
    whole.min(max).mul_f64(0.5 + spread / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_spread_over_their_second_half() {
        let (initial, max) = (Duration::from_secs(1), Duration::from_secs(30));
        for (retry, seconds) in [(0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0), (u32::MAX, 30.0)] {
            let waits = [0.0, 0.5, 1.0].map(|spread| backoff(initial, max, retry, spread));
            let expected = [0.5, 0.75, 1.0].map(|part| Duration::from_secs_f64(seconds * part));
            assert_eq!(waits, expected, "{retry}");
        }
    }
}
