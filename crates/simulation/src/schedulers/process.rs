//! The driver of a scheduler's loop: gives it inputs and the time, and performs its effects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{ByPriority, Now, Priority, ShardId};
use waybill_scheduler_core::{
    Acquisition, AcquisitionAnswer, Candidate, Effect, Input, LoopSettings, Note, Own,
    SchedulerLoop, SlotState,
};

use super::{Act, Call, Incarnation, Reading};
use crate::bugs::Bug;
use crate::history::Rule;
use crate::run::Run;
use crate::seen::Sight;

/// How long a process whose loop has stopped waits for the agents in it.
const AGENTS_PATIENCE: Duration = Duration::from_secs(5);
/// How long the loop waits for an answer of the store.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// While messages are under way the loop turns this often, only to see whether they were
/// acknowledged. Here an acknowledgement wakes it.
const SETTLE_MAX: Duration = Duration::from_millis(5);
/// The longest wait for its next turn: twice that of a process which has the CPU at once.
const PATIENCE_MAX: Duration = Duration::from_millis(100);

impl Run {
    pub(super) fn start_scheduler(&mut self, index: usize) {
        let settings = LoopSettings {
            own: Own::All,
            store_is_exclusive: false,
            in_flight_max: self.plan.in_flight_max,
            in_flight_bytes_max: 1 << 20,
            read_ahead_max: self.plan.waiting_max,
            read_ahead_bytes_max: 1 << 20,
            tracked_requests_max: self.plan.tracked_max,
            checkpoint_every: self.plan.checkpoint_every,
            checkpoint_records: 4,
            lease: self.plan.lease,
            stuck_after: STUCK_AFTER,
            skip_deleted_requests: false,
            drain: Duration::from_millis(300),
        };
        let layout = self.store.layout.clone();
        let scheduler = &mut self.schedulers[index];
        let now = scheduler.now(self.now);
        scheduler.scheduler_loop = Some(SchedulerLoop::new(
            settings,
            (*self.plan.config).clone(),
            Arc::clone(&self.plan.workflows),
            scheduler.owner,
            layout,
            now,
        ));
        self.turn(index);
    }

    /// Gives an input to the loop, and performs its effects.
    pub fn give(&mut self, index: usize, input: Input) {
        self.give_later(index, input, Duration::ZERO);
    }

    /// The same, as if it were later by a while.
    pub(super) fn give_later(&mut self, index: usize, input: Input, later: Duration) {
        if let Input::Settled { number, result } = &input {
            self.settled(index, *number, result.is_ok());
        }
        let scheduler = &mut self.schedulers[index];
        if let Input::Committed { number, .. } = &input {
            scheduler.unanswered.remove(number);
        }
        let now = scheduler.now(self.now);
        let Some(scheduler_loop) = &mut scheduler.scheduler_loop else {
            return;
        };
        let now = Now {
            wall: now.wall + later,
            ..now
        };
        scheduler_loop.take(input, now);
        scheduler.has_news = true;
        self.take_effects(index);
        let after = self.rng.below(50);
        self.want_turn(index, Duration::from_micros(after));
        self.perform_all(index);
    }

    pub(super) fn turn(&mut self, index: usize) {
        let scheduler = &mut self.schedulers[index];
        if scheduler.turns_at.is_some_and(|at| at > self.now) {
            return;
        }
        let paused = scheduler.was_paused.take();
        let suspended = paused.filter(|_| std::mem::take(&mut scheduler.was_suspended));
        let now = scheduler.now(self.now);
        let Some(scheduler_loop) = &mut scheduler.scheduler_loop else {
            return;
        };
        let before = held(scheduler_loop, &scheduler.readings);
        scheduler_loop.turn(true, suspended, now);
        let after = held(scheduler_loop, &scheduler.readings);
        let patience = scheduler_loop.patience(now.boot);
        let is_held_back = patience < SETTLE_MAX;
        let patience = match is_held_back {
            true => patience + Duration::from_micros(10),
            false => PATIENCE_MAX,
        };
        scheduler.has_news = is_held_back || scheduler.has_stuck;
        scheduler.turns_at = None;
        if after > before.max(self.plan.in_flight_max) {
            self.fail(Rule::Bounds, None, || {
                format!("{after} operations in memory, {before} before the turn")
            });
        }
        self.take_effects(index);
        self.want_turn(index, patience);
        self.perform_all(index);
    }

    pub(super) fn want_turn(&mut self, index: usize, after: Duration) {
        let at = self.now + after;
        let scheduler = &mut self.schedulers[index];
        if scheduler.turns_at.is_none_or(|turns_at| at < turns_at) {
            scheduler.turns_at = Some(at);
            let of = self.incarnation(index);
            self.act_at(of, at, Act::Turn);
        }
    }

    /// Takes the loop's effects, and what its engines have counted.
    pub(super) fn take_effects(&mut self, index: usize) {
        let scheduler = &mut self.schedulers[index];
        let Some(scheduler_loop) = &mut scheduler.scheduler_loop else {
            return;
        };
        let mut effects = Vec::new();
        scheduler_loop.take_effects(&mut effects);
        scheduler.effects.extend(effects);
        let mut failed = false;
        let mut unknown = false;
        for (shard, reading) in &scheduler.readings {
            let Some(stats) = scheduler_loop.take_stats(*shard) else {
                continue;
            };
            failed |= stats.internal_errors > 0;
            let lease = self.store.leases.get(&reading.key);
            // A superseded owner may look up a row before its successor writes it.
            let is_current = lease.is_some_and(|lease| lease.epoch == reading.epoch);
            unknown |= is_current && stats.unknown_replies > 0;
            self.seen.add(&stats);
        }
        if failed {
            self.fail(Rule::Contract, None, || {
                "the engine failed on an operation".to_owned()
            });
        }
        if unknown {
            self.fail(Rule::Contract, None, || {
                "an agent got a request for an operation without a row".to_owned()
            });
        }
    }

    /// Performs the effects of the loop in order, until the process dies or pauses.
    pub(super) fn perform_all(&mut self, index: usize) {
        let of = self.incarnation(index);
        while !self.schedulers[index].effects.is_empty() {
            if !self.is_up(index) {
                if self.lives(of) {
                    let until = self.schedulers[index].paused_until;
                    self.act_at(of, until, Act::Resume);
                }
                return;
            }
            if self.waits_for_producer(index) {
                continue;
            }
            if let Some(effect) = self.schedulers[index].effects.pop_front() {
                self.perform_effect(index, effect);
            }
        }
        let scheduler = &self.schedulers[index];
        let is_stopped = scheduler.is_stopping
            && scheduler.closes_until.is_none()
            && scheduler
                .scheduler_loop
                .as_ref()
                .is_some_and(SchedulerLoop::is_stopped);
        if is_stopped {
            self.seen.count(Sight::GracefulStops);
            self.note_all(|| format!("scheduler {index} has stopped"));
            let until = self.now + AGENTS_PATIENCE;
            self.schedulers[index].closes_until = Some(until);
            self.act_at(of, until, Act::Close);
            self.drain_direct_agents(of);
            self.close_once_drained(of);
        }
    }

    /// A scheduler whose loop has stopped ends once the agents in its process run no attempt, or it
    /// has waited for long enough. What they have answered goes to the topic. It starts again
    /// later.
    pub(super) fn close_once_drained(&mut self, of: Incarnation) {
        let is_running = self.runs_direct_attempts(of);
        let scheduler = &self.schedulers[of.scheduler];
        if is_running && scheduler.closes_until.is_some_and(|until| self.now < until) {
            return;
        }
        for (_, reply) in self.end_direct_agents(of) {
            self.seen.count(Sight::AnsweredWhileStopping);
            let after = self.travel();
            self.act_later(of.scheduler, after, Act::PassedOn(reply));
        }
        let after = self.rng.below(1_000_000);
        self.restart_scheduler(of.scheduler, after);
    }

    fn perform_effect(&mut self, index: usize, effect: Effect) {
        match effect {
            Effect::Acquire {
                shard,
                generation,
                layout,
            } => {
                let scheduler = &mut self.schedulers[index];
                let candidate = Candidate {
                    owner: scheduler.owner,
                    terms: self.plan.lease,
                    store_is_exclusive: self.bug == Some(Bug::TakeWithoutWaiting),
                    may_lack_state: false,
                };
                let acquisition = Acquisition::new(candidate, layout, shard);
                scheduler.acquiring.insert(generation, (shard, acquisition));
                let started = AcquisitionAnswer::Started;
                self.acquire(index, generation, started);
            }
            Effect::Assign(assignment) => self.assign(index, *assignment),
            Effect::SetFilter { shard, filter } => {
                if let Some(reading) = self.schedulers[index].readings.get_mut(&shard) {
                    reading.filter = filter;
                }
            }
            Effect::Unassign(shard) => {
                if let Some(reading) = self.schedulers[index].readings.get_mut(&shard) {
                    reading.is_read = false;
                }
            }
            Effect::OfferRoom { requests, .. } => {
                self.schedulers[index].room =
                    ByPriority::of(|priority: Priority| requests[priority].records);
                for source in Priority::ALL.map(Priority::source) {
                    self.wake_all_shards(index, source);
                }
            }
            Effect::Write {
                number,
                batch,
                again_after,
            } => self.write_rows(index, number, batch, again_after),
            Effect::Send {
                number,
                from,
                messages,
                valid_until,
            } => self.send_all(index, number, from, messages, valid_until),
            Effect::PassOn { reply, .. } => {
                let after = self.travel();
                self.act_later(index, after, Act::PassedOn(reply));
            }
            Effect::Forget(shard) => self.forget_requests(index, shard),
            Effect::CopyCheckpoint {
                partition,
                checkpoint,
            } => self.store.logs[partition.0 as usize].copied = Some(checkpoint),
            Effect::Note(note) => match note {
                Note::Withheld => self.seen.count(Sight::FencedCommits),
                Note::LeaseLost => self.seen.count(Sight::LeasesExpired),
                Note::Stuck(_) => self.seen.count(Sight::GivenUp),
                Note::CommitBegan(_)
                | Note::CommitDurable(_)
                | Note::CommitFailed
                | Note::RowUnreadable(_)
                | Note::RowReplaced(_) => {}
            },
            Effect::ReadTo { .. } | Effect::Relay | Effect::Answer { .. } => {}
            Effect::Fail(error) => self.fail(Rule::Contract, None, || error.to_string()),
            effect => {
                let call = Call::of(effect).expect("every other effect is a call");
                self.send_scheduler_call(index, call);
            }
        }
    }
}

/// How many operations a loop holds in memory.
fn held(scheduler_loop: &SchedulerLoop, readings: &BTreeMap<ShardId, Reading>) -> usize {
    let slots = readings
        .keys()
        .filter_map(|&shard| scheduler_loop.slot(shard));
    let held = slots.map(|slot| match slot.state() {
        SlotState::Owned(owned) => {
            let held = owned.engine().in_flight();
            held.operations + held.loading
        }
        SlotState::Idle | SlotState::Acquiring | SlotState::Refused(_) => 0,
    });
    held.sum()
}
