//! Compressed batches on the topics of the program, written past its door.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;

use super::*;

const CODECS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];

/// Those that the program itself reads.
const TOPICS: [&str; 4] = [
    "waybill.operation-requests.v1",
    "waybill.step-replies.v1",
    "waybill.recovery.v1",
    "waybill.drone.requests.v1",
];

fn producer(site: &Site, codec: &str) -> FutureProducer {
    ClientConfig::new()
        .set("bootstrap.servers", site.address("broker").to_string())
        .set("compression.codec", codec)
        .set("message.max.bytes", "1000000000")
        .set("batch.size", "200000000")
        .set("message.timeout.ms", "30000")
        .create()
        .unwrap()
}

async fn send(producer: &FutureProducer, topic: &str, value: &[u8]) -> Result<(), KafkaError> {
    let record = FutureRecord::<(), _>::to(topic).partition(0).payload(value);
    let sent = producer.send(record, Timeout::After(PATIENCE)).await;
    sent.map(drop).map_err(|(error, _)| error)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_record_that_means_nothing_stops_no_partition() {
    let site = Site::start();
    for codec in CODECS {
        let producer = producer(&site, codec);
        for topic in TOPICS {
            send(&producer, topic, &[b'x'; 2_000]).await.unwrap();
        }
        site.deliver(&format!("behind-{codec}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_batch_that_expands_to_much_is_refused() {
    let site = Site::start();
    let zeroes = vec![0; 32 << 20];
    for codec in CODECS {
        let producer = producer(&site, codec);
        for topic in TOPICS {
            let refused = send(&producer, topic, &zeroes).await;
            let code = refused.unwrap_err().rdkafka_error_code();
            let expected = Some(RDKafkaErrorCode::MessageSizeTooLarge);
            assert_eq!(code, expected, "{codec} {topic}");
        }
        site.deliver(&format!("beside-{codec}")).await;
    }
}

/// One record in a batch whose checksum and counts are right, and whose value is said to be longer than the record.
fn lying_batch() -> Vec<u8> {
    let record = [0, 0, 0, 1, 0x90, 0x4e, b'a', b'b', b'c', 0];
    let mut checked = Vec::new();
    checked.extend_from_slice(&0_i16.to_be_bytes());
    checked.extend_from_slice(&0_i32.to_be_bytes());
    for timestamp in [1_i64, 1] {
        checked.extend_from_slice(&timestamp.to_be_bytes());
    }
    checked.extend_from_slice(&(-1_i64).to_be_bytes());
    checked.extend_from_slice(&(-1_i16).to_be_bytes());
    checked.extend_from_slice(&(-1_i32).to_be_bytes());
    checked.extend_from_slice(&1_i32.to_be_bytes());
    checked.push(2 * record.len() as u8);
    checked.extend_from_slice(&record);
    let mut batch = 0_i64.to_be_bytes().to_vec();
    batch.extend_from_slice(&(checked.len() as i32 + 9).to_be_bytes());
    batch.extend_from_slice(&(-1_i32).to_be_bytes());
    batch.push(2);
    batch.extend_from_slice(&crc32c::crc32c(&checked).to_be_bytes());
    batch.extend_from_slice(&checked);
    batch
}

/// Produces a batch by version 7 of the request, without a client that would look at it; returns the broker's error code.
fn produce(site: &Site, topic: &str, batch: &[u8]) -> i16 {
    let text = |text: &str| [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat();
    let mut request = Vec::new();
    for number in [0_i16, 7] {
        request.extend_from_slice(&number.to_be_bytes());
    }
    request.extend_from_slice(&1_i32.to_be_bytes());
    request.extend_from_slice(&text("hostile"));
    // No transaction, acknowledged by all, in five seconds; one topic, one partition.
    for number in [-1_i16, -1] {
        request.extend_from_slice(&number.to_be_bytes());
    }
    request.extend_from_slice(&5_000_i32.to_be_bytes());
    request.extend_from_slice(&1_i32.to_be_bytes());
    request.extend_from_slice(&text(topic));
    for number in [1, 0, batch.len() as i32] {
        request.extend_from_slice(&number.to_be_bytes());
    }
    request.extend_from_slice(batch);
    let mut stream = TcpStream::connect(site.address("broker")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(&(request.len() as i32).to_be_bytes())
        .unwrap();
    stream.write_all(&request).unwrap();
    // Length, correlation, number of topics, the name, number of partitions, the partition's.
    let mut answer = vec![0; 4 + 4 + 4 + 2 + topic.len() + 4 + 4 + 2];
    stream.read_exact(&mut answer).unwrap();
    let code = answer.last_chunk::<2>().unwrap();
    i16::from_be_bytes(*code)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_parts_do_not_fill_it_is_refused() {
    const INVALID_RECORD: i16 = 87;
    let site = Site::start();
    for topic in TOPICS {
        assert_eq!(produce(&site, topic, &lying_batch()), INVALID_RECORD);
    }
    site.deliver("beside-lies").await;
}
