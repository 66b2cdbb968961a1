//! Follows the layout: which shards this process runs, and how they end when another layout
//! replaces it.
//!
//! What must hold: the shards of a layout that has ended take no new batch, finish the commit in
//! flight, and release their leases. A shard of the new layout begins once all shards that it
//! follows were taken over (`ownership`), wherever they ran. A shard whose partition changes in the
//! new layout continues until it has read its old partition to the end.

use waybill_engine::{BootTime, Now};
use waybill_state::Layout;

use super::SchedulerLoop;
use crate::effect::Effect;
use crate::settings::LoopSettings;
use crate::slot::{Slot, SlotState};
use crate::task::TaskError;

/// When the layout is read.
#[derive(Debug)]
pub(super) struct LayoutReads {
    /// When it was last requested.
    asked_at: BootTime,
    /// Whether the answer is outstanding.
    is_awaited: bool,
    /// Whether it is known to have changed since.
    is_outdated: bool,
    /// Whether the last read failed; logged once.
    has_failed: bool,
}

impl LayoutReads {
    /// The layout was just read.
    pub(super) fn new(now: BootTime) -> Self {
        Self {
            asked_at: now,
            is_awaited: false,
            is_outdated: false,
            has_failed: false,
        }
    }

    /// Reads it again as soon as no answer is outstanding.
    pub(super) fn hurry(&mut self) {
        self.is_outdated = true;
    }

    fn is_due(&self, now: BootTime, settings: &LoopSettings) -> bool {
        let since = now.since(self.asked_at);
        match self.is_awaited {
            // Stop waiting for the answer after this long.
            true => since >= settings.stuck_after,
            false => self.is_outdated || since >= settings.lease.duration / 3,
        }
    }

    fn asked(&mut self, now: BootTime) {
        self.asked_at = now;
        self.is_awaited = true;
        self.is_outdated = false;
    }
}

impl SchedulerLoop {
    /// Reads the layout, as often as leases are renewed: it is one small read for all shards.
    pub(super) fn read_layout(&mut self, now: Now) {
        if !self.layout_reads.is_due(now.boot, &self.settings) {
            return;
        }
        self.layout_reads.asked(now.boot);
        self.effects.push(Effect::ReadLayout);
    }

    /// Adopts the layout in the store, if it is newer.
    pub(super) fn layout_read(&mut self, result: Result<Option<Layout>, TaskError>) {
        self.layout_reads.is_awaited = false;
        let layout = match result {
            Ok(Some(layout)) if layout.generation() > self.layout.generation() => layout,
            Ok(_) => {
                self.layout_reads.has_failed = false;
                return;
            }
            Err(error) => {
                // Log once for each series of failures, since the read is repeated.
                if !std::mem::replace(&mut self.layout_reads.has_failed, true) {
                    tracing::warn!(%error, "could not read the shard layout");
                }
                return;
            }
        };
        self.layout_reads.has_failed = false;
        tracing::info!(%layout, "the shard layout changed");
        self.layout = layout;
        for (&shard, slot) in &mut self.slots {
            slot.check_again(self.assigned.next());
            if let SlotState::Owned(owned) = &mut slot.state {
                let generation = owned.lease.row.key.generation;
                let end = self.layout.end_of(generation, shard);
                let filter = owned.filter.clone().with_end(end);
                if filter != owned.filter {
                    owned.filter = filter.clone();
                    self.effects.push(Effect::SetFilter { shard, filter });
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
        self.effects.push(Effect::Relay);
    }

    /// Forgets the shards that the layout does not have, once they are stopped.
    pub(super) fn forget_gone(&mut self) {
        let shards = self.layout.scheme().shards();
        let effects = &mut self.effects;
        self.slots.retain(|&shard, slot| {
            let stays = shard.0 < shards || matches!(slot.state, SlotState::Owned(_));
            if !stays {
                slot.answer_gone(shard, effects);
            }
            stays
        });
    }
}
