//! What the admin port shows of the partitions, copied out of the loop a few times a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use waybill_engine::{Offset, PartitionId};

use super::metrics::PartitionMetrics;
use super::partition::{Slot, SlotState};
use crate::admin::{
    Admin, CheckpointView, Condition, Heartbeat, HeldView, SchedulerState, SchedulerView,
};

/// A loop that gives no sign of life for this long counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The newest views. Clones share them.
#[derive(Clone)]
pub(super) struct Views {
    shown: Arc<Mutex<BTreeMap<PartitionId, Shown>>>,
    heartbeat: Arc<Heartbeat>,
}

struct Shown {
    view: SchedulerView,
    ready: Condition,
    metrics: PartitionMetrics,
}

impl Views {
    pub(super) fn new(own: &[PartitionId], admin: &Admin) -> Self {
        let shown = own.iter().map(|&partition| {
            let view = SchedulerView {
                partition,
                state: SchedulerState::Acquiring,
                epoch: None,
                checkpoint: CheckpointView::default(),
                consumed: Offset(0),
                in_flight: 0,
                held_by: None,
            };
            let ready = admin
                .readiness
                .expect(format!("lease of partition {partition}"));
            (
                partition,
                Shown {
                    view,
                    ready,
                    metrics: PartitionMetrics::new(partition),
                },
            )
        });
        Self {
            shown: Arc::new(Mutex::new(shown.collect())),
            heartbeat: Arc::new(admin.liveness.register("scheduler", SILENCE_MAX)),
        }
    }

    pub(super) fn list(&self) -> Vec<SchedulerView> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.values().map(|shown| shown.view).collect()
    }

    /// Copies the state of all partitions, and answers those who waited for a change of it.
    pub(super) fn show(&self, slots: &mut BTreeMap<PartitionId, Slot>) {
        self.heartbeat.beat();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (&partition, slot) in slots.iter_mut() {
            let Some(shown) = shown.get_mut(&partition) else {
                continue;
            };
            shown.update(slot);
        }
        drop(shown);
        for (&partition, slot) in slots.iter_mut() {
            slot.answer(partition);
        }
    }
}

impl Shown {
    fn update(&mut self, slot: &mut Slot) {
        let wanted = slot.wanted;
        self.view.state = match &slot.state {
            SlotState::Owned(_) if !wanted => SchedulerState::Stopping,
            SlotState::Owned(_) => SchedulerState::Running,
            SlotState::Idle if !wanted => SchedulerState::Stopped,
            SlotState::Idle | SlotState::Acquiring => SchedulerState::Acquiring,
            SlotState::Refused(_) => SchedulerState::Refused,
        };
        self.view.epoch = None;
        self.view.in_flight = 0;
        self.view.held_by = None;
        if let SlotState::Owned(owned) = &mut slot.state {
            let reached = owned.engine.checkpoint();
            self.view.epoch = Some(owned.lease.row.epoch);
            self.view.in_flight = owned.engine.in_flight().operations;
            self.view.held_by = owned.engine.oldest_held().map(|held| HeldView {
                operation: held.operation,
                offset: held.offset,
                since_us: held.since,
            });
            self.view.consumed = reached.consumed.max(owned.lease.row.consumed);
            self.view.checkpoint = CheckpointView {
                requests: reached.requests,
                replies: reached.replies,
            };
            self.metrics.count(&owned.engine.take_stats());
        }
        // A partition that a person stopped is as it should be.
        self.ready.set(matches!(
            self.view.state,
            SchedulerState::Running | SchedulerState::Stopped | SchedulerState::Stopping
        ));
        self.metrics.show(&self.view);
    }
}
