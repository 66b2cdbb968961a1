//! Agents that a scheduler in the same process calls directly: neither request nor reply is a
//! record.
//!
//! [`Queues`] decides here, too, so the guarantees of the run loop over topics hold: no agent
//! blocks another, requests without room are answered `not attempted` immediately, there are no
//! answers past complete-by, a superseded owner is refused, and a panic of a handler ends one
//! attempt. Only owners in this process send requests to these agents. Requests in flight are lost
//! with the process, like everything in the scheduler's memory: the next owner of the operations
//! requests the same attempts again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;
use waybill_agent_core::{Admission, Next, QueueLimits, Queues, Refusal, Refused, Work};
use waybill_clock::clocks;
use waybill_engine::{Now, Outcome, StepReply, StepRequest};

use super::attempt::{perform, trace_late};
use super::workers::{WorkerPanicked, Workers};
use super::{StartError, check_names};
use crate::handler::Handler;
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
    workers: Workers,
}

struct Shared<T> {
    agents: Vec<Agent>,
    queues: Mutex<Queues<T>>,
    answers: Mutex<Vec<(T, StepReply)>>,
    /// Notifies the caller that there are answers, once until they are taken.
    notify: Box<dyn Fn() + Send + Sync>,
}

struct Agent {
    handler: Arc<dyn Handler>,
    /// Wakes one of its workers.
    wake: Notify,
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
        let queues = Queues::new(agents.iter().map(|(_, handler)| QueueLimits {
            workers: handler.concurrency_max(),
            in_flight_max: config.in_flight_max,
            in_flight_bytes_max: config.in_flight_bytes_max,
        }));
        let counts: Vec<usize> = (0..agents.len())
            .map(|agent| queues.workers(agent))
            .collect();
        let agents: Vec<Agent> = agents
            .into_iter()
            .map(|(name, handler)| Agent {
                wake: Notify::new(),
                metrics: AgentMetrics::new(&name),
                handler,
            })
            .collect();
        let shared = Arc::new(Shared {
            agents,
            queues: Mutex::new(queues),
            answers: Mutex::default(),
            notify: Box::new(notify),
        });
        let work = |agent| work(Arc::clone(&shared), agent);
        let on_panic = {
            let shared = Arc::clone(&shared);
            move || (shared.notify)()
        };
        let workers = Workers::start(&Handle::current(), counts, work, on_panic);
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
        let now = clocks();
        for (from, request) in requests {
            let Some(&index) = self.by_name.get(&*request.agent) else {
                continue;
            };
            let agent = &shared.agents[index];
            let bytes = REQUEST_BYTES + request.input.len();
            let work = Work::new(request, from, bytes, None, now);
            let admission = shared.queues().admit(index, work, now);
            match admission {
                Admission::Queued => touched[index] = true,
                Admission::Late => agent.metrics.late.increment(1),
                Admission::Refused(refused) => shared.refuse(agent, *refused),
            }
        }
        for (agent, touched) in shared.agents.iter().zip(touched) {
            if touched {
                agent.wake.notify_one();
            }
        }
    }

    /// The answers since they were last taken.
    #[must_use]
    pub fn take_answers(&self) -> Vec<(T, StepReply)> {
        std::mem::take(&mut *self.shared.answers())
    }

    /// Checks that all requests will be answered.
    ///
    /// # Errors
    ///
    /// If a worker panicked, which is notified as an answer is.
    pub fn check(&self) -> Result<(), WorkerPanicked> {
        self.workers.check()
    }

    /// Removes queued requests whose `T` matches `is_gone`: no caller awaits their answers. Running
    /// attempts continue.
    pub fn forget(&self, is_gone: impl Fn(&T) -> bool) {
        self.shared.queues().forget(is_gone);
    }

    /// Accepts nothing more, hands queued requests back (`not attempted`), and waits up to
    /// `patience` until running attempts have ended, or a worker has panicked. Blocks; not for a
    /// thread of the runtime.
    pub fn drain(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let shared = &self.shared;
        let handed_back = shared.queues().close();
        for agent in &shared.agents {
            agent.wake.notify_one();
        }
        for (index, refused) in handed_back {
            shared.refuse(&shared.agents[index], refused);
        }
        while shared.queues().is_running() && Instant::now() < deadline && self.check().is_ok() {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Updates the metrics of queued and running attempts.
    pub fn show_depths(&self) {
        for (index, agent) in self.shared.agents.iter().enumerate() {
            let depth = self.shared.queues().depth(index);
            agent.metrics.show_depth(depth);
        }
    }
}

impl<T> fmt::Debug for DirectAgents<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.by_name.keys();
        f.debug_set().entries(names).finish()
    }
}

/// Runs one worker of an agent until its queue is closed.
async fn work<T: Send>(shared: Arc<Shared<T>>, index: usize) {
    let agent = &shared.agents[index];
    loop {
        // A handler that is always ready must not monopolize its thread.
        tokio::task::consume_budget().await;
        let now = clocks();
        let (next, wakes_another) = {
            let mut queues = shared.queues();
            (queues.next(index, now), queues.wakes_another(index))
        };
        if wakes_another {
            agent.wake.notify_one();
        }
        let (bytes, took) = match next {
            Next::Start(work) => {
                let bytes = work.bytes;
                (bytes, Some(shared.attempt(agent, work, now).await))
            }
            Next::Late(mut work) => {
                trace_late(&mut work.request, None);
                agent.metrics.late.increment(1);
                (work.bytes, None)
            }
            Next::Refused(refused) => {
                let bytes = refused.work.bytes;
                shared.refuse(agent, refused);
                (bytes, None)
            }
            Next::Empty => {
                agent.wake.notified().await;
                continue;
            }
            Next::Closed => return,
        };
        // After the answer is stored: a caller that waits for the last attempt must find its
        // answer.
        shared.queues().finished(index, bytes, took);
    }
}

impl<T> Shared<T> {
    /// Makes an attempt, and returns how long it took.
    async fn attempt(&self, agent: &Agent, work: Work<T>, now: Now) -> Duration {
        let performed = perform(&*agent.handler, work, None, now).await;
        agent.metrics.duration.record(performed.took);
        match performed.outcome {
            Some(outcome) => self.answer(agent, &performed.request, outcome, performed.source),
            None => agent.metrics.late.increment(1),
        }
        performed.took
    }

    /// Answers a request without an attempt.
    fn refuse(&self, agent: &Agent, refused: Refused<T>) {
        if refused.refusal == Refusal::Superseded {
            agent.metrics.superseded.increment(1);
        }
        let outcome = refused.outcome();
        let Work {
            request, source, ..
        } = refused.work;
        self.answer(agent, &request, outcome, source);
    }

    fn answer(&self, agent: &Agent, request: &StepRequest, outcome: Outcome, from: T) {
        agent.metrics.count(&outcome);
        let reply = StepReply::to(request, outcome);
        let mut answers = self.answers();
        let is_first = answers.is_empty();
        answers.push((from, reply));
        drop(answers);
        if is_first {
            (self.notify)();
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues<T>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(&self) -> MutexGuard<'_, Vec<(T, StepReply)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
