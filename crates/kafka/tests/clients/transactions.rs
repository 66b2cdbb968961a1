//! Records that other clients' transactions leave in a partition. The embedded broker has no
//! transactions, so these tests run on Apache Kafka alone. The broker's own tests check that it
//! refuses them immediately.

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use waybill_engine::PartitionId;

use crate::fixture::Fixture;
use crate::support::{NOTHING, PATIENCE, read_to, send_batch};

/// A transactional producer, as another application may use.
pub(crate) struct Transactional(ThreadedProducer<DefaultProducerContext>);

impl Transactional {
    pub(crate) fn new(fixture: &Fixture) -> Self {
        let producer: ThreadedProducer<_> = ClientConfig::new()
            .set("bootstrap.servers", &fixture.settings.brokers)
            .set("transactional.id", fixture.name("writer"))
            .create()
            .unwrap();
        producer.init_transactions(PATIENCE).unwrap();
        Self(producer)
    }

    /// Begins a transaction and writes two records to partition 0.
    pub(crate) fn write_two(&self, topic: &str) {
        self.0.begin_transaction().unwrap();
        for value in ["a", "b"] {
            let record = BaseRecord::<str, str>::to(topic)
                .partition(0)
                .payload(value);
            self.0.send(record).map_err(|(error, _)| error).unwrap();
        }
        self.0.flush(PATIENCE).unwrap();
    }
}

/// Two records and their marker at 0 to 2, two aborted ones and theirs at 3 to 5, one more at 6.
#[test]
fn the_end_is_reported_after_markers_and_aborted_records_are_skipped() {
    let Some(fixture) = Fixture::apache_kafka() else {
        return;
    };
    let topic = fixture.topic("t", 1);
    let consumer = fixture.consumer(&topic, 0, 0);
    let writer = Transactional::new(&fixture);
    writer.write_two(&topic);
    writer.0.commit_transaction(PATIENCE).unwrap();
    assert_eq!(read_to(&consumer, &topic, 3), [0, 1]);
    let (_, end) = consumer
        .watermarks(&topic, PartitionId(0), PATIENCE)
        .unwrap();
    assert_eq!(end.0, 3, "the end that a successor has to read to");

    writer.write_two(&topic);
    writer.0.abort_transaction(PATIENCE).unwrap();
    assert_eq!(read_to(&consumer, &topic, 6), NOTHING);
    send_batch(&fixture.producer(), &topic, 0, &[b"c"]);
    assert_eq!(read_to(&consumer, &topic, 7), [6]);

    // A consumer that starts after the last record, at a marker, continues.
    let successor = fixture.consumer(&topic, 0, 2);
    assert_eq!(read_to(&successor, &topic, 7), [6]);
}

/// Only records of ended transactions are read: an open one holds back the records after it.
#[test]
fn an_open_transaction_blocks_later_records() {
    let Some(fixture) = Fixture::apache_kafka() else {
        return;
    };
    let topic = fixture.topic("t", 1);
    let consumer = fixture.consumer(&topic, 0, 0);
    let writer = Transactional::new(&fixture);
    writer.write_two(&topic);
    send_batch(&fixture.producer(), &topic, 0, &[b"c"]);
    assert_eq!(read_to(&consumer, &topic, 0), NOTHING);
    let (_, end) = consumer
        .watermarks(&topic, PartitionId(0), PATIENCE)
        .unwrap();
    assert_eq!(end.0, 0, "the end that a successor has to read to");
    writer.0.commit_transaction(PATIENCE).unwrap();
    assert_eq!(read_to(&consumer, &topic, 4), [0, 1, 2]);
}
