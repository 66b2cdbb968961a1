//! Agents: they try late, twice, without success, without a reply, or not at all; they die before
//! they reply, and are asked again.

use std::rc::Rc;
use std::time::Duration;

use waybill_engine::{
    Action, OperationId, Outcome, ShardId, Source, StepReply, StepRequest, Timestamp, partition_for,
};
use waybill_scheduler_core::{Asker, Input};

use crate::bugs::Bug;
use crate::clock::Clock;
use crate::queue::What;
use crate::run::Run;
use crate::schedulers::{Act, Incarnation};
use crate::seen::Sight;
use crate::services::{Deed, error};
use crate::workload::{CALL_LATE_MICROS, Protection};

/// A dead agent's process restarts within this time.
const RESTART_MICROS: u64 = 600_000;

/// All requests to agents, and the process that all agents run in.
#[derive(Debug)]
pub struct Agents {
    tasks: Vec<Task>,
    incarnation: u32,
    clock: Clock,
}

/// A request on the topic of an agent. A copy is its own task.
#[derive(Debug)]
struct Task {
    request: Rc<StepRequest>,
    step: usize,
    /// The process that it runs in, and the shard that requested it, if the request arrived without
    /// a topic.
    asked_by: Option<(Incarnation, Asker)>,
    has_begun: bool,
    retries_left: u32,
    /// One of its tries may have taken effect without a reply.
    is_unknown: bool,
    /// It no longer waits for an answer.
    gave_up: bool,
    is_answered: bool,
    /// Its offset is committed: it is not delivered again.
    is_done: bool,
}

impl Agents {
    pub fn new() -> Self {
        Self {
            tasks: Vec::new(),
            incarnation: 0,
            clock: Clock::new(0),
        }
    }

    pub fn set_clock(&mut self, offset: i64) {
        self.clock.set(offset);
    }

    pub fn is_idle(&self) -> bool {
        self.tasks.iter().all(|task| task.is_done)
    }

    /// The sender of a reply that no task sends.
    pub fn nobody(&self) -> (usize, u32) {
        (usize::MAX, self.incarnation)
    }
}

impl Run {
    /// The index of the step that is requested.
    pub fn step_of(&self, request: &StepRequest) -> usize {
        let workflow = self.plan.workflows.newest(&request.workflow);
        let index = workflow.and_then(|found| found.step_index(&request.step));
        index.expect("requests are about steps of known workflows")
    }

    /// A request arrives at an agent's topic, or at an agent in the process of the scheduler.
    pub fn receive(&mut self, request: StepRequest, asked_by: Option<(Incarnation, Asker)>) {
        let step = self.step_of(&request);
        let effect = self.services.effect(request.operation, step);
        effect.requested(request.attempt.0);
        let retries_left = u32::try_from(self.rng.below(3)).unwrap();
        self.agents.tasks.push(Task {
            request: Rc::new(request),
            step,
            asked_by,
            has_begun: false,
            retries_left,
            is_unknown: false,
            gave_up: false,
            is_answered: false,
            is_done: false,
        });
        let (task, incarnation) = (self.agents.tasks.len() - 1, self.agents.incarnation);
        let after = self.travel();
        self.later(after, What::Deliver { task, incarnation });
    }

    /// A process of agents reads a request.
    pub fn deliver(&mut self, task: usize, incarnation: u32) {
        if !self.agent_lives(incarnation) || self.died_with_its_asker(task) {
            return;
        }
        // Its shard may have been dropped before.
        if self.agents.tasks[task].is_done {
            return;
        }
        self.agents.tasks[task].has_begun = true;
        let request = Rc::clone(&self.agents.tasks[task].request);
        let local = self.agents.clock.read(self.now);
        let is_late = local > request.complete_by;
        if is_late && self.bug != Some(Bug::WorkPastCompleteBy) {
            self.seen.count(Sight::ExpiredAtAgent);
            self.note(request.operation, || {
                format!("agent: {} is past complete-by", name_of(&request))
            });
            self.agents.tasks[task].is_done = true;
            return;
        }
        if self.fault(self.plan.faults / 6) {
            let retry_after_ms = u32::try_from(self.rng.below(1_500)).unwrap();
            let error = error("breaker-open");
            return self.answer(
                task,
                Outcome::NotAttempted {
                    error,
                    retry_after_ms,
                },
            );
        }
        self.call(task);
    }

    fn fault(&mut self, percent: u64) -> bool {
        !self.is_calm() && self.rng.chance(percent)
    }

    /// One try at the service.
    fn call(&mut self, task: usize) {
        let request = Rc::clone(&self.agents.tasks[task].request);
        self.note(request.operation, || {
            format!("agent: tries {}", name_of(&request))
        });
        let incarnation = self.agents.incarnation;
        let request = Rc::clone(&self.agents.tasks[task].request);
        let protection = self.plan.protection;
        let deadline = self.agents.clock.true_time_of(request.complete_by);
        let (mut reaches, mut back) = (self.travel(), self.travel());
        let mut deed = Deed::Do;
        let mut is_silent = false;
        if request.action == Action::Run && self.plan.refused_step == Some(&*request.step) {
            deed = Deed::Refuse;
        } else if self.fault(self.plan.faults) {
            match self.rng.below(10) {
                0..=3 => deed = Deed::Fail,
                4 => deed = Deed::Refuse,
                // The call takes effect but is never answered.
                5..=6 => is_silent = protection != Protection::Evidence,
                // The call may take effect much later.
                7..=8 => reaches = self.rng.below(12_000_000),
                _ => {
                    deed = Deed::Fail;
                    is_silent = true;
                }
            }
        }
        if protection == Protection::Settling && self.bug != Some(Bug::WorkPastCompleteBy) {
            let latest = deadline.since(self.now) + Duration::from_micros(CALL_LATE_MICROS);
            reaches = reaches.min(u64::try_from(latest.as_micros()).unwrap());
        }
        if self.is_calm() {
            (reaches, back) = (200, 200);
        }
        let answer_at = self.now + Duration::from_micros(reaches + back);
        let patience = deadline.since(self.now);
        let waits_for = Duration::from_micros(
            self.rng
                .below(u64::try_from(patience.as_micros()).unwrap() + 1),
        );
        let waits_long = protection == Protection::Evidence || self.rng.chance(70);
        let give_up_at = self.now + if waits_long { patience } else { waits_for };
        let is_answered =
            !is_silent && (protection == Protection::Evidence || answer_at < give_up_at);
        self.agents.tasks[task].gave_up = false;
        self.later(
            reaches,
            What::Serve {
                task,
                incarnation,
                deed,
                answer_at: is_answered.then_some(answer_at),
            },
        );
        if !is_answered {
            self.queue
                .push(give_up_at, What::GiveUp { task, incarnation });
        }
    }

    /// A call reaches its service, even if the agent has died.
    pub fn served(
        &mut self,
        task: usize,
        incarnation: u32,
        deed: Deed,
        answer_at: Option<Timestamp>,
    ) {
        let (request, step) = {
            let task = &self.agents.tasks[task];
            (Rc::clone(&task.request), task.step)
        };
        let mut key = request.idempotency_key();
        if self.bug == Some(Bug::KeyPerAttempt) {
            key = format!("{key}/{}", request.attempt);
        }
        let outcome = self.serve(&request, key, step, deed);
        if let Some(at) = answer_at {
            let outcome = Box::new(outcome);
            self.queue.push(
                at,
                What::Answer {
                    task,
                    incarnation,
                    outcome,
                },
            );
        }
    }

    /// The service's answer reaches the agent.
    pub fn answered(&mut self, task: usize, incarnation: u32, outcome: Outcome) {
        let state = &self.agents.tasks[task];
        let is_awaited = !state.gave_up && !state.is_answered;
        if !is_awaited || !self.agent_lives(incarnation) || self.died_with_its_asker(task) {
            return;
        }
        let local = self.agents.clock.read(self.now);
        let state = &mut self.agents.tasks[task];
        let is_late = local > state.request.complete_by;
        if is_late && self.plan.protection != Protection::Evidence {
            state.is_done = true;
            return;
        }
        if matches!(outcome, Outcome::Transient { .. }) && state.retries_left > 0 && !is_late {
            state.retries_left -= 1;
            return self.call(task);
        }
        let outcome = match outcome {
            Outcome::Transient { error } | Outcome::Permanent { error } if state.is_unknown => {
                Outcome::Unknown { error }
            }
            outcome => outcome,
        };
        self.answer(task, outcome);
    }

    /// The service did not answer in time.
    pub fn give_up_call(&mut self, task: usize, incarnation: u32) {
        if self.agents.tasks[task].is_answered
            || !self.agent_lives(incarnation)
            || self.died_with_its_asker(task)
        {
            return;
        }
        let local = self.agents.clock.read(self.now);
        let tells = self.rng.chance(60);
        let state = &mut self.agents.tasks[task];
        let request = Rc::clone(&state.request);
        self.history.note(self.now, Some(request.operation), || {
            format!("agent: gives up waiting for {}", name_of(&request))
        });
        state.is_unknown = true;
        state.gave_up = true;
        if local >= state.request.complete_by || !tells {
            state.is_done = true;
        } else if state.retries_left > 0 {
            state.retries_left -= 1;
            self.call(task);
        } else {
            self.answer(
                task,
                Outcome::Unknown {
                    error: error("no-answer"),
                },
            );
        }
    }

    fn answer(&mut self, task: usize, outcome: Outcome) {
        let request = Rc::clone(&self.agents.tasks[task].request);
        self.agents.tasks[task].is_answered = true;
        self.note(request.operation, || {
            format!(
                "agent: {} came to {}",
                name_of(&request),
                outcome_of(&outcome)
            )
        });
        let reply = StepReply::to(&request, outcome);
        let incarnation = self.agents.incarnation;
        let is_direct = self.agents.tasks[task].asked_by.is_some();
        let is_twice = !is_direct && self.fault(self.plan.copies);
        for is_copy in [true, false] {
            if is_copy && !is_twice {
                continue;
            }
            let after = self.travel();
            self.later(
                after,
                What::Reply {
                    task,
                    incarnation,
                    reply: Box::new(reply.clone()),
                    is_copy,
                },
            );
        }
    }

    /// A reply reaches its topic, unless it was still in the memory of a dead process.
    pub fn reply_arrives(
        &mut self,
        task: usize,
        incarnation: u32,
        reply: StepReply,
        is_copy: bool,
    ) {
        if let Some(at) = self.asker_sleeps_until(task) {
            let reply = Box::new(reply);
            let what = What::Reply {
                task,
                incarnation,
                reply,
                is_copy,
            };
            return self.queue.push(at, what);
        }
        if self.answers_directly(task, &reply) {
            return;
        }
        let is_orphan = incarnation != self.agents.incarnation;
        if is_orphan && self.rng.chance(50) {
            return;
        }
        self.publish_reply(&reply);
        if !is_orphan && !is_copy {
            self.agents.tasks[task].is_done = true;
        }
    }

    /// A reply reaches its topic.
    pub fn publish_reply(&mut self, reply: &StepReply) {
        let partition = self.home_of(reply.operation);
        self.judge_reply(Some(partition), reply);
        let replies = &mut self.store.logs[partition].replies;
        replies.push(Some(Rc::new(reply.clone())));
        if self.plan.transactions {
            replies.push(None);
            self.seen.count(Sight::TransactionMarkers);
        }
        self.wake_schedulers(partition, Source::Replies);
    }

    /// Drops the requests of a shard that agents in the process have not started.
    pub fn forget_tasks(&mut self, index: usize, shard: ShardId) {
        let of = self.incarnation(index);
        for task in &mut self.agents.tasks {
            let is_of = |(asked, asker): (Incarnation, Asker)| asked == of && asker.shard == shard;
            if !task.has_begun && task.asked_by.is_some_and(is_of) {
                task.is_done = true;
            }
        }
    }

    /// Whether a task ran in a process that has died, so that it has no further effect.
    fn died_with_its_asker(&mut self, task: usize) -> bool {
        let asked_by = self.agents.tasks.get(task).and_then(|task| task.asked_by);
        let is_dead = asked_by.is_some_and(|(process, _)| !self.lives(process));
        if is_dead && !std::mem::replace(&mut self.agents.tasks[task].is_done, true) {
            self.seen.count(Sight::DiedWithItsAsker);
        }
        is_dead
    }

    /// Until when the process of a task is paused.
    fn asker_sleeps_until(&self, task: usize) -> Option<Timestamp> {
        let (process, _) = self.agents.tasks.get(task)?.asked_by?;
        let until = self.schedulers[process.scheduler].paused_until;
        (self.lives(process) && until > self.now).then_some(until)
    }

    /// Whether a reply needs no topic: the loop of its process takes it, or has died. A loop that
    /// does not run the shard any more passes it on to the topic.
    fn answers_directly(&mut self, task: usize, reply: &StepReply) -> bool {
        if self.died_with_its_asker(task) {
            return true;
        }
        let asked_by = self.agents.tasks.get(task).and_then(|task| task.asked_by);
        let Some((process, asker)) = asked_by else {
            return false;
        };
        self.seen.count(Sight::AnsweredDirectly);
        self.agents.tasks[task].is_done = true;
        self.judge_reply(None, reply);
        let reply = reply.clone();
        let input = Input::Replied { asker, reply };
        self.act_later(process.scheduler, 0, Act::Input(input));
        true
    }

    /// The partition that an operation belongs to.
    pub fn home_of(&self, operation: OperationId) -> usize {
        partition_for(operation, self.plan.partitions).0 as usize
    }

    /// Whether the process that started something is still alive; the check itself may kill it.
    fn agent_lives(&mut self, incarnation: u32) -> bool {
        if incarnation != self.agents.incarnation {
            return false;
        }
        if self.plan.agent_crashes == 0 || self.is_calm() || self.rng.below(60) > 0 {
            return true;
        }
        self.plan.agent_crashes -= 1;
        self.kill_agents();
        false
    }

    /// The process of agents dies, and starts again.
    pub fn kill_agents(&mut self) {
        self.seen.count(Sight::AgentCrashes);
        self.agents.incarnation += 1;
        self.note_all(|| "the agents die".to_owned());
        let incarnation = self.agents.incarnation;
        for task in 0..self.agents.tasks.len() {
            let state = &mut self.agents.tasks[task];
            if state.is_done {
                continue;
            }
            if state.asked_by.is_some() {
                state.is_done = true;
                continue;
            }
            state.is_unknown = false;
            state.is_answered = false;
            let (operation, step) = (state.request.operation, state.step);
            self.services.effect(operation, step).has_copies = true;
            let after = self.rng.below(RESTART_MICROS);
            self.later(after, What::Deliver { task, incarnation });
        }
    }
}

fn name_of(request: &StepRequest) -> String {
    let (step, attempt) = (&request.step, request.attempt);
    match request.action {
        Action::Run => format!("{step}, attempt {attempt}"),
        Action::Compensate => format!("undo of {step}, attempt {attempt}"),
        Action::Probe => format!("probe of {step}, attempt {attempt}"),
    }
}

fn outcome_of(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Success { .. } => "success".to_owned(),
        Outcome::NotPerformed => "not performed".to_owned(),
        Outcome::Transient { error } => format!("a transient failure, {}", error.code),
        Outcome::Permanent { error } => format!("a refusal, {}", error.code),
        Outcome::Unknown { error } => format!("an unknown outcome, {}", error.code),
        Outcome::NotAttempted { .. } => "no attempt".to_owned(),
    }
}

/// Describes a request for the history.
pub fn describe(request: &StepRequest) -> String {
    name_of(request)
}
