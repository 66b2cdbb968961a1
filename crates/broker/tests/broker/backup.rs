//! A copy of a broker that is written to, and a broker on that copy.

use std::net::SocketAddr;
use std::path::Path;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::FutureRecord;
use rdkafka::util::Timeout;
use rdkafka::{Offset, TopicPartitionList};
use waybill_broker::{CopyError, LogsRestore, LogsSnapshot};

use crate::common::{BOUND, broker, client, create_topic, producer, read_from};

const TOPIC: &str = "copied";

/// Sends the numbers of `range`, one after the other.
async fn send(address: SocketAddr, range: std::ops::Range<u32>) {
    let producer = producer(address, &[]);
    for n in range {
        let payload = [&n.to_be_bytes()[..], &[7; 400]].concat();
        let record = FutureRecord::<(), _>::to(TOPIC).payload(&payload);
        let sent = producer.send(record, Timeout::After(BOUND)).await;
        sent.unwrap();
    }
}

fn group(address: SocketAddr) -> BaseConsumer {
    client(address, &[("group.id", "readers")])
        .create()
        .unwrap()
}

fn at(offset: i64) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    let offset = Offset::Offset(offset);
    list.add_partition_offset(TOPIC, 0, offset).unwrap();
    list
}

fn committed(address: SocketAddr) -> Offset {
    let mut list = TopicPartitionList::new();
    list.add_partition(TOPIC, 0);
    let committed = group(address).committed_offsets(list, BOUND).unwrap();
    committed.elements()[0].offset()
}

fn ends(address: SocketAddr) -> (i64, i64) {
    let consumer: BaseConsumer = client(address, &[]).create().unwrap();
    consumer.fetch_watermarks(TOPIC, 0, BOUND).unwrap()
}

/// Makes a data directory of a snapshot, in pieces.
fn restore(snapshot: &LogsSnapshot, dir: &Path) {
    let mut restore = LogsRestore::begin(dir).unwrap();
    for entry in snapshot.meta() {
        let (table, key, value) = entry.unwrap();
        restore.put_meta(table, &key, &value).unwrap();
    }
    for segment in snapshot.segments() {
        let (topic, partition) = (&segment.topic, segment.partition);
        restore
            .begin_segment(topic, partition, segment.base)
            .unwrap();
        let mut at = 0;
        while at < segment.bytes {
            let mut piece = vec![0; (segment.bytes - at).min(1_000) as usize];
            segment.read(at, &mut piece).unwrap();
            restore.append(&piece).unwrap();
            at += piece.len() as u64;
        }
    }
    restore.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_contains_records_that_are_deleted_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let first = broker(&dir.path().join("first")).await;
    let address = first.address();
    create_topic(address, TOPIC, 1, &[("segment.bytes", "2048")]).await;
    create_topic(address, "empty", 2, &[]).await;
    send(address, 0..40).await;
    group(address).commit(&at(30), CommitMode::Sync).unwrap();

    let logs = first.logs();
    let noting = logs.clone();
    let snapshot = tokio::task::spawn_blocking(move || noting.snapshot());
    let snapshot = snapshot.await.unwrap().unwrap();
    assert_eq!(snapshot.records(), 40);
    assert!(snapshot.segments().len() > 5, "{snapshot:?}");
    // Later changes: records, an offset, and the deletion of existing data.
    send(address, 40..50).await;
    group(address).commit(&at(45), CommitMode::Sync).unwrap();
    let admin: AdminClient<DefaultClientContext> = client(address, &[]).create().unwrap();
    let options = AdminOptions::new();
    admin.delete_records(&at(42), &options).await.unwrap();
    assert_eq!(ends(address), (42, 50));

    let second = dir.path().join("second");
    restore(&snapshot, &second);
    drop(snapshot);
    let second = broker(&second).await;
    let restored = second.address();
    assert_eq!(ends(restored), (0, 40));
    assert_eq!(committed(restored), Offset::Offset(30));
    assert_eq!(committed(address), Offset::Offset(45));
    let seen = read_from(restored, TOPIC, 1, Offset::Beginning, 40).await;
    for (n, seen) in (0_u32..).zip(&seen) {
        assert_eq!(seen.offset, i64::from(n));
        assert_eq!(seen.payload[..4], n.to_be_bytes());
    }
    // The restored broker works like any other, and keeps all of its topics.
    send(restored, 40..41).await;
    assert_eq!((ends(restored), second.stats().partitions), ((0, 41), 3));
    assert!(second.shutdown().await);
    assert!(first.shutdown().await);
    assert!(matches!(logs.snapshot(), Err(CopyError::Stopped)));
}

#[test]
fn a_restore_overwrites_nothing_and_stays_in_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut restore = LogsRestore::begin(dir.path()).unwrap();
    for (topic, partition, base) in [
        ("../../etc", 0, 0),
        ("..", 0, 0),
        ("", 0, 0),
        ("a/b", 0, 0),
        ("t", -1, 0),
        ("t", 0, -1),
    ] {
        let refused = restore.begin_segment(topic, partition, base);
        let refused = refused.unwrap_err();
        assert!(matches!(refused, CopyError::Unknown { .. }), "{refused}");
    }
    assert!(restore.append(b"of nothing").is_err());
    assert!(restore.put_meta("nonsense", b"key", b"value").is_err());
    restore.begin_segment("t", 0, 7).unwrap();
    let twice = restore.begin_segment("t", 0, 7).unwrap_err();
    assert!(matches!(twice, CopyError::Disk { .. }), "{twice}");
}
