//! One token for a whole batch of records.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::oneshot;

use crate::delivery::{DeliveredShared, Delivery, ProduceError};

/// The outcome of a batch: the first error, if any of its records failed.
pub type Settled = Result<(), ProduceError>;

/// The callback of a settlement, called when its batch is settled.
type Done = Box<dyn FnOnce(Settled) + Send>;

/// Counts the deliveries of a batch and reports its outcome once. Costs one allocation for the
/// batch and none per record.
///
/// Every record counts: settle a record that could not be enqueued with [`Settlement::fail`]. If
/// the settlement is dropped before all records were settled, the batch's outcome is unknown.
pub struct Settlement {
    open: AtomicUsize,
    first_error: OnceLock<ProduceError>,
    done: Mutex<Option<Done>>,
}

impl Settlement {
    /// A settlement of `records` records that calls `done` once: on the thread that settles the
    /// last of them, or immediately if there are none. `done` must not block.
    pub fn new(records: usize, done: impl FnOnce(Settled) + Send + 'static) -> Arc<Self> {
        let settlement = Self {
            open: AtomicUsize::new(records),
            first_error: OnceLock::new(),
            done: Mutex::new(Some(Box::new(done))),
        };
        if records == 0 {
            settlement.finish(Ok(()));
        }
        Arc::new(settlement)
    }

    /// A settlement that sends the outcome to a receiver.
    #[must_use]
    pub fn channel(records: usize) -> (Arc<Self>, oneshot::Receiver<Settled>) {
        let (sender, receiver) = oneshot::channel();
        // The receiver may have been dropped.
        let settlement = Self::new(records, move |settled| {
            _ = sender.send(settled);
        });
        (settlement, receiver)
    }

    /// Settles one record that was not enqueued.
    pub fn fail(&self, error: ProduceError) {
        self.settle(Err(error));
    }

    /// The number of records that are not settled yet.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn settle(&self, result: Result<(), ProduceError>) {
        if let Err(error) = result {
            // Keeps the first error only.
            _ = self.first_error.set(error);
        }
        let last = self
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                open.checked_sub(1)
            });
        if last == Ok(1) {
            self.finish(self.first_error.get().map_or(Ok(()), |error| Err(*error)));
        }
    }

    fn finish(&self, settled: Settled) {
        let done = self
            .done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(done) = done {
            done(settled);
        }
    }
}

impl DeliveredShared for Settlement {
    fn delivered(&self, delivery: Delivery) {
        self.settle(delivery.result);
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        let code = RDKafkaErrorCode::PurgeInflight;
        let first = self.first_error.get().copied();
        self.finish(Err(first.unwrap_or(ProduceError::OutcomeUnknown { code })));
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement")
            .field("open", &self.open())
            .field("first_error", &self.first_error.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use waybill_engine::{Offset, PartitionId};

    use super::*;

    fn delivered() -> Delivery {
        Delivery {
            partition: PartitionId(0),
            offset: Some(Offset(1)),
            result: Ok(()),
        }
    }

    #[test]
    fn a_batch_is_settled_once_after_its_last_record() {
        let (settlement, mut receiver) = Settlement::channel(2);
        settlement.delivered(delivered());
        assert!(receiver.try_recv().is_err());
        settlement.delivered(delivered());
        assert_eq!(receiver.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn an_empty_batch_is_settled_immediately() {
        let (_settlement, mut receiver) = Settlement::channel(0);
        assert_eq!(receiver.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn the_first_error_is_the_batchs() {
        let first = ProduceError::Refused {
            code: RDKafkaErrorCode::QueueFull,
        };
        let second = ProduceError::OutcomeUnknown {
            code: RDKafkaErrorCode::MessageTimedOut,
        };
        let (settlement, mut receiver) = Settlement::channel(3);
        settlement.delivered(delivered());
        settlement.fail(first);
        settlement.delivered(Delivery::failed(PartitionId(0), second));
        assert_eq!(receiver.try_recv(), Ok(Err(first)));
    }

    #[test]
    fn a_batch_that_is_dropped_early_has_an_unknown_outcome() {
        let (settlement, mut receiver) = Settlement::channel(2);
        settlement.delivered(delivered());
        drop(settlement);
        assert!(matches!(
            receiver.try_recv(),
            Ok(Err(ProduceError::OutcomeUnknown { .. }))
        ));
    }

    #[test]
    fn settling_more_often_than_there_are_records_changes_nothing() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let settlement = Settlement::new(1, move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        for _ in 0..3 {
            settlement.delivered(delivered());
        }
        drop(settlement);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn many_threads_settle_a_batch_exactly_once() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let settlement = Settlement::new(8_000, move |settled| {
            assert_eq!(settled, Ok(()));
            counter.fetch_add(1, Ordering::Relaxed);
        });
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1_000).for_each(|_| settlement.delivered(delivered())));
            }
        });
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!(settlement.open(), 0);
    }
}
