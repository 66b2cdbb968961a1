//! Leases and the layout in the store: acquires, renews, releases and reads them.

use std::sync::Arc;
use std::time::Duration;

use waybill_clock::boot_clock;
use waybill_engine::{OwnerId, PartitionId, ShardId};
use waybill_scheduler_core::{Generation, HeldLease, Input, LeaseTerms, LogEnds, Task, TaskError};
use waybill_state::{Layout, Lease, LeaseKey};
use waybill_telemetry::chain;
use waybill_topology::shards;

use super::{Driver, RETRY_AFTER};
use crate::acquire_error::AcquireError;
use crate::consumers::EndsReader;
use crate::foreign_state::FirstOwner;
use crate::{ownership, tasks};

/// The pause before a new owner reads the ends of the logs again.
const ENDS_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// How this process acquires leases.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    /// Its nonce.
    pub owner: OwnerId,
    pub terms: LeaseTerms,
    /// Whether a shard may start that the store has no record of, although its log has been consumed.
    pub may_lack_state: bool,
}

impl Driver {
    pub(super) fn acquire(&self, shard: ShardId, generation: Generation, layout: Layout) {
        let Candidate {
            owner,
            terms,
            may_lack_state,
        } = self.parts.candidate;
        let store = Arc::clone(&self.parts.store);
        let ends = self.parts.consumers.ends_reader();
        let first_owner = FirstOwner {
            logs: ends.clone(),
            may_lack_state,
        };
        let acquiring = async move {
            let of = shards::generation_to_run(&*store, &layout, shard).await?;
            first_owner.check(&*store, &layout, of, shard).await?;
            let acquiring =
                ownership::acquire(store, &layout, of, shard, owner, terms, &first_owner);
            let lease = acquiring.await?;
            let ends = read_ends(&ends, lease.row.partition, &lease).await?;
            Ok::<_, AcquireError>((lease, ends))
        };
        self.spawn(Task::Acquire, acquiring, move |result| Input::Acquired {
            shard,
            generation,
            result: result.map_err(AcquireError::into),
        });
    }

    pub(super) fn hand_back(&self, held: Lease, free: Lease) {
        let store = Arc::clone(&self.parts.store);
        let releasing = async move {
            if let Err(error) = store.take_lease(Some(held), free).await {
                tracing::warn!(error = %chain(&error), "could not release an unused lease; it will expire");
            }
        };
        tasks::spawn_unawaited(&self.parts.runtime, Task::Release, releasing);
    }

    pub(super) fn renew(&self, shard: ShardId, generation: Generation, lease: Lease) {
        let store = Arc::clone(&self.parts.store);
        let renewing = async move {
            store
                .renew_lease(lease)
                .await
                .map_err(|e| tasks::failed(&e))
        };
        self.spawn(Task::Renew, renewing, move |result| Input::Renewed {
            shard,
            generation,
            result,
        });
    }

    pub(super) fn release(&self, shard: ShardId, generation: Generation, held: Lease, free: Lease) {
        let store = Arc::clone(&self.parts.store);
        let releasing = async move {
            let taken = store.take_lease(Some(held), free).await;
            taken.map_err(|error| tasks::failed(&error))
        };
        self.spawn(Task::Renew, releasing, move |result| Input::Renewed {
            shard,
            generation,
            result,
        });
    }

    pub(super) fn read_leases(&self, shard: ShardId, generation: Generation, keys: Vec<LeaseKey>) {
        let store = Arc::clone(&self.parts.store);
        let reading = async move {
            let mut leases = Vec::with_capacity(keys.len());
            for key in keys {
                let lease = store.lease(key).await;
                leases.push(lease.map_err(|error| tasks::failed(&error))?);
            }
            Ok::<_, TaskError>(leases)
        };
        self.spawn(Task::Renew, reading, move |result| Input::Leases {
            shard,
            generation,
            result,
        });
    }

    pub(super) fn read_layout(&self) {
        let store = Arc::clone(&self.parts.store);
        let reading = async move { store.layout().await.map_err(|error| tasks::failed(&error)) };
        self.spawn(Task::Layout, reading, Input::Layout);
    }
}

/// Reads the ends of the logs, and retries while the lease lasts: giving up now would mean waiting
/// for the lease to expire. (The leader of a new topic might not know the topic yet.)
async fn read_ends(
    ends: &EndsReader,
    partition: PartitionId,
    lease: &HeldLease,
) -> Result<LogEnds, AcquireError> {
    loop {
        match ends.read(partition).await {
            Err(error) if boot_clock() + RETRY_AFTER < lease.valid_until => {
                tracing::info!(
                    %partition,
                    error = %chain(&error),
                    "could not read the ends of the logs; retrying"
                );
                tokio::time::sleep(ENDS_AGAIN_AFTER).await;
            }
            result => return result,
        }
    }
}
