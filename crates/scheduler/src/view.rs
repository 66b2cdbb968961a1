//! The state of the shards for the admin port, copied out of the loop a few times a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use waybill_engine::{ByPriority, EngineStats, Now, Offset, Priority, ShardId};
use waybill_scheduler_core::{Own, SchedulerLoop, Slot, SlotState};
use waybill_state::Layout;
use waybill_telemetry::health::{Condition, Heartbeat, Liveness, Readiness};

use super::consumers::Consumers;
use super::lag::{Lag, LagClock};
use super::metrics::{PartitionMetrics, PriorityView, show_layout};
use crate::control::{CheckpointView, HeldView, SchedulerState, SchedulerView};

/// A loop without a heartbeat for this long counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The latest views. Clones share them.
#[derive(Clone)]
pub(super) struct Views {
    shown: Arc<Mutex<BTreeMap<ShardId, Shown>>>,
    readiness: Readiness,
    /// Whether this process runs any shard of the layout.
    has_any: Condition,
    heartbeat: Arc<Heartbeat>,
}

struct Shown {
    view: SchedulerView,
    /// Whether the shard has its lease, or is stopped.
    ready: Condition,
    /// Not ready while the shard has its lease but is blocked; with the reason.
    blocked: Option<(String, Condition)>,
    metrics: PartitionMetrics,
    lag: ByPriority<LagClock>,
    /// The values that were last shown.
    priorities: ByPriority<PriorityView>,
}

impl Views {
    /// Views of no shard yet; see [`Views::relay`].
    pub(super) fn new(readiness: &Readiness, liveness: &Liveness) -> Self {
        Self {
            shown: Arc::default(),
            readiness: readiness.clone(),
            has_any: readiness.expect("a shard of this process in the layout"),
            heartbeat: Arc::new(liveness.register("scheduler", SILENCE_MAX)),
        }
    }

    /// Shows the shards of this process in a layout. Other shards disappear once they are stopped.
    pub(super) fn relay(&self, own: Own, layout: &Layout) {
        let scheme = layout.scheme();
        show_layout(scheme.shards());
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for shard in own.of(scheme) {
            let partition = scheme.partition_of(shard);
            let ready = self.readiness.expect(match scheme.shards_per_partition {
                1 => format!("lease of partition {partition}"),
                _ => format!("lease of shard {shard} of partition {partition}"),
            });
            if let Some(shown) = shown.get_mut(&shard) {
                shown.view.layout = layout.generation().0;
                std::mem::replace(&mut shown.ready, ready).withdraw();
                continue;
            }
            let new = Shown {
                view: SchedulerView {
                    shard,
                    partition,
                    layout: layout.generation().0,
                    state: SchedulerState::Acquiring,
                    epoch: None,
                    checkpoint: CheckpointView::default(),
                    consumed: Offset(0),
                    consumed_high_priority: Offset(0),
                    in_flight: 0,
                    waiting: 0,
                    held_by: None,
                    high_priority_held_by: None,
                    reason: None,
                },
                ready,
                blocked: None,
                metrics: PartitionMetrics::new(shard, partition),
                lag: ByPriority::default(),
                priorities: ByPriority::default(),
            };
            shown.insert(shard, new);
        }
        self.has_any.set(own.of(scheme).next().is_some());
    }

    pub(super) fn list(&self) -> Vec<SchedulerView> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.values().map(|shown| shown.view.clone()).collect()
    }

    /// Copies the state of all shards.
    pub(super) fn show(&self, scheduler_loop: &mut SchedulerLoop, consumers: &Consumers, now: Now) {
        self.heartbeat.beat();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.retain(|&shard, shown| {
            let stats = scheduler_loop.take_stats(shard);
            let slot = scheduler_loop.slot(shard);
            match slot {
                Some(slot) => {
                    shown.update(slot, stats, consumers, now);
                    let blocked = shown.why_blocked();
                    shown.show_blocked(&self.readiness, blocked);
                }
                None => {
                    shown.ready.withdraw();
                    shown.show_blocked(&self.readiness, None);
                    shown.metrics.forget();
                }
            }
            slot.is_some()
        });
    }
}

impl Shown {
    fn update(&mut self, slot: &Slot, stats: Option<EngineStats>, consumers: &Consumers, now: Now) {
        let wanted = slot.is_wanted();
        if let SlotState::Owned(owned) = slot.state() {
            let (key, partition) = (owned.lease().key, owned.partition());
            self.view.layout = key.generation.0;
            if self.view.partition != partition {
                self.view.partition = partition;
                self.metrics.forget();
                self.metrics = PartitionMetrics::new(self.view.shard, partition);
                self.lag = ByPriority::default();
            }
        }
        self.view.state = match slot.state() {
            SlotState::Owned(_) if !wanted => SchedulerState::Stopping,
            SlotState::Owned(_) => SchedulerState::Running,
            SlotState::Idle if !wanted => SchedulerState::Stopped,
            SlotState::Idle | SlotState::Acquiring => SchedulerState::Acquiring,
            SlotState::Refused(_) => SchedulerState::Refused,
        };
        self.view.epoch = None;
        self.view.in_flight = 0;
        for priority in Priority::ALL {
            // Keep showing its last offsets; the counts belong to no owner.
            self.priorities[priority] = PriorityView {
                checkpoint: self.priorities[priority].checkpoint,
                consumed: self.priorities[priority].consumed,
                ..PriorityView::default()
            };
        }
        self.view.reason = match slot.state() {
            SlotState::Refused(reason) => Some(reason.clone()),
            SlotState::Owned(owned) => owned.why_blocked(now.boot),
            SlotState::Idle | SlotState::Acquiring => slot.dropped_for().map(str::to_owned),
        };
        self.metrics.forget();
        if let SlotState::Owned(owned) = slot.state() {
            let engine = owned.engine();
            let reached = engine.checkpoint();
            self.view.epoch = Some(owned.lease().epoch);
            self.view.in_flight = engine.in_flight().operations;
            self.view.checkpoint.replies = reached.at.replies;
            for priority in Priority::ALL {
                let consumed = reached.consumed[priority].max(owned.lease().consumed[priority]);
                let end = consumers.known_end(priority, owned.partition());
                self.priorities[priority] = PriorityView {
                    waiting: engine.waiting(priority).requests,
                    checkpoint: reached.at.on(priority.source()),
                    held_by: engine.oldest_held(priority).map(|held| HeldView {
                        operation: held.operation,
                        offset: held.offset,
                        since_us: held.since,
                        waits: held.waits,
                    }),
                    consumed,
                    lag: end.map_or(Lag::default(), |end| {
                        self.lag[priority].lag(end, consumed, now.wall)
                    }),
                };
            }
            self.metrics.count(&stats.unwrap_or_default());
            self.metrics.show_census(&engine.census(), now.wall);
        }
        let ByPriority { normal, high } = self.priorities;
        self.view.checkpoint.requests = normal.checkpoint;
        self.view.checkpoint.high_priority = high.checkpoint;
        self.view.consumed = normal.consumed;
        self.view.consumed_high_priority = high.consumed;
        self.view.held_by = normal.held_by;
        self.view.high_priority_held_by = high.held_by;
        self.view.waiting = normal.waiting + high.waiting;
        // A partition that a person stopped is in the wanted state.
        let is_as_wanted = matches!(
            self.view.state,
            SchedulerState::Running | SchedulerState::Stopped | SchedulerState::Stopping
        );
        self.ready.set(is_as_wanted);
        self.ready.note(self.view.reason.as_deref());
        self.metrics.show(&self.view, &self.priorities, now.wall);
    }

    /// Why a shard with a lease is not ready: it is blocked, or some of its steps are.
    fn why_blocked(&self) -> Option<String> {
        let reason = self.view.reason.as_ref()?;
        let is_blocked = matches!(self.view.state, SchedulerState::Running);
        is_blocked.then(|| match self.view.shard.0 == self.view.partition.0 {
            true => format!("partition {}: {reason}", self.view.partition),
            false => format!(
                "shard {} of partition {}: {reason}",
                self.view.shard, self.view.partition
            ),
        })
    }

    fn show_blocked(&mut self, readiness: &Readiness, blocked: Option<String>) {
        if self.blocked.as_ref().map(|(message, _)| message) == blocked.as_ref() {
            return;
        }
        // Add the new condition first, so that no probe finds the process ready in between.
        let blocked = blocked.map(|message| {
            let condition = readiness.expect(message.clone());
            (message, condition)
        });
        if let Some((_, before)) = std::mem::replace(&mut self.blocked, blocked) {
            before.withdraw();
        }
    }
}
