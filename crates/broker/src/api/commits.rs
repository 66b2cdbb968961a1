//! The committed offsets of consumer groups.

use std::collections::HashSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::groups::{code_of, membership, storage_failed};
use super::{Call, each_once};
use crate::access::Action;
use crate::meta::{CommittedOffset, MetaError};
use crate::server::Server;

/// The longest metadata of a committed offset, as in Kafka.
const COMMIT_METADATA_BYTES_MAX: usize = 4096;

/// Commits offsets of a group.
pub(super) fn commit(call: &Call, request: OffsetCommitRequest) -> OffsetCommitResponse {
    let server = &*call.server;
    let member = membership(
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
    );
    let allowed = if request.group_id.is_empty() {
        Err(ResponseError::InvalidGroupId)
    } else {
        call.may_use_group(&request.group_id)
            .and_then(|()| server.coordinator.check_commit(&request.group_id, &member))
    };
    let readable: Vec<_> = request
        .topics
        .iter()
        .map(|topic| allowed.and_then(|()| call.may_read(&topic.name)))
        .collect();
    let check = |readable: Result<(), ResponseError>,
                 topic: &str,
                 partition: i32,
                 metadata: Option<&StrBytes>| {
        readable?;
        if metadata.is_some_and(|metadata| metadata.len() > COMMIT_METADATA_BYTES_MAX) {
            return Err(ResponseError::OffsetMetadataTooLarge);
        }
        let known = server
            .topics
            .get(topic)
            .is_some_and(|t| t.partition(partition).is_some());
        if known {
            Ok(())
        } else {
            Err(ResponseError::UnknownTopicOrPartition)
        }
    };
    let mut commits = Vec::new();
    for (topic, &readable) in request.topics.iter().zip(&readable) {
        for partition in &topic.partitions {
            let metadata = partition.committed_metadata.as_ref();
            if check(readable, &topic.name, partition.partition_index, metadata).is_ok() {
                let committed = CommittedOffset {
                    offset: partition.committed_offset,
                    leader_epoch: partition.committed_leader_epoch,
                    metadata: metadata.map(|text| text.to_string()).unwrap_or_default(),
                };
                commits.push((&**topic.name, partition.partition_index, committed));
            }
        }
    }
    let stored = store(server, &request.group_id, commits);
    let topics = request.topics.iter().zip(&readable);
    let topics = topics.map(|(topic, &readable)| {
        let partitions = topic.partitions.iter().map(|partition| {
            let metadata = partition.committed_metadata.as_ref();
            let index = partition.partition_index;
            let outcome = check(readable, &topic.name, index, metadata).and(stored);
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code_of(outcome))
        });
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

/// Stores the offsets of a group, if there is room for it.
fn store(
    server: &Server,
    group: &str,
    commits: Vec<(&str, i32, CommittedOffset)>,
) -> Result<(), ResponseError> {
    if commits.is_empty() {
        return Ok(());
    }
    let written = match server
        .meta
        .takes_group(group, server.config.stored_groups_max)
    {
        Ok(true) => server.meta.commit_offsets(group, commits.into_iter()),
        Ok(false) => return Err(ResponseError::GroupMaxSizeReached),
        Err(error) => Err(error),
    };
    written.map_err(|error| {
        tracing::error!(%error, "offsets were not committed");
        ResponseError::KafkaStorageError
    })
}

/// A topic's name with the committed offset of each partition, or none.
type CommittedTopic = (TopicName, Vec<(i32, Option<CommittedOffset>)>);

/// The committed offsets of groups.
pub(super) fn committed(call: &Call, request: OffsetFetchRequest) -> OffsetFetchResponse {
    let version = call.head.version;
    if version >= 8 {
        let groups = each_once(request.groups, |group| group.group_id.clone());
        let groups = groups.into_iter().map(|group| {
            let asked = group.topics.map(|topics| {
                topics
                    .into_iter()
                    .map(|topic| (topic.name, topic.partition_indexes))
                    .collect()
            });
            let answer = OffsetFetchResponseGroup::default();
            let answer = match committed_of(call, &group.group_id, asked) {
                Ok(topics) => answer.with_topics(topics.into_iter().map(topic_v8).collect()),
                Err(error) => answer.with_error_code(error.code()),
            };
            answer.with_group_id(group.group_id)
        });
        return OffsetFetchResponse::default().with_groups(groups.collect());
    }
    let asked = request.topics.map(|topics| {
        topics
            .into_iter()
            .map(|topic| (topic.name, topic.partition_indexes))
            .collect()
    });
    match committed_of(call, &request.group_id, asked) {
        Ok(topics) => {
            let topics = topics.into_iter().map(|topic| topic_v1(topic, version));
            OffsetFetchResponse::default().with_topics(topics.collect())
        }
        Err(error) => {
            let code = error.code();
            let answer = OffsetFetchResponse::default();
            if version >= 2 {
                answer.with_error_code(code)
            } else {
                answer
            }
        }
    }
}

fn committed_of(
    call: &Call,
    group: &str,
    asked: Option<Vec<(TopicName, Vec<i32>)>>,
) -> Result<Vec<CommittedTopic>, ResponseError> {
    call.may_use_group(group)?;
    let mut topics =
        stored_of(&call.server, group, asked).map_err(|error| storage_failed(&error))?;
    topics.retain(|(topic, _)| call.sees(Action::Read(topic)));
    Ok(topics)
}

fn stored_of(
    server: &Server,
    group: &str,
    asked: Option<Vec<(TopicName, Vec<i32>)>>,
) -> Result<Vec<CommittedTopic>, MetaError> {
    let Some(asked) = asked else {
        let mut topics: Vec<CommittedTopic> = Vec::new();
        for (topic, partition, committed) in server.meta.offsets(group)? {
            match topics.last_mut() {
                Some((name, partitions)) if *name.0 == *topic => {
                    partitions.push((partition, Some(committed)));
                }
                _ => {
                    let name = TopicName(StrBytes::from_string(topic));
                    topics.push((name, vec![(partition, Some(committed))]));
                }
            }
        }
        return Ok(topics);
    };
    let mut seen = HashSet::new();
    asked
        .into_iter()
        .map(|(name, partitions)| {
            let partitions = partitions
                .into_iter()
                .filter(|index| seen.insert((name.clone(), *index)))
                .map(|index| Ok((index, server.meta.offset(group, &name, index)?)))
                .collect::<Result<_, MetaError>>()?;
            Ok((name, partitions))
        })
        .collect()
}

fn topic_v8((name, partitions): CommittedTopic) -> OffsetFetchResponseTopics {
    let partitions = partitions.into_iter().map(|(index, committed)| {
        let (offset, leader_epoch, metadata) = parts(committed);
        OffsetFetchResponsePartitions::default()
            .with_partition_index(index)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(leader_epoch)
            .with_metadata(metadata)
    });
    OffsetFetchResponseTopics::default()
        .with_name(name)
        .with_partitions(partitions.collect())
}

fn topic_v1((name, partitions): CommittedTopic, version: i16) -> OffsetFetchResponseTopic {
    let partitions = partitions.into_iter().map(|(index, committed)| {
        let (offset, leader_epoch, metadata) = parts(committed);
        let answer = OffsetFetchResponsePartition::default()
            .with_partition_index(index)
            .with_committed_offset(offset)
            .with_metadata(metadata);
        if version >= 5 {
            answer.with_committed_leader_epoch(leader_epoch)
        } else {
            answer
        }
    });
    OffsetFetchResponseTopic::default()
        .with_name(name)
        .with_partitions(partitions.collect())
}

fn parts(committed: Option<CommittedOffset>) -> (i64, i32, Option<StrBytes>) {
    match committed {
        Some(c) => (
            c.offset,
            c.leader_epoch,
            Some(StrBytes::from_string(c.metadata)),
        ),
        None => (-1, -1, Some(StrBytes::new())),
    }
}
