//! How far schedulers have consumed their partitions, as their leases say.
//!
//! Whoever waits for a delivery asks again and again, and on a cluster every read of a lease stands in
//! the way of its renewals. So a partition's is read by one at a time, and what was read serves all
//! who ask shortly after. It only grows: an older answer says that a request may still be pending,
//! and never that it is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use waybill_engine::{Offset, PartitionId};
use waybill_store::{LeaseKey, Store, StoreError};

/// How long an answer serves.
const FRESH_FOR: Duration = Duration::from_millis(200);

/// What is known of each partition.
#[derive(Debug)]
pub struct Consumed {
    store: Arc<dyn Store>,
    partitions: Vec<Mutex<Option<(Instant, Offset)>>>,
}

impl Consumed {
    /// Nothing is known yet.
    pub fn new(store: Arc<dyn Store>, partitions: u32) -> Self {
        Self {
            store,
            partitions: (0..partitions).map(|_| Mutex::default()).collect(),
        }
    }

    /// The first offset that no scheduler has durably consumed, or had not a moment ago.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn of(&self, partition: PartitionId) -> Result<Offset, StoreError> {
        let Some(known) = self.partitions.get(partition.0 as usize) else {
            return Ok(Offset(0));
        };
        let mut known = known.lock().await;
        if let Some((read_at, offset)) = *known
            && read_at.elapsed() < FRESH_FOR
        {
            return Ok(offset);
        }
        let read_at = Instant::now();
        let lease = self.store.lease(LeaseKey::scheduler(partition)).await?;
        let offset = lease.map_or(Offset(0), |lease| lease.consumed);
        *known = Some((read_at, offset));
        Ok(offset)
    }
}
