//! Attacks on the embedded broker.

use std::io;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use waybill_messages::Topics;

use super::{Attacker, HOLD, hold};

const CODECS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];
/// The expanded size of a bomb.
const BOMB_BYTES: usize = 32 << 20;
/// How long a bomb or a record waits for its acknowledgement.
const PATIENCE: Duration = Duration::from_secs(10);
/// The number of meaningless records in one step.
const RUBBISH: usize = 20;
/// The size of the largest request, and the part of it that is sent.
const LARGEST_BYTES: u32 = 16 << 20;
const HALF_BYTES: usize = 12 << 20;
/// The pause after a large request was cut off. Many of those at the same time would be a flood.
const HALF_PAUSE: Duration = Duration::from_secs(5);
/// The number of unread fetches on one connection, and the size that each requests.
const UNREAD_FETCHES: usize = 30;
const FETCH_BYTES: i32 = 1 << 20;

pub(super) async fn bad_frames(attacker: &Attacker) -> io::Result<()> {
    let frames: [&[u8]; 4] = [
        // Longer than any allowed frame, and negative.
        &[0x7f, 0xff, 0xff, 0xff, 0, 0],
        &[0x80, 0, 0, 0],
        // A request of an unknown API, and a fetch that claims two billion topics.
        &[0, 0, 0, 8, 0x7f, 0xff, 0, 1, 0, 0, 0, 1],
        &[
            0, 0, 0, 39, 0, 1, 0, 4, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    ];
    for frame in frames {
        let mut stream = attacker.connect().await?;
        stream.write_all(frame).await?;
        hold(&mut stream).await;
    }
    Ok(())
}

fn topics(attacker: &Attacker) -> [String; 3] {
    let topics = Topics::new(&attacker.topic_prefix);
    [topics.requests(), topics.step_replies(), topics.recovery()].map(str::to_owned)
}

fn producer(attacker: &Attacker, codec: &str) -> io::Result<FutureProducer> {
    ClientConfig::new()
        .set("bootstrap.servers", attacker.address.to_string())
        .set("compression.codec", codec)
        .set("message.max.bytes", "1000000000")
        .set("message.timeout.ms", "5000")
        .create()
        .map_err(io::Error::other)
}

pub(super) async fn bombs(attacker: &Attacker) -> io::Result<()> {
    let zeroes = vec![0; BOMB_BYTES];
    for codec in CODECS {
        let producer = producer(attacker, codec)?;
        for topic in topics(attacker) {
            let record = FutureRecord::<(), _>::to(&topic).payload(&zeroes);
            // The broker should refuse it.
            let _ = producer.send(record, Timeout::After(PATIENCE)).await;
            tokio::time::sleep(PATIENCE / 10).await;
        }
    }
    Ok(())
}

pub(super) async fn rubbish(attacker: &Attacker) -> io::Result<()> {
    let producer = producer(attacker, "none")?;
    for number in 0..RUBBISH {
        for topic in topics(attacker) {
            let value = format!("{number} of a record that means nothing").repeat(10);
            let record = FutureRecord::<(), _>::to(&topic).payload(&value);
            let sent = producer.send(record, Timeout::After(PATIENCE)).await;
            sent.map_err(|(error, _)| io::Error::other(error))?;
        }
        tokio::time::sleep(PATIENCE / 100).await;
    }
    Ok(())
}

/// The beginning of a produce request of the maximum size.
fn announcement() -> Vec<u8> {
    let mut bytes = LARGEST_BYTES.to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, 9]);
    bytes
}

pub(super) async fn announced_requests(attacker: &Attacker) -> io::Result<()> {
    let mut stream = attacker.connect().await?;
    stream.write_all(&announcement()).await?;
    hold(&mut stream).await;
    Ok(())
}

pub(super) async fn half_requests(attacker: &Attacker) -> io::Result<()> {
    let mut stream = attacker.connect().await?;
    let mut bytes = announcement();
    bytes.resize(HALF_BYTES, 0);
    let drip = async {
        stream.write_all(&bytes).await?;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stream.write_all(&[0]).await?;
        }
    };
    let ended: Result<io::Result<()>, _> = tokio::time::timeout(HOLD, drip).await;
    tokio::time::sleep(HALF_PAUSE).await;
    ended.unwrap_or(Ok(()))
}

/// A fetch of a partition's first records.
fn fetch(topic: &str) -> Vec<u8> {
    let mut request = vec![0, 1, 0, 4, 0, 0, 0, 1, 0xff, 0xff];
    // No replica, no wait, at least one byte.
    for number in [-1, 0, 1, FETCH_BYTES] {
        request.extend(i32::to_be_bytes(number));
    }
    request.push(0);
    request.extend(1_i32.to_be_bytes());
    // No topic name is too long for that.
    request.extend((topic.len() as u16).to_be_bytes());
    request.extend(topic.as_bytes());
    request.extend(1_i32.to_be_bytes());
    request.extend(0_i32.to_be_bytes());
    request.extend(0_i64.to_be_bytes());
    request.extend(FETCH_BYTES.to_be_bytes());
    let mut frame = (request.len() as u32).to_be_bytes().to_vec();
    frame.append(&mut request);
    frame
}

pub(super) async fn unread_fetches(attacker: &Attacker) -> io::Result<()> {
    let mut stream = attacker.connect().await?;
    let [requests, ..] = topics(attacker);
    stream
        .write_all(&fetch(&requests).repeat(UNREAD_FETCHES))
        .await?;
    // At least a part of one answer.
    stream.read_exact(&mut [0; 4]).await?;
    tokio::time::sleep(HOLD).await;
    Ok(())
}
