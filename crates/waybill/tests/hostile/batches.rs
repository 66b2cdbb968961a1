//! Compressed batches, written straight to the program's topics.

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use waybill_test_support::batches as handmade;
use waybill_test_support::bombs::{CODECS, assert_refused, producer, send};

use super::*;

/// The memory limit of the program during the attack.
const MEMORY_BYTES: u64 = 256 << 20;
/// The expanded size of a bomb. With gzip or Zstandard, its compressed size is below the limit of a
/// record.
const BOMB_BYTES: usize = 400 << 20;
/// The same for all codecs.
const SMALL_BOMB_BYTES: usize = 32 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_compressed_record_stops_no_partition() {
    for broker in Broker::all() {
        let site = Site::start_at(broker);
        // Its topics exist by then.
        site.ready().await;
        for codec in CODECS {
            let producer = producer(&site.address("broker").to_string(), codec);
            for topic in TOPICS.map(|topic| site.topic(topic)) {
                send(&producer, &topic, &[b'x'; 2_000]).await.unwrap();
            }
            site.deliver(&format!("behind-{codec}")).await;
        }
        site.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decompression_bomb_is_refused_with_little_memory() {
    let limit = MemoryLimit::new_or_skip(MEMORY_BYTES);
    let site = Site::start_within(limit.as_ref());
    let brokers = site.address("broker").to_string();
    let topics = TOPICS.map(|topic| site.topic(topic));
    let topics = topics.each_ref().map(String::as_str);
    for codec in CODECS {
        assert_refused(&producer(&brokers, codec), &topics, SMALL_BOMB_BYTES).await;
        site.deliver(&format!("beside-{codec}")).await;
    }
    for codec in ["gzip", "zstd"] {
        assert_refused(&producer(&brokers, codec), &topics[..1], BOMB_BYTES).await;
        site.deliver(&format!("beside-large-{codec}")).await;
    }
    drop(site);
    assert_eq!(limit.as_ref().map_or(0, MemoryLimit::kills), 0);
}

/// A record in a batch with a valid checksum and counts. The length of its value exceeds the
/// record.
fn lying_batch() -> Vec<u8> {
    let record = [0, 0, 0, 1, 0x90, 0x4e, b'a', b'b', b'c', 0];
    let length = 2 * record.len() as u8;
    handmade::batch(0, &[[&[length], &record[..]].concat()])
}

/// Each of them takes some 500 bytes of a reader's memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_very_many_tiny_records_is_refused() {
    const MESSAGE_TOO_LARGE: i16 = 10;
    let records = handmade::tiny_records(100_000);
    let limit = MemoryLimit::new_or_skip(MEMORY_BYTES);
    let site = Site::start_within(limit.as_ref());
    for topic in TOPICS.map(|topic| site.topic(topic)) {
        let batch = handmade::batch(0, &records);
        let code = handmade::produce(site.address("broker"), &topic, &batch);
        assert_eq!(code, MESSAGE_TOO_LARGE, "{topic}");
    }
    site.deliver("beside-tiny").await;
    drop(site);
    assert_eq!(limit.as_ref().map_or(0, MemoryLimit::kills), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_parts_do_not_fill_it_is_refused() {
    const INVALID_RECORD: i16 = 87;
    let site = Site::start();
    for topic in TOPICS.map(|topic| site.topic(topic)) {
        let code = handmade::produce(site.address("broker"), &topic, &lying_batch());
        assert_eq!(code, INVALID_RECORD);
    }
    site.deliver("beside-lies").await;
}

/// Their dead letters take far more memory than they do.
#[tokio::test(flavor = "multi_thread")]
async fn very_many_dead_letters_take_little_memory() {
    const RECORDS: u64 = 9_999;
    const BATCHES: usize = 20;
    let limit = MemoryLimit::new_or_skip(MEMORY_BYTES);
    let site = Site::start_within(limit.as_ref());
    site.ready().await;
    let batch = handmade::batch(0, &handmade::tiny_records(RECORDS));
    for topic in TOPICS.map(|topic| site.topic(topic)) {
        for _ in 0..BATCHES {
            let code = handmade::produce(site.address("broker"), &topic, &batch);
            assert_eq!(code, 0, "{topic}");
        }
    }
    site.deliver("beside-dead-letters").await;
    let client: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", site.address("broker").to_string())
        .create()
        .unwrap();
    let expected = i64::try_from(RECORDS).unwrap() * i64::try_from(BATCHES).unwrap();
    for topic in TOPICS.map(|topic| format!("{}.dlq", site.topic(topic))) {
        let deadline = Instant::now() + 4 * PATIENCE;
        loop {
            let (_, end) = client.fetch_watermarks(&topic, 0, PATIENCE).unwrap();
            if end >= expected {
                break;
            }
            assert!(Instant::now() < deadline, "{topic}: {end} of {expected}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    drop(site);
    assert_eq!(limit.as_ref().map_or(0, MemoryLimit::kills), 0);
}
