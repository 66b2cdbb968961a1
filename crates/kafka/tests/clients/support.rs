//! Helpers of the tests, for any broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Delivery, OutRecord, PartitionConsumer, PollError, PollLimits, Producer, RawRecord, RecordRef,
    Settlement,
};

/// Longer than any step takes: only a failing test waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const ALL: PollLimits = PollLimits {
    records: 10_000,
    bytes: 64 * 1024 * 1024,
};
/// How long one poll waits before the test checks again.
pub(crate) const A_WHILE: Duration = Duration::from_millis(100);

pub(crate) type BatchProducer = Producer<Arc<Settlement>>;
pub(crate) type OneProducer = Producer<Box<oneshot::Sender<Delivery>>>;

pub(crate) fn send_batch(producer: &BatchProducer, topic: &str, partition: u32, values: &[&[u8]]) {
    let (settlement, settled) = Settlement::channel(values.len());
    for value in values {
        let record = OutRecord::new(topic, PartitionId(partition), b"key", value);
        producer.send(&record, Arc::clone(&settlement)).unwrap();
    }
    assert_eq!(settled.blocking_recv(), Ok(Ok(())));
}

pub(crate) fn send_one(producer: &OneProducer, record: &OutRecord<'_>) -> Delivery {
    let (sender, receiver) = oneshot::channel();
    producer.send(record, Box::new(sender)).unwrap();
    receiver.blocking_recv().unwrap()
}

/// Polls until `count` records have arrived.
pub(crate) fn read(consumer: &PartitionConsumer, count: usize) -> Vec<RawRecord> {
    let deadline = Instant::now() + PATIENCE;
    let mut records = Vec::new();
    while records.len() < count {
        assert!(
            Instant::now() < deadline,
            "{} of {count} records came",
            records.len()
        );
        consumer
            .poll(ALL, A_WHILE, &mut |record| records.push(record.to_raw()))
            .unwrap();
    }
    records
}

pub(crate) fn values(records: &[RawRecord]) -> Vec<&[u8]> {
    records
        .iter()
        .map(|record| record.value.as_deref().unwrap())
        .collect()
}

/// Polls a consumer that cannot read until it reports why.
pub(crate) fn read_to_error(consumer: &PartitionConsumer) -> PollError {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no error came");
        let polled = consumer.poll(ALL, A_WHILE, &mut |record| {
            panic!("there is no record at {:?}", record.offset())
        });
        if let Err(error) = polled {
            return error;
        }
    }
}

/// The result of [`read_to`] if only the end was reported.
pub(crate) const NOTHING: [i64; 0] = [];

/// Polls until the end of partition 0 of the topic is reported at `end`. Returns the offsets of the
/// records handed over in the meantime, none of which may come after the end that covers it.
pub(crate) fn read_to(consumer: &PartitionConsumer, topic: &str, end: i64) -> Vec<i64> {
    let deadline = Instant::now() + PATIENCE;
    let mut offsets = Vec::new();
    let mut reported_end = None;
    while reported_end != Some(Offset(end)) {
        assert!(
            Instant::now() < deadline,
            "the end is at {reported_end:?}, not {end}"
        );
        let mut on_record = |record: RecordRef<'_>| {
            assert!(reported_end.is_none_or(|reported_end| reported_end <= record.offset()));
            offsets.push(record.offset().0);
        };
        let mut ends = Vec::new();
        consumer
            .poll_with_positions(
                ALL,
                A_WHILE,
                &mut on_record,
                &mut |of, partition, position| {
                    assert_eq!(partition, PartitionId(0));
                    ends.extend((of == topic).then_some(position));
                },
            )
            .unwrap();
        reported_end = ends.pop().or(reported_end);
    }
    offsets
}
