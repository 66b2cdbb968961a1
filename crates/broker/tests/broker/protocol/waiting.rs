//! Fetches and acknowledgements that wait, and the order of answers.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::*;
use waybill_broker::Stats;

use super::*;
use crate::common::*;

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
async fn a_produce_after_a_waiting_fetch_is_appended_and_ends_the_wait() {
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
