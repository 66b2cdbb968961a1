//! Agents that a scheduler in the same process calls directly: neither request nor reply is a
//! record.
//!
//! The guarantees of the run loop over topics hold here too: no agent blocks another, requests
//! without room are answered `not attempted` immediately, there are no answers past complete-by, a
//! superseded owner is refused, and a panic ends one attempt. Only owners in this process
//! send requests to these agents. Requests in flight are lost with the process, like everything in the scheduler's
//! memory: the next owner of the operations requests the same attempts again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use waybill_clock::boot_clock;
use waybill_engine::{BootTime, Outcome, StepReply, StepRequest};

use super::attempt::{call_of, perform, stopping};
use super::epochs::{Epochs, superseded};
use super::queue::{Next, NoRoom, Queue, Work};
use super::{StartError, check_names};
use crate::handler::{Handler, StepCall};
use crate::metrics::{self, AgentMetrics};

/// Approximate memory that a request takes excluding its input.
const REQUEST_BYTES: usize = 512;

/// How often to check whether the last attempt has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Limits of each directly called agent.
#[derive(Clone, Copy, Debug)]
pub struct DirectConfig {
    /// How many requests an agent holds, running and queued.
    pub in_flight_max: usize,
    /// How many bytes of requests an agent holds.
    pub in_flight_bytes_max: usize,
}

/// Running agents in the caller's process. Each request carries a `T`, which its answer returns.
/// Dropped, they stop immediately and answer nothing more.
pub struct DirectAgents<T> {
    shared: Arc<Shared<T>>,
    by_name: HashMap<String, usize>,
    workers: Vec<AbortHandle>,
}

struct Shared<T> {
    agents: Vec<Agent<T>>,
    epochs: Epochs,
    answers: Mutex<Vec<(T, StepReply)>>,
    /// Notifies the caller that there are answers, once until they are taken.
    notify: Box<dyn Fn() + Send + Sync>,
}

struct Agent<T> {
    handler: Arc<dyn Handler>,
    queue: Queue<T>,
    metrics: AgentMetrics,
}

impl<T: Send + 'static> DirectAgents<T> {
    /// Starts agents: names and handlers, which run on the current tokio runtime. `notify` is
    /// called from there when there are answers to [take](Self::take_answers), and must not block.
    ///
    /// # Errors
    ///
    /// If there is no agent, or two have one name.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(
        agents: Vec<(String, Arc<dyn Handler>)>,
        config: DirectConfig,
        notify: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        check_names(&agents)?;
        metrics::describe();
        let names = agents.iter().map(|(name, _)| name.clone());
        let by_name = names.zip(0..).collect();
        let agents: Vec<Agent<T>> = agents
            .into_iter()
            .map(|(name, handler)| Agent {
                queue: Queue::new(
                    handler.concurrency_max(),
                    config.in_flight_max,
                    config.in_flight_bytes_max,
                ),
                metrics: AgentMetrics::new(&name),
                handler,
            })
            .collect();
        let shared = Arc::new(Shared {
            agents,
            epochs: Epochs::default(),
            answers: Mutex::default(),
            notify: Box::new(notify),
        });
        let runtime = Handle::current();
        let mut workers = Vec::new();
        for (index, agent) in shared.agents.iter().enumerate() {
            for _ in 0..agent.queue.workers() {
                let worker = work(Arc::clone(&shared), index);
                workers.push(runtime.spawn(worker).abort_handle());
            }
        }
        Ok(Self {
            shared,
            by_name,
            workers,
        })
    }

    /// Whether an agent of this name exists.
    #[must_use]
    pub fn has(&self, agent: &str) -> bool {
        self.by_name.contains_key(agent)
    }

    /// Requests attempts. Skips requests for unknown agents.
    pub fn ask(&self, requests: impl IntoIterator<Item = (T, StepRequest)>) {
        let shared = &self.shared;
        let mut touched = vec![false; shared.agents.len()];
        let (now, boot_time) = (Instant::now(), boot_clock());
        for (from, request) in requests {
            let Some(&index) = self.by_name.get(&*request.agent) else {
                continue;
            };
            let agent = &shared.agents[index];
            let bytes = REQUEST_BYTES + request.input.len();
            let call = call_of(request, None);
            if call.deadline <= now {
                agent.metrics.late.increment(1);
                continue;
            }
            let work = Work {
                call,
                source: from,
                bytes,
                received: now,
            };
            let Some(work) = shared.unless_superseded(agent, work, boot_time) else {
                continue;
            };
            match agent.queue.push(work) {
                Ok(()) => touched[index] = true,
                Err(no_room) => shared.refuse(agent, *no_room),
            }
        }
        for (agent, touched) in shared.agents.iter().zip(touched) {
            if touched {
                agent.queue.wake();
            }
        }
    }

    /// The answers since they were last taken.
    #[must_use]
    pub fn take_answers(&self) -> Vec<(T, StepReply)> {
        std::mem::take(&mut *self.shared.answers())
    }

    /// Removes queued requests whose `T` matches `is_gone`: no caller awaits their answers. Running
    /// attempts continue.
    pub fn forget(&self, is_gone: impl Fn(&T) -> bool) {
        for agent in &self.shared.agents {
            agent.queue.forget(&is_gone);
        }
    }

    /// Accepts nothing more, hands queued requests back (`not attempted`), and waits up to
    /// `patience` until running attempts have ended. Blocks; not for a thread of the runtime.
    pub fn drain(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        for agent in &self.shared.agents {
            for work in agent.queue.close() {
                agent.queue.finished(work.bytes, None);
                let outcome = stopping();
                self.shared.answer(agent, &work.call, outcome, work.source);
            }
        }
        let runs = |agent: &Agent<T>| agent.queue.depth().1 > 0;
        while self.shared.agents.iter().any(runs) && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Updates the metrics of queued and running attempts.
    pub fn show_depths(&self) {
        for agent in &self.shared.agents {
            agent.metrics.show_depth(agent.queue.depth());
        }
    }
}

impl<T> Drop for DirectAgents<T> {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.abort();
        }
    }
}

impl<T> fmt::Debug for DirectAgents<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.by_name.keys();
        f.debug_set().entries(names).finish()
    }
}

/// Runs one worker of an agent.
async fn work<T: Send>(shared: Arc<Shared<T>>, agent: usize) {
    let agent = &shared.agents[agent];
    while let Some(Next { work, has_time }) = agent.queue.next().await {
        // A handler that is always ready must not monopolize its thread.
        tokio::task::consume_budget().await;
        let bytes = work.bytes;
        let Some(work) = shared.unless_superseded(agent, work, boot_clock()) else {
            agent.queue.finished(bytes, None);
            continue;
        };
        if !has_time {
            shared.refuse(agent, NoRoom::too_late(work));
            agent.queue.finished(bytes, None);
            continue;
        }
        let Work {
            mut call, source, ..
        } = work;
        let start = Instant::now();
        let outcome = perform(&*agent.handler, &mut call, None).await;
        let took = start.elapsed();
        agent.metrics.duration.record(took);
        match outcome {
            Some(outcome) => shared.answer(agent, &call, outcome, source),
            None => agent.metrics.late.increment(1),
        }
        // After the answer is stored: a caller that waits for the last attempt must find its
        // answer.
        agent.queue.finished(bytes, Some(took));
    }
}

impl<T> Shared<T> {
    /// Refuses an attempt of a superseded owner; returns any other.
    fn unless_superseded(&self, agent: &Agent<T>, work: Work<T>, now: BootTime) -> Option<Work<T>> {
        if !self.epochs.is_superseded(&work.call.request, now) {
            return Some(work);
        }
        agent.metrics.superseded.increment(1);
        self.answer(agent, &work.call, superseded(), work.source);
        None
    }

    fn refuse(&self, agent: &Agent<T>, no_room: NoRoom<T>) {
        let outcome = no_room.outcome();
        let Work { call, source, .. } = no_room.work;
        self.answer(agent, &call, outcome, source);
    }

    fn answer(&self, agent: &Agent<T>, call: &StepCall, outcome: Outcome, from: T) {
        agent.metrics.count(&outcome);
        let reply = StepReply::to(&call.request, outcome);
        let mut answers = self.answers();
        let is_first = answers.is_empty();
        answers.push((from, reply));
        drop(answers);
        if is_first {
            (self.notify)();
        }
    }

    fn answers(&self) -> MutexGuard<'_, Vec<(T, StepReply)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
