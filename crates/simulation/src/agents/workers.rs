//! The workers of a process of agents: they start attempts, and answer requests.

use std::rc::Rc;

use waybill_agent_core::{Attempted, Deadline, Ended, Next, Refusal, Refused, Source, Work};
use waybill_engine::{Epoch, Now, Outcome, StepRequest};

use super::{AgentIncarnation, Agents, REQUEST_BYTES, RunsIn};
use crate::history::Rule;
use crate::run::Run;
use crate::seen::Sight;
use crate::workload::Protection;

/// The workers of an agent that wait for work, with the semantics of tokio's `Notify`.
#[derive(Debug)]
pub(super) struct Workers {
    waiting: usize,
    has_permit: bool,
}

impl Workers {
    pub(super) fn new(count: usize) -> Self {
        Self {
            waiting: count,
            has_permit: false,
        }
    }

    /// Whether a waiting worker wakes up. If none waits, the next one does not wait.
    pub(super) fn wake(&mut self) -> bool {
        self.has_permit = self.waiting == 0;
        self.waiting = self.waiting.saturating_sub(1);
        !self.has_permit
    }

    /// Whether a worker without work waits.
    pub(super) fn wait(&mut self) -> bool {
        let waits = !std::mem::take(&mut self.has_permit);
        self.waiting += usize::from(waits);
        waits
    }
}

impl Run {
    pub(super) fn wake_worker(&mut self, life: AgentIncarnation, agent: usize) {
        if self.agents.lives(life) && self.agents.process(life).workers[agent].wake() {
            self.worker_works(life, agent);
        }
    }

    /// A worker takes work until it starts an attempt, or waits.
    fn worker_works(&mut self, life: AgentIncarnation, agent: usize) {
        loop {
            if !self.agents.lives(life) {
                return;
            }
            let now = self.agent_now(life);
            let Some(agent_loop) = &mut self.agents.process(life).agent_loop else {
                return;
            };
            let next = agent_loop.next(agent, now);
            let wakes_another = agent_loop.wakes_another(agent);
            if wakes_another {
                self.wake_worker(life, agent);
            }
            self.check_capacity_of(life, agent);
            match next {
                Next::Start(work) => {
                    self.check_start_of(life, &work);
                    let source = work.source;
                    let runs_in = RunsIn::Topic { life, source };
                    return self.begin_attempt(agent, runs_in, work, now);
                }
                Next::Late(work) => {
                    self.seen.count(Sight::ExpiredAtAgent);
                    self.attempted(life, Attempted::late(&work), now);
                }
                Next::Refused(refused) => self.refuse_request(life, refused),
                Next::Empty => {
                    if self.agents.process(life).workers[agent].wait() {
                        return;
                    }
                }
                Next::Closed => return,
            }
        }
    }

    /// No attempt of a process of agents starts if its request was read before the process gave the
    /// partition up, even if it has it again.
    fn check_start_of(&mut self, life: AgentIncarnation, work: &Work<Source>) {
        let process = &mut self.agents.processes[life.process];
        let shard = work.request.shard;
        let newest = shard.and_then(|shard| process.newest.get(&shard).copied());
        let now = process.now(self.now);
        let log = Agents::log_of(work.source.topic, work.source.partition);
        let at = usize::try_from(work.source.offset.0).unwrap();
        let is_held = process.next.get(&log).is_some_and(|&next| at < next);
        let record = &self.agents.logs[log].records[at];
        if !is_held || !record.was_last_read(life, work.source) {
            self.fail(Rule::Contract, work.request.operation, || {
                format!("an agent starts a request that was read before log {log} was given up")
            });
        }
        self.check_start(work, newest, now);
    }

    /// No attempt starts past complete-by, or for an owner that is known to be superseded.
    pub(super) fn check_start<S>(&mut self, work: &Work<S>, newest: Option<Epoch>, now: Now) {
        let request = &work.request;
        let (operation, epoch) = (request.operation, request.epoch);
        if newest.is_some_and(|newest| epoch < newest) {
            self.fail(Rule::OneOwner, operation, || {
                format!("an agent starts a request of epoch {epoch} after {newest:?}")
            });
        }
        self.check_in_time(Rule::LateStart, request, work.deadline, now);
    }

    /// Nothing is answered past complete-by, except what a stopping process hands back.
    pub(super) fn check_refusal<S>(&mut self, refused: &Refused<S>, now: Now) {
        let work = &refused.work;
        if refused.refusal != Refusal::Stopping {
            self.check_in_time(Rule::LateAnswer, &work.request, work.deadline, now);
        }
    }

    /// Neither clock has reached a request's complete-by.
    fn check_in_time(&mut self, rule: Rule, request: &StepRequest, deadline: Deadline, now: Now) {
        let (complete_by, left) = (request.complete_by, deadline.left(now.boot));
        if complete_by <= now.wall || left.is_zero() {
            self.fail(rule, request.operation, || {
                format!("at {now:?} complete-by is {complete_by:?}, and {left:?} are left")
            });
        }
    }

    /// An agent holds no more requests, queued and running, than there is room for.
    pub(super) fn check_capacity(&mut self, agent: usize, (queued, running): (usize, usize)) {
        let limits = self.plan.agent_limits;
        let held = queued + running;
        // One has room in any case.
        let exceeds_bytes = held > 1 && held * REQUEST_BYTES > limits.in_flight_bytes_max;
        if held > limits.in_flight_max || exceeds_bytes || running > limits.workers {
            self.fail(Rule::Bounds, None, || {
                format!("{queued} requests wait for agent {agent}, {running} run: {limits:?}")
            });
        }
    }

    pub(super) fn check_capacity_of(&mut self, life: AgentIncarnation, agent: usize) {
        let process = &self.agents.processes[life.process];
        if let Some(agent_loop) = &process.agent_loop {
            let depth = agent_loop.depth(agent);
            self.check_capacity(agent, depth);
        }
    }

    pub(super) fn refuse_request(&mut self, life: AgentIncarnation, refused: Refused<Source>) {
        let now = self.agents.process(life).now(self.now);
        self.check_refusal(&refused, now);
        self.count_refused(refused.refusal);
        let outcome = refused.outcome();
        let work = refused.work;
        self.answer(life, work.source, &work.request, outcome);
    }

    /// Counts requests that are refused for their size alone.
    pub(super) fn count_lack_of_bytes<S>(
        &mut self,
        refused: &Refused<S>,
        (queued, running): (usize, usize),
    ) {
        let limits = self.plan.agent_limits;
        let held = queued + running;
        let lacks_bytes =
            held > 0 && held * REQUEST_BYTES + refused.work.bytes > limits.in_flight_bytes_max;
        let has_no_room = matches!(refused.refusal, Refusal::NoRoom { .. });
        if has_no_room && lacks_bytes && held < limits.in_flight_max {
            self.seen.count(Sight::LacksOfBytes);
        }
    }

    pub(super) fn count_refused(&mut self, refusal: Refusal) {
        self.seen.count(match refusal {
            Refusal::NoRoom { .. } => Sight::RequestsRefused,
            Refusal::Superseded => Sight::SupersededRequests,
            Refusal::Stopping => Sight::RequestsHandedBack,
        });
    }

    fn attempted(
        &mut self,
        life: AgentIncarnation,
        attempted: Attempted,
        now: Now,
    ) -> Option<Outcome> {
        let process = self.agents.process(life);
        let agent_loop = process.agent_loop.as_mut()?;
        let ended = agent_loop.ended(attempted, now);
        match ended {
            Ended::Answer(outcome) => Some(outcome),
            Ended::GivenUp => {
                self.request_is_done(life);
                None
            }
        }
    }

    pub(super) fn end_attempt_of_topic(
        &mut self,
        attempt: usize,
        life: AgentIncarnation,
        source: Source,
        outcome: Option<Outcome>,
    ) {
        let now = self.agent_now(life);
        let state = &self.agents.attempts[attempt];
        let attempted = Attempted {
            source,
            bytes: state.bytes,
            deadline: state.deadline,
            took: Some(now.boot.since(state.began)),
            outcome: outcome.clone(),
        };
        let (agent, request) = (state.agent, Rc::clone(&state.request));
        match (self.attempted(life, attempted, now), outcome) {
            (Some(outcome), _) => {
                let deadline = self.agents.attempts[attempt].deadline;
                let now = self.agents.process(life).now(self.now);
                self.check_in_time(Rule::LateAnswer, &request, deadline, now);
                self.answer(life, source, &request, outcome);
            }
            (None, Some(late)) if self.plan.protection == Protection::Evidence => {
                self.report_late(attempt, late);
            }
            (None, _) => {}
        }
        self.worker_works(life, agent);
    }
}
