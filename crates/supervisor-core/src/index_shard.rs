//! One index shard of the deadline index: its lease, its sweep and its cursor.
//!
//! [`IndexShard`] is a state machine. It has one [`Effect`] in progress at a time: the driver
//! performs it and passes the resulting [`Event`] to [`IndexShard::handle`], with the time, and
//! gets the next one.
//!
//! What must hold:
//!
//! * **Only the owner acts.** Each read of entries, each chunk of recoveries and each move of the
//!   cursor begins while the lease is valid. The lease is renewed between them, and also while
//!   recoveries wait for their turn.
//! * **The cursor passes only what was acknowledged.** An entry is handled once the broker has
//!   acknowledged its recoveries; a failure repeats the page.
//! * **A failure ends a pass, or at most the ownership**, and the work is repeated after a rest.

mod pass;
mod tenure;

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    BootTime, Epoch, Now, OperationId, OwnerId, PartitionId, Recovery, TopicOffsets, Workflows,
};
use waybill_state::{
    CorruptRow, DueBucket, DueEntry, Lease, LeaseKey, LeaseStatus, LeaseWatch, RowRead,
};

use self::tenure::{Doing, Tenure};
use crate::lease::HeldLease;
use crate::unexpected::UnexpectedEvent;

/// The pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The settings of an index shard.
#[derive(Clone, Debug)]
pub struct IndexShardSettings {
    /// The index shard, and the partition with the same number.
    pub index_shard: PartitionId,
    /// This process as an owner of leases.
    pub owner: OwnerId,
    /// The supervisor's name, which recoveries carry.
    pub name: Arc<str>,
    /// The workflows, for their policies.
    pub workflows: Arc<Workflows>,
    /// How long after its complete-by an attempt counts as timed out.
    pub timeout_grace: Duration,
    /// How long the lease lasts after each renewal.
    pub lease: Duration,
    /// The allowance for drift and delay on both sides of a lease.
    pub lease_margin: Duration,
    /// Whether no other process can have the store open.
    pub is_store_exclusive: bool,
    /// How long after its due time an entry may become visible.
    pub grace: Duration,
    /// The pause between two passes over the index shard.
    pub interval: Duration,
    /// How long a sweep must have been far behind before it skips. The audit finds by then what the
    /// skip leaves out.
    pub audit_interval: Duration,
    /// How many recoveries are published at once.
    pub chunk: usize,
}

/// What the driver performs next. Each effect has one result, an [`Event`]. All but
/// [`Effect::Wait`], [`Effect::TakeTurn`] and [`Effect::Reroute`] may also end in
/// [`Event::Failed`].
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Wait for this long, or until the supervisor stops; then [`Event::Waited`].
    Wait(Duration),
    /// Read the lease; then [`Event::Lease`].
    ReadLease(LeaseKey),
    /// Write the lease if the stored one is still `seen`; then [`Event::LeaseWritten`].
    TakeLease {
        /// The lease as it was read.
        seen: Option<Lease>,
        /// The lease to write.
        lease: Lease,
    },
    /// Renew the lease; then [`Event::LeaseWritten`].
    RenewLease(Lease),
    /// Read the sweep cursor; then [`Event::Cursor`].
    ReadCursor,
    /// Read entries of a bucket, in order; then [`Event::Entries`].
    ReadEntries {
        /// The bucket.
        bucket: DueBucket,
        /// The entry after which to begin.
        after: Option<DueEntry>,
        /// Maximum number of entries.
        limit: usize,
    },
    /// Read these rows; then [`Event::Rows`].
    ReadRows(Vec<OperationId>),
    /// Reserve a turn for this many recoveries in the process's [`Pace`](crate::Pace); then
    /// [`Event::Turn`].
    TakeTurn(usize),
    /// Publish recoveries; then [`Event::Published`], once all are acknowledged.
    Publish(Vec<Recovery>),
    /// Move the sweep cursor durably; then [`Event::CursorMoved`].
    MoveCursor(DueBucket),
    /// Reroute records of the partition from these offsets on, if it is no longer in use; then
    /// [`Event::Rerouted`].
    Reroute(TopicOffsets),
    /// Nothing: the supervisor has stopped, and this was the last effect.
    End,
}

/// The result of an [`Effect`].
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The driver has started.
    Started,
    /// The time has passed, or the supervisor is stopping.
    Waited,
    /// The lease as stored.
    Lease(Option<Lease>),
    /// Whether the lease was written.
    LeaseWritten(bool),
    /// The sweep cursor; `None` before its first move.
    Cursor(Option<DueBucket>),
    /// A page of entries.
    Entries(Vec<DueEntry>),
    /// The rows, in the order in which they were named.
    Rows(Vec<RowRead>),
    /// How long to wait before the recoveries may be published.
    Turn(Duration),
    /// All recoveries are acknowledged.
    Published,
    /// The cursor is durable.
    CursorMoved,
    /// The offsets up to which records were rerouted.
    Rerouted(TopicOffsets),
    /// The effect failed, or its outcome is unknown.
    Failed,
}

/// What the driver does at once, before the next effect. Nothing comes back.
#[derive(Clone, PartialEq, Debug)]
pub enum Notice {
    /// The owner of the lease was silent; its lease is being taken over.
    TakingOver(Epoch),
    /// The index shard has a cursor and is swept from now on, until [`Self::Ended`]: the driver
    /// starts to count its parked operations and to audit it.
    Began,
    /// This process no longer sweeps the index shard.
    Ended,
    /// The last effect failed, which ended the ownership or the attempt to get it.
    Failed,
    /// Another supervisor owns the index shard.
    Lost,
    /// The index shard was swept completely.
    Swept,
    /// The sweep is this far behind.
    Behind(Duration),
    /// The last effect failed, and the pass is repeated.
    PassFailed,
    /// The sweep is this far behind, finds nothing, and skips to the last hour.
    Skipping(Duration),
    /// A live operation is due for this long.
    Overdue(Duration),
    /// The row of a due operation cannot be read.
    Unreadable(CorruptRow),
}

/// The driver's next work.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// What to do at once, in order.
    pub notices: Vec<Notice>,
    /// What to perform then.
    pub effect: Effect,
}

/// The state machine of an index shard.
#[derive(Debug)]
pub struct IndexShard {
    settings: IndexShardSettings,
    state: State,
    notices: Vec<Notice>,
    is_stopping: bool,
}

#[derive(Debug)]
enum State {
    New,
    /// Reads the lease.
    Watching(LeaseWatch),
    /// Waits before it reads the lease of another owner again.
    Waiting(LeaseWatch),
    /// Takes the lease.
    Taking {
        row: Lease,
        sent: BootTime,
    },
    /// Owns an index shard that has no cursor yet.
    Unswept(HeldLease, Unswept),
    /// Owns an index shard and sweeps it.
    Sweeping(Box<Tenure>, Doing),
    /// Releases the lease.
    Releasing,
    /// Rests after a failure.
    Resting,
    Ended,
}

/// What an owner does while no scheduler writes entries, because there is no cursor.
#[derive(Debug)]
enum Unswept {
    Reading,
    Pausing,
    Renewing { row: Box<Lease>, sent: BootTime },
}

impl IndexShard {
    /// The machine of an index shard. Begins with [`Event::Started`].
    #[must_use]
    pub fn new(settings: IndexShardSettings) -> Self {
        Self {
            settings,
            state: State::New,
            notices: Vec::new(),
            is_stopping: false,
        }
    }

    /// The supervisor is stopping: the owner releases the lease after the current pass.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Whether it owns nothing, so that the driver may abandon the current effect to stop.
    #[must_use]
    pub fn may_be_abandoned(&self) -> bool {
        match self.state {
            State::New
            | State::Watching(_)
            | State::Waiting(_)
            | State::Taking { .. }
            | State::Resting
            | State::Ended => true,
            State::Unswept(..) | State::Sweeping(..) | State::Releasing => false,
        }
    }

    /// Handles the result of the last effect.
    ///
    /// # Errors
    ///
    /// If the event is not a result of that effect.
    pub fn handle(&mut self, event: Event, now: Now) -> Result<Output, UnexpectedEvent> {
        let effect = match (mem::replace(&mut self.state, State::Ended), event) {
            (State::New, Event::Started) => self.watch(),
            (State::Watching(watch), Event::Lease(seen)) => self.observe(watch, seen, now),
            (State::Waiting(_), Event::Waited) if self.is_stopping => Effect::End,
            (State::Waiting(watch), Event::Waited) => self.read_lease(watch),
            (State::Taking { row, sent }, Event::LeaseWritten(true)) => {
                let lease = HeldLease::new(row, self.settings.lease_margin, sent);
                self.read_cursor(lease)
            }
            (State::Taking { .. }, Event::LeaseWritten(false)) => self.watch(),
            (State::Unswept(lease, doing), event) => self.before_sweep(lease, doing, event, now)?,
            (State::Sweeping(tenure, doing), event) => self.sweep(*tenure, doing, event, now)?,
            (State::Releasing, Event::LeaseWritten(_)) => self.end(),
            (
                State::Watching(_) | State::Waiting(_) | State::Taking { .. } | State::Releasing,
                Event::Failed,
            ) => self.fail(),
            (State::Resting, Event::Waited) if self.is_stopping => Effect::End,
            (State::Resting, Event::Waited) => self.watch(),
            (state, event) => return Err(UnexpectedEvent::new(&state, &event)),
        };
        Ok(Output {
            notices: mem::take(&mut self.notices),
            effect,
        })
    }

    fn key(&self) -> LeaseKey {
        LeaseKey::supervisor(self.settings.index_shard)
    }

    fn watch(&mut self) -> Effect {
        let settings = &self.settings;
        let (margin, is_exclusive) = (settings.lease_margin, settings.is_store_exclusive);
        self.read_lease(LeaseWatch::new(margin, is_exclusive, None))
    }

    fn read_lease(&mut self, watch: LeaseWatch) -> Effect {
        self.state = State::Watching(watch);
        Effect::ReadLease(self.key())
    }

    /// Takes the lease if its owner cannot be alive.
    fn observe(&mut self, mut watch: LeaseWatch, seen: Option<Lease>, now: Now) -> Effect {
        match watch.observe(seen.as_ref(), now.boot) {
            LeaseStatus::Held => {
                self.state = State::Waiting(watch);
                return Effect::Wait(LeaseWatch::INTERVAL);
            }
            LeaseStatus::Expired => {
                let epoch = seen.as_ref().map(|lease| lease.epoch);
                self.notices
                    .push(Notice::TakingOver(epoch.unwrap_or_default()));
            }
            LeaseStatus::Free => {}
        }
        let settings = &self.settings;
        let (index_shard, owner) = (settings.index_shard, settings.owner);
        let row = HeldLease::taking(seen.as_ref(), index_shard, owner, settings.lease);
        let sent = now.boot;
        self.state = State::Taking {
            row: row.clone(),
            sent,
        };
        Effect::TakeLease { seen, lease: row }
    }

    fn read_cursor(&mut self, lease: HeldLease) -> Effect {
        self.state = State::Unswept(lease, Unswept::Reading);
        Effect::ReadCursor
    }

    /// Waits for a cursor. Until the index shard has one, no scheduler writes entries to it.
    fn before_sweep(
        &mut self,
        mut lease: HeldLease,
        doing: Unswept,
        event: Event,
        now: Now,
    ) -> Result<Effect, UnexpectedEvent> {
        Ok(match (doing, event) {
            (Unswept::Reading, Event::Cursor(Some(cursor))) => {
                self.notices.push(Notice::Began);
                let tenure = Tenure::new(lease, cursor, self.settings.grace, now.boot);
                self.begin_turn(tenure, now)
            }
            (Unswept::Reading, Event::Cursor(None)) => {
                self.notices.push(Notice::Swept);
                self.state = State::Unswept(lease, Unswept::Pausing);
                Effect::Wait(RETRY_PAUSE.min(self.settings.lease / 4))
            }
            (Unswept::Pausing, Event::Waited) if self.is_stopping => self.release(&lease),
            (Unswept::Pausing, Event::Waited) if lease.renewal_due_in(now.boot).is_zero() => {
                let (renewal, sent) = (lease.renewal(), now.boot);
                let row = Box::new(renewal.clone());
                self.state = State::Unswept(lease, Unswept::Renewing { row, sent });
                Effect::RenewLease(renewal)
            }
            (Unswept::Pausing, Event::Waited) => self.read_cursor(lease),
            (Unswept::Renewing { row, sent }, Event::LeaseWritten(true)) => {
                lease.renewed(*row, sent);
                self.read_cursor(lease)
            }
            (Unswept::Renewing { .. }, Event::LeaseWritten(false)) => self.end(),
            (Unswept::Reading | Unswept::Renewing { .. }, Event::Failed) => self.fail(),
            (doing, event) => return Err(UnexpectedEvent::new(&doing, &event)),
        })
    }

    fn release(&mut self, lease: &HeldLease) -> Effect {
        self.state = State::Releasing;
        let (seen, released) = lease.release();
        Effect::TakeLease {
            seen: Some(seen),
            lease: released,
        }
    }

    /// The lease is lost or released.
    fn end(&mut self) -> Effect {
        self.notices.push(Notice::Ended);
        match self.is_stopping {
            true => Effect::End,
            false => self.watch(),
        }
    }

    /// A failure ends the ownership, or the attempt to get it.
    fn fail(&mut self) -> Effect {
        self.notices.extend([Notice::Ended, Notice::Failed]);
        if self.is_stopping {
            return Effect::End;
        }
        self.state = State::Resting;
        Effect::Wait(RETRY_PAUSE)
    }
}

#[cfg(test)]
mod tests;
