//! The lease of one index shard: taken when it is free or has expired, renewed while it is held.

use std::sync::Arc;
use std::time::Duration;

use waybill_clock::boot_clock;
use waybill_engine::{BootTime, OwnerId, PartitionId, TopicOffsets};
use waybill_store::{Checkpoint, Lease, LeaseKey, Store, StoreError, takeable};

/// An index shard that this process owns.
#[derive(Debug)]
pub(super) struct IndexShardLease {
    store: Arc<dyn Store>,
    row: Lease,
    margin: Duration,
    valid_until: BootTime,
}

impl IndexShardLease {
    /// Takes the lease of an index shard; waits while another owner holds it.
    pub(super) async fn acquire(
        store: Arc<dyn Store>,
        index_shard: PartitionId,
        owner: OwnerId,
        duration: Duration,
        margin: Duration,
    ) -> Result<Self, StoreError> {
        let key = LeaseKey::supervisor(index_shard);
        loop {
            let seen = takeable(&*store, key, margin, None).await?;
            let before = seen.clone().unwrap_or(Lease::new(key, index_shard));
            let row = Lease {
                owner: Some(owner),
                epoch: before.epoch.next(),
                renewal: 0,
                duration,
                ..before
            };
            let sent = boot_clock();
            if store.take_lease(seen, row.clone()).await? {
                return Ok(Self {
                    store,
                    row,
                    margin,
                    valid_until: sent + duration.saturating_sub(margin),
                });
            }
        }
    }

    /// The offsets up to which the partition of the index shard was rerouted.
    pub(super) fn rerouted(&self) -> TopicOffsets {
        self.row.checkpoint.at
    }

    /// Stores these offsets with a renewal. Returns whether the lease is still held.
    pub(super) async fn keep_rerouted(&mut self, to: TopicOffsets) -> Result<bool, StoreError> {
        self.row.checkpoint = Checkpoint::at(to);
        self.renew(self.row.owner).await
    }

    /// Whether its owner may act.
    pub(super) fn is_valid(&self) -> bool {
        boot_clock() < self.valid_until
    }

    /// Renews it if a third of it has passed. Returns whether it is still held.
    pub(super) async fn keep(&mut self) -> Result<bool, StoreError> {
        let rest = self.valid_until.since(boot_clock());
        if rest > self.row.duration * 2 / 3 - self.margin.min(self.row.duration / 3) {
            return Ok(true);
        }
        self.renew(self.row.owner).await
    }

    /// Releases the lease, so that another supervisor can take it immediately.
    pub(super) async fn release(mut self) -> Result<(), StoreError> {
        self.renew(None).await.map(drop)
    }

    async fn renew(&mut self, owner: Option<OwnerId>) -> Result<bool, StoreError> {
        let mut row = self.row.clone();
        row.renewal += 1;
        let sent = boot_clock();
        let held = match owner {
            Some(_) => self.store.renew_lease(row.clone()).await?,
            None => {
                row.owner = None;
                let seen = Some(self.row.clone());
                self.store.take_lease(seen, row.clone()).await?
            }
        };
        if held {
            self.valid_until = sent + row.duration.saturating_sub(self.margin);
            self.row = row;
        }
        Ok(held)
    }
}
