//! Failed operations: the supervisor's decision about each record, published and then committed.
//!
//! [`FailedOperations`] is a state machine, driven like [`IndexShard`](crate::IndexShard). The
//! driver keeps the records of the consumer group that are not committed; this machine decides what
//! happens to them.
//!
//! What must hold: the offset of a record is committed only once the broker has acknowledged its
//! recovery, or its dead letter. A record that cannot be decoded does not block the others. While
//! the schema of any record is unknown, no record is decided, and the driver keeps polling, because
//! a consumer that does not poll leaves its group.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    FailedOperation, Now, Offset, PartitionId, Recovery, Supervision, Timestamp, Workflows,
};

use crate::unexpected::UnexpectedEvent;

/// The pause before recoveries that could not be published are published again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The settings of the consumer of failed operations.
#[derive(Clone, Debug)]
pub struct FailedSettings {
    /// The supervisor's name, which recoveries carry.
    pub name: Arc<str>,
    /// The workflows, for their policies.
    pub workflows: Arc<Workflows>,
    /// How long after its complete-by an attempt counts as timed out.
    pub timeout_grace: Duration,
    /// Maximum number of recoveries published together.
    pub chunk: usize,
}

/// One record, or several consecutive ones, whose offset is not committed.
#[derive(Clone, PartialEq, Debug)]
pub struct Uncommitted {
    /// Its partition.
    pub partition: PartitionId,
    /// The offset after it.
    pub next: Offset,
    /// Its content.
    pub content: Content,
}

/// The content of a record.
#[derive(Clone, PartialEq, Debug)]
pub enum Content {
    /// An operation failed for good.
    Failed(Box<FailedOperation>),
    /// The record cannot be decoded.
    Undecodable,
    /// Its schema is not known yet.
    WaitsForSchema,
}

/// What the driver performs next. Each effect has one result, an [`Event`].
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Poll the consumer group; then [`Event::Polled`].
    Poll {
        /// Whether fetching is paused: the poll only keeps the group membership.
        is_paused: bool,
    },
    /// Publish the dead letters of all undecodable records; then [`Event::Published`] or
    /// [`Event::Failed`].
    PublishDeadLetters,
    /// Reserve capacity for this many recoveries in the process's rate limiter,
    /// [`Pace`](crate::Pace); then [`Event::Turn`].
    TakeTurn(usize),
    /// Wait for this long, or until the supervisor stops; then [`Event::Waited`].
    Wait(Duration),
    /// Publish recoveries; then [`Event::Published`], once all are acknowledged, or
    /// [`Event::Failed`].
    Publish(Vec<Recovery>),
    /// Commit the offset at which each partition continues, and forget the records; then
    /// [`Event::Committed`]. If that fails, the records are read again.
    Commit(Vec<(PartitionId, Offset)>),
    /// Nothing: the supervisor has stopped, and this was the last effect.
    End,
}

/// The result of an [`Effect`].
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The driver has started.
    Started,
    /// All uncommitted records of the partitions that are still assigned to this process.
    Polled(Vec<Uncommitted>),
    /// How long to wait before the recoveries may be published.
    Turn(Duration),
    /// The time has passed, or the supervisor is stopping.
    Waited,
    /// All are acknowledged.
    Published,
    /// The driver has tried to commit.
    Committed,
    /// The effect failed, or its outcome is unknown.
    Failed,
}

/// What the driver does at once, before the next effect. Nothing comes back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The supervisor has decided what to do with the records.
    Decided {
        /// How many recoveries they need.
        recoveries: usize,
        /// How many cannot be decoded.
        undecodable: usize,
    },
    /// The last effect failed; everything is published again after a rest.
    PublishFailed,
}

/// The driver's next work.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// What to do at once, in order.
    pub notices: Vec<Notice>,
    /// What to perform then.
    pub effect: Effect,
}

/// The consumer of failed operations.
#[derive(Debug)]
pub struct FailedOperations {
    settings: FailedSettings,
    state: State,
    notices: Vec<Notice>,
    is_stopping: bool,
}

#[derive(Debug)]
enum State {
    New,
    Polling,
    /// Publishes dead letters.
    PublishingDeadLetters(Decided),
    Reserving(Decided, VecDeque<Recovery>),
    /// Waits for the turn.
    Waiting(Decided, VecDeque<Recovery>),
    Publishing(Decided, VecDeque<Recovery>),
    /// Rests before everything is published again.
    Pausing(Decided),
    Committing,
    Ended,
}

/// What to publish for the polled records, and the offsets to commit afterwards.
#[derive(Debug)]
struct Decided {
    recoveries: Vec<Recovery>,
    has_dead_letters: bool,
    next: Vec<(PartitionId, Offset)>,
}

impl FailedOperations {
    /// Creates the state machine. The first event is [`Event::Started`].
    #[must_use]
    pub fn new(settings: FailedSettings) -> Self {
        Self {
            settings,
            state: State::New,
            notices: Vec::new(),
            is_stopping: false,
        }
    }

    /// Stops after the effect in progress. Uncommitted records are left to other supervisors.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Handles the result of the last effect.
    ///
    /// # Errors
    ///
    /// If the event is not a result of that effect.
    pub fn handle(&mut self, event: Event, now: Now) -> Result<Output, UnexpectedEvent> {
        let effect = match (mem::replace(&mut self.state, State::Ended), event) {
            (State::New, Event::Started) | (State::Committing, Event::Committed) => {
                self.poll(false)
            }
            (State::Polling, Event::Polled(records)) => self.decide(&records, now.wall),
            (State::PublishingDeadLetters(decided), Event::Published) => {
                self.begin_recoveries(decided)
            }
            (State::Reserving(..), Event::Turn(wait)) if self.is_stopping && !wait.is_zero() => {
                Effect::End
            }
            (State::Reserving(decided, recoveries), Event::Turn(wait)) => match wait.is_zero() {
                true => self.publish(decided, recoveries),
                false => {
                    self.state = State::Waiting(decided, recoveries);
                    Effect::Wait(wait)
                }
            },
            (State::Waiting(..) | State::Pausing(_), Event::Waited) if self.is_stopping => {
                Effect::End
            }
            (State::Waiting(decided, recoveries), Event::Waited) => {
                self.publish(decided, recoveries)
            }
            (State::Publishing(decided, recoveries), Event::Published) => {
                self.publish_remaining(decided, recoveries)
            }
            (
                State::PublishingDeadLetters(decided) | State::Publishing(decided, _),
                Event::Failed,
            ) => {
                self.notices.push(Notice::PublishFailed);
                self.state = State::Pausing(decided);
                Effect::Wait(RETRY_PAUSE)
            }
            (State::Pausing(decided), Event::Waited) => self.publish_all(decided),
            (state, event) => return Err(UnexpectedEvent::new(&state, &event)),
        };
        Ok(Output {
            notices: mem::take(&mut self.notices),
            effect,
        })
    }

    fn poll(&mut self, is_paused: bool) -> Effect {
        if self.is_stopping {
            return Effect::End;
        }
        self.state = State::Polling;
        Effect::Poll { is_paused }
    }

    /// Decides about records, once the schemas of all are known.
    fn decide(&mut self, records: &[Uncommitted], now: Timestamp) -> Effect {
        let mut contents = records.iter().map(|record| &record.content);
        if contents.any(|content| *content == Content::WaitsForSchema) {
            return self.poll(true);
        }
        if records.is_empty() {
            return self.poll(false);
        }
        let supervision = Supervision {
            name: &self.settings.name,
            workflows: &self.settings.workflows,
            timeout_grace: self.settings.timeout_grace,
        };
        let mut recoveries = Vec::new();
        let mut undecodable = 0;
        let mut next: BTreeMap<PartitionId, Offset> = BTreeMap::new();
        for record in records {
            match &record.content {
                Content::Failed(failed) => recoveries.extend(supervision.failed(failed, now)),
                Content::Undecodable => undecodable += 1,
                Content::WaitsForSchema => {
                    unreachable!("nothing is decided while a schema is unknown")
                }
            }
            let next = next.entry(record.partition).or_insert(record.next);
            *next = record.next.max(*next);
        }
        self.notices.push(Notice::Decided {
            recoveries: recoveries.len(),
            undecodable,
        });
        self.publish_all(Decided {
            recoveries,
            has_dead_letters: undecodable > 0,
            next: next.into_iter().collect(),
        })
    }

    fn publish_all(&mut self, decided: Decided) -> Effect {
        if !decided.has_dead_letters {
            return self.begin_recoveries(decided);
        }
        self.state = State::PublishingDeadLetters(decided);
        Effect::PublishDeadLetters
    }

    fn begin_recoveries(&mut self, decided: Decided) -> Effect {
        let recoveries = decided.recoveries.clone().into();
        self.publish_remaining(decided, recoveries)
    }

    /// Publishes the next recoveries, or commits.
    fn publish_remaining(&mut self, decided: Decided, recoveries: VecDeque<Recovery>) -> Effect {
        match self.settings.chunk.min(recoveries.len()) {
            0 => {
                self.state = State::Committing;
                Effect::Commit(decided.next)
            }
            count => {
                self.state = State::Reserving(decided, recoveries);
                Effect::TakeTurn(count)
            }
        }
    }

    fn publish(&mut self, decided: Decided, mut recoveries: VecDeque<Recovery>) -> Effect {
        let count = self.settings.chunk.min(recoveries.len());
        let chunk = recoveries.drain(..count).collect();
        self.state = State::Publishing(decided, recoveries);
        Effect::Publish(chunk)
    }
}

#[cfg(test)]
mod tests;
