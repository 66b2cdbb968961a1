//! Clients of an unreachable broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, AdminError, ConsumerOptions, ErrorCode, GroupConsumer, GroupOptions, KafkaSettings,
    OutRecord, PartitionConsumer, Polled, ProduceError, ProducerOptions, SendError, Settlement,
};

use crate::support::{ALL, BatchProducer, PATIENCE};

#[tokio::test]
async fn the_client_waits_for_a_missing_broker_only_until_the_timeout() {
    let admin = Admin::new(&KafkaSettings::new("127.0.0.1:1"), "admin").unwrap();
    let started = Instant::now();
    let error = admin
        .wait_ready(Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(matches!(error, AdminError::NotReady { .. }), "{error:?}");
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn consumers_of_an_unreachable_broker_end_when_they_are_dropped() {
    let nowhere = KafkaSettings::new("127.0.0.1:1");
    let started = Instant::now();
    let mut options = ConsumerOptions::new("c");
    options.group_for_lag = Some("lag".to_owned());
    let consumer = PartitionConsumer::new(&nowhere, &options).unwrap();
    consumer
        .assign(&[("t", PartitionId(0), Offset(0))])
        .unwrap();
    let polled = consumer
        .poll(ALL, Duration::from_millis(50), &mut |_| panic!())
        .unwrap();
    assert_eq!(polled, Polled::default());
    let asked = consumer.topic_id("t", PartitionId(0), Duration::from_millis(50));
    assert!(asked.is_err());
    consumer.commit_copy(&[("t", PartitionId(0), Offset(5))]);
    drop(consumer);
    let mut member = GroupConsumer::new(&nowhere, &GroupOptions::new("g", "c")).unwrap();
    member.subscribe(&["t"]).unwrap();
    drop(member);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

#[test]
fn a_full_queue_and_an_oversized_record_give_the_token_back() {
    let nowhere = KafkaSettings::new("127.0.0.1:1");
    let mut options = ProducerOptions::new("p");
    options.queue_records_max = 2;
    options.message_bytes_max = 2_000;
    let producer = BatchProducer::new(&nowhere, &options).unwrap();
    let (settlement, mut settled) = Settlement::channel(3);
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
    producer.send(&record, Arc::clone(&settlement)).unwrap();
    producer.send(&record, Arc::clone(&settlement)).unwrap();
    assert_eq!(producer.in_flight(), 2);

    let refused = producer.send(&record, Arc::clone(&settlement)).unwrap_err();
    assert!(matches!(refused, SendError::QueueFull(_)), "{refused:?}");
    let started = Instant::now();
    let waited = Duration::from_millis(30);
    let refused = producer
        .send_or_wait(&record, Arc::clone(&settlement), waited)
        .unwrap_err();
    assert!(matches!(refused, SendError::QueueFull(_)), "{refused:?}");
    assert!(started.elapsed() >= waited);

    let large = OutRecord::new("t", PartitionId(0), b"k", &[0; 3_000]);
    let refused = producer.send(&large, Arc::clone(&settlement)).unwrap_err();
    let (token, error) = refused.into_parts();
    assert_eq!(
        error,
        ProduceError::Refused {
            code: ErrorCode::MessageSizeTooLarge
        }
    );
    token.fail(error);
    assert_eq!(settlement.open(), 2);
    assert!(settled.try_recv().is_err());

    // Dropping the producer settles its remaining records.
    drop(producer);
    assert_eq!(settled.try_recv(), Ok(Err(error)));
}
