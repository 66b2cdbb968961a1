//! Clients that try to withhold the memory for large requests and answers from others.

use std::time::{Duration, Instant};

use kafka_protocol::messages::*;
use tokio::io::AsyncWriteExt as _;
use waybill_broker::Broker;

use super::*;
use crate::common::*;

const MIB: usize = 1 << 20;
/// Others are served long before any time-out ends.
const SOON: Duration = Duration::from_secs(5);

/// A broker with memory for two of the largest requests, or for eight answers of 1 MiB.
async fn small_broker(dir: &std::path::Path) -> Broker {
    broker_with(dir, |config| {
        config.request_bytes_max = 4 * MIB;
        config.buffer_bytes_max = 8 * MIB + (64 << 10);
        config.fetch_bytes_max = 4 * MIB;
        config.control_buffer_bytes_max = 16 * MIB;
    })
    .await
}

/// Connections on each of which a request of API `key` was announced, of which `sent` bytes were
/// sent.
async fn announced(
    broker: &Broker,
    count: usize,
    key: u8,
    length: usize,
    sent: usize,
) -> Vec<Wire> {
    let mut wires = Vec::new();
    for _ in 0..count {
        let mut wire = Wire::connect(broker.address()).await;
        let mut bytes = (length as u32).to_be_bytes().to_vec();
        bytes.extend([0, key, 0, 9]);
        bytes.resize(sent.max(8), 0);
        let wait = tokio::time::timeout(SOON / 10, wire.stream.write_all(&bytes)).await;
        assert!(wait.is_err() || wait.unwrap().is_ok());
        wires.push(wire);
    }
    wires
}

/// Writes and reads what needs memory.
async fn assert_is_served(broker: &Broker, topic: &str) {
    let started = Instant::now();
    let mut wire = Wire::connect(broker.address()).await;
    let written = wire.produce(topic, &plain(&vec![0; 700 << 10])).await;
    assert_eq!(written.error_code, 0);
    let read = wire
        .ask(11, &fetch_request(topic, written.base_offset))
        .await;
    let records = read.responses[0].partitions[0].records.as_ref();
    assert!(records.unwrap().len() > 700 << 10);
    let many = (0..10_000).map(|n| topic_name(&format!("topic-{n}")));
    let many =
        many.map(|name| metadata_request::MetadataRequestTopic::default().with_name(Some(name)));
    let request = MetadataRequest::default().with_topics(Some(many.collect()));
    wire.ask(5, &request).await;
    let took = started.elapsed();
    assert!(took < SOON, "{took:?}");
}

#[tokio::test]
async fn an_announced_request_holds_no_memory_before_it_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let broker = small_broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let produced = announced(&broker, 20, 0, 4 * MIB, 0).await;
    let control = announced(&broker, 20, 3, MIB, 0).await;
    assert_is_served(&broker, "t").await;
    assert_eq!(broker.stats().slow_transfers, 0);
    until("they alone are left", async || {
        broker.stats().connections == 41
    })
    .await;
    drop((produced, control));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn requests_that_stop_halfway_make_room_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let broker = small_broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    // More than there is, of both kinds.
    let produced = announced(&broker, 8, 0, 4 * MIB, 3 * MIB).await;
    let control = announced(&broker, 20, 3, MIB, 900 << 10).await;
    for _ in 0..3 {
        assert_is_served(&broker, "t").await;
    }
    assert!(broker.stats().slow_transfers > 0);
    drop((produced, control));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_slow_request_holds_no_memory_that_others_need() {
    let dir = tempfile::tempdir().unwrap();
    let broker = small_broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let mut dripping = announced(&broker, 8, 0, 4 * MIB, 2 * MIB - 100).await;
    let drip = tokio::spawn(async move {
        loop {
            for wire in &mut dripping {
                // Some are closed by and by.
                let _ = wire.stream.write_all(&[0]).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    for _ in 0..3 {
        assert_is_served(&broker, "t").await;
    }
    drip.abort();
    assert!(broker.stats().slow_transfers > 0);
    assert!(broker.shutdown().await);
}

/// Twenty connections that do not read the answers to their fetches, which are more than sockets
/// take.
async fn unread(broker: &Broker, request: &FetchRequest) -> Vec<Wire> {
    let mut unread = Vec::new();
    for _ in 0..20 {
        let mut wire = Wire::connect(broker.address()).await;
        for _ in 0..60 {
            wire.send(11, request).await;
        }
        unread.push(wire);
    }
    let mut sent = 0;
    until(
        "the sockets take no more, and answers wait for memory",
        async || {
            let stats = broker.stats();
            let before = std::mem::replace(&mut sent, stats.sent_bytes);
            tokio::time::sleep(Duration::from_millis(100)).await;
            sent == before && stats.buffer_bytes == stats.buffer_bytes_max
        },
    )
    .await;
    unread
}

#[tokio::test]
async fn unread_answers_make_room_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let broker = small_broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    for topic in ["t", "large"] {
        create(&mut wire, topic, 1, &[]).await;
    }
    for _ in 0..4 {
        let written = wire.produce("large", &plain(&vec![0; 900 << 10])).await;
        assert_eq!(written.error_code, 0);
    }
    let mut small = fetch_request("large", 0);
    small.topics[0].partitions[0].partition_max_bytes = 1;
    // A batch is read whole, however little is asked for.
    for request in [fetch_request("large", 0), small] {
        let before = broker.stats().slow_transfers;
        let unread = unread(&broker, &request).await;
        for _ in 0..3 {
            assert_is_served(&broker, "t").await;
        }
        assert!(broker.stats().slow_transfers > before);
        drop(unread);
        until("they are closed", async || broker.stats().connections == 1).await;
    }
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_client_that_waits_for_memory_and_reads_nothing_blocks_no_larger_request() {
    let dir = tempfile::tempdir().unwrap();
    let broker = small_broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    create(&mut wire, "many", 500, &[]).await;
    // Answers of 10 KiB or so, which need no permit, more than sockets take; followed by the
    // beginning of a request that does.
    let mut request = fetch_request("many", 0).with_max_wait_ms(0);
    let one = request.topics[0].partitions.remove(0);
    let partitions = (0..500).map(|index| one.clone().with_partition(index));
    request.topics[0].partitions.extend(partitions);
    let mut unread = Vec::new();
    for _ in 0..10 {
        let mut wire = Wire::connect(broker.address()).await;
        for _ in 0..100 {
            wire.send(11, &request).await;
        }
        let mut begun = (4 * MIB as u32).to_be_bytes().to_vec();
        begun.extend([0, 0, 0, 9]);
        begun.resize(100 << 10, 0);
        wire.stream.write_all(&begun).await.unwrap();
        unread.push(wire);
    }
    // Memory is short for a moment.
    let produced = announced(&broker, 8, 0, 4 * MIB, 3 * MIB).await;
    for _ in 0..3 {
        assert_is_served(&broker, "t").await;
    }
    drop(produced);
    assert_is_served(&broker, "t").await;
    drop(unread);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_slow_request_is_served_if_memory_is_not_short() {
    let dir = tempfile::tempdir().unwrap();
    let broker = small_broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let request = hostile::frame_of(9, &produce_request("t", -1, &plain(&vec![1; 900 << 10])));
    let mut bytes = (request.len() as u32).to_be_bytes().to_vec();
    bytes.extend(request);
    let mut slow = Wire::connect(broker.address()).await;
    for part in bytes.chunks(bytes.len() / 10) {
        slow.stream.write_all(part).await.unwrap();
        assert_is_served(&broker, "t").await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let (_, answer) = slow.receive::<ProduceResponse>(9).await;
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    assert_eq!(broker.stats().slow_transfers, 0);
    assert!(broker.shutdown().await);
}
