//! Agents in the process of a scheduler, which calls them without a topic. A call is never late or
//! repeated, and is lost only with the process.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use waybill_agent_core::{Admission, Next, Queues, Refused, Work};
use waybill_engine::{Epoch, LayoutShard, Message, Outcome, ShardId, StepReply, StepRequest};
use waybill_scheduler_core::{Input, Requester};

use super::workers::Workers;
use super::{RunsIn, bytes_of, name_of};
use crate::run::Run;
use crate::schedulers::{Act, Incarnation};
use crate::seen::Sight;

/// How often a stopping process checks whether the last attempt has ended.
const LOOK_AGAIN_MICROS: u64 = 2_000;

/// The agents in one process of a scheduler.
#[derive(Debug)]
pub struct DirectAgents {
    queues: Queues<Requester>,
    workers: Vec<Workers>,
    /// What they have answered, until the loop takes it.
    answers: VecDeque<(Requester, StepReply)>,
    /// The newest owner of each shard that has called them.
    newest: BTreeMap<LayoutShard, Epoch>,
}

impl Run {
    /// A scheduler calls the agents in its process. Returns its other messages.
    pub fn call_agents(
        &mut self,
        index: usize,
        requester: Requester,
        messages: Vec<Message>,
    ) -> Vec<Message> {
        let of = self.incarnation(index);
        let mut others = Vec::new();
        let mut touched = Vec::new();
        for message in messages {
            match message {
                Message::Step(request) => {
                    self.check_request(index, &request);
                    self.count_request(&request);
                    self.call_agent(of, requester, request, &mut touched);
                }
                message => others.push(message),
            }
        }
        for agent in touched {
            self.wake_direct_worker(of, agent);
        }
        others
    }

    fn call_agent(
        &mut self,
        of: Incarnation,
        requester: Requester,
        request: StepRequest,
        touched: &mut Vec<usize>,
    ) {
        let now = self.schedulers[of.scheduler].now(self.now);
        let agent = self.agents.number_of(&request.agent);
        let operation = request.operation;
        let direct = self.direct_agents(of);
        if let Some(shard) = request.shard {
            let newest = direct.newest.entry(shard).or_insert(request.epoch);
            *newest = request.epoch.max(*newest);
        }
        let bytes = bytes_of(&request);
        let work = Work::new(request, requester, bytes, None, now);
        match direct.queues.admit(agent, work, now) {
            Admission::Queued => {
                if !touched.contains(&agent) {
                    touched.push(agent);
                }
            }
            Admission::Late => {
                self.seen.count(Sight::ExpiredAtAgent);
                self.note(operation, || {
                    "agent: a request is past complete-by".to_owned()
                });
            }
            Admission::Refused(refused) => {
                let depth = direct.queues.depth(agent);
                self.count_lack_of_bytes(&refused, depth);
                self.refuse_directly(of, &refused);
            }
        }
        self.check_direct_capacity(of, agent);
    }

    /// The agents in a process of a scheduler, which start when it calls the first of them.
    fn direct_agents(&mut self, of: Incarnation) -> &mut DirectAgents {
        self.agents.direct.retain(|life, _| {
            let scheduler = &self.schedulers[life.scheduler];
            scheduler.incarnation == life.number
        });
        let limits = self.plan.agent_limits;
        let agents = 0..self.agents.names.len();
        let direct = self.agents.direct.entry(of);
        direct.or_insert_with(|| DirectAgents {
            queues: Queues::new(agents.clone().map(|_| limits)),
            workers: agents.map(|_| Workers::new(limits.workers)).collect(),
            answers: VecDeque::new(),
            newest: BTreeMap::new(),
        })
    }

    fn check_direct_capacity(&mut self, of: Incarnation, agent: usize) {
        if let Some(direct) = self.agents.direct.get(&of) {
            let depth = direct.queues.depth(agent);
            self.check_capacity(agent, depth);
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
            self.check_direct_capacity(of, agent);
            let bytes = match next {
                Next::Start(work) => {
                    let requester = work.source;
                    self.check_direct_start(of, &work);
                    let runs_in = RunsIn::Direct { of, requester };
                    return self.begin_attempt(agent, runs_in, work, now);
                }
                Next::Late(work) => {
                    self.seen.count(Sight::ExpiredAtAgent);
                    work.bytes
                }
                Next::Refused(refused) => {
                    self.refuse_directly(of, &refused);
                    refused.work.bytes
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

    fn check_direct_start(&mut self, of: Incarnation, work: &Work<Requester>) {
        let direct = self.agents.direct.get(&of);
        let shard = work.request.shard;
        let newest = shard.and_then(|shard| direct?.newest.get(&shard).copied());
        let now = self.schedulers[of.scheduler].now(self.now);
        self.check_start(work, newest, now);
    }

    pub(super) fn end_direct_attempt(
        &mut self,
        attempt: usize,
        of: Incarnation,
        requester: Requester,
        outcome: Option<Outcome>,
    ) {
        let now = self.schedulers[of.scheduler].now(self.now);
        let state = &self.agents.attempts[attempt];
        let (agent, bytes) = (state.agent, state.bytes);
        let took = now.boot.since(state.began);
        let outcome = outcome.filter(|_| !state.deadline.is_over(now));
        if let Some(outcome) = outcome {
            let request = Rc::clone(&state.request);
            self.answer_directly(of, requester, &request, outcome);
        }
        if let Some(direct) = self.agents.direct.get_mut(&of) {
            direct.queues.finished(agent, bytes, Some(took));
            self.direct_worker_works(of, agent);
        }
        let is_closing = self.schedulers[of.scheduler].closes_until.is_some();
        if is_closing && !self.runs_direct_attempts(of) {
            let after = self.rng.below(LOOK_AGAIN_MICROS);
            self.act_later(of.scheduler, after, Act::Close);
        }
    }

    fn refuse_directly(&mut self, of: Incarnation, refused: &Refused<Requester>) {
        let now = self.schedulers[of.scheduler].now(self.now);
        self.check_refusal(refused, now);
        self.count_refused(refused.refusal);
        let work = &refused.work;
        self.answer_directly(of, work.source, &work.request, refused.outcome());
    }

    fn answer_directly(
        &mut self,
        of: Incarnation,
        requester: Requester,
        request: &StepRequest,
        outcome: Outcome,
    ) {
        self.seen.count(Sight::AnsweredDirectly);
        self.note(request.operation, || {
            format!("agent: answers {} directly", name_of(request))
        });
        let reply = StepReply::to(request, outcome);
        self.judge_reply(None, &reply);
        let Some(direct) = self.agents.direct.get_mut(&of) else {
            return;
        };
        direct.answers.push_back((requester, reply));
        if direct.answers.len() == 1 {
            let after = self.rng.below(3_000);
            self.act_later(of.scheduler, after, Act::Answered);
        }
    }

    /// The loop of a process takes the answers of the agents in it. A loop that does not run the
    /// shard any more passes its reply on to the topic.
    pub fn take_answers(&mut self, of: Incarnation) {
        while self.lives(of) {
            let until = self.schedulers[of.scheduler].paused_until;
            if until > self.now {
                return self.act_at(of, until, Act::Answered);
            }
            let direct = self.agents.direct.get_mut(&of);
            let answer = direct.and_then(|direct| direct.answers.pop_front());
            let Some((requester, reply)) = answer else {
                return;
            };
            self.give(of.scheduler, Input::Replied { requester, reply });
        }
    }

    /// Drops the requests of a shard that agents in the process have not started.
    pub fn forget_requests(&mut self, index: usize, shard: ShardId) {
        let of = self.incarnation(index);
        if let Some(direct) = self.agents.direct.get_mut(&of) {
            direct.queues.forget(|requester| requester.shard == shard);
        }
    }

    /// The agents in a process whose loop has stopped start nothing more.
    pub fn drain_direct_agents(&mut self, of: Incarnation) {
        let Some(direct) = self.agents.direct.get_mut(&of) else {
            return;
        };
        let handed_back = direct.queues.close();
        for agent in 0..self.agents.names.len() {
            self.wake_direct_worker(of, agent);
        }
        for (_, refused) in handed_back {
            self.refuse_directly(of, &refused);
        }
    }

    /// Whether agents in a process of a scheduler run attempts.
    pub fn runs_direct_attempts(&self, of: Incarnation) -> bool {
        let direct = self.agents.direct.get(&of);
        direct.is_some_and(|direct| direct.queues.is_running())
    }

    /// The agents in a process end with it. Returns the answers that its loop has not taken.
    pub fn end_direct_agents(&mut self, of: Incarnation) -> VecDeque<(Requester, StepReply)> {
        let direct = self.agents.direct.remove(&of);
        direct.map_or_else(VecDeque::new, |direct| direct.answers)
    }

    /// Whether no agent in the process of a scheduler has anything to do.
    pub(super) fn direct_agents_rest(&self) -> bool {
        let agents = 0..self.agents.names.len();
        self.agents.direct.iter().all(|(life, direct)| {
            let mut depths = agents.clone().map(|agent| direct.queues.depth(agent));
            let is_idle = direct.answers.is_empty() && depths.all(|depth| depth == (0, 0));
            is_idle || !self.lives(*life)
        })
    }
}
