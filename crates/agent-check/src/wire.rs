//! The kit's connection to the brokers: creates topics, sends requests, and receives replies and
//! dead letters.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, ConsumerOptions, Delivery, ErrorCode, Header, OutRecord, PartitionConsumer, PollLimits,
    ProduceError, Producer, ProducerOptions, RawRecord, RequestError, TopicSpec,
};
use waybill_messages::{Topics, is_topic_name};

use crate::{CheckError, CheckSettings};

/// The kit's client name in the brokers' metrics and logs.
const CLIENT_ID: &str = "waybill-agent-check";
/// How long the brokers may take to answer.
const BROKER_PATIENCE: Duration = Duration::from_secs(30);
/// How long the group's coordinator may take to answer before the kit asks again.
const GROUP_PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a retry after a topic was unknown.
const TOPIC_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The limits of one poll.
const POLL_LIMITS: PollLimits = PollLimits {
    records: 1_000,
    bytes: 4 * 1024 * 1024,
};
/// The size of the prefetch queue.
const READ_AHEAD_KIB_MAX: u32 = 8 * 1024;
/// How long the brokers may hold an empty fetch back. Short, because other requests on the same
/// connection wait for it.
const FETCH_WAIT_MAX: Duration = Duration::from_millis(20);
/// Partitions of topics that the kit creates: enough to tell the requested one from others.
const PARTITIONS_MADE: u32 = 3;

/// A record for the agent's topic.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) partition: PartitionId,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) traceparent: Option<String>,
}

/// A record that was received.
#[derive(Debug)]
pub(super) enum Incoming {
    Reply(RawRecord),
    DeadLetter(RawRecord),
}

/// The connection.
pub(super) struct Wire {
    producer: Producer<Box<oneshot::Sender<Delivery>>>,
    reader: PartitionConsumer,
    group: PartitionConsumer,
    requests: String,
    replies: String,
    dead_letters: String,
    request_partitions: u32,
    reply_partitions: u32,
    dead_letter_partitions: u32,
    /// The offset up to which each partition of replies and dead letters was read.
    read_to: HashMap<(String, PartitionId), Offset>,
}

impl Wire {
    /// Creates missing topics, and reads replies and dead letters from their ends on.
    pub(super) fn open(settings: &CheckSettings) -> Result<Self, CheckError> {
        let requests = settings.topics.step_requests(&settings.agent);
        let replies = settings.topics.step_replies().to_owned();
        let dead_letters = Topics::dead_letter(&requests);
        for topic in [&dead_letters, &replies] {
            if !is_topic_name(topic) {
                let topic = topic.clone();
                return Err(CheckError::TopicName { topic });
            }
        }
        let [request_partitions, reply_partitions, dead_letter_partitions] =
            prepare(settings, [&requests, &replies, &dead_letters])?;

        let mut options = ConsumerOptions::new(CLIENT_ID);
        options.queue_kib_max = READ_AHEAD_KIB_MAX;
        options.fetch_wait_max = FETCH_WAIT_MAX;
        let reader = PartitionConsumer::new(&settings.kafka, &options)?;
        options.group_for_lag = Some(group_of(settings));
        let mut wire = Self {
            producer: Producer::new(&settings.kafka, &ProducerOptions::new(CLIENT_ID))?,
            group: PartitionConsumer::new(&settings.kafka, &options)?,
            reader,
            requests,
            replies,
            dead_letters,
            request_partitions,
            reply_partitions,
            dead_letter_partitions,
            read_to: HashMap::new(),
        };
        wire.read_to = wire.ends_once_led()?;
        let starts: Vec<(&str, PartitionId, Offset)> = wire
            .read_to
            .iter()
            .map(|((topic, partition), end)| (topic.as_str(), *partition, *end))
            .collect();
        wire.reader.assign(&starts)?;
        Ok(wire)
    }

    pub(super) fn requests_topic(&self) -> &str {
        &self.requests
    }

    pub(super) fn replies_topic(&self) -> &str {
        &self.replies
    }

    pub(super) fn dead_letters_topic(&self) -> &str {
        &self.dead_letters
    }

    pub(super) fn request_partitions(&self) -> u32 {
        self.request_partitions
    }

    pub(super) fn reply_partitions(&self) -> u32 {
        self.reply_partitions
    }

    /// Sends records, and returns their offsets once all are acknowledged.
    pub(super) fn send(&self, records: &[Outgoing]) -> Result<Vec<Offset>, CheckError> {
        let mut deliveries = Vec::with_capacity(records.len());
        for record in records {
            let traceparent = record.traceparent.as_deref();
            let headers: Vec<Header<'_>> = traceparent
                .map(|value| Header {
                    key: waybill_messages::headers::TRACEPARENT,
                    value: Some(value.as_bytes()),
                })
                .into_iter()
                .collect();
            let out = OutRecord {
                headers: &headers,
                ..OutRecord::new(&self.requests, record.partition, &record.key, &record.value)
            };
            let (token, delivery) = oneshot::channel();
            self.producer
                .send_or_wait(&out, Box::new(token), BROKER_PATIENCE)
                .map_err(|refused| refused.into_parts().1)?;
            deliveries.push(delivery);
        }
        deliveries
            .into_iter()
            .map(|delivery| {
                let unknown = ProduceError::OutcomeUnknown {
                    code: ErrorCode::PurgeInflight,
                };
                let delivery = delivery.blocking_recv().map_err(|_| unknown)?;
                delivery.result?;
                Ok(delivery.offset.ok_or(unknown)?)
            })
            .collect()
    }

    /// Waits up to `timeout` for records, and takes those available.
    pub(super) fn poll(&mut self, timeout: Duration) -> Result<Vec<Incoming>, CheckError> {
        let mut came = Vec::new();
        let mut ended = Vec::new();
        self.reader.poll_with_positions(
            POLL_LIMITS,
            timeout,
            &mut |record| came.push(record.to_raw()),
            &mut |topic, partition, position| {
                ended.push(((topic.to_owned(), partition), position));
            },
        )?;
        for record in &came {
            let next = Offset(record.offset.0 + 1);
            self.has_read(&(record.topic.clone(), record.partition), next);
        }
        for (at, position) in ended {
            self.has_read(&at, position);
        }
        let is_reply = |record: &RawRecord| record.topic == self.replies;
        Ok(came
            .into_iter()
            .map(|record| match is_reply(&record) {
                true => Incoming::Reply(record),
                false => Incoming::DeadLetter(record),
            })
            .collect())
    }

    fn has_read(&mut self, at: &(String, PartitionId), position: Offset) {
        if let Some(read_to) = self.read_to.get_mut(at) {
            *read_to = position.max(*read_to);
        }
    }

    /// Reads all records that the topics of replies and dead letters have by now.
    pub(super) fn drain(&mut self) -> Result<Vec<Incoming>, CheckError> {
        let ends = self.ends()?;
        let deadline = Instant::now() + BROKER_PATIENCE;
        let mut came = Vec::new();
        while ends.iter().any(|(at, end)| self.read_to[at] < *end) {
            if Instant::now() >= deadline {
                return Err(CheckError::Behind);
            }
            came.extend(self.poll(FETCH_WAIT_MAX)?);
        }
        Ok(came)
    }

    /// The offset that the agent's group has committed in each partition of the requests.
    pub(super) fn committed(&self) -> Result<Vec<Option<Offset>>, RequestError> {
        let partitions: Vec<(&str, PartitionId)> = (0..self.request_partitions)
            .map(|partition| (self.requests.as_str(), PartitionId(partition)))
            .collect();
        self.group.committed(&partitions, GROUP_PATIENCE)
    }

    /// The ends of topics that may just have been created: a broker takes a moment to lead their
    /// partitions.
    fn ends_once_led(&self) -> Result<HashMap<(String, PartitionId), Offset>, CheckError> {
        let deadline = Instant::now() + BROKER_PATIENCE;
        loop {
            match self.ends() {
                Err(CheckError::Request(error)) if is_passing(&error) => {
                    if Instant::now() >= deadline {
                        return Err(error.into());
                    }
                }
                other => return other,
            }
            std::thread::sleep(TOPIC_AGAIN_AFTER);
        }
    }

    fn ends(&self) -> Result<HashMap<(String, PartitionId), Offset>, CheckError> {
        let replies = (0..self.reply_partitions).map(|partition| (&self.replies, partition));
        let dead_letters =
            (0..self.dead_letter_partitions).map(|partition| (&self.dead_letters, partition));
        let mut ends = HashMap::new();
        for (topic, partition) in replies.chain(dead_letters) {
            let partition = PartitionId(partition);
            let (_, end) = self.reader.watermarks(topic, partition, BROKER_PATIENCE)?;
            ends.insert((topic.clone(), partition), end);
        }
        Ok(ends)
    }
}

/// Whether the error may be due to a partition that was just created.
fn is_passing(error: &RequestError) -> bool {
    matches!(
        error.code(),
        Some(
            ErrorCode::NotLeaderForPartition
                | ErrorCode::LeaderNotAvailable
                | ErrorCode::UnknownTopicOrPartition
                | ErrorCode::UnknownPartition
        )
    )
}

/// The agent's consumer group.
pub(super) fn group_of(settings: &CheckSettings) -> String {
    let usual = || format!("{}-agents", settings.topics.prefix());
    settings.group.clone().unwrap_or_else(usual)
}

/// Refuses an installation's prefix, and creates missing topics for requests, replies and dead
/// letters. Returns their numbers of partitions.
fn prepare(
    settings: &CheckSettings,
    [requests, replies, dead_letters]: [&str; 3],
) -> Result<[u32; 3], CheckError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CheckError::Runtime)?;
    runtime.block_on(async {
        let admin = Admin::new(&settings.kafka, CLIENT_ID)?;
        admin.wait_ready(BROKER_PATIENCE).await?;
        let installation = settings.topics.requests();
        if admin.topic_partitions(installation).await?.is_some() {
            return Err(CheckError::Installation {
                topic: installation.to_owned(),
            });
        }
        let spec = |topic: &str, partitions| TopicSpec {
            replication: settings.replication,
            ..TopicSpec::new(topic, partitions)
        };
        // Dead letters keep their partition, so both topics have the same number.
        let requests_found = admin.topic_partitions(requests).await?;
        let as_requests = requests_found.unwrap_or(PARTITIONS_MADE);
        admin
            .create_topics(&[
                spec(requests, as_requests),
                spec(replies, PARTITIONS_MADE),
                spec(dead_letters, as_requests),
            ])
            .await?;
        Ok([
            known(&admin, requests).await?,
            known(&admin, replies).await?,
            known(&admin, dead_letters).await?,
        ])
    })
}

/// The number of partitions of a topic that may just have been created.
async fn known(admin: &Admin, topic: &str) -> Result<u32, CheckError> {
    let found = admin.wait_for_topic(topic, BROKER_PATIENCE).await?;
    found.ok_or_else(|| CheckError::TopicMissing {
        topic: topic.to_owned(),
    })
}
