//! Leases and the layout in the store: acquires, renews, releases and reads them.

use std::sync::Arc;

use waybill_clock::clocks;
use waybill_engine::ShardId;
use waybill_scheduler_core::{
    AcquireError, Acquisition, AcquisitionAnswer, AcquisitionCall, AcquisitionStep, Generation,
    HeldLease, Input, LogEnds, Task, TaskError,
};
use waybill_state::{Layout, Lease, LeaseKey};
use waybill_store::Store;
use waybill_telemetry::chain;

use super::Driver;
use crate::consumers::EndsReader;
use crate::tasks;

impl Driver {
    pub(super) fn acquire(&self, shard: ShardId, generation: Generation, layout: Layout) {
        let acquisition = Acquisition::new(self.parts.candidate.clone(), layout, shard);
        let store = Arc::clone(&self.parts.store);
        let acquiring = acquire(acquisition, store, self.parts.consumers.ends_reader());
        self.spawn(Task::Acquire, acquiring, move |result| Input::Acquired {
            shard,
            generation,
            result,
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

/// Performs the calls of an acquisition, one at a time.
async fn acquire(
    mut acquisition: Acquisition,
    store: Arc<dyn Store>,
    ends: EndsReader,
) -> Result<(HeldLease, LogEnds), AcquireError> {
    let mut answer = AcquisitionAnswer::Started;
    loop {
        answer = match acquisition.handle(answer, clocks()) {
            AcquisitionStep::Call(call) => perform(call, &*store, &ends).await,
            AcquisitionStep::Done(result) => return result,
        };
    }
}

async fn perform(call: AcquisitionCall, store: &dyn Store, ends: &EndsReader) -> AcquisitionAnswer {
    use AcquisitionAnswer as Answer;
    use AcquisitionCall as Call;

    let in_store = match call {
        Call::ReadLease(key) => {
            let lease = store.lease(key).await;
            lease.map(|lease| Answer::Lease(lease.map(Box::new)))
        }
        Call::TakeLease { seen, lease } => {
            let taken = store.take_lease(seen.map(|seen| *seen), *lease).await;
            taken.map(Answer::Taken)
        }
        Call::ReadLayout => store.layout().await.map(Answer::Layout),
        Call::ReadCursor(index_shard) => store.due_cursor(index_shard).await.map(Answer::Cursor),
        Call::AdvanceCursor(index_shard, cursor) => {
            let moved = store.advance_due_cursor(index_shard, cursor).await;
            moved.map(|()| Answer::CursorMoved)
        }
        Call::ReadEnds(partition) => {
            let ends = ends.read(partition).await;
            return ends.map_or_else(Answer::Failed, Answer::Ends);
        }
        Call::ReadCommitted(source, partition) => {
            let committed = ends.committed(source, partition).await;
            return committed.map_or_else(Answer::Failed, Answer::Committed);
        }
        Call::Wait(time) => {
            tokio::time::sleep(time).await;
            Ok(Answer::Waited)
        }
    };
    in_store.unwrap_or_else(|error| Answer::Failed(chain(&error)))
}
