//! Finds live operations that nothing would wake, and wakes them.
//!
//! A handed-off operation wakes when its entry in the deadline index comes up: the supervisor then
//! sends a recovery to the scheduler. If the entry or the recovery is lost (retention, an old
//! backup, a bug), the operation would stay live for ever. So the owner of an index shard walks its
//! attention table, which lists every operation that was handed off.
//!
//! What must hold:
//!
//! * **The audit is an exception.** An operation counts as unwoken only if its due time is further
//!   behind the sweep cursor than a sweep looks back, or was set by a clock that was ahead; if the
//!   same held one round earlier; and if its scheduler has done every recovery that was in the
//!   topic then. The audit ignores operations whose scheduler is stopped, blocked or slow.
//! * **Waking is idempotent.** The audit sends the recovery that the sweep would have sent. It
//!   names the attempt in the row, and the scheduler writes the index entry again.
//! * **A row that cannot be read is reported.** The audit cannot tell whether anything would wake
//!   its operation. The row is counted when a round first meets it and logged once, in that round
//!   or a later one, because a round names at most `NAMED_MAX`. It is reported again only if a
//!   whole round has not met it in between, or if `SUSPECTS_MAX` others are remembered.
//! * **The work is bounded**: one page at a time in a process, with a pause after each; at most
//!   `SUSPECTS_MAX` operations of an index shard in a round; recoveries at the shared rate.
//!
//! [`Audit`] is a state machine, driven like [`IndexShard`](crate::IndexShard), for as long as this
//! process sweeps the index shard. It has no lease of its own: a wake that is late changes nothing.

mod findings;
mod walk;

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    Now, Offset, OperationId, PartitionId, Recovery, Timestamp, Workflows, partition_for,
};
use waybill_state::{AttentionCursor, AttentionPage, CorruptRow, DueBucket, RowRead};

use self::findings::{Suspects, Unreadable};
use self::walk::{Doing, Walk};
use crate::unexpected::UnexpectedEvent;

/// The settings of an audit.
#[derive(Clone, Debug)]
pub struct AuditSettings {
    /// The index shard.
    pub index_shard: PartitionId,
    /// The supervisor's name, which recoveries carry.
    pub name: Arc<str>,
    /// The workflows, for their policies.
    pub workflows: Arc<Workflows>,
    /// How long after its complete-by an attempt counts as timed out.
    pub timeout_grace: Duration,
    /// The pause between two rounds.
    pub interval: Duration,
    /// How many recoveries are published at once.
    pub chunk: usize,
}

/// What the driver performs next. Each effect has one result, an [`Event`]. All but
/// [`Effect::Wait`], [`Effect::LockReads`] and [`Effect::TakeTurn`] may also end in
/// [`Event::Failed`].
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Wait for this long; then [`Event::Waited`].
    Wait(Duration),
    /// Wait until no other index shard of the process reads a page, and keep others from it until
    /// [`Notice::UnlockReads`]; then [`Event::Locked`].
    LockReads,
    /// Read the offsets below which every recovery of these partitions is done; then
    /// [`Event::Offsets`].
    ReadDone(Vec<PartitionId>),
    /// Read the end offsets of these partitions of the recovery topic; then [`Event::Offsets`].
    ReadEnds(Vec<PartitionId>),
    /// Read entries of the attention table of the index shard; then [`Event::Attention`].
    ReadAttention {
        /// Where to continue.
        cursor: AttentionCursor,
        /// Maximum number of entries.
        limit: usize,
    },
    /// Read these rows; then [`Event::Rows`].
    ReadRows(Vec<OperationId>),
    /// Read the sweep cursor of an index shard; then [`Event::Cursor`].
    ReadCursor(PartitionId),
    /// Reserve a turn for this many recoveries in the process's [`Pace`](crate::Pace); then
    /// [`Event::Turn`].
    TakeTurn(usize),
    /// Publish recoveries; then [`Event::Published`], once all are acknowledged.
    Publish(Vec<Recovery>),
}

/// The result of an [`Effect`].
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The driver has started.
    Started,
    /// The time has passed.
    Waited,
    /// No other index shard of the process reads.
    Locked,
    /// The offset of each partition.
    Offsets(BTreeMap<PartitionId, Offset>),
    /// A page of the attention table.
    Attention(AttentionPage),
    /// The rows, in the order in which they were named.
    Rows(Vec<RowRead>),
    /// The sweep cursor; `None` before its first move.
    Cursor(Option<DueBucket>),
    /// How long to wait before the recoveries may be published.
    Turn(Duration),
    /// All recoveries are acknowledged.
    Published,
    /// The effect failed, or its outcome is unknown.
    Failed,
}

/// What the driver does at once, before the next effect. Nothing comes back.
#[derive(Clone, PartialEq, Debug)]
pub enum Notice {
    /// Let other index shards read.
    UnlockReads,
    /// A row cannot be read.
    Unreadable {
        /// The row.
        row: CorruptRow,
        /// Whether to count it: no round since it was last readable has met it.
        count: bool,
        /// Whether to log it.
        log: bool,
    },
    /// Nothing would resume this operation; its recovery is being requested.
    Waking {
        /// The operation.
        operation: OperationId,
        /// Its due time.
        due: Timestamp,
    },
    /// A round is complete, and woke this many operations.
    Audited(usize),
    /// The last effect failed, which ended the round.
    Failed,
}

/// The driver's next work.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// What to do at once, in order.
    pub notices: Vec<Notice>,
    /// What to perform then.
    pub effect: Effect,
}

/// The audit of one index shard.
#[derive(Debug)]
pub struct Audit {
    settings: AuditSettings,
    suspects: Suspects,
    unreadable: Unreadable,
    state: State,
    notices: Vec<Notice>,
}

#[derive(Debug)]
enum State {
    New,
    /// Waits for the next round.
    Pausing,
    /// Reads how far schedulers have done the recoveries of the last round.
    ReadingDone,
    /// Walks the attention table.
    Walking(Box<Walk>, Doing),
    /// Reads the ends of the recovery topic.
    ReadingEnds(Box<Walk>),
}

impl Audit {
    /// The machine of an audit. Begins with [`Event::Started`].
    #[must_use]
    pub fn new(settings: AuditSettings) -> Self {
        Self {
            settings,
            suspects: Suspects::default(),
            unreadable: Unreadable::default(),
            state: State::New,
            notices: Vec::new(),
        }
    }

    /// Handles the result of the last effect. `partitions` is the number of partitions that
    /// operations are distributed over now.
    ///
    /// # Errors
    ///
    /// If the event is not a result of that effect.
    pub fn handle(
        &mut self,
        event: Event,
        now: Now,
        partitions: u32,
    ) -> Result<Output, UnexpectedEvent> {
        let effect = match (mem::replace(&mut self.state, State::New), event) {
            (State::New, Event::Started) => self.pause(),
            (State::Pausing, Event::Waited) => self.begin_round(),
            (State::ReadingDone, Event::Offsets(done)) => {
                let settled = self.suspects.settled(&done);
                self.begin_walk(settled)
            }
            (State::Walking(walk, doing), event) => {
                self.walk(*walk, doing, event, now, partitions)?
            }
            (State::ReadingEnds(walk), Event::Offsets(ends)) => self.end_round(*walk, ends),
            (State::ReadingDone | State::ReadingEnds(_), Event::Failed) => self.fail(),
            (state, event) => return Err(UnexpectedEvent::new(&state, &event)),
        };
        Ok(Output {
            notices: mem::take(&mut self.notices),
            effect,
        })
    }

    fn pause(&mut self) -> Effect {
        self.state = State::Pausing;
        Effect::Wait(self.settings.interval)
    }

    fn begin_round(&mut self) -> Effect {
        let partitions: Vec<PartitionId> = self.suspects.partitions().collect();
        if partitions.is_empty() {
            return self.begin_walk(Vec::new());
        }
        self.state = State::ReadingDone;
        Effect::ReadDone(partitions)
    }

    fn begin_walk(&mut self, settled: Vec<PartitionId>) -> Effect {
        self.unreadable.begin_round();
        self.begin(Walk::new(settled))
    }

    /// The attention table was walked to its end.
    fn end_walk(&mut self, walk: Walk, partitions: u32) -> Effect {
        self.unreadable.end_round();
        let due = walk.due.keys();
        let mut of_due: Vec<PartitionId> = due.map(|id| partition_for(*id, partitions)).collect();
        of_due.sort_unstable();
        of_due.dedup();
        if of_due.is_empty() {
            return self.end_round(walk, BTreeMap::new());
        }
        self.state = State::ReadingEnds(Box::new(walk));
        Effect::ReadEnds(of_due)
    }

    fn end_round(&mut self, walk: Walk, ends: BTreeMap<PartitionId, Offset>) -> Effect {
        self.notices.push(Notice::Audited(walk.woken));
        self.suspects = Suspects {
            due: walk.due,
            ends,
        };
        self.pause()
    }

    /// A failure ends the round.
    fn fail(&mut self) -> Effect {
        self.notices.extend([Notice::UnlockReads, Notice::Failed]);
        self.pause()
    }
}

#[cfg(test)]
mod tests;
