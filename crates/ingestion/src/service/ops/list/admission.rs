//! Bounds the cost of lists.
//!
//! A list reads up to 2,000 rows for a request of one line. So lists are read one at a time, with
//! pauses, and repeated requests cannot take the CPU that operations need. Tenants take turns: one
//! list of each tenant waits for the next permit, and the tenant's other lists wait behind it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until};
use waybill_http::auth::Tenants;
use waybill_http::problem::{Kind, Problem};

use crate::measure::{LISTS, LISTS_MAX};
use crate::tenant_semaphore::{Permit, TenantSemaphore};

/// The pause after a piece, as a multiple of the time that reading it took.
const PAUSE: u32 = 3;
/// The shortest pause. A read continues after its list was dropped, and its duration is then
/// unknown.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause, however long the store took.
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// The lists that are being read, or wait.
#[derive(Debug)]
pub struct ListAdmission {
    waiting: TenantSemaphore,
    /// By tenant, the lock of its list that is being read or waits for the next permit.
    tenant_locks: std::sync::Mutex<HashMap<Arc<str>, Weak<Mutex<()>>>>,
    /// No list is read until this time. Locked by the list that is being read.
    paused_until: Mutex<Instant>,
}

/// Allows one list to be read.
#[derive(Debug)]
pub struct ListPermit<'a> {
    paused_until: MutexGuard<'a, Instant>,
    began: Instant,
    _tenant_lock: OwnedMutexGuard<()>,
    _waiting: Permit,
}

impl ListAdmission {
    /// Allows `max` concurrent lists.
    pub fn new(max: usize) -> Self {
        Self {
            waiting: TenantSemaphore::new(max, LISTS.of([]), &LISTS_MAX.of([])),
            tenant_locks: std::sync::Mutex::default(),
            paused_until: Mutex::new(Instant::now()),
        }
    }

    /// Waits until the caller's list may be read. While the permit is held, no other list is read.
    ///
    /// # Errors
    ///
    /// If too many lists wait already.
    pub async fn admit(&self, tenants: &Tenants) -> Result<ListPermit<'_>, Problem> {
        let waiting = self.waiting.acquire(tenants, 1);
        let waiting = waiting.ok_or_else(|| {
            let detail = "Too many lists are being read.";
            Problem::new(Kind::Overloaded, detail)
        })?;
        let tenant_lock = self.tenant_lock(tenants).lock_owned().await;
        let paused_until = self.paused_until.lock().await;
        sleep_until(*paused_until).await;
        Ok(ListPermit {
            paused_until,
            began: Instant::now(),
            _tenant_lock: tenant_lock,
            _waiting: waiting,
        })
    }

    /// The lock of a tenant, held by one of its lists at a time.
    fn tenant_lock(&self, tenants: &Tenants) -> Arc<Mutex<()>> {
        let tenant = tenants.only().map_or_else(Arc::default, Arc::clone);
        let mut tenant_locks = self
            .tenant_locks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        tenant_locks.retain(|_, lock| lock.strong_count() > 0);
        let known = tenant_locks.get(&tenant).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let lock = Arc::default();
            tenant_locks.insert(tenant, Arc::downgrade(&lock));
            lock
        })
    }
}

impl ListPermit<'_> {
    /// Pauses between two pieces.
    pub async fn pause(&mut self) {
        self.piece_ended();
        sleep_until(*self.paused_until).await;
    }

    /// Delays the next piece by a pause.
    fn piece_ended(&mut self) {
        let now = Instant::now();
        let took = now.saturating_duration_since(self.began);
        let pause = took.saturating_mul(PAUSE).clamp(PAUSE_MIN, PAUSE_MAX);
        // A list that is dropped in a pause must not begin another pause.
        *self.paused_until = (*self.paused_until).max(now + pause);
        self.began = *self.paused_until;
    }
}

impl Drop for ListPermit<'_> {
    fn drop(&mut self) {
        self.piece_ended();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;
    use tokio::time::sleep;

    use super::*;

    const PIECE: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_pause_follows_each_piece_and_each_list() {
        let lists = ListAdmission::new(2);
        let mut permit = lists.admit(&Tenants::All).await.unwrap();
        for _ in 0..2 {
            sleep(PIECE).await;
            let read = Instant::now();
            permit.pause().await;
            assert!(read.elapsed() >= PAUSE * PIECE);
        }
        sleep(PIECE).await;
        let read = Instant::now();
        drop(permit);
        drop(lists.admit(&Tenants::All).await.unwrap());
        assert!(read.elapsed() >= PAUSE * PIECE);
    }

    #[tokio::test]
    async fn a_list_that_is_dropped_in_a_pause_begins_no_other_pause() {
        let lists = ListAdmission::new(2);
        let mut permit = lists.admit(&Tenants::All).await.unwrap();
        sleep(PIECE).await;
        assert!(poll!(pin!(permit.pause())).is_pending());
        let until = *permit.paused_until;
        drop(permit);
        assert!(*lists.paused_until.lock().await <= until + PAUSE_MIN);
    }

    #[tokio::test]
    async fn a_tenant_with_many_lists_delays_another_tenant_by_one_list() {
        let lists = ListAdmission::new(8);
        let [many, few] = ["many", "few"].map(|name| Tenants::One(name.into()));
        let first = lists.admit(&many).await.unwrap();
        let mut second = pin!(lists.admit(&many));
        assert!(poll!(second.as_mut()).is_pending());
        let mut other = pin!(lists.admit(&few));
        assert!(poll!(other.as_mut()).is_pending());
        drop(first);
        assert!(poll!(second.as_mut()).is_pending());
        let other = other.await.unwrap();
        assert!(poll!(second.as_mut()).is_pending());
        drop(other);
        drop(second.await.unwrap());
        drop(lists.admit(&few).await.unwrap());
        assert_eq!(
            lists.tenant_locks.lock().unwrap().len(),
            1,
            "others are forgotten"
        );
    }

    #[tokio::test]
    async fn one_list_is_read_at_a_time_and_too_many_are_refused() {
        let lists = ListAdmission::new(2);
        let first = lists.admit(&Tenants::All).await.unwrap();
        let mut second = pin!(lists.admit(&Tenants::All));
        assert!(poll!(second.as_mut()).is_pending());
        let refused = lists.admit(&Tenants::All).await.unwrap_err();
        assert_eq!(refused.status(), 503);
        assert!(refused.retry_after().is_some());
        // The second list waits until the first one's permit is dropped, not for a pause.
        sleep(2 * PAUSE_MIN).await;
        assert!(poll!(second.as_mut()).is_pending());
        drop(first);
        drop(second.await.unwrap());
        drop(lists.admit(&Tenants::All).await.unwrap());
    }
}
