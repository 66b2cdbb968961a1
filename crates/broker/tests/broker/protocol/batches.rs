//! Batches: what is stored of them, and which are refused.

use std::fs;

use kafka_protocol::error::ResponseError;
use waybill_broker::BatchRefusal;

use super::*;
use crate::common::*;

#[tokio::test]
async fn a_batch_is_stored_unchanged_except_for_offset_and_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[]).await;
    let batch = plain(b"first");
    wire.produce("t", &batch).await;
    wire.produce("t", &batch).await;
    let records = fetch(&mut wire, "t", 1).await.records.unwrap();
    assert_eq!(records[..8], 1_i64.to_be_bytes());
    assert_eq!(records[8..12], batch[8..12]);
    assert_eq!(records[12..16], 0_i32.to_be_bytes());
    assert_eq!(records[16..], batch[16..]);
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn damaged_old_and_too_large_batches_have_distinct_errors() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("max.message.bytes", "1000")]).await;
    let good = plain(b"x");
    let with = |at: usize, byte: u8| {
        let mut bad = good.to_vec();
        bad[at] = byte;
        bad
    };
    let cases = [
        (with(65, 0xff), ResponseError::CorruptMessage),
        (good[..30].to_vec(), ResponseError::CorruptMessage),
        (Vec::new(), ResponseError::CorruptMessage),
        (with(16, 1), ResponseError::UnsupportedForMessageFormat),
        (
            [&good[..], &good[..]].concat(),
            ResponseError::InvalidRecord,
        ),
        (plain(&[0; 2_000]).to_vec(), ResponseError::MessageTooLarge),
        // Snappy, of which a block announces 4 GiB less one.
        (
            compressed(2, b"\xff\xff\xff\xff\x0f"),
            ResponseError::MessageTooLarge,
        ),
        (
            compressed(5, b""),
            ResponseError::UnsupportedCompressionType,
        ),
    ];
    for (batch, expected) in cases {
        let answer = wire.produce("t", &batch).await;
        assert_eq!(answer.error_code, code(expected), "{expected:?}");
        assert!(answer.error_message.is_some());
    }
    assert_eq!(
        wire.produce("missing", &good).await.error_code,
        code(ResponseError::UnknownTopicOrPartition)
    );
    let answer = wire.ask(9, &produce_request("t", 5, &good)).await;
    let answer = &answer.responses[0].partition_responses[0];
    assert_eq!(answer.error_code, code(ResponseError::InvalidRequiredAcks));
    assert_eq!(
        offset_at(&mut wire, "t", -1).await,
        0,
        "nothing of it was appended"
    );
    let refused = BatchRefusal::ALL.map(|(_, name)| name);
    let refused: Vec<_> = refused
        .into_iter()
        .zip(broker.stats().batches_refused)
        .collect();
    // Without batches that are refused because of their topic or their acks.
    let expected = [
        ("too-large", 1),
        ("expanded-too-large", 1),
        ("corrupt", 3),
        ("unsupported", 2),
        ("invalid", 1),
    ];
    assert_eq!(refused, expected);
    assert!(broker.shutdown().await);
}

/// A batch whose records are these bytes, of the codec with this number.
fn compressed(codec: u8, records: &[u8]) -> Vec<u8> {
    let mut batch = plain(b"")[..61].to_vec();
    batch.extend_from_slice(records);
    batch[22] = codec;
    let length = batch.len() as i32 - 12;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    let sum = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&sum.to_be_bytes());
    batch
}

#[tokio::test]
async fn a_repeated_batch_gets_its_first_offset_also_after_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let at = now_ms();
    let sequence = |n: i32| batch_of(42, 0, n, at, b"once");
    let mut broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(
        &mut wire,
        "t",
        1,
        &[("flush.messages", "1"), ("segment.bytes", "1024")],
    )
    .await;
    for n in 0..40 {
        assert_eq!(
            wire.produce("t", &sequence(n)).await.base_offset,
            i64::from(n)
        );
    }
    for index_is_lost in [false, true] {
        assert!(broker.shutdown().await);
        if index_is_lost {
            for entry in fs::read_dir(dir.path().join("logs/t/0")).unwrap() {
                let path = entry.unwrap().path();
                if path
                    .extension()
                    .is_some_and(|extension| extension == "index")
                {
                    fs::remove_file(path).unwrap();
                }
            }
        }
        broker = self::broker(dir.path()).await;
        let mut wire = Wire::connect(broker.address()).await;
        for n in 35..40 {
            let repeated = wire.produce("t", &sequence(n)).await;
            assert_eq!(
                (repeated.error_code, repeated.base_offset),
                (0, i64::from(n))
            );
        }
        let out_of_order = code(ResponseError::OutOfOrderSequenceNumber);
        assert_eq!(
            wire.produce("t", &sequence(34)).await.error_code,
            out_of_order
        );
        assert_eq!(
            wire.produce("t", &sequence(41)).await.error_code,
            out_of_order
        );
        assert_eq!(offset_at(&mut wire, "t", -1).await, 40);
    }
    let mut wire = Wire::connect(broker.address()).await;
    let newer = batch_of(42, 1, 0, at, b"newer");
    assert_eq!(wire.produce("t", &newer).await.base_offset, 40);
    let fenced = wire.produce("t", &sequence(40)).await.error_code;
    assert_eq!(fenced, code(ResponseError::InvalidProducerEpoch));
    assert!(broker.shutdown().await);
}

#[tokio::test]
async fn a_torn_tail_is_cut_at_the_last_whole_batch() {
    let dir = tempfile::tempdir().unwrap();
    let mut broker = broker(dir.path()).await;
    let mut wire = Wire::connect(broker.address()).await;
    create(&mut wire, "t", 1, &[("flush.messages", "1")]).await;
    for n in 0..10_u8 {
        wire.produce("t", &plain(&[n])).await;
    }
    let batch = plain(b"torn");
    let mut whole = batch.to_vec();
    whole[..8].copy_from_slice(&10_i64.to_be_bytes());
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for torn in [
        &whole[..30],
        &whole[..whole.len() - 1],
        &damaged,
        &[0; 4096],
    ] {
        assert!(broker.shutdown().await);
        let path = segments(dir.path(), "t").remove(0);
        let before = fs::metadata(&path).unwrap().len();
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, torn).unwrap();
        drop(file);
        broker = self::broker(dir.path()).await;
        assert_eq!(fs::metadata(&path).unwrap().len(), before);
        let mut wire = Wire::connect(broker.address()).await;
        assert_eq!(offset_at(&mut wire, "t", -1).await, 10);
    }
    let mut wire = Wire::connect(broker.address()).await;
    assert_eq!(wire.produce("t", &plain(b"next")).await.base_offset, 10);
    assert_eq!(read(broker.address(), "t", 1, 11).await.len(), 11);
    assert!(broker.shutdown().await);
}
