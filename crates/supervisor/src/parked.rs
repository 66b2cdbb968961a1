//! Drives the count of the parked operations of one index shard, and shows it in gauges.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use waybill_clock::clocks;
use waybill_engine::{OperationRow, PartitionId, Workflows, workflow_of};
use waybill_store::{Store, StoreError};
use waybill_supervisor_core::parked::{Effect, Event, Notice, Output};
use waybill_supervisor_core::{Parked, UnexpectedEvent};
use waybill_topology::partition_map::PartitionMap;

use super::metrics::SupervisorMetrics;

/// Lets one index shard of a process at a time read a page.
pub(super) type ReadLock = Arc<Mutex<()>>;

/// The logged versions of workflows that parked operations need and this process does not have.
/// Each is logged once, for all index shards.
#[derive(Debug, Default)]
pub(super) struct MissingWorkflows(std::sync::Mutex<BTreeSet<(Arc<str>, u32)>>);

impl MissingWorkflows {
    fn log(&self, row: &OperationRow, workflows: &Workflows) {
        // An operation without steps never had a workflow: its caller chose the name.
        let has_begun = !row.created.step_names.is_empty();
        let waits = row.state.state.is_parked() && !row.state.abandoned && has_begun;
        if !waits || workflow_of(row, workflows).is_some() {
            return;
        }
        let (workflow, version) = (&row.created.workflow, row.created.workflow_version);
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.insert((Arc::clone(workflow), version)) {
            tracing::warn!(
                %workflow,
                version,
                operation = %row.id,
                "a parked operation cannot continue: no workflow file has the version that it needs, with its steps"
            );
        }
    }
}

/// One index shard, and what its effects need.
#[derive(Debug)]
pub(super) struct ParkedDriver {
    pub(super) index_shard: PartitionId,
    pub(super) store: Arc<dyn Store>,
    pub(super) partition_map: PartitionMap,
    pub(super) metrics: Arc<SupervisorMetrics>,
    pub(super) read_lock: ReadLock,
    pub(super) workflows: Arc<Workflows>,
    pub(super) missing: Arc<MissingWorkflows>,
    /// How long after its instant an entry or its row may become visible.
    pub(super) grace: Duration,
}

impl ParkedDriver {
    /// Keeps the gauges of the index shard current until the future is dropped.
    ///
    /// # Errors
    ///
    /// If the driver and the state machine disagree, which is a bug.
    pub(super) async fn run(self) -> Result<Infallible, UnexpectedEvent> {
        let mut parked = Parked::new(self.index_shard, self.grace);
        let mut read_lock = None;
        let mut failure: Option<StoreError> = None;
        let mut event = Event::Started;
        loop {
            let partitions = self.partition_map.partitions();
            let Output { notices, effect } = parked.handle(event, clocks(), partitions)?;
            for notice in notices {
                match notice {
                    Notice::UnlockReads => read_lock = None,
                    Notice::UpdateGauges => {
                        self.metrics
                            .parked(self.index_shard, clocks().wall, |state| parked.stats(state))
                    }
                    Notice::Failed => tracing::warn!(
                        index_shard = %self.index_shard,
                        error = failure.as_ref().map(|error| error as &dyn Error),
                        "could not count parked operations; retrying"
                    ),
                }
            }
            let result = self.perform(effect, &mut read_lock).await;
            event = result.unwrap_or_else(|error| {
                failure = Some(error);
                Event::Failed
            });
        }
    }

    async fn perform(
        &self,
        effect: Effect,
        read_lock: &mut Option<OwnedMutexGuard<()>>,
    ) -> Result<Event, StoreError> {
        Ok(match effect {
            Effect::Wait(time) => {
                tokio::time::sleep(time).await;
                Event::Waited
            }
            Effect::LockReads => {
                *read_lock = Some(self.read_lock.clone().lock_owned().await);
                Event::Locked
            }
            Effect::ReadAttention { cursor, limit } => {
                let of = vec![self.index_shard];
                Event::Attention(self.store.attention_page(of, cursor, limit).await?)
            }
            Effect::ReadRows(ids) => {
                let rows = self.store.get_many(ids).await?;
                for row in rows.iter().flatten().flatten() {
                    self.missing.log(row, &self.workflows);
                }
                Event::Rows(rows)
            }
        })
    }
}
