//! The final states, as the status topic tells them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use waybill_engine::{OperationId, OperationStatus, PartitionId, ProcessState};
use waybill_kafka::{Admin, ConsumerOptions, KafkaSettings, PartitionConsumer, PollLimits};
use waybill_messages::{Record as _, Topics};

use crate::run::record;

const POLL: PollLimits = PollLimits {
    records: 10_000,
    bytes: 16 * 1024 * 1024,
};
const TIMEOUT: Duration = Duration::from_secs(10);

/// Follows the status topic from where it ended when this was made.
#[derive(Clone)]
pub struct Completions {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    stop: AtomicBool,
    follower: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    /// Accepted and not final.
    open: HashMap<OperationId, Instant>,
    /// Final before the answer to their request was read.
    early: HashMap<OperationId, (Instant, ProcessState)>,
    finished: Finished,
}

/// What became of the accepted requests.
#[derive(Clone)]
pub struct Finished {
    /// Ended `Processed`.
    pub completed: usize,
    /// Ended otherwise.
    pub failed: usize,
    /// From the intended time to the final state's arrival, in microseconds.
    pub end_to_end_us: Histogram<u64>,
    /// When the last one ended.
    pub last: Option<Instant>,
}

impl Default for Finished {
    fn default() -> Self {
        let end_to_end_us = Histogram::new(3).expect("three digits are allowed");
        Self {
            completed: 0,
            failed: 0,
            end_to_end_us,
            last: None,
        }
    }
}

impl Completions {
    pub async fn follow(brokers: &str, prefix: &str) -> anyhow::Result<Self> {
        let settings = KafkaSettings::new(brokers);
        let topics = Topics::new(prefix);
        let topic = topics.operation_status().to_owned();
        let admin = Admin::new(&settings, "waybill-loadtest-admin")?;
        let partitions = admin
            .topic_partitions(&topic)
            .await?
            .context("there is no status topic")?;
        let consumer =
            PartitionConsumer::new(&settings, &ConsumerOptions::new("waybill-loadtest"))?;
        let mut ends = Vec::new();
        for partition in (0..partitions).map(PartitionId) {
            let (_, end) = consumer.watermarks(&topic, partition, TIMEOUT)?;
            ends.push((topic.as_str(), partition, end));
        }
        consumer.assign(&ends)?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            stop: AtomicBool::new(false),
            follower: Mutex::default(),
        });
        let following = shared.clone();
        let follower = std::thread::Builder::new()
            .name("status".to_owned())
            .spawn(move || following.follow(&consumer))?;
        *shared
            .follower
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(follower);
        Ok(Self { shared })
    }

    /// A request was accepted that was meant to leave at `intended`.
    pub fn accepted(&self, id: OperationId, intended: Instant) {
        let mut state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match state.early.remove(&id) {
            Some((at, end)) => state.finished.count(intended, at, end),
            None => drop(state.open.insert(id, intended)),
        }
    }

    /// Waits until `accepted` operations are final, or `patience` is over.
    pub fn finish(&self, accepted: usize, patience: Duration) -> Finished {
        let deadline = Instant::now() + patience;
        let finished = loop {
            let state = self
                .shared
                .state
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let done = state.finished.completed + state.finished.failed >= accepted;
            if done || Instant::now() >= deadline {
                break state.finished.clone();
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(20));
        };
        self.shared.stop.store(true, Ordering::Relaxed);
        let follower = self
            .shared
            .follower
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if follower.is_some_and(|follower| follower.join().is_err()) {
            eprintln!("the thread that follows the status topic panicked");
        }
        finished
    }
}

impl Shared {
    fn follow(&self, consumer: &PartitionConsumer) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut arrived = Vec::new();
            let polled = consumer.poll(POLL, Duration::from_millis(100), &mut |record| {
                if let Some(Ok(status)) = record.value().map(OperationStatus::decode) {
                    arrived.push((status.operation, status.state));
                }
            });
            if let Err(error) = polled {
                eprintln!("the status topic cannot be read any further: {error}");
                return;
            }
            let now = Instant::now();
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            for (id, end) in arrived {
                match state.open.remove(&id) {
                    Some(intended) => state.finished.count(intended, now, end),
                    None => drop(state.early.insert(id, (now, end))),
                }
            }
        }
    }
}

impl Finished {
    fn count(&mut self, intended: Instant, at: Instant, end: ProcessState) {
        if end == ProcessState::Processed {
            self.completed += 1;
        } else {
            self.failed += 1;
        }
        let micros = at.saturating_duration_since(intended).as_micros();
        record(
            &mut self.end_to_end_us,
            u64::try_from(micros).unwrap_or(u64::MAX),
        );
        self.last = Some(self.last.map_or(at, |last| last.max(at)));
    }
}
