//! Compressed batches on the topics of the program, written past its door.

#[path = "../../../kafka/tests/support/batches.rs"]
mod handmade;

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
    let length = 2 * record.len() as u8;
    handmade::batch(0, &[[&[length], &record[..]].concat()])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_parts_do_not_fill_it_is_refused() {
    const INVALID_RECORD: i16 = 87;
    let site = Site::start();
    for topic in TOPICS {
        let code = handmade::produce(site.address("broker"), topic, &lying_batch());
        assert_eq!(code, INVALID_RECORD);
    }
    site.deliver("beside-lies").await;
}
