//! The protocol frame by frame: what ordinary clients never send, or never show.

mod batches;
mod bounds;
mod damage;
mod hostile;
mod keeping;
mod memory;
mod versions;
mod waiting;

use std::fs;
use std::path::Path;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::ListOffsetsPartitionResponse;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;

use crate::common::*;

async fn create(wire: &mut Wire, name: &str, partitions: i32, settings: &[(&str, &str)]) -> i16 {
    let configs = settings.iter().map(|(name, value)| {
        CreatableTopicConfig::default()
            .with_name(StrBytes::from_string((*name).to_owned()))
            .with_value(Some(StrBytes::from_string((*value).to_owned())))
    });
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(-1)
        .with_configs(configs.collect());
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(1_000);
    wire.ask(7, &request).await.topics[0].error_code
}

fn fetch_request(topic: &str, offset: i64) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(1 << 20);
    FetchRequest::default()
        .with_max_wait_ms(60_000)
        .with_min_bytes(1)
        .with_max_bytes(10 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![
            FetchTopic::default()
                .with_topic(topic_name(topic))
                .with_partitions(vec![partition]),
        ])
}

async fn fetch(wire: &mut Wire, topic: &str, offset: i64) -> PartitionData {
    let mut answer = wire.ask(11, &fetch_request(topic, offset)).await;
    answer.responses.remove(0).partitions.remove(0)
}

/// The offset at a time, or -1 (latest) or -2 (earliest).
async fn offset_at(wire: &mut Wire, topic: &str, timestamp: i64) -> i64 {
    listed(wire, 6, topic, timestamp).await.offset
}

async fn listed(
    wire: &mut Wire,
    version: i16,
    topic: &str,
    timestamp: i64,
) -> ListOffsetsPartitionResponse {
    let partition = ListOffsetsPartition::default()
        .with_current_leader_epoch(-1)
        .with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_topics(vec![topic]);
    let mut answer = wire.ask(version, &request).await;
    answer.topics.remove(0).partitions.remove(0)
}

async fn delete_before(wire: &mut Wire, topic: &str, offset: i64) -> (i16, i64) {
    let partition = DeleteRecordsPartition::default().with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let answer = wire
        .ask(2, &DeleteRecordsRequest::default().with_topics(vec![topic]))
        .await;
    let partition = &answer.topics[0].partitions[0];
    (partition.error_code, partition.low_watermark)
}

fn code(error: ResponseError) -> i16 {
    error.code()
}

fn segments(dir: &Path, topic: &str) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir.join("logs").join(topic).join("0"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    found.sort();
    found
}
