//! The attempts of agents: each calls its service once or a few times.

use std::rc::Rc;
use std::time::Duration;

use waybill_agent_core::Work;
use waybill_engine::{Action, Now, Outcome, Timestamp};

use super::{RunningAttempt, RunsIn, name_of, outcome_of};
use crate::bugs::Bug;
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;
use crate::services::{Deed, error};
use crate::workload::{CALL_LATE_MICROS, Protection};

impl Run {
    /// Starts an attempt.
    pub(super) fn begin_attempt<S>(
        &mut self,
        agent: usize,
        runs_in: RunsIn,
        work: Work<S>,
        now: Now,
    ) {
        let boot_clock = match runs_in {
            RunsIn::Topic { life, .. } => self.agents.processes[life.process].boot_clock,
            RunsIn::Direct { of, .. } => self.schedulers[of.scheduler].boot_clock,
        };
        let left = boot_clock.true_time(work.deadline.left(now.boot));
        let retries_left = u32::try_from(self.rng.below(3)).unwrap();
        let step = self.step_of(&work.request);
        self.agents.attempts.push(RunningAttempt {
            step,
            request: Rc::new(work.request),
            agent,
            runs_in,
            bytes: work.bytes,
            deadline: work.deadline,
            began: now.boot,
            ends_at: self.now + left,
            retries_left,
            is_unknown: false,
            gave_up: false,
            has_ended: false,
        });
        let attempt = self.agents.attempts.len() - 1;
        if self.fault(self.plan.faults / 6) {
            let retry_after_ms = u32::try_from(self.rng.below(1_500)).unwrap();
            let error = error("breaker-open");
            let outcome = Outcome::NotAttempted {
                error,
                retry_after_ms,
            };
            return self.end_attempt(attempt, Some(outcome));
        }
        self.call(attempt);
    }

    /// One try at the service.
    fn call(&mut self, attempt: usize) {
        let request = Rc::clone(&self.agents.attempts[attempt].request);
        self.note(request.operation, || {
            format!("agent: tries {}", name_of(&request))
        });
        let protection = self.plan.protection;
        let ends_at = self.agents.attempts[attempt].ends_at;
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
            let latest = ends_at.since(self.now) + Duration::from_micros(CALL_LATE_MICROS);
            reaches = reaches.min(u64::try_from(latest.as_micros()).unwrap());
        }
        if self.is_calm() && !self.rng.is_script() {
            (reaches, back) = (200, 200);
        }
        let answer_at = self.now + Duration::from_micros(reaches + back);
        let patience = ends_at.since(self.now);
        let waits_for = Duration::from_micros(
            self.rng
                .below(u64::try_from(patience.as_micros()).unwrap() + 1),
        );
        let waits_long = protection == Protection::Evidence || self.rng.chance(70);
        let give_up_at = self.now + if waits_long { patience } else { waits_for };
        let is_in_time = !is_silent && answer_at < give_up_at;
        let is_answered = !is_silent && (protection == Protection::Evidence || is_in_time);
        self.agents.attempts[attempt].gave_up = false;
        self.later(
            reaches,
            What::Serve {
                attempt,
                deed,
                answer_at: is_answered.then_some(answer_at),
            },
        );
        if !is_in_time {
            self.queue.push(give_up_at, What::GiveUp { attempt });
        }
    }

    /// A call reaches its service, even if the agent has died.
    pub fn served(&mut self, attempt: usize, deed: Deed, answer_at: Option<Timestamp>) {
        let (request, step) = {
            let attempt = &self.agents.attempts[attempt];
            (Rc::clone(&attempt.request), attempt.step)
        };
        let mut key = request.idempotency_key();
        if self.bug == Some(Bug::KeyPerAttempt) {
            key = format!("{key}/{}", request.attempt);
        }
        let outcome = self.serve(&request, key, step, deed);
        if let Some(at) = answer_at {
            let outcome = Box::new(outcome);
            self.queue.push(at, What::Answer { attempt, outcome });
        }
    }

    /// The service's answer reaches the agent.
    pub fn answered(&mut self, attempt: usize, outcome: Outcome) {
        if !self.is_process_alive(attempt) {
            return;
        }
        if let Some(at) = self.process_sleeps_until(attempt) {
            let outcome = Box::new(outcome);
            return self.queue.push(at, What::Answer { attempt, outcome });
        }
        let is_evidence = self.plan.protection == Protection::Evidence;
        let now = self.now;
        let state = &mut self.agents.attempts[attempt];
        if state.has_ended {
            if is_evidence {
                self.report_late(attempt, outcome);
            }
            return;
        }
        if state.gave_up {
            return;
        }
        let may_try_again = state.retries_left > 0 && now < state.ends_at;
        if matches!(outcome, Outcome::Transient { .. }) && may_try_again {
            state.retries_left -= 1;
            return self.call(attempt);
        }
        let outcome = match outcome {
            Outcome::Transient { error } | Outcome::Permanent { error } if state.is_unknown => {
                Outcome::Unknown { error }
            }
            outcome => outcome,
        };
        self.end_attempt(attempt, Some(outcome));
    }

    /// The service did not answer in time.
    pub fn give_up_call(&mut self, attempt: usize) {
        if self.agents.attempts[attempt].has_ended || !self.is_process_alive(attempt) {
            return;
        }
        if let Some(at) = self.process_sleeps_until(attempt) {
            return self.queue.push(at, What::GiveUp { attempt });
        }
        let gives_an_outcome = self.rng.chance(60);
        let state = &mut self.agents.attempts[attempt];
        let request = Rc::clone(&state.request);
        self.history.note(self.now, Some(request.operation), || {
            format!("agent: gives up waiting for {}", name_of(&request))
        });
        state.is_unknown = true;
        state.gave_up = true;
        let ends_at = state.ends_at;
        if self.now >= ends_at {
            self.end_attempt(attempt, None);
        } else if !gives_an_outcome {
            self.queue.push(ends_at, What::GiveUp { attempt });
        } else if state.retries_left > 0 {
            state.retries_left -= 1;
            self.call(attempt);
        } else {
            let error = error("no-answer");
            self.end_attempt(attempt, Some(Outcome::Unknown { error }));
        }
    }

    /// An attempt ends with an outcome, or because its time is over.
    fn end_attempt(&mut self, attempt: usize, outcome: Option<Outcome>) {
        let state = &mut self.agents.attempts[attempt];
        state.has_ended = true;
        let (request, runs_in) = (Rc::clone(&state.request), state.runs_in);
        self.note(request.operation, || {
            let came_to = outcome.as_ref().map(outcome_of);
            let came_to = came_to.unwrap_or_else(|| "no outcome in time".to_owned());
            format!("agent: {} came to {came_to}", name_of(&request))
        });
        match runs_in {
            RunsIn::Topic { life, source } => {
                self.end_attempt_of_topic(attempt, life, source, outcome)
            }
            RunsIn::Direct { of, requester } => {
                self.end_direct_attempt(attempt, of, requester, outcome)
            }
        }
    }

    /// Whether the process that an attempt runs in still lives; the check itself may kill it.
    fn is_process_alive(&mut self, attempt: usize) -> bool {
        match self.agents.attempts[attempt].runs_in {
            RunsIn::Topic { life, .. } => {
                self.agents.lives(life) && {
                    self.agent_faults(life.process);
                    self.agents.lives(life)
                }
            }
            RunsIn::Direct { of, .. } => {
                let lives = self.lives(of);
                if !lives && !std::mem::replace(&mut self.agents.attempts[attempt].has_ended, true)
                {
                    self.seen.count(Sight::DiedWithItsAsker);
                }
                lives
            }
        }
    }

    /// Until when the process that an attempt runs in is paused.
    fn process_sleeps_until(&self, attempt: usize) -> Option<Timestamp> {
        let until = match self.agents.attempts[attempt].runs_in {
            RunsIn::Topic { life, .. } => self.agents.processes[life.process].paused_until,
            RunsIn::Direct { of, .. } => self.schedulers[of.scheduler].paused_until,
        };
        (until > self.now).then_some(until)
    }
}
