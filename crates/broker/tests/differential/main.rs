//! The same requests to the embedded broker and to Apache Kafka, frame by frame: they must get the
//! same answers, but for those that a test lists as different, with the reason. A difference that
//! has gone must leave its list.
//!
//! Apache Kafka is the one that `WAYBILL_TEST_BROKERS` names (`HOST:PORT`). Without it these are
//! skipped.

#[allow(dead_code, reason = "the rest is for the broker's own tests")]
#[path = "../broker/common.rs"]
mod common;
mod groups;
mod records;
mod topics;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, Ordering};

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::ListOffsetsPartitionResponse;
use kafka_protocol::messages::{
    CreateTopicsRequest, DeleteTopicsRequest, DescribeGroupsRequest, FindCoordinatorRequest,
    ListOffsetsRequest,
};
use kafka_protocol::protocol::StrBytes;

use common::{Wire, broker, now_ms, topic_name, until};

/// A question that the two answer differently: its name, the embedded broker's answer, Kafka's, and
/// why it is left so.
struct Different {
    question: &'static str,
    embedded: &'static str,
    kafka: &'static str,
    #[expect(dead_code, reason = "for readers of the list")]
    because: &'static str,
}

/// Asks one broker, and keeps its answers under the names of the questions.
struct Client {
    wire: Wire,
    /// Begins every name of this test and of no other.
    prefix: String,
    topics: Vec<String>,
    answers: BTreeMap<String, String>,
}

impl Client {
    async fn new(address: SocketAddr, prefix: &str) -> Self {
        Self {
            wire: Wire::connect(address).await,
            prefix: prefix.to_owned(),
            topics: Vec::new(),
            answers: BTreeMap::new(),
        }
    }

    fn answered(&mut self, question: impl Into<String>, answer: impl Debug) {
        let before = self.answers.insert(question.into(), format!("{answer:?}"));
        assert_eq!(before, None, "a question is asked once");
    }

    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn group(&self, name: &str) -> GroupId {
        GroupId(text(&self.name(name)))
    }

    /// Makes a topic and waits until it can be used. Returns its name.
    async fn topic(&mut self, name: &str, partitions: i32, settings: &[(&str, &str)]) -> String {
        let name = self.name(name);
        self.topics.push(name.clone());
        let request = create_request(&name, partitions, 1, settings);
        let answer = self.wire.ask(7, &request).await;
        assert_eq!(code(answer.topics[0].error_code), "OK");
        until("the topic can be used", async || {
            let answers = [
                self.list_offsets(&name, 0, -1).await,
                self.list_offsets(&name, partitions - 1, -1).await,
            ];
            answers.iter().all(|answer| answer.error_code == 0)
        })
        .await;
        name
    }

    /// Waits until the coordinator of a group is there. The first group of all makes it.
    async fn coordinator(&mut self, group: &str) {
        let group = self.group(group);
        let find = FindCoordinatorRequest::default().with_coordinator_keys(vec![group.0.clone()]);
        let describe = DescribeGroupsRequest::default().with_groups(vec![group]);
        until("the group has a coordinator", async || {
            let found = self.wire.ask(4, &find).await.coordinators[0].error_code;
            found == 0 && !is_starting(self.wire.ask(5, &describe).await.groups[0].error_code)
        })
        .await;
    }

    async fn list_offsets(
        &mut self,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> ListOffsetsPartitionResponse {
        self.list_offsets_as(6, topic, partition, timestamp).await
    }

    async fn list_offsets_as(
        &mut self,
        version: i16,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> ListOffsetsPartitionResponse {
        let partition = ListOffsetsPartition::default()
            .with_partition_index(partition)
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp);
        let topic = ListOffsetsTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default()
            .with_replica_id((-1).into())
            .with_topics(vec![topic]);
        let mut answer = self.wire.ask(version, &request).await;
        answer.topics.remove(0).partitions.remove(0)
    }

    async fn delete_topics(&mut self) {
        let topics: Vec<String> = self.topics.drain(..).collect();
        self.wire.ask(6, &delete_request(&topics)).await;
    }
}

/// Asks both brokers the same, and compares.
async fn compare(ask: impl AsyncFn(&mut Client), different: &[Different]) {
    let Some(kafka) = apache_kafka() else {
        println!("SKIPPED: the comparison with Apache Kafka: WAYBILL_TEST_BROKERS names none");
        return;
    };
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let prefix = format!("same-{}-{}-{number}", std::process::id(), now_ms());
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut of_embedded = Client::new(broker.address(), &prefix).await;
    ask(&mut of_embedded).await;
    let mut of_kafka = Client::new(kafka, &prefix).await;
    ask(&mut of_kafka).await;
    of_kafka.delete_topics().await;
    assert!(broker.shutdown().await);

    let found: Vec<_> = of_embedded
        .answers
        .iter()
        .map(|(question, answer)| {
            (
                question.as_str(),
                answer.as_str(),
                of_kafka.answers[question].as_str(),
            )
        })
        .filter(|(_, embedded, kafka)| embedded != kafka)
        .collect();
    let mut listed: Vec<_> = different
        .iter()
        .map(|different| (different.question, different.embedded, different.kafka))
        .collect();
    listed.sort_unstable();
    assert_eq!(found, listed, "(question, embedded broker, Apache Kafka)");
    assert_eq!(of_embedded.answers.len(), of_kafka.answers.len());
}

fn apache_kafka() -> Option<SocketAddr> {
    let address = std::env::var("WAYBILL_TEST_BROKERS")
        .ok()
        .filter(|address| !address.is_empty())?;
    let mut found = address
        .to_socket_addrs()
        .expect("WAYBILL_TEST_BROKERS is one HOST:PORT");
    found.next()
}

fn create_request(
    name: &str,
    partitions: i32,
    replication: i16,
    settings: &[(&str, &str)],
) -> CreateTopicsRequest {
    let configs = settings.iter().map(|(name, value)| {
        CreatableTopicConfig::default()
            .with_name(text(name))
            .with_value(Some(text(value)))
    });
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(replication)
        .with_configs(configs.collect());
    CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(10_000)
}

fn delete_request(names: &[String]) -> DeleteTopicsRequest {
    let topic = |name: &String| DeleteTopicState::default().with_name(Some(topic_name(name)));
    DeleteTopicsRequest::default()
        .with_topics(names.iter().map(topic).collect())
        .with_timeout_ms(10_000)
}

/// Whether a broker says that it is not ready yet.
fn is_starting(code: i16) -> bool {
    let starting = [
        ResponseError::CoordinatorLoadInProgress,
        ResponseError::CoordinatorNotAvailable,
        ResponseError::NotCoordinator,
    ];
    starting.iter().any(|error| error.code() == code)
}

/// An error code by its name.
fn code(code: i16) -> String {
    ResponseError::try_from_code(code).map_or_else(|| "OK".to_owned(), |error| format!("{error:?}"))
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
