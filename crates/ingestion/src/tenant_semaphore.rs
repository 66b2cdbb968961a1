//! A semaphore that tenants share.
//!
//! What must hold: no tenant holds the whole semaphore while another tenant needs a part of it. A
//! tenant may use the whole semaphore while it is the only one. As soon as another tenant holds a
//! permit, or was recently refused one, each tenant gets at most half.
//!
//! The tenant is that of the token, because a client could put any name into a request. Callers
//! without a token, and callers with a token for all tenants, count as one tenant.
//!
//! The permit of a client that sends slowly is revoked if another request does not fit, even one of
//! the same tenant: a few bytes per second must not keep memory from others.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use metrics::Gauge;
use tokio_util::sync::CancellationToken;
use waybill_connections::ClientPace;
use waybill_http::auth::Tenants;

/// How long a refused tenant counts as one that needs a permit: longer than `Retry-After`.
const WANTED_FOR: Duration = Duration::from_secs(10);
/// At this number of remembered tenants, those that hold and need nothing are forgotten.
const IDLE_MAX: usize = 1_000;

/// A bound, and how much of it each tenant holds.
#[derive(Debug)]
struct TenantShares {
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

/// What a caller requests of a bound.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    amount: usize,
    /// How much must remain free, in addition to `amount`, if the bound is large enough.
    spare: usize,
}

impl TenantShares {
    /// A bound without permits.
    fn new(max: usize, shown: Gauge) -> Arc<Self> {
        Arc::new(Self {
            max,
            held: Mutex::default(),
            shown,
        })
    }

    /// Takes a permit for a caller's tenant, until it is dropped; `None` if the tenant may not have
    /// it now.
    fn take(self: &Arc<Self>, tenants: &Tenants, wanted: Wanted) -> Option<Permit> {
        let tenant = tenants.only();
        let tenant = tenant.map_or_else(Arc::default, Arc::clone);
        self.take_at(tenant, wanted, Instant::now())
    }

    fn take_at(self: &Arc<Self>, tenant: Arc<str>, wanted: Wanted, now: Instant) -> Option<Permit> {
        let amount = wanted.amount;
        let mut held = self.locked();
        let mut others = held.by_tenant.iter();
        let is_shared = others.any(|(other, it)| *other != tenant && it.wants(now));
        let has = held.by_tenant.get(&tenant).map_or(0, |it| it.held);
        // A tenant that holds nothing may take a permit for more than half.
        let fits = !is_shared || has == 0 || has + amount <= self.max / 2;
        let is_taken = fits && !self.lacks(held.total, wanted);
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
        Some(Permit {
            of: Arc::clone(self),
            tenant,
            amount,
        })
    }

    /// Whether the bound has too little left for this, if `held` of it is taken.
    fn lacks(&self, held: usize, wanted: Wanted) -> bool {
        let max = self.max - wanted.spare.min(self.max.saturating_sub(wanted.amount));
        held + wanted.amount > max
    }

    fn locked(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Part of a semaphore's amount, held until it is dropped.
#[derive(Debug)]
pub struct Permit {
    of: Arc<TenantShares>,
    tenant: Arc<str>,
    amount: usize,
}

impl Permit {
    /// Whether it belongs to the tenant of these callers.
    fn is_of(&self, tenants: &Tenants) -> bool {
        let other = tenants.only();
        other.map_or("", |tenant| tenant) == &*self.tenant
    }

    /// Whether the permit's tenant holds more than half of the semaphore, and is none of these
    /// tenants.
    fn may_be_revoked_for(&self, tenants: &Tenants) -> bool {
        let is_own = self.is_of(tenants);
        let held = self.of.locked();
        let of_tenant = held.by_tenant.get(&self.tenant);
        !is_own && of_tenant.is_some_and(|it| it.held > self.of.max / 2)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut held = self.of.locked();
        held.total -= self.amount;
        self.of.shown.decrement(self.amount as f64);
        if let Entry::Occupied(mut of_tenant) = held.by_tenant.entry(Arc::clone(&self.tenant)) {
            of_tenant.get_mut().held -= self.amount;
            // Forgets a tenant that holds and needs nothing, so that lookups stay fast.
            if of_tenant.get().held == 0 && of_tenant.get().refused_at.is_none() {
                of_tenant.remove();
            }
        }
    }
}

/// A semaphore that tenants share. Its permits can be revoked: from a tenant that holds more than
/// half, if a request of another tenant does not fit, and from slow clients.
#[derive(Debug)]
pub struct TenantSemaphore {
    shares: Arc<TenantShares>,
    issued: Mutex<IssuedPermits>,
}

/// The revocable permits, the oldest first, and some that were released.
#[derive(Debug, Default)]
struct IssuedPermits {
    permits: VecDeque<IssuedPermit>,
    /// At this number of permits, the released ones are forgotten.
    sweep_at: usize,
}

impl IssuedPermits {
    fn add(&mut self, issued: IssuedPermit) {
        if self.permits.len() >= self.sweep_at {
            self.permits
                .retain(|issued| issued.permit.strong_count() > 0);
            self.sweep_at = 2 * self.permits.len() + 8;
        }
        self.permits.push_back(issued);
    }
}

/// A permit that can be revoked.
#[derive(Debug)]
pub struct RevocablePermit {
    _permit: Arc<Mutex<Option<Permit>>>,
    arrivals: SharedPace,
    revoked: CancellationToken,
}

/// How fast the body of a permit's request arrives.
type SharedPace = Arc<Mutex<ClientPace>>;

#[derive(Debug)]
struct IssuedPermit {
    permit: Weak<Mutex<Option<Permit>>>,
    arrivals: SharedPace,
    revoked: CancellationToken,
}

impl TenantSemaphore {
    /// A semaphore without permits. `used` shows how much is held, `limit` the maximum.
    pub fn new(max: usize, used: Gauge, limit: &Gauge) -> Self {
        limit.set(max as f64);
        Self {
            shares: TenantShares::new(max, used),
            issued: Mutex::default(),
        }
    }

    /// The amount of all permits together.
    pub fn max(&self) -> usize {
        self.shares.max
    }

    /// Takes a permit that is never revoked, for short uses.
    pub fn acquire(&self, tenants: &Tenants, amount: usize) -> Option<Permit> {
        self.take(tenants, Wanted { amount, spare: 0 })
    }

    /// Takes a permit that may be revoked, for uses that can last, and leaves `spare` of the amount
    /// to short uses.
    pub fn acquire_revocable(
        &self,
        tenants: &Tenants,
        amount: usize,
        spare: usize,
    ) -> Option<RevocablePermit> {
        let permit = self.take(tenants, Wanted { amount, spare })?;
        Some(self.make_revocable(permit, SharedPace::default()))
    }

    /// Makes a permit revocable. `arrivals` measures how fast its body arrives.
    pub fn make_revocable(&self, permit: Permit, arrivals: SharedPace) -> RevocablePermit {
        let permit = Arc::new(Mutex::new(Some(permit)));
        let revoked = CancellationToken::new();
        self.issued().add(IssuedPermit {
            permit: Arc::downgrade(&permit),
            arrivals: Arc::clone(&arrivals),
            revoked: revoked.clone(),
        });
        RevocablePermit {
            _permit: permit,
            arrivals,
            revoked,
        }
    }

    fn take(&self, tenants: &Tenants, wanted: Wanted) -> Option<Permit> {
        let permit = self.shares.take(tenants, wanted);
        permit.or_else(|| self.revoke_for(tenants, wanted, tokio::time::Instant::now()))
    }

    fn revoke_for(
        &self,
        tenants: &Tenants,
        wanted: Wanted,
        now: tokio::time::Instant,
    ) -> Option<Permit> {
        let issued = self.issued();
        let all = || issued.permits.iter();
        let mut slow = all().filter(|issued| {
            let is_short = self.shares.lacks(self.shares.locked().total, wanted);
            issued.revoke_if(|permit| (is_short || permit.is_of(tenants)) && issued.is_slow(now))
        });
        let permit = slow.find_map(|_| self.shares.take(tenants, wanted));
        let mut of_others =
            all().filter(|issued| issued.revoke_if(|permit| permit.may_be_revoked_for(tenants)));
        permit.or_else(|| of_others.find_map(|_| self.shares.take(tenants, wanted)))
    }

    fn issued(&self) -> MutexGuard<'_, IssuedPermits> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RevocablePermit {
    /// Measures how fast a body arrives for this permit.
    pub fn measure<B>(&self, body: B) -> MeasuredBody<B> {
        MeasuredBody {
            body,
            arrivals: Arc::clone(&self.arrivals),
        }
    }

    /// Resolves once the permit is revoked.
    pub async fn revoked(&self) {
        self.revoked.cancelled().await;
    }

    /// Whether the permit is revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.is_cancelled()
    }
}

impl IssuedPermit {
    /// Revokes the permit, if it is still held and `is_such` holds for it.
    fn revoke_if(&self, is_such: impl FnOnce(&Permit) -> bool) -> bool {
        let Some(permit) = self.permit.upgrade() else {
            return false;
        };
        let mut permit = permit.lock().unwrap_or_else(PoisonError::into_inner);
        let is_revoked = permit.take_if(|permit| is_such(permit)).is_some();
        if is_revoked {
            self.revoked.cancel();
        }
        is_revoked
    }

    fn is_slow(&self, now: tokio::time::Instant) -> bool {
        locked(&self.arrivals).slow_rate(now).is_some()
    }
}

fn locked(arrivals: &SharedPace) -> MutexGuard<'_, ClientPace> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body whose arrival is measured.
#[derive(Debug)]
pub struct MeasuredBody<B> {
    body: B,
    arrivals: SharedPace,
}

impl<B> MeasuredBody<B> {
    /// Measures how fast a body arrives.
    pub fn new(body: B) -> Self {
        Self {
            body,
            arrivals: SharedPace::default(),
        }
    }

    /// How fast it arrives.
    pub fn arrivals(&self) -> SharedPace {
        Arc::clone(&self.arrivals)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for MeasuredBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let now = tokio::time::Instant::now();
        let mut arrivals = locked(&self.arrivals);
        match &polled {
            Poll::Pending => arrivals.report(now, true, 0),
            Poll::Ready(Some(Ok(frame))) => {
                arrivals.report(now, false, frame.data_ref().map_or(0, Bytes::len));
            }
            // The rest of the work does not wait for the client.
            Poll::Ready(Some(Err(_)) | None) => *arrivals = ClientPace::default(),
        }
        drop(arrivals);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(
        shares: &Arc<TenantShares>,
        tenant: &str,
        amount: usize,
        now: Instant,
    ) -> Option<Permit> {
        shares.take_at(tenant.into(), Wanted { amount, spare: 0 }, now)
    }

    #[test]
    fn a_tenant_may_use_all_until_another_needs_some_and_then_at_most_half() {
        let (shares, now) = (TenantShares::new(10, Gauge::noop()), Instant::now());
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
            "no other tenant wants any"
        );
    }

    #[test]
    fn a_tenant_that_holds_nothing_is_forgotten() {
        let (shares, now) = (TenantShares::new(4, Gauge::noop()), Instant::now());
        for tenant in ["a", "b", "c"] {
            drop(take(&shares, tenant, 1, now).unwrap());
        }
        assert_eq!(shares.locked().by_tenant.len(), 0);
    }

    #[test]
    fn capacity_is_reserved_for_a_refused_tenant_only_for_a_while() {
        let (shares, now) = (TenantShares::new(4, Gauge::noop()), Instant::now());
        let mut of_noisy: Vec<_> = (0..4)
            .map(|_| take(&shares, "noisy", 1, now).unwrap())
            .collect();
        assert!(take(&shares, "gone", 1, now).is_none());
        of_noisy.truncate(3);
        assert!(take(&shares, "noisy", 1, now).is_none());
        assert!(take(&shares, "noisy", 1, now + WANTED_FOR).is_some());
    }

    #[test]
    fn a_tenant_without_permits_may_take_more_than_half() {
        let (shares, now) = (TenantShares::new(10, Gauge::noop()), Instant::now());
        let small = take(&shares, "a", 2, now).unwrap();
        let large = take(&shares, "b", 7, now).unwrap();
        assert!(take(&shares, "b", 1, now).is_none());
        drop((small, large));
        assert!(take(&shares, "a", 10, now).is_some());
    }

    #[test]
    fn permits_of_slow_bodies_are_revoked_for_every_tenant_and_of_fast_ones_only_for_others() {
        let semaphore = TenantSemaphore::new(4, Gauge::noop(), &Gauge::noop());
        let now = tokio::time::Instant::now();
        let ago = |millis| now - Duration::from_millis(millis);
        let waiting_since = [None, Some(ago(1_000)), Some(ago(2_001)), Some(ago(3_000))];
        let permits = waiting_since.map(|waiting_since| {
            let permit = semaphore.acquire_revocable(&Tenants::All, 1, 0).unwrap();
            if let Some(at) = waiting_since {
                locked(&permit.arrivals).report(at, true, 100);
            }
            permit
        });
        let is_revoked = || permits.each_ref().map(RevocablePermit::is_revoked);
        let one = Wanted {
            amount: 1,
            spare: 0,
        };
        let first = semaphore.revoke_for(&Tenants::All, one, now).unwrap();
        assert_eq!(is_revoked(), [false, false, true, false]);
        let second = semaphore.revoke_for(&Tenants::All, one, now).unwrap();
        assert!(semaphore.revoke_for(&Tenants::All, one, now).is_none());
        assert_eq!(is_revoked(), [false, false, true, true]);
        drop((first, second));
    }

    #[test]
    fn revocable_permits_leave_the_spare_amount_to_short_uses() {
        let semaphore = TenantSemaphore::new(10, Gauge::noop(), &Gauge::noop());
        let _revocable = semaphore.acquire_revocable(&Tenants::All, 8, 3).unwrap();
        assert!(semaphore.acquire_revocable(&Tenants::All, 1, 3).is_none());
        assert!(semaphore.acquire(&Tenants::All, 2).is_some());
    }
}
