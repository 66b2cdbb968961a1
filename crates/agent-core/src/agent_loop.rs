//! The run loop of agents that read their requests from topics.
//!
//! What must hold:
//!
//! * **At least once.** A step request is done when the broker has acknowledged its reply, or when
//!   it needs none because its complete-by has passed. The committed offset of a partition never
//!   passes a request that is not done. A reply that was not acknowledged is sent again, until
//!   complete-by.
//! * **No agent blocks another.** A request for which an agent has no capacity or time is answered
//!   `not attempted` immediately. Only a broker that accepts no records stops the reading of
//!   requests.
//! * **No answers past complete-by.** A request that is late when it is read or dequeued is not
//!   started, a late outcome is dropped, and neither is answered.
//! * **A superseded owner is refused.** Once a newer owner of a shard has sent requests to this
//!   process, requests of the older one are answered `not attempted`, even those that wait already.
//! * **A revoked partition ends its requests.** Those that wait do not start, and the progress of
//!   those that run counts for nothing: the next owner reads them again.
//! * **A record that cannot be decoded** is done once the broker has acknowledged its dead letter,
//!   or would never accept it.
//!
//! Deliberately absent: any memory of performed steps. The service ensures one effect per step, by
//! the idempotency key. Also absent: records that cannot be decoded yet; the driver keeps them and
//! reads no more in the meantime.

use std::time::Duration;

use waybill_engine::{Begun, Consumed, GroupProgress, Now, Offset, Outcome, PartitionId};

use crate::deadline::Deadline;
use crate::queue::QueueLimits;
use crate::queues::{Admission, Next, Queues};
use crate::refusal::Refused;
use crate::resends::{Due, Failed, Failure, Resends, Sent};
use crate::work::Work;

/// A consumed record. Its `topic` is the number of the agent whose topic it is.
pub type Source = Consumed<usize>;

/// The run loop of all agents of a process that read topics. `R` is a record to send. Agents are
/// numbered from 0.
#[derive(Debug)]
pub struct AgentLoop<R> {
    queues: Queues<Source>,
    progress: GroupProgress<usize>,
    resends: Resends<R>,
}

/// An attempt that has ended.
#[derive(Debug)]
pub struct Attempted {
    /// The request's origin.
    pub source: Source,
    /// The memory that the request counted for.
    pub bytes: usize,
    /// The request's complete-by.
    pub deadline: Deadline,
    /// How long the attempt took; `None` if it did not start.
    pub took: Option<Duration>,
    /// Its outcome; `None` if it did not start or was stopped, because it was late.
    pub outcome: Option<Outcome>,
}

impl Attempted {
    /// Work that is late when it is dequeued: its attempt does not start.
    #[must_use]
    pub fn late(work: &Work<Source>) -> Self {
        Self {
            source: work.source,
            bytes: work.bytes,
            deadline: work.deadline,
            took: None,
            outcome: None,
        }
    }
}

/// What becomes of an attempt that has ended.
#[derive(PartialEq, Debug)]
pub enum Ended {
    /// Answer with this outcome. The request is done once the answer is acknowledged.
    Answer(Outcome),
    /// Complete-by has passed: the request is done without an answer.
    GivenUp,
}

impl<R> AgentLoop<R> {
    /// A loop for agents whose queues have these limits.
    #[must_use]
    pub fn new(limits: impl IntoIterator<Item = QueueLimits>) -> Self {
        Self {
            queues: Queues::new(limits),
            progress: GroupProgress::default(),
            resends: Resends::default(),
        }
    }

    /// How many workers an agent has.
    #[must_use]
    pub fn workers(&self, agent: usize) -> usize {
        self.queues.workers(agent)
    }

    /// Records that a partition of the agent's topic was assigned.
    pub fn assign(&mut self, agent: usize, partition: PartitionId) {
        self.progress.assign(agent, partition);
    }

    /// Records that a partition was revoked. Returns the offset to commit before it is given up.
    pub fn revoke(&mut self, agent: usize, partition: PartitionId) -> Option<Offset> {
        self.progress.revoke(agent, partition)
    }

    /// Begins a record that was read. `None` if its partition is not assigned.
    pub fn begin(
        &mut self,
        agent: usize,
        partition: PartitionId,
        offset: Offset,
    ) -> Option<Begun<usize>> {
        self.progress.begin(agent, partition, offset)
    }

    /// Begins an undecodable part of a log at an offset. `None` if the partition is not assigned,
    /// or was read further.
    pub fn begin_undecodable(
        &mut self,
        agent: usize,
        partition: PartitionId,
        offset: Offset,
    ) -> Option<Source> {
        self.progress.begin_undecodable(agent, partition, offset)
    }

    /// Records that there are no records between those that were begun and `next`.
    pub fn pass(&mut self, agent: usize, partition: PartitionId, next: Offset) {
        self.progress.pass(agent, partition, next);
    }

    /// Whether the process still owns the record's partition.
    #[must_use]
    pub fn holds(&self, source: Source) -> bool {
        self.progress.holds(source)
    }

    /// Handles a request whose record was begun and decoded.
    pub fn read(&mut self, work: Work<Source>, now: Now) -> Admission<Source> {
        let source = work.source;
        let admission = self.queues.admit(source.topic, work, now);
        if matches!(admission, Admission::Late) {
            self.progress.done(source);
        }
        admission
    }

    /// The next work of an agent. Requests of revoked partitions are dropped. An attempt that
    /// starts or is late is passed to [`ended`](Self::ended).
    pub fn next(&mut self, agent: usize, now: Now) -> Next<Source> {
        let is_held = |source: &Source| self.progress.holds(*source);
        let next = self.queues.next_held(agent, now, is_held);
        if let Next::Refused(refused) = &next {
            self.queues.finished(agent, refused.work.bytes, None);
        }
        next
    }

    /// Whether a worker that has asked for the [`next`](Self::next) work wakes another one.
    #[must_use]
    pub fn wakes_another(&self, agent: usize) -> bool {
        self.queues.wakes_another(agent)
    }

    /// Handles the end of an attempt.
    pub fn ended(&mut self, attempted: Attempted, now: Now) -> Ended {
        let Attempted { source, bytes, .. } = attempted;
        self.queues.finished(source.topic, bytes, attempted.took);
        match attempted.outcome {
            Some(outcome) if !attempted.deadline.is_over(now) => Ended::Answer(outcome),
            _ => {
                self.progress.done(source);
                Ended::GivenUp
            }
        }
    }

    /// Records that a request gets no answer, because none can be encoded.
    pub fn give_up(&mut self, source: Source) {
        self.progress.done(source);
    }

    /// Records that the broker has acknowledged a sent record.
    pub fn acknowledged(&mut self, sent: Sent) {
        self.progress.done(sent.source);
    }

    /// Handles a record that could not be sent, or was not acknowledged.
    pub fn failed(&mut self, record: R, sent: Sent, failure: Failure, now: Now) -> Failed {
        let failed = self.resends.failed(record, sent, failure, now.boot);
        if failed == Failed::Dropped {
            self.progress.done(sent.source);
        }
        failed
    }

    /// Whether records wait to be sent again.
    #[must_use]
    pub fn has_resends(&self) -> bool {
        !self.resends.is_empty()
    }

    /// The records to send again now. Requests whose replies nobody awaits any more are done.
    #[must_use]
    pub fn due_resends(&mut self, now: Now) -> Vec<R> {
        let Due { again, done } = self.resends.due(now);
        for source in done {
            self.progress.done(source);
        }
        again
    }

    /// Whether more requests may be read: not while too many records wait to be sent again.
    #[must_use]
    pub fn may_read(&self) -> bool {
        !self.resends.is_full()
    }

    /// The partitions that have advanced since the last call: agent, partition, and the offset to
    /// commit.
    #[must_use]
    pub fn commits(&mut self) -> Vec<(usize, PartitionId, Offset)> {
        self.progress.take_commits()
    }

    /// The process stops: no more work starts. Returns the queued work, to hand it back, without
    /// that of revoked partitions: their next owners have read it.
    #[must_use]
    pub fn drain(&mut self) -> Vec<Refused<Source>> {
        let queued = self.queues.close().into_iter();
        let queued = queued.map(|(_, refused)| refused);
        let is_held = |refused: &Refused<Source>| self.progress.holds(refused.work.source);
        queued.filter(is_held).collect()
    }

    /// The number of records that are not done.
    #[must_use]
    pub fn open(&self) -> usize {
        self.progress.open()
    }

    /// The numbers of an agent's queued and running requests.
    #[must_use]
    pub fn depth(&self, agent: usize) -> (usize, usize) {
        self.queues.depth(agent)
    }
}

#[cfg(test)]
mod tests;
