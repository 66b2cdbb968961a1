//! Topics: making, deleting and looking at them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};

use waybill_engine::{Offset, PartitionId};

use crate::error::ClientError;
use crate::record::partition_number;
use crate::settings::KafkaSettings;

/// How long one request may take, unless the caller says.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one look for a broker may take while waiting for it.
const READY_PROBE: Duration = Duration::from_secs(1);
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
    #[error("no broker answered at {brokers} within {waited:?}")]
    NotReady {
        /// The bootstrap brokers.
        brokers: String,
        /// How long was waited.
        waited: Duration,
        /// What the last try met.
        #[source]
        source: Option<KafkaError>,
    },
    /// The thread that asked was stopped.
    #[error("the runtime stopped while the broker was asked")]
    Stopped,
}

/// Makes, deletes and looks at topics. Its methods belong into a tokio runtime.
pub struct Admin {
    client: Arc<AdminClient<Quiet>>,
    brokers: String,
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
            brokers: settings.brokers.clone(),
        })
    }

    /// Waits until a broker answers.
    pub async fn wait_ready(&self, timeout: Duration) -> Result<(), AdminError> {
        let started = Instant::now();
        let mut last = None;
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                let brokers = self.brokers.clone();
                return Err(AdminError::NotReady {
                    brokers,
                    waited: timeout,
                    source: last,
                });
            }
            let asked_at = Instant::now();
            let client = Arc::clone(&self.client);
            let probe = READY_PROBE.min(left);
            let answer = tokio::task::spawn_blocking(move || {
                client
                    .inner()
                    .fetch_metadata(None, probe)
                    .map(|found| found.brokers().len())
            });
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

    /// Makes topics. One that exists is left as it is, whatever its partitions and settings: look
    /// with [`Admin::topic_partitions`] where that matters.
    pub async fn create_topics(&self, topics: &[TopicSpec]) -> Result<(), AdminError> {
        const ACTION: &str = "making topic";
        if topics.is_empty() {
            return Ok(());
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
            .create_topics(&new, &admin_options())
            .await
            .map_err(|source| AdminError::Request {
                action: "making topics",
                source,
            })?;
        for result in results {
            match result {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
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

    /// What the brokers say of one topic, or of all.
    async fn metadata(
        &self,
        action: &'static str,
        topic: Option<String>,
    ) -> Result<Metadata, AdminError> {
        let client = Arc::clone(&self.client);
        let answer = tokio::task::spawn_blocking(move || {
            client
                .inner()
                .fetch_metadata(topic.as_deref(), REQUEST_TIMEOUT)
        });
        answer
            .await
            .map_err(|_| AdminError::Stopped)?
            .map_err(|source| AdminError::Request { action, source })
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

fn admin_options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(REQUEST_TIMEOUT))
        .operation_timeout(Some(REQUEST_TIMEOUT))
}
