//! Topics: making, deleting and looking at them.

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
use crate::probe::Probe;
use crate::rebootstrap::Rebootstrap;
use crate::record::{partition_id, partition_number};
use crate::settings::KafkaSettings;
use crate::watermarks::watermarks;

/// How long one request may take, unless the caller says.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one look for a broker may take while waiting for it.
const READY_PROBE: Duration = Duration::from_secs(1);
/// How long after the first refusal a broker that refuses is asked on: one that just starts may not
/// know its users yet.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);
/// How long after a topic was unknown, or a partition had no leader that knew of it, it is asked for again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// What a look at a topic is called where it fails.
const LOOKING: &str = "looking at topic";

/// A topic to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicSpec {
    /// Its name.
    pub name: String,
    /// How many partitions it gets.
    pub partitions: u32,
    /// How many replicas each partition gets.
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

/// One partition, as the brokers tell of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionState {
    /// Its number.
    pub partition: PartitionId,
    /// The id of the broker that leads it; `None` while it has none, and can be neither read nor
    /// written.
    pub leader: Option<i32>,
    /// The ids of the brokers that keep a copy.
    pub replicas: Vec<i32>,
    /// Those of them whose copy is up to date.
    pub in_sync: Vec<i32>,
}

/// The settings of a topic, by Kafka's names.
pub type TopicSettings = BTreeMap<String, String>;

/// Why a topic could not be made, deleted or looked at.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The request did not get through.
    #[error("{action} failed")]
    Request {
        /// What was asked for.
        action: &'static str,
        /// librdkafka's error.
        #[source]
        source: KafkaError,
    },
    /// The broker refused one topic.
    #[error("{action} {topic} was refused")]
    Topic {
        /// What was asked for.
        action: &'static str,
        /// The topic.
        topic: String,
        /// The broker's error.
        #[source]
        code: RDKafkaErrorCode,
    },
    /// No broker answered in time.
    #[error("no broker answered at {brokers} within {waited:?}{}", told(.reason.as_deref()))]
    NotReady {
        /// The bootstrap brokers.
        brokers: String,
        /// How long was waited.
        waited: Duration,
        /// What librdkafka says of it.
        reason: Option<String>,
        /// What the last try met.
        #[source]
        source: Option<Box<KafkaError>>,
    },
    /// A broker is there, and it and this client do not come together: a login was refused, or one
    /// does not trust the other's certificate.
    #[error("no connection with the broker at {brokers}: {reason}")]
    Refused {
        /// The bootstrap brokers.
        brokers: String,
        /// What librdkafka says of it, which is never a secret.
        reason: String,
    },
    /// The thread that asked was stopped.
    #[error("the runtime stopped while the broker was asked")]
    Stopped,
}

fn told(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

/// Makes, deletes and looks at topics. Its methods belong into a tokio runtime.
pub struct Admin {
    client: Arc<AdminClient<Quiet>>,
    config: ClientConfig,
    brokers: String,
    rebootstrap: Arc<Rebootstrap>,
}

impl Admin {
    /// Makes an admin client. No broker need be there yet.
    pub fn new(settings: &KafkaSettings, client_id: &str) -> Result<Self, ClientError> {
        let mut config = settings.client_config(client_id, &[], &[])?;
        // Nobody serves this client's log queue: nothing may gather there.
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
    /// [`AdminError::NotReady`] once `timeout` is over; [`AdminError::Refused`] some seconds after the
    /// broker, or this client, refused the other.
    pub async fn wait_ready(&self, timeout: Duration) -> Result<(), AdminError> {
        let started = Instant::now();
        let mut refused_since = None;
        let mut last = None;
        let probe = Probe::new(&self.config).map_err(|source| AdminError::Request {
            action: "making a client",
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
            // An error may come at once: do not spin.
            let pause = Duration::from_millis(50).saturating_sub(asked_at.elapsed());
            tokio::time::sleep(pause).await;
        }
    }

    /// Makes topics, and returns the names of those that it made. One that exists is left as it is,
    /// whatever its partitions and settings: look with [`Admin::topic_partitions`] where that matters.
    pub async fn create_topics(&self, topics: &[TopicSpec]) -> Result<Vec<String>, AdminError> {
        self.create(topics, &admin_options()).await
    }

    /// Asks the broker whether it would make these topics, and returns the names of those that it would;
    /// those that exist it would not. Makes none.
    ///
    /// # Errors
    ///
    /// The same as if they were made.
    pub async fn try_topics(&self, topics: &[TopicSpec]) -> Result<Vec<String>, AdminError> {
        let options = admin_options().validate_only(true);
        self.create(topics, &options).await
    }

    async fn create(
        &self,
        topics: &[TopicSpec],
        options: &AdminOptions,
    ) -> Result<Vec<String>, AdminError> {
        const ACTION: &str = "making topic";
        if topics.is_empty() {
            return Ok(Vec::new());
        }
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
                action: "making topics",
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

    /// Gives topics more partitions: so many from then on. One that has as many is fine.
    ///
    /// # Errors
    ///
    /// If the broker does not answer, or refuses one of them; others may have got theirs.
    pub async fn add_partitions(&self, topics: &[&str], partitions: u32) -> Result<(), AdminError> {
        const ACTION: &str = "adding partitions to topic";
        let count = usize::try_from(partitions).unwrap_or(usize::MAX);
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
        Ok(())
    }

    /// Deletes a topic. One that does not exist is fine.
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
    /// while, but nobody can read them any more.
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

    /// The topics that there are and how many partitions each has, by name. Of those that the
    /// broker guards, it tells only what this client may see.
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

    /// How many partitions a topic has; `None` if there is no such topic.
    pub async fn topic_partitions(&self, topic: &str) -> Result<Option<u32>, AdminError> {
        let found = self.metadata(LOOKING, Some(topic.to_owned())).await?;
        let mut topics = found.topics().iter();
        let topic = topics.find(|found| found.name() == topic);
        Ok(topic.map(partitions_of).transpose()?.flatten())
    }

    /// How many partitions a topic has that was just made, by this client or another: a broker may answer
    /// before it has heard of it. `None` if it has not within `patience`.
    ///
    /// # Errors
    ///
    /// If the brokers cannot be asked.
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

    /// How the partitions of a topic are, in their order; `None` if there is no such topic.
    pub async fn partition_states(
        &self,
        topic: &str,
    ) -> Result<Option<Vec<PartitionState>>, AdminError> {
        let found = self.metadata(LOOKING, Some(topic.to_owned())).await?;
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

    /// The settings of topics, defaults included. A topic is missing from the answer if it does not
    /// exist, or its settings are not for this client to see: librdkafka does not say which.
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
            action: "asking for the settings of topics",
            source,
        })?;
        let mut settings = BTreeMap::new();
        for answer in answers.into_iter().flatten() {
            let OwnedResourceSpecifier::Topic(topic) = answer.specifier else {
                continue;
            };
            if !answer.entries.is_empty() {
                let of_topic = answer.entries.into_iter();
                let told = of_topic.filter_map(|entry| Some((entry.name, entry.value?)));
                settings.insert(topic, told.collect());
            }
        }
        Ok(settings)
    }

    /// The first offset of each of these partitions, and the one that its next record will get.
    pub async fn offsets(
        &self,
        topic: &str,
        partitions: &[PartitionId],
    ) -> Result<Vec<(Offset, Offset)>, AdminError> {
        let client = Arc::clone(&self.client);
        let (topic, partitions) = (topic.to_owned(), partitions.to_vec());
        let answer = tokio::task::spawn_blocking(move || {
            let asked = partitions
                .into_iter()
                .map(|partition| offsets_of(&client, &topic, partition));
            asked.collect()
        });
        let found: Result<_, KafkaError> = answer.await.map_err(|_| AdminError::Stopped)?;
        found.map_err(|source| AdminError::Request {
            action: "asking for the offsets of a topic",
            source,
        })
    }

    /// What the brokers say of one topic, or of all.
    async fn metadata(
        &self,
        action: &'static str,
        topic: Option<String>,
    ) -> Result<Metadata, AdminError> {
        self.rebootstrap.tend(self.client.inner());
        let (client, rebootstrap) = (Arc::clone(&self.client), Arc::clone(&self.rebootstrap));
        let answer = tokio::task::spawn_blocking(move || {
            let answer = client
                .inner()
                .fetch_metadata(topic.as_deref(), REQUEST_TIMEOUT);
            if answer.is_err() {
                // This client is not polled for errors: a failed request takes their place, also one whose caller has
                // given up by now.
                rebootstrap.unreachable();
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

impl ClientContext for Quiet {}

/// How many partitions a topic has; `None` if it is not there, or no more.
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
            action: LOOKING,
            topic: topic.name().to_owned(),
            code: error.into(),
        }),
    }
}

/// The offsets of a partition. One that was made, or whose leader changed, a moment ago is asked for again.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_its_caller_gives_up_counts_as_failed_once_it_has() {
        let nobody = KafkaSettings::new("127.0.0.1:1");
        let admin = Admin::new(&nobody, "test").unwrap();
        let asked = admin.topic_partitions("orders");
        let given_up = tokio::time::timeout(Duration::from_millis(10), asked).await;
        assert!(given_up.is_err());
        let deadline = Instant::now() + 3 * REQUEST_TIMEOUT;
        while !admin.rebootstrap.is_reported() {
            assert!(
                Instant::now() < deadline,
                "the client would stay without brokers"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
