//! Shows the shards and changes their number, for the admin port and `waybill shards`.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_clock::{time_text, wall_clock};
use waybill_engine::{Offset, Priority, ShardId, ShardingScheme, Timestamp};
use waybill_store::{Layout, LayoutError, LayoutGeneration, Lease, LeaseKey, Store, StoreError};

use waybill_telemetry::visible::counted;

/// The layout and its shards.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LayoutView {
    /// The layout's generation.
    pub generation: u64,
    /// Partitions of the operation topics.
    pub partitions: u32,
    /// Shards of each partition.
    pub per_partition: u32,
    /// The future number of partitions, during a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub becomes: Option<u32>,
    /// The numbers of partitions that operation topics may have. Retired and intended partitions
    /// count too.
    pub valid_topic_partitions: Vec<u32>,
    /// The shards, in order.
    pub shards: Vec<ShardView>,
}

impl LayoutView {
    /// Whether a shard has no owner, or one whose lease has expired.
    #[must_use]
    pub fn has_unowned(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.any(|shard| shard.owner.is_none() || shard.silent)
    }
}

/// A shard.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardView {
    /// Its number.
    pub shard: u32,
    /// The partition that it reads.
    pub partition: u32,
    /// The process that owns the shard, if any.
    pub owner: Option<String>,
    /// Whether the owner's lease has expired, for example because the process was killed.
    #[serde(default)]
    pub silent: bool,
    /// The epoch of the current or last ownership.
    pub epoch: u64,
    /// The offsets below which all of the shard's records are done.
    pub checkpoint: CheckpointView,
    /// The next request that is not durably consumed.
    pub consumed: Offset,
    /// The next high-priority one.
    #[serde(default)]
    pub consumed_high_priority: Offset,
    /// What it waits for, if it does not run.
    pub waits_for: Vec<String>,
    /// By when it starts if a scheduler runs for it. Only after a change of the layout, until the
    /// shard has started, and not beyond that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_by: Option<String>,
}

impl ShardView {
    /// The offset below which every request of a priority is done.
    #[must_use]
    pub fn done(&self, priority: Priority) -> Offset {
        match priority {
            Priority::Normal => self.checkpoint.requests,
            Priority::High => self.checkpoint.high_priority,
        }
    }

    /// The next request of a priority that is not durably consumed.
    #[must_use]
    pub fn consumed(&self, priority: Priority) -> Offset {
        match priority {
            Priority::Normal => self.consumed,
            Priority::High => self.consumed_high_priority,
        }
    }
}

/// The offsets of a checkpoint.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointView {
    /// On `operation-requests`.
    pub requests: Offset,
    /// On `high-priority-requests`.
    #[serde(default)]
    pub high_priority: Offset,
    /// On `step-replies`.
    pub replies: Offset,
    /// On `recovery`.
    pub recoveries: Offset,
}

/// Why the number of shards was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The store failed.
    #[error("cannot access the state store")]
    Store(#[from] StoreError),
    /// The new shards cannot follow the current ones.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No scheduler has stored a layout yet, so there is nothing to change.
    #[error(
        "the state store has no layout yet: start a scheduler, which creates one with \
         scheduler.shardsPerPartition"
    )]
    NotBegun,
    /// Another process changed the layout at the same time.
    #[error(
        "another process changed the layout at the same time: check the new layout and repeat the \
         command"
    )]
    Changed,
}

/// The shards of a store.
#[derive(Clone, Debug)]
pub struct Shards {
    store: Arc<dyn Store>,
    partitions: u32,
}

impl Shards {
    /// The shards of a store with this number of partitions.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, partitions: u32) -> Self {
        Self { store, partitions }
    }

    /// Whether other processes use the store as well.
    #[must_use]
    pub fn are_shared(&self) -> bool {
        !self.store.is_exclusive()
    }

    /// Reads the layout and its shards.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn show(&self) -> Result<LayoutView, StoreError> {
        let layout = super::layout(&*self.store, self.partitions).await?;
        let (generation, scheme) = (layout.generation(), layout.scheme());
        let mut shards = Vec::new();
        for shard in scheme.all() {
            let key = LeaseKey::scheduler(generation, shard);
            shards.push(match self.store.lease(key).await? {
                Some(lease) if lease.owner.is_some() => view(shard, &lease, Vec::new()),
                Some(lease) => view(shard, &lease, vec!["an owner".to_owned()]),
                None => {
                    let lease =
                        super::current_lease(&*self.store, &layout, generation, shard).await?;
                    let waits_for = self.awaited(&layout, shard).await?;
                    ShardView {
                        starts_by: starts_by(&lease, wall_clock()),
                        ..view(shard, &lease, waits_for)
                    }
                }
            });
        }
        Ok(LayoutView {
            generation: generation.0,
            partitions: scheme.partitions,
            per_partition: scheme.shards_per_partition,
            becomes: layout.becomes(),
            valid_topic_partitions: layout.valid_topic_partitions(),
            shards,
        })
    }

    /// Changes the number of shards per partition, unless it is already that one.
    ///
    /// # Errors
    ///
    /// If the current layout does not allow this number, or the store fails.
    pub async fn set(&self, shards_per_partition: u32) -> Result<LayoutView, SetError> {
        // The store holds the number of partitions. The caller's configuration does not count.
        let current = self.store.layout().await?.ok_or(SetError::NotBegun)?;
        let wanted = ShardingScheme {
            shards_per_partition,
            ..current.scheme()
        };
        if wanted != current.scheme() {
            let next = current.successor(wanted)?;
            if !self.store.set_layout(Some(current), next.clone()).await? {
                return Err(SetError::Changed);
            }
            tracing::info!(layout = %next, "changed the shard layout on request");
        }
        Ok(self.show().await?)
    }

    /// The predecessors that an unbegun shard waits for.
    async fn awaited(&self, layout: &Layout, shard: ShardId) -> Result<Vec<String>, StoreError> {
        let mut awaited = Vec::new();
        let generation = layout.generation();
        if let Some(before) = generation.previous()
            && let Some(scheme) = layout.of(before)
        {
            for parent in layout.scheme().follows(scheme, shard) {
                let lease = self
                    .store
                    .lease(LeaseKey::scheduler(before, parent))
                    .await?;
                if let Some(text) = still_held(before, parent, lease.as_ref()) {
                    awaited.push(text);
                }
            }
        }
        if awaited.is_empty() {
            awaited.push("an owner".to_owned());
        }
        Ok(awaited)
    }
}

fn still_held(before: LayoutGeneration, parent: ShardId, lease: Option<&Lease>) -> Option<String> {
    let owner = lease.filter(|lease| !lease.is_ended)?.owner?;
    Some(format!(
        "shard {parent} of layout {before}, which {owner} has not released"
    ))
}

/// The assumed difference between the clocks of an owner and of this process.
const CLOCK_SKEW: Duration = Duration::from_secs(2);

/// Whether an owner can surely not act any more. Each renewal is valid for one lease time and
/// raises the owner's stamp limit to at least two lease times ahead.
fn has_run_out(lease: &Lease, now: Timestamp) -> bool {
    let limit = Timestamp(lease.stamp_limit.0) + CLOCK_SKEW;
    now > limit - lease.duration
}

/// By when a shard that would begin with this lease starts: its predecessors renewed theirs at most
/// one lease time ago when the layout changed, and it may have to wait until one expires. `None` if
/// that is over, or no predecessor had an owner.
fn starts_by(lease: &Lease, now: Timestamp) -> Option<String> {
    let by = Timestamp(lease.stamp_limit.0) + CLOCK_SKEW;
    (now <= by).then(|| time_text(by))
}

fn view(shard: ShardId, lease: &Lease, waits_for: Vec<String>) -> ShardView {
    let checkpoint = lease.checkpoint;
    ShardView {
        shard: shard.0,
        partition: lease.partition.0,
        owner: lease.owner.map(|owner| owner.to_string()),
        silent: lease.owner.is_some() && has_run_out(lease, wall_clock()),
        epoch: lease.epoch.0,
        checkpoint: CheckpointView {
            requests: checkpoint.at.requests,
            high_priority: checkpoint.at.high_priority,
            replies: checkpoint.at.replies,
            recoveries: checkpoint.at.recoveries,
        },
        consumed: lease.consumed.normal,
        consumed_high_priority: lease.consumed.high,
        waits_for,
        starts_by: None,
    }
}

impl fmt::Display for LayoutView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            generation,
            partitions,
            per_partition,
            becomes,
            valid_topic_partitions: _,
            shards,
        } = self;
        let becoming = becomes.map(|to| format!(", changing to {}", counted(to, "partition")));
        writeln!(
            f,
            "layout {generation}: {}, shards per partition: {per_partition}{}",
            counted(*partitions, "partition"),
            becoming.unwrap_or_default()
        )?;
        writeln!(
            f,
            "shard  partition   requests  high priority    replies  recoveries  epoch  owner"
        )?;
        for view in shards {
            let mut state = view.owner.clone().unwrap_or_default();
            if view.silent {
                state.push_str(", lease expired");
            }
            if !view.waits_for.is_empty() {
                let _ = write!(state, "none: waits for {}", view.waits_for.join("; "));
            }
            if let Some(by) = &view.starts_by {
                let _ = write!(state, "; starts by {by}");
            }
            let CheckpointView {
                requests,
                high_priority,
                replies,
                recoveries,
            } = view.checkpoint;
            writeln!(
                f,
                "{:>6}  {:>9}  {requests:>9}  {high_priority:>13}  {replies:>9}  {recoveries:>10}  {:>5}  {state}",
                view.shard, view.partition, view.epoch
            )?;
        }
        Ok(())
    }
}
