//! The workers of the agents, and the answers to requests.

use std::sync::Arc;

use tokio::sync::Notify;
use waybill_agent_core::{Attempted, Ended, Next, Purpose, Refusal, Refused, Sent, Source, Work};
use waybill_clock::clocks;
use waybill_engine::{Now, Outcome, StepReply, StepRequest};
use waybill_messages::Framing;

use super::attempt::{perform, trace_late};
use super::outbox::{Outbox, Outgoing};
use super::state::State;
use crate::handler::{Handler, unknown};
use crate::metrics::AgentMetrics;

/// State that workers and the polling thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) agents: Vec<Agent>,
    pub(super) state: Arc<State>,
    pub(super) outbox: Outbox,
    pub(super) replies_topic: Arc<str>,
    pub(super) framing: Framing,
    pub(super) client_id: String,
}

/// One agent of the process.
pub(super) struct Agent {
    pub(super) topic: String,
    pub(super) handler: Arc<dyn Handler>,
    /// Wakes one of its workers.
    pub(super) wake: Notify,
    pub(super) metrics: AgentMetrics,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// Runs one worker of an agent until its queue is closed.
pub(super) async fn work(shared: Arc<Shared>, index: usize) {
    let agent = &shared.agents[index];
    loop {
        // A handler that is always ready must not monopolize its thread.
        tokio::task::consume_budget().await;
        let now = clocks();
        let (next, wakes_another) = {
            let mut agents = shared.state.lock();
            (agents.next(index, now), agents.wakes_another(index))
        };
        if wakes_another {
            agent.wake.notify_one();
        }
        match next {
            Next::Start(work) => shared.attempt(agent, work, now).await,
            Next::Late(work) => shared.skip(agent, work, now),
            Next::Refused(refused) => shared.refuse(agent, &refused),
            Next::Empty => agent.wake.notified().await,
            Next::Closed => return,
        }
    }
}

impl Shared {
    /// Makes an attempt.
    async fn attempt(&self, agent: &Agent, work: Work<Source>, now: Now) {
        let (bytes, deadline) = (work.bytes, work.deadline);
        let performed = perform(&*agent.handler, work, Some(&agent.topic), now).await;
        let attempted = Attempted {
            source: performed.source,
            bytes,
            deadline,
            took: Some(performed.took),
            outcome: performed.outcome,
        };
        self.ended(agent, &performed.request, attempted, performed.ended);
    }

    /// Ends an attempt that is not started, because it is late.
    fn skip(&self, agent: &Agent, work: Work<Source>, now: Now) {
        let attempted = Attempted::late(&work);
        let mut request = work.request;
        trace_late(&mut request, Some(&agent.topic));
        self.ended(agent, &request, attempted, now);
    }

    fn ended(&self, agent: &Agent, request: &StepRequest, attempted: Attempted, now: Now) {
        let source = attempted.source;
        if let Some(took) = attempted.took {
            agent.metrics.duration.record(took);
        }
        match self.state.finish(|agents| agents.ended(attempted, now)) {
            Ended::Answer(outcome) => self.answer(agent, request, outcome, source),
            Ended::GivenUp => agent.metrics.late.increment(1),
        }
    }

    /// Answers a request without an attempt.
    pub(super) fn refuse(&self, agent: &Agent, refused: &Refused<Source>) {
        if refused.refusal == Refusal::Superseded {
            agent.metrics.superseded.increment(1);
        }
        let work = &refused.work;
        self.answer(agent, &work.request, refused.outcome(), work.source);
    }

    /// Answers a request; its record is done once the answer is acknowledged.
    fn answer(&self, agent: &Agent, request: &StepRequest, outcome: Outcome, source: Source) {
        agent.metrics.count(&outcome);
        let mut reply = StepReply::to(request, outcome);
        let mut value = Vec::with_capacity(192);
        if let Err(error) = self.framing.encode(&reply, &mut value) {
            // The outputs are too large for a record. The step may have been performed
            // nevertheless.
            reply.outcome = unknown("reply-too-large", error.to_string());
            if let Err(error) = self.framing.encode(&reply, &mut value) {
                tracing::error!(
                    operation = %request.operation,
                    error = &error as &dyn std::error::Error,
                    "could not encode the answer to an attempt; the attempt will time out"
                );
                return self.state.finish(|agents| agents.give_up(source));
            }
        }
        let complete_by = request.complete_by;
        self.outbox.send(Outgoing {
            topic: Arc::clone(&self.replies_topic),
            partition: request.reply_partition,
            key: Some(request.operation.key().to_vec()),
            value: Some(value),
            headers: Vec::new(),
            sent: Sent {
                source,
                purpose: Purpose::Reply { complete_by },
            },
        });
    }

    /// Updates the metrics of queued and running attempts.
    pub(super) fn show_depths(&self) {
        for (index, agent) in self.agents.iter().enumerate() {
            let depth = self.state.lock().depth(index);
            agent.metrics.show_depth(depth);
        }
    }
}
