//! The consumer of failed operations among faults: publishes fail, or are acknowledged too late;
//! processes die; partitions go to other members of the group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    Action, Attempt, BootTime, FailedOperation, Now, Offset, OperationId, PartitionId, StepError,
    Timestamp, Workflows,
};
use waybill_supervisor_core::failed::{Content, Effect, Event, Uncommitted};
use waybill_supervisor_core::{FailedOperations, FailedSettings};

use crate::rng::Rng;

/// How many times a run does something until nothing fails any more.
const FAULTY_STEPS: usize = 60;
const STEPS_MAX: usize = 2_000;

/// The topic, its consumer group and the recovery topic.
struct Topic {
    rng: Rng,
    records: BTreeMap<(PartitionId, Offset), Record>,
    committed: BTreeMap<PartitionId, Offset>,
    /// Operations whose recovery the broker has.
    recovered: BTreeSet<OperationId>,
    /// The records of the last poll.
    polled: Vec<(PartitionId, Offset)>,
    /// Records whose dead letter the broker has.
    buried: BTreeSet<(PartitionId, Offset)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Record {
    Failed(OperationId),
    Undecodable,
    /// Its schema becomes known once it was polled this often.
    Waits(OperationId, u64),
}

pub fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut records = BTreeMap::new();
    for number in 0..rng.between(1, 30) {
        let operation = OperationId(Uuid::from_u128(u128::from(number) + 1));
        let partition = PartitionId(u32::try_from(rng.below(2)).unwrap());
        let record = match rng.below(10) {
            0 => Record::Undecodable,
            1 => Record::Waits(operation, rng.below(4)),
            _ => Record::Failed(operation),
        };
        let offset = Offset(i64::try_from(number).unwrap());
        records.insert((partition, offset), record);
    }
    let mut topic = Topic {
        rng,
        records,
        committed: BTreeMap::new(),
        recovered: BTreeSet::new(),
        polled: Vec::new(),
        buried: BTreeSet::new(),
    };
    let mut failed = new();
    let mut event = Event::Started;
    let mut held = true;
    for step in 0..STEPS_MAX {
        let is_calm = step >= FAULTY_STEPS;
        if is_calm && topic.is_done() {
            return;
        }
        if !is_calm && topic.rng.chance(5) {
            // The process dies, and another reads on from the committed offsets.
            (failed, event) = (new(), Event::Started);
        }
        let now = Now {
            wall: Timestamp(1),
            boot: BootTime::new(Duration::ZERO),
        };
        let output = failed.handle(event, now).expect("it is the answer");
        if matches!(output.effect, Effect::Poll { .. }) {
            held = is_calm || topic.rng.chance(80);
        }
        event = topic.perform(seed, output.effect, held, is_calm);
    }
    panic!("seed {seed}: records are left");
}

fn new() -> FailedOperations {
    FailedOperations::new(FailedSettings {
        name: "supervisor".into(),
        workflows: Arc::new(Workflows::new(Vec::new()).unwrap()),
        timeout_grace: Duration::ZERO,
        chunk: 3,
    })
}

impl Topic {
    fn is_done(&self) -> bool {
        let mut records = self.records.keys();
        records.all(|(partition, offset)| self.committed_to(*partition) > *offset)
    }

    fn committed_to(&self, partition: PartitionId) -> Offset {
        self.committed.get(&partition).copied().unwrap_or_default()
    }

    /// Whether a call fails, and whether it is applied nevertheless.
    fn fault(&mut self, is_calm: bool) -> Option<bool> {
        (!is_calm && self.rng.chance(25)).then(|| self.rng.chance(50))
    }

    fn perform(&mut self, seed: u64, effect: Effect, is_member: bool, is_calm: bool) -> Event {
        match effect {
            Effect::Poll { .. } => self.poll(is_member),
            Effect::TakeTurn(_) => Event::Turn(Duration::from_millis(self.rng.below(2))),
            Effect::Wait(_) => Event::Waited,
            Effect::PublishDeadLetters => {
                let fault = self.fault(is_calm);
                if fault != Some(false) {
                    self.buried.extend(&self.polled);
                }
                answer(fault)
            }
            Effect::Publish(recoveries) => {
                assert!(recoveries.len() <= 3, "seed {seed}: a chunk has at most 3");
                let fault = self.fault(is_calm);
                if fault != Some(false) {
                    let ids = recoveries.iter().map(|recovery| recovery.operation);
                    self.recovered.extend(ids);
                }
                answer(fault)
            }
            Effect::Commit(next) => {
                for (partition, next) in next {
                    self.judge_commit(seed, partition, next);
                    if self.fault(is_calm) != Some(false) {
                        self.committed.insert(partition, next);
                    }
                }
                Event::Committed
            }
            Effect::End => panic!("seed {seed}: nobody stops it"),
        }
    }

    fn poll(&mut self, is_member: bool) -> Event {
        self.polled.clear();
        if !is_member {
            return Event::Polled(Vec::new());
        }
        let mut polled = Vec::new();
        for (&(partition, offset), record) in &mut self.records {
            let from = self.committed.get(&partition).copied().unwrap_or_default();
            if offset < from {
                continue;
            }
            let content = match record {
                Record::Failed(operation) | Record::Waits(operation, 0) => failed(*operation),
                Record::Undecodable => Content::Undecodable,
                Record::Waits(_, polls) => {
                    *polls -= 1;
                    Content::WaitsForSchema
                }
            };
            self.polled.push((partition, offset));
            polled.push(Uncommitted {
                partition,
                next: offset.next(),
                content,
            });
        }
        Event::Polled(polled)
    }

    /// What a commit passes was recovered, or has a dead letter.
    fn judge_commit(&self, seed: u64, partition: PartitionId, next: Offset) {
        let passed = self
            .records
            .range((partition, Offset(0))..(partition, next));
        for (at, record) in passed {
            let is_done = match record {
                Record::Failed(operation) => self.recovered.contains(operation),
                Record::Undecodable => self.buried.contains(at),
                Record::Waits(operation, polls) => {
                    *polls == 0 && self.recovered.contains(operation)
                }
            };
            assert!(is_done, "seed {seed}: the group passed {at:?}");
        }
    }
}

fn answer(fault: Option<bool>) -> Event {
    match fault {
        Some(_) => Event::Failed,
        None => Event::Published,
    }
}

fn failed(operation: OperationId) -> Content {
    Content::Failed(Box::new(FailedOperation {
        event_id: operation.0,
        operation,
        caller_id: None,
        workflow: "order".to_owned(),
        workflow_version: 1,
        tenant: String::new(),
        failing_step: Some("pay".to_owned()),
        failing_agent: None,
        failing_attempt: Attempt(1),
        failing_action: Action::default(),
        awaits_decision: true,
        error: StepError {
            code: "refused".to_owned(),
            message: "because".to_owned(),
        },
        completed_steps: Vec::new(),
        failure_counts: Vec::new(),
        step_states: Vec::new(),
        input: Vec::new(),
        requested_at: Timestamp(1),
        failed_at: Timestamp(2),
    }))
}
