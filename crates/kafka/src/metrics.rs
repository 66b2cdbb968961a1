//! The metrics of producers. Handles are created once per producer, never per record.

use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::{Counter, Gauge};
use waybill_telemetry::{Declared, Metric};

const QUEUED_RECORDS: Metric<Gauge, 1> = Metric::new(
    "waybill_kafka_producer_queued_records",
    "Records in a producer that are neither acknowledged nor failed",
    ["client"],
);
const QUEUED_BYTES: Metric<Gauge, 1> = Metric::new(
    "waybill_kafka_producer_queued_bytes",
    "Bytes of the records in a producer that are neither acknowledged nor failed",
    ["client"],
);
const SETTLED: Metric<Counter, 2> = Metric::new(
    "waybill_kafka_producer_records_total",
    "Records settled by a producer, by outcome",
    ["client", "outcome"],
);

/// The metrics of producers.
pub const METRICS: &[&dyn Declared] = &[&QUEUED_RECORDS, &QUEUED_BYTES, &SETTLED];

/// The handles of one producer. Producers of the same name add up in the same gauges.
pub(crate) struct ProducerMetrics {
    queued_records: Share,
    queued_bytes: Share,
    pub(crate) acknowledged: Counter,
    pub(crate) failed: Counter,
}

impl ProducerMetrics {
    pub(crate) fn new(client_id: &str) -> Self {
        Self {
            queued_records: Share::of(QUEUED_RECORDS.of([client_id])),
            queued_bytes: Share::of(QUEUED_BYTES.of([client_id])),
            acknowledged: SETTLED.of([client_id, "acknowledged"]),
            failed: SETTLED.of([client_id, "failed"]),
        }
    }

    /// Sets the queued records and bytes.
    pub(crate) fn show_queued(&self, records: usize, bytes: usize) {
        self.queued_records.set(records);
        self.queued_bytes.set(bytes);
    }
}

/// The contribution of one producer to a gauge.
struct Share {
    gauge: Gauge,
    added: AtomicUsize,
}

impl Share {
    fn of(gauge: Gauge) -> Self {
        let added = AtomicUsize::new(0);
        Self { gauge, added }
    }

    fn set(&self, value: usize) {
        let before = self.added.swap(value, Ordering::Relaxed);
        self.gauge.increment(value as f64 - before as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn metrics_of_one_name_are_added_up() {
        // A gauge stores the bits of its value.
        let shown = Arc::new(AtomicU64::new(0));
        let [first, second] = [(); 2].map(|()| Share::of(Gauge::from_arc(shown.clone())));
        for (share, value, sum) in [
            (&first, 5, 5.0),
            (&second, 3, 8.0),
            (&first, 1, 4.0),
            (&first, 0, 3.0),
            (&second, 0, 0.0),
        ] {
            share.set(value);
            assert_eq!(f64::from_bits(shown.load(Ordering::Relaxed)), sum);
        }
    }
}
