//! Creating, deleting and growing topics.

use std::collections::HashMap;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsRequest,
    CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::configs::{SOURCE_DEFAULT, SOURCE_TOPIC};
use super::{Call, Refusal, int, outcome};
use crate::TopicConfig;
use crate::server::{NODE, Server};
use crate::topic_config::NAMES;
use crate::topics::TopicError;
use waybill_wire::OK;

impl From<TopicError> for Refusal {
    fn from(error: TopicError) -> Self {
        let code = match error {
            TopicError::Name => ResponseError::InvalidTopicException,
            TopicError::Exists => ResponseError::TopicAlreadyExists,
            TopicError::Unknown => ResponseError::UnknownTopicOrPartition,
            TopicError::Partitions { .. } => ResponseError::InvalidPartitions,
            TopicError::Disk => ResponseError::KafkaStorageError,
        };
        Self::new(code, error.to_string())
    }
}

/// Creates topics, or validates the request only. Blocks.
pub(super) fn create(call: &Call, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let (server, version) = (&*call.server, call.head.version);
    let mut named: HashMap<&TopicName, usize> = HashMap::new();
    for topic in &request.topics {
        *named.entry(&topic.name).or_default() += 1;
    }
    let named_twice = |name: &TopicName| named.get(name).is_some_and(|&times| times > 1);
    let results = request.topics.iter().map(|topic| {
        let created = if named_twice(&topic.name) {
            Err(Refusal::new(
                ResponseError::InvalidRequest,
                "the request names the topic twice",
            ))
        } else {
            may_change(call).and_then(|()| create_one(server, topic, request.validate_only))
        };
        let (code, message) = outcome(&created);
        let result = CreatableTopicResult::default()
            .with_name(topic.name.clone())
            .with_error_code(code)
            .with_error_message(message);
        let Ok((id, partitions, config)) = created else {
            return result;
        };
        let result = if version >= 7 {
            result.with_topic_id(id)
        } else {
            result
        };
        if version < 5 {
            return result;
        }
        let configs = NAMES.iter().map(|name| {
            let value = config.get(name);
            let is_default = value == server.config.topic_defaults.get(name);
            CreatableTopicConfigs::default()
                .with_name(StrBytes::from_static_str(name))
                .with_value(value.map(StrBytes::from_string))
                .with_config_source(if is_default {
                    SOURCE_DEFAULT
                } else {
                    SOURCE_TOPIC
                })
        });
        result
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(Some(configs.collect()))
    });
    let topics: Vec<_> = results.collect();
    if !request.validate_only {
        log_created(&topics);
    }
    CreateTopicsResponse::default().with_topics(topics)
}

/// One line for all topics of a request.
fn log_created(results: &[CreatableTopicResult]) {
    let created = results.iter().filter(|result| result.error_code == 0);
    let names: Vec<&str> = created.map(|result| result.name.as_str()).collect();
    if !names.is_empty() {
        tracing::info!(
            count = names.len(),
            topics = names.join(", "),
            "created topics"
        );
    }
}

fn may_change(call: &Call) -> Result<(), Refusal> {
    call.may_administer(ResponseError::TopicAuthorizationFailed)
}

fn create_one(
    server: &Server,
    topic: &CreatableTopic,
    validate_only: bool,
) -> Result<(Uuid, i32, TopicConfig), Refusal> {
    let partitions = if topic.assignments.is_empty() {
        if !matches!(topic.replication_factor, -1 | 1) {
            return Err(Refusal::new(
                ResponseError::InvalidReplicationFactor,
                "this broker runs alone: the replication factor must be 1",
            ));
        }
        match topic.num_partitions {
            -1 => i32::try_from(server.config.default_partitions).unwrap_or(i32::MAX),
            partitions => partitions,
        }
    } else {
        let mut numbers: Vec<i32> = topic
            .assignments
            .iter()
            .map(|assigned| assigned.partition_index)
            .collect();
        numbers.sort_unstable();
        let to_us = topic
            .assignments
            .iter()
            .all(|assigned| is_ours(&assigned.broker_ids));
        if !to_us || numbers.iter().copied().ne(0..int(numbers.len())) {
            return Err(refused_assignment());
        }
        int(numbers.len())
    };
    let defaults = &server.config.topic_defaults;
    let mut config = *defaults;
    for setting in &topic.configs {
        config
            .set(&setting.name, setting.value.as_deref(), defaults)
            .map_err(|error| Refusal::new(ResponseError::InvalidConfig, error.to_string()))?;
    }
    if validate_only {
        server.topics.check_new(&topic.name, partitions)?;
        return Ok((Uuid::nil(), partitions, config));
    }
    let created = server.topics.create(&topic.name, partitions, config)?;
    Ok((created.id, partitions, config))
}

fn is_ours(brokers: &[BrokerId]) -> bool {
    brokers == [NODE]
}

fn refused_assignment() -> Refusal {
    Refusal::new(
        ResponseError::InvalidReplicaAssignment,
        format!(
            "partitions can be assigned to broker {} only, each once",
            *NODE
        ),
    )
}

/// Deletes topics. Blocks.
pub(super) fn delete(call: &Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
    let (server, version) = (&*call.server, call.head.version);
    let asked = if version >= 6 {
        request.topics
    } else {
        let by_name = |name| DeleteTopicState::default().with_name(Some(name));
        request.topic_names.into_iter().map(by_name).collect()
    };
    let responses = asked.into_iter().map(|asked| {
        let (name, id) = match asked.name {
            Some(name) => {
                let id = server
                    .topics
                    .get(&name)
                    .map_or(Uuid::nil(), |topic| topic.id);
                (Some(name), id)
            }
            None => {
                let topic = server.topics.by_id(asked.topic_id);
                let name = topic.map(|t| TopicName(StrBytes::from_string(t.name.to_string())));
                (name, asked.topic_id)
            }
        };
        let deleted = match &name {
            Some(name) => {
                may_change(call).and_then(|()| server.topics.delete(name).map_err(Refusal::from))
            }
            None => Err(Refusal::new(
                ResponseError::UnknownTopicId,
                "the topic does not exist",
            )),
        };
        let (code, message) = outcome(&deleted);
        let result = DeletableTopicResult::default()
            .with_name(name)
            .with_error_code(code);
        let result = if version >= 5 {
            result.with_error_message(message)
        } else {
            result
        };
        if version >= 6 {
            result.with_topic_id(id)
        } else {
            result
        }
    });
    let responses = responses.collect();
    DeleteTopicsResponse::default().with_responses(responses)
}

/// Adds partitions to topics. Blocks.
pub(super) fn create_partitions(
    call: &Call,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let validate_only = request.validate_only;
    let results = request.topics.into_iter().map(|topic| {
        let grown = may_change(call).and_then(|()| grow_one(&call.server, &topic, validate_only));
        let (code, message) = outcome(&grown);
        debug_assert!(code == OK || message.is_some());
        CreatePartitionsTopicResult::default()
            .with_name(topic.name)
            .with_error_code(code)
            .with_error_message(message)
    });
    let results = results.collect();
    CreatePartitionsResponse::default().with_results(results)
}

fn grow_one(
    server: &Server,
    topic: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<(), Refusal> {
    let known = server.topics.get(&topic.name).ok_or(TopicError::Unknown)?;
    let now = known.partitions.len();
    server.topics.check_growth(now, topic.count)?;
    if let Some(assignments) = &topic.assignments {
        let added = usize::try_from(topic.count)
            .unwrap_or(0)
            .saturating_sub(now);
        let to_us = assignments
            .iter()
            .all(|assigned| is_ours(&assigned.broker_ids));
        if !to_us || assignments.len() != added {
            return Err(refused_assignment());
        }
    }
    if validate_only {
        return Ok(());
    }
    Ok(server.topics.grow(&topic.name, topic.count)?)
}
