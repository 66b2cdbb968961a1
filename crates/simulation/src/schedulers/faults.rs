//! What happens to schedulers: they die, pause, stop, and lose the way to the store.

use std::time::Duration;

use waybill_engine::ShardId;
use waybill_scheduler_core::{Effect, Input};

use super::writes::{Progress, Write};
use super::{Act, Incarnation};
use crate::bugs::Bug;
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;

/// A loop that stood still for this long notices it.
const NOTICED_PAUSE: Duration = Duration::from_millis(2_200);

impl Run {
    /// Whether a scheduler acts; it may also die, pause or be stopped at this moment.
    pub(super) fn is_up(&mut self, index: usize) -> bool {
        if self.schedulers[index].paused_until > self.now {
            return false;
        }
        let plan = &self.plan;
        let left =
            plan.scheduler_crashes + plan.scheduler_pauses + plan.scheduler_stops + plan.cut_offs;
        if self.is_calm() || left == 0 || self.schedulers[index].scheduler_loop.is_none() {
            return true;
        }
        match self.rng.below(400) {
            0 if self.plan.scheduler_crashes > 0 => {
                self.plan.scheduler_crashes -= 1;
                let after = self.rng.below(2_000_000);
                self.crash_scheduler(index, after);
                false
            }
            1 if self.plan.scheduler_pauses > 0 => {
                self.plan.scheduler_pauses -= 1;
                self.pause_scheduler(index);
                false
            }
            2 if self.plan.scheduler_stops > 0 => {
                self.plan.scheduler_stops -= 1;
                self.stop_scheduler(index);
                true
            }
            3 if self.plan.cut_offs > 0 => {
                self.plan.cut_offs -= 1;
                self.seen.count(Sight::CutOffs);
                let time = Duration::from_micros(self.rng.between(100_000, 5_000_000));
                let keeps_rows = self.rng.chance(50);
                let scheduler = &mut self.schedulers[index];
                scheduler.cut_off_until = self.now + time;
                scheduler.keeps_rows = keeps_rows;
                let what = if keeps_rows {
                    "write leases"
                } else {
                    "reach the store"
                };
                self.note_all(|| format!("scheduler {index} cannot {what} for {time:?}"));
                true
            }
            _ => true,
        }
    }

    /// Whether the next messages wait for room in the producer's queue, and the process with them.
    pub(super) fn waits_for_producer(&mut self, index: usize) -> bool {
        let is_calm = self.is_calm();
        let scheduler = &mut self.schedulers[index];
        let sends = matches!(scheduler.effects.front(), Some(Effect::Send { .. }));
        if !sends || is_calm || std::mem::take(&mut scheduler.has_waited) {
            return false;
        }
        if self.rng.below(200) > 0 {
            return false;
        }
        self.seen.count(Sight::FullQueues);
        let wait = Duration::from_micros(self.rng.below(1_000_000));
        let scheduler = &mut self.schedulers[index];
        scheduler.has_waited = true;
        scheduler.paused_until = self.now + wait;
        true
    }

    fn pause_scheduler(&mut self, index: usize) {
        self.seen.count(Sight::Pauses);
        let pause = Duration::from_micros(self.rng.between(1_000, 5_000_000));
        let is_suspended = self.rng.chance(20);
        self.pause_scheduler_for(index, pause, is_suspended);
        let of = self.incarnation(index);
        let until = self.now + pause;
        if pause > NOTICED_PAUSE {
            // The inbox must be read to the end that it has then before any time-out.
            self.queue.push(until, What::Woken(of));
        }
    }

    /// A scheduler is paused for this long, unless it is woken up before.
    pub fn pause_scheduler_for(&mut self, index: usize, pause: Duration, is_suspended: bool) {
        let scheduler = &mut self.schedulers[index];
        scheduler.paused_until = self.now + pause;
        scheduler.was_paused = Some(pause);
        scheduler.was_suspended = is_suspended;
        let is_writing = !scheduler.writes.is_empty()
            || !scheduler.unanswered.is_empty()
            || !scheduler.effects.is_empty();
        scheduler.was_clean = !is_writing && !scheduler.has_news;
        if self.bug == Some(Bug::IgnoreLease) {
            scheduler.stood_still += pause;
        }
        let how = if is_suspended { "suspended" } else { "paused" };
        self.note_all(|| format!("scheduler {index} is {how} for {pause:?}"));
    }

    /// A scheduler wakes up after a long pause.
    pub fn woken(&mut self, of: Incarnation) {
        if !self.lives(of) {
            return;
        }
        let scheduler = &mut self.schedulers[of.scheduler];
        for reading in scheduler.readings.values_mut() {
            reading.inbox_end = self.store.logs[reading.partition].replies.len();
            if scheduler.was_clean {
                reading.replies_end = reading.inbox_end;
            }
        }
    }

    /// A scheduler stops gracefully, or one of its shards.
    pub fn stop_scheduler(&mut self, index: usize) {
        let shards: Vec<ShardId> = self.schedulers[index].readings.keys().copied().collect();
        if shards.is_empty() || self.rng.chance(60) {
            self.note_all(|| format!("scheduler {index} is stopped"));
            self.schedulers[index].is_stopping = true;
            return self.act_later(index, 0, Act::Input(Input::Shutdown));
        }
        let shard = shards[self.rng.index(shards.len())];
        self.note_all(|| format!("shard {shard} of scheduler {index} is stopped"));
        self.act_later(index, 0, Act::SetRunning(shard, false));
        let after = self.rng.between(100_000, 3_000_000);
        self.act_later(index, after, Act::SetRunning(shard, true));
    }

    /// A scheduler dies, and starts again after a while.
    pub fn crash_scheduler(&mut self, index: usize, restart_micros: u64) {
        let sight = self.crash_point(index);
        self.seen.count(sight);
        self.note_all(|| format!("scheduler {index} dies: {sight:?}"));
        let writes = std::mem::take(&mut self.schedulers[index].writes);
        for write in writes.into_values() {
            self.write_dies(index, write);
        }
        self.restart_scheduler(index, restart_micros);
    }

    pub(super) fn restart_scheduler(&mut self, index: usize, micros: u64) {
        let incarnation = self.schedulers[index].incarnation + 1;
        self.schedulers[index] = Self::new_scheduler(&self.plan, &mut self.rng, incarnation);
        self.act_later(index, micros, Act::Start);
    }

    fn crash_point(&self, index: usize) -> Sight {
        let scheduler = &self.schedulers[index];
        let mut unsettled = scheduler.unsettled.values();
        let newest = scheduler.writes.values().next_back();
        match newest.map(Write::progress) {
            Some(Progress::Durable) => Sight::CrashBeforeSending,
            Some(Progress::Partly) => Sight::CrashAmidPersisting,
            Some(Progress::None) => Sight::CrashBeforePersisting,
            None if unsettled.any(|batch| batch.messages > 0) => Sight::CrashAmidSending,
            None if !scheduler.unsettled.is_empty() => Sight::CrashBeforeSettling,
            None => Sight::CrashIdle,
        }
    }
}
