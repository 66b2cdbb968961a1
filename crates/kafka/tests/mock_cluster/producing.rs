//! Producers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use waybill_engine::PartitionId;
use waybill_kafka::{
    ErrorCode, KafkaSettings, OutRecord, ProduceError, ProducerOptions, SendError, Settlement,
};

use crate::{BatchProducer, OneProducer, PATIENCE, cluster, send_one};

#[test]
fn a_record_that_never_left_is_refused_and_one_without_an_answer_is_unknown() {
    let (cluster, settings) = cluster("t", 1);
    let mut options = ProducerOptions::new("p");
    options.delivery_timeout = Duration::from_secs(1);
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");

    // A broker that takes requests and answers too late.
    let producer = OneProducer::new(&settings, &options).unwrap();
    assert_eq!(send_one(&producer, &record).result, Ok(()));
    cluster
        .broker_round_trip_time(1, Duration::from_secs(4))
        .unwrap();
    let sent = send_one(&producer, &record).result;
    assert!(
        matches!(sent, Err(ProduceError::OutcomeUnknown { .. })),
        "{sent:?}"
    );
    drop(producer);

    // A broker that was never there.
    let nowhere = KafkaSettings::new("127.0.0.1:1");
    let producer = OneProducer::new(&nowhere, &options).unwrap();
    let sent = send_one(&producer, &record).result;
    assert_eq!(
        sent,
        Err(ProduceError::Refused {
            code: ErrorCode::MessageTimedOut
        })
    );
}

#[test]
fn a_record_that_the_broker_refuses_is_refused() {
    let (cluster, settings) = cluster("t", 1);
    let producer = OneProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
    assert_eq!(send_one(&producer, &record).result, Ok(()));
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_POLICY_VIOLATION],
    );
    let refused = send_one(&producer, &record).result.unwrap_err();
    assert_eq!(
        refused,
        ProduceError::Refused {
            code: ErrorCode::PolicyViolation
        }
    );
    assert!(refused.is_permanent());
    // A permanent refusal of one record does not end the producer.
    assert_eq!(send_one(&producer, &record).result, Ok(()));
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

    // The producer's end settles what it still held.
    drop(producer);
    assert_eq!(settled.try_recv(), Ok(Err(error)));
}

#[test]
fn flushing_waits_for_every_acknowledgement() {
    let (_cluster, settings) = cluster("t", 1);
    let producer = BatchProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let (settlement, mut settled) = Settlement::channel(1_000);
    for _ in 0..1_000 {
        let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
        producer.send(&record, Arc::clone(&settlement)).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    // The producer's own thread may be telling the last of them right now.
    let deadline = Instant::now() + PATIENCE;
    while producer.in_flight() > 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!(settled.try_recv(), Ok(Ok(())));
}

#[test]
fn a_producer_goes_on_after_an_error_that_is_fatal_to_librdkafka() {
    let (cluster, settings) = cluster("t", 1);
    let producer = OneProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
    assert_eq!(send_one(&producer, &record).result, Ok(()));
    // The sequence numbers of producer and broker have come apart.
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER],
    );
    let failed = send_one(&producer, &record).result.unwrap_err();
    assert!(
        matches!(failed, ProduceError::OutcomeUnknown { .. }),
        "{failed:?}"
    );
    assert_eq!(send_one(&producer, &record).result, Ok(()));
}
