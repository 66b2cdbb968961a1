//! One shard as the loop sees it: wanted or not, owned or not, and what it owns with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use waybill_clock::BootTime;
use waybill_engine::{
    ByPriority, Offset, PartitionEngine, PartitionId, Priority, ShardFilter, ShardId, Source,
    TopicOffsets,
};
use waybill_store::{Checkpoint, Layout};

use super::SchedulerSettings;
use super::checkpoint_check::CheckpointMismatch;
use super::input::Generation;
use super::ownership::HeldLease;
use crate::control::ControlError;

/// How long a shard counts as blocked after a step request was refused: longer than the engine waits before it asks again,
/// which is a minute at most, so that readiness does not change while the cause lasts.
const UNSENT_SHOWN_FOR: Duration = Duration::from_secs(90);
/// The time since the refusal is rounded down to this, in seconds, so that readiness changes rarely.
const SHOWN_EVERY_S: u64 = 5;

/// How long a shard that is being stopped waits for the commit under way.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// A shard that this process is to run.
pub(super) struct Slot {
    /// Whether it should run.
    pub wanted: bool,
    /// Its newest assignment.
    pub generation: Generation,
    /// Not taken again before this.
    pub rest_until: Option<Instant>,
    /// Who waits for it to run or to stand still.
    pub answers: Vec<(bool, oneshot::Sender<Result<(), ControlError>>)>,
    /// Its logs that are other ones than a checkpoint was taken on, and it is to go on all the same.
    pub differing: Option<Differing>,
    /// Why it was dropped, until it runs again.
    pub dropped_for: Option<String>,
    /// What it is doing.
    pub state: SlotState,
}

/// Logs of requests that do not fit a checkpoint, as was found out while they were read.
pub(super) struct Differing {
    /// The checkpoint, as it stands in the store.
    pub judged: Checkpoint,
    /// How each of them differs.
    pub logs: ByPriority<Option<CheckpointMismatch>>,
}

/// What a shard is doing.
pub(super) enum SlotState {
    /// Nothing.
    Idle,
    /// Its lease is being taken.
    Acquiring,
    /// It runs.
    Owned(Box<Owned>),
    /// It cannot run until a person has looked at the reason.
    Refused(String),
}

/// A running shard.
pub(super) struct Owned {
    pub engine: PartitionEngine,
    pub lease: HeldLease,
    /// What it takes of its partition.
    pub filter: ShardFilter,
    /// The checkpoint as it stands in the store. The lease's own may pass over what is gone before that is written.
    pub stored: Checkpoint,
    /// Since when a read of rows is under way, if one is.
    pub loading_since: Option<Instant>,
    /// Whether a renewal is under way.
    pub renewing: bool,
    /// Whether the lease row is as it was last written: not after a renewal that had no answer.
    pub row_is_known: bool,
    /// Whether the lease may have been given back: nothing is sent from then on.
    pub release_sent: bool,
    pub renewal_sent_at: BootTime,
    /// Since when the shard is being stopped: it takes no new batch from then on.
    pub releasing_since: Option<Instant>,
    /// Whether the end of the inbox is being asked for, and no time-out may be applied before.
    pub inbox_end_awaited: bool,
    /// Which of its topics stand still at damaged records, and what is said of them.
    pub blocked: Vec<(Source, String)>,
    /// Agents of which a step request was refused because of its topic: when that was last, and why.
    pub unsent: BTreeMap<Arc<str>, (Instant, String)>,
}

impl Slot {
    pub(super) fn new() -> Self {
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

    /// The running shard, if it still runs under `generation`.
    pub(super) fn owned(&mut self, generation: Generation) -> Option<&mut Owned> {
        match &mut self.state {
            SlotState::Owned(owned) if self.generation == generation => Some(owned),
            _ => None,
        }
    }

    /// Whether requests wait with it that it may begin with.
    pub(super) fn has_waiting(&self) -> bool {
        let SlotState::Owned(owned) = &self.state else {
            return false;
        };
        let mut priorities = Priority::ALL.into_iter();
        owned.releasing_since.is_none()
            && priorities.any(|priority| owned.engine.waiting(priority).requests > 0)
    }

    /// Whether it has done all that a layout leaves to it: what waits beyond is for others.
    pub(super) fn has_reached_end(&self, layout: &Layout) -> bool {
        let SlotState::Owned(owned) = &self.state else {
            return false;
        };
        let end = owned.end_in(layout);
        end.is_some_and(|end| owned.engine.checkpoint().at.reach(&end))
    }

    /// Drops what is owned and rests before the lease is taken again.
    pub(super) fn rest(&mut self, duration: Duration) {
        self.state = SlotState::Idle;
        self.rest_until = Some(Instant::now() + duration);
    }

    /// The lease was given back.
    pub(super) fn released(&mut self) {
        self.dropped_for = None;
        self.state = SlotState::Idle;
        self.rest_until = None;
    }

    /// Whether it runs under another layout than this one, and has nothing left to do there.
    pub(super) fn is_to_follow(&self, layout: &Layout) -> bool {
        let SlotState::Owned(owned) = &self.state else {
            return false;
        };
        let row = &owned.lease.row;
        let Some(end) = owned.end_in(layout) else {
            return row.key.generation != layout.generation();
        };
        // What it had begun before it knew of the end, it finishes; what only waits beyond it is left.
        let mut priorities = Priority::ALL.into_iter();
        !priorities.any(|priority| owned.engine.has_begun(priority))
            && row.checkpoint.at.reach(&end)
    }

    /// Begins anew under a layout, if it was not running: what was being taken, or stood in the way, was
    /// another's.
    pub(super) fn look_again(&mut self, next: Generation) {
        if let SlotState::Acquiring | SlotState::Refused(_) = self.state {
            self.state = SlotState::Idle;
            self.generation = next;
        }
        self.rest_until = None;
    }

    /// Whether it is in the state that a caller asked for.
    pub(super) fn is(&self, running: bool) -> bool {
        match &self.state {
            SlotState::Owned(_) => running,
            SlotState::Idle => !running,
            SlotState::Acquiring => false,
            SlotState::Refused(_) => !running,
        }
    }

    /// Answers those who waited for the state that it is in now.
    pub(super) fn answer(&mut self, shard: ShardId) {
        for (running, answer) in std::mem::take(&mut self.answers) {
            if self.is(running) {
                let _ = answer.send(Ok(()));
            } else if let SlotState::Refused(reason) = &self.state {
                let _ = answer.send(Err(ControlError::Failed {
                    shard,
                    wanted: if running { "started" } else { "stopped" },
                    cause: reason.clone(),
                }));
            } else {
                self.answers.push((running, answer));
            }
        }
    }
}

impl Owned {
    /// Where its part of the partition ends in a layout, if it leaves the partition.
    fn end_in(&self, layout: &Layout) -> Option<TopicOffsets> {
        let key = self.lease.row.key;
        layout.end_of(key.generation, ShardId(key.number))
    }

    pub(super) fn new(
        engine: PartitionEngine,
        lease: HeldLease,
        filter: ShardFilter,
        stored: Checkpoint,
    ) -> Self {
        let owned_at = BootTime::now();
        Self {
            stored,
            engine,
            lease,
            filter,
            loading_since: None,
            renewing: false,
            row_is_known: true,
            release_sent: false,
            renewal_sent_at: owned_at,
            releasing_since: None,
            inbox_end_awaited: false,
            blocked: Vec::new(),
            unsent: BTreeMap::new(),
        }
    }

    /// Notes that a step request for an agent was refused. Returns whether that is news.
    pub(super) fn note_unsent(&mut self, agent: Arc<str>, why: String) -> bool {
        let before = self.unsent.insert(agent, (Instant::now(), why));
        before.is_none_or(|(at, _)| at.elapsed() >= UNSENT_SHOWN_FOR)
    }

    /// What blocks it, or some of its operations; `None` if nothing does.
    pub(super) fn why_blocked(&self) -> Option<String> {
        let refused = self.unsent.iter();
        let refused = refused.filter(|(_, (at, _))| at.elapsed() < UNSENT_SHOWN_FOR);
        let refused = refused.map(|(agent, (at, why))| {
            format!(
                "a step request for agent {agent} was refused {} s ago: {why} (shown for {} s after the last refusal)",
                at.elapsed().as_secs() / SHOWN_EVERY_S * SHOWN_EVERY_S,
                UNSENT_SHOWN_FOR.as_secs()
            )
        });
        let blocked = self.blocked.iter().map(|(_, why)| why.clone());
        let all: Vec<String> = blocked.chain(refused).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The partition that it reads.
    pub(super) fn partition(&self) -> PartitionId {
        self.lease.row.partition
    }

    /// Whether the lease row should be written now: the lease needs it, or the checkpoint moved and
    /// enough records or time have passed.
    pub(super) fn renewal_due(
        &self,
        checkpoint: Checkpoint,
        consumed: ByPriority<Offset>,
        settings: &SchedulerSettings,
    ) -> bool {
        let row = &self.lease.row;
        let since = self.renewal_sent_at.elapsed();
        if since >= settings.lease / 3 {
            return true;
        }
        let done = Source::ALL.map(|source| checkpoint.on(source).0 - row.checkpoint.on(source).0);
        let taken = Priority::ALL.map(|priority| consumed[priority].0 - row.consumed[priority].0);
        let records = done.into_iter().chain(taken).max().unwrap_or_default();
        records >= settings.checkpoint_records
            || (records > 0 && since >= settings.checkpoint_every)
    }

    /// Whether a stopping shard may give its lease back: nothing of it is on its way any more,
    /// or it has waited long enough. What is not acknowledged then is found again by replaying.
    pub(super) fn may_release(&self, involved: bool) -> bool {
        self.releasing_since
            .is_some_and(|since| !involved || since.elapsed() >= RELEASE_PATIENCE)
    }
}
