//! Batches that a broker keeps compressed, as Kafka does unless a topic has
//! `compression.type=uncompressed`. The mock cluster keeps every batch as it was sent.

use std::time::Instant;

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    ConsumerOptions, DamageKind, KafkaSettings, PartitionConsumer, PollError, ProducerOptions,
};
use waybill_test_support::batches::{batch, tiny_records};
use waybill_test_support::bombs::{CODECS, producer, send};

use super::cluster;
use crate::raw::append_batch;
use crate::support::{A_WHILE, ALL, BatchProducer, PATIENCE, read, read_to_error, send_batch};

/// The limit of a consumer here.
const BYTES_MAX: usize = 4 << 20;
/// The attributes of a batch that name snappy.
const SNAPPY: u16 = 2;

/// A consumer of partition 0 from the beginning.
fn consumer(settings: &KafkaSettings, topic: &str) -> PartitionConsumer {
    let settings = KafkaSettings {
        decompressed_bytes_max: BYTES_MAX,
        ..settings.clone()
    };
    let consumer = PartitionConsumer::new(&settings, &ConsumerOptions::new("c")).unwrap();
    let start = [(topic, PartitionId(0), Offset(0))];
    consumer.assign(&start).unwrap();
    consumer
}

/// Asserts that the first batch is reported as one that no client could decode.
fn assert_undecodable(consumer: &PartitionConsumer, topic: &str) {
    let PollError::Damaged(logs) = read_to_error(consumer) else {
        panic!("{topic}: the damage is reported")
    };
    let [log] = &logs[..] else {
        panic!("{topic}: one partition is damaged: {logs:?}")
    };
    let at = (log.topic.as_str(), log.offset, log.kind);
    assert_eq!(at, (topic, Offset(0), DamageKind::Undecodable));
    assert!(log.cause.starts_with("Decompression "), "{}", log.cause);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_batch_within_the_limit_is_read_whatever_its_codec() {
    let (cluster, settings) = cluster("unused", 1);
    // Numbers in text compress to less than a half.
    let numbers = (0..BYTES_MAX as u64 / 20).map(|number| number.wrapping_mul(0x9e37_79b9));
    let value: Vec<u8> = numbers
        .flat_map(|number| format!("{number:010}").into_bytes())
        .collect();
    for codec in CODECS {
        cluster.create_topic(codec, 1, 1).unwrap();
        let producer = producer(&settings.brokers, codec);
        send(&producer, codec, &value).await.unwrap();
        let consumer = consumer(&settings, codec);
        let records = tokio::task::block_in_place(|| read(&consumer, 1));
        assert!(records[0].value.as_deref() == Some(&value), "{codec}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_expands_beyond_the_limit_is_undecodable_whatever_its_codec() {
    let (cluster, settings) = cluster("unused", 1);
    for codec in CODECS {
        cluster.create_topic(codec, 1, 1).unwrap();
        let producer = producer(&settings.brokers, codec);
        send(&producer, codec, &vec![0; 2 * BYTES_MAX])
            .await
            .unwrap();
        let consumer = consumer(&settings, codec);
        tokio::task::block_in_place(|| assert_undecodable(&consumer, codec));
    }
}

/// A fetch holds hundreds of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_batch_that_expands_a_thousand_times_is_undecodable() {
    let (cluster, settings) = cluster("unused", 1);
    for codec in ["gzip", "zstd"] {
        cluster.create_topic(codec, 1, 1).unwrap();
        let producer = producer(&settings.brokers, codec);
        send(&producer, codec, &vec![0; BYTES_MAX / 2])
            .await
            .unwrap();
        let consumer = consumer(&settings, codec);
        tokio::task::block_in_place(|| assert_undecodable(&consumer, codec));
    }
}

#[test]
fn a_compressed_batch_of_many_tiny_records_is_undecodable_whatever_its_codec() {
    let (cluster, settings) = cluster("unused", 1);
    for codec in CODECS {
        cluster.create_topic(codec, 1, 1).unwrap();
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &settings.brokers)
            .set("compression.codec", codec)
            // All records become one batch.
            .set("batch.num.messages", "100000")
            .set("linger.ms", "60000")
            .create()
            .unwrap();
        for _ in 0..20_000 {
            let record = BaseRecord::<(), _>::to(codec).partition(0).payload("");
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
        assert_undecodable(&consumer(&settings, codec), codec);
    }
}

/// Brokers other than the embedded one keep them.
#[test]
fn an_uncompressed_batch_of_many_tiny_records_is_undecodable() {
    let (cluster, settings) = cluster("tiny", 1);
    append_batch(&settings, "tiny", &batch(0, &tiny_records(20_000)));
    assert_undecodable(&consumer(&settings, "tiny"), "tiny");

    cluster.create_topic("few", 1, 1).unwrap();
    append_batch(&settings, "few", &batch(0, &tiny_records(10_000)));
    assert_eq!(read(&consumer(&settings, "few"), 10_000).len(), 10_000);
}

/// librdkafka would allocate what the blocks claim to hold, and abort the process where the system
/// refuses that.
#[test]
fn a_false_length_of_snappy_allocates_nothing() {
    // 4 GiB less one, as a variable-length number.
    const LONG: &[u8] = b"\xff\xff\xff\xff\x0f";
    let (cluster, settings) = cluster("bare", 1);
    append_batch(&settings, "bare", &batch(SNAPPY, &[LONG.to_vec()]));
    assert_undecodable(&consumer(&settings, "bare"), "bare");

    // The header of the Java library, and 64 blocks with their lengths.
    cluster.create_topic("xerial", 1, 1).unwrap();
    let mut blocks = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for _ in 0..64 {
        blocks.extend([&[0, 0, 0, 5], LONG].concat());
    }
    append_batch(&settings, "xerial", &batch(SNAPPY, &[blocks]));
    assert_undecodable(&consumer(&settings, "xerial"), "xerial");
}

/// The second report says where to continue.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_continues_after_a_batch_that_expands_too_much() {
    let (_cluster, settings) = cluster("t", 1);
    let bomb = producer(&settings.brokers, "gzip");
    send(&bomb, "t", &vec![0; 2 * BYTES_MAX]).await.unwrap();
    tokio::task::block_in_place(|| {
        let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
        send_batch(&producer, "t", 0, &[b"behind"]);
        let consumer = consumer(&settings, "t");
        assert_undecodable(&consumer, "t");
        consumer.add(&[("t", PartitionId(0), Offset(0))]).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let next = loop {
            assert!(Instant::now() < deadline, "no second report");
            match consumer.poll(ALL, A_WHILE, &mut |_| panic!("nothing can be read here")) {
                Err(PollError::Damaged(logs)) => break logs[0].next,
                Err(error) => panic!("{error}"),
                Ok(_) => {}
            }
        };
        assert_eq!(next, Some(Offset(1)));
        consumer.add(&[("t", PartitionId(0), Offset(1))]).unwrap();
        assert_eq!(read(&consumer, 1)[0].value.as_deref(), Some(&b"behind"[..]));
    });
}
