//! A member of a consumer group, for agents: at least once, with the assignment in plain sight.
//!
//! What must hold here: a partition is given up only after its handler was told and had the chance
//! to have the offsets of finished work committed, and no partition is taken or given up outside
//! [`GroupConsumer::poll`] and [`GroupConsumer::close`].
//!
//! librdkafka leaves it to the application when to take and give up partitions. So its rebalance
//! events are only noted while it is polled, and acted on when the poll comes back to this module,
//! where the handler can be borrowed.
//!
//! A member with a name that does not hear of its brokers for longer than its session asks them to join anew,
//! perhaps more than once. When they are back they answer all of it, and take the member's second asking for
//! another one's that came under its name: librdkafka gives up then. So a member that is fenced becomes another
//! client under the same name; where there really is another one, they fence each other until one of them has
//! had its turns, and that one cannot go on.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use waybill_engine::{Offset, PartitionId};

use crate::client_log::ClientLog;
use crate::damage::{self, DamagedLog};
use crate::error::{ClientError, RequestError};
use crate::native;
use crate::partition_consumer::{fetch_settings, offsets_list, verified};
use crate::poll::{self, PollError, PollLimits, Polled, Severity, severity};
use crate::record::{RecordRef, partition_id};
use crate::settings::KafkaSettings;

/// The longest that a fetch may wait for records. librdkafka takes partitions that were just assigned
/// into its next fetch only, so it is also how long they may stand still.
const FETCH_WAIT_MAX: Duration = Duration::from_millis(100);
/// The longest time between two heartbeats, by which a member learns that the group rebalances.
/// Partitions that move to another member stand still until then.
const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// How long a member that leaves waits for the group's next word before it looks whether it is out.
const LEAVING_POLL: Duration = Duration::from_millis(10);
/// A member that is fenced once more than so often within so long cannot go on: there is another one of its
/// name.
const RENEWALS_MAX: usize = 3;
const RENEWALS_WITHIN: Duration = Duration::from_secs(60);
/// How long a partition with damaged records stands still before it is read again from there.
const DAMAGED_AGAIN: Duration = Duration::from_secs(30);
/// How long the brokers may take to answer when positions are asked for or changed.
const SEEK_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a [`GroupConsumer`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupOptions {
    /// The group.
    pub group: String,
    /// The name that brokers and logs know the client by.
    pub client_id: String,
    /// A name that stays the same over restarts: a member that ended without leaving and comes back
    /// under it within the session time-out takes its own place again, where a new member would
    /// have to wait until the old one's session is over. No two may have the same at a time.
    pub instance_id: Option<String>,
    /// A member that was not heard of for so long loses its partitions. Default 6 s; at most five
    /// minutes.
    pub session_timeout: Duration,
    /// Prefetched records are held up to about this size, over all partitions. Default 16 MiB.
    pub queue_kib_max: u32,
    /// Prefetched records are held up to about this number per partition. Default 1,000: what is
    /// prefetched by one member cannot be done by another.
    pub queue_records_max: u32,
}

impl GroupOptions {
    /// The defaults for a member of a group.
    #[must_use]
    pub fn new(group: impl Into<String>, client_id: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            client_id: client_id.into(),
            instance_id: None,
            session_timeout: Duration::from_secs(6),
            queue_kib_max: 16 * 1024,
            queue_records_max: 1_000,
        }
    }
}

/// A partition of a topic.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TopicPartition {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
}

/// What a [`GroupConsumer`] tells while it is polled, on the polling thread.
pub trait GroupHandler {
    /// Takes a record.
    fn record(&mut self, record: RecordRef<'_>);

    /// These partitions are now the member's; their records follow, from the committed offset, or
    /// the beginning where none is committed.
    fn assigned(&mut self, partitions: &[TopicPartition]);

    /// These partitions are about to be given up. Returns the offsets of the next records to read
    /// that shall be committed first. With `lost` they are another member's already, and nothing
    /// is committed. Work on them may go on; what it finishes can no longer be committed, and
    /// another member does it again.
    fn revoked(
        &mut self,
        partitions: &[TopicPartition],
        lost: bool,
    ) -> Vec<(TopicPartition, Offset)>;
}

/// A member of a consumer group, polled from the caller's own thread.
///
/// It must be polled at least every five minutes (librdkafka's `max.poll.interval.ms`), else the
/// group takes its partitions away.
pub struct GroupConsumer {
    consumer: BaseConsumer<Context>,
    config: ClientConfig,
    topics: Vec<String>,
    client_id: String,
    /// What the handler was told that the member has.
    assigned: BTreeSet<TopicPartition>,
    /// What of that is not read because it is damaged, and when it is tried again.
    damaged: Option<(Vec<DamagedLog>, Instant)>,
    /// When it was fenced and became another client.
    renewals: Vec<Instant>,
    /// Whether the group has given it a share.
    was_assigned: AtomicBool,
    /// Whether it takes no records for now.
    held: AtomicBool,
}

impl GroupConsumer {
    /// Makes a member that has not subscribed yet. No broker need be there yet.
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
                "cooperative-sticky".to_owned(),
            ),
            // A topic that is made after the subscription is found this soon.
            ("topic.metadata.refresh.interval.ms", "10000".to_owned()),
        ]);
        let mut fixed = vec![
            ("group.id", options.group.clone()),
            ("enable.auto.commit", "false".to_owned()),
            ("enable.auto.offset.store", "false".to_owned()),
            ("enable.partition.eof", "false".to_owned()),
            ("auto.offset.reset", "earliest".to_owned()),
            verified(),
        ];
        if let Some(instance) = &options.instance_id {
            fixed.push(("group.instance.id", instance.clone()));
        }
        let config = settings.client_config(&options.client_id, &defaults, &fixed)?;
        let consumer = config
            .create_with_context(Context::new(&options.client_id))
            .map_err(|error| ClientError::new(&options.client_id, error))?;
        Ok(Self {
            consumer,
            config,
            topics: Vec::new(),
            client_id: options.client_id.clone(),
            assigned: BTreeSet::new(),
            damaged: None,
            renewals: Vec::new(),
            was_assigned: AtomicBool::new(false),
            held: AtomicBool::new(false),
        })
    }

    /// Joins the group for these topics. Partitions come with later polls.
    pub fn subscribe(&mut self, topics: &[&str]) -> Result<(), RequestError> {
        self.topics = topics.iter().map(|&topic| topic.to_owned()).collect();
        self.consumer
            .subscribe(topics)
            .map_err(RequestError::new("subscribing"))
    }

    /// Waits up to `timeout` for a record, then takes what is there, up to the limits, without
    /// waiting further. Tells the handler of every change of the assignment.
    pub fn poll(
        &mut self,
        limits: PollLimits,
        timeout: Duration,
        handler: &mut dyn GroupHandler,
    ) -> Result<Polled, PollError> {
        let deadline = Instant::now() + timeout;
        self.try_damaged_again();
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            // Comes back early when the group rebalances, so that this happens without delay.
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
                // What was taken up to there is not counted: the limits are for one poll.
                Err(source) if severity(&source) == Severity::Damaged => {
                    self.leave_damaged(&source);
                    return Ok(Polled::default());
                }
                Err(source) => {
                    self.renew(source, handler)?;
                    return Ok(Polled::default());
                }
            };
            self.rebalance(handler);
            if polled.records > 0 || Instant::now() >= deadline {
                return Ok(polled);
            }
        }
    }

    /// Says whether records are held back. While they are, a poll takes none, and serves the group
    /// all the same: a member that has no room for more keeps its share by polling on. What was
    /// prefetched is given up, and read again when records are no longer held back.
    ///
    /// # Errors
    ///
    /// If the client refuses; everything is then as it was.
    pub fn hold(&self, held: bool) -> Result<(), RequestError> {
        if self.held.load(Ordering::Acquire) == held {
            return Ok(());
        }
        self.consumer
            .assignment()
            .and_then(|list| match held {
                true => self.consumer.pause(&list),
                false => self.consumer.resume(&list),
            })
            .map_err(RequestError::new("holding records back"))?;
        self.held.store(held, Ordering::Release);
        Ok(())
    }

    /// Whether the group has given this member its first share of the partitions, which is empty
    /// where there are more members than partitions. Stays true when the share changes or is lost.
    #[must_use]
    pub fn was_assigned(&self) -> bool {
        self.was_assigned.load(Ordering::Acquire)
    }

    /// Commits offsets, each that of the next record to read. Returns at once; a failure is
    /// logged, and the next commit makes up for it.
    pub fn commit(&self, offsets: &[(&str, PartitionId, Offset)]) -> Result<(), RequestError> {
        if offsets.is_empty() {
            return Ok(());
        }
        offsets_list(offsets)
            .and_then(|list| self.consumer.commit(&list, CommitMode::Async))
            .map_err(RequestError::new("committing offsets"))
    }

    /// Leaves the group in order: the handler is told that its partitions are revoked, and the
    /// offsets that it returns are committed. Records that were prefetched are given up. Waits up
    /// to `timeout` for the group, and then ends in any case.
    ///
    /// The others get its partitions at once, also from a member with an instance id.
    pub fn close(mut self, timeout: Duration, handler: &mut dyn GroupHandler) {
        let deadline = Instant::now() + timeout;
        self.consumer.unsubscribe();
        loop {
            self.rebalance(handler);
            // Without partitions it is still a member until the commit under way is through: a
            // client that is ended before would leave its session to time out.
            let is_member = native::is_group_member(self.consumer.client());
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_member || left.is_zero() {
                return;
            }
            drop(self.consumer.poll(left.min(LEAVING_POLL)));
        }
    }

    /// Finds out which partitions are damaged, and reads them no further for a while. All others are read again
    /// from where their records ended: what was prefetched may have gaps.
    fn leave_damaged(&mut self, error: &KafkaError) {
        let found = self.positions().and_then(|at| {
            let damaged = damage::find(&self.config, &at);
            let is_damaged = |topic: &str, partition: PartitionId| {
                let mut damaged = damaged.iter();
                damaged.any(|log| log.topic == topic && log.partition == partition)
            };
            let (left, read): (Vec<_>, Vec<_>) = at
                .iter()
                .map(|(topic, partition, offset)| (topic.as_str(), *partition, *offset))
                .partition(|(topic, partition, _)| is_damaged(topic, *partition));
            self.consumer.pause(&offsets_list(&left)?)?;
            if !read.is_empty() {
                let read = offsets_list(&read)?;
                self.consumer.seek_partitions(read, SEEK_TIMEOUT)?;
            }
            Ok(damaged)
        });
        let damaged = match found {
            Ok(damaged) => damaged,
            // It is met again.
            Err(error) => return self.log_failure("leaving damaged records", Err(error)),
        };
        if damaged.is_empty() {
            self.consumer
                .context()
                .log
                .transient("reading damaged records again", error);
        }
        for log in &damaged {
            tracing::error!(
                client = self.client_id,
                topic = log.topic,
                partition = %log.partition,
                offset = %log.offset,
                cause = log.cause,
                again_after_s = DAMAGED_AGAIN.as_secs(),
                "records are damaged; stopped reading the partition"
            );
        }
        self.damaged =
            Some((damaged, Instant::now() + DAMAGED_AGAIN)).filter(|(logs, _)| !logs.is_empty());
    }

    /// Reads damaged partitions again after a while: a replica may have become their leader that has them whole.
    fn try_damaged_again(&mut self) {
        if self.held.load(Ordering::Acquire)
            || self
                .damaged
                .as_ref()
                .is_none_or(|(_, at)| Instant::now() < *at)
        {
            return;
        }
        let Some((logs, _)) = self.damaged.take() else {
            return;
        };
        let ours = logs.iter().filter(|log| {
            self.assigned.contains(&TopicPartition {
                topic: log.topic.clone(),
                partition: log.partition,
            })
        });
        let ours: Vec<_> = ours
            .map(|log| (log.topic.as_str(), log.partition, log.offset))
            .collect();
        let again = offsets_list(&ours).and_then(|list| {
            self.consumer.resume(&list)?;
            match ours.is_empty() {
                true => Ok(()),
                false => self.consumer.seek_partitions(list, SEEK_TIMEOUT).map(drop),
            }
        });
        self.log_failure("reading damaged records again", again);
    }

    /// Where each partition is to be read on: behind the last record that was handed over, or else where the
    /// group has committed, or at its beginning.
    fn positions(&self) -> KafkaResult<Vec<(String, PartitionId, Offset)>> {
        let known = self.consumer.position()?;
        let committed = self.consumer.committed(SEEK_TIMEOUT)?;
        let mut at = Vec::new();
        for element in known.elements() {
            let (topic, partition) = (element.topic(), element.partition());
            let committed = committed.find_partition(topic, partition);
            let committed = committed.map(|element| element.offset());
            let offset = match (element.offset(), committed) {
                (rdkafka::Offset::Offset(offset), _) => offset,
                (_, Some(rdkafka::Offset::Offset(offset))) => offset,
                _ => {
                    let held = self
                        .consumer
                        .fetch_watermarks(topic, partition, SEEK_TIMEOUT)?;
                    held.0
                }
            };
            at.push((topic.to_owned(), partition_id(partition), Offset(offset)));
        }
        Ok(at)
    }

    /// Becomes another client under the same name, if that is of use after this error: if it was fenced, and
    /// was not again and again. Its partitions are lost until the group gives them to it again.
    fn renew(
        &mut self,
        source: KafkaError,
        handler: &mut dyn GroupHandler,
    ) -> Result<(), PollError> {
        let fatal = |source| PollError::Fatal {
            client_id: self.client_id.clone(),
            source,
        };
        let is_fenced = source.rdkafka_error_code() == Some(RDKafkaErrorCode::FencedInstanceId);
        self.renewals.retain(|at| at.elapsed() < RENEWALS_WITHIN);
        if !is_fenced || self.renewals.len() == RENEWALS_MAX {
            return Err(fatal(source));
        }
        tracing::warn!(
            client = self.client_id,
            "the group has another member of this name: this one, as after an outage, or another process; it joins anew"
        );
        let context = Context::new(&self.client_id);
        let consumer: BaseConsumer<Context> =
            self.config.create_with_context(context).map_err(fatal)?;
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(fatal)?;
        self.renewals.push(Instant::now());
        let lost: Vec<_> = std::mem::take(&mut self.assigned).into_iter().collect();
        if !lost.is_empty() {
            handler.revoked(&lost, true);
        }
        self.leave_unattended();
        self.consumer = consumer;
        Ok(())
    }

    /// Does what the group asked for since the last call.
    fn rebalance(&mut self, handler: &mut dyn GroupHandler) {
        while let Some(rebalance) = self.consumer.context().next_rebalance() {
            match rebalance {
                Rebalance::Assign(list) => {
                    let partitions = partitions_of(&list);
                    handler.assigned(&partitions);
                    self.assigned.extend(partitions);
                    self.log_failure("taking partitions", take_partitions(&self.consumer, &list));
                    if self.held.load(Ordering::Acquire) {
                        self.log_failure("holding records back", self.consumer.pause(&list));
                    }
                    self.was_assigned.store(true, Ordering::Release);
                }
                Rebalance::Revoke(list) => {
                    let lost = self.consumer.assignment_lost();
                    let partitions = partitions_of(&list);
                    let offsets = handler.revoked(&partitions, lost);
                    self.assigned.retain(|held| !partitions.contains(held));
                    if !lost {
                        let offsets: Vec<_> = offsets
                            .iter()
                            .map(|(at, offset)| (at.topic.as_str(), at.partition, *offset))
                            .collect();
                        if let Err(error) = self.commit(&offsets) {
                            tracing::warn!(
                                client = self.client_id,
                                error = &error as &dyn std::error::Error,
                                "offsets were not committed before partitions were given up"
                            );
                        }
                    }
                    if self.held.load(Ordering::Acquire) {
                        // librdkafka would remember it when the partitions come back.
                        self.log_failure("letting records go", self.consumer.resume(&list));
                    }
                    let given_up = give_partitions_up(&self.consumer, &list);
                    self.log_failure("giving partitions up", given_up);
                }
            }
        }
    }

    /// Has the client give up whatever the group asks back of it, now that no handler can be told.
    fn leave_unattended(&self) {
        let context = self.consumer.context();
        context.unattended.store(true, Ordering::Release);
        while let Some(rebalance) = context.next_rebalance() {
            let (action, result) = match rebalance {
                Rebalance::Assign(list) => {
                    ("taking partitions", take_partitions(&self.consumer, &list))
                }
                Rebalance::Revoke(list) => (
                    "giving partitions up",
                    give_partitions_up(&self.consumer, &list),
                ),
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
    /// Without [`GroupConsumer::close`] nobody can be told any more: partitions are given up
    /// without a commit, and their unfinished and uncommitted records are read again by others.
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

/// A change of the assignment that waits to be made.
enum Rebalance {
    Assign(TopicPartitionList),
    Revoke(TopicPartitionList),
}

/// What librdkafka calls back while the consumer is polled.
struct Context {
    log: ClientLog,
    /// Noted, in order, and not yet acted on. One per rebalance: librdkafka sends none before the
    /// last was acted on.
    rebalances: Mutex<VecDeque<Rebalance>>,
    /// Nobody polls any more: rebalances are acted on at once.
    unattended: AtomicBool,
}

impl Context {
    fn new(client_id: &str) -> Self {
        Self {
            log: ClientLog::new(client_id),
            rebalances: Mutex::default(),
            unattended: AtomicBool::new(false),
        }
    }

    fn next_rebalance(&self) -> Option<Rebalance> {
        self.rebalances
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(&error, reason);
    }
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        kind: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let assign = kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.unattended.load(Ordering::Acquire) {
            let result = if assign {
                take_partitions(consumer, list)
            } else {
                give_partitions_up(consumer, list)
            };
            if let Err(error) = result {
                self.log.transient("leaving the group", &error);
            }
            return;
        }
        let list = list.clone();
        self.rebalances
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(if assign {
                Rebalance::Assign(list)
            } else {
                Rebalance::Revoke(list)
            });
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            self.log.transient("committing offsets", &error);
        }
    }
}

fn take_partitions(consumer: &BaseConsumer<Context>, list: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
        RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.assign(list),
    }
}

fn give_partitions_up(
    consumer: &BaseConsumer<Context>,
    list: &TopicPartitionList,
) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
        RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
    }
}

fn partitions_of(list: &TopicPartitionList) -> Vec<TopicPartition> {
    list.elements()
        .iter()
        .map(|element| TopicPartition {
            topic: element.topic().to_owned(),
            partition: partition_id(element.partition()),
        })
        .collect()
}
