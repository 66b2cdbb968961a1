//! The protocol frame by frame: what ordinary clients never send, or never show.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Encodable, StrBytes};
use rdkafka::producer::FutureRecord;
use rdkafka::util::Timeout;
use tokio::io::AsyncWriteExt;
use waybill_broker::{Broker, StartError, Stats};

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
    let partition = ListOffsetsPartition::default()
        .with_current_leader_epoch(-1)
        .with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let answer = wire
        .ask(6, &ListOffsetsRequest::default().with_topics(vec![topic]))
        .await;
    answer.topics[0].partitions[0].offset
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

#[tokio::test]
async fn versions_that_are_too_new_get_the_protocols_own_error() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let known = wire.ask(3, &ApiVersionsRequest::default()).await;
    assert_eq!(known.error_code, 0);

    // ApiVersions of the future: answered in version 0, with everything that is supported.
    wire.send_frame(&[0, 18, 0, 99, 0, 0, 0, 7, 1, 2, 3]).await;
    let (correlation_id, answer) = wire.receive::<ApiVersionsResponse>(0).await;
    assert_eq!(
        (correlation_id, answer.error_code),
        (7, code(ResponseError::UnsupportedVersion))
    );
    assert_eq!(answer.api_keys.len(), known.api_keys.len());

    // An API that the broker has not, but whose answer has a place for an error.
    let answer = wire.ask(0, &ConsumerGroupHeartbeatRequest::default()).await;
    assert_eq!(answer.error_code, code(ResponseError::UnsupportedVersion));

    // Others end the connection, as in Kafka; the broker goes on.
    for (key, version) in [(0_i16, 2_i16), (1, 12), (1, 99), (999, 0), (-1, -1)] {
        let mut wire = Wire::connect(broker.address()).await;
        let header = [
            key.to_be_bytes(),
            version.to_be_bytes(),
            [0, 0],
            [0, 1],
            [0xff, 0xff],
        ];
        wire.send_frame(&header.concat()).await;
        assert_eq!(wire.frame().await, None, "API {key} version {version}");
    }
    assert_eq!(
        wire.ask(0, &ApiVersionsRequest::default()).await.error_code,
        0
    );
    assert_eq!(broker.stats().malformed, 5);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn every_version_that_is_offered_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    wire.produce("t", &plain(b"x")).await;
    let offered = wire.ask(3, &ApiVersionsRequest::default()).await;
    let versions = |key: ApiKey| {
        let api = offered
            .api_keys
            .iter()
            .find(|api| api.api_key == key as i16)
            .unwrap();
        api.min_version..=api.max_version
    };
    for version in 4..=*versions(ApiKey::Fetch).end() {
        let request = fetch_request("t", 0).with_session_epoch(if version < 7 { -1 } else { 0 });
        let answer = wire.ask(version, &request).await;
        assert_eq!(
            answer.responses[0].partitions[0].high_watermark, 1,
            "v{version}"
        );
        assert!(
            answer.responses[0].partitions[0]
                .records
                .as_ref()
                .is_some_and(|r| !r.is_empty())
        );
    }
    for version in 3..=*versions(ApiKey::Produce).end() {
        let answer = wire
            .ask(version, &produce_request("t", 1, &plain(b"y")))
            .await;
        assert_eq!(
            answer.responses[0].partition_responses[0].error_code, 0,
            "v{version}"
        );
    }
    for version in versions(ApiKey::Metadata) {
        let topic = |name| MetadataRequestTopic::default().with_name(Some(topic_name(name)));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic("t"), topic("missing")]))
            .with_allow_auto_topic_creation(true);
        let answer = wire.ask(version, &request).await;
        assert_eq!(answer.topics[0].partitions.len(), 1, "v{version}");
        assert_eq!(
            answer.topics[1].error_code,
            code(ResponseError::UnknownTopicOrPartition)
        );
        assert_eq!(answer.brokers[0].port, i32::from(broker.address().port()));
    }
    for version in versions(ApiKey::FindCoordinator) {
        let key = StrBytes::from_static_str("g");
        let request = if version >= 4 {
            FindCoordinatorRequest::default().with_coordinator_keys(vec![key])
        } else {
            FindCoordinatorRequest::default().with_key(key)
        };
        wire.ask(version, &request).await;
    }
    for version in versions(ApiKey::JoinGroup) {
        let request = JoinGroupRequest::default().with_session_timeout_ms(-5);
        let answer = wire.ask(version, &request).await;
        assert_eq!(
            answer.error_code,
            code(ResponseError::InvalidGroupId),
            "v{version}"
        );
    }
    for version in versions(ApiKey::SyncGroup) {
        let answer = wire.ask(version, &SyncGroupRequest::default()).await;
        assert_eq!(
            answer.error_code,
            code(ResponseError::UnknownMemberId),
            "v{version}"
        );
    }
    for version in versions(ApiKey::Heartbeat) {
        let answer = wire.ask(version, &HeartbeatRequest::default()).await;
        assert_eq!(
            answer.error_code,
            code(ResponseError::UnknownMemberId),
            "v{version}"
        );
    }
    for version in versions(ApiKey::LeaveGroup) {
        wire.ask(version, &LeaveGroupRequest::default()).await;
    }
    for version in versions(ApiKey::OffsetCommit) {
        wire.ask(version, &OffsetCommitRequest::default()).await;
    }
    for version in versions(ApiKey::OffsetFetch) {
        let request = OffsetFetchRequest::default();
        wire.ask(
            version,
            &if (2..8).contains(&version) {
                request.with_topics(None)
            } else {
                request
            },
        )
        .await;
    }
    for version in versions(ApiKey::DescribeGroups) {
        let request = DescribeGroupsRequest::default().with_groups(vec![GroupId::default()]);
        assert_eq!(
            &*wire.ask(version, &request).await.groups[0].group_state,
            "Dead"
        );
    }
    for version in versions(ApiKey::ListGroups) {
        wire.ask(version, &ListGroupsRequest::default()).await;
    }
    for version in versions(ApiKey::InitProducerId) {
        let request = InitProducerIdRequest::default().with_transactional_id(None);
        assert!(wire.ask(version, &request).await.producer_id.0 >= 0);
    }
    for version in versions(ApiKey::DescribeCluster) {
        assert_eq!(
            wire.ask(version, &DescribeClusterRequest::default())
                .await
                .brokers
                .len(),
            1
        );
    }
    for version in versions(ApiKey::ListOffsets) {
        let request = ListOffsetsRequest::default();
        wire.ask(version, &request).await;
    }
    for version in versions(ApiKey::OffsetForLeaderEpoch) {
        wire.ask(version, &OffsetForLeaderEpochRequest::default())
            .await;
    }
    for version in versions(ApiKey::DescribeConfigs) {
        wire.ask(version, &DescribeConfigsRequest::default()).await;
    }
    for version in versions(ApiKey::CreateTopics) {
        wire.ask(version, &CreateTopicsRequest::default()).await;
    }
    for version in versions(ApiKey::DeleteTopics) {
        wire.ask(version, &DeleteTopicsRequest::default()).await;
    }
    for version in versions(ApiKey::CreatePartitions) {
        wire.ask(version, &CreatePartitionsRequest::default()).await;
    }
    for version in versions(ApiKey::DeleteRecords) {
        wire.ask(version, &DeleteRecordsRequest::default()).await;
    }
    for version in versions(ApiKey::DeleteGroups) {
        wire.ask(version, &DeleteGroupsRequest::default()).await;
    }
    for version in versions(ApiKey::IncrementalAlterConfigs) {
        wire.ask(version, &IncrementalAlterConfigsRequest::default())
            .await;
    }
    assert_eq!(broker.stats().malformed, 0);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_batch_is_kept_as_it_was_sent_but_for_its_offset_and_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let batch = plain(b"first");
    wire.produce("t", &batch).await;
    wire.produce("t", &batch).await;
    let records = fetch(&mut wire, "t", 1).await.records.unwrap();
    assert_eq!(records[..8], 1_i64.to_be_bytes());
    assert_eq!(records[8..12], batch[8..12]);
    assert_eq!(records[12..16], 0_i32.to_be_bytes());
    assert_eq!(records[16..], batch[16..]);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn batches_that_are_damaged_old_or_too_large_are_refused_by_their_own_error() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("max.message.bytes", "1000")]).await;
    let good = plain(b"x");
    let with = |at: usize, byte: u8| {
        let mut bad = good.to_vec();
        bad[at] = byte;
        bad
    };
    let cases = [
        (with(65, 0xff), ResponseError::CorruptMessage),
        (good[..30].to_vec(), ResponseError::CorruptMessage),
        (Vec::new(), ResponseError::CorruptMessage),
        (with(16, 1), ResponseError::UnsupportedForMessageFormat),
        (
            [&good[..], &good[..]].concat(),
            ResponseError::InvalidRecord,
        ),
        (plain(&[0; 2_000]).to_vec(), ResponseError::MessageTooLarge),
    ];
    for (batch, expected) in cases {
        let answer = wire.produce("t", &batch).await;
        assert_eq!(answer.error_code, code(expected), "{expected:?}");
        assert!(answer.error_message.is_some());
    }
    assert_eq!(
        wire.produce("missing", &good).await.error_code,
        code(ResponseError::UnknownTopicOrPartition)
    );
    let answer = wire.ask(9, &produce_request("t", 5, &good)).await;
    let answer = &answer.responses[0].partition_responses[0];
    assert_eq!(answer.error_code, code(ResponseError::InvalidRequiredAcks));
    assert_eq!(
        offset_at(&mut wire, "t", -1).await,
        0,
        "nothing of it was appended"
    );
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_repeated_batch_gets_its_first_offset_also_after_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let at = now_ms();
    let sequence = |n: i32| batch_of(42, 0, n, at, b"once");
    let mut broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(
        &mut wire,
        "t",
        1,
        &[("flush.messages", "1"), ("segment.bytes", "1024")],
    )
    .await;
    for n in 0..40 {
        assert_eq!(
            wire.produce("t", &sequence(n)).await.base_offset,
            i64::from(n)
        );
    }
    for index_is_lost in [false, true] {
        assert!(broker.shutdown().await);
        if index_is_lost {
            for entry in fs::read_dir(dir.path().join("logs/t/0")).unwrap() {
                let path = entry.unwrap().path();
                if path
                    .extension()
                    .is_some_and(|extension| extension == "index")
                {
                    fs::remove_file(path).unwrap();
                }
            }
        }
        broker = self::broker(dir.path()).await;
        let mut wire = Wire::connect(broker.address()).await;
        for n in 35..40 {
            let repeated = wire.produce("t", &sequence(n)).await;
            assert_eq!(
                (repeated.error_code, repeated.base_offset),
                (0, i64::from(n))
            );
        }
        let out_of_order = code(ResponseError::OutOfOrderSequenceNumber);
        assert_eq!(
            wire.produce("t", &sequence(34)).await.error_code,
            out_of_order
        );
        assert_eq!(
            wire.produce("t", &sequence(41)).await.error_code,
            out_of_order
        );
        assert_eq!(offset_at(&mut wire, "t", -1).await, 40);
    }
    let mut wire = Wire::connect(broker.address()).await;
    let newer = batch_of(42, 1, 0, at, b"newer");
    assert_eq!(wire.produce("t", &newer).await.base_offset, 40);
    let fenced = wire.produce("t", &sequence(40)).await.error_code;
    assert_eq!(fenced, code(ResponseError::InvalidProducerEpoch));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_torn_tail_is_cut_at_the_last_whole_batch() {
    let dir = tempfile::tempdir().unwrap();
    let mut broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("flush.messages", "1")]).await;
    for n in 0..10_u8 {
        wire.produce("t", &plain(&[n])).await;
    }
    let batch = plain(b"torn");
    let mut whole = batch.to_vec();
    whole[..8].copy_from_slice(&10_i64.to_be_bytes());
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for torn in [
        &whole[..30],
        &whole[..whole.len() - 1],
        &damaged,
        &[0; 4096],
    ] {
        assert!(broker.shutdown().await);
        let path = segments(dir.path(), "t").remove(0);
        let before = fs::metadata(&path).unwrap().len();
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, torn).unwrap();
        drop(file);
        broker = self::broker(dir.path()).await;
        assert_eq!(fs::metadata(&path).unwrap().len(), before);
        let mut wire = Wire::connect(broker.address()).await;
        assert_eq!(offset_at(&mut wire, "t", -1).await, 10);
    }
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(wire.produce("t", &plain(b"next")).await.base_offset, 10);
    assert_eq!(read(broker.address(), "t", 1, 11).await.len(), 11);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_waiting_fetch_is_woken_by_the_append() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut producer = Wire::connect(broker.address()).await;
    let mut consumer = Wire::connect(broker.address()).await;
    for (topic, flush) in [("fast", "9223372036854775807"), ("synced", "1")] {
        create(&mut producer, topic, 1, &[("flush.messages", flush)]).await;
        let mut hops = Vec::new();
        for n in 0..500 {
            consumer.send(11, &fetch_request(topic, n)).await;
            until("the fetch waits", async || {
                broker.stats().fetch_waits > broker.stats().produce_requests
            })
            .await;
            let started = Instant::now();
            producer
                .send(9, &produce_request(topic, -1, &plain(b"x")))
                .await;
            let (_, answer) = consumer.receive::<FetchResponse>(11).await;
            hops.push(started.elapsed());
            assert_eq!(answer.responses[0].partitions[0].high_watermark, n + 1);
            producer.receive::<ProduceResponse>(9).await;
        }
        hops.sort_unstable();
        println!(
            "hop on the wire, {topic} topic: p50 {:?}, p90 {:?}, p99 {:?}",
            hops[250], hops[450], hops[495]
        );
    }
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_fetch_waits_for_its_minimum_of_bytes_or_the_end_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut producer = Wire::connect(broker.address()).await;
    let mut consumer = Wire::connect(broker.address()).await;
    create(&mut producer, "t", 1, &[]).await;
    let bytes = plain(b"x").len() as i32;
    consumer
        .send(11, &fetch_request("t", 0).with_min_bytes(3 * bytes))
        .await;
    for _ in 0..3 {
        producer.produce("t", &plain(b"x")).await;
    }
    let (_, answer) = consumer.receive::<FetchResponse>(11).await;
    let records = answer.responses[0].partitions[0].records.clone().unwrap();
    assert_eq!(records.len(), 3 * bytes as usize);

    let started = Instant::now();
    let answer = consumer
        .ask(11, &fetch_request("t", 3).with_max_wait_ms(200))
        .await;
    assert!(started.elapsed() >= Duration::from_millis(200));
    let partition = &answer.responses[0].partitions[0];
    assert_eq!((partition.error_code, partition.high_watermark), (0, 3));
    assert!(partition.records.as_ref().is_none_or(Bytes::is_empty));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_fetch_keeps_to_its_limits_but_always_makes_progress() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("segment.bytes", "4000")]).await;
    for n in 0..100_u8 {
        wire.produce("t", &plain(&[n; 500])).await;
    }
    let bytes = plain(&[0; 500]).len();
    let mut limited = fetch_request("t", 0);
    limited.topics[0].partitions[0].partition_max_bytes = 2 * bytes as i32 + 100;
    let answer = wire.ask(11, &limited).await;
    let records = answer.responses[0].partitions[0].records.clone().unwrap();
    assert_eq!(records.len(), 2 * bytes, "whole batches only");
    for max_bytes in [1, 70, 0] {
        limited.max_bytes = max_bytes;
        let answer = wire.ask(11, &limited).await;
        let records = answer.responses[0].partitions[0].records.clone().unwrap();
        assert_eq!(
            records.len(),
            bytes,
            "one batch, although it is larger than {max_bytes}"
        );
    }
    // Every offset is found, in closed segments too.
    for offset in 0..100 {
        let records = fetch(&mut wire, "t", offset).await.records.unwrap();
        assert_eq!(records[..8], offset.to_be_bytes());
        assert_eq!(
            records[records.len() - 2],
            offset.max(i64::from(records[records.len() - 2])) as u8
        );
    }
    for (offset, expected) in [
        (101, ResponseError::OffsetOutOfRange),
        (-1, ResponseError::OffsetOutOfRange),
    ] {
        assert_eq!(
            fetch(&mut wire, "t", offset).await.error_code,
            code(expected)
        );
    }
    let unknown = fetch(&mut wire, "missing", 0).await.error_code;
    assert_eq!(unknown, code(ResponseError::UnknownTopicOrPartition));
    let session = wire
        .ask(11, &fetch_request("t", 0).with_session_id(9))
        .await;
    assert_eq!(
        session.error_code,
        code(ResponseError::FetchSessionIdNotFound)
    );
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn answers_leave_in_the_order_of_their_requests() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("flush.messages", "1")]).await;
    let mut sent = Vec::new();
    for n in 0..300 {
        sent.push(match n % 3 {
            0 => wire.send(9, &produce_request("t", -1, &plain(b"x"))).await,
            1 => wire.send(11, &fetch_request("t", n / 3)).await,
            _ => wire.send(3, &ApiVersionsRequest::default()).await,
        });
    }
    let mut answered = Vec::new();
    for n in 0..300 {
        answered.push(match n % 3 {
            0 => wire.receive::<ProduceResponse>(9).await.0,
            1 => wire.receive::<FetchResponse>(11).await.0,
            _ => wire.receive::<ApiVersionsResponse>(3).await.0,
        });
    }
    assert_eq!(answered, sent);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_produce_behind_a_waiting_fetch_is_appended_and_ends_the_wait() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    wire.send(11, &fetch_request("t", 0)).await;
    wire.send(9, &produce_request("t", -1, &plain(b"x"))).await;
    let (_, fetched) = wire.receive::<FetchResponse>(11).await;
    assert_eq!(fetched.responses[0].partitions[0].high_watermark, 1);
    wire.receive::<ProduceResponse>(9).await;
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn produce_requests_that_wait_for_the_disk_share_its_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("flush.messages", "1")]).await;
    let before = broker.stats().syncs;
    let (count, at_once) = (2_000, 100);
    for _ in 0..count / at_once {
        for _ in 0..at_once {
            wire.send(9, &produce_request("t", -1, &plain(b"x"))).await;
        }
        for _ in 0..at_once {
            let (_, answer) = wire.receive::<ProduceResponse>(9).await;
            assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
        }
    }
    let Stats {
        syncs, sync_time, ..
    } = broker.stats();
    println!(
        "{count} synced produce requests shared {} syncs, {sync_time:?}",
        syncs - before
    );
    assert!(syncs - before < count / 2);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn retention_deletes_closed_segments_by_size_and_by_age() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.retention_interval = Duration::from_millis(50);
    })
    .await;
    let mut wire = Wire::connect(broker.address()).await;
    let by_size = [
        ("segment.bytes", "2000"),
        ("retention.bytes", "4000"),
        ("retention.ms", "-1"),
    ];
    create(&mut wire, "size", 1, &by_size).await;
    for n in 0..100_u8 {
        wire.produce("size", &plain(&[n; 400])).await;
    }
    until("the log is short", async || {
        segments(dir.path(), "size").len() <= 4
    })
    .await;
    let earliest = offset_at(&mut wire, "size", -2).await;
    assert!((80..100).contains(&earliest), "{earliest}");
    assert_eq!(fetch(&mut wire, "size", earliest).await.error_code, 0);
    let gone = fetch(&mut wire, "size", earliest - 1).await.error_code;
    assert_eq!(gone, code(ResponseError::OffsetOutOfRange));

    // These records are of 1970, the last one is not.
    create(&mut wire, "age", 1, &[("retention.ms", "60000")]).await;
    for n in 0..10_u8 {
        wire.produce("age", &batch_of(-1, -1, -1, 1_000, &[n]))
            .await;
    }
    until("all is gone", async || {
        offset_at(&mut wire, "age", -2).await == 10
    })
    .await;
    let fresh = plain(b"fresh");
    assert_eq!(wire.produce("age", &fresh).await.base_offset, 10);
    assert_eq!(fetch(&mut wire, "age", 10).await.high_watermark, 11);
    assert!(broker.shutdown().await);
    let broker = self::broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(offset_at(&mut wire, "age", -2).await, 10);
    assert_eq!(offset_at(&mut wire, "age", -1).await, 11);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn deleted_records_stay_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("segment.bytes", "2000")]).await;
    for n in 0..100_u8 {
        wire.produce("t", &plain(&[n; 400])).await;
    }
    let full = broker.stats().log_bytes;
    assert_eq!(delete_before(&mut wire, "t", 50).await, (0, 50));
    assert_eq!(
        delete_before(&mut wire, "t", 20).await,
        (0, 50),
        "it never moves back"
    );
    let too_far = delete_before(&mut wire, "t", 101).await;
    assert_eq!(too_far, (code(ResponseError::OffsetOutOfRange), -1));
    assert_eq!(offset_at(&mut wire, "t", -2).await, 50);
    assert_eq!(offset_at(&mut wire, "t", 0).await, 50, "by time, too");
    let gone = fetch(&mut wire, "t", 49).await.error_code;
    assert_eq!(gone, code(ResponseError::OffsetOutOfRange));
    assert!(broker.stats().log_bytes <= full / 2 + 2_000);
    assert!(broker.shutdown().await);

    let broker = self::broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(offset_at(&mut wire, "t", -2).await, 50);
    assert_eq!(delete_before(&mut wire, "t", -1).await, (0, 100));
    assert_eq!(
        broker.stats().log_bytes,
        0,
        "an active segment without a record to keep goes too"
    );
    assert_eq!(wire.produce("t", &plain(b"x")).await.base_offset, 100);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_topic_at_its_disk_bound_refuses_records_for_good_and_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let bound = [
        ("waybill.disk.bytes.max", "10000"),
        ("segment.bytes", "2000"),
    ];
    create(&mut wire, "t", 1, &bound).await;
    let mut taken = 0;
    let refused = loop {
        let answer = wire.produce("t", &plain(&[0; 400])).await;
        if answer.error_code != 0 {
            break answer;
        }
        taken += 1;
    };
    assert_eq!(refused.error_code, code(ResponseError::PolicyViolation));
    assert!(
        refused
            .error_message
            .unwrap()
            .contains("waybill.disk.bytes.max")
    );
    assert!(broker.stats().log_bytes <= 10_000 && taken > 15);
    assert_eq!(offset_at(&mut wire, "t", -2).await, 0);

    let producer = producer(broker.address(), &[]);
    let record = FutureRecord::<(), _>::to("t").payload(&[0; 400][..]);
    let started = Instant::now();
    let (error, _) = producer
        .send(record, Timeout::After(BOUND))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("PolicyViolation"), "{error}");
    assert!(started.elapsed() < BOUND / 4, "it was not tried again");

    assert_eq!(delete_before(&mut wire, "t", 10).await, (0, 10));
    assert_eq!(
        wire.produce("t", &plain(&[0; 400])).await.error_code,
        0,
        "space was freed"
    );
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_changed_setting_takes_effect_and_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let alter = |name: &'static str, value: &'static str| {
        let setting = AlterableConfig::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(Some(StrBytes::from_static_str(value)));
        let resource = AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(StrBytes::from_static_str("t"))
            .with_configs(vec![setting]);
        IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
    };
    let answer = wire.ask(1, &alter("max.message.bytes", "100")).await;
    assert_eq!(answer.responses[0].error_code, 0);
    let answer = wire.ask(1, &alter("max.message.bites", "100")).await;
    assert_eq!(
        answer.responses[0].error_code,
        code(ResponseError::InvalidConfig)
    );
    assert!(broker.shutdown().await);
    let broker = self::broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let too_large = wire.produce("t", &plain(&[0; 100])).await.error_code;
    assert_eq!(too_large, code(ResponseError::MessageTooLarge));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_second_broker_on_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut config = waybill_broker::BrokerConfig::new(dir.path());
    config.listen = "127.0.0.1:0".parse().unwrap();
    let refused = Broker::start(config.clone()).await.unwrap_err();
    assert!(
        matches!(&refused, StartError::Locked { path } if path == dir.path()),
        "{refused}"
    );
    config.listen = broker.address();
    config.data_dir = dir.path().join("other");
    assert!(matches!(
        Broker::start(config).await,
        Err(StartError::Listen { .. })
    ));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn frames_and_connections_beyond_their_limits_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.connections_max = 3;
        config.request_bytes_max = 1 << 20;
        config.control_request_bytes_max = 10_000;
    })
    .await;
    let mut wire = Wire::connect(broker.address()).await;
    wire.ask(0, &ApiVersionsRequest::default()).await;
    let lengths_and_starts: [(i32, &[u8]); 4] = [
        (i32::MAX, &[]),
        (-1, &[]),
        (1 << 21, &[0, 0, 0, 9]),
        // Only produce requests may be as large as this.
        (20_000, &[0, 3, 0, 9]),
    ];
    for (length, start) in lengths_and_starts {
        let mut wire = Wire::connect(broker.address()).await;
        wire.stream
            .write_all(&[&length.to_be_bytes(), start].concat())
            .await
            .unwrap();
        assert_eq!(wire.frame().await, None, "a frame of {length} bytes");
    }
    until("they are closed", async || broker.stats().connections == 1).await;
    let mut second = Wire::connect(broker.address()).await;
    let mut third = Wire::connect(broker.address()).await;
    second.ask(0, &ApiVersionsRequest::default()).await;
    third.ask(0, &ApiVersionsRequest::default()).await;
    let mut fourth = Wire::connect(broker.address()).await;
    assert_eq!(fourth.frame().await, None);
    wire.ask(0, &ApiVersionsRequest::default()).await;
    assert!(broker.shutdown().await);
}

/// A small deterministic source of numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

#[tokio::test]
async fn random_cut_and_changed_frames_end_their_connection_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.stall_timeout = Duration::from_secs(1)
    })
    .await;
    let mut witness = Wire::connect(broker.address()).await;
    create(&mut witness, "t", 1, &[]).await;
    let offered = witness
        .ask(3, &ApiVersionsRequest::default())
        .await
        .api_keys;
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);

    // Something valid of each kind, to be spoiled.
    let mut valid: Vec<Vec<u8>> = Vec::new();
    let mut add = |bytes: Vec<u8>| valid.push(bytes);
    add(frame_of(9, &produce_request("t", -1, &plain(b"x"))));
    add(frame_of(11, &fetch_request("t", 0).with_max_wait_ms(0)));
    add(frame_of(12, &MetadataRequest::default()));
    add(frame_of(
        9,
        &JoinGroupRequest::default().with_protocol_type(StrBytes::from_static_str("c")),
    ));
    add(frame_of(8, &OffsetCommitRequest::default()));
    add(frame_of(7, &CreateTopicsRequest::default()));

    for round in 0..3_000 {
        let mut bytes = match round % 3 {
            0 => {
                // Any bytes, mostly behind the header of a request that exists.
                let mut bytes: Vec<u8> = (0..numbers.below(200))
                    .map(|_| numbers.below(256) as u8)
                    .collect();
                let api = &offered[numbers.below(offered.len())];
                let versions = (api.max_version - api.min_version) as usize + 1;
                let version = api.min_version + numbers.below(versions) as i16;
                if bytes.len() > 12 && numbers.below(10) > 0 {
                    bytes[..2].copy_from_slice(&api.api_key.to_be_bytes());
                    bytes[2..4].copy_from_slice(&version.to_be_bytes());
                    bytes[8..10].copy_from_slice(&[0, 0]);
                }
                bytes
            }
            _ => {
                let mut bytes = valid[numbers.below(valid.len())].clone();
                for _ in 0..=numbers.below(3) {
                    let at = numbers.below(bytes.len());
                    bytes[at] = [0, 0xff, 0x7f, 0x80, numbers.below(256) as u8][numbers.below(5)];
                }
                if round % 3 == 2 {
                    bytes.truncate(numbers.below(bytes.len() + 1));
                }
                bytes
            }
        };
        // No request may wait, or be one that a valid request could be kept waiting by.
        if bytes.get(..2) == Some(&[0, 1]) {
            bytes.truncate(20);
        }
        let mut wire = Wire::connect(broker.address()).await;
        wire.send_frame(&bytes).await;
        let _ = wire.stream.shutdown().await;
        let _ = wire.frame().await;
    }
    until("all are closed", async || broker.stats().connections == 1).await;
    assert_eq!(
        witness
            .ask(3, &ApiVersionsRequest::default())
            .await
            .error_code,
        0
    );
    assert!(broker.stats().malformed > 1_000, "{:?}", broker.stats());
    assert!(broker.shutdown().await);
}

/// A request as it is framed, without its length.
fn frame_of<R: kafka_protocol::protocol::Request>(version: i16, request: &R) -> Vec<u8> {
    let mut frame = Vec::new();
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .encode(&mut frame, R::header_version(version))
        .unwrap();
    request.encode(&mut frame, version).unwrap();
    frame
}

#[tokio::test]
async fn a_partition_whose_disk_fails_goes_offline_and_acknowledges_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    let settings = [("flush.messages", "1"), ("segment.bytes", "2000")];
    create(&mut wire, "lost", 1, &settings).await;
    create(&mut wire, "kept", 1, &settings).await;
    // A directory that is gone takes no new segment.
    fs::remove_dir_all(dir.path().join("logs/lost")).unwrap();
    let mut outcomes = Vec::new();
    for _ in 0..10 {
        outcomes.push(wire.produce("lost", &plain(&[0; 400])).await.error_code);
    }
    let failed = outcomes.iter().position(|&outcome| outcome != 0).unwrap();
    let expected = code(ResponseError::KafkaStorageError);
    assert!(
        outcomes[failed..]
            .iter()
            .all(|&outcome| outcome == expected),
        "{outcomes:?}"
    );
    let failure = tokio::time::timeout(BOUND, broker.failed()).await.unwrap();
    assert!(failure.to_string().contains("topic lost"), "{failure}");
    assert_eq!(fetch(&mut wire, "lost", 0).await.error_code, expected);
    assert_eq!(
        wire.produce("kept", &plain(b"x")).await.error_code,
        0,
        "others go on"
    );
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn closed_segments_that_lost_their_index_are_read_once_and_get_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("segment.bytes", "2000")]).await;
    for n in 0..40_u8 {
        wire.produce("t", &plain(&[n; 400])).await;
    }
    let indexes = || {
        let segments = segments(dir.path(), "t");
        segments
            .iter()
            .map(|path| path.with_extension("index"))
            .collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert!(broker.shutdown().await);
        assert!(indexes().iter().all(|path| path.exists()));
        indexes()
            .iter()
            .for_each(|path| fs::remove_file(path).unwrap());
        broker = self::broker(dir.path()).await;
        let (_active, closed) = indexes()
            .split_last()
            .map(|(a, c)| (a.clone(), c.to_vec()))
            .unwrap();
        assert!(closed.len() > 5 && closed.iter().all(|path| path.exists()));
        assert_eq!(read(broker.address(), "t", 1, 40).await.len(), 40);
    }
    assert!(broker.shutdown().await);
}
