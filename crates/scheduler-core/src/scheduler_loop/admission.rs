//! Admission: which waiting requests start, and how much the consumers may read ahead.

use waybill_engine::{ByPriority, Now, Priority, Room, ShardId};

use super::SchedulerLoop;
use crate::amount::{Amount, room_beside};
use crate::effect::Effect;
use crate::slot::SlotState;

impl SchedulerLoop {
    /// The total that all engines hold.
    pub(super) fn in_flight(&self) -> Amount {
        let mut sum = Amount::default();
        for slot in self.slots.values() {
            if let SlotState::Owned(owned) = &slot.state {
                let held = owned.engine.in_flight();
                sum.records += held.operations + held.loading;
                sum.bytes += held.bytes;
            }
        }
        sum
    }

    /// Admits waiting requests while the window has room: an equal share for each engine, and the
    /// rest for engines with more requests. Each round starts with another engine, so that the last
    /// free places rotate.
    pub(super) fn admit(&mut self, now: Now) {
        if self.stopping.is_some() {
            return;
        }
        let held = self.in_flight();
        let mut room = Room {
            operations: self.settings.in_flight_max.saturating_sub(held.records),
            bytes: self.settings.in_flight_bytes_max.saturating_sub(held.bytes),
        };
        let slots = self.slots.iter();
        let waiting =
            slots.filter(|(_, slot)| slot.has_waiting() && !slot.has_reached_end(&self.layout));
        let mut waiting: Vec<ShardId> = waiting.map(|(&shard, _)| shard).collect();
        let first = waiting
            .iter()
            .position(|shard| *shard > self.first_admitted);
        waiting.rotate_left(first.unwrap_or_default());
        if let Some(first) = waiting.first() {
            self.first_admitted = *first;
        }
        while room.operations > 0 && room.bytes > 0 && !waiting.is_empty() {
            let each = Room {
                operations: room.operations.div_ceil(waiting.len()),
                bytes: room.bytes.div_ceil(waiting.len()),
            };
            waiting.retain(|shard| {
                let Some(slot) = self.slots.get_mut(shard) else {
                    return false;
                };
                let SlotState::Owned(owned) = &mut slot.state else {
                    return false;
                };
                let own = Room {
                    operations: each.operations.min(room.operations),
                    bytes: each.bytes.min(room.bytes),
                };
                let left = owned.engine.admit(own, now.wall);
                room.operations -= own.operations - left.operations;
                room.bytes -= own.bytes - left.bytes;
                slot.has_waiting()
            });
        }
    }

    /// Lets the consumers continue reading if more requests may wait.
    pub(super) fn offer_room(&mut self) {
        let most = Amount {
            records: self.settings.read_ahead_max,
            bytes: self.settings.read_ahead_bytes_max,
        };
        let requests = ByPriority::of(|priority: Priority| {
            let mut waiting = Amount::default();
            let mut known = 0;
            for slot in self.slots.values() {
                // Requests that wait in a stopping shard are dropped with it.
                if let SlotState::Owned(owned) = &slot.state
                    && owned.releasing_since.is_none()
                {
                    let of_it = owned.engine.waiting(priority);
                    waiting.records += of_it.requests;
                    waiting.bytes += of_it.bytes;
                    known += owned.engine.tracked(priority);
                }
            }
            match self.stopping {
                Some(_) => Amount::default(),
                None => room_beside(most, waiting, self.settings.tracked_requests_max, known),
            }
        });
        let inbox = self.settings.inbox_room();
        self.effects.push(Effect::OfferRoom { requests, inbox });
    }
}
