//! Attacks on the embedded broker.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use uuid::Uuid;
use waybill_engine::{Action, Attempt, Epoch, OperationId, Outcome, StepReply};
use waybill_messages::{RECORD_BYTES_MAX, Record as _, Topics};

use super::{Attacker, HOLD, hold};

const CODECS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];
/// The expanded size of a bomb.
const BOMB_BYTES: usize = 32 << 20;
/// How long a bomb or a record waits for its acknowledgement.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of meaningless records, or of forged replies, in one step.
const RUBBISH: usize = 20;
/// An agent of the built-in workflow.
const AGENT: &str = "drone";
/// The pause after a large record. Waybill writes each twice, with its dead letter.
const LARGE_PAUSE: Duration = Duration::from_secs(5);
/// A record whose value has the length -2: its length, attributes, time and offset deltas, and no
/// key.
const UNDECODABLE: [u8; 7] = [12, 0, 0, 0, 1, 3, 0];
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

/// The topics that Waybill reads.
fn topics(attacker: &Attacker) -> [String; 4] {
    let topics = Topics::new(&attacker.topic_prefix);
    let own = [topics.requests(), topics.step_replies(), topics.recovery()];
    let [requests, replies, recovery] = own.map(str::to_owned);
    [requests, replies, recovery, topics.step_requests(AGENT)]
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
            // The broker should refuse it.
            let _ = send(&producer, &topic, &zeroes).await;
            tokio::time::sleep(TIMEOUT / 10).await;
        }
    }
    Ok(())
}

/// Sends a record. It may be refused.
async fn send(
    producer: &FutureProducer,
    topic: &str,
    value: &[u8],
) -> Result<(), rdkafka::error::KafkaError> {
    let record = FutureRecord::<(), _>::to(topic).payload(value);
    let sent = producer.send(record, Timeout::After(TIMEOUT)).await;
    sent.map(drop).map_err(|(error, _)| error)
}

pub(super) async fn rubbish(attacker: &Attacker) -> io::Result<()> {
    let producer = producer(attacker, "none")?;
    for number in 0..RUBBISH {
        for topic in topics(attacker) {
            let value = format!("{number} of a record that means nothing").repeat(10);
            let sent = send(&producer, &topic, value.as_bytes()).await;
            sent.map_err(io::Error::other)?;
        }
        tokio::time::sleep(TIMEOUT / 100).await;
    }
    Ok(())
}

/// Sends records of the maximum size that nobody can decode.
pub(super) async fn large_poison(attacker: &Attacker) -> io::Result<()> {
    let producer = producer(attacker, "none")?;
    // With room for the batch.
    let poison = vec![b'p'; RECORD_BYTES_MAX as usize - 1024];
    for topic in topics(attacker) {
        let sent = send(&producer, &topic, &poison).await;
        sent.map_err(io::Error::other)?;
        tokio::time::sleep(LARGE_PAUSE).await;
    }
    Ok(())
}

/// Sends replies that no request asked for, so that their nonces are missing.
pub(super) async fn forged_replies(attacker: &Attacker) -> io::Result<()> {
    let producer = producer(attacker, "none")?;
    let [_, replies, ..] = topics(attacker);
    for _ in 0..RUBBISH {
        let forged = StepReply {
            operation: OperationId(Uuid::new_v4()),
            step: AGENT.to_owned(),
            attempt: Attempt(1),
            epoch: Epoch(1),
            action: Action::Run,
            nonce: None,
            outcome: Outcome::Success {
                outputs: Vec::new(),
            },
        };
        let mut value = Vec::new();
        forged.encode(&mut value).map_err(io::Error::other)?;
        let sent = send(&producer, &replies, &value).await;
        sent.map_err(io::Error::other)?;
        tokio::time::sleep(TIMEOUT / 100).await;
    }
    Ok(())
}

/// A batch of one record, with a valid checksum.
fn batch(record: &[u8]) -> Vec<u8> {
    const UNSEQUENCED: [u8; 8 + 2 + 4] = [0xff; 14];
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // Until the year 292,000,000.
    let now_ms = (now.unwrap_or_default().as_millis() as u64).to_be_bytes();
    // No attributes, and the offset of the last record.
    let mut checked = vec![0; 2 + 4];
    checked.extend([now_ms, now_ms].concat());
    checked.extend(UNSEQUENCED);
    checked.extend(1_u32.to_be_bytes());
    checked.extend(record);
    // The base offset and the length, no leader epoch, and the format version.
    let mut batch = vec![0; 8];
    batch.extend((checked.len() as u32 + 9).to_be_bytes());
    batch.extend([0xff, 0xff, 0xff, 0xff, 2]);
    batch.extend(crc32c::crc32c(&checked).to_be_bytes());
    batch.extend(checked);
    batch
}

/// A request that appends a batch to a topic's first partition.
fn produce(topic: &str, batch: &[u8]) -> Vec<u8> {
    // Produce, version 7, without a client ID and a transaction, acknowledged by all, within 5 s.
    let mut request = vec![0, 0, 0, 7, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    request.extend(5_000_i32.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    // No topic name is too long for that.
    request.extend((topic.len() as u16).to_be_bytes());
    request.extend(topic.as_bytes());
    request.extend(1_i32.to_be_bytes());
    request.extend(0_i32.to_be_bytes());
    request.extend((batch.len() as u32).to_be_bytes());
    request.extend(batch);
    framed(&request)
}

/// Appends batches whose records no client can decode. The embedded broker should refuse them.
pub(super) async fn undecodable(attacker: &Attacker) -> io::Result<()> {
    for topic in topics(attacker) {
        let mut stream = attacker.connect().await?;
        let request = produce(&topic, &batch(&UNDECODABLE));
        stream.write_all(&request).await?;
        stream.read_exact(&mut [0; 4]).await?;
        tokio::time::sleep(TIMEOUT / 100).await;
    }
    Ok(())
}

/// A request behind its length.
fn framed(request: &[u8]) -> Vec<u8> {
    let mut frame = (request.len() as u32).to_be_bytes().to_vec();
    frame.extend(request);
    frame
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
    framed(&request)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_its_length_and_its_checksum() {
        let batch = batch(&UNDECODABLE);
        assert_eq!(batch.len(), 61 + UNDECODABLE.len());
        let length = u32::from_be_bytes(*batch[8..].first_chunk().unwrap());
        assert_eq!(length as usize, batch.len() - 12);
        let checksum = u32::from_be_bytes(*batch[17..].first_chunk().unwrap());
        assert_eq!(checksum, crc32c::crc32c(&batch[21..]));
    }
}
