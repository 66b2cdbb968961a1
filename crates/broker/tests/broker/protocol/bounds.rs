//! Statistics: how much of each bound is in use.

use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;
use tokio::io::AsyncWriteExt as _;
use waybill_broker::Stats;

use super::*;
use crate::common::*;

const KIB: u64 = 1 << 10;

/// The use of each bound, and the bound.
fn uses(stats: &Stats) -> [(u64, u64); 5] {
    [
        (stats.buffer_bytes, stats.buffer_bytes_max),
        (stats.control_buffer_bytes, stats.control_buffer_bytes_max),
        (stats.partitions, stats.partitions_max),
        (stats.group_members, stats.group_members_max),
        (stats.requests_in_flight, stats.requests_in_flight_max),
    ]
}

#[tokio::test]
async fn each_bound_has_a_metric_of_its_use() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker_with(dir.path(), |config| {
        config.buffer_bytes_max = 40 << 20;
        config.control_buffer_bytes_max = 20 << 20;
        config.partitions_max = 7;
        config.group_members_max = 3;
        config.requests_in_flight_max = 4;
    })
    .await;
    let bounds = |stats: &Stats| uses(stats).map(|(_, max)| max);
    let stats = broker.stats();
    assert_eq!(bounds(&stats), [40 << 20, 20 << 20, 7, 3, 4]);
    assert_eq!(uses(&stats).map(|(used, _)| used), [0; 5]);
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 5, &[]).await;
    assert_eq!(broker.stats().partitions, 5);
    let too_many = create(&mut wire, "u", 3, &[]).await;
    assert_eq!(too_many, code(ResponseError::InvalidPartitions));

    // A client may send as many requests as it likes; the rest stay in its socket.
    let mut impatient = Wire::connect(broker.address()).await;
    for _ in 0..9 {
        impatient.send(11, &fetch_request("t", 0)).await;
    }
    until("its requests are in flight", async || {
        broker.stats().requests_in_flight == 4
    })
    .await;
    wire.produce("t", &plain(b"x")).await;
    until("all are answered", async || {
        broker.stats().requests_in_flight == 0
    })
    .await;

    let mut members = Vec::new();
    for group in ["a", "b", "b"] {
        let mut member = Wire::connect(broker.address()).await;
        // A member of `b` is answered once the other one has joined.
        member.send(5, &join_group(group)).await;
        members.push(member);
    }
    until("the members of the larger group are counted", async || {
        broker.stats().group_members == 2
    })
    .await;
    assert!(broker.shutdown().await);
}

fn join_group(group: &str) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default().with_name(StrBytes::from_static_str("p"));
    JoinGroupRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(group.to_owned())))
        .with_session_timeout_ms(60_000)
        .with_rebalance_timeout_ms(60_000)
        .with_protocol_type(StrBytes::from_static_str("consumer"))
        .with_protocols(vec![protocol])
}

#[tokio::test]
async fn buffer_memory_is_the_maximum_since_the_last_reading() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let both = || {
        let stats = broker.stats();
        (stats.buffer_bytes, stats.control_buffer_bytes)
    };
    assert_eq!(both(), (0, 0));

    // While it arrives.
    let mut produced = (300 * KIB as u32).to_be_bytes().to_vec();
    produced.extend([0, 0, 0, 9]);
    produced.resize(200 << 10, 0);
    let mut arriving = Wire::connect(broker.address()).await;
    arriving.stream.write_all(&produced).await.unwrap();
    until("the buffer of a produce request has grown", async || {
        both() == (256 * KIB, 0)
    })
    .await;
    drop(arriving);
    until("the buffer is free again", async || both() == (0, 0)).await;

    // A buffer that was used and released between two calls.
    let answer = wire.produce("t", &plain(&vec![0; 200 << 10])).await;
    assert_eq!(answer.error_code, 0);
    let (peak, _) = both();
    assert!((200 * KIB..210 * KIB).contains(&peak), "{peak}");
    assert_eq!(both(), (0, 0));

    // A control request counts with the memory that its answer may take.
    let many = (0..10_000).map(|n| topic_name(&format!("topic-{n}")));
    let many =
        many.map(|name| metadata_request::MetadataRequestTopic::default().with_name(Some(name)));
    let request = MetadataRequest::default().with_topics(Some(many.collect()));
    wire.ask(5, &request).await;
    let (buffers, control) = both();
    assert_eq!(buffers, 0);
    assert!(control > 500 * KIB, "{control}");
    assert_eq!(both(), (0, 0));
    assert!(broker.shutdown().await);
}
