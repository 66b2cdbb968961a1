//! Producers.

use std::time::Duration;

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{ErrorCode, KafkaSettings, OutRecord, ProduceError, ProducerOptions};

use super::cluster;
use crate::support::{OneProducer, send_one};

#[test]
fn a_record_that_never_left_is_refused_and_one_without_an_answer_is_unknown() {
    let (cluster, settings) = cluster("t", 1);
    let mut options = ProducerOptions::new("p");
    options.delivery_timeout = Duration::from_secs(3);
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");

    // A broker that accepts requests and answers too late. The producer must find it first, which
    // may take longer than the delivery timeout on a busy machine.
    let producer = OneProducer::new(&settings, &options).unwrap();
    let too_late = Err(ProduceError::Refused {
        code: ErrorCode::MessageTimedOut,
    });
    let mut sent = send_one(&producer, &record).result;
    while sent == too_late {
        sent = send_one(&producer, &record).result;
    }
    assert_eq!(sent, Ok(()));
    cluster
        .broker_round_trip_time(1, Duration::from_secs(10))
        .unwrap();
    let sent = send_one(&producer, &record).result;
    assert!(
        matches!(sent, Err(ProduceError::OutcomeUnknown { .. })),
        "{sent:?}"
    );
    drop(producer);

    // A broker that never existed.
    let nowhere = KafkaSettings::new("127.0.0.1:1");
    let producer = OneProducer::new(&nowhere, &options).unwrap();
    assert_eq!(send_one(&producer, &record).result, too_late);
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
fn a_producer_recovers_from_a_fatal_librdkafka_error() {
    let (cluster, settings) = cluster("t", 1);
    let producer = OneProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
    assert_eq!(send_one(&producer, &record).result, Ok(()));
    // The sequence numbers of producer and broker have diverged.
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

#[test]
fn a_success_without_an_offset_is_an_unknown_outcome() {
    let (cluster, settings) = cluster("t", 1);
    let producer = OneProducer::new(&settings, &ProducerOptions::new("p")).unwrap();
    let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
    assert_eq!(send_one(&producer, &record).offset, Some(Offset(0)));
    // The mock cluster answers this without appending anything, and librdkafka takes it for a
    // success.
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER],
    );
    let code = ErrorCode::Inconsistent;
    assert_eq!(
        send_one(&producer, &record).result,
        Err(ProduceError::OutcomeUnknown { code })
    );
}
