//! The scheduler: owns shards, each a part of one partition of the operation topics, and drives
//! their engines.
//!
//! `waybill_scheduler_core` decides: it is the loop with the engines of all shards of this process.
//! One thread drives it (`driver`). Three more poll the consumers (`consumers`). One producer
//! (`dispatcher`) and one group commit serve all shards, so that cost does not grow with the number
//! of partitions. Recoveries from the supervisor wake operations that were handed off.
//!
//! The invariants are documented with the code that keeps them: rows before messages, and no action
//! after the lease has ended, in `waybill_scheduler_core`; no read beyond the room in `credit`.

mod admission;
mod config;
mod consumers;
pub mod control;
mod credit;
mod dead_letters;
mod decode;
mod dispatcher;
mod driver;
mod incoming;
mod index;
mod lag;
pub mod metrics;
mod nonces;
mod spans;
mod tasks;
mod unreadable;
mod view;

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use uuid::Uuid;
use waybill_agent::http::NamedHandler;
use waybill_agent::{DirectAgents, DirectConfig};
use waybill_api::form::Forms;
use waybill_clock::clocks;
use waybill_engine::{EngineConfig, OwnerId, ShardId, Workflows};
use waybill_kafka::KafkaSettings;
use waybill_messages::Topics;
use waybill_scheduler_core::{Candidate, Input, LeaseTerms, LoopSettings, SchedulerLoop};
use waybill_state::Layout;
use waybill_store::{ReplyKey, Store};
use waybill_telemetry::health::{Liveness, Readiness};

pub use self::config::{IdentityError, PartitionChoice, SchedulerConfig};
pub use self::index::{begin as begin_index, write as write_indexed};
pub use self::nonces::reply_key;
pub use waybill_scheduler_core::Own;

use self::consumers::Consumers;
use self::control::{ControlError, SchedulerControl, SchedulerView};
use self::dispatcher::Dispatcher;
use self::driver::{Driver, DriverParts};
use self::incoming::{Incoming, Inputs};
use self::nonces::Nonces;
use self::view::Views;

/// The scheduler's settings.
#[derive(Clone, Debug)]
pub struct SchedulerSettings {
    /// The number of partitions of each agent's topic.
    pub step_partitions: u32,
    /// The shards that this process runs.
    pub own: Own,
    /// Maximum number of operations in memory, over all partitions of the process.
    pub in_flight_max: usize,
    /// Maximum size of requests in memory, in bytes.
    pub in_flight_bytes_max: usize,
    /// Maximum number of requests of each priority that wait for admission, over all partitions of
    /// the process.
    pub read_ahead_max: usize,
    /// Maximum size of the waiting requests of each priority, in bytes.
    pub read_ahead_bytes_max: usize,
    /// Maximum number of tracked requests of each priority: waiting, in flight, or done after one
    /// that is not. Each of the latter takes about 50 bytes.
    pub tracked_requests_max: usize,
    /// How many high-priority requests are admitted for each normal one, while both wait.
    pub high_priority_weight: u32,
    /// After how long an operation is handed off to the deadline index.
    pub hand_off_after: Duration,
    /// How long rows of final operations are kept.
    pub retention: Duration,
    /// How long after its complete-by an attempt's reply may still arrive.
    pub timeout_grace: Duration,
    /// Maximum age of a request with a server-generated id that needs no look-up.
    pub fresh_for: Duration,
    /// How often the checkpoint is stored while records are done.
    pub checkpoint_every: Duration,
    /// The number of done records after which it is stored earlier.
    pub checkpoint_records: i64,
    /// How long a lease lasts after each renewal.
    pub lease: Duration,
    /// How long before its end the owner of a lease stops acting.
    pub lease_margin: Duration,
    /// Whether to start a partition that the store has no record of, although its log has been
    /// consumed.
    pub start_without_state: bool,
    /// How long a shard waits for an answer from the store before it is given up.
    pub stuck_after: Duration,
    /// Whether a partition continues if unfinished requests or recoveries were deleted from its
    /// log.
    pub skip_deleted_requests: bool,
    /// How long a shutdown waits for operations in flight.
    pub drain: Duration,
    /// How long the supervisor may take to decide about an operation that failed for good, before
    /// the deadline index triggers the decision again.
    pub supervisor_decision_timeout: Duration,
    /// Whether the step states of every operation are published on the status topic.
    pub publish_step_status: bool,
    /// The allowed prefixes of a caller's own status topic.
    pub reply_to_prefixes: Vec<String>,
}

impl SchedulerSettings {
    fn terms(&self) -> LeaseTerms {
        LeaseTerms {
            duration: self.lease,
            margin: self.lease_margin,
        }
    }

    /// The settings of the loop.
    fn of_loop(&self, store_is_exclusive: bool) -> LoopSettings {
        LoopSettings {
            own: self.own,
            store_is_exclusive,
            in_flight_max: self.in_flight_max,
            in_flight_bytes_max: self.in_flight_bytes_max,
            read_ahead_max: self.read_ahead_max,
            read_ahead_bytes_max: self.read_ahead_bytes_max,
            tracked_requests_max: self.tracked_requests_max,
            checkpoint_every: self.checkpoint_every,
            checkpoint_records: self.checkpoint_records,
            lease: self.terms(),
            stuck_after: self.stuck_after,
            skip_deleted_requests: self.skip_deleted_requests,
            drain: self.drain,
        }
    }

    /// The settings of the engines.
    fn of_engines(&self) -> EngineConfig {
        EngineConfig {
            retention: self.retention,
            hand_off_after: self.hand_off_after,
            timeout_grace: self.timeout_grace,
            fresh_for: self.fresh_for,
            supervisor_decision_timeout: self.supervisor_decision_timeout,
            publish_step_status: self.publish_step_status,
            high_priority_weight: self.high_priority_weight,
            ..EngineConfig::default()
        }
    }
}

/// The scheduler's dependencies.
#[derive(Clone)]
pub struct SchedulerParts {
    /// The state store.
    pub store: Arc<dyn Store>,
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The names of the topics.
    pub topics: Topics,
    /// The workflows that operations may run.
    pub workflows: Arc<Workflows>,
    /// The forms that requests may have, including those of workflows that are not configured.
    pub forms: Forms,
    /// The layout of shards in the store.
    pub layout: Layout,
    /// The reply key of the installation, which verifies replies.
    pub reply_key: ReplyKey,
    /// Agents that run in this process and are called without a record. All others are requested
    /// through their topics.
    pub agents: Vec<NamedHandler>,
    /// Limits of the requests that each of them may queue.
    pub agents_hold: DirectConfig,
}

/// A running scheduler. Dropping it does not stop it; see [`Scheduler::stopper`].
pub struct Scheduler {
    sender: Inputs,
    views: Views,
    ended: oneshot::Receiver<anyhow::Result<()>>,
}

impl Scheduler {
    /// Starts the scheduler, which begins to acquire the leases of its shards. It reports to
    /// `readiness` and `liveness`.
    ///
    /// # Errors
    ///
    /// If a Kafka client or a thread cannot be created.
    pub fn start(
        settings: SchedulerSettings,
        parts: SchedulerParts,
        readiness: &Readiness,
        liveness: &Liveness,
    ) -> anyhow::Result<Self> {
        let (sender, incoming) = mpsc::channel();
        let SchedulerParts {
            store,
            kafka,
            topics,
            workflows,
            forms,
            layout,
            reply_key,
            agents,
            agents_hold,
        } = parts;
        let nonces = Nonces::new(&reply_key);
        let direct = match agents.is_empty() {
            true => None,
            false => {
                let answered = sender.clone();
                let notify = move || {
                    let _ = answered.send(Incoming::Answered);
                };
                let agents = DirectAgents::start(agents, agents_hold, notify);
                Some(agents.context("cannot start the agents")?)
            }
        };
        let consumers = Consumers::start(&kafka, &topics, &nonces, &forms, &sender)
            .context("cannot start the scheduler's consumers")?;
        let written = layout.partitions_written();
        let dispatcher = Dispatcher::start(
            &kafka,
            &topics,
            &workflows,
            &settings,
            written,
            nonces,
            sender.clone(),
        )
        .context("cannot start the scheduler's producer")?
        .with_agents(direct);
        let views = Views::new(readiness, liveness);
        views.relay(settings.own, &layout);
        let store_is_exclusive = store.is_exclusive();
        let owner = OwnerId(Uuid::new_v4());
        let scheduler_loop = SchedulerLoop::new(
            settings.of_loop(store_is_exclusive),
            settings.of_engines(),
            workflows,
            owner,
            layout,
            clocks(),
        );
        let parts = DriverParts {
            own: settings.own,
            store,
            runtime: tokio::runtime::Handle::current(),
            incoming,
            sender: sender.clone(),
            consumers,
            dispatcher,
            candidate: Candidate {
                owner,
                terms: settings.terms(),
                store_is_exclusive,
                may_lack_state: settings.start_without_state,
            },
            views: views.clone(),
        };
        let driver = Driver::new(scheduler_loop, parts);
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("scheduler".to_owned())
            .spawn(move || {
                let result =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| driver.run()));
                let _ = end.send(
                    result
                        .unwrap_or_else(|_| Err(anyhow::anyhow!("the scheduler's loop panicked"))),
                );
            })
            .context("cannot start the scheduler's thread")?;
        Ok(Self {
            sender,
            views,
            ended,
        })
    }

    /// Starts and stops single shards.
    #[must_use]
    pub fn control(&self) -> Arc<dyn SchedulerControl> {
        Arc::new(Control {
            sender: self.sender.clone(),
            views: self.views.clone(),
        })
    }

    /// Returns a function that stops the scheduler: it reads no further request, waits for
    /// operations in flight for as long as its drain lasts, stores the checkpoints and releases the
    /// leases.
    pub fn stopper(&self) -> impl FnOnce() + Send + 'static {
        let sender = self.sender.clone();
        move || {
            let _ = sender.send(Input::Shutdown.into());
        }
    }

    /// Resolves when the scheduler has ended: gracefully after a stop, or because it failed.
    ///
    /// # Errors
    ///
    /// If the store failed, or the loop panicked.
    pub async fn ended(self) -> anyhow::Result<()> {
        self.ended.await.unwrap_or_else(|_| {
            Err(anyhow::anyhow!(
                "the scheduler's thread ended without a result"
            ))
        })
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("partitions", &self.views.list())
            .finish()
    }
}

struct Control {
    sender: Inputs,
    views: Views,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}

impl SchedulerControl for Control {
    fn list(&self) -> Vec<SchedulerView> {
        self.views.list()
    }

    fn set_running(
        &self,
        shard: ShardId,
        running: bool,
    ) -> BoxFuture<'_, Result<(), ControlError>> {
        let (answer, answered) = oneshot::channel();
        let sent = self.sender.send(Incoming::SetRunning {
            shard,
            running,
            answer,
        });
        async move {
            sent.map_err(|_| ControlError::ShuttingDown)?;
            answered.await.unwrap_or(Err(ControlError::ShuttingDown))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
