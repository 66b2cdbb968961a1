//! A bound that tenants share.
//!
//! What must hold: no tenant takes all of it while others need some. Alone, a tenant may use the
//! whole bound. As soon as another tenant holds a share, or was refused one recently, it gets at
//! most half.
//!
//! The tenant is that of the token: a name in a request could be invented freely. Callers without a
//! token, and callers with a token for all tenants, count as one tenant.
//!
//! A place whose client sends slowly is revoked for anybody who finds no room, also of its own
//! tenant: a few bytes a second must not keep memory from others.

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
use waybill_connections::Arrivals;
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

/// What a caller wants of a bound.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    amount: usize,
    /// How much must remain free beside it, as far as the bound allows.
    spare: usize,
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
    fn take(self: &Arc<Self>, tenants: &Tenants, wanted: Wanted) -> Option<Share> {
        let tenant = tenants.only();
        let tenant = tenant.map_or_else(Arc::default, Arc::clone);
        self.take_at(tenant, wanted, Instant::now())
    }

    fn take_at(self: &Arc<Self>, tenant: Arc<str>, wanted: Wanted, now: Instant) -> Option<Share> {
        let amount = wanted.amount;
        let mut held = self.locked();
        let mut others = held.by_tenant.iter();
        let is_shared = others.any(|(other, it)| *other != tenant && it.wants(now));
        let has = held.by_tenant.get(&tenant).map_or(0, |it| it.held);
        // A tenant that holds nothing may take a share that is larger than half.
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
        Some(Share {
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

/// A share of a bound.
#[derive(Debug)]
pub struct Share {
    of: Arc<Shares>,
    tenant: Arc<str>,
    amount: usize,
}

impl Share {
    /// Whether it belongs to the tenant of these callers.
    fn is_of(&self, tenants: &Tenants) -> bool {
        let other = tenants.only();
        other.map_or("", |tenant| tenant) == &*self.tenant
    }

    /// Whether the share's tenant holds more than half of the bound, and these tenants are others.
    fn may_be_revoked_for(&self, tenants: &Tenants) -> bool {
        let is_own = self.is_of(tenants);
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
/// half of it, if another tenant finds no room, and from slow clients.
#[derive(Debug)]
pub struct Places {
    shares: Arc<Shares>,
    taken: Mutex<TakenPlaces>,
}

/// The places taken, the oldest first, and some that were released.
#[derive(Debug, Default)]
struct TakenPlaces {
    places: VecDeque<Taken>,
    /// At this number of places, the released ones are forgotten.
    sweep_at: usize,
}

impl TakenPlaces {
    fn add(&mut self, place: Taken) {
        if self.places.len() >= self.sweep_at {
            self.places.retain(|place| place.share.strong_count() > 0);
            self.sweep_at = 2 * self.places.len() + 8;
        }
        self.places.push_back(place);
    }
}

/// A share of a bound that can be revoked.
#[derive(Debug)]
pub struct Place {
    _share: Arc<Mutex<Option<Share>>>,
    arrivals: SharedArrivals,
    revoked: CancellationToken,
}

/// How fast the body of a place arrives.
type SharedArrivals = Arc<Mutex<Arrivals>>;

#[derive(Debug)]
struct Taken {
    share: Weak<Mutex<Option<Share>>>,
    arrivals: SharedArrivals,
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

    /// The whole bound.
    pub fn max(&self) -> usize {
        self.shares.max
    }

    /// Takes a share that is never revoked, for short uses.
    pub fn share(&self, tenants: &Tenants, amount: usize) -> Option<Share> {
        self.take(tenants, Wanted { amount, spare: 0 })
    }

    /// Takes a place that may be revoked, for uses that can last, and leaves `spare` of the bound to
    /// short uses.
    pub fn place(&self, tenants: &Tenants, amount: usize, spare: usize) -> Option<Place> {
        let share = self.take(tenants, Wanted { amount, spare })?;
        Some(self.revocable(share, SharedArrivals::default()))
    }

    /// Makes a share revocable. `arrivals` measures how fast its body arrives.
    pub fn revocable(&self, share: Share, arrivals: SharedArrivals) -> Place {
        let share = Arc::new(Mutex::new(Some(share)));
        let revoked = CancellationToken::new();
        self.taken().add(Taken {
            share: Arc::downgrade(&share),
            arrivals: Arc::clone(&arrivals),
            revoked: revoked.clone(),
        });
        Place {
            _share: share,
            arrivals,
            revoked,
        }
    }

    fn take(&self, tenants: &Tenants, wanted: Wanted) -> Option<Share> {
        let share = self.shares.take(tenants, wanted);
        share.or_else(|| self.revoke_for(tenants, wanted, tokio::time::Instant::now()))
    }

    fn revoke_for(
        &self,
        tenants: &Tenants,
        wanted: Wanted,
        now: tokio::time::Instant,
    ) -> Option<Share> {
        let taken = self.taken();
        let places = || taken.places.iter();
        let mut slow = places().filter(|place| {
            let is_short = self.shares.lacks(self.shares.locked().total, wanted);
            place.revoke_if(|share| (is_short || share.is_of(tenants)) && place.is_slow(now))
        });
        let share = slow.find_map(|_| self.shares.take(tenants, wanted));
        let mut of_others =
            places().filter(|place| place.revoke_if(|share| share.may_be_revoked_for(tenants)));
        share.or_else(|| of_others.find_map(|_| self.shares.take(tenants, wanted)))
    }

    fn taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Measures how fast a body arrives for this place.
    pub fn measure<B>(&self, body: B) -> MeasuredBody<B> {
        MeasuredBody {
            body,
            arrivals: Arc::clone(&self.arrivals),
        }
    }

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
    /// Revokes the place, if it is still taken and `is_such` holds for its share.
    fn revoke_if(&self, is_such: impl FnOnce(&Share) -> bool) -> bool {
        let Some(share) = self.share.upgrade() else {
            return false;
        };
        let mut share = share.lock().unwrap_or_else(PoisonError::into_inner);
        let is_revoked = share.take_if(|share| is_such(share)).is_some();
        if is_revoked {
            self.revoked.cancel();
        }
        is_revoked
    }

    fn is_slow(&self, now: tokio::time::Instant) -> bool {
        locked(&self.arrivals).slow_rate(now).is_some()
    }
}

fn locked(arrivals: &SharedArrivals) -> MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A body whose arrival is measured.
#[derive(Debug)]
pub struct MeasuredBody<B> {
    body: B,
    arrivals: SharedArrivals,
}

impl<B> MeasuredBody<B> {
    /// Measures how fast a body arrives.
    pub fn new(body: B) -> Self {
        Self {
            body,
            arrivals: SharedArrivals::default(),
        }
    }

    /// How fast it arrives.
    pub fn arrivals(&self) -> SharedArrivals {
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
            Poll::Ready(Some(Err(_)) | None) => *arrivals = Arrivals::default(),
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

    fn take(shares: &Arc<Shares>, tenant: &str, amount: usize, now: Instant) -> Option<Share> {
        shares.take_at(tenant.into(), Wanted { amount, spare: 0 }, now)
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

    #[test]
    fn slow_bodies_give_way_to_everybody_and_others_to_nobody_of_their_tenant() {
        let places = Places::new(4, Gauge::noop(), &Gauge::noop());
        let now = tokio::time::Instant::now();
        let ago = |millis| now - Duration::from_millis(millis);
        let taken = [None, Some(ago(1_000)), Some(ago(2_001)), Some(ago(3_000))];
        let taken = taken.map(|waiting_since| {
            let place = places.place(&Tenants::All, 1, 0).unwrap();
            if let Some(at) = waiting_since {
                locked(&place.arrivals).report(at, true, 100);
            }
            place
        });
        let is_revoked = || taken.each_ref().map(Place::is_revoked);
        let one = Wanted {
            amount: 1,
            spare: 0,
        };
        let first = places.revoke_for(&Tenants::All, one, now).unwrap();
        assert_eq!(is_revoked(), [false, false, true, false]);
        let second = places.revoke_for(&Tenants::All, one, now).unwrap();
        assert!(places.revoke_for(&Tenants::All, one, now).is_none());
        assert_eq!(is_revoked(), [false, false, true, true]);
        drop((first, second));
    }

    #[test]
    fn places_leave_what_is_spared_to_short_uses() {
        let places = Places::new(10, Gauge::noop(), &Gauge::noop());
        let _place = places.place(&Tenants::All, 8, 3).unwrap();
        assert!(places.place(&Tenants::All, 1, 3).is_none());
        assert!(places.share(&Tenants::All, 2).is_some());
    }
}
