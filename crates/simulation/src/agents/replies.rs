//! What processes of agents send: replies and dead letters. They are late, doubled or lost on their
//! way.

use std::rc::Rc;
use std::time::Duration;

use waybill_agent_core::{Failed, Failure, Purpose, Sent, Source};
use waybill_engine::{OperationId, Outcome, Source as Log, StepReply, StepRequest, partition_for};

use super::process::AgentAct;
use super::{AgentIncarnation, Agents, RunsIn, outcome_of};
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;
use crate::workload::Protection;

/// Of this many records, one is not acknowledged.
const FAULTS_ONE_IN: u64 = 60;

/// A record to send.
#[derive(Clone, Debug)]
pub struct Outgoing {
    sent: Sent,
    /// `None` if it is a dead letter.
    reply: Option<Rc<StepReply>>,
}

/// A record on its way.
#[derive(Debug)]
pub struct Arrival {
    life: AgentIncarnation,
    outgoing: Outgoing,
    /// Whether the process learns that it arrived.
    is_acknowledged: bool,
}

impl Run {
    /// A process answers a request.
    pub(super) fn answer(
        &mut self,
        life: AgentIncarnation,
        source: Source,
        request: &StepRequest,
        outcome: Outcome,
    ) {
        let complete_by = request.complete_by;
        self.send_record(
            life,
            Outgoing {
                sent: Sent {
                    source,
                    purpose: Purpose::Reply { complete_by },
                },
                reply: Some(Rc::new(StepReply::to(request, outcome))),
            },
        );
    }

    /// A process sends an undecodable record to the dead-letter topic.
    pub(super) fn bury(&mut self, life: AgentIncarnation, source: Source) {
        let sent = Sent {
            source,
            purpose: Purpose::DeadLetter,
        };
        self.send_record(life, Outgoing { sent, reply: None });
    }

    /// A process sends a record, unless its producer's queue is full.
    pub(super) fn send_record(&mut self, life: AgentIncarnation, outgoing: Outgoing) {
        // A reply that is not sent until complete-by is evidence lost.
        let keeps_evidence = self.plan.protection == Protection::Evidence;
        let fails = !self.is_calm() && !keeps_evidence && self.rng.below(FAULTS_ONE_IN) == 0;
        let (mut arrives, mut failure) = (true, None);
        if fails {
            (arrives, failure) = match self.rng.below(4) {
                0 => (false, Some(Failure::QueueFull)),
                1 => (false, Some(Failure::Permanent)),
                2 => (false, Some(Failure::Temporary)),
                // It arrives, and the acknowledgement is lost.
                _ => (true, Some(Failure::Temporary)),
            };
        }
        if failure == Some(Failure::QueueFull) {
            return self.record_failed(life, outgoing, Failure::QueueFull);
        }
        self.agents.process(life).in_flight += 1;
        if let Some(failure) = failure {
            let after = self.travel();
            let act = AgentAct::Failed(outgoing.clone(), failure);
            self.agent_acts_later(life, after, act);
        }
        if !arrives {
            return;
        }
        let is_twice = outgoing.reply.is_some() && self.fault(self.plan.copies);
        for is_copy in [true, false] {
            if is_copy && !is_twice {
                continue;
            }
            let after = self.travel();
            let arrival = Arrival {
                life,
                outgoing: outgoing.clone(),
                is_acknowledged: !is_copy && failure.is_none(),
            };
            self.later(after, What::AgentRecord(Box::new(arrival)));
        }
    }

    /// A record of an agent arrives at its topic, unless it was still in the memory of a dead
    /// process.
    pub fn agent_record_arrives(&mut self, arrival: Box<Arrival>) {
        let life = arrival.life;
        let lives = self.agents.lives(life);
        if !lives && self.rng.fate(50) {
            return;
        }
        let until = self.agents.processes[life.process].paused_until;
        if lives && until > self.now && self.rng.chance(50) {
            return self.queue.push(until, What::AgentRecord(arrival));
        }
        let Sent { source, .. } = arrival.outgoing.sent;
        let log = Agents::log_of(source.topic, source.partition);
        let at = usize::try_from(source.offset.0).unwrap();
        self.agents.logs[log].records[at].is_settled = true;
        match &arrival.outgoing.reply {
            Some(reply) => self.publish_reply(reply),
            None => self.seen.count(Sight::AgentDeadLetters),
        }
        if arrival.is_acknowledged {
            let after = self.rng.below(3_000);
            let act = AgentAct::Acknowledged(arrival.outgoing.sent);
            self.agent_acts_later(life, after, act);
        }
    }

    /// A process learns that a record was not acknowledged.
    pub(super) fn record_failed(
        &mut self,
        life: AgentIncarnation,
        outgoing: Outgoing,
        failure: Failure,
    ) {
        let process = &mut self.agents.processes[life.process];
        let now = process.now(self.now);
        let Some(agent_loop) = &mut process.agent_loop else {
            return;
        };
        let sent = outgoing.sent;
        match agent_loop.failed(outgoing, sent, failure, now) {
            Failed::Kept { .. } => {
                let pause = match failure {
                    Failure::QueueFull => Duration::from_millis(20),
                    Failure::Permanent | Failure::Temporary => Duration::from_millis(1_010),
                };
                self.want_poll(life, pause);
            }
            Failed::Dropped => {
                let log = Agents::log_of(sent.source.topic, sent.source.partition);
                let at = usize::try_from(sent.source.offset.0).unwrap();
                self.agents.logs[log].records[at].is_settled = true;
                self.request_is_done(life);
            }
        }
    }

    /// An agent of somebody else reports a success after complete-by.
    pub(super) fn report_late(&mut self, attempt: usize, outcome: Outcome) {
        let state = &self.agents.attempts[attempt];
        debug_assert!(matches!(state.runs_in, RunsIn::Topic { .. }));
        let reply = Box::new(StepReply::to(&state.request, outcome));
        let after = self.travel();
        self.later(after, What::Reply(reply));
    }

    /// A reply reaches its topic.
    pub fn publish_reply(&mut self, reply: &StepReply) {
        let partition = self.home_of(reply.operation);
        self.judge_reply(Some(partition), reply);
        self.note(reply.operation, || {
            let (step, attempt) = (&reply.step, reply.attempt);
            let came_to = outcome_of(&reply.outcome);
            format!("reply about {step}, attempt {attempt}: {came_to}")
        });
        let replies = &mut self.store.logs[partition].replies;
        replies.push(Some(Rc::new(reply.clone())));
        if self.plan.transactions {
            replies.push(None);
            self.seen.count(Sight::TransactionMarkers);
        }
        self.wake_schedulers(partition, Log::Replies);
    }

    /// The partition that an operation belongs to.
    pub fn home_of(&self, operation: OperationId) -> usize {
        partition_for(operation, self.plan.partitions).0 as usize
    }
}
