//! Reads the state store for requests.
//!
//! What must hold: no request waits for the store longer than for the broker. The store itself
//! retries for much longer, for schedulers, which can wait. The log reports once that the store is
//! unavailable, and once that it is available again, however many requests fail in the meantime.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use waybill_engine::{Offset, OperationId, PartitionId, Priority};
use waybill_http::problem::{Kind, Problem};
use waybill_kafka::Mark;
use waybill_store::{AttentionCursor, AttentionPage, RowRead, Store, StoreError};
use waybill_topology::partition_map::PartitionMap;
use waybill_topology::shards;

/// How long the reading of a lease is used.
const FRESH_FOR: Duration = Duration::from_millis(200);

/// The store, as ingestion reads it.
#[derive(Debug)]
pub struct StoreReads {
    store: Arc<dyn Store>,
    within: Duration,
    is_unavailable: AtomicBool,
    partition_map: PartitionMap,
    consumed: std::sync::Mutex<HashMap<Log, Arc<Mutex<Known>>>>,
}

/// A log of requests.
type Log = (Priority, PartitionId);

/// When a partition's leases were last read, and the offset in them.
type Known = Option<(Instant, Offset)>;

impl StoreReads {
    /// Creates a reader whose reads end within this time.
    pub fn new(store: Arc<dyn Store>, partition_map: PartitionMap, within: Duration) -> Self {
        Self {
            store,
            within,
            is_unavailable: AtomicBool::new(false),
            partition_map,
            consumed: std::sync::Mutex::default(),
        }
    }

    /// Reads the rows of these operations, in their order.
    ///
    /// # Errors
    ///
    /// If the store cannot be read, or not in time: the problem to answer with.
    pub async fn rows(&self, ids: Vec<OperationId>) -> Result<Vec<RowRead>, Problem> {
        self.answered(self.store.get_many(ids)).await
    }

    /// Reads a page of the operations that need attention.
    ///
    /// # Errors
    ///
    /// As [`rows`](Self::rows).
    pub async fn attention_page(
        &self,
        index_shards: Vec<PartitionId>,
        cursor: AttentionCursor,
        limit: usize,
    ) -> Result<AttentionPage, Problem> {
        self.answered(self.store.attention_page(index_shards, cursor, limit))
            .await
    }

    /// The first offset that not all shards of the partition have durably consumed, according to
    /// their leases. The value may be a moment old.
    ///
    /// Clients poll the status of an operation, and on a cluster every read of a lease delays its
    /// renewals. So one request at a time reads the leases of a partition, and the result serves
    /// all requests shortly after. The offset only grows: an older value can make a request look
    /// pending, but never lost. (A repartition moves it back for the new shards.)
    ///
    /// # Errors
    ///
    /// As [`rows`](Self::rows).
    pub async fn consumed(
        &self,
        priority: Priority,
        partition: PartitionId,
    ) -> Result<Offset, Problem> {
        let partitions = self.partition_map.partitions();
        if !self.partition_map.all_ever().contains(&partition) {
            return Ok(Offset(0));
        }
        let known = {
            let mut of = self.consumed.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(of.entry((priority, partition)).or_default())
        };
        // The time limit includes the wait for a read that is in progress.
        self.answered(async {
            let mut known = known.lock().await;
            if let Some((read_at, offset)) = *known
                && read_at.elapsed() < FRESH_FOR
            {
                return Ok(offset);
            }
            let read_at = Instant::now();
            let layout = shards::layout(&*self.store, partitions).await?;
            let offset = shards::consumed(&*self.store, &layout, priority, partition).await?;
            *known = Some((read_at, offset));
            Ok(offset)
        })
        .await
    }

    /// The mark of the log that a partition's checkpoint was taken on.
    ///
    /// # Errors
    ///
    /// As [`rows`](Self::rows).
    pub async fn mark(&self, priority: Priority, partition: PartitionId) -> Result<Mark, Problem> {
        let partitions = self.partition_map.partitions();
        self.answered(async {
            let layout = shards::layout(&*self.store, partitions).await?;
            let done =
                shards::last_done(&*self.store, &layout, priority.source(), partition).await?;
            Ok(done.map_or(Mark::Missing, |(done, fingerprint)| {
                Mark::of(done, fingerprint)
            }))
        })
        .await
    }

    async fn answered<T>(
        &self,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Problem> {
        let refused = match tokio::time::timeout(self.within, read).await {
            Ok(Ok(found)) => {
                if self.is_unavailable.swap(false, Ordering::Relaxed) {
                    tracing::info!("the state store can be read again");
                }
                return Ok(found);
            }
            Ok(Err(error)) => self.unavailable(&error),
            Err(late) => self.unavailable(&late),
        };
        Err(refused)
    }

    /// Logs the cause, which the client does not get.
    fn unavailable(&self, cause: &(dyn Error + 'static)) -> Problem {
        if !self.is_unavailable.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error = cause,
                "could not read the state store; requests that need it get 503 until it can be read"
            );
        }
        Problem::new(Kind::StoreUnavailable, "The state store could not be read.")
    }
}
