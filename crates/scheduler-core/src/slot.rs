//! One shard in the loop: whether it should run, whether it is owned, and the state of its
//! ownership.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    BootTime, ByPriority, Offset, PartitionEngine, PartitionId, Priority, ShardFilter, ShardId,
    Source, TopicOffsets,
};
use waybill_state::{Checkpoint, Layout, Lease};

use crate::checkpoint_check::CheckpointMismatch;
use crate::control::ControlError;
use crate::effect::Effect;
use crate::input::{CallerId, Generation};
use crate::lease::{HeldLease, Renewal};
use crate::settings::LoopSettings;

/// How long a shard counts as blocked after a refused step request. It exceeds the engine's wait
/// before a retry, which is at most a minute, so that readiness does not change while the cause
/// persists.
const UNSENT_SHOWN_FOR: Duration = Duration::from_secs(90);
/// The time since the refusal is rounded down to this, in seconds, so that readiness changes
/// rarely.
const SHOWN_EVERY_S: u64 = 5;

/// How long a stopping shard waits for the commit in flight.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// A shard that this process is assigned.
#[derive(Debug)]
pub struct Slot {
    /// Whether it should run.
    pub(crate) wanted: bool,
    /// Its latest assignment.
    pub(crate) generation: Generation,
    /// It is not acquired again before this.
    pub(crate) rest_until: Option<BootTime>,
    /// Callers that wait for it to run or to stop.
    pub(crate) answers: Vec<(bool, CallerId)>,
    /// Logs that do not match the checkpoint, if the shard is to continue anyway.
    pub(crate) differing: Option<Differing>,
    /// Why it was dropped; cleared when it runs again.
    pub(crate) dropped_for: Option<String>,
    /// Its current state.
    pub(crate) state: SlotState,
}

/// Request logs whose mismatch with the checkpoint was found while they were read.
#[derive(Debug)]
pub(crate) struct Differing {
    /// The checkpoint in the store at that time.
    pub(crate) judged: Checkpoint,
    /// The mismatch of each.
    pub(crate) logs: ByPriority<Option<CheckpointMismatch>>,
}

/// The state of a shard.
#[derive(Debug)]
pub enum SlotState {
    /// It does not run.
    Idle,
    /// Its lease is being acquired.
    Acquiring,
    /// It runs.
    Owned(Box<Owned>),
    /// It cannot run until a person has intervened.
    Refused(String),
}

/// A running shard.
#[derive(Debug)]
pub struct Owned {
    pub(crate) engine: PartitionEngine,
    pub(crate) lease: HeldLease,
    /// Which records of its partition it takes.
    pub(crate) filter: ShardFilter,
    /// The checkpoint in the store. The lease's own may be ahead, past deleted records, until it is
    /// written.
    pub(crate) stored: Checkpoint,
    /// Since when a read of rows has been in flight, if one is.
    pub(crate) loading_since: Option<BootTime>,
    /// The renewal in flight.
    pub(crate) renewing: Option<Renewal>,
    /// Whether the lease row is known to be as last written: not after a renewal without an answer.
    pub(crate) row_is_known: bool,
    /// Whether the lease may have been released: no message is sent from then on.
    pub(crate) release_sent: bool,
    pub(crate) renewal_sent_at: BootTime,
    /// Since when the shard has been stopping: it takes no new batch from then on.
    pub(crate) releasing_since: Option<BootTime>,
    /// Whether the end of the inbox is being read. No time-out may be applied before that.
    pub(crate) inbox_end_awaited: bool,
    /// Whether the loop was paused since that began. The end must then be read once more.
    pub(crate) paused_again: bool,
    /// Its topics that are blocked at damaged records, each with a description.
    pub(crate) blocked: Vec<(Source, String)>,
    /// Agents with a step request that was refused because of its topic: when last, and why.
    pub(crate) unsent: BTreeMap<Arc<str>, (BootTime, String)>,
}

impl Slot {
    pub(crate) fn new() -> Self {
        Self {
            wanted: true,
            generation: Generation::default(),
            rest_until: None,
            answers: Vec::new(),
            differing: None,
            dropped_for: None,
            state: SlotState::Idle,
        }
    }

    /// Whether it should run.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Its current state.
    #[must_use]
    pub fn state(&self) -> &SlotState {
        &self.state
    }

    /// Why it was dropped; `None` once it runs again.
    #[must_use]
    pub fn dropped_for(&self) -> Option<&str> {
        self.dropped_for.as_deref()
    }

    /// The running shard, if it still runs under `generation`.
    pub(crate) fn owned(&mut self, generation: Generation) -> Option<&mut Owned> {
        match &mut self.state {
            SlotState::Owned(owned) if self.generation == generation => Some(owned),
            _ => None,
        }
    }

    /// Whether requests wait for admission that it may start.
    pub(crate) fn has_waiting(&self) -> bool {
        let SlotState::Owned(owned) = &self.state else {
            return false;
        };
        let mut priorities = Priority::ALL.into_iter();
        owned.releasing_since.is_none()
            && priorities.any(|priority| owned.engine.waiting(priority).requests > 0)
    }

    /// Whether it has done all records below its end in a layout. Later records belong to other
    /// shards.
    pub(crate) fn has_reached_end(&self, layout: &Layout) -> bool {
        let SlotState::Owned(owned) = &self.state else {
            return false;
        };
        let end = owned.end_in(layout);
        end.is_some_and(|end| owned.engine.checkpoint().at.reach(&end))
    }

    /// Drops the ownership. The lease is not acquired again before `until`.
    pub(crate) fn rest(&mut self, until: BootTime) {
        self.state = SlotState::Idle;
        self.rest_until = Some(until);
    }

    /// The lease was released.
    pub(crate) fn released(&mut self) {
        self.dropped_for = None;
        self.state = SlotState::Idle;
        self.rest_until = None;
    }

    /// Whether it runs under another layout than this one, and has finished its part there.
    pub(crate) fn is_to_follow(&self, layout: &Layout) -> bool {
        let SlotState::Owned(owned) = &self.state else {
            return false;
        };
        let row = &owned.lease.row;
        let Some(end) = owned.end_in(layout) else {
            return row.key.generation != layout.generation();
        };
        // It finishes the operations that it started before it knew the end; requests beyond the
        // end stay.
        let mut priorities = Priority::ALL.into_iter();
        !priorities.any(|priority| owned.engine.has_begun(priority))
            && row.checkpoint.at.reach(&end)
    }

    /// Starts over under a new layout, if it was not running: an acquisition or a refusal belonged
    /// to the old layout.
    pub(crate) fn check_again(&mut self, next: Generation) {
        if let SlotState::Acquiring | SlotState::Refused(_) = self.state {
            self.state = SlotState::Idle;
            self.generation = next;
        }
        self.rest_until = None;
    }

    /// Whether it is in the state that a caller requested.
    pub(crate) fn is(&self, running: bool) -> bool {
        match &self.state {
            SlotState::Owned(_) => running,
            SlotState::Idle => !running,
            SlotState::Acquiring => false,
            SlotState::Refused(_) => !running,
        }
    }

    /// Answers the callers that wait for its current state.
    pub(crate) fn answer(&mut self, shard: ShardId, effects: &mut Vec<Effect>) {
        for (running, caller) in std::mem::take(&mut self.answers) {
            let result = if self.is(running) {
                Ok(())
            } else if let SlotState::Refused(reason) = &self.state {
                Err(ControlError::Failed {
                    shard,
                    wanted: if running { "started" } else { "stopped" },
                    cause: reason.clone(),
                })
            } else {
                self.answers.push((running, caller));
                continue;
            };
            effects.push(Effect::Answer { caller, result });
        }
    }

    /// Answers all callers of a shard that this process no longer runs.
    pub(crate) fn answer_gone(&mut self, shard: ShardId, effects: &mut Vec<Effect>) {
        for (_, caller) in self.answers.drain(..) {
            let result = Err(ControlError::NotHere(shard));
            effects.push(Effect::Answer { caller, result });
        }
    }
}

impl Owned {
    /// Its engine.
    #[must_use]
    pub fn engine(&self) -> &PartitionEngine {
        &self.engine
    }

    /// Its lease as it was last written.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease.row
    }

    /// Where its part of the partition ends in a layout, if it leaves the partition.
    fn end_in(&self, layout: &Layout) -> Option<TopicOffsets> {
        let key = self.lease.row.key;
        layout.end_of(key.generation, ShardId(key.number))
    }

    pub(crate) fn new(
        engine: PartitionEngine,
        lease: HeldLease,
        filter: ShardFilter,
        stored: Checkpoint,
        owned_at: BootTime,
    ) -> Self {
        Self {
            stored,
            engine,
            lease,
            filter,
            loading_since: None,
            renewing: None,
            row_is_known: true,
            release_sent: false,
            renewal_sent_at: owned_at,
            releasing_since: None,
            inbox_end_awaited: false,
            paused_again: false,
            blocked: Vec::new(),
            unsent: BTreeMap::new(),
        }
    }

    /// Notes that a step request for an agent was refused. Returns whether it is the first, or
    /// the first for [`UNSENT_SHOWN_FOR`].
    pub(crate) fn note_unsent(&mut self, agent: Arc<str>, why: String, now: BootTime) -> bool {
        let before = self.unsent.insert(agent, (now, why));
        before.is_none_or(|(at, _)| now.since(at) >= UNSENT_SHOWN_FOR)
    }

    /// Why it, or some of its operations, are blocked; `None` if they are not.
    #[must_use]
    pub fn why_blocked(&self, now: BootTime) -> Option<String> {
        let refused = self.unsent.iter();
        let refused = refused.filter(|(_, (at, _))| now.since(*at) < UNSENT_SHOWN_FOR);
        let refused = refused.map(|(agent, (at, why))| {
            format!(
                "a step request for agent {agent} was refused {} s ago: {why} (shown until {} s \
                 after the last refusal)",
                now.since(*at).as_secs() / SHOWN_EVERY_S * SHOWN_EVERY_S,
                UNSENT_SHOWN_FOR.as_secs()
            )
        });
        let blocked = self.blocked.iter().map(|(_, why)| why.clone());
        let all: Vec<String> = blocked.chain(refused).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Whether messages may be sent: the lease is valid, and was not released.
    pub(crate) fn may_send(&self, now: BootTime) -> bool {
        self.lease.is_valid(now) && !self.release_sent
    }

    /// The partition that the shard reads.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        self.lease.row.partition
    }

    /// Whether the lease row should be written now: the lease needs it, or the checkpoint moved and
    /// enough records or time have passed.
    pub(crate) fn renewal_due(
        &self,
        checkpoint: Checkpoint,
        consumed: ByPriority<Offset>,
        settings: &LoopSettings,
        now: BootTime,
    ) -> bool {
        let row = &self.lease.row;
        let since = now.since(self.renewal_sent_at);
        if since >= settings.lease.duration / 3 {
            return true;
        }
        let done = Source::ALL.map(|source| checkpoint.on(source).0 - row.checkpoint.on(source).0);
        let taken = Priority::ALL.map(|priority| consumed[priority].0 - row.consumed[priority].0);
        let records = done.into_iter().chain(taken).max().unwrap_or_default();
        records >= settings.checkpoint_records
            || (records > 0 && since >= settings.checkpoint_every)
    }

    /// Whether a stopping shard may release its lease: no row or message of it is in flight, or it
    /// has waited long enough. The next owner replays the records that are not acknowledged by
    /// then.
    pub(crate) fn may_release(&self, involved: bool, now: BootTime) -> bool {
        self.releasing_since
            .is_some_and(|since| !involved || now.since(since) >= RELEASE_PATIENCE)
    }
}
