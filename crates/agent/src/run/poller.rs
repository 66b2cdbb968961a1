//! The polling thread, and the workers that it feeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use waybill_clock::boot_clock;
use waybill_engine::{Offset, Outcome, PartitionId, StepReply};
use waybill_kafka::{GroupConsumer, GroupOptions, PollLimits};
use waybill_messages::Framing;

use super::attempt::{perform, stopping};
use super::epochs::{Epochs, superseded};
use super::intake::Intake;
use super::offsets::{Offsets, Source};
use super::outbox::{Outbox, Outgoing};
use super::queue::{Next, NoRoom, Queue, Work};
use super::{AgentsError, AgentsSettings, StartError};
use crate::handler::{Handler, StepCall, unknown};
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

/// State that workers and the polling thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) agents: Vec<Agent>,
    pub(super) offsets: Arc<Offsets>,
    epochs: Epochs,
    pub(super) outbox: Outbox,
    replies_topic: Arc<str>,
    pub(super) framing: Framing,
    pub(super) client_id: String,
}

/// One agent of the process.
pub(super) struct Agent {
    pub(super) topic: String,
    handler: Arc<dyn Handler>,
    pub(super) queue: Queue<Source>,
    pub(super) metrics: AgentMetrics,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// Reads the requests, and passes them to the workers.
#[derive(Debug)]
pub(super) struct Poller {
    shared: Arc<Shared>,
    consumer: GroupConsumer,
    workers: Vec<AbortHandle>,
    signal: Arc<Signal>,
    /// Set once, when the group has assigned the process its first partitions.
    ready_sender: watch::Sender<bool>,
    commit_interval: Duration,
    drain_timeout: Duration,
}

impl Poller {
    pub(super) fn new(
        config: AgentsSettings,
        agents: Vec<(String, Arc<dyn Handler>)>,
        signal: Arc<Signal>,
        ready_sender: watch::Sender<bool>,
        runtime: &Handle,
    ) -> Result<Self, StartError> {
        let offsets = Arc::new(Offsets::default());
        let client_id = config.instance_id.as_deref().unwrap_or("waybill-agents");
        let mut options = GroupOptions::new(&config.group, client_id);
        options.instance_id.clone_from(&config.instance_id);
        options.session_timeout = config.session_timeout;
        let mut consumer = GroupConsumer::new(&config.kafka, &options)?;
        let outbox = Outbox::new(&config.kafka, client_id, Arc::clone(&offsets))?;

        let agents: Vec<Agent> = agents
            .into_iter()
            .map(|(name, handler)| Agent {
                topic: config.topics.step_requests(&name),
                queue: Queue::new(
                    handler.concurrency_max(),
                    config.in_flight_max,
                    config.in_flight_bytes_max,
                ),
                metrics: AgentMetrics::new(&name),
                handler,
            })
            .collect();
        let topics: Vec<&str> = agents.iter().map(|agent| agent.topic.as_str()).collect();
        consumer.subscribe(&topics)?;

        let shared = Arc::new(Shared {
            agents,
            offsets,
            epochs: Epochs::default(),
            outbox,
            replies_topic: config.topics.step_replies().into(),
            framing: config.topics.framing().clone(),
            client_id: client_id.to_owned(),
        });
        let workers = (0..shared.agents.len())
            .flat_map(|agent| {
                let workers = shared.agents[agent].queue.workers();
                std::iter::repeat_n(agent, workers)
            })
            .map(|agent| {
                let worker = work(Arc::clone(&shared), agent);
                runtime.spawn(worker).abort_handle()
            })
            .collect();
        Ok(Self {
            shared,
            consumer,
            workers,
            signal,
            ready_sender,
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
            if self.shared.outbox.send_kept() && self.hold(&mut intake) {
                let polled = self.consumer.poll(POLL_LIMITS, POLL_WAIT, &mut intake);
                intake.wake();
                if let Err(error) = polled {
                    break Err(AgentsError::from(error));
                }
                self.notify_if_ready();
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
            self.stop_workers();
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

    fn notify_if_ready(&self) {
        if self.consumer.was_assigned() {
            self.ready_sender
                .send_if_modified(|ready| !std::mem::replace(ready, true));
        }
    }

    /// Hands queued requests back, lets running attempts end, sends the remaining records, and
    /// leaves the group with everything committed.
    fn drain(self, intake: &mut Intake) {
        let deadline = Instant::now() + self.drain_timeout;
        let shared = &self.shared;
        for agent in &shared.agents {
            for work in agent.queue.close() {
                agent.queue.finished(work.bytes, None);
                shared.answer(agent, &work.call, stopping(), work.source);
            }
        }
        // The next owner may know their schema.
        let unread = intake.waiting();
        while shared.offsets.open() > unread
            && Instant::now() < deadline
            && self.signal.get() != Signal::ABANDON
        {
            shared.outbox.send_kept();
            shared
                .offsets
                .wait_idle(deadline.min(Instant::now() + POLL_WAIT));
        }
        self.stop_workers();
        let open = shared.offsets.open().saturating_sub(unread);
        if open > 0 {
            tracing::warn!(
                open,
                "drain timeout reached; unfinished requests will be read again"
            );
            shared.outbox.flush(Duration::from_millis(500));
        }
        self.consumer.close(CLOSE_TIMEOUT, intake);
    }

    fn stop_workers(&self) {
        for worker in &self.workers {
            worker.abort();
        }
    }

    fn commit(&self) {
        let commits = self.shared.offsets.take_commits();
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

/// Runs one worker of an agent until its queue is closed.
async fn work(shared: Arc<Shared>, agent: usize) {
    let agent = &shared.agents[agent];
    while let Some(Next { work, has_time }) = agent.queue.next().await {
        // A handler that is always ready must not monopolize its thread.
        tokio::task::consume_budget().await;
        let (source, bytes) = (work.source, work.bytes);
        // Another group member may own the partition by now.
        let is_held = shared.offsets.holds(source);
        if !is_held || shared.refuse_if_superseded(agent, &work.call, source) {
            agent.queue.finished(bytes, None);
            continue;
        }
        if !has_time {
            shared.refuse(agent, &NoRoom::too_late(work));
            agent.queue.finished(bytes, None);
            continue;
        }
        let mut call = work.call;
        let start = Instant::now();
        let outcome = perform(&*agent.handler, &mut call, Some(&agent.topic)).await;
        let took = start.elapsed();
        agent.metrics.duration.record(took);
        agent.queue.finished(bytes, Some(took));
        match outcome {
            Some(outcome) => shared.answer(agent, &call, outcome, source),
            None => shared.give_up(agent, source),
        }
    }
}

impl Shared {
    /// Answers that the agent has no capacity or time for an attempt.
    pub(super) fn refuse(&self, agent: &Agent, no_room: &NoRoom<Source>) {
        let Work { call, source, .. } = &no_room.work;
        self.answer(agent, call, no_room.outcome(), *source);
    }

    /// Answers an attempt; its record is done once the answer is acknowledged.
    pub(super) fn answer(&self, agent: &Agent, call: &StepCall, outcome: Outcome, source: Source) {
        agent.metrics.count(&outcome);
        let request = &call.request;
        let mut reply = StepReply::to(request, outcome);
        let mut value = Vec::with_capacity(192);
        if let Err(error) = self.framing.encode(&reply, &mut value) {
            // The outputs are too large for a record. The step may have been performed
            // nevertheless.
            reply.outcome = unknown("reply-too-large", error.to_string());
            if let Err(error) = self.framing.encode(&reply, &mut value) {
                tracing::error!(
                    operation = %request.operation,
                    error = &error as &dyn std::error::Error,
                    "could not encode the answer to an attempt; the attempt will time out"
                );
                return self.offsets.done(source);
            }
        }
        self.outbox.send(Outgoing {
            topic: Arc::clone(&self.replies_topic),
            partition: request.reply_partition,
            key: Some(request.operation.key().to_vec()),
            value: Some(value),
            headers: Vec::new(),
            until: Some(request.complete_by),
            source,
        });
    }

    /// Refuses an attempt of a superseded owner. Returns whether it was one.
    pub(super) fn refuse_if_superseded(
        &self,
        agent: &Agent,
        call: &StepCall,
        source: Source,
    ) -> bool {
        let is_superseded = self.epochs.is_superseded(&call.request, boot_clock());
        if is_superseded {
            agent.metrics.superseded.increment(1);
            self.answer(agent, call, superseded(), source);
        }
        is_superseded
    }

    /// Ends an attempt without an answer: complete-by has passed.
    pub(super) fn give_up(&self, agent: &Agent, source: Source) {
        agent.metrics.late.increment(1);
        self.offsets.done(source);
    }

    fn show_depths(&self) {
        for agent in &self.agents {
            agent.metrics.show_depth(agent.queue.depth());
        }
    }
}
