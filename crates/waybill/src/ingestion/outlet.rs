//! The producer, made anew when it gave up, and the judgement whether the broker is there.

use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use waybill_kafka::{
    ClientError, Delivered, KafkaSettings, OutRecord, Producer, ProducerOptions, RequestError,
    SendError,
};

/// A producer that outlives librdkafka's fatal errors: an idempotent producer that cannot go on
/// without a gap or a repeat stops for good. No order is promised between requests, so a new one
/// may take its place.
#[derive(Debug)]
pub struct Outlet<D: Delivered> {
    settings: KafkaSettings,
    options: ProducerOptions,
    producer: RwLock<Arc<Producer<D>>>,
}

impl<D: Delivered> Outlet<D> {
    /// Makes the first producer.
    pub fn new(settings: KafkaSettings, options: ProducerOptions) -> Result<Self, ClientError> {
        let producer = RwLock::new(Arc::new(Producer::new(&settings, &options)?));
        Ok(Self {
            settings,
            options,
            producer,
        })
    }

    /// Enqueues a record.
    pub fn send(&self, record: &OutRecord<'_>, token: D) -> Result<(), SendError<D>> {
        let producer = self.producer();
        match producer.send(record, token) {
            Err(SendError::Refused { token, error })
                if producer.fatal_error().is_some() && self.replace(&producer).is_ok() =>
            {
                self.producer().send(record, token).inspect_err(|_| {
                    tracing::debug!(%error, "the producer was made anew and refuses as well");
                })
            }
            other => other,
        }
    }

    /// Waits until everything is settled. Blocks.
    pub fn flush(&self, timeout: Duration) -> Result<(), RequestError> {
        self.producer().flush(timeout)
    }

    fn producer(&self) -> Arc<Producer<D>> {
        Arc::clone(&self.producer.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a new producer in the place of `failed`, unless that has happened already.
    fn replace(&self, failed: &Arc<Producer<D>>) -> Result<(), ClientError> {
        let mut current = self
            .producer
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&current, failed) {
            return Ok(());
        }
        let reason = failed.fatal_error().unwrap_or_default();
        let new = Producer::new(&self.settings, &self.options).inspect_err(
            |error| tracing::error!(%error, reason, "no new producer could be made"),
        )?;
        tracing::warn!(reason, "the producer gave up and was made anew");
        drop(mem::replace(&mut *current, Arc::new(new)));
        Ok(())
    }
}

/// Whether acknowledgements come: a broker that is away is told at once to all who come after the
/// first that waited for it, instead of after everyone's own time-out.
///
/// What waits stays counted until the producer gives it up, so that from time to time, when nothing
/// waits any more, one request goes through to see whether the broker is back.
#[derive(Debug)]
pub struct Flow {
    began: Instant,
    stall_max: Duration,
    waiting: AtomicUsize,
    /// When an acknowledgement last came or the first of those waiting began, in ms after `began`.
    moved_ms: AtomicU64,
}

impl Flow {
    /// The longest that a broker may be silent before it counts as away.
    const STALL_MAX: Duration = Duration::from_secs(2);

    /// A flow in which records wait up to `accept_timeout`.
    pub fn new(accept_timeout: Duration) -> Self {
        Self {
            began: Instant::now(),
            stall_max: Self::STALL_MAX.min(accept_timeout),
            waiting: AtomicUsize::new(0),
            moved_ms: AtomicU64::new(0),
        }
    }

    /// Counts a record in, unless the flow has stalled. Each `true` must be followed by an
    /// [`end`](Self::end).
    pub fn begin(&self) -> bool {
        self.begin_at(Instant::now())
    }

    /// Counts a record out.
    pub fn end(&self, acknowledged: bool) {
        self.end_at(acknowledged, Instant::now());
    }

    fn begin_at(&self, now: Instant) -> bool {
        if self.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            self.moved(now);
            return true;
        }
        let moved = self.began + Duration::from_millis(self.moved_ms.load(Ordering::Acquire));
        if now.saturating_duration_since(moved) <= self.stall_max {
            return true;
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        false
    }

    fn end_at(&self, acknowledged: bool, now: Instant) {
        if acknowledged {
            self.moved(now);
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    fn moved(&self, now: Instant) {
        let millis = now.saturating_duration_since(self.began).as_millis();
        self.moved_ms
            .fetch_max(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_is_silent_turns_requests_away_until_nothing_waits() {
        let flow = Flow::new(Duration::from_secs(10));
        let at = |ms: u64| flow.began + Duration::from_millis(ms);
        assert!(flow.begin_at(at(0)));
        assert!(flow.begin_at(at(2_000)));
        assert!(!flow.begin_at(at(2_001)));
        flow.end_at(false, at(10_000));
        assert!(!flow.begin_at(at(10_000)));
        flow.end_at(false, at(12_000));
        assert!(
            flow.begin_at(at(12_000)),
            "the one that sees whether the broker is back"
        );
        assert!(flow.begin_at(at(14_000)));
        assert!(!flow.begin_at(at(14_001)));
    }

    #[test]
    fn acknowledgements_keep_it_open() {
        let flow = Flow::new(Duration::from_secs(10));
        let at = |ms: u64| flow.began + Duration::from_millis(ms);
        assert!(flow.begin_at(at(0)));
        assert!(flow.begin_at(at(0)));
        flow.end_at(true, at(1_900));
        assert!(flow.begin_at(at(3_900)));
        assert!(!flow.begin_at(at(3_901)));
        flow.end_at(true, at(5_000));
        assert!(flow.begin_at(at(5_000)));
    }
}
