//! Follows the layout: which shards this process runs, and how they end when another layout
//! replaces it.
//!
//! What must hold: the shards of a layout that has ended take no new batch, finish the commit in
//! flight, and release their leases. A shard of the new layout begins once all shards that it
//! follows were taken over (`ownership`), wherever they ran. A shard whose partition changes in the
//! new layout continues until it has read its old partition to the end.

use std::time::Instant;

use waybill_store::Layout;
use waybill_telemetry::chain;

use super::SchedulerLoop;
use crate::input::Input;
use crate::partition::{Slot, SlotState};
use crate::task::{Task, TaskError};
use crate::tasks;

impl SchedulerLoop {
    /// Reads the layout, as often as leases are renewed: it is one small read for all shards.
    pub(super) fn read_layout(&mut self) {
        let (asked_at, is_awaited) = self.layout_asked;
        let rest = match is_awaited {
            // Stop waiting for the answer after this long.
            true => self.settings.stuck_after,
            false => self.settings.lease / 3,
        };
        if asked_at.elapsed() < rest {
            return;
        }
        self.layout_asked = (Instant::now(), true);
        let store = self.store.clone();
        let reading = async move { Ok(store.layout().await?) };
        tasks::spawn(
            &self.runtime,
            &self.sender,
            Task::Layout,
            reading,
            Input::Layout,
        );
    }

    /// Adopts the layout in the store, if it is newer.
    pub(super) fn layout_read(&mut self, result: Result<Option<Layout>, TaskError>) {
        self.layout_asked.1 = false;
        let layout = match result {
            Ok(Some(layout)) if layout.generation() > self.layout.generation() => layout,
            Ok(_) => {
                self.layout_unread = false;
                return;
            }
            Err(error) => {
                // Log once for each series of failures, since the read is repeated.
                if !std::mem::replace(&mut self.layout_unread, true) {
                    tracing::warn!(error = %chain(&error), "could not read the shard layout");
                }
                return;
            }
        };
        self.layout_unread = false;
        tracing::info!(%layout, "the shard layout changed");
        self.layout = layout;
        self.commits.written(self.layout.partitions_written());
        for (&shard, slot) in &mut self.slots {
            slot.check_again(self.assigned.next());
            if let SlotState::Owned(owned) = &mut slot.state {
                let generation = owned.lease.row.key.generation;
                let end = self.layout.end_of(generation, shard);
                let filter = owned.filter.clone().with_end(end);
                if filter != owned.filter {
                    self.consumers.set_filter(shard, &filter);
                    owned.filter = filter;
                }
            }
        }
        for shard in self.settings.own.of(self.layout.scheme()) {
            self.slots.entry(shard).or_insert_with(Slot::new);
        }
        self.forget_gone();
        if self.slots.is_empty() {
            let shards = self.layout.scheme().shards();
            tracing::warn!(shards, "this process has no shard in the new layout");
        }
        self.views.relay(self.settings.own, &self.layout);
    }

    /// Forgets the shards that the layout does not have, once they are stopped.
    pub(super) fn forget_gone(&mut self) {
        let scheme = self.layout.scheme();
        self.slots.retain(|shard, slot| {
            shard.0 < scheme.shards() || matches!(slot.state, SlotState::Owned(_))
        });
    }
}
