//! Frames that no client sends, and too many of them.

use std::time::Duration;

use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Encodable, StrBytes};
use tokio::io::AsyncWriteExt;
use waybill_broker::OWN_CONNECTIONS_MAX;

use super::*;
use crate::common::*;

#[tokio::test]
async fn oversized_frames_are_refused_and_idle_connections_block_no_client() {
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
    wire.ask(0, &ApiVersionsRequest::default()).await;
    let mut fourth = Wire::connect(broker.address()).await;
    fourth.ask(0, &ApiVersionsRequest::default()).await;
    assert_eq!(second.frame().await, None, "the longest idle one");
    let stats = broker.stats();
    let per_address = (
        stats.connections_per_address,
        stats.connections_per_address_max,
    );
    assert_eq!(per_address, (3, 750));
    for mut other in [wire, third, fourth] {
        other.ask(0, &ApiVersionsRequest::default()).await;
    }
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_that_waits_for_records_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.idle_timeout = Duration::from_millis(200);
    })
    .await;
    let mut waiting = Wire::connect(broker.address()).await;
    create(&mut waiting, "t", 1, &[]).await;
    let fetch = fetch_request("t", 0).with_max_wait_ms(60_000);
    waiting.send(11, &fetch).await;
    let mut idle = Wire::connect(broker.address()).await;
    assert_eq!(idle.frame().await, None);
    let mut producer = Wire::connect(broker.address()).await;
    producer.produce("t", &plain(b"x")).await;
    assert!(waiting.frame().await.is_some());
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_silent_connection_is_closed_before_an_idle_one() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.stall_timeout = Duration::from_millis(300);
    })
    .await;
    let mut used = Wire::connect(broker.address()).await;
    used.ask(0, &ApiVersionsRequest::default()).await;
    let mut silent = Wire::connect(broker.address()).await;
    assert_eq!(silent.frame().await, None);
    used.ask(0, &ApiVersionsRequest::default()).await;
    assert!(broker.shutdown().await);
}

/// A produce request as it travels, in two halves.
fn halves() -> (Vec<u8>, Vec<u8>) {
    let request = frame_of(9, &produce_request("t", -1, &plain(&[1; 10_000])));
    let mut bytes = (request.len() as i32).to_be_bytes().to_vec();
    bytes.extend(request);
    let rest = bytes.split_off(bytes.len() / 2);
    (bytes, rest)
}

#[tokio::test]
async fn a_connection_with_a_partial_request_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| config.connections_max = 2).await;
    let mut sending = Wire::connect(broker.address()).await;
    create(&mut sending, "t", 1, &[]).await;
    let (first, rest) = halves();
    let received = broker.stats().received_bytes;
    sending.stream.write_all(&first).await.unwrap();
    until("half of the request arrived", async || {
        broker.stats().received_bytes == received + first.len() as u64
    })
    .await;
    // It has been silent for longer, but it is not idle.
    let mut idle = Wire::connect(broker.address()).await;
    idle.ask(0, &ApiVersionsRequest::default()).await;
    let mut new = Wire::connect(broker.address()).await;
    new.ask(0, &ApiVersionsRequest::default()).await;
    assert_eq!(idle.frame().await, None, "the idle one gives way");
    sending.stream.write_all(&rest).await.unwrap();
    assert!(sending.frame().await.is_some(), "its request is answered");
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_partial_request_holds_a_connection_for_a_bounded_time() {
    // The length alone, cut; half a request.
    for sent in [vec![0; 3], halves().0] {
        for is_wanted in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let broker = broker_with(dir.path(), |config| {
                config.connections_max = 1;
                config.stall_timeout = Duration::from_millis(500);
            })
            .await;
            let started = std::time::Instant::now();
            let mut half = Wire::connect(broker.address()).await;
            half.stream.write_all(&sent).await.unwrap();
            until("it is there", async || {
                broker.stats().received_bytes == sent.len() as u64
            })
            .await;
            if is_wanted {
                // Others are turned away until then, and get its place.
                until("another one is served", async || {
                    let mut other = Wire::connect(broker.address()).await;
                    other.send(0, &ApiVersionsRequest::default()).await;
                    other.frame().await.is_some()
                })
                .await;
            }
            assert_eq!(half.frame().await, None);
            let held = started.elapsed();
            assert!(held >= Duration::from_millis(500), "{held:?}");
            assert!(held < BOUND / 2, "{held:?}");
            assert!(broker.shutdown().await);
        }
    }
}

/// A fetch of some partitions of a topic, each named so often, that waits for as long as the broker
/// allows.
fn long_fetch(topic: &str, partitions: i32, times: usize) -> FetchRequest {
    let mut request = fetch_request(topic, 0).with_max_wait_ms(i32::MAX);
    let asked = &mut request.topics[0].partitions;
    let one = asked.remove(0);
    for index in 0..partitions {
        let partition = one.clone().with_partition(index);
        asked.extend(std::iter::repeat_n(partition, times));
    }
    request
}

#[tokio::test]
async fn waiting_fetches_hold_no_memory_that_other_requests_need() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut other = Wire::connect(broker.address()).await;
    create(&mut other, "t", 1, &[]).await;
    // Almost 1 MiB each, and together more than the memory for large control requests.
    let request = long_fetch("t", 1, 37_000);
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let mut wire = Wire::connect(broker.address()).await;
        wire.send(11, &request).await;
        waiting.push(wire);
        until("it waits", async || {
            broker.stats().fetch_waits == waiting.len() as u64
        })
        .await;
    }
    let at_once = request.clone().with_max_wait_ms(0);
    let answer = tokio::time::timeout(BOUND / 4, other.ask(11, &at_once)).await;
    let answer = answer.expect("another one is answered meanwhile");
    assert_eq!(answer.responses[0].partitions.len(), 1);
    other.produce("t", &plain(b"x")).await;
    for mut wire in waiting {
        let (_, answer) = wire.receive::<FetchResponse>(11).await;
        assert_eq!(answer.responses[0].partitions[0].high_watermark, 1);
    }
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_fetch_of_very_many_partitions_waits_for_a_second_at_most() {
    const PARTITIONS: i32 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(create(&mut wire, "t", PARTITIONS, &[]).await, 0);
    let started = std::time::Instant::now();
    let answer = wire.ask(11, &long_fetch("t", PARTITIONS, 1)).await;
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_eq!(answer.responses[0].partitions.len(), PARTITIONS as usize);
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
async fn malformed_frames_end_only_their_connection() {
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
                // Any bytes, mostly after the header of a request that exists.
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
        // No request may wait for records, or delay a valid request.
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
pub fn frame_of<R: kafka_protocol::protocol::Request>(version: i16, request: &R) -> Vec<u8> {
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
async fn slow_requests_block_no_other_client() {
    const CONNECTIONS: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| config.connections_max = CONNECTIONS).await;
    let mut quiet = Wire::connect(broker.address()).await;
    create(&mut quiet, "t", 1, &[]).await;
    let address = broker.address();
    let drip = tokio::spawn(async move {
        let mut dripping = Vec::new();
        for _ in 1..CONNECTIONS {
            let mut wire = Wire::connect(address).await;
            let announced = [0, 0x10, 0, 0, 0, 0, 0, 9, 0, 0];
            wire.stream.write_all(&announced).await.unwrap();
            dripping.push(wire);
        }
        loop {
            for wire in &mut dripping {
                // Some are closed by and by.
                let _ = wire.stream.write_all(&[0]).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    until("all connections are used", async || {
        broker.stats().connections == CONNECTIONS as u64
    })
    .await;
    // Until then a request may be arriving quickly.
    tokio::time::sleep(waybill_connections::SLOW_AFTER + Duration::from_millis(100)).await;
    let mut kept = Vec::new();
    until("new ones are served", async || {
        let mut wire = Wire::connect(address).await;
        wire.send(0, &ApiVersionsRequest::default()).await;
        let is_served = wire.frame().await.is_some();
        kept.push(wire);
        is_served
    })
    .await;
    quiet.ask(0, &ApiVersionsRequest::default()).await;
    drip.abort();
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_full_listener_still_accepts_clients_of_its_own_process() {
    const CONNECTIONS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.connections_max = CONNECTIONS;
        config.advertised = Some(("public.example".to_owned(), 9092));
    })
    .await;
    let mut busy = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut wire = Wire::connect(broker.address()).await;
        wire.stream.write_all(&[0, 0, 0, 9, 0]).await.unwrap();
        busy.push(wire);
    }
    until("the listener is full", async || {
        let mut wire = Wire::connect(broker.address()).await;
        wire.send(0, &ApiVersionsRequest::default()).await;
        wire.frame().await.is_none()
    })
    .await;
    let own = broker.own_address();
    let mut wire = Wire::connect(own).await;
    let metadata = wire.ask(4, &MetadataRequest::default()).await;
    let node = &metadata.brokers[0];
    assert_eq!(
        (node.host.as_str(), node.port),
        ("127.0.0.1", own.port().into())
    );
    let stats = broker.stats();
    assert_eq!(stats.connections, CONNECTIONS as u64);
    assert_eq!(
        (stats.own_connections, stats.own_connections_max),
        (1, OWN_CONNECTIONS_MAX as u64)
    );
    assert!(broker.shutdown().await);
}
