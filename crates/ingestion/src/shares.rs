//! A bound that tenants share.
//!
//! What must hold: no tenant takes all of it while others need some. Alone, a tenant may use the
//! whole bound. As soon as another tenant holds a share, or was refused one recently, it gets at
//! most half.
//!
//! The tenant is that of the token: a name in a request could be invented freely. Callers without a
//! token, and callers with a token for all tenants, count as one tenant.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use metrics::Gauge;
use tokio_util::sync::CancellationToken;
use waybill_http::auth::Tenants;

/// How long a refused tenant counts as one that needs a share: longer than `Retry-After`.
const WANTED_FOR: Duration = Duration::from_secs(10);
/// How many tenants are remembered before those that hold and need nothing are forgotten.
const IDLE_MAX: usize = 1_000;

/// A bound, and how much of it each tenant holds.
#[derive(Debug)]
struct Shares {
    max: usize,
    held: Mutex<Held>,
    /// The metric of the amount held.
    shown: Gauge,
}

#[derive(Debug, Default)]
struct Held {
    total: usize,
    by_tenant: HashMap<Arc<str>, Tenant>,
}

#[derive(Debug, Default)]
struct Tenant {
    held: usize,
    refused_at: Option<Instant>,
}

impl Tenant {
    fn wants(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < WANTED_FOR;
        self.held > 0 || self.refused_at.is_some_and(is_recent)
    }
}

impl Shares {
    /// A bound of which nothing is held.
    fn new(max: usize, shown: Gauge) -> Arc<Self> {
        Arc::new(Self {
            max,
            held: Mutex::default(),
            shown,
        })
    }

    /// Takes a share for a caller's tenant, until it is dropped; `None` if the tenant may not have
    /// it now.
    fn take(self: &Arc<Self>, tenants: &Tenants, amount: usize) -> Option<Share> {
        let tenant = tenants.only();
        let tenant = tenant.map_or_else(Arc::default, Arc::clone);
        self.take_at(tenant, amount, Instant::now())
    }

    fn take_at(self: &Arc<Self>, tenant: Arc<str>, amount: usize, now: Instant) -> Option<Share> {
        let mut held = self.locked();
        let mut others = held.by_tenant.iter();
        let is_shared = others.any(|(other, it)| *other != tenant && it.wants(now));
        let has = held.by_tenant.get(&tenant).map_or(0, |it| it.held);
        // A tenant that holds nothing may take a share that is larger than half.
        let fits = !is_shared || has == 0 || has + amount <= self.max / 2;
        let is_taken = fits && held.total + amount <= self.max;
        if held.by_tenant.len() > IDLE_MAX {
            held.by_tenant.retain(|_, it| it.wants(now));
        }
        let of_tenant = held.by_tenant.entry(Arc::clone(&tenant)).or_default();
        if !is_taken {
            of_tenant.refused_at = Some(now);
            return None;
        }
        of_tenant.held += amount;
        of_tenant.refused_at = None;
        held.total += amount;
        self.shown.increment(amount as f64);
        Some(Share {
            of: Arc::clone(self),
            tenant,
            amount,
        })
    }

    fn locked(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A share of a bound.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    tenant: Arc<str>,
    amount: usize,
}

impl Share {
    /// Whether the share's tenant holds more than half of the bound, and these tenants are others.
    fn may_be_revoked_for(&self, tenants: &Tenants) -> bool {
        let other = tenants.only();
        let is_own = other.map_or("", |tenant| tenant) == &*self.tenant;
        let held = self.of.locked();
        let of_tenant = held.by_tenant.get(&self.tenant);
        !is_own && of_tenant.is_some_and(|it| it.held > self.of.max / 2)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.of.locked();
        held.total -= self.amount;
        self.of.shown.decrement(self.amount as f64);
        if let Entry::Occupied(mut of_tenant) = held.by_tenant.entry(Arc::clone(&self.tenant)) {
            of_tenant.get_mut().held -= self.amount;
            // A tenant that holds and needs nothing is forgotten, so that lookups stay short.
            if of_tenant.get().held == 0 && of_tenant.get().refused_at.is_none() {
                of_tenant.remove();
            }
        }
    }
}

/// A bound that tenants share, with places that can be revoked: from a tenant that holds more than
/// half of it, if another tenant finds no room.
#[derive(Debug)]
pub struct Places {
    shares: Arc<Shares>,
    /// The places taken, the oldest first, and some that were released.
    taken: Mutex<VecDeque<Taken>>,
}

/// A share of a bound that can be revoked.
#[derive(Debug)]
pub struct Place {
    _share: Arc<Mutex<Option<Share>>>,
    revoked: CancellationToken,
}

#[derive(Debug)]
struct Taken {
    share: Weak<Mutex<Option<Share>>>,
    revoked: CancellationToken,
}

impl Places {
    /// A bound of which nothing is held. `used` shows how much is held, `limit` the bound.
    pub fn new(max: usize, used: Gauge, limit: &Gauge) -> Self {
        limit.set(max as f64);
        Self {
            shares: Shares::new(max, used),
            taken: Mutex::default(),
        }
    }

    /// Takes a share that is never revoked, for short uses.
    pub fn share(&self, tenants: &Tenants, amount: usize) -> Option<Share> {
        let share = self.shares.take(tenants, amount);
        share.or_else(|| self.revoke_for(tenants, amount))
    }

    /// Takes a place that may be revoked, for uses that can last.
    pub fn place(&self, tenants: &Tenants, amount: usize) -> Option<Place> {
        let share = Arc::new(Mutex::new(Some(self.share(tenants, amount)?)));
        let revoked = CancellationToken::new();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|place| place.share.strong_count() > 0);
        taken.push_back(Taken {
            share: Arc::downgrade(&share),
            revoked: revoked.clone(),
        });
        Some(Place {
            _share: share,
            revoked,
        })
    }

    fn revoke_for(&self, tenants: &Tenants, amount: usize) -> Option<Share> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut revoked = taken.iter().filter(|place| place.is_revoked_for(tenants));
        revoked.find_map(|_| self.shares.take(tenants, amount))
    }
}

impl Place {
    /// Resolves once the place is revoked.
    pub async fn revoked(&self) {
        self.revoked.cancelled().await;
    }

    /// Whether the place is revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.is_cancelled()
    }
}

impl Taken {
    /// Revokes the place, if its tenant holds more than half of the bound.
    fn is_revoked_for(&self, tenants: &Tenants) -> bool {
        let Some(share) = self.share.upgrade() else {
            return false;
        };
        let mut share = share.lock().unwrap_or_else(PoisonError::into_inner);
        let is_revoked = share
            .take_if(|share| share.may_be_revoked_for(tenants))
            .is_some();
        if is_revoked {
            self.revoked.cancel();
        }
        is_revoked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(shares: &Arc<Shares>, tenant: &str, amount: usize, now: Instant) -> Option<Share> {
        shares.take_at(tenant.into(), amount, now)
    }

    #[test]
    fn a_tenant_alone_may_use_all_and_gives_way_as_soon_as_another_wants_some() {
        let (shares, now) = (Shares::new(10, Gauge::noop()), Instant::now());
        let mut of_noisy: Vec<_> = (0..10)
            .map(|_| take(&shares, "noisy", 1, now).unwrap())
            .collect();
        assert!(take(&shares, "quiet", 1, now).is_none(), "it is full");
        of_noisy.truncate(9);
        assert!(take(&shares, "noisy", 1, now).is_none(), "another wants it");
        let of_quiet = take(&shares, "quiet", 1, now).unwrap();
        of_noisy.truncate(5);
        assert!(take(&shares, "noisy", 1, now).is_none(), "more than half");
        of_noisy.truncate(4);
        of_noisy.push(take(&shares, "noisy", 1, now).unwrap());
        drop(of_quiet);
        assert!(
            take(&shares, "noisy", 1, now).is_some(),
            "nobody else wants any"
        );
    }

    #[test]
    fn a_tenant_that_holds_nothing_is_forgotten() {
        let (shares, now) = (Shares::new(4, Gauge::noop()), Instant::now());
        for tenant in ["a", "b", "c"] {
            drop(take(&shares, tenant, 1, now).unwrap());
        }
        assert_eq!(shares.locked().by_tenant.len(), 0);
    }

    #[test]
    fn capacity_is_reserved_for_a_refused_tenant_only_for_a_while() {
        let (shares, now) = (Shares::new(4, Gauge::noop()), Instant::now());
        let mut of_noisy: Vec<_> = (0..4)
            .map(|_| take(&shares, "noisy", 1, now).unwrap())
            .collect();
        assert!(take(&shares, "gone", 1, now).is_none());
        of_noisy.truncate(3);
        assert!(take(&shares, "noisy", 1, now).is_none());
        assert!(take(&shares, "noisy", 1, now + WANTED_FOR).is_some());
    }

    #[test]
    fn a_share_above_half_is_granted_to_a_tenant_without_one() {
        let (shares, now) = (Shares::new(10, Gauge::noop()), Instant::now());
        let small = take(&shares, "a", 2, now).unwrap();
        let large = take(&shares, "b", 7, now).unwrap();
        assert!(take(&shares, "b", 1, now).is_none());
        drop((small, large));
        assert!(take(&shares, "a", 10, now).is_some());
    }
}
