//! Topic administration: creates, deletes and describes topics.

mod groups;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, NewPartitions, NewTopic, OwnedResourceSpecifier, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka::{ClientConfig, TopicPartitionList};

use waybill_engine::{Offset, PartitionId};

pub use self::groups::TopicsRead;
use crate::error::ClientError;
use crate::partition::{partition_id, partition_number};
use crate::probe::Probe;
use crate::rebootstrap::Rebootstrap;
use crate::settings::KafkaSettings;
use crate::watermarks::watermarks;

/// How long one request may take, unless the caller sets another time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The most new partitions of one request, unless a single topic has more: a broker needs about a
/// millisecond for each.
const REQUEST_PARTITIONS: u32 = 1_000;
/// How long one probe for a broker may take while [`Admin::wait_ready`] waits.
const READY_PROBE: Duration = Duration::from_secs(1);
/// How long to keep asking a broker after its first refusal: a broker that is starting might not
/// know its users yet.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a retry after a topic was unknown, or the leader of a partition did not know it.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The action that errors name when a topic cannot be described.
const DESCRIBING: &str = "describing topic";

/// A topic to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicSpec {
    /// Its name.
    pub name: String,
    /// Its number of partitions.
    pub partitions: u32,
    /// The number of replicas of each partition.
    pub replication: u16,
    /// The topic's settings, by Kafka's names.
    pub config: Vec<(String, String)>,
}

impl TopicSpec {
    /// A topic with one replica and the broker's default settings.
    #[must_use]
    pub fn new(name: impl Into<String>, partitions: u32) -> Self {
        Self {
            name: name.into(),
            partitions,
            replication: 1,
            config: Vec::new(),
        }
    }
}

/// One partition, as the brokers describe it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionState {
    /// Its number.
    pub partition: PartitionId,
    /// The ID of its leader. `None` while it has no leader; it can then be neither read nor
    /// written.
    pub leader: Option<i32>,
    /// The ids of the brokers that keep a copy.
    pub replicas: Vec<i32>,
    /// The IDs of those replicas that are in sync.
    pub in_sync: Vec<i32>,
}

/// The settings of a topic, by Kafka's names.
pub type TopicSettings = BTreeMap<String, String>;

/// Why a topic could not be created, deleted or described.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The request did not get through.
    #[error("{action} failed")]
    Request {
        /// The requested action.
        action: &'static str,
        /// librdkafka's error.
        #[source]
        source: KafkaError,
    },
    /// The broker refused one topic.
    #[error("{action} {topic} was refused")]
    Topic {
        /// The requested action.
        action: &'static str,
        /// The topic.
        topic: String,
        /// The broker's error.
        #[source]
        code: RDKafkaErrorCode,
    },
    /// No broker answered in time.
    #[error("no broker answered at {brokers} within {waited:?}{}", and_reason(.reason.as_deref()))]
    NotReady {
        /// The bootstrap brokers.
        brokers: String,
        /// How long the client waited.
        waited: Duration,
        /// librdkafka's reason.
        reason: Option<String>,
        /// The error of the last attempt.
        #[source]
        source: Option<Box<KafkaError>>,
    },
    /// A broker is reachable, but the broker refused the login, or one side does not trust the
    /// other's certificate.
    #[error("no connection with the broker at {brokers}: {reason}")]
    Refused {
        /// The bootstrap brokers.
        brokers: String,
        /// librdkafka's reason. It never contains a secret.
        reason: String,
    },
    /// The thread that made the request was stopped.
    #[error("the runtime stopped during a request to the broker")]
    Stopped,
}

fn and_reason(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

/// Creates, deletes and describes topics. Its methods must be called from a tokio runtime.
pub struct Admin {
    client: Arc<AdminClient<Quiet>>,
    config: ClientConfig,
    brokers: String,
    rebootstrap: Arc<Rebootstrap>,
}

impl Admin {
    /// Creates an admin client. Does not need a reachable broker.
    pub fn new(settings: &KafkaSettings, client_id: &str) -> Result<Self, ClientError> {
        let mut config = settings.client_config(client_id, &[], &[])?;
        // Nothing reads this client's log queue: it must stay empty.
        config.set_log_level(RDKafkaLogLevel::Emerg);
        config.set("log_level", "0");
        let client = config
            .create_with_context(Quiet)
            .map_err(|error| ClientError::new(client_id, error))?;
        Ok(Self {
            client: Arc::new(client),
            rebootstrap: Arc::new(Rebootstrap::new(&config)),
            config,
            brokers: settings.brokers.clone(),
        })
    }

    /// Waits until a broker answers.
    ///
    /// # Errors
    ///
    /// [`AdminError::NotReady`] after `timeout`. [`AdminError::Refused`] some seconds after the
    /// broker refused the login, or this client rejected the broker's certificate.
    pub async fn wait_ready(&self, timeout: Duration) -> Result<(), AdminError> {
        let started = Instant::now();
        let mut refused_since = None;
        let mut last = None;
        let probe = Probe::new(&self.config).map_err(|source| AdminError::Request {
            action: "creating a client",
            source,
        })?;
        let probe = Arc::new(probe);
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            let refusal = probe.refusal();
            let has_refused = refusal.is_some();
            if let Some(reason) = refusal
                && (left.is_zero()
                    || refused_since
                        .is_some_and(|since: Instant| since.elapsed() >= REFUSAL_PATIENCE))
            {
                let brokers = self.brokers.clone();
                return Err(AdminError::Refused { brokers, reason });
            }
            if has_refused {
                refused_since.get_or_insert_with(Instant::now);
            }
            if left.is_zero() {
                return Err(AdminError::NotReady {
                    brokers: self.brokers.clone(),
                    waited: timeout,
                    reason: probe.trouble(),
                    source: last.map(Box::new),
                });
            }
            let asked_at = Instant::now();
            let (asked, wait) = (Arc::clone(&probe), READY_PROBE.min(left));
            let answer = tokio::task::spawn_blocking(move || asked.brokers(wait));
            match answer.await.map_err(|_| AdminError::Stopped)? {
                Ok(brokers) if brokers > 0 => return Ok(()),
                Ok(_) => {}
                Err(error) => last = Some(error),
            }
            // Errors may come immediately: do not spin.
            let pause = Duration::from_millis(50).saturating_sub(asked_at.elapsed());
            tokio::time::sleep(pause).await;
        }
    }

    /// Creates topics, and returns the names of those that it created. Leaves an existing topic
    /// unchanged, whatever its partitions and settings: check it with [`Admin::topic_partitions`]
    /// if that matters.
    pub async fn create_topics(&self, topics: &[TopicSpec]) -> Result<Vec<String>, AdminError> {
        self.create(topics, &admin_options()).await
    }

    /// Asks the broker to validate these topics without creating them. Returns the names of those
    /// that it would create; existing topics are not among them.
    ///
    /// # Errors
    ///
    /// The same as for [`Admin::create_topics`].
    pub async fn try_topics(&self, topics: &[TopicSpec]) -> Result<Vec<String>, AdminError> {
        let options = admin_options().validate_only(true);
        self.create(topics, &options).await
    }

    async fn create(
        &self,
        topics: &[TopicSpec],
        options: &AdminOptions,
    ) -> Result<Vec<String>, AdminError> {
        let mut made = Vec::new();
        for topics in requests_for(topics) {
            made.extend(self.create_at_once(topics, options).await?);
        }
        Ok(made)
    }

    async fn create_at_once(
        &self,
        topics: &[TopicSpec],
        options: &AdminOptions,
    ) -> Result<Vec<String>, AdminError> {
        const ACTION: &str = "creating topic";
        let new: Vec<NewTopic<'_>> = topics
            .iter()
            .map(|topic| NewTopic {
                name: &topic.name,
                num_partitions: i32::try_from(topic.partitions).unwrap_or(i32::MAX),
                replication: TopicReplication::Fixed(i32::from(topic.replication)),
                config: topic
                    .config
                    .iter()
                    .map(|(k, v)| (k.as_str(), v.as_str()))
                    .collect(),
            })
            .collect();
        let results = self
            .client
            .create_topics(&new, options)
            .await
            .map_err(|source| AdminError::Request {
                action: "creating topics",
                source,
            })?;
        let mut made = Vec::new();
        for result in results {
            match result {
                Ok(topic) => made.push(topic),
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    return Err(AdminError::Topic {
                        action: ACTION,
                        topic,
                        code,
                    });
                }
            }
        }
        Ok(made)
    }

    /// Raises the number of partitions of each topic to `partitions`. A topic that already has as
    /// many is no error.
    ///
    /// # Errors
    ///
    /// If the broker does not answer, or refuses one of the topics; others may have been extended.
    pub async fn add_partitions(&self, topics: &[&str], partitions: u32) -> Result<(), AdminError> {
        const ACTION: &str = "adding partitions to topic";
        let count = usize::try_from(partitions).unwrap_or(usize::MAX);
        let topics_at_once = (REQUEST_PARTITIONS / partitions.max(1)).max(1) as usize;
        for topics in topics.chunks(topics_at_once) {
            let more: Vec<NewPartitions<'_>> = topics
                .iter()
                .map(|topic| NewPartitions::new(topic, count))
                .collect();
            let results = self.client.create_partitions(&more, &admin_options()).await;
            let results = results.map_err(|source| AdminError::Request {
                action: ACTION,
                source,
            })?;
            for result in results {
                if let Err((topic, code)) = result
                    && self.topic_partitions(&topic).await? != Some(partitions)
                {
                    return Err(AdminError::Topic {
                        action: ACTION,
                        topic,
                        code,
                    });
                }
            }
        }
        Ok(())
    }

    /// Deletes a topic. A topic that does not exist is no error.
    pub async fn delete_topic(&self, topic: &str) -> Result<(), AdminError> {
        const ACTION: &str = "deleting topic";
        let results = self
            .client
            .delete_topics(&[topic], &admin_options())
            .await
            .map_err(|source| AdminError::Request {
                action: ACTION,
                source,
            })?;
        for result in results {
            match result {
                Ok(_)
                | Err((
                    _,
                    RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic,
                )) => {}
                Err((topic, code)) => {
                    return Err(AdminError::Topic {
                        action: ACTION,
                        topic,
                        code,
                    });
                }
            }
        }
        Ok(())
    }

    /// Deletes the records of partitions below the given offsets. The log may keep them for a
    /// while, but consumers can no longer read them.
    pub async fn delete_records(
        &self,
        topic: &str,
        below: &[(PartitionId, Offset)],
    ) -> Result<(), AdminError> {
        const ACTION: &str = "deleting records of topic";
        let request = |source| AdminError::Request {
            action: ACTION,
            source,
        };
        let mut offsets = TopicPartitionList::new();
        for (partition, offset) in below {
            let number = partition_number(*partition);
            offsets
                .add_partition_offset(topic, number, rdkafka::Offset::Offset(offset.0))
                .map_err(request)?;
        }
        let results = self
            .client
            .delete_records(&offsets, &admin_options())
            .await
            .map_err(request)?;
        for result in results.elements() {
            result.error().map_err(request)?;
        }
        Ok(())
    }

    /// All topics by name, with their number of partitions. A broker with access control lists only
    /// the topics that this client may describe.
    pub async fn topics(&self) -> Result<BTreeMap<String, u32>, AdminError> {
        let found = self.metadata("listing topics", None).await?;
        let mut topics = BTreeMap::new();
        for topic in found.topics() {
            if let Some(partitions) = partitions_of(topic)? {
                topics.insert(topic.name().to_owned(), partitions);
            }
        }
        Ok(topics)
    }

    /// The number of partitions of a topic; `None` if the topic does not exist.
    pub async fn topic_partitions(&self, topic: &str) -> Result<Option<u32>, AdminError> {
        let found = self.metadata(DESCRIBING, Some(topic.to_owned())).await?;
        let mut topics = found.topics().iter();
        let topic = topics.find(|found| found.name() == topic);
        Ok(topic.map(partitions_of).transpose()?.flatten())
    }

    /// The number of partitions of a topic that this client or another one has just created: a
    /// broker may answer before it knows the topic. `None` if it does not within `patience`.
    ///
    /// # Errors
    ///
    /// If the brokers do not answer.
    pub async fn wait_for_topic(
        &self,
        topic: &str,
        patience: Duration,
    ) -> Result<Option<u32>, AdminError> {
        let deadline = Instant::now() + patience;
        loop {
            let found = self.topic_partitions(topic).await?;
            if found.is_some() || Instant::now() >= deadline {
                return Ok(found);
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// The state of each partition of a topic, in order; `None` if the topic does not exist.
    pub async fn partition_states(
        &self,
        topic: &str,
    ) -> Result<Option<Vec<PartitionState>>, AdminError> {
        let found = self.metadata(DESCRIBING, Some(topic.to_owned())).await?;
        let mut topics = found.topics().iter();
        let Some(topic) = topics.find(|found| found.name() == topic) else {
            return Ok(None);
        };
        if partitions_of(topic)?.is_none() {
            return Ok(None);
        }
        let mut states: Vec<PartitionState> = topic
            .partitions()
            .iter()
            .map(|partition| PartitionState {
                partition: partition_id(partition.id()),
                leader: Some(partition.leader()).filter(|&leader| leader >= 0),
                replicas: partition.replicas().to_vec(),
                in_sync: partition.isr().to_vec(),
            })
            .collect();
        states.sort_by_key(|state| state.partition);
        Ok(Some(states))
    }

    /// The settings of topics, including defaults. The result lacks topics that do not exist and
    /// topics whose settings this client has no permission to read: librdkafka does not distinguish
    /// the two.
    pub async fn topic_settings(
        &self,
        topics: &[&str],
    ) -> Result<BTreeMap<String, TopicSettings>, AdminError> {
        let asked: Vec<_> = topics
            .iter()
            .map(|&topic| ResourceSpecifier::Topic(topic))
            .collect();
        if asked.is_empty() {
            return Ok(BTreeMap::new());
        }
        let answers = self.client.describe_configs(&asked, &admin_options());
        let answers = answers.await.map_err(|source| AdminError::Request {
            action: "reading the settings of topics",
            source,
        })?;
        let mut settings = BTreeMap::new();
        for answer in answers.into_iter().flatten() {
            let OwnedResourceSpecifier::Topic(topic) = answer.specifier else {
                continue;
            };
            if !answer.entries.is_empty() {
                let of_topic = answer.entries.into_iter();
                let entries = of_topic.filter_map(|entry| Some((entry.name, entry.value?)));
                settings.insert(topic, entries.collect());
            }
        }
        Ok(settings)
    }

    /// For each of these partitions, its first offset and the offset that its next record will get.
    pub async fn offsets(
        &self,
        topic: &str,
        partitions: &[PartitionId],
    ) -> Result<Vec<(Offset, Offset)>, AdminError> {
        let (client, rebootstrap) = (Arc::clone(&self.client), Arc::clone(&self.rebootstrap));
        let (topic, partitions) = (topic.to_owned(), partitions.to_vec());
        let answer = tokio::task::spawn_blocking(move || {
            let asked = partitions
                .into_iter()
                .map(|partition| offsets_of(&client, &topic, partition));
            let found: Result<Vec<_>, KafkaError> = asked.collect();
            if let Err(error) = &found {
                rebootstrap.request_failed(client.inner(), error);
            }
            found
        });
        let found = answer.await.map_err(|_| AdminError::Stopped)?;
        found.map_err(|source| AdminError::Request {
            action: "reading the offsets of a topic",
            source,
        })
    }

    /// The brokers' metadata of one topic, or of all topics.
    async fn metadata(
        &self,
        action: &'static str,
        topic: Option<String>,
    ) -> Result<Metadata, AdminError> {
        let (client, rebootstrap) = (Arc::clone(&self.client), Arc::clone(&self.rebootstrap));
        let answer = tokio::task::spawn_blocking(move || {
            let client = client.inner();
            let answer = client.fetch_metadata(topic.as_deref(), REQUEST_TIMEOUT);
            if let Err(error) = &answer {
                // Even if the caller has given up.
                rebootstrap.request_failed(client, error);
            }
            answer
        });
        let answer = answer.await.map_err(|_| AdminError::Stopped)?;
        answer.map_err(|source| AdminError::Request { action, source })
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("brokers", &self.brokers)
            .finish_non_exhaustive()
    }
}

/// The admin client has no log of its own: each of its errors is returned.
struct Quiet;

impl ClientContext for Quiet {
    // The library's own would be compiled, with a parser of JSON, in each crate that drops a
    // client. Statistics are off.
    fn stats_raw(&self, _: &[u8]) {}
}

/// The number of partitions of a topic; `None` if it does not exist, or no longer.
fn partitions_of(topic: &MetadataTopic) -> Result<Option<u32>, AdminError> {
    match topic.error() {
        None => Ok(Some(
            u32::try_from(topic.partitions().len()).unwrap_or(u32::MAX),
        )),
        Some(
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC,
        ) => Ok(None),
        Some(error) => Err(AdminError::Topic {
            action: DESCRIBING,
            topic: topic.name().to_owned(),
            code: error.into(),
        }),
    }
}

/// The offsets of a partition. Retries a partition that was just created or whose leader just
/// changed.
fn offsets_of(
    client: &AdminClient<Quiet>,
    topic: &str,
    partition: PartitionId,
) -> Result<(Offset, Offset), KafkaError> {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let found = watermarks(client.inner(), topic, partition, left);
        let code = found
            .as_ref()
            .err()
            .and_then(KafkaError::rdkafka_error_code);
        match code {
            Some(
                RDKafkaErrorCode::NotLeaderForPartition
                | RDKafkaErrorCode::LeaderNotAvailable
                | RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownPartition,
            ) if !left.is_zero() => thread::sleep(AGAIN_AFTER),
            Some(_) | None => return found,
        }
    }
}

fn admin_options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(REQUEST_TIMEOUT))
        .operation_timeout(Some(REQUEST_TIMEOUT))
}

/// Divides topics into requests of at most [`REQUEST_PARTITIONS`], or of one topic.
fn requests_for(topics: &[TopicSpec]) -> impl Iterator<Item = &[TopicSpec]> {
    let mut partitions = 0_u32;
    topics.chunk_by(move |topic, next| {
        partitions = partitions.saturating_add(topic.partitions);
        let fits = partitions.saturating_add(next.partitions) <= REQUEST_PARTITIONS;
        if !fits {
            partitions = 0;
        }
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_asks_for_a_thousand_partitions_or_one_topic() {
        let topics =
            [400, 600, 1, 3_000, 999, 1, 1].map(|partitions| TopicSpec::new("t", partitions));
        let requests = requests_for(&topics);
        let partitions: Vec<Vec<u32>> = requests
            .map(|topics| topics.iter().map(|topic| topic.partitions).collect())
            .collect();
        let expected = [vec![400, 600], vec![1], vec![3_000], vec![999, 1], vec![1]];
        assert_eq!(partitions, expected);
        assert_eq!(requests_for(&[]).count(), 0);
    }

    #[tokio::test]
    async fn a_client_whose_overlapping_requests_fail_adds_the_servers_again() {
        let nobody = KafkaSettings::new("127.0.0.1:1");
        let admin = Admin::new(&nobody, "test").unwrap();
        let deadline = Instant::now() + 3 * REQUEST_TIMEOUT;
        while !admin.rebootstrap.has_added() {
            // Their callers give up, as those of the connectivity check do.
            let asked = admin.topic_partitions("orders");
            let given_up = tokio::time::timeout(Duration::from_millis(500), asked).await;
            assert!(given_up.is_err());
            assert!(
                Instant::now() < deadline,
                "the client would stay without brokers"
            );
        }
    }
}
