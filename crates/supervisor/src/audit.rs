//! Drives the audit of one index shard: performs the effects of its state machine on the state
//! store and the topics.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use waybill_clock::{clocks, time_text};
use waybill_engine::{Offset, PartitionId, Source, Workflows};
use waybill_kafka::{Admin, AdminError};
use waybill_messages::Topics;
use waybill_store::{Store, StoreError};
use waybill_supervisor_core::audit::{Effect, Event, Notice, Output};
use waybill_supervisor_core::{Audit, AuditSettings, UnexpectedEvent};
use waybill_topology::partition_map::PartitionMap;
use waybill_topology::shards;

use super::metrics::SupervisorMetrics;
use super::parked::ReadLock;
use super::publisher::{PublishError, Publisher};

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
enum AuditError {
    #[error("cannot read the state store")]
    Store(#[from] StoreError),
    #[error("cannot read the end of the recoveries topic")]
    Admin(#[from] AdminError),
    #[error("recoveries were not acknowledged")]
    Ask(#[from] PublishError),
}

/// What the audits of all index shards of a process share.
#[derive(Debug)]
pub(super) struct Auditor {
    pub(super) name: Arc<str>,
    pub(super) store: Arc<dyn Store>,
    pub(super) workflows: Arc<Workflows>,
    pub(super) timeout_grace: Duration,
    pub(super) partition_map: PartitionMap,
    pub(super) publisher: Arc<Publisher>,
    pub(super) admin: Admin,
    pub(super) topics: Topics,
    pub(super) metrics: Arc<SupervisorMetrics>,
    pub(super) read_lock: ReadLock,
    /// How often an index shard is audited.
    pub(super) every: Duration,
}

impl Auditor {
    /// Audits the index shard until the future is dropped.
    ///
    /// # Errors
    ///
    /// If the driver and the state machine disagree, which is a bug.
    pub(super) async fn audit(
        self: Arc<Self>,
        index_shard: PartitionId,
    ) -> Result<Infallible, UnexpectedEvent> {
        let mut audit = Audit::new(AuditSettings {
            index_shard,
            name: self.name.clone(),
            workflows: self.workflows.clone(),
            timeout_grace: self.timeout_grace,
            interval: self.every,
            chunk: self.publisher.chunk(),
        });
        let mut read_lock = None;
        let mut failure = None;
        let mut event = Event::Started;
        loop {
            let partitions = self.partition_map.partitions();
            let Output { notices, effect } = audit.handle(event, clocks(), partitions)?;
            for notice in notices {
                if notice == Notice::UnlockReads {
                    read_lock = None;
                }
                self.report(index_shard, notice, failure.as_ref());
            }
            let result = self.perform(index_shard, effect, &mut read_lock).await;
            event = result.unwrap_or_else(|error| {
                failure = Some(error);
                Event::Failed
            });
        }
    }

    async fn perform(
        &self,
        index_shard: PartitionId,
        effect: Effect,
        read_lock: &mut Option<OwnedMutexGuard<()>>,
    ) -> Result<Event, AuditError> {
        let store = &*self.store;
        Ok(match effect {
            Effect::Wait(time) => {
                tokio::time::sleep(time).await;
                Event::Waited
            }
            Effect::LockReads => {
                *read_lock = Some(self.read_lock.clone().lock_owned().await);
                Event::Locked
            }
            Effect::ReadDone(partitions) => Event::Offsets(self.done(&partitions).await?),
            Effect::ReadEnds(partitions) => Event::Offsets(self.ends(&partitions).await?),
            Effect::ReadAttention { cursor, limit } => Event::Attention(
                store
                    .attention_page(vec![index_shard], cursor, limit)
                    .await?,
            ),
            Effect::ReadRows(ids) => Event::Rows(store.get_many(ids).await?),
            Effect::ReadCursor(of) => Event::Cursor(store.due_cursor(of).await?),
            Effect::TakeTurn(recoveries) => Event::Turn(self.publisher.take_turn(recoveries)),
            Effect::Publish(recoveries) => {
                self.publisher.publish(&recoveries).await?;
                Event::Published
            }
        })
    }

    /// The offset below which every recovery of a partition is done.
    async fn done(
        &self,
        partitions: &[PartitionId],
    ) -> Result<BTreeMap<PartitionId, Offset>, StoreError> {
        let layout = self.partition_map.layout();
        let mut done = BTreeMap::new();
        for &partition in partitions {
            let of_it = shards::done(&*self.store, &layout, Source::Recoveries, partition).await?;
            done.insert(partition, of_it);
        }
        Ok(done)
    }

    /// The end offsets of the recovery topic, by partition.
    async fn ends(
        &self,
        partitions: &[PartitionId],
    ) -> Result<BTreeMap<PartitionId, Offset>, AdminError> {
        let topic = self.topics.recovery();
        let offsets = self.admin.offsets(topic, partitions).await?;
        let ends = offsets.into_iter().map(|(_, end)| end);
        Ok(partitions.iter().copied().zip(ends).collect())
    }

    /// Logs and counts what the state machine reports.
    fn report(&self, index_shard: PartitionId, notice: Notice, failure: Option<&AuditError>) {
        match notice {
            Notice::UnlockReads => {}
            Notice::Unreadable { row, count, log } => {
                if count {
                    self.metrics.unreadable.increment(1);
                }
                if log {
                    tracing::error!(
                        operation = %row.id,
                        %index_shard,
                        error = &row as &dyn Error,
                        "could not read the row of an operation that was handed off or parked"
                    );
                }
            }
            Notice::Waking { operation, due } => tracing::error!(
                %operation,
                due = %time_text(due),
                %index_shard,
                "audit found a live operation that nothing would resume; requesting its recovery"
            ),
            Notice::Audited(woken) => self.metrics.unwoken(index_shard, woken),
            Notice::Failed => {
                let error = failure.map(|error| error as &dyn Error);
                tracing::warn!(%index_shard, error, "audit failed; retrying");
            }
        }
    }
}
