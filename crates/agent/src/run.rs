//! The run loop: reads agents' topics, and sends step replies.
//!
//! One consumer reads the topics of all agents of the process, on its own thread. Handlers run on
//! the tokio runtime, with a fixed number of workers per agent. One producer sends all replies.
//!
//! [`AgentLoop`](waybill_agent_core::AgentLoop) makes the decisions, and its documentation says
//! what must hold. These modules drive it: they read, decode, run handlers, encode, send, commit
//! and count. The polling thread, the workers and the producer call it under one lock, and do none
//! of this while they hold the lock. What must hold besides:
//!
//! * **No agent blocks another.** Handlers run on the runtime; polling stops only while the broker
//!   accepts no records, while partitions cannot be paused, and during a drain.
//! * **Bad input harms only itself.** A record that cannot be decoded goes to its dead-letter topic
//!   unchanged; a panic of a handler ends one attempt. A record that cannot be decoded *yet*,
//!   because the schema registry is unavailable, is kept, and reading pauses in the meantime.

mod attempt;
mod direct;
mod intake;
mod outbox;
mod poller;
mod state;
mod worker;
mod workers;

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

pub(crate) use attempt::attempt;
pub use direct::{DirectAgents, DirectConfig};
pub(crate) use waybill_clock::wall_clock;
pub use workers::WorkerPanicked;

/// Settings of the run loop.
#[derive(Clone, Debug)]
pub struct AgentsSettings {
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The topics' names.
    pub topics: Topics,
    /// The consumer group. Processes with the same agents share the requests through it; processes
    /// with different agents may use the same group. Default: `waybill-agents`.
    pub group: String,
    /// A name of this process that is stable over restarts and unique at any time
    /// ([`InstancePlace`](crate::InstancePlace) provides one). A process that was killed and
    /// returns under it continues immediately; without a name, its requests wait until the session
    /// of the killed process ends. Default: none.
    pub instance_id: Option<String>,
    /// A process without a heartbeat for this long loses its partitions to the others. Default: 6
    /// s.
    pub session_timeout: Duration,
    /// How many requests an agent holds, running and queued. Default: 4096, slightly more than a
    /// scheduler has in flight by default.
    pub in_flight_max: usize,
    /// How many bytes of requests an agent holds. Default: 16 MiB.
    pub in_flight_bytes_max: usize,
    /// How often offsets are committed. Default: 1 s.
    pub commit_interval: Duration,
    /// How long a shutdown waits for running attempts and for the acknowledgements of replies.
    /// Default: 10 s.
    pub drain_timeout: Duration,
}

impl AgentsSettings {
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
    /// A Kafka client could not be created.
    #[error("could not create the agents' Kafka client")]
    Client(#[from] ClientError),
    /// The topics could not be subscribed to.
    #[error("could not subscribe to the agents' topics")]
    Subscribe(#[from] RequestError),
    /// The operating system could not start a thread.
    #[error("could not start the agents' polling thread")]
    Thread(#[source] std::io::Error),
}

/// Why agents stopped without a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum AgentsError {
    /// The consumer cannot continue.
    #[error("the agents' topics can no longer be read")]
    Poll(#[from] PollError),
    /// A worker panicked outside of a handler.
    #[error(transparent)]
    Worker(#[from] WorkerPanicked),
    /// The polling thread panicked.
    #[error("the agents' polling thread panicked")]
    Panicked,
}

/// The state of a process in the agents' consumer group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Membership {
    /// The group has not assigned it any partitions yet.
    Joining,
    /// The group refuses it, because another member does not support
    /// [`ASSIGNMENT_STRATEGY`](waybill_kafka::ASSIGNMENT_STRATEGY). It keeps trying to join.
    Refused,
    /// The group has assigned it partitions, so that no request waits for it any more. The
    /// assignment is empty if there are more processes than partitions. It stays a member when the
    /// assignment changes.
    Member,
}

/// Running agents. Dropped without [`Agents::shutdown`], they stop immediately, as if the process
/// had been killed: they answer and commit nothing more, and unfinished requests are read again.
pub struct Agents {
    signal: Arc<Signal>,
    membership: watch::Receiver<Membership>,
    ended: oneshot::Receiver<Result<(), AgentsError>>,
}

impl Agents {
    /// Starts agents: names and handlers. Handlers run on the current tokio runtime.
    ///
    /// The topics should exist: one that is created later is found within ten seconds.
    ///
    /// # Errors
    ///
    /// If the settings are invalid. An unreachable broker is not an error: the agents wait for it.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(
        config: AgentsSettings,
        agents: Vec<(String, Arc<dyn Handler>)>,
    ) -> Result<Self, StartError> {
        check_names(&agents)?;
        metrics::describe();
        let runtime = Handle::current();
        let signal = Arc::new(Signal::default());
        let (shown, membership) = watch::channel(Membership::Joining);
        let poller = Poller::new(config, agents, Arc::clone(&signal), shown, &runtime)?;
        let (sender, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("agents-poll".to_owned())
            .spawn(move || {
                // The receiver may have been dropped.
                _ = sender.send(poller.run());
            })
            .map_err(StartError::Thread)?;
        Ok(Self {
            signal,
            membership,
            ended,
        })
    }

    /// The state of this process in its consumer group. The channel closes when the agents end.
    #[must_use]
    pub fn membership(&self) -> watch::Receiver<Membership> {
        self.membership.clone()
    }

    /// Waits until the agents have stopped: after a shutdown, or because they cannot continue.
    ///
    /// # Errors
    ///
    /// Why they cannot continue.
    pub async fn ended(&mut self) -> Result<(), AgentsError> {
        (&mut self.ended)
            .await
            .unwrap_or(Err(AgentsError::Panicked))
    }

    /// Shuts down gracefully: accepts no further request, hands queued ones back (`not attempted`),
    /// lets running attempts finish within the drain time, sends their replies and commits.
    ///
    /// # Errors
    ///
    /// If the agents had already stopped because of an error.
    pub async fn shutdown(mut self) -> Result<(), AgentsError> {
        self.signal.drain();
        self.ended().await
    }
}

/// Refuses duplicate names, and an empty list.
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
