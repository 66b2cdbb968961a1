//! Decompression bombs: small batches with large contents.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;

/// The maximum time for a broker's answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The codecs of the Kafka protocol.
pub const CODECS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];

/// A producer that compresses with a codec and does not limit the size of records.
pub fn producer(brokers: &str, codec: &str) -> FutureProducer {
    ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("compression.codec", codec)
        .set("message.max.bytes", "1000000000")
        .set("queue.buffering.max.kbytes", "2000000")
        .set("batch.size", "200000000")
        .set("message.timeout.ms", "30000")
        .create()
        .unwrap()
}

/// Sends a record to partition 0 of a topic, and waits for the broker's answer.
pub async fn send(producer: &FutureProducer, topic: &str, value: &[u8]) -> Result<(), KafkaError> {
    let record = FutureRecord::<(), _>::to(topic).partition(0).payload(value);
    let sent = producer.send(record, Timeout::After(PATIENCE)).await;
    sent.map(drop).map_err(|(error, _)| error)
}

/// Sends a record of `bytes` equal bytes to each topic, and asserts that the broker refuses it as
/// too large.
pub async fn assert_refused(producer: &FutureProducer, topics: &[&str], bytes: usize) {
    let zeroes = vec![0; bytes];
    for topic in topics {
        let refused = send(producer, topic, &zeroes).await;
        let code = refused.unwrap_err().rdkafka_error_code();
        assert_eq!(code, Some(RDKafkaErrorCode::MessageSizeTooLarge), "{topic}");
    }
}
