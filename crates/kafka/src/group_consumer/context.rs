//! librdkafka's callbacks, and how partitions are taken and given up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{TopicPartitionList, TopicPartitionListElem};
use rdkafka::types::RDKafkaRespErr;

use super::TopicPartition;
use super::commits::Commits;
use crate::client_log::ClientLog;
use crate::partition::partition_id;
use crate::rebootstrap::Rebootstrap;

/// A pending change of the assignment.
pub(super) enum Rebalance {
    Assign(TopicPartitionList),
    Revoke(TopicPartitionList),
}

/// The callbacks that librdkafka calls while the consumer is polled.
pub(super) struct Context {
    pub(super) log: ClientLog,
    pub(super) rebootstrap: Rebootstrap,
    commits: Arc<Commits>,
    /// Pending changes, in order: at most one rebalance, since librdkafka sends none before the
    /// last one was executed.
    pub(super) rebalances: Mutex<VecDeque<Rebalance>>,
    /// The consumer is no longer polled: rebalances are executed immediately.
    pub(super) unattended: AtomicBool,
}

impl Context {
    pub(super) fn new(client_id: &str, config: &ClientConfig, commits: Arc<Commits>) -> Self {
        Self {
            log: ClientLog::new(client_id),
            rebootstrap: Rebootstrap::new(config),
            commits,
            rebalances: Mutex::default(),
            unattended: AtomicBool::new(false),
        }
    }

    pub(super) fn next_rebalance(&self) -> Option<Rebalance> {
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
        self.rebootstrap.error(&error);
        self.log.error(&error, reason);
    }

    // The library's own would be compiled, with a parser of JSON, in each crate that drops a
    // consumer. Statistics are off.
    fn stats_raw(&self, _: &[u8]) {}
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        kind: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let is_assignment = kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.unattended.load(Ordering::Acquire) {
            let result = if is_assignment {
                assign(consumer, list)
            } else {
                unassign(consumer, list)
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
            .push_back(if is_assignment {
                Rebalance::Assign(list)
            } else {
                Rebalance::Revoke(list)
            });
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        self.commits.note(result.as_ref().err());
        if let Err(error) = result {
            self.log.transient("committing offsets", &error);
        }
    }
}

pub(super) fn assign(
    consumer: &BaseConsumer<Context>,
    list: &TopicPartitionList,
) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
        RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.assign(list),
    }
}

pub(super) fn unassign(
    consumer: &BaseConsumer<Context>,
    list: &TopicPartitionList,
) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
        RebalanceProtocol::Eager | RebalanceProtocol::None => consumer.unassign(),
    }
}

pub(super) fn partitions_of(list: &TopicPartitionList) -> Vec<TopicPartition> {
    list.elements().iter().map(partition_of).collect()
}

pub(super) fn partition_of(element: &TopicPartitionListElem<'_>) -> TopicPartition {
    TopicPartition {
        topic: element.topic().to_owned(),
        partition: partition_id(element.partition()),
    }
}
