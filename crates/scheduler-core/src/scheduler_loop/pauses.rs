//! What the loop does after a pause: of the process, or of the whole machine.
//!
//! What must hold: **no attempt times out while its reply waits in the inbox.** Replies may have
//! arrived during the pause, and a time-out may be due at once.

use std::time::Duration;

use waybill_engine::{Event, Now, Offset, ShardId};

use super::{ITERATION_MAX, SchedulerLoop};
use crate::effect::Effect;
use crate::input::Generation;
use crate::slot::SlotState;
use crate::standstill::Standstill;
use crate::task::Panicked;

/// Beyond the end of every inbox.
const UNKNOWN_END: Offset = Offset(i64::MAX);

impl SchedulerLoop {
    /// Notices that the loop did not run for a while, before it does anything else.
    pub(super) fn resume(&mut self, suspended: Option<Duration>, now: Now) {
        match self.standstills.ran(now.boot, suspended, ITERATION_MAX) {
            Some(Standstill::Suspended(suspended)) => self.was_suspended(suspended, now),
            Some(Standstill::Paused(pause)) => self.resume_after_pause(pause, now),
            None => {}
        }
    }

    /// Handles a suspension of the machine, or its move to another host. Other processes may have
    /// taken the shards over, whatever this machine's clock says, so every lease is acquired again.
    fn was_suspended(&mut self, suspended: Duration, now: Now) {
        tracing::warn!(
            ?suspended,
            "the machine was suspended; dropping all partitions"
        );
        let shards: Vec<ShardId> = self.slots.keys().copied().collect();
        for shard in shards {
            self.give_up(shard, "the machine was suspended", now);
        }
    }

    /// Handles a pause of the process. The inbox may hold replies that are older than the time-outs
    /// that would be applied now. So no time-out is applied until the inbox was read to its current
    /// end, which is unknown until the broker has answered.
    fn resume_after_pause(&mut self, pause: Duration, now: Now) {
        tracing::warn!(
            ?pause,
            "the scheduler was paused; reading all replies before applying time-outs"
        );
        for (&shard, slot) in &mut self.slots {
            let generation = slot.generation;
            let SlotState::Owned(owned) = &mut slot.state else {
                continue;
            };
            owned.engine.apply(Event::InboxEnd(UNKNOWN_END), now.wall);
            if std::mem::replace(&mut owned.inbox_end_awaited, true) {
                owned.paused_again = true;
                continue;
            }
            self.effects.push(Effect::ReadInboxEnd {
                shard,
                generation,
                partition: owned.partition(),
            });
        }
    }

    pub(super) fn inbox_end(
        &mut self,
        shard: ShardId,
        generation: Generation,
        end: Result<Offset, Panicked>,
        now: Now,
    ) {
        let Ok(end) = end else {
            let reason = "could not read the end of its replies";
            return self.begin_again([(shard, generation)], reason, now);
        };
        let Some(owned) = self.owned(shard, generation) else {
            return;
        };
        let partition = owned.partition();
        if std::mem::take(&mut owned.paused_again) {
            // Replies may have arrived after this end, during the later pause.
            self.effects.push(Effect::ReadInboxEnd {
                shard,
                generation,
                partition,
            });
            return;
        }
        owned.inbox_end_awaited = false;
        owned.engine.apply(Event::InboxEnd(end), now.wall);
        self.effects.push(Effect::ReadTo { shard, end });
    }
}
