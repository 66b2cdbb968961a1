//! Rate limits of tenants: a tenant that sends too much gets 429, and the others are not affected.
//!
//! The limits apply to this process: several processes that share a load each apply their own. The
//! algorithm is the generic cell rate algorithm (ITU-T I.371), with a rate per second and a burst.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use waybill_http::problem::{Kind, Problem};

/// After this many requests, tenants that have not sent anything for a while are forgotten.
const FORGET_EVERY: u32 = 4_096;

/// A rate limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Sustained requests per second.
    pub per_second: NonZeroU32,
    /// The largest burst, in requests.
    pub burst: NonZeroU32,
}

/// The rate limits of tenants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TenantRates {
    /// For each tenant without its own limit; requests without a tenant count as one. `None`: no
    /// limit.
    pub each: Option<Rate>,
    /// The limits of single tenants, by name.
    pub named: BTreeMap<String, Rate>,
}

/// Counts the requests of tenants.
pub struct TenantLimits {
    each: Option<DefaultKeyedRateLimiter<String>>,
    named: BTreeMap<String, DefaultDirectRateLimiter>,
    clock: DefaultClock,
    taken: AtomicU32,
}

impl TenantLimits {
    /// Creates limits with these rates.
    pub fn new(rates: &TenantRates) -> Self {
        let named = rates.named.iter();
        Self {
            each: rates.each.map(|rate| RateLimiter::keyed(quota(rate))),
            named: named
                .map(|(tenant, rate)| (tenant.clone(), RateLimiter::direct(quota(*rate))))
                .collect(),
            clock: DefaultClock::default(),
            taken: AtomicU32::new(0),
        }
    }

    /// Takes one request from a tenant's limit.
    ///
    /// # Errors
    ///
    /// If the limit is reached; the problem says how long to wait.
    pub fn take(&self, tenant: &String) -> Result<(), Problem> {
        let refused = match (self.named.get(tenant), &self.each) {
            (Some(limit), _) => limit.check().err(),
            (None, Some(limit)) => {
                if self.taken.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
                    limit.retain_recent();
                    limit.shrink_to_fit();
                }
                limit.check_key(tenant).err()
            }
            (None, None) => None,
        };
        match refused {
            None => Ok(()),
            Some(until) => Err(too_many(until.wait_time_from(self.clock.now()))),
        }
    }
}

impl Default for TenantLimits {
    /// No limits.
    fn default() -> Self {
        Self::new(&TenantRates::default())
    }
}

impl fmt::Debug for TenantLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantLimits")
            .field("named", &self.named.keys())
            .finish_non_exhaustive()
    }
}

fn quota(rate: Rate) -> Quota {
    Quota::per_second(rate.per_second).allow_burst(rate.burst)
}

fn too_many(wait: Duration) -> Problem {
    let detail = "The tenant of the request has reached its request rate limit.";
    Problem::new(Kind::TooManyRequests, detail).with_wait(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate {
            per_second: NonZeroU32::new(per_second).unwrap(),
            burst: NonZeroU32::new(burst).unwrap(),
        }
    }

    /// How many of `count` simultaneous requests pass.
    fn passed(limits: &TenantLimits, tenant: &str, count: usize) -> usize {
        let tenant = tenant.to_owned();
        (0..count).filter(|_| limits.take(&tenant).is_ok()).count()
    }

    #[test]
    fn a_flooding_tenant_is_refused_and_the_others_are_not() {
        // So slow that no request becomes free within the test.
        let limits = TenantLimits::new(&TenantRates {
            each: Some(rate(1, 5)),
            named: BTreeMap::from([("large".to_owned(), rate(1, 50))]),
        });
        assert!((5..8).contains(&passed(&limits, "noisy", 1_000)));
        assert_eq!(passed(&limits, "quiet", 5), 5);
        assert_eq!(
            passed(&limits, "", 5),
            5,
            "requests without a tenant share a limit"
        );
        assert!((50..53).contains(&passed(&limits, "large", 1_000)));
        let refused = limits.take(&"noisy".to_owned()).unwrap_err();
        assert_eq!(refused.status().as_u16(), 429);
        assert!(
            refused
                .retry_after()
                .is_some_and(|wait| wait <= Duration::from_secs(1))
        );
    }

    #[test]
    fn tenants_without_a_limit_are_not_limited() {
        let limits = TenantLimits::new(&TenantRates {
            each: None,
            named: BTreeMap::from([("small".to_owned(), rate(1, 1))]),
        });
        assert_eq!(passed(&limits, "anybody", 10_000), 10_000);
        assert!((1..3).contains(&passed(&limits, "small", 1_000)));
    }

    #[test]
    fn tenants_that_send_nothing_any_more_are_forgotten() {
        let limits = TenantLimits::new(&TenantRates {
            each: Some(rate(1_000_000, 1)),
            named: BTreeMap::new(),
        });
        for number in 0..3 * FORGET_EVERY {
            let _ = limits.take(&number.to_string());
        }
        let known = limits.each.as_ref().unwrap().len();
        assert!(known <= FORGET_EVERY as usize + 1, "{known}");
    }
}
