//! The run loop: agents' topics in, step replies out.
//!
//! One consumer reads the topics of all agents of the process, on a thread of its own; handlers run
//! on the tokio runtime, a fixed number of workers per agent; one producer sends all replies.
//!
//! What must hold:
//!
//! * **At least once.** A step request is done when the broker acknowledged its reply, or when it
//!   needs none because its complete-by has passed. The committed offset of a partition never
//!   passes a request that is not done.
//! * **No agent blocks another.** The shared consumer is always polled. What an agent has no room
//!   for, or could not start in time, is answered `not attempted` at once.
//! * **Past complete-by there is silence.** A request that is late when it is read or taken up is
//!   not started, a handler that is late is dropped, and neither is answered.
//! * **A superseded owner is refused.** Once a newer owner of a shard has asked this process for steps, requests of the
//!   older one are answered `not attempted`.
//! * **Bad input harms only itself.** A record that cannot be decoded goes to its dead-letter topic
//!   with its bytes; a panic ends one attempt. One that cannot be decoded *yet*, for want of the schema
//!   registry, is kept, and no more are read meanwhile.
//!
//! Deliberately absent: any memory of what was performed. One effect per step is the service's part,
//! by the idempotency key.

mod attempt;
mod direct;
mod epochs;
mod intake;
mod offsets;
mod outbox;
mod poller;
mod queue;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use waybill_kafka::{ClientError, KafkaSettings, PollError, RequestError};
use waybill_messages::Topics;

use crate::handler::Handler;
use crate::metrics;
use poller::{Poller, Signal};

pub(crate) use attempt::{call_of, perform};
pub use direct::{DirectAgents, DirectConfig};
pub(crate) use waybill_clock::wall_clock;

/// Settings of the run loop.
#[derive(Clone, Debug)]
pub struct AgentsConfig {
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The topics' names.
    pub topics: Topics,
    /// The consumer group. Processes with the same agents share their work through it; processes
    /// with different agents may use the same one. Default: `waybill-agents`.
    pub group: String,
    /// A name of this process that stays the same over restarts and that no other process has at the
    /// time ([`InstancePlace`](crate::InstancePlace) gives one). A process that was killed and
    /// comes back under it goes on at once; without one its requests wait until the session of the
    /// killed one is over. Default: none.
    pub instance_id: Option<String>,
    /// A process that was not heard of for so long loses its share of the work to the others.
    /// Default: 6 s.
    pub session_timeout: Duration,
    /// How many requests an agent holds at once, running and waiting. Default: 4096, a
    /// little more than a scheduler has under way by default.
    pub in_flight_max: usize,
    /// How many bytes of requests an agent holds at once. Default: 16 MiB.
    pub in_flight_bytes_max: usize,
    /// How often offsets are committed. Default: 1 s.
    pub commit_interval: Duration,
    /// How long a shutdown waits for running attempts and for the acknowledgement of replies.
    /// Default: 10 s.
    pub drain_timeout: Duration,
}

impl AgentsConfig {
    /// The defaults.
    #[must_use]
    pub fn new(kafka: KafkaSettings, topics: Topics) -> Self {
        Self {
            kafka,
            topics,
            group: "waybill-agents".to_owned(),
            instance_id: None,
            session_timeout: Duration::from_secs(6),
            in_flight_max: 4096,
            in_flight_bytes_max: 16 * 1024 * 1024,
            commit_interval: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Why agents cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No agent is given.
    #[error("there is no agent to run")]
    NoAgent,
    /// Two agents have the same name.
    #[error("two agents are named {agent:?}")]
    Twice {
        /// The name.
        agent: String,
    },
    /// A Kafka client could not be made.
    #[error("the agents' Kafka client cannot be made")]
    Client(#[from] ClientError),
    /// The topics could not be subscribed to.
    #[error("the agents' topics cannot be read")]
    Subscribe(#[from] RequestError),
    /// The operating system gave no thread.
    #[error("the agents' polling thread cannot be started")]
    Thread(#[source] std::io::Error),
}

/// Why agents stopped of themselves.
#[derive(Debug, thiserror::Error)]
pub enum AgentsError {
    /// The consumer cannot go on.
    #[error("the agents' topics can no longer be read")]
    Poll(#[from] PollError),
    /// The polling thread panicked.
    #[error("the agents' polling thread panicked")]
    Panicked,
}

/// Agents that run. Dropped without [`Agents::shutdown`], they stop at once, as if the process had
/// been killed: nothing more is answered or committed, and what was under way is read again.
pub struct Agents {
    signal: Arc<Signal>,
    ready: watch::Receiver<bool>,
    ended: oneshot::Receiver<Result<(), AgentsError>>,
}

impl Agents {
    /// Starts agents: names and handlers. Handlers run on the current tokio runtime.
    ///
    /// The topics should exist: one that is made later is found within ten seconds.
    ///
    /// # Errors
    ///
    /// If the settings cannot work. A broker that is away is waited for.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(
        config: AgentsConfig,
        agents: Vec<(String, Arc<dyn Handler>)>,
    ) -> Result<Self, StartError> {
        check_names(&agents)?;
        metrics::describe();
        let runtime = Handle::current();
        let signal = Arc::new(Signal::default());
        let (tell_ready, ready) = watch::channel(false);
        let poller = Poller::new(config, agents, Arc::clone(&signal), tell_ready, &runtime)?;
        let (sender, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("agents-poll".to_owned())
            .spawn(move || {
                // Nobody may be left to hear how it ended.
                _ = sender.send(poller.run());
            })
            .map_err(StartError::Thread)?;
        Ok(Self {
            signal,
            ready,
            ended,
        })
    }

    /// Whether the group has given this process its first share of the agents' requests, so that
    /// none waits for the process any more. The share is empty where more processes run than there
    /// are partitions. Stays true when the share changes.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits until [`Agents::is_ready`]; for ever, if the agents end before.
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ready = self.ready.clone();
        async move {
            if ready.wait_for(|ready| *ready).await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Waits until the agents have stopped: after a shutdown, or because they cannot go on.
    ///
    /// # Errors
    ///
    /// Why they cannot go on.
    pub async fn ended(&mut self) -> Result<(), AgentsError> {
        (&mut self.ended)
            .await
            .unwrap_or(Err(AgentsError::Panicked))
    }

    /// Stops in order: takes no further request, hands those back that wait for their turn
    /// (`not attempted`), lets running attempts finish within the drain time, sends their replies
    /// and commits.
    ///
    /// # Errors
    ///
    /// If the agents had stopped before for a reason of their own.
    pub async fn shutdown(mut self) -> Result<(), AgentsError> {
        self.signal.drain();
        self.ended().await
    }
}

/// Refuses agents that cannot be told apart, or none.
fn check_names(agents: &[(String, Arc<dyn Handler>)]) -> Result<(), StartError> {
    if agents.is_empty() {
        return Err(StartError::NoAgent);
    }
    for (index, (agent, _)) in agents.iter().enumerate() {
        if agents[..index].iter().any(|(other, _)| other == agent) {
            return Err(StartError::Twice {
                agent: agent.clone(),
            });
        }
    }
    Ok(())
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.signal.abandon();
    }
}

impl fmt::Debug for Agents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agents").finish_non_exhaustive()
    }
}
