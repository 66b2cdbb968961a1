//! Waits until a candidate may take another owner's lease; [`LeaseWatch`] decides when.

use std::time::Duration;

use waybill_clock::boot_clock;
use waybill_engine::OwnerId;

use crate::{Lease, LeaseKey, LeaseStatus, LeaseWatch, Store, StoreError};

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
    let mut watch = LeaseWatch::new(margin, store.is_exclusive(), me);
    loop {
        let seen = store.lease(key).await?;
        match watch.observe(seen.as_ref(), boot_clock()) {
            LeaseStatus::Free => return Ok(seen),
            LeaseStatus::Expired => {
                if let Some(lease) = &seen {
                    tracing::warn!(
                        lease = %key,
                        epoch = %lease.epoch,
                        "the owner stopped renewing its lease; taking over"
                    );
                }
                return Ok(seen);
            }
            LeaseStatus::Held => tokio::time::sleep(LeaseWatch::INTERVAL).await,
        }
    }
}
