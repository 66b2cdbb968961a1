//! A broker process that is killed: nothing that it acknowledged is lost.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rdkafka::producer::{DeliveryFuture, FutureRecord};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use waybill_broker::{Broker, BrokerSettings};

use crate::common::*;

/// The environment of a broker process: its data directory, and the address that it listens on.
const DATA_DIR: &str = "WAYBILL_TEST_BROKER_DATA_DIR";
const LISTEN: &str = "WAYBILL_TEST_BROKER_LISTEN";
const LISTENING: &str = "listening on ";

/// Not a test: the broker process, which [`spawn`] starts with this program and kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that another test starts and kills"]
async fn broker_process() {
    // The variable is missing if all ignored tests are run.
    let Ok(data_dir) = std::env::var(DATA_DIR) else {
        return;
    };
    let mut config = BrokerSettings::new(data_dir);
    config.listen = std::env::var(LISTEN)
        .expect("an address")
        .parse()
        .expect("an address");
    let broker = Broker::start(config).await.expect("a broker that starts");
    println!("{LISTENING}{}", broker.address());
    panic!("{}", broker.failed().await);
}

/// Starts a broker process, and returns it and its address once it listens.
async fn spawn(data_dir: &Path, address: &str) -> (Child, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "crash::broker_process",
            "--ignored",
            "--nocapture",
        ])
        .env(DATA_DIR, data_dir)
        .env(LISTEN, address)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = tokio::time::timeout(BOUND, async {
        loop {
            let line = lines.next_line().await.unwrap();
            let line = line.expect("the broker process ended before it listened");
            // The test harness may have begun the line.
            if let Some((_, address)) = line.split_once(LISTENING) {
                return address.parse().unwrap();
            }
        }
    })
    .await
    .unwrap();
    // Drains the rest of the output, so that the pipe does not fill.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_or_doubled_when_the_broker_is_killed_while_producing() {
    const PARTITIONS: i32 = 3;
    let dir = tempfile::tempdir().unwrap();
    let (mut child, address) = spawn(dir.path(), "127.0.0.1:0").await;
    let settings = [("flush.messages", "1"), ("segment.bytes", "200000")];
    create_topic(address, "requests", PARTITIONS, &settings).await;
    let producer = producer(
        address,
        &[
            ("enable.idempotence", "true"),
            ("reconnect.backoff.ms", "10"),
            ("reconnect.backoff.max.ms", "50"),
            ("retry.backoff.ms", "10"),
        ],
    );
    let mut sent: Vec<(u32, DeliveryFuture)> = Vec::new();
    let mut send_for = async |time: Duration| {
        let until = Instant::now() + time;
        while Instant::now() < until {
            for _ in 0..20 {
                let n = sent.len() as u32;
                let payload = [&n.to_be_bytes()[..], &[7; 300]].concat();
                let record = FutureRecord::<(), _>::to("requests")
                    .partition(n as i32 % PARTITIONS)
                    .payload(&payload);
                sent.push((n, producer.send_result(record).unwrap()));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    for round in 0..6_u64 {
        send_for(Duration::from_millis(150 + 37 * round)).await;
        child.start_kill().unwrap();
        child.wait().await.unwrap();
        send_for(Duration::from_millis(20)).await;
        (child, _) = spawn(dir.path(), &address.to_string()).await;
    }
    let mut acknowledged = Vec::new();
    let count = sent.len();
    for (n, delivery) in sent {
        let delivery = tokio::time::timeout(BOUND, delivery)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        acknowledged.push((delivery.partition, delivery.offset, n));
    }
    let mut seen: Vec<_> = read(address, "requests", PARTITIONS, count)
        .await
        .into_iter()
        .map(|s| {
            (
                s.partition,
                s.offset,
                u32::from_be_bytes(*s.payload.first_chunk().unwrap()),
            )
        })
        .collect();
    seen.sort_unstable();
    acknowledged.sort_unstable();
    assert_eq!(
        seen, acknowledged,
        "each record once, where it was said to be"
    );
    println!("{count} records over 6 kills");
    child.kill().await.unwrap();
}
