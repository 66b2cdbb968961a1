//! The metrics of producers. Handles are made once per producer, never per record.

use metrics::{Counter, Gauge};
use waybill_telemetry::{Declared, Metric};

const QUEUED_RECORDS: Metric<Gauge, 1> = Metric::new(
    "waybill_kafka_producer_queued_records",
    "Records that were handed to a producer and are neither acknowledged nor given up",
    ["client"],
);
const QUEUED_BYTES: Metric<Gauge, 1> = Metric::new(
    "waybill_kafka_producer_queued_bytes",
    "Bytes of these records",
    ["client"],
);
const SETTLED: Metric<Counter, 2> = Metric::new(
    "waybill_kafka_producer_records_total",
    "Records that a producer was done with, by whether a broker acknowledged them",
    ["client", "outcome"],
);

/// The metrics of producers.
pub const METRICS: &[&dyn Declared] = &[&QUEUED_RECORDS, &QUEUED_BYTES, &SETTLED];

/// One producer's handles.
pub(crate) struct ProducerMetrics {
    pub(crate) queued_records: Gauge,
    pub(crate) queued_bytes: Gauge,
    pub(crate) acknowledged: Counter,
    pub(crate) failed: Counter,
}

impl ProducerMetrics {
    pub(crate) fn new(client_id: &str) -> Self {
        Self {
            queued_records: QUEUED_RECORDS.of([client_id]),
            queued_bytes: QUEUED_BYTES.of([client_id]),
            acknowledged: SETTLED.of([client_id, "acknowledged"]),
            failed: SETTLED.of([client_id, "failed"]),
        }
    }
}
