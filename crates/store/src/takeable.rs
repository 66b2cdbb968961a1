//! When a candidate may take another owner's lease.
//!
//! What must hold: **a silent owner is waited for.** A candidate takes another owner's lease only
//! after it has seen it unchanged for its duration and the margin, on a clock that also counts the
//! time for which the machine was suspended. An exclusive store needs no waiting, since no older
//! owner can live.

use std::time::Duration;

use waybill_clock::boot_clock;
use waybill_engine::OwnerId;

use crate::{Lease, LeaseKey, Store, StoreError};

/// How often a candidate reads a lease that another owner has.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until the lease may be taken, and returns it in its current state. A lease of `me`, if
/// that is given, has a living owner even if no other process can have the store open.
///
/// # Errors
///
/// If the store fails.
pub async fn takeable(
    store: &dyn Store,
    key: LeaseKey,
    margin: Duration,
    me: Option<OwnerId>,
) -> Result<Option<Lease>, StoreError> {
    let mut seen = store.lease(key).await?;
    let mut unchanged_since = boot_clock();
    loop {
        let Some(lease) = &seen else { return Ok(None) };
        let is_mine = me.is_some() && lease.owner == me;
        if lease.owner.is_none() || (store.is_exclusive() && !is_mine) {
            return Ok(seen);
        }
        if boot_clock().since(unchanged_since) >= lease.duration + margin {
            tracing::warn!(
                lease = %key,
                epoch = %lease.epoch,
                "the owner stopped renewing its lease; taking over"
            );
            return Ok(seen);
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now = store.lease(key).await?;
        if now != seen {
            seen = now;
            unchanged_since = boot_clock();
        }
    }
}
