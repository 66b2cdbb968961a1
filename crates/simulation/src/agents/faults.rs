//! What happens to processes of agents: they die, pause, stop, and are fenced.

use std::time::Duration;

use waybill_agent_core::AgentLoop;
use waybill_engine::Timestamp;

use super::group::{HEARTBEAT_MICROS, SESSION};
use super::process::{AgentAct, AgentProcess, Drain};
use super::{AgentIncarnation, RunsIn};
use crate::queue::What;
use crate::run::Run;
use crate::seen::Sight;

/// A dead process restarts within the first of these times, mostly before its session ends; or
/// within the second.
const RESTART_MICROS: [u64; 2] = [600_000, 4_000_000];
/// How long a stopping process waits for its attempts.
const DRAIN: Duration = Duration::from_secs(1);
/// How often it looks in the meantime whether records are to be sent again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long it waits after that for the acknowledgements of what it has sent.
const FLUSH: Duration = Duration::from_millis(500);

impl Run {
    /// A process may die, pause or stop at this moment.
    pub(super) fn agent_faults(&mut self, index: usize) {
        let plan = &self.plan;
        let left = plan.agent_crashes + plan.agent_pauses + plan.agent_stops + plan.agent_fences;
        let process = &self.agents.processes[index];
        if self.is_calm() || left == 0 || !process.is_awake(self.now) {
            return;
        }
        match self.rng.below(120) {
            0 | 1 if self.plan.agent_crashes > 0 => {
                self.plan.agent_crashes -= 1;
                self.kill_agent(index);
            }
            2 if self.plan.agent_pauses > 0 => {
                self.plan.agent_pauses -= 1;
                self.pause_agent(index);
            }
            3 | 4 if self.plan.agent_stops > 0 => {
                self.plan.agent_stops -= 1;
                self.stop_agent(index);
            }
            5..=7 if self.plan.agent_fences > 0 => {
                self.plan.agent_fences -= 1;
                self.fence_agent(index);
            }
            _ => {}
        }
    }

    /// All processes of agents die, and start again.
    pub fn kill_agents(&mut self) {
        for index in 0..self.agents.processes.len() {
            self.kill_agent(index);
        }
    }

    pub fn kill_agent(&mut self, index: usize) {
        self.seen.count(Sight::AgentCrashes);
        self.note_all(|| format!("agent process {index} dies"));
        let silent_since = match self.agents.processes[index].is_awake(self.now) {
            true => self.last_heartbeat(),
            false => self.agents.processes[index].silent_since,
        };
        self.restart_agent(index);
        self.falls_silent(index, silent_since);
    }

    /// When a process that falls silent has sent its last heartbeat.
    fn last_heartbeat(&mut self) -> Timestamp {
        self.now - Duration::from_micros(self.rng.below(HEARTBEAT_MICROS))
    }

    /// The coordinator of the group hears nothing from a process any more.
    fn falls_silent(&mut self, index: usize, since: Timestamp) {
        self.agents.processes[index].silent_since = since;
        let life = self.agents.life(index);
        let at = self.now.max(since + SESSION);
        self.queue.push(at, What::AgentSession(life));
    }

    fn restart_agent(&mut self, index: usize) {
        let number = self.agents.processes[index].number + 1;
        let is_member = self.agents.processes[index].is_member;
        let mut process = AgentProcess::new(&self.plan, &mut self.rng, number);
        process.is_member = is_member;
        self.agents.processes[index] = process;
        let is_long = self.rng.chance(30);
        let after = self.rng.below(RESTART_MICROS[usize::from(is_long)]);
        let life = self.agents.life(index);
        self.agent_acts_later(life, after, AgentAct::Start);
    }

    fn pause_agent(&mut self, index: usize) {
        self.seen.count(Sight::AgentPauses);
        let pause = Duration::from_micros(self.rng.between(1_000, 4_000_000));
        self.agents.processes[index].paused_until = self.now + pause;
        self.note_all(|| format!("agent process {index} is paused for {pause:?}"));
        let since = self.last_heartbeat();
        self.falls_silent(index, since);
        let life = self.agents.life(index);
        // It looks at the group when it goes on.
        self.want_poll(life, pause);
    }

    /// A process finds that another member has its name. It loses its partitions, and joins the
    /// group again.
    fn fence_agent(&mut self, index: usize) {
        if !self.agents.processes[index].polls(self.now) {
            return;
        }
        self.seen.count(Sight::AgentsFenced);
        self.note_all(|| format!("agent process {index} is fenced"));
        let life = self.agents.life(index);
        let logs: Vec<usize> = self.agents.process(life).next.keys().copied().collect();
        for log in logs {
            self.lose_log(life, log);
        }
        let after = self.travel();
        self.want_rebalance(after);
    }

    fn stop_agent(&mut self, index: usize) {
        let life = self.agents.life(index);
        let process = self.agents.process(life);
        if process.drain.is_some() {
            return;
        }
        let until = self.now + DRAIN;
        process.drain = Some(Drain::Requests { until });
        let Some(agent_loop) = &mut process.agent_loop else {
            return;
        };
        self.seen.count(Sight::AgentStops);
        let handed_back = agent_loop.drain();
        self.note_all(|| format!("agent process {index} is stopped"));
        for agent in 0..self.agents.names.len() {
            self.wake_worker(life, agent);
        }
        for refused in handed_back {
            self.refuse_request(life, refused);
        }
        self.want_poll(life, Duration::ZERO);
    }

    /// A stopping process leaves the group once its requests are done, or it has waited for long
    /// enough.
    pub(super) fn drain(&mut self, life: AgentIncarnation, drain: Drain) {
        let now = self.now;
        let process = self.agents.process(life);
        let open = process.agent_loop.as_ref().map_or(0, AgentLoop::open);
        match drain {
            Drain::Requests { until } if open > 0 && now < until => {
                self.send_again(life);
                self.want_poll(life, until.since(now).min(LOOK_AGAIN));
            }
            Drain::Requests { .. } if open > 0 => {
                let until = now + FLUSH;
                process.drain = Some(Drain::Records { until });
                self.seen.count(Sight::DrainsTimedOut);
                self.abort_attempts(life);
                self.want_poll(life, Duration::ZERO);
            }
            Drain::Records { until } if process.in_flight > 0 && now < until => {
                self.want_poll(life, until.since(now));
            }
            Drain::Requests { .. } | Drain::Records { .. } => self.leave_group(life),
        }
    }

    /// The attempts of a process end without an outcome.
    fn abort_attempts(&mut self, life: AgentIncarnation) {
        for attempt in &mut self.agents.attempts {
            if matches!(attempt.runs_in, RunsIn::Topic { life: of, .. } if of == life) {
                attempt.has_ended = true;
            }
        }
    }

    /// A stopping process gives its partitions up, ends, and starts again.
    fn leave_group(&mut self, life: AgentIncarnation) {
        let logs: Vec<usize> = self.agents.process(life).next.keys().copied().collect();
        for log in logs {
            self.give_up_log(life, log);
        }
        self.agents.process(life).is_member = false;
        self.note_all(|| format!("agent process {} has stopped", life.process));
        self.want_rebalance(0);
        self.restart_agent(life.process);
    }
}
