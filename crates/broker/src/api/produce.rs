//! Produce and the ids of idempotent producers.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse, ProducerId,
    TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::{Call, Refusal, Reply};
use crate::access::Action;
use crate::frame::Frame;
use crate::log::{AppendError, Appended, Partition};
use crate::stats::{BatchRefusal as Reason, add};
use crate::topics::Topic;
use waybill_wire::Malformed;
use waybill_wire::OK;
use waybill_wire::batch::{BatchError, BatchHeader, uncompressed};

static NOTHING: Bytes = Bytes::new();

/// A batch whose acknowledgement waits for a sync.
struct Unsynced {
    partition: Arc<Partition>,
    sync_to: i64,
    topic_at: usize,
    partition_at: usize,
}

/// Appends every batch immediately; the answer waits until all that must be durable is.
pub(super) fn produce(call: Call, request: ProduceRequest) -> Result<Reply, Malformed> {
    add(&call.server.counters.produce_requests, 1);
    let refusal = match (request.acks, &request.transactional_id) {
        (-1..=1, None) => None,
        (-1..=1, Some(_)) => Some(Refusal::new(
            ResponseError::TransactionalIdAuthorizationFailed,
            "this broker does not support transactions",
        )),
        _ => Some(Refusal::new(
            ResponseError::InvalidRequiredAcks,
            format!("acks must be 0, 1 or -1, not {}", request.acks),
        )),
    };
    let mut unsynced = Vec::new();
    let mut responses = Vec::with_capacity(request.topic_data.len());
    for (topic_at, data) in request.topic_data.into_iter().enumerate() {
        let topic = call.server.topics.get(&data.name);
        let denied = (!call.may(Action::Write(&data.name))).then(|| {
            Refusal::new(
                ResponseError::TopicAuthorizationFailed,
                "the login does not allow writing to this topic",
            )
        });
        let refusal = denied.as_ref().or(refusal.as_ref());
        let mut partitions = Vec::with_capacity(data.partition_data.len());
        for (partition_at, sent) in data.partition_data.into_iter().enumerate() {
            let appended = match refusal {
                Some(refusal) => Err(Refusal::new(refusal.error, refusal.message.clone())),
                None => append(&call, topic.as_deref(), sent.index, sent.records.as_ref()),
            };
            let response = PartitionProduceResponse::default()
                .with_index(sent.index)
                .with_log_append_time_ms(-1);
            partitions.push(match appended {
                Ok((partition, appended)) => {
                    let log_start = partition.log_start();
                    if let Some(sync_to) = appended.sync_to {
                        unsynced.push(Unsynced {
                            partition,
                            sync_to,
                            topic_at,
                            partition_at,
                        });
                    }
                    response
                        .with_base_offset(appended.base_offset)
                        .with_log_start_offset(log_start)
                }
                Err(refusal) => refused(response, &refusal),
            });
        }
        responses.push(
            TopicProduceResponse::default()
                .with_name(data.name)
                .with_partition_responses(partitions),
        );
    }
    if request.acks == 0 {
        return Ok(Reply::None);
    }
    let mut response = ProduceResponse::default().with_responses(responses);
    if unsynced.is_empty() {
        return call.now(&response);
    }
    // The request's own names would keep its records in memory until the sync.
    for topic in &mut response.responses {
        topic.name = TopicName(StrBytes::from_string(topic.name.to_string()));
    }
    Ok(Reply::Later(Box::pin(async move {
        for waiting in unsynced {
            if !waiting.partition.synced(waiting.sync_to).await {
                let topic = &mut response.responses[waiting.topic_at];
                let partition = &mut topic.partition_responses[waiting.partition_at];
                let index = partition.index;
                // It is in the log, but may be lost: not "surely not persisted".
                let refusal = Refusal::new(
                    ResponseError::NotEnoughReplicasAfterAppend,
                    "the records were written but could not be synced to disk",
                );
                let response = PartitionProduceResponse::default()
                    .with_index(index)
                    .with_log_append_time_ms(-1);
                *partition = refused(response, &refusal);
            }
        }
        call.head.answer(&response).map(Frame::from)
    })))
}

fn append(
    call: &Call,
    topic: Option<&Topic>,
    index: i32,
    records: Option<&Bytes>,
) -> Result<(Arc<Partition>, Appended), Refusal> {
    let partition = topic
        .and_then(|topic| topic.partition(index))
        .ok_or_else(|| {
            Refusal::new(
                ResponseError::UnknownTopicOrPartition,
                "the topic or partition does not exist",
            )
        })?;
    let records = records.unwrap_or(&NOTHING);
    let kept = BatchHeader::of_produced(records).and_then(|header| match header.is_compressed() {
        true => uncompressed(&header, records, partition.message_bytes_max()),
        false => Ok((header, records.clone())),
    });
    let (header, records) = kept.map_err(|error| {
        let (code, reason) = match error {
            BatchError::Length | BatchError::Checksum | BatchError::Undecodable => {
                (ResponseError::CorruptMessage, Reason::Corrupt)
            }
            BatchError::Expands { .. } => {
                (ResponseError::MessageTooLarge, Reason::ExpandedTooLarge)
            }
            BatchError::TooManyRecords { .. } => (ResponseError::MessageTooLarge, Reason::TooLarge),
            BatchError::Magic(_) => (
                ResponseError::UnsupportedForMessageFormat,
                Reason::Unsupported,
            ),
            BatchError::Codec => (
                ResponseError::UnsupportedCompressionType,
                Reason::Unsupported,
            ),
            BatchError::Several
            | BatchError::Count
            | BatchError::Records
            | BatchError::Transactional
            | BatchError::Control
            | BatchError::Sequence => (ResponseError::InvalidRecord, Reason::Invalid),
        };
        count_refused(call, partition, reason, &error);
        Refusal::new(code, error.to_string())
    })?;
    let appended = partition.append(&header, &records).map_err(|error| {
        let code = match &error {
            AppendError::TooLarge { .. } => {
                count_refused(call, partition, Reason::TooLarge, &error);
                ResponseError::MessageTooLarge
            }
            AppendError::DiskBound { .. } | AppendError::LowOnDisk => {
                ResponseError::PolicyViolation
            }
            AppendError::OutOfOrder => ResponseError::OutOfOrderSequenceNumber,
            AppendError::Fenced => ResponseError::InvalidProducerEpoch,
            // Producers retry: by then there may be room, or the broker was restarted.
            AppendError::Full | AppendError::Offline { .. } => ResponseError::KafkaStorageError,
            AppendError::Deleted => ResponseError::UnknownTopicOrPartition,
        };
        Refusal::new(code, error.to_string())
    })?;
    add(&call.server.counters.batches, 1);
    add(&call.server.counters.appended_bytes, header.bytes);
    Ok((Arc::clone(partition), appended))
}

/// Counts a batch that is refused, and logs who sent it.
fn count_refused(call: &Call, partition: &Partition, reason: Reason, cause: &dyn Display) {
    add(&call.server.counters.batches_refused[reason as usize], 1);
    let (address, topic) = (call.ends.peer.ip(), &partition.topic);
    tracing::warn!(%address, %topic, %cause, "refused a record batch");
}

fn refused(response: PartitionProduceResponse, refusal: &Refusal) -> PartitionProduceResponse {
    response
        .with_error_code(refusal.error.code())
        .with_error_message(Some(StrBytes::from_string(refusal.message.clone())))
        .with_base_offset(-1)
        .with_log_start_offset(-1)
}

/// Gives out a producer id. Blocks when a new block of ids is needed.
pub(super) fn init_producer_id(
    call: &Call,
    request: &InitProducerIdRequest,
) -> InitProducerIdResponse {
    let refused = |error: ResponseError| {
        InitProducerIdResponse::default()
            .with_error_code(error.code())
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
    };
    if request.transactional_id.is_some() {
        // Clients treat this one as final; others they would retry for ever.
        return refused(ResponseError::TransactionalIdAuthorizationFailed);
    }
    if !call.may(Action::ProducerId) {
        return refused(ResponseError::ClusterAuthorizationFailed);
    }
    match call.server.meta.next_producer_id() {
        Ok(id) => InitProducerIdResponse::default()
            .with_error_code(OK)
            .with_producer_id(ProducerId(id))
            .with_producer_epoch(0),
        Err(error) => {
            tracing::error!(%error, "could not allocate a producer id");
            refused(ResponseError::KafkaStorageError)
        }
    }
}
