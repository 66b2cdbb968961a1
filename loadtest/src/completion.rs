//! The final states, as the status topic tells them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use waybill_engine::{Offset, OperationId, OperationStatus, PartitionId, ProcessState, StatusKind};
use waybill_kafka::{Admin, ConsumerOptions, KafkaSettings, PartitionConsumer, PollLimits};
use waybill_messages::{Framing, Topics};

use crate::delivery::Delivery;
use crate::run::record;

const POLL: PollLimits = PollLimits {
    records: 10_000,
    bytes: 16 * 1024 * 1024,
};
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked how many partitions the topic has.
const COUNT_EVERY: Duration = Duration::from_secs(2);

/// Follows the status topic from where it ended when this was made.
#[derive(Clone)]
pub struct Completions {
    shared: Arc<Shared>,
}

struct Shared {
    known: Mutex<Known>,
    framing: Framing,
    /// How many partitions the topic has.
    partitions: AtomicU32,
    stop: AtomicBool,
    follower: Mutex<Option<JoinHandle<anyhow::Result<()>>>>,
}

/// What is known of the accepted deliveries. It only grows: a final state may be followed by
/// another, and a judge asks for all of them.
struct Known {
    accepted: HashMap<OperationId, Accepted>,
    /// Final before the answer to their request was read.
    early: HashMap<OperationId, End>,
    ended: usize,
    end_to_end_us: Histogram<u64>,
    last: Option<Instant>,
}

struct Accepted {
    delivery: Delivery,
    intended: Instant,
    end: Option<End>,
}

/// The newest final state of an operation.
#[derive(Clone, Copy, Debug)]
struct End {
    state: ProcessState,
    sequence: u32,
    /// When its first final state arrived.
    at: Instant,
}

/// What became of the accepted requests.
pub struct Finished {
    /// How many ended in each final or parked state.
    pub states: BTreeMap<&'static str, usize>,
    /// How many ended in none.
    pub open: usize,
    /// From the intended time to the first final state's arrival, in microseconds.
    pub end_to_end_us: Histogram<u64>,
    /// When the last one ended.
    pub last: Option<Instant>,
}

impl Finished {
    /// How many ended `Processed`.
    pub fn processed(&self) -> usize {
        let name = ProcessState::Processed.as_str();
        self.states.get(name).copied().unwrap_or_default()
    }

    /// How many ended at all.
    pub fn ended(&self) -> usize {
        self.states.values().sum()
    }
}

impl Completions {
    pub async fn follow(brokers: &str, topics: &Topics) -> anyhow::Result<Self> {
        let settings = KafkaSettings::new(brokers);
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
        consumer.add(&ends)?;
        let shared = Arc::new(Shared {
            known: Mutex::new(Known::new()?),
            framing: topics.framing().clone(),
            partitions: AtomicU32::new(partitions),
            stop: AtomicBool::new(false),
            follower: Mutex::default(),
        });
        tokio::spawn(count_partitions(
            Arc::downgrade(&shared),
            admin,
            topic.clone(),
        ));
        let following = shared.clone();
        let follower = std::thread::Builder::new()
            .name("status".to_owned())
            .spawn(move || following.follow(&consumer, &topic, partitions))?;
        *shared
            .follower
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(follower);
        Ok(Self { shared })
    }

    /// A delivery was accepted that was meant to leave at `intended`.
    pub fn accepted(&self, id: OperationId, delivery: Delivery, intended: Instant) {
        self.shared.known().accepted(id, delivery, intended);
    }

    /// Waits until every accepted delivery has ended, `deadline` has come, or nothing can be learnt
    /// any more.
    pub fn wait_until(&self, deadline: Instant) {
        while Instant::now() < deadline && self.is_followed() && !self.shared.known().all_ended() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What is known by now.
    pub fn finished(&self) -> Finished {
        self.shared.known().finished()
    }

    /// The accepted deliveries and their newest final states.
    pub fn states(&self) -> HashMap<OperationId, (Delivery, Option<ProcessState>)> {
        let known = self.shared.known();
        let accepted = known.accepted.iter();
        accepted
            .map(|(id, accepted)| {
                let state = accepted.end.map(|end| end.state);
                (*id, (accepted.delivery, state))
            })
            .collect()
    }

    /// Stops following.
    ///
    /// # Errors
    ///
    /// If the topic could not be followed until now.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let follower = self.shared.follower().take();
        let Some(follower) = follower else {
            return Ok(());
        };
        match follower.join() {
            Ok(followed) => followed.context("the status topic could not be followed to the end"),
            Err(_) => anyhow::bail!("the thread that follows the status topic panicked"),
        }
    }

    fn is_followed(&self) -> bool {
        let follower = self.shared.follower();
        follower
            .as_ref()
            .is_some_and(|follower| !follower.is_finished())
    }
}

/// Looks whether the topic has got more partitions, for as long as anybody follows it.
async fn count_partitions(shared: Weak<Shared>, admin: Admin, topic: String) {
    loop {
        tokio::time::sleep(COUNT_EVERY).await;
        let found = admin.topic_partitions(&topic).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if let Ok(Some(partitions)) = found {
            shared.partitions.fetch_max(partitions, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Reads the first `partitions` of the topic, and those that come later from their beginning.
    fn follow(
        &self,
        consumer: &PartitionConsumer,
        topic: &str,
        mut partitions: u32,
    ) -> anyhow::Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.partitions.load(Ordering::Relaxed);
            let new = (partitions..now).map(|new| (topic, PartitionId(new), Offset(0)));
            let new: Vec<_> = new.collect();
            if !new.is_empty() {
                consumer.add(&new)?;
                partitions = now;
            }
            let mut arrived = Vec::new();
            consumer.poll(POLL, Duration::from_millis(100), &mut |record| {
                let decoded = record.value().map(|value| self.framing.decode(value));
                if let Some(Ok::<OperationStatus, _>(status)) = decoded
                    && status.kind == StatusKind::Final
                {
                    arrived.push((status.operation, status.state, status.sequence));
                }
            })?;
            let at = Instant::now();
            let mut known = self.known();
            for (id, state, sequence) in arrived {
                let end = End {
                    state,
                    sequence,
                    at,
                };
                known.ended(id, end);
            }
        }
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follower(&self) -> MutexGuard<'_, Option<JoinHandle<anyhow::Result<()>>>> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            accepted: HashMap::new(),
            early: HashMap::new(),
            ended: 0,
            end_to_end_us: Histogram::new(3)?,
            last: None,
        })
    }

    fn accepted(&mut self, id: OperationId, delivery: Delivery, intended: Instant) {
        let accepted = Accepted {
            delivery,
            intended,
            end: None,
        };
        self.accepted.insert(id, accepted);
        if let Some(end) = self.early.remove(&id) {
            self.ended(id, end);
        }
    }

    fn ended(&mut self, id: OperationId, end: End) {
        let Some(accepted) = self.accepted.get_mut(&id) else {
            let early = self.early.entry(id).or_insert(end);
            early.take(end);
            return;
        };
        if let Some(before) = &mut accepted.end {
            before.take(end);
            return;
        }
        accepted.end = Some(end);
        self.ended += 1;
        let micros = end.at.saturating_duration_since(accepted.intended);
        record(
            &mut self.end_to_end_us,
            u64::try_from(micros.as_micros()).unwrap_or(u64::MAX),
        );
        self.last = Some(self.last.map_or(end.at, |last| last.max(end.at)));
    }

    fn all_ended(&self) -> bool {
        self.ended == self.accepted.len()
    }

    fn finished(&self) -> Finished {
        let mut states = BTreeMap::new();
        for end in self.accepted.values().filter_map(|accepted| accepted.end) {
            *states.entry(end.state.as_str()).or_default() += 1;
        }
        Finished {
            states,
            open: self.accepted.len() - self.ended,
            end_to_end_us: self.end_to_end_us.clone(),
            last: self.last,
        }
    }
}

impl End {
    /// Takes over what is newer in `other`. Records come in any order: one is sent again after a
    /// restart.
    fn take(&mut self, other: Self) {
        if other.sequence > self.sequence {
            self.state = other.state;
            self.sequence = other.sequence;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> OperationId {
        OperationId::of_caller("", "1")
    }

    fn end(state: ProcessState, sequence: u32, at: Instant) -> End {
        End {
            state,
            sequence,
            at,
        }
    }

    fn state(known: &Known) -> Option<ProcessState> {
        known.accepted[&id()].end.map(|end| end.state)
    }

    #[test]
    fn the_highest_sequence_wins_in_whatever_order_the_states_come() {
        let now = Instant::now();
        let mut known = Known::new().unwrap();
        known.accepted(id(), Delivery::new(1), now);
        known.ended(id(), end(ProcessState::Error, 1, now));
        assert_eq!(state(&known), Some(ProcessState::Error));
        known.ended(id(), end(ProcessState::Processed, 2, now));
        known.ended(id(), end(ProcessState::Error, 1, now));
        assert_eq!(state(&known), Some(ProcessState::Processed));
        let finished = known.finished();
        assert_eq!(
            (finished.processed(), finished.ended(), finished.open),
            (1, 1, 0)
        );
    }

    #[test]
    fn what_ended_before_its_answer_was_read_counts_once_with_its_newest_state() {
        let now = Instant::now();
        let mut known = Known::new().unwrap();
        known.ended(id(), end(ProcessState::Error, 1, now));
        known.ended(id(), end(ProcessState::Compensated, 2, now));
        assert!(
            known.all_ended(),
            "nothing was accepted: {}",
            known.finished().open
        );
        known.accepted(id(), Delivery::new(1), now);
        assert_eq!(state(&known), Some(ProcessState::Compensated));
        assert!(known.all_ended() && known.early.is_empty());
    }

    #[test]
    fn the_latency_is_that_of_the_first_final_state() {
        let intended = Instant::now();
        let mut known = Known::new().unwrap();
        known.accepted(id(), Delivery::new(1), intended);
        let first = intended + Duration::from_millis(20);
        known.ended(id(), end(ProcessState::Error, 1, first));
        let later = intended + Duration::from_secs(60);
        known.ended(id(), end(ProcessState::Processed, 2, later));
        let finished = known.finished();
        assert_eq!(finished.end_to_end_us.len(), 1);
        assert!((20_000..20_100).contains(&finished.end_to_end_us.max()));
        assert_eq!(finished.last, Some(first));
    }
}
