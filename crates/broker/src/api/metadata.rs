//! Metadata and the location of topics and groups: everything is on the one node.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::find_coordinator_response::Coordinator as CoordinatorAnswer;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    DescribeClusterResponse, FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest,
    MetadataResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::{Call, NO_OPERATIONS, Reply, each_once};
use crate::access::Action;
use crate::log::{Condition, Partition};
use crate::server::{Ends, NODE, Server};
use crate::topics::{Topic, TopicError};
use waybill_wire::Malformed;
use waybill_wire::OK;
use waybill_wire::batch::LEADER_EPOCH;

/// Coordinators of consumer groups, and of transactions.
const KEY_TYPE_GROUP: i8 = 0;

/// Topics and their location.
pub(super) fn metadata(
    call: &Call,
    bytes: usize,
    mut request: MetadataRequest,
) -> Result<Reply, Malformed> {
    let asked = request.topics.take();
    request.topics =
        asked.map(|topics| each_once(topics, |topic| (topic.name.clone(), topic.topic_id)));
    let creates = call.server.config.auto_create_topics
        && call.sees(Action::Administer)
        && (request.allow_auto_topic_creation || call.head.version < 4);
    let is_missing = |name: &TopicName| call.server.topics.get(name).is_none();
    let missing: Vec<TopicName> = match &request.topics {
        Some(topics) if creates => topics
            .iter()
            .filter_map(|topic| topic.name.clone())
            .filter(is_missing)
            .collect(),
        _ => Vec::new(),
    };
    if missing.is_empty() {
        return call.answer(bytes, move |call| describe(call, &request));
    }
    call.blocking(move |call| {
        let config = &call.server.config;
        let partitions = i32::try_from(config.default_partitions).unwrap_or(i32::MAX);
        for name in missing {
            match call
                .server
                .topics
                .create(&name, partitions, config.topic_defaults)
            {
                Ok(_) => tracing::info!(topic = %*name, "created a topic that a client asked for"),
                Err(TopicError::Exists) => {}
                Err(error) => tracing::warn!(%error, topic = %*name, "could not create a topic"),
            }
        }
        describe(call, &request)
    })
}

fn describe(call: &Call, request: &MetadataRequest) -> MetadataResponse {
    let (server, version) = (&*call.server, call.head.version);
    let (host, port) = server.advertised(call.ends);
    let broker = MetadataResponseBroker::default()
        .with_node_id(NODE)
        .with_host(host)
        .with_port(port);
    // In version 0 an empty list means all topics.
    let asked = request
        .topics
        .as_ref()
        .filter(|topics| version > 0 || !topics.is_empty());
    let topics = match asked {
        None => server
            .topics
            .all()
            .iter()
            .filter(|topic| call.sees_topic(&topic.name))
            .map(|topic| known(topic, version))
            .collect(),
        Some(asked) => asked
            .iter()
            .map(|asked| {
                let topic = match &asked.name {
                    Some(name) => server.topics.get(name),
                    None => server.topics.by_id(asked.topic_id),
                };
                let visible = topic.filter(|topic| call.sees_topic(&topic.name));
                match visible {
                    Some(topic) => known(&topic, version),
                    None => {
                        let error = match &asked.name {
                            Some(name) => call
                                .may_see(name)
                                .err()
                                .unwrap_or(ResponseError::UnknownTopicOrPartition),
                            None => ResponseError::UnknownTopicId,
                        };
                        let topic = MetadataResponseTopic::default()
                            .with_error_code(error.code())
                            .with_topic_authorized_operations(NO_OPERATIONS)
                            // Only newer versions can do without a name.
                            .with_name(
                                asked.name.clone().or((version < 12).then(Default::default)),
                            );
                        if version >= 10 {
                            topic.with_topic_id(asked.topic_id)
                        } else {
                            topic
                        }
                    }
                }
            })
            .collect(),
    };
    MetadataResponse::default()
        .with_brokers(vec![broker])
        .with_cluster_id(Some(server.cluster_id.clone()))
        .with_controller_id(NODE)
        .with_topics(topics)
        .with_cluster_authorized_operations(NO_OPERATIONS)
}

fn known(topic: &Topic, version: i16) -> MetadataResponseTopic {
    let partition = |partition: &Arc<Partition>| {
        let (error, offline) = match partition.condition() {
            Condition::Offline => (ResponseError::KafkaStorageError.code(), vec![NODE]),
            Condition::Online | Condition::Full | Condition::Deleted => (OK, Vec::new()),
        };
        let answer = MetadataResponsePartition::default()
            .with_error_code(error)
            .with_partition_index(partition.index)
            .with_leader_id(NODE)
            .with_replica_nodes(vec![NODE])
            .with_isr_nodes(vec![NODE]);
        let answer = if version >= 7 {
            answer.with_leader_epoch(LEADER_EPOCH)
        } else {
            answer
        };
        if version >= 5 {
            answer.with_offline_replicas(offline)
        } else {
            answer
        }
    };
    let answer = MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(
            topic.name.to_string(),
        ))))
        .with_partitions(topic.partitions.iter().map(partition).collect())
        .with_topic_authorized_operations(NO_OPERATIONS);
    if version >= 10 {
        answer.with_topic_id(topic.id)
    } else {
        answer
    }
}

/// The coordinator of a group: this broker.
pub(super) fn find_coordinator(
    call: &Call,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let version = call.head.version;
    let (host, port) = call.server.advertised(call.ends);
    let is_group = request.key_type == KEY_TYPE_GROUP;
    // Clients treat these errors as final; others they would retry for ever.
    let outcome_of = |key: &str| {
        let (error, message) = match is_group {
            true if call.may(Action::Group(key)) => return (OK, None),
            true => (
                ResponseError::GroupAuthorizationFailed,
                "the login does not allow this group",
            ),
            false => (
                ResponseError::TransactionalIdAuthorizationFailed,
                "this broker does not support transactions",
            ),
        };
        (error.code(), Some(StrBytes::from_static_str(message)))
    };
    if version < 4 {
        let (code, message) = outcome_of(&request.key);
        let answer = FindCoordinatorResponse::default()
            .with_error_code(code)
            .with_node_id(NODE)
            .with_host(host)
            .with_port(port);
        return if version >= 1 {
            answer.with_error_message(message)
        } else {
            answer
        };
    }
    let coordinators = request.coordinator_keys.into_iter().map(|key| {
        let (code, message) = outcome_of(&key);
        CoordinatorAnswer::default()
            .with_key(key)
            .with_node_id(NODE)
            .with_host(host.clone())
            .with_port(port)
            .with_error_code(code)
            .with_error_message(message)
    });
    FindCoordinatorResponse::default().with_coordinators(coordinators.collect())
}

/// The cluster of one.
pub(super) fn describe_cluster(
    server: &Server,
    ends: Ends,
    version: i16,
) -> DescribeClusterResponse {
    let (host, port) = server.advertised(ends);
    let broker = DescribeClusterBroker::default()
        .with_broker_id(NODE)
        .with_host(host)
        .with_port(port);
    let answer = DescribeClusterResponse::default()
        .with_cluster_id(server.cluster_id.clone())
        .with_controller_id(NODE)
        .with_brokers(vec![broker])
        .with_cluster_authorized_operations(NO_OPERATIONS);
    if version >= 1 {
        answer.with_endpoint_type(1)
    } else {
        answer
    }
}
