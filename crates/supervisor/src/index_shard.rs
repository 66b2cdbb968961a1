//! Drives one index shard: performs the effects of its state machine on the state store and the
//! topics, and counts and audits the index shard while it is swept.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use waybill_clock::{clocks, wall_clock};
use waybill_engine::{OwnerId, PartitionId, TopicOffsets, Workflows};
use waybill_store::{LeaseKey, Store, StoreError};
use waybill_supervisor_core::index_shard::{Effect, Event, Notice, Output};
use waybill_supervisor_core::{IndexShard, IndexShardSettings, ParkedStats, UnexpectedEvent};
use waybill_topology::partition_map::PartitionMap;

use super::SupervisorSettings;
use super::audit::Auditor;
use super::metrics::SupervisorMetrics;
use super::parked::{MissingWorkflows, ParkedDriver, ReadLock};
use super::publisher::{PublishError, Publisher};
use super::reroute::Rerouter;

/// Why an effect failed.
#[derive(Debug, thiserror::Error)]
enum EffectError {
    #[error("cannot sweep the deadline index")]
    Store(#[from] StoreError),
    #[error("cannot request recoveries of due operations")]
    Ask(#[from] PublishError),
}

/// One index shard, and what its effects need.
#[derive(Clone, Debug)]
pub(super) struct IndexShardDriver {
    pub(super) index_shard: PartitionId,
    pub(super) owner: OwnerId,
    pub(super) name: Arc<str>,
    pub(super) settings: SupervisorSettings,
    pub(super) store: Arc<dyn Store>,
    pub(super) workflows: Arc<Workflows>,
    pub(super) publisher: Arc<Publisher>,
    pub(super) rerouter: Arc<Rerouter>,
    pub(super) metrics: Arc<SupervisorMetrics>,
    pub(super) partition_map: PartitionMap,
    pub(super) read_lock: ReadLock,
    pub(super) missing: Arc<MissingWorkflows>,
    pub(super) auditor: Arc<Auditor>,
}

/// What runs beside the sweep of an index shard, until it is dropped.
type Watches = Option<BoxFuture<'static, Result<Infallible, UnexpectedEvent>>>;

impl IndexShardDriver {
    /// Takes the lease, sweeps while it is held, and starts over when it is lost.
    pub(super) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut index_shard = IndexShard::new(self.machine_settings());
        let mut watches: Watches = None;
        let mut event = Event::Started;
        let mut failure = None;
        loop {
            if stop.is_cancelled() {
                index_shard.stop();
            }
            let output = index_shard.handle(event, clocks());
            let Output { notices, effect } = output.context("the sweep of an index shard")?;
            for notice in notices {
                match notice {
                    Notice::Began => watches = Some(self.watches()),
                    Notice::Ended => watches = None,
                    _ => {}
                }
                self.report(notice, failure.as_ref());
            }
            if effect == Effect::End {
                return Ok(());
            }
            let result = tokio::select! {
                result = self.perform(effect, &stop) => result,
                () = stop.cancelled(), if index_shard.may_be_abandoned() => return Ok(()),
                never = watch(&mut watches) => match never.context("the audit or the count of an index shard")? {},
            };
            event = result.unwrap_or_else(|error| {
                failure = Some(error);
                Event::Failed
            });
        }
    }

    fn machine_settings(&self) -> IndexShardSettings {
        let settings = &self.settings;
        IndexShardSettings {
            index_shard: self.index_shard,
            owner: self.owner,
            name: self.name.clone(),
            workflows: self.workflows.clone(),
            timeout_grace: settings.timeout_grace,
            lease: settings.lease,
            lease_margin: settings.lease_margin,
            is_store_exclusive: self.store.is_exclusive(),
            grace: self.grace(),
            interval: settings.interval,
            audit_interval: settings.audit_interval,
            chunk: self.publisher.chunk(),
        }
    }

    /// How long after its due time an entry may become visible.
    fn grace(&self) -> Duration {
        let settings = &self.settings;
        settings.scheduler_lease + settings.lease_margin + settings.clock_skew
    }

    async fn perform(
        &self,
        effect: Effect,
        stop: &CancellationToken,
    ) -> Result<Event, EffectError> {
        let (store, index_shard) = (&*self.store, self.index_shard);
        Ok(match effect {
            Effect::Wait(time) => {
                tokio::select! {
                    () = tokio::time::sleep(time) => {}
                    () = stop.cancelled() => {}
                }
                Event::Waited
            }
            Effect::ReadLease(key) => Event::Lease(store.lease(key).await?),
            Effect::TakeLease { seen, lease } => {
                Event::LeaseWritten(store.take_lease(seen, lease).await?)
            }
            Effect::RenewLease(lease) => Event::LeaseWritten(store.renew_lease(lease).await?),
            Effect::ReadCursor => Event::Cursor(store.due_cursor(index_shard).await?),
            Effect::ReadEntries {
                bucket,
                after,
                limit,
            } => Event::Entries(store.due(index_shard, bucket, after, limit).await?),
            Effect::ReadRows(ids) => Event::Rows(store.get_many(ids).await?),
            Effect::TakeTurn(recoveries) => Event::Turn(self.publisher.take_turn(recoveries)),
            Effect::Publish(recoveries) => {
                self.publisher.publish(&recoveries).await?;
                Event::Published
            }
            Effect::MoveCursor(cursor) => {
                store.advance_due_cursor(index_shard, cursor).await?;
                Event::CursorMoved
            }
            Effect::Reroute(from) => Event::Rerouted(self.reroute(from).await),
            Effect::End => std::future::pending().await,
        })
    }

    /// Reroutes the records of the index shard's partition, if it is no longer in use. Returns the
    /// offsets reached.
    async fn reroute(&self, from: TopicOffsets) -> TopicOffsets {
        let (to, sent) = self.rerouter.reroute(self.index_shard, from).await;
        if let Err(error) = sent {
            let error = &error as &dyn Error;
            tracing::warn!(index_shard = %self.index_shard, error, "could not reroute the records of a partition that is no longer in use");
        }
        to
    }

    /// Counts the parked operations of the index shard and audits it.
    fn watches(&self) -> BoxFuture<'static, Result<Infallible, UnexpectedEvent>> {
        let parked = ParkedDriver {
            index_shard: self.index_shard,
            store: self.store.clone(),
            partition_map: self.partition_map.clone(),
            metrics: self.metrics.clone(),
            read_lock: self.read_lock.clone(),
            workflows: self.workflows.clone(),
            missing: self.missing.clone(),
            grace: self.grace(),
        };
        let audit = self.auditor.clone().audit(self.index_shard);
        Box::pin(async {
            tokio::select! {
                never = parked.run() => never,
                never = audit => never,
            }
        })
    }

    /// Logs and counts what the state machine reports.
    fn report(&self, notice: Notice, failure: Option<&EffectError>) {
        let (index_shard, metrics) = (self.index_shard, &self.metrics);
        match notice {
            Notice::TakingOver(epoch) => tracing::warn!(
                lease = %LeaseKey::supervisor(index_shard),
                %epoch,
                "the owner stopped renewing its lease; taking over"
            ),
            Notice::Began => tracing::info!(%index_shard, "took the index shard"),
            Notice::Ended => {
                // The new owner of the index shard now reports its lag and its parked operations.
                metrics.behind(index_shard, Duration::ZERO);
                metrics.parked(index_shard, wall_clock(), |_| ParkedStats::default());
                metrics.unwoken(index_shard, 0);
            }
            Notice::Failed => {
                metrics.failed_passes.increment(1);
                let error = failure.map(|error| match error {
                    EffectError::Store(error) => error as &dyn Error,
                    EffectError::Ask(error) => error as &dyn Error,
                });
                tracing::warn!(%index_shard, error, "could not keep the index shard; releasing it");
            }
            Notice::Lost => {
                tracing::warn!(%index_shard, "another supervisor owns the index shard");
            }
            Notice::Swept => metrics.swept(index_shard),
            Notice::Behind(behind) => metrics.behind(index_shard, behind),
            Notice::PassFailed => {
                metrics.failed_passes.increment(1);
                let error = failure.map(|error| error as &dyn Error);
                tracing::warn!(%index_shard, error, "sweep ended early; retrying");
            }
            Notice::Skipping(behind) => tracing::warn!(
                %index_shard,
                ?behind,
                "the sweep skips to the last hour, because the clock was behind or no supervisor \
                 ran for a long time; the audit finds operations that have been due for longer"
            ),
            Notice::Overdue(overdue) => metrics.overdue(overdue),
            Notice::Unreadable(corrupt) => {
                metrics.unreadable.increment(1);
                tracing::error!(
                    operation = %corrupt.id,
                    error = &corrupt as &dyn Error,
                    "cannot read the row of a due operation"
                );
            }
        }
    }
}

/// Runs what runs beside the sweep.
async fn watch(watches: &mut Watches) -> Result<Infallible, UnexpectedEvent> {
    match watches {
        Some(watches) => watches.await,
        None => std::future::pending().await,
    }
}
