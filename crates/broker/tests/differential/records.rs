//! Records: produced, fetched, found by time, and deleted.

use bytes::Bytes;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    DeleteRecordsRequest, FetchRequest, InitProducerIdRequest, OffsetForLeaderEpochRequest,
    ProduceRequest,
};

use crate::common::{batch_of, now_ms, plain, topic_name};
use crate::{Client, Different, code, compare, is_starting};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

#[tokio::test]
async fn batches_are_accepted_and_refused_as_on_kafka() {
    compare(
        ask_to_produce,
        &[
            Different {
                question: "producing a record of tomorrow",
                embedded: r#"("OK", Some(3))"#,
                kafka: r#"("InvalidTimestamp", None)"#,
                because: "the broker does not decode the batch: its timestamps are the client's",
            },
            Different {
                question: "producing no batch",
                embedded: r#"("CorruptMessage", None)"#,
                kafka: r#"("InvalidRecord", None)"#,
                because: "no client sends that",
            },
        ],
    )
    .await;
}

async fn ask_to_produce(client: &mut Client) {
    let topic = client.topic("t", 1, &[("max.message.bytes", "2000")]).await;
    let unknown = client.name("unknown");
    let damaged = {
        let mut bytes = plain(b"damaged").to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        Bytes::from(bytes)
    };
    let twice = [plain(b"one"), plain(b"two")].concat();
    let too_few = {
        let mut bytes = plain(b"one").to_vec();
        bytes[23..27].copy_from_slice(&1_i32.to_be_bytes());
        bytes[57..61].copy_from_slice(&2_i32.to_be_bytes());
        with_checksum(bytes)
    };
    let too_many = {
        let mut bytes = plain(b"one").to_vec();
        bytes.extend_from_within(61..);
        let length = i32::try_from(bytes.len() - 12).unwrap();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        with_checksum(bytes)
    };
    let now = now_ms();
    for (question, topic, partition, acks, batch) in [
        ("one record", topic.as_str(), 0, -1, plain(b"one")),
        ("one record with acks=1", &topic, 0, 1, plain(b"one")),
        ("with acks=2", &topic, 0, 2, plain(b"one")),
        ("to an unknown partition", &topic, 1, -1, plain(b"one")),
        ("to an unknown topic", &unknown, 0, -1, plain(b"one")),
        ("a damaged batch", &topic, 0, -1, damaged),
        ("a large batch", &topic, 0, -1, plain(&[0; 3_000])),
        ("no batch", &topic, 0, -1, Bytes::new()),
        ("two batches", &topic, 0, -1, Bytes::from(twice)),
        ("fewer records than are counted", &topic, 0, -1, too_few),
        ("more records than are counted", &topic, 0, -1, too_many),
        (
            "an old record",
            &topic,
            0,
            -1,
            batch_of(-1, -1, -1, now - DAY_MS, b"old"),
        ),
        (
            "a record of tomorrow",
            &topic,
            0,
            -1,
            batch_of(-1, -1, -1, now + DAY_MS, b"new"),
        ),
    ] {
        let answer = produce(client, topic, partition, acks, &batch).await;
        client.answered(format!("producing {question}"), answer);
    }

    let topic = client.topic("counted", 1, &[]).await;
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(60_000)
        .with_producer_id((-1).into())
        .with_producer_epoch(-1);
    let answer = loop {
        let answer = client.wire.ask(4, &request).await;
        if !is_starting(answer.error_code) {
            break answer;
        }
    };
    let given = (code(answer.error_code), answer.producer_epoch);
    client.answered("a producer id", given);
    let id = *answer.producer_id;
    for (question, epoch, sequence) in [
        ("a first batch", 0, 0),
        ("its repeat", 0, 0),
        ("the next", 0, 1),
        ("one with a gap", 0, 3),
        ("one of a newer epoch that does not start at zero", 1, 2),
        ("one of a newer epoch", 1, 0),
        ("one of the older epoch", 0, 2),
        ("the newer epoch's next", 1, 1),
        ("the newer epoch's first again", 1, 0),
    ] {
        let batch = batch_of(id, epoch, sequence, now, b"counted");
        let answer = produce(client, &topic, 0, -1, &batch).await;
        client.answered(format!("an idempotent producer: {question}"), answer);
    }
    // An id that this broker never gave, in the middle of its sequence.
    let batch = batch_of(id + 10_000_000, 0, 5, now, b"strange");
    let answer = produce(client, &topic, 0, -1, &batch).await;
    client.answered("an idempotent producer: a strange one", answer);
}

/// Corrects the checksum of a batch.
fn with_checksum(mut batch: Vec<u8>) -> Bytes {
    let sum = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&sum.to_be_bytes());
    Bytes::from(batch)
}

/// The error, or the offset of the batch.
async fn produce(
    client: &mut Client,
    topic: &str,
    partition: i32,
    acks: i16,
    batch: &Bytes,
) -> (String, Option<i64>) {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(batch.clone()));
    let topic = TopicProduceData::default()
        .with_name(topic_name(topic))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![topic]);
    let answer = client.wire.ask(9, &request).await;
    let answer = &answer.responses[0].partition_responses[0];
    let offset = (answer.error_code == 0).then_some(answer.base_offset);
    (code(answer.error_code), offset)
}

#[tokio::test]
async fn records_are_fetched_found_and_deleted_as_on_kafka() {
    compare(
        ask_to_read,
        &[Different {
            question: "looking for the leader's epoch at the end",
            embedded: "-1",
            kafka: "0",
            because: "there is one epoch; clients take either",
        }],
    )
    .await;
}

async fn ask_to_read(client: &mut Client) {
    let topic = client.topic("t", 1, &[]).await;
    let unknown = client.name("unknown");
    let start = now_ms() - DAY_MS;
    for n in 0..5 {
        let batch = batch_of(-1, -1, -1, start + n * 1_000, b"v");
        assert_eq!(produce(client, &topic, 0, -1, &batch).await.0, "OK");
    }
    for (question, offset) in [
        ("below the end", 4),
        ("to a negative one", -5),
        ("beyond the end", 6),
        ("from some on", 2),
        ("less than was deleted", 1),
    ] {
        let answer = delete_records(client, &topic, 0, offset).await;
        // The first request deletes nearly all records, and they stay deleted.
        client.answered(format!("deleting {question}"), answer);
    }
    let answer = delete_records(client, &topic, 1, 0).await;
    client.answered("deleting in an unknown partition", answer);
    let answer = delete_records(client, &unknown, 0, 0).await;
    client.answered("deleting in an unknown topic", answer);

    for (question, partition, offset, epoch) in [
        ("the first record left", 0, 4, -1),
        ("a deleted record", 0, 1, -1),
        ("at the end", 0, 5, -1),
        ("beyond the end", 0, 6, -1),
        ("a negative offset", 0, -1, -1),
        ("an unknown partition", 1, 0, -1),
        ("by the leader's epoch", 0, 4, 0),
        ("by an epoch to come", 0, 4, 7),
    ] {
        let answer = fetch(client, &topic, partition, offset, epoch).await;
        client.answered(format!("fetching {question}"), answer);
    }
    let answer = fetch(client, &unknown, 0, 0, -1).await;
    client.answered("fetching from an unknown topic", answer);

    for (question, partition, timestamp) in [
        ("the end", 0, -1),
        ("the start", 0, -2),
        ("the newest", 0, -3),
        ("a time before all", 0, 0),
        ("a time in between", 0, start + 3_500),
        ("a time after all", 0, start + DAY_MS),
        ("a time unknown to any", 0, -77),
        ("an unknown partition", 1, -1),
    ] {
        let answer = client.list_offsets(&topic, partition, timestamp).await;
        let timestamp = answer.timestamp - if answer.timestamp > 0 { start } else { 0 };
        client.answered(
            format!("looking for {question}"),
            (code(answer.error_code), answer.offset, timestamp),
        );
    }

    // From version 7 on, -3 is the record with the largest timestamp.
    let mixed = client.topic("mixed", 1, &[]).await;
    let newest = client.list_offsets_as(7, &mixed, 0, -3).await;
    client.answered(
        "looking for the newest of no records",
        (code(newest.error_code), newest.offset, newest.timestamp),
    );
    for seconds in [1, 3, 3, 2] {
        let batch = batch_of(-1, -1, -1, start + seconds * 1_000, b"v");
        assert_eq!(produce(client, &mixed, 0, -1, &batch).await.0, "OK");
    }
    for (question, version) in [("before version 7", 6), ("from version 7 on", 7)] {
        let newest = client.list_offsets_as(version, &mixed, 0, -3).await;
        let timestamp = newest.timestamp - if newest.timestamp > 0 { start } else { 0 };
        client.answered(
            format!("looking for the newest {question}"),
            (code(newest.error_code), newest.offset, timestamp),
        );
    }

    let answer = client.list_offsets(&topic, 0, -1).await;
    client.answered(
        "looking for the leader's epoch at the end",
        answer.leader_epoch,
    );

    for (question, current, of) in [
        ("the epoch", -1, 0),
        ("an epoch to come", -1, 7),
        ("the epoch, as by a client ahead", 7, 0),
        ("an epoch before all", -1, -1),
    ] {
        let partition = OffsetForLeaderPartition::default()
            .with_current_leader_epoch(current)
            .with_leader_epoch(of);
        let asked = OffsetForLeaderTopic::default()
            .with_topic(topic_name(&topic))
            .with_partitions(vec![partition]);
        let request = OffsetForLeaderEpochRequest::default()
            .with_replica_id((-2).into())
            .with_topics(vec![asked]);
        let answer = client.wire.ask(3, &request).await;
        let answer = &answer.topics[0].partitions[0];
        let answer = (
            code(answer.error_code),
            answer.leader_epoch,
            answer.end_offset,
        );
        client.answered(format!("the end of {question}"), answer);
    }
}

async fn delete_records(
    client: &mut Client,
    topic: &str,
    partition: i32,
    offset: i64,
) -> (String, i64) {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(partition)
        .with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(10_000);
    let answer = client.wire.ask(2, &request).await;
    let answer = &answer.topics[0].partitions[0];
    (code(answer.error_code), answer.low_watermark)
}

/// The error, or the end, the log's start, and whether records arrived.
async fn fetch(
    client: &mut Client,
    topic: &str,
    partition: i32,
    offset: i64,
    epoch: i32,
) -> (String, Option<(i64, i64, bool)>) {
    let partition = FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(epoch)
        .with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default()
        .with_topic(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_replica_id((-1).into())
        .with_max_wait_ms(10)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic]);
    let answer = client.wire.ask(11, &request).await;
    let answer = &answer.responses[0].partitions[0];
    let has_records = answer
        .records
        .as_ref()
        .is_some_and(|records| !records.is_empty());
    let found = (answer.high_watermark, answer.log_start_offset, has_records);
    (
        code(answer.error_code),
        (answer.error_code == 0).then_some(found),
    )
}
