//! Agents in the process of a scheduler, which calls them without a topic.

use waybill_agent_core::{Admission, Next, Queues, Work};
use waybill_engine::{Outcome, ShardId, StepReply, StepRequest};
use waybill_scheduler_core::{Asker, Input};

use super::workers::Workers;
use super::{REQUEST_BYTES, RunsIn, name_of};
use crate::queue::What;
use crate::run::Run;
use crate::schedulers::{Act, Incarnation};
use crate::seen::Sight;

/// The agents in one process of a scheduler.
#[derive(Debug)]
pub struct DirectAgents {
    queues: Queues<Asker>,
    workers: Vec<Workers>,
}

impl Run {
    /// A scheduler calls an agent in its process.
    pub(super) fn receive_directly(&mut self, of: Incarnation, asker: Asker, request: StepRequest) {
        let after = self.travel();
        let request = Box::new(request);
        self.later(after, What::CallAgent { of, asker, request });
    }

    /// The call of a scheduler reaches an agent in its process.
    pub fn agent_called(&mut self, of: Incarnation, asker: Asker, request: Box<StepRequest>) {
        if !self.lives(of) {
            return self.seen.count(Sight::DiedWithItsAsker);
        }
        let until = self.schedulers[of.scheduler].paused_until;
        if until > self.now {
            return self
                .queue
                .push(until, What::CallAgent { of, asker, request });
        }
        let now = self.schedulers[of.scheduler].now(self.now);
        let agent = self.agents.number_of(&request.agent);
        self.agents.direct.retain(|life, _| {
            let scheduler = &self.schedulers[life.scheduler];
            scheduler.incarnation == life.number
        });
        let limits = self.plan.agent_limits;
        let agents = self.agents.names.len();
        let direct = self.agents.direct.entry(of);
        let direct = direct.or_insert_with(|| DirectAgents {
            queues: Queues::new((0..agents).map(|_| limits)),
            workers: (0..agents).map(|_| Workers::new(limits.workers)).collect(),
        });
        let operation = request.operation;
        let work = Work::new(*request, asker, REQUEST_BYTES, None, now);
        match direct.queues.admit(agent, work, now) {
            Admission::Queued => self.wake_direct_worker(of, agent),
            Admission::Late => {
                self.seen.count(Sight::ExpiredAtAgent);
                self.note(operation, || {
                    "agent: a request is past complete-by".to_owned()
                });
            }
            Admission::Refused(refused) => {
                let outcome = refused.outcome();
                let request = refused.work.request;
                self.seen.count(Sight::RequestsRefused);
                self.answer_directly(of, asker, &request, outcome);
            }
        }
    }

    fn wake_direct_worker(&mut self, of: Incarnation, agent: usize) {
        let direct = self.agents.direct.get_mut(&of);
        if direct.is_some_and(|direct| direct.workers[agent].wake()) {
            self.direct_worker_works(of, agent);
        }
    }

    /// A worker takes work until it starts an attempt, or waits.
    fn direct_worker_works(&mut self, of: Incarnation, agent: usize) {
        loop {
            let now = self.schedulers[of.scheduler].now(self.now);
            let Some(direct) = self.agents.direct.get_mut(&of) else {
                return;
            };
            let next = direct.queues.next(agent, now);
            if direct.queues.wakes_another(agent) {
                self.wake_direct_worker(of, agent);
            }
            let bytes = match next {
                Next::Start(work) => {
                    let asker = work.source;
                    let runs_in = RunsIn::Direct { of, asker };
                    return self.begin_attempt(agent, runs_in, work, now);
                }
                Next::Late(work) => {
                    self.seen.count(Sight::ExpiredAtAgent);
                    work.bytes
                }
                Next::Refused(refused) => {
                    let outcome = refused.outcome();
                    let work = refused.work;
                    self.seen.count(Sight::RequestsRefused);
                    self.answer_directly(of, work.source, &work.request, outcome);
                    work.bytes
                }
                Next::Empty => {
                    let direct = self.agents.direct.get_mut(&of);
                    if direct.is_some_and(|direct| direct.workers[agent].wait()) {
                        return;
                    }
                    continue;
                }
                Next::Closed => return,
            };
            if let Some(direct) = self.agents.direct.get_mut(&of) {
                direct.queues.finished(agent, bytes, None);
            }
        }
    }

    pub(super) fn end_direct_attempt(
        &mut self,
        attempt: usize,
        of: Incarnation,
        asker: Asker,
        outcome: Option<Outcome>,
    ) {
        let now = self.schedulers[of.scheduler].now(self.now);
        let state = &self.agents.attempts[attempt];
        let (agent, took) = (state.agent, now.boot.since(state.began));
        let outcome = outcome.filter(|_| !state.deadline.is_over(now));
        if let Some(outcome) = outcome {
            let request = std::rc::Rc::clone(&state.request);
            self.answer_directly(of, asker, &request, outcome);
        }
        if let Some(direct) = self.agents.direct.get_mut(&of) {
            direct.queues.finished(agent, REQUEST_BYTES, Some(took));
            self.direct_worker_works(of, agent);
        }
    }

    /// The loop of the process takes a reply. A loop that does not run the shard any more passes it
    /// on to the topic.
    fn answer_directly(
        &mut self,
        of: Incarnation,
        asker: Asker,
        request: &StepRequest,
        outcome: Outcome,
    ) {
        self.seen.count(Sight::AnsweredDirectly);
        self.note(request.operation, || {
            format!("agent: answers {} directly", name_of(request))
        });
        let reply = StepReply::to(request, outcome);
        self.judge_reply(None, &reply);
        let after = self.rng.below(3_000);
        let input = Input::Replied { asker, reply };
        self.act_later(of.scheduler, after, Act::Input(input));
    }

    /// Drops the requests of a shard that agents in the process have not started.
    pub fn forget_requests(&mut self, index: usize, shard: ShardId) {
        let of = self.incarnation(index);
        if let Some(direct) = self.agents.direct.get_mut(&of) {
            direct.queues.forget(|asker| asker.shard == shard);
        }
    }

    /// Whether no agent in the process of a scheduler has anything to do.
    pub(super) fn direct_agents_rest(&self) -> bool {
        let agents = 0..self.agents.names.len();
        self.agents.direct.iter().all(|(life, direct)| {
            !self.lives(*life)
                || agents
                    .clone()
                    .all(|agent| direct.queues.depth(agent) == (0, 0))
        })
    }
}
