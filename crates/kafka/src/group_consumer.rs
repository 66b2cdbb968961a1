//! A member of a consumer group, for agents: at-least-once delivery, with an observable assignment.
//!
//! What must hold here: a partition is given up only after its handler was notified and could have
//! the offsets of finished work committed. No partition is taken or given up outside
//! [`GroupConsumer::poll`] and [`GroupConsumer::close`].
//!
//! librdkafka leaves it to the application when to take and give up partitions. So its rebalance
//! events are only queued while it is polled, and executed when the poll returns to this module,
//! where the handler can be borrowed.
//!
//! A named member that cannot reach its brokers for longer than its session asks repeatedly to
//! rejoin. When the brokers are back, they answer every request and take the second one for another
//! member of the same name; librdkafka then gives up. So a fenced member recreates its client under
//! the same name. If another process really has that name, the two fence each other until one of
//! them has used up its renewals and fails.

mod commits;
mod context;
mod damaged;
mod options;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode;
use waybill_engine::{Offset, PartitionId};

pub use self::options::{ASSIGNMENT_STRATEGY, GroupOptions};

use self::commits::Commits;
use self::context::{Context, Rebalance, assign, partitions_of, unassign};
use crate::damage::{DamagedLog, History};
use crate::error::{ClientError, RequestError};
use crate::native;
use crate::partition_consumer::fetch_settings;
use crate::partition_list::{offsets_list, partitions_list};
use crate::poll::{self, PollError, PollLimits, Polled};
use crate::record::RecordRef;
use crate::settings::KafkaSettings;
use crate::severity::{Severity, severity};
use crate::stall::StallWatch;

/// The longest that a fetch may wait for records. librdkafka adds newly assigned partitions to its
/// next fetch only, so this also bounds how long they wait.
const FETCH_WAIT_MAX: Duration = Duration::from_millis(100);
/// The longest time between two heartbeats, which tell a member that the group rebalances. Until
/// then, partitions that move to another member are not read.
const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// How long a leaving member polls before it checks again whether it has left the group.
const LEAVING_POLL: Duration = Duration::from_millis(10);
/// A member that is fenced more often than this within the time below fails: another process has
/// its name.
const RENEWALS_MAX: usize = 3;
const RENEWALS_WITHIN: Duration = Duration::from_secs(60);

/// A partition of a topic.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TopicPartition {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
}

/// Receives the events of a [`GroupConsumer`] while it is polled, on the polling thread.
pub trait GroupHandler {
    /// Takes a record.
    fn record(&mut self, record: RecordRef<'_>);

    /// The member now owns these partitions. Their records follow, from the committed offset, or
    /// from the beginning if none is committed.
    fn assigned(&mut self, partitions: &[TopicPartition]);

    /// These partitions are about to be given up. Returns the offsets (of the next record to read)
    /// to commit first. With `lost` another member already owns them, and nothing is committed.
    /// Work on them may continue; its results cannot be committed any more, and the other member
    /// does it again.
    fn revoked(
        &mut self,
        partitions: &[TopicPartition],
        lost: bool,
    ) -> Vec<(TopicPartition, Offset)>;

    /// Whether [`GroupHandler::undecodable`] can handle records. If false, it is not called.
    fn takes_undecodable(&self) -> bool {
        false
    }

    /// No client can decode the records of a partition from `log.offset` up to `next`. Returns
    /// whether the handler has handled them and the partition continues at `next`. If false, the
    /// partition stays paused at `log.offset` and is retried.
    fn undecodable(&mut self, log: &DamagedLog, next: Offset) -> bool {
        let _ = (log, next);
        false
    }
}

/// A member of a consumer group, polled from the caller's own thread.
///
/// It must be polled at least every five minutes (librdkafka's `max.poll.interval.ms`), otherwise
/// the group takes its partitions away.
pub struct GroupConsumer {
    consumer: BaseConsumer<Context>,
    config: ClientConfig,
    topics: Vec<String>,
    client_id: String,
    /// The partitions that the handler was notified of.
    assigned: BTreeSet<TopicPartition>,
    /// Those that are paused because of damage, and when to read them again.
    damaged: BTreeMap<TopicPartition, Instant>,
    damaged_again_after: Duration,
    commits: Arc<Commits>,
    stalls: StallWatch,
    damage_history: History,
    /// The seek position of each partition that was moved past undecodable records and has
    /// delivered no record since.
    moved_to: BTreeMap<TopicPartition, Offset>,
    /// When it was fenced and recreated its client.
    renewals: Vec<Instant>,
    /// Whether the group has assigned it partitions.
    was_assigned: AtomicBool,
    /// Whether the group refuses it, because they have no assignment strategy in common.
    refused: bool,
    /// Whether record delivery is on hold.
    held: AtomicBool,
}

impl GroupConsumer {
    /// Creates a member that has not subscribed yet. Does not need a reachable broker.
    pub fn new(settings: &KafkaSettings, options: &GroupOptions) -> Result<Self, ClientError> {
        let session_ms = options.session_timeout.as_millis().clamp(10, 300_000);
        let mut defaults = fetch_settings(
            options.queue_kib_max,
            options.queue_records_max,
            FETCH_WAIT_MAX,
        );
        defaults.extend([
            ("session.timeout.ms", session_ms.to_string()),
            (
                "heartbeat.interval.ms",
                (session_ms / 3)
                    .min(HEARTBEAT_INTERVAL_MAX.as_millis())
                    .to_string(),
            ),
            (
                "partition.assignment.strategy",
                ASSIGNMENT_STRATEGY.to_owned(),
            ),
            // The longest time until a topic that is created after the subscription is found.
            ("topic.metadata.refresh.interval.ms", "10000".to_owned()),
        ]);
        let mut fixed = vec![
            ("group.id", options.group.clone()),
            ("enable.auto.commit", "false".to_owned()),
            ("enable.auto.offset.store", "false".to_owned()),
            ("enable.partition.eof", "false".to_owned()),
            ("auto.offset.reset", "earliest".to_owned()),
        ];
        if let Some(instance) = &options.instance_id {
            fixed.push(("group.instance.id", instance.clone()));
        }
        let config = settings.consumer_config(&options.client_id, &defaults, &fixed)?;
        let commits = Arc::new(Commits::new(&options.group, settings.group_commits.clone()));
        let consumer = config
            .create_with_context(Context::new(&options.client_id, &config, commits.clone()))
            .map_err(|error| ClientError::new(&options.client_id, error))?;
        Ok(Self {
            consumer,
            config,
            topics: Vec::new(),
            client_id: options.client_id.clone(),
            assigned: BTreeSet::new(),
            damaged: BTreeMap::new(),
            damaged_again_after: options.damaged_again_after,
            commits,
            stalls: StallWatch::default(),
            damage_history: History::default(),
            moved_to: BTreeMap::new(),
            renewals: Vec::new(),
            was_assigned: AtomicBool::new(false),
            refused: false,
            held: AtomicBool::new(false),
        })
    }

    /// Joins the group for these topics. Later polls assign the partitions.
    pub fn subscribe(&mut self, topics: &[&str]) -> Result<(), RequestError> {
        self.topics = topics.iter().map(|&topic| topic.to_owned()).collect();
        self.consumer
            .subscribe(topics)
            .map_err(RequestError::new("subscribing"))
    }

    /// Waits up to `timeout` for a record, then takes the available records, up to the limits,
    /// without further waiting. Notifies the handler of every change of the assignment.
    pub fn poll(
        &mut self,
        limits: PollLimits,
        timeout: Duration,
        handler: &mut dyn GroupHandler,
    ) -> Result<Polled, PollError> {
        let deadline = Instant::now() + timeout;
        let context = self.consumer.context();
        context.rebootstrap.tend(self.consumer.client());
        self.try_damaged_again();
        self.commit_refused();
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            // Returns early when the group rebalances, so that this happens without delay.
            let rebalances = &self.consumer.context().rebalances;
            let polled = poll::take(
                &self.consumer,
                limits,
                wait,
                |record| handler.record(record),
                |_| {},
                || {
                    !rebalances
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .is_empty()
                },
            );
            let polled = match polled {
                Ok(polled) => polled,
                // Records taken before the error are not counted: the limits are for one poll.
                Err(source) if severity(&source) == Severity::Damaged => {
                    let left = self.leave_damaged(&source, handler);
                    left.map_err(|source| self.fatal(source))?;
                    return Ok(Polled::default());
                }
                Err(source) if severity(&source) == Severity::Inconsistent => {
                    self.note_refusal();
                    return Ok(Polled::default());
                }
                Err(source) => {
                    self.renew(source, handler)?;
                    return Ok(Polled::default());
                }
            };
            self.rebalance(handler);
            if !limits.are_reached(polled) {
                let left = self.leave_stalled(handler);
                self.log_failure("searching for stalled partitions", left);
            }
            if polled.records > 0 || Instant::now() >= deadline {
                return Ok(polled);
            }
        }
    }

    /// Holds records back, or stops doing so. While they are held back, a poll takes none but still
    /// serves the group: a member without room for more keeps its partitions by polling on.
    /// Prefetched records are dropped, and read again afterwards. Partitions with damaged records
    /// stay as they are.
    ///
    /// # Errors
    ///
    /// If the client refuses; the state is then unchanged.
    pub fn hold(&self, held: bool) -> Result<(), RequestError> {
        if self.held.load(Ordering::Acquire) == held {
            return Ok(());
        }
        self.consumer
            .assignment()
            .and_then(|list| match held {
                true => self.consumer.pause(&list),
                false => self.consumer.resume(&self.whole(&list)),
            })
            .map_err(RequestError::new("pausing or resuming partitions"))?;
        self.held.store(held, Ordering::Release);
        Ok(())
    }

    /// Whether the group has assigned this member its first partitions. That assignment is empty if
    /// the group has more members than partitions. Stays true when the assignment changes or is
    /// lost.
    #[must_use]
    pub fn was_assigned(&self) -> bool {
        self.was_assigned.load(Ordering::Acquire)
    }

    /// Whether the group refuses this member, because another member does not support
    /// [`ASSIGNMENT_STRATEGY`]. The member keeps trying to join, and gets no record until then.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    fn note_refusal(&mut self) {
        if !std::mem::replace(&mut self.refused, true) {
            tracing::warn!(
                client = self.client_id,
                group = self.config.get("group.id"),
                strategy = ASSIGNMENT_STRATEGY,
                "the consumer group refuses this member: another member does not support its \
                 partition.assignment.strategy; trying again"
            );
        }
    }

    /// Commits offsets, each of the next record to read. Returns immediately; a failure is logged,
    /// and a later poll commits them again.
    pub fn commit(&self, offsets: &[(&str, PartitionId, Offset)]) -> Result<(), RequestError> {
        if offsets.is_empty() {
            return Ok(());
        }
        self.commits.begin(offsets);
        offsets_list(offsets)
            .and_then(|list| native::commit(self.consumer.client(), &list))
            .map_err(RequestError::new("committing offsets"))
    }

    /// Commits again, after a while, the offsets that the broker refused.
    fn commit_refused(&self) {
        let refused = self.commits.take_refused(Instant::now());
        let offsets: Vec<_> = refused
            .iter()
            .map(|(at, offset)| (at.topic.as_str(), at.partition, *offset))
            .collect();
        if let Err(error) = self.commit(&offsets) {
            self.commits.note_unsent();
            tracing::warn!(
                client = self.client_id,
                error = &error as &dyn std::error::Error,
                "could not commit refused offsets again"
            );
        }
    }

    /// Leaves the group in order: notifies the handler that its partitions are revoked, and commits
    /// the offsets that it returns. Drops prefetched records. Waits up to `timeout` for the group,
    /// then ends in any case.
    ///
    /// Other members get the partitions immediately, even if this member has an instance ID.
    pub fn close(mut self, timeout: Duration, handler: &mut dyn GroupHandler) {
        let deadline = Instant::now() + timeout;
        self.consumer.unsubscribe();
        loop {
            self.rebalance(handler);
            // Without partitions it stays a member until the commit in flight completes. If the
            // client ended before that, its session would have to time out.
            let is_member = native::is_group_member(self.consumer.client());
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_member || left.is_zero() {
                return;
            }
            drop(self.consumer.poll(left.min(LEAVING_POLL)));
        }
    }

    /// Recreates the client under the same name if it was fenced, and not too often. Its partitions
    /// are lost until the group assigns them again.
    fn renew(
        &mut self,
        source: KafkaError,
        handler: &mut dyn GroupHandler,
    ) -> Result<(), PollError> {
        let is_fenced = source.rdkafka_error_code() == Some(RDKafkaErrorCode::FencedInstanceId);
        self.renewals.retain(|at| at.elapsed() < RENEWALS_WITHIN);
        if !is_fenced || self.renewals.len() == RENEWALS_MAX {
            return Err(self.fatal(source));
        }
        tracing::warn!(
            client = self.client_id,
            "another member has this member's instance id: this process before an outage, or \
             another process; rejoining the group"
        );
        let context = Context::new(&self.client_id, &self.config, Arc::clone(&self.commits));
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        let consumer: KafkaResult<BaseConsumer<Context>> = self.config.create_with_context(context);
        let consumer = consumer
            .and_then(|consumer| consumer.subscribe(&topics).map(|()| consumer))
            .map_err(|source| self.fatal(source))?;
        self.renewals.push(Instant::now());
        let lost: Vec<_> = std::mem::take(&mut self.assigned).into_iter().collect();
        self.commits.forget(&lost);
        if !lost.is_empty() {
            handler.revoked(&lost, true);
        }
        self.leave_unattended();
        self.damaged.clear();
        self.stalls.clear();
        self.moved_to.clear();
        self.consumer = consumer;
        Ok(())
    }

    fn fatal(&self, source: KafkaError) -> PollError {
        PollError::Fatal {
            client_id: self.client_id.clone(),
            source,
        }
    }

    /// Executes the assignment changes since the last call.
    fn rebalance(&mut self, handler: &mut dyn GroupHandler) {
        while let Some(rebalance) = self.consumer.context().next_rebalance() {
            match rebalance {
                Rebalance::Assign(list) => {
                    let partitions = partitions_of(&list);
                    handler.assigned(&partitions);
                    self.assigned.extend(partitions);
                    self.log_failure("assigning partitions", assign(&self.consumer, &list));
                    if self.held.load(Ordering::Acquire) {
                        self.log_failure("pausing partitions", self.consumer.pause(&list));
                    }
                    self.was_assigned.store(true, Ordering::Release);
                    self.refused = false;
                }
                Rebalance::Revoke(list) => {
                    let lost = self.consumer.assignment_lost();
                    let partitions = partitions_of(&list);
                    let offsets = handler.revoked(&partitions, lost);
                    self.assigned.retain(|held| !partitions.contains(held));
                    self.moved_to.retain(|at, _| !partitions.contains(at));
                    if !lost {
                        let offsets: Vec<_> = offsets
                            .iter()
                            .map(|(at, offset)| (at.topic.as_str(), at.partition, *offset))
                            .collect();
                        if let Err(error) = self.commit(&offsets) {
                            tracing::warn!(
                                client = self.client_id,
                                error = &error as &dyn std::error::Error,
                                "could not commit offsets before giving up partitions"
                            );
                        }
                    }
                    self.commits.forget(&partitions);
                    let held = self.held.load(Ordering::Acquire);
                    let paused = partitions.iter().filter(|partition| {
                        let is_damaged = self.damaged.remove(*partition).is_some();
                        held || is_damaged
                    });
                    let paused = paused.map(|at| (at.topic.as_str(), at.partition));
                    let paused = partitions_list(paused);
                    // Otherwise librdkafka would keep them paused when they are assigned again.
                    self.log_failure("resuming partitions", self.consumer.resume(&paused));
                    let given_up = unassign(&self.consumer, &list);
                    self.log_failure("unassigning partitions", given_up);
                }
            }
        }
    }

    /// Executes the group's remaining requests without notifying a handler.
    fn leave_unattended(&self) {
        let context = self.consumer.context();
        context.unattended.store(true, Ordering::Release);
        while let Some(rebalance) = context.next_rebalance() {
            let (action, result) = match rebalance {
                Rebalance::Assign(list) => ("assigning partitions", assign(&self.consumer, &list)),
                Rebalance::Revoke(list) => {
                    ("unassigning partitions", unassign(&self.consumer, &list))
                }
            };
            self.log_failure(action, result);
        }
    }

    fn log_failure(&self, action: &str, result: KafkaResult<()>) {
        if let Err(error) = result {
            self.consumer.context().log.transient(action, &error);
        }
    }
}

impl Drop for GroupConsumer {
    /// Without [`GroupConsumer::close`], partitions are given up without a commit and without
    /// notifying the handler. Other members read their uncommitted records again.
    fn drop(&mut self) {
        self.leave_unattended();
    }
}

impl fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupConsumer")
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}
