//! The starts and ends of logs, offsets by time, and deleting records.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{
    DeleteRecordsRequest, DeleteRecordsResponse, ListOffsetsRequest, ListOffsetsResponse,
    OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};

use super::Call;
use crate::log::{Condition, Partition, ReadError};
use crate::server::Server;
use crate::topics::Topic;
use waybill_wire::OK;
use waybill_wire::batch::LEADER_EPOCH;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// The record with the largest timestamp.
const MAX_TIMESTAMP: i64 = -3;
/// Since this version clients may ask for it.
const MAX_TIMESTAMP_SINCE: i16 = 7;

/// The partition, if it can be used.
fn usable(topic: Option<&Topic>, index: i32) -> Result<&Arc<Partition>, ResponseError> {
    let partition = topic
        .and_then(|topic| topic.partition(index))
        .ok_or(ResponseError::UnknownTopicOrPartition)?;
    match partition.condition() {
        Condition::Online | Condition::Full => Ok(partition),
        Condition::Offline => Err(ResponseError::KafkaStorageError),
        Condition::Deleted => Err(ResponseError::UnknownTopicOrPartition),
    }
}

/// Whether a request may have to read a whole segment.
pub(super) fn reads_much(request: &ListOffsetsRequest) -> bool {
    let asked = request.topics.iter().flat_map(|topic| &topic.partitions);
    asked
        .into_iter()
        .any(|wanted| wanted.timestamp == MAX_TIMESTAMP)
}

/// The earliest or latest offset, the first at or after a time, or that of the largest timestamp.
pub(super) fn list_offsets(
    call: &Call,
    version: i16,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let topics = request.topics.into_iter().map(|asked| {
        let topic = call.server.topics.get(&asked.name);
        let allowed = call.may_read(&asked.name);
        let partitions = asked.partitions.into_iter().map(|wanted| {
            let found = allowed
                .and_then(|()| usable(topic.as_deref(), wanted.partition_index))
                .and_then(|partition| offset_at(partition, version, wanted.timestamp));
            let answer = ListOffsetsPartitionResponse::default()
                .with_partition_index(wanted.partition_index)
                .with_timestamp(-1);
            match found {
                Ok(Some((offset, timestamp))) => answer
                    .with_offset(offset)
                    .with_timestamp(timestamp)
                    .with_leader_epoch(if wanted.current_leader_epoch >= 0 {
                        LEADER_EPOCH
                    } else {
                        -1
                    }),
                Ok(None) => answer.with_offset(-1),
                Err(error) => answer.with_offset(-1).with_error_code(error.code()),
            }
        });
        let partitions = partitions.collect();
        ListOffsetsTopicResponse::default()
            .with_name(asked.name)
            .with_partitions(partitions)
    });
    let topics = topics.collect();
    ListOffsetsResponse::default().with_topics(topics)
}

fn offset_at(
    partition: &Partition,
    version: i16,
    timestamp: i64,
) -> Result<Option<(i64, i64)>, ResponseError> {
    let found = match timestamp {
        LATEST => return Ok(Some((partition.high_watermark(), -1))),
        EARLIEST => return Ok(Some((partition.log_start(), -1))),
        MAX_TIMESTAMP if version >= MAX_TIMESTAMP_SINCE => partition.largest_timestamp(),
        0.. => partition.offset_at_time(timestamp),
        _ => return Err(ResponseError::UnsupportedVersion),
    };
    found.map_err(|error| match error {
        ReadError::OutOfRange => ResponseError::OffsetOutOfRange,
        ReadError::Offline | ReadError::Io(_) => {
            tracing::error!(
                %error, topic = %partition.topic, partition = partition.index,
                "a log cannot be read"
            );
            ResponseError::KafkaStorageError
        }
        ReadError::Damaged(_) => ResponseError::CorruptMessage,
        ReadError::Deleted => ResponseError::UnknownTopicOrPartition,
    })
}

/// Moves log starts. Blocks.
pub(super) fn delete_records(call: &Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let server = &*call.server;
    let error = ResponseError::TopicAuthorizationFailed;
    let allowed = call.may_administer(error).map_err(|refused| refused.error);
    let topics = request.topics.into_iter().map(|asked| {
        let topic = server.topics.get(&asked.name);
        let partitions = asked.partitions.into_iter().map(|wanted| {
            let deleted = allowed
                .and_then(|()| usable(topic.as_deref(), wanted.partition_index))
                .and_then(|partition| delete_before(server, partition, wanted.offset));
            let answer = DeleteRecordsPartitionResult::default()
                .with_partition_index(wanted.partition_index);
            match deleted {
                Ok(log_start) => answer.with_low_watermark(log_start).with_error_code(OK),
                Err(error) => answer.with_low_watermark(-1).with_error_code(error.code()),
            }
        });
        let partitions = partitions.collect();
        DeleteRecordsTopicResult::default()
            .with_name(asked.name)
            .with_partitions(partitions)
    });
    let topics = topics.collect();
    DeleteRecordsResponse::default().with_topics(topics)
}

fn delete_before(
    server: &Server,
    partition: &Arc<Partition>,
    offset: i64,
) -> Result<i64, ResponseError> {
    let end = partition.high_watermark();
    let offset = if offset == -1 { end } else { offset };
    if !(0..=end).contains(&offset) {
        return Err(ResponseError::OffsetOutOfRange);
    }
    let topic = server.topics.get(&partition.topic);
    let topic = topic.ok_or(ResponseError::UnknownTopicOrPartition)?;
    // Stored first: records that a client knows as deleted must not come back.
    let log_start = offset.max(partition.log_start());
    let remembered = server
        .meta
        .put_log_start(*topic.id.as_bytes(), partition.index, log_start);
    if let Err(error) = remembered {
        tracing::error!(%error, "a log start was not written");
        return Err(ResponseError::KafkaStorageError);
    }
    partition.delete_records(offset).map_err(|error| {
        tracing::error!(
            %error, topic = %partition.topic, partition = partition.index,
            "segments were not deleted"
        );
        ResponseError::KafkaStorageError
    })
}

/// The end of an epoch. There is one epoch, and it has not ended.
pub(super) fn offset_for_leader_epoch(
    call: &Call,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let topics = request.topics.into_iter().map(|asked| {
        let topic = call.server.topics.get(&asked.topic);
        let allowed = call.may_read(&asked.topic);
        let partitions = asked.partitions.into_iter().map(|wanted| {
            let answer = EpochEndOffset::default()
                .with_partition(wanted.partition)
                .with_leader_epoch(-1)
                .with_end_offset(-1);
            match allowed.and_then(|()| usable(topic.as_deref(), wanted.partition)) {
                Err(error) => answer.with_error_code(error.code()),
                Ok(_) if wanted.current_leader_epoch > LEADER_EPOCH => {
                    answer.with_error_code(ResponseError::UnknownLeaderEpoch.code())
                }
                Ok(partition) if wanted.leader_epoch == LEADER_EPOCH => answer
                    .with_leader_epoch(LEADER_EPOCH)
                    .with_end_offset(partition.high_watermark()),
                Ok(_) => answer,
            }
        });
        let partitions = partitions.collect();
        OffsetForLeaderTopicResult::default()
            .with_topic(asked.topic)
            .with_partitions(partitions)
    });
    let topics = topics.collect();
    OffsetForLeaderEpochResponse::default().with_topics(topics)
}
