//! The polling thread, which feeds the workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use waybill_agent_core::QueueLimits;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{GroupConsumer, GroupOptions, PollLimits};

use super::intake::Intake;
use super::outbox::Outbox;
use super::state::State;
use super::worker::{Agent, Shared, work};
use super::workers::Workers;
use super::{AgentsError, AgentsSettings, Membership, StartError};
use crate::handler::Handler;
use crate::metrics::AgentMetrics;

/// The limits of one poll, so that commits and metrics are not delayed.
const POLL_LIMITS: PollLimits = PollLimits {
    records: 2_000,
    bytes: 8 * 1024 * 1024,
};
/// How long a poll waits: the longest delay until a shutdown is noticed.
const POLL_WAIT: Duration = Duration::from_millis(100);
/// How long the poller pauses while the broker accepts no records.
const BLOCKED_PAUSE: Duration = Duration::from_millis(20);
/// How long leaving the group may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The owner's signal to the polling thread to stop.
#[derive(Debug, Default)]
pub(super) struct Signal(AtomicU8);

impl Signal {
    const RUN: u8 = 0;
    const DRAIN: u8 = 1;
    const ABANDON: u8 = 2;

    /// Stop gracefully.
    pub(super) fn drain(&self) {
        // A drain never revokes an abandonment.
        _ = self
            .0
            .compare_exchange(Self::RUN, Self::DRAIN, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stop immediately.
    pub(super) fn abandon(&self) {
        self.0.store(Self::ABANDON, Ordering::Relaxed);
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads the requests, and passes them to the workers.
#[derive(Debug)]
pub(super) struct Poller {
    shared: Arc<Shared>,
    consumer: GroupConsumer,
    workers: Workers,
    signal: Arc<Signal>,
    membership: watch::Sender<Membership>,
    commit_interval: Duration,
    drain_timeout: Duration,
}

impl Poller {
    pub(super) fn new(
        config: AgentsSettings,
        agents: Vec<(String, Arc<dyn Handler>)>,
        signal: Arc<Signal>,
        membership: watch::Sender<Membership>,
        runtime: &Handle,
    ) -> Result<Self, StartError> {
        let client_id = config.instance_id.as_deref().unwrap_or("waybill-agents");
        let mut options = GroupOptions::new(&config.group, client_id);
        options.instance_id.clone_from(&config.instance_id);
        options.session_timeout = config.session_timeout;
        let mut consumer = GroupConsumer::new(&config.kafka, &options)?;
        let limits = agents.iter().map(|(_, handler)| QueueLimits {
            workers: handler.concurrency_max(),
            in_flight_max: config.in_flight_max,
            in_flight_bytes_max: config.in_flight_bytes_max,
        });
        let state = Arc::new(State::new(limits));
        let outbox = Outbox::new(&config.kafka, client_id, Arc::clone(&state))?;

        let agents: Vec<Agent> = agents
            .into_iter()
            .map(|(name, handler)| Agent {
                topic: config.topics.step_requests(&name),
                wake: Notify::new(),
                metrics: AgentMetrics::new(&name),
                handler,
            })
            .collect();
        let topics: Vec<&str> = agents.iter().map(|agent| agent.topic.as_str()).collect();
        consumer.subscribe(&topics)?;

        let shared = Arc::new(Shared {
            agents,
            state,
            outbox,
            replies_topic: config.topics.step_replies().into(),
            framing: config.topics.framing().clone(),
            client_id: client_id.to_owned(),
        });
        let counts = (0..shared.agents.len()).map(|agent| shared.state.lock().workers(agent));
        let work = |agent| work(Arc::clone(&shared), agent);
        // The polling thread looks often enough.
        let workers = Workers::start(runtime, counts, work, || {});
        Ok(Self {
            shared,
            consumer,
            workers,
            signal,
            membership,
            commit_interval: config.commit_interval,
            drain_timeout: config.drain_timeout,
        })
    }

    /// Polls until it is signalled to stop, or cannot continue.
    pub(super) fn run(mut self) -> Result<(), AgentsError> {
        let mut intake = Intake::new(Arc::clone(&self.shared));
        let mut commit_at = Instant::now() + self.commit_interval;
        let ended = loop {
            if self.signal.get() != Signal::RUN {
                break Ok(());
            }
            if let Err(panicked) = self.workers.check() {
                break Err(AgentsError::from(panicked));
            }
            if self.shared.outbox.send_kept() && self.hold(&mut intake) {
                let polled = self.consumer.poll(POLL_LIMITS, POLL_WAIT, &mut intake);
                intake.wake();
                if let Err(error) = polled {
                    break Err(AgentsError::from(error));
                }
                self.show_membership();
            } else {
                std::thread::sleep(BLOCKED_PAUSE);
            }
            if Instant::now() >= commit_at {
                self.commit();
                self.shared.show_depths();
                commit_at = Instant::now() + self.commit_interval;
            }
        };
        if self.signal.get() == Signal::ABANDON {
            return ended;
        }
        self.drain(&mut intake);
        ended
    }

    /// Retries requests that could not be decoded yet, and holds additional records back while some
    /// remain. Returns whether the consumer may be polled.
    fn hold(&self, intake: &mut Intake) -> bool {
        intake.read_waiting();
        let held = self.consumer.hold(intake.waiting() > 0);
        if let Err(error) = &held {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "could not pause step requests; reading no more for now"
            );
        }
        held.is_ok()
    }

    fn show_membership(&self) {
        let now = if self.consumer.is_refused() {
            Membership::Refused
        } else if self.consumer.was_assigned() {
            Membership::Member
        } else {
            Membership::Joining
        };
        self.membership
            .send_if_modified(|shown| std::mem::replace(shown, now) != now);
    }

    /// Hands queued requests back, lets running attempts end, sends the remaining records, and
    /// leaves the group with everything committed.
    fn drain(self, intake: &mut Intake) {
        let deadline = Instant::now() + self.drain_timeout;
        let shared = &self.shared;
        let handed_back = shared.state.lock().drain();
        for agent in &shared.agents {
            agent.wake.notify_one();
        }
        for refused in handed_back {
            shared.refuse(&shared.agents[refused.work.source.topic], &refused);
        }
        // The next owner may know their schema.
        let unread = intake.waiting();
        while shared.state.lock().open() > unread
            && Instant::now() < deadline
            && self.signal.get() != Signal::ABANDON
            && self.workers.check().is_ok()
        {
            shared.outbox.send_kept();
            shared
                .state
                .wait_idle(deadline.min(Instant::now() + POLL_WAIT));
        }
        self.workers.stop();
        let open = shared.state.lock().open().saturating_sub(unread);
        if open > 0 {
            tracing::warn!(
                open,
                "stopping with unfinished requests, which will be read again"
            );
            shared.outbox.flush(Duration::from_millis(500));
        }
        self.consumer.close(CLOSE_TIMEOUT, intake);
    }

    fn commit(&self) {
        let commits = self.shared.state.lock().commits();
        let commits: Vec<(&str, PartitionId, Offset)> = commits
            .iter()
            .map(|(agent, partition, offset)| {
                (
                    self.shared.agents[*agent].topic.as_str(),
                    *partition,
                    *offset,
                )
            })
            .collect();
        if let Err(error) = self.consumer.commit(&commits) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "could not commit the agents' offsets; the next commit includes them"
            );
        }
    }
}
