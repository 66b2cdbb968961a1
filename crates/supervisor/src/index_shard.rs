//! Sweeps, counts and audits one index shard of the deadline index while its lease is held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use waybill_clock::wall_clock;
use waybill_engine::{
    OperationId, OwnerId, PartitionId, Recovery, RecoveryVerb, Supervision, Timestamp, Workflows,
};
use waybill_store::{DueEntry, Store, StoreError};
use waybill_topology::partition_map::PartitionMap;

use super::SupervisorSettings;
use super::ask::{AskError, Asker};
use super::audit::{Audit, Auditor};
use super::lease::IndexShardLease;
use super::metrics::SupervisorMetrics;
use super::parked::{Parked, ReadLock};
use super::parked_stats::ParkedStats;
use super::reroute::Rerouter;
use super::sweep::Sweep;

/// Maximum number of entries in one read, and so of rows held at the same time.
const PAGE_ENTRIES: usize = 500;
/// How often a partition that is no longer in use is checked for records.
const REROUTE_EVERY: Duration = Duration::from_secs(3);
/// The pause after a failure.
const REST: Duration = Duration::from_secs(1);

/// Why a pass over an index shard ended early.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("cannot sweep the deadline index")]
    Store(#[from] StoreError),
    #[error("cannot request recoveries of due operations")]
    Ask(#[from] AskError),
}

/// One index shard, swept by the holder of its lease.
#[derive(Clone, Debug)]
pub(super) struct IndexShard {
    pub(super) index_shard: PartitionId,
    pub(super) owner: OwnerId,
    pub(super) name: Arc<str>,
    pub(super) settings: SupervisorSettings,
    pub(super) store: Arc<dyn Store>,
    pub(super) workflows: Arc<Workflows>,
    pub(super) asker: Arc<Asker>,
    pub(super) rerouter: Arc<Rerouter>,
    pub(super) metrics: Arc<SupervisorMetrics>,
    pub(super) partition_map: PartitionMap,
    pub(super) read_lock: ReadLock,
    pub(super) auditor: Arc<Auditor>,
}

impl IndexShard {
    /// Takes the lease, sweeps while it is held, and starts over when it is lost.
    pub(super) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        while !stop.is_cancelled() {
            let acquiring = IndexShardLease::acquire(
                self.store.clone(),
                self.index_shard,
                self.owner,
                self.settings.lease,
                self.settings.lease_margin,
            );
            let lease = tokio::select! {
                lease = acquiring => lease,
                () = stop.cancelled() => return Ok(()),
            };
            let ended = match lease {
                Ok(lease) => self.hold(lease, &stop).await,
                Err(error) => Err(error),
            };
            // The new owner of the index shard now reports its lag and its parked operations.
            self.metrics.behind(self.index_shard, Duration::ZERO);
            self.metrics
                .parked(self.index_shard, wall_clock(), |_| ParkedStats::default());
            self.metrics.unwoken(self.index_shard, 0);
            if let Err(error) = ended {
                self.metrics.failed_passes.increment(1);
                tracing::warn!(index_shard = %self.index_shard, error = &error as &dyn std::error::Error, "could not keep the index shard; releasing it");
                tokio::select! {
                    () = tokio::time::sleep(REST) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
        Ok(())
    }

    async fn hold(
        &self,
        mut lease: IndexShardLease,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        // Until the index shard has a cursor, no scheduler writes entries to it.
        let cursor = loop {
            if let Some(cursor) = self.store.due_cursor(self.index_shard).await? {
                break cursor;
            }
            self.metrics.swept(self.index_shard);
            tokio::select! {
                () = tokio::time::sleep(REST.min(self.settings.lease / 4)) => {}
                () = stop.cancelled() => return lease.release().await,
            }
            if !lease.keep().await? {
                return Ok(());
            }
        };
        tracing::info!(index_shard = %self.index_shard, "took the index shard");
        let grace =
            self.settings.scheduler_lease + self.settings.lease_margin + self.settings.clock_skew;
        let parked = Parked::new(
            self.index_shard,
            self.store.clone(),
            self.partition_map.clone(),
            self.metrics.clone(),
            self.read_lock.clone(),
            grace,
        );
        tokio::select! {
            ended = self.sweep(Sweep::new(cursor, grace), lease, stop) => ended,
            never = parked.keep() => match never {},
            never = Audit::new(self.index_shard, self.auditor.clone()).keep() => match never {},
        }
    }

    /// Sweeps for as long as the lease is held.
    async fn sweep(
        &self,
        mut sweep: Sweep,
        mut lease: IndexShardLease,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut rerouted_at = Instant::now();
        let mut behind_since = None;
        while lease.keep().await? {
            if rerouted_at.elapsed() >= REROUTE_EVERY {
                rerouted_at = Instant::now();
                if !self.reroute(&mut lease).await? {
                    break;
                }
            }
            let skips_to = sweep.may_skip_to(wall_clock());
            behind_since = skips_to.and(behind_since.or_else(|| Some(Instant::now())));
            // Wait before skipping: a clock that is ahead also makes the cursor look old.
            let is_confirmed =
                behind_since.is_some_and(|since| since.elapsed() >= self.settings.audit_interval);
            if let Some(cursor) = skips_to.filter(|_| is_confirmed && lease.is_valid()) {
                tracing::warn!(
                    index_shard = %self.index_shard,
                    behind = ?sweep.behind(wall_clock()),
                    "the sweep skips to the last hour, because the clock was behind or no \
                     supervisor ran for a long time; the audit finds operations that have been \
                     due for longer"
                );
                self.store
                    .advance_due_cursor(self.index_shard, cursor)
                    .await?;
                sweep.skip_to(cursor);
                behind_since = None;
            }
            let passed = self.pass(&mut sweep, &mut lease).await;
            self.metrics
                .behind(self.index_shard, sweep.behind(wall_clock()));
            match passed {
                Ok(true) if !stop.is_cancelled() && behind_since.is_none() => continue,
                Ok(_) => {}
                Err(PassError::Ask(AskError::Stopping)) => {}
                Err(error) => {
                    self.metrics.failed_passes.increment(1);
                    tracing::warn!(
                        index_shard = %self.index_shard,
                        error = &error as &dyn std::error::Error,
                        "sweep ended early; retrying"
                    );
                    tokio::select! {
                        () = tokio::time::sleep(REST) => {}
                        () = stop.cancelled() => {}
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(self.settings.interval) => {}
                () = stop.cancelled() => return lease.release().await,
            }
        }
        tracing::warn!(index_shard = %self.index_shard, "another supervisor owns the index shard");
        Ok(())
    }

    /// Reroutes the records of the index shard's partition, if it is no longer in use. Returns
    /// whether the lease is still held.
    async fn reroute(&self, lease: &mut IndexShardLease) -> Result<bool, StoreError> {
        let done = lease.rerouted();
        let (now, sent) = self.rerouter.reroute(self.index_shard, done).await;
        if let Err(error) = sent {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(index_shard = %self.index_shard, error, "could not reroute the records of a partition that is no longer in use");
        }
        match now == done {
            true => Ok(true),
            false => lease.keep_rerouted(now).await,
        }
    }

    /// Reads the open buckets, sends recoveries for due entries, and moves the cursor. Returns
    /// whether the next pass should follow immediately, because the cursor could have moved
    /// further.
    async fn pass(
        &self,
        sweep: &mut Sweep,
        lease: &mut IndexShardLease,
    ) -> Result<bool, PassError> {
        for bucket in sweep.to_read(wall_clock()) {
            let began = wall_clock();
            let mut after = None;
            let mut is_empty = true;
            loop {
                if !lease.keep().await? || !lease.is_valid() {
                    return Ok(false);
                }
                let page = self
                    .store
                    .due(self.index_shard, bucket, after, PAGE_ENTRIES)
                    .await?;
                let now = wall_clock();
                let due: Vec<DueEntry> = page
                    .iter()
                    .filter(|entry| sweep.is_new(bucket, entry, now))
                    .copied()
                    .collect();
                self.deal_with(&due, now).await?;
                sweep.dealt_with(bucket, &due);
                is_empty &= page.is_empty();
                after = page.last().copied();
                if page.len() < PAGE_ENTRIES {
                    break;
                }
            }
            sweep.was_read(bucket, began, is_empty);
        }
        let mut is_behind = false;
        if let Some(cursor) = sweep.next_cursor().filter(|_| lease.is_valid()) {
            self.store
                .advance_due_cursor(self.index_shard, cursor)
                .await?;
            is_behind = sweep.cursor_moved(cursor);
        }
        self.metrics.swept(self.index_shard);
        Ok(is_behind)
    }

    async fn deal_with(&self, due: &[DueEntry], now: Timestamp) -> Result<(), PassError> {
        if due.is_empty() {
            return Ok(());
        }
        let supervision = Supervision {
            name: &self.name,
            workflows: &self.workflows,
            timeout_grace: self.settings.timeout_grace,
        };
        let ids: Vec<OperationId> = due.iter().map(|entry| entry.operation).collect();
        let rows = self.store.get_many(ids).await?;
        let mut recoveries: Vec<Recovery> = Vec::with_capacity(due.len());
        for (entry, row) in due.iter().zip(rows) {
            match row {
                Ok(Some(row)) => {
                    if !row.state.state.is_final() {
                        self.metrics.overdue(now.since(entry.due));
                    }
                    recoveries.extend(supervision.entry_came_up(&row, entry.due, now));
                }
                // The row might not be visible yet, or its retention has passed. The scheduler can
                // tell.
                Ok(None) => recoveries.push(self.look_at(*entry, now)),
                Err(corrupt) => {
                    self.metrics.unreadable.increment(1);
                    tracing::error!(
                        operation = %entry.operation,
                        error = &corrupt as &dyn std::error::Error,
                        "cannot read the row of a due operation"
                    );
                    recoveries.push(self.look_at(*entry, now));
                }
            }
        }
        Ok(self.asker.ask(&recoveries).await?)
    }

    fn look_at(&self, entry: DueEntry, now: Timestamp) -> Recovery {
        Recovery {
            id: entry.operation.event_id("wake"),
            operation: entry.operation,
            asked_by: self.name.to_string(),
            reason: "an index entry is due, but its row is missing or unreadable".to_owned(),
            asked_at: now,
            due: Some(entry.due),
            verb: RecoveryVerb::Wake,
        }
    }
}
