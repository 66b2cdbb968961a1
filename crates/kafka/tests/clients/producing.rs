//! Producers.

use std::thread;
use std::time::Instant;

use kafka_protocol::records::Record;
use tokio::sync::oneshot;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{Delivery, ErrorCode, Header, OutRecord, ProduceError, RawRecord, Settlement};

use crate::fixture::Fixture;
use crate::on_both_brokers;
use crate::raw;
use crate::support::{PATIENCE, read, send_batch, send_one};

on_both_brokers! {
    what_is_sent_is_read_back_with_key_headers_and_timestamp
    flushing_waits_for_every_acknowledgement
    a_record_that_is_too_large_for_its_topic_is_refused_for_good
    a_partition_that_does_not_exist_is_refused_for_good
    a_producer_continues_when_its_topic_is_recreated
    a_producer_continues_after_a_broken_sequence_that_is_fatal_to_librdkafka
}

fn what_is_sent_is_read_back_with_key_headers_and_timestamp(fixture: &Fixture) {
    let topic = fixture.topic("t", 2);
    let producer = fixture.one_producer();
    let headers = [
        Header {
            key: "traceparent",
            value: Some(b"00-ab"),
        },
        Header {
            key: "empty",
            value: Some(b""),
        },
        Header {
            key: "none",
            value: None,
        },
    ];
    let record = OutRecord {
        topic: &topic,
        partition: PartitionId(1),
        key: Some(b"k"),
        value: Some(b"v"),
        headers: &headers,
    };
    let before = now_ms();
    assert_eq!(
        send_one(&producer, &record),
        Delivery {
            partition: PartitionId(1),
            offset: Some(Offset(0)),
            result: Ok(())
        }
    );
    let bare = OutRecord {
        value: None,
        key: None,
        headers: &[],
        ..record
    };
    assert_eq!(send_one(&producer, &bare).offset, Some(Offset(1)));

    let records = read(&fixture.consumer(&topic, 1, 0), 2);
    let sent_ms = records[0].timestamp_ms;
    assert!(
        sent_ms.is_some_and(|sent| (before..=now_ms()).contains(&sent)),
        "{sent_ms:?}"
    );
    assert_eq!(
        records[0],
        RawRecord {
            topic: topic.clone(),
            partition: PartitionId(1),
            offset: Offset(0),
            timestamp_ms: sent_ms,
            key: Some(b"k".to_vec()),
            value: Some(b"v".to_vec()),
            headers: vec![
                ("traceparent".to_owned(), Some(b"00-ab".to_vec())),
                ("empty".to_owned(), Some(Vec::new())),
                ("none".to_owned(), None),
            ],
        }
    );
    assert_eq!(records[0].headers()[..], headers);
    assert_eq!((&records[1].key, &records[1].value), (&None, &None));
    assert!(records[1].headers.is_empty());
}

fn now_ms() -> i64 {
    let since = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
    i64::try_from(since.as_millis()).expect("it fits for long")
}

fn flushing_waits_for_every_acknowledgement(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let producer = fixture.producer();
    let (settlement, mut settled) = Settlement::channel(1_000);
    for _ in 0..1_000 {
        let record = OutRecord::new(&topic, PartitionId(0), b"k", b"v");
        producer.send(&record, settlement.clone()).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    // The producer's own thread may still be reporting the last outcome.
    let deadline = Instant::now() + PATIENCE;
    while producer.in_flight() > 0 {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    assert_eq!(settled.try_recv(), Ok(Ok(())));
    assert_eq!(read(&fixture.consumer(&topic, 0, 0), 1_000).len(), 1_000);
}

fn a_record_that_is_too_large_for_its_topic_is_refused_for_good(fixture: &Fixture) {
    let topic = fixture.topic_with("t", 1, &[("max.message.bytes", "2000")]);
    let producer = fixture.one_producer();
    let record = |value| OutRecord::new(&topic, PartitionId(0), b"k", value);
    assert_eq!(send_one(&producer, &record(b"before")).result, Ok(()));
    let refused = send_one(&producer, &record(&[0; 3_000]))
        .result
        .unwrap_err();
    assert_eq!(
        refused,
        ProduceError::Refused {
            code: ErrorCode::MessageSizeTooLarge
        }
    );
    assert!(refused.is_permanent());
    // A refused record does not end the producer, and leaves no gap.
    let after = send_one(&producer, &record(b"after"));
    assert_eq!((after.result, after.offset), (Ok(()), Some(Offset(1))));
}

fn a_partition_that_does_not_exist_is_refused_for_good(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let producer = fixture.one_producer();
    // The topic's partitions are known once a record was delivered.
    let record = OutRecord::new(&topic, PartitionId(0), b"k", b"v");
    assert_eq!(send_one(&producer, &record).result, Ok(()));
    let nowhere = OutRecord {
        partition: PartitionId(1),
        ..record
    };
    let (sender, _receiver) = oneshot::channel();
    let error = producer.send(&nowhere, Box::new(sender)).unwrap_err();
    let (_token, error) = error.into_parts();
    assert_eq!(
        error,
        ProduceError::Refused {
            code: ErrorCode::UnknownPartition
        }
    );
    assert!(error.is_permanent());
}

/// The new log does not know the producer's sequence numbers.
fn a_producer_continues_when_its_topic_is_recreated(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let producer = fixture.producer();
    send_batch(&producer, &topic, 0, &[b"a", b"b"]);
    fixture.delete(&topic);
    assert_eq!(fixture.topic("t", 1), topic);
    let deadline = Instant::now() + PATIENCE;
    // A record may be sent while the producer still knows the old topic.
    loop {
        let (settlement, settled) = Settlement::channel(1);
        let record = OutRecord::new(&topic, PartitionId(0), b"key", b"c");
        let sent = producer.send(&record, settlement.clone());
        if let Err(refused) = sent {
            let (token, error) = refused.into_parts();
            token.fail(error);
        }
        match settled.blocking_recv().unwrap() {
            Ok(()) => break,
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
    }
    let records = read(&fixture.consumer(&topic, 0, 0), 1);
    assert_eq!(records[0].value.as_deref(), Some(&b"c"[..]));
}

/// Another client writes under the producer's ID, more batches than a broker remembers: to the
/// broker the producer's next batch is neither the next one nor a duplicate.
fn a_producer_continues_after_a_broken_sequence_that_is_fatal_to_librdkafka(fixture: &Fixture) {
    let topic = fixture.topic("t", 1);
    let producer = fixture.one_producer();
    let record = |value| OutRecord::new(&topic, PartitionId(0), b"k", value);
    assert_eq!(send_one(&producer, &record(b"before")).result, Ok(()));
    let [first] = &raw::fetch(&fixture.settings, &topic)[..] else {
        panic!("there is one record");
    };
    for sequence in 1..=10 {
        let next = Record {
            sequence,
            ..first.clone()
        };
        raw::append(&fixture.settings, &topic, &[next]);
    }
    let failed = send_one(&producer, &record(b"broken")).result;
    assert!(failed.is_err());
    let after = send_one(&producer, &record(b"after"));
    assert_eq!((after.result, after.offset), (Ok(()), Some(Offset(11))));
}
