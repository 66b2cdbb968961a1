use std::collections::VecDeque;

use uuid::Uuid;
use waybill_engine::{
    Action, Attempt, AttemptSeen, CreateRequest, IdOrigin, Message, Offset, OperationRequest,
    PartitionId, Priority, Recovery, RecoveryVerb, RequestHash, ShardingScheme, StepDefinition,
    Timestamp, Workflow, WorkflowDefinition,
};
use waybill_state::{Lease, LeaseKey, Written};

use super::*;
use crate::Own;
use crate::input::{CommitNumber, SendNumber};
use crate::lease::{HeldLease, LeaseTerms};
use crate::log_offsets::LogEnds;
use crate::task::{StoreFailure, StoreFailureKind};

const SHARD: ShardId = ShardId(0);
const LEASE: LeaseTerms = LeaseTerms {
    duration: Duration::from_secs(10),
    margin: Duration::from_secs(1),
};
const SECOND: Duration = Duration::from_secs(1);

/// A loop with one shard, and the effects that were not looked at yet.
struct Fixture {
    scheduler_loop: SchedulerLoop,
    owner: OwnerId,
    now: Now,
    effects: VecDeque<Effect>,
}

impl Fixture {
    fn new(layout: Layout) -> Self {
        let settings = LoopSettings {
            own: Own::All,
            store_is_exclusive: false,
            in_flight_max: 10,
            in_flight_bytes_max: 10_000,
            read_ahead_max: 10,
            read_ahead_bytes_max: 10_000,
            tracked_requests_max: 100,
            checkpoint_every: SECOND,
            checkpoint_records: 1_000,
            lease: LEASE,
            stuck_after: 60 * SECOND,
            skip_deleted_requests: false,
            drain: SECOND,
        };
        let step = StepDefinition {
            timeout: SECOND,
            ..StepDefinition::new("only", "agent")
        };
        let steps = vec![step];
        let workflow = Workflow::try_from(WorkflowDefinition::new("single", 1, steps)).unwrap();
        let workflows = Arc::new(Workflows::new(vec![workflow]).unwrap());
        let owner = OwnerId(Uuid::from_u128(7));
        let now = Now {
            wall: Timestamp::from_millis(1_700_000_000_000),
            boot: BootTime::from_micros(60_000_000),
        };
        let config = EngineConfig {
            timeout_grace: Duration::ZERO,
            ..EngineConfig::default()
        };
        Self {
            scheduler_loop: SchedulerLoop::new(settings, config, workflows, owner, layout, now),
            owner,
            now,
            effects: VecDeque::new(),
        }
    }

    /// A fixture whose shard has its lease.
    fn owned() -> Self {
        let mut fixture = Self::new(Layout::first(1));
        fixture.turn();
        let generation = fixture.until(|effect| match effect {
            Effect::Acquire { generation, .. } => Some(generation),
            _ => None,
        });
        let key = LeaseKey::scheduler(Layout::first(1).generation(), SHARD);
        let ends = LogEnds::default();
        let before = Lease::new(key, PartitionId(0)).beginning_at(ends.first);
        let held = HeldLease::taking(before, fixture.owner, LEASE, fixture.now);
        fixture.take(Input::Acquired {
            shard: SHARD,
            generation,
            result: Ok((held, ends)),
        });
        fixture
    }

    fn take(&mut self, input: Input) {
        self.scheduler_loop.take(input, self.now);
        self.keep_effects();
    }

    fn turn(&mut self) {
        self.scheduler_loop.turn(true, None, self.now);
        self.keep_effects();
    }

    fn keep_effects(&mut self) {
        let mut effects = Vec::new();
        self.scheduler_loop.take_effects(&mut effects);
        self.effects.extend(effects);
    }

    /// Makes turns while this much time passes, so that it does not look like a pause.
    fn pass(&mut self, time: Duration) {
        let until = self.now.boot + time;
        while self.now.boot < until {
            let step = until.since(self.now.boot).min(SECOND);
            self.advance(step);
            self.turn();
        }
    }

    /// Time passes in which the loop does not run.
    fn advance(&mut self, time: Duration) {
        self.now.wall = self.now.wall + time;
        self.now.boot = self.now.boot + time;
    }

    /// The first effect, of those not looked at yet, that `wanted` accepts.
    fn until<T>(&mut self, wanted: impl Fn(Effect) -> Option<T>) -> T {
        let found = self.next(wanted);
        found.expect("the loop has this effect")
    }

    fn next<T>(&mut self, wanted: impl Fn(Effect) -> Option<T>) -> Option<T> {
        while let Some(effect) = self.effects.pop_front() {
            if let Some(found) = wanted(effect) {
                return Some(found);
            }
        }
        None
    }

    /// The latest assignment of the shard.
    fn generation(&self) -> Generation {
        self.scheduler_loop.slots[&SHARD].generation
    }

    fn runs(&self) -> bool {
        let slot = self.scheduler_loop.slot(SHARD).unwrap();
        matches!(slot.state(), SlotState::Owned(_))
    }

    /// A new operation begins. Returns the number of the write of its first row.
    fn begin(&mut self) -> CommitNumber {
        let operation = OperationId(Uuid::from_u128(1));
        let request = CreateRequest {
            operation,
            id_origin: IdOrigin::Caller,
            workflow: "single".to_owned(),
            tenant: String::new(),
            caller_id: None,
            input: b"{}".to_vec(),
            deadline: None,
            reply_to: None,
            request_hash: RequestHash::default(),
            verify_hash: false,
            requested_at: self.now.wall,
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        };
        let (shard, generation) = (SHARD, self.generation());
        self.take(Input::Records(vec![Arrived {
            generation,
            shard,
            event: Event::Request {
                priority: Priority::Normal,
                offset: Offset(0),
                fingerprint: 1,
                bytes: 100,
                rerouted: false,
                request: OperationRequest::Create(request),
            },
        }]));
        self.turn();
        let operations = self.until(|effect| match effect {
            Effect::Load { operations, .. } => Some(operations),
            _ => None,
        });
        assert_eq!(operations, [operation]);
        self.take(Input::Loaded {
            shard,
            generation,
            result: Ok(vec![(operation, Ok(None))]),
        });
        self.turn();
        self.written().expect("its row is written")
    }

    /// The number of the next write, if there is one.
    fn written(&mut self) -> Option<CommitNumber> {
        self.next(|effect| match effect {
            Effect::Write { number, .. } => Some(number),
            _ => None,
        })
    }

    fn committed(&mut self, number: CommitNumber) {
        let result = Ok(Written::default());
        self.take(Input::Committed { number, result });
    }

    /// The row of the next renewal, if there is one.
    fn renewal(&mut self) -> Option<Lease> {
        self.next(|effect| match effect {
            Effect::Renew { lease, .. } => Some(*lease),
            _ => None,
        })
    }

    fn renewed(&mut self, result: Result<bool, TaskError>) {
        let (shard, generation) = (SHARD, self.generation());
        self.take(Input::Renewed {
            shard,
            generation,
            result,
        });
    }

    /// The messages that are sent next, if there are any.
    fn sent(&mut self) -> Option<(SendNumber, Vec<Message>)> {
        self.next(|effect| match effect {
            Effect::Send {
                number, messages, ..
            } => Some((number, messages)),
            _ => None,
        })
    }
}

/// A layout of one partition with this many shards, which follows `before`.
fn layout_after(before: &Layout, shards: u32) -> Layout {
    let scheme = ShardingScheme {
        shards_per_partition: shards,
        ..before.scheme()
    };
    before.successor(scheme).unwrap()
}

#[test]
fn messages_follow_the_rows_that_intend_them() {
    let mut fixture = Fixture::owned();
    let number = fixture.begin();
    assert!(fixture.sent().is_none(), "its row may not be durable");
    fixture.committed(number);
    let (_, messages) = fixture.sent().expect("its row is durable");
    assert!(matches!(&messages[..], [Message::Step(_)]), "{messages:?}");
}

#[test]
fn an_answer_after_the_shard_was_dropped_has_no_effect() {
    let mut fixture = Fixture::owned();
    let (shard, generation) = (SHARD, fixture.generation());
    let number = fixture.begin();
    fixture.advance(SECOND);
    fixture.scheduler_loop.turn(true, Some(SECOND), fixture.now);
    fixture.keep_effects();
    assert!(!fixture.runs());
    fixture.effects.clear();
    let result = Ok(Vec::new());
    fixture.take(Input::Loaded {
        shard,
        generation,
        result,
    });
    let result = Ok(true);
    fixture.take(Input::Renewed {
        shard,
        generation,
        result,
    });
    let end = Ok(Offset(0));
    fixture.take(Input::InboxEnd {
        shard,
        generation,
        end,
    });
    assert!(fixture.effects.is_empty(), "{:?}", fixture.effects);
    fixture.committed(number);
    assert!(fixture.sent().is_none());
}

#[test]
fn a_shard_restarts_if_its_lease_is_renewed_after_messages_were_withheld() {
    let mut fixture = Fixture::owned();
    let number = fixture.begin();
    fixture.pass(4 * SECOND);
    fixture.renewal().expect("a third of the lease has passed");
    // The renewal was sent in time, but its answer arrives after the lease has ended.
    fixture.advance(5 * SECOND);
    fixture.committed(number);
    assert!(fixture.sent().is_none(), "the lease has ended");
    fixture.renewed(Ok(true));
    fixture.turn();
    assert!(!fixture.runs(), "nothing would send the messages");
}

#[test]
fn a_renewal_counts_from_when_it_was_sent() {
    let mut fixture = Fixture::owned();
    fixture.pass(4 * SECOND);
    let renewal = fixture.renewal().expect("a third of the lease has passed");
    assert_eq!(renewal.renewal, 1);
    fixture.pass(4 * SECOND);
    fixture.renewed(Ok(true));
    // 4 seconds after it was sent: the lease is valid for 5 more.
    fixture.pass(4 * SECOND);
    assert!(fixture.runs());
    let renewal = fixture.renewal().expect("the next one is due");
    assert_eq!(renewal.renewal, 2);
    fixture.pass(SECOND);
    assert!(!fixture.runs(), "it was not answered");
}

#[test]
fn a_renewal_after_one_without_an_answer_has_another_number() {
    let mut fixture = Fixture::owned();
    fixture.pass(4 * SECOND);
    assert_eq!(fixture.renewal().map(|row| row.renewal), Some(1));
    let unknown = StoreFailure {
        kind: StoreFailureKind::Unknown,
        message: "no answer".to_owned(),
    };
    fixture.renewed(Err(TaskError::Store(unknown)));
    fixture.pass(4 * SECOND);
    assert_eq!(fixture.renewal().map(|row| row.renewal), Some(2));
    assert!(fixture.runs());
}

#[test]
fn nothing_is_sent_after_the_lease_was_released() {
    let mut fixture = Fixture::owned();
    let number = fixture.begin();
    fixture.take(Input::Shutdown);
    fixture.pass(4 * SECOND);
    fixture.renewal().expect("its row is still being written");
    fixture.renewed(Ok(true));
    fixture.pass(4 * SECOND);
    let is_released = |effect| matches!(effect, Effect::Release { .. }).then_some(());
    fixture.until(is_released);
    // Another owner may have the lease already, although it would be valid for another second.
    fixture.committed(number);
    assert!(fixture.sent().is_none());
}

#[test]
fn time_outs_wait_for_the_replies_of_the_latest_pause() {
    let mut fixture = Fixture::owned();
    let (shard, generation) = (SHARD, fixture.generation());
    let number = fixture.begin();
    fixture.committed(number);
    assert!(fixture.sent().is_some(), "the step is requested");
    let end = Ok(Offset(0));
    let ended = || Input::InboxEnd {
        shard,
        generation,
        end: end.clone(),
    };
    // The attempt times out during the first of two pauses.
    for _ in 0..2 {
        fixture.advance(3 * SECOND);
        fixture.turn();
    }
    fixture.take(ended());
    fixture.turn();
    assert!(
        fixture.written().is_none(),
        "its reply may have arrived during the second pause"
    );
    fixture.take(ended());
    fixture.turn();
    assert!(fixture.written().is_some(), "it timed out");
}

#[test]
fn a_recovery_after_a_pause_waits_for_the_replies() {
    for is_noticed in [true, false] {
        let mut fixture = Fixture::owned();
        let (shard, generation) = (SHARD, fixture.generation());
        let number = fixture.begin();
        fixture.committed(number);
        assert!(fixture.sent().is_some(), "the step is requested");
        fixture.advance(3 * SECOND);
        if is_noticed {
            fixture.turn();
        }
        // It may be read sooner than the reply, which is on another topic.
        fixture.take(Input::Records(vec![Arrived {
            generation,
            shard,
            event: Event::Recovery {
                offset: Offset(0),
                recovery: Box::new(retry_of_the_first_attempt(fixture.now.wall)),
            },
        }]));
        fixture.turn();
        let timed_out = fixture.written();
        assert!(timed_out.is_none(), "its reply may wait in the topic");
        let end = Ok(Offset(0));
        fixture.take(Input::InboxEnd {
            shard,
            generation,
            end,
        });
        fixture.turn();
        assert!(fixture.written().is_some(), "it timed out");
    }
}

fn retry_of_the_first_attempt(asked_at: Timestamp) -> Recovery {
    let seen = AttemptSeen {
        step: "only".to_owned(),
        action: Action::Run,
        attempt: Attempt(1),
    };
    Recovery {
        id: Uuid::from_u128(2),
        operation: OperationId(Uuid::from_u128(1)),
        asked_by: "supervisor".to_owned(),
        reason: String::new(),
        asked_at,
        due: None,
        verb: RecoveryVerb::Retry {
            seen,
            budget: SECOND,
        },
    }
}

#[test]
fn a_caller_is_answered_if_the_layout_takes_the_shard_away() {
    let two = layout_after(&Layout::first(1), 2);
    let mut fixture = Fixture::new(two.clone());
    fixture.turn();
    let (gone, caller) = (ShardId(1), CallerId(7));
    fixture.take(Input::SetRunning {
        shard: gone,
        running: true,
        caller,
    });
    let answered = |effect| match effect {
        Effect::Answer { caller, result } => Some((caller, result)),
        _ => None,
    };
    assert_eq!(fixture.next(answered), None, "its lease is being acquired");
    fixture.take(Input::Layout(Ok(Some(layout_after(&two, 1)))));
    let expected = (caller, Err(ControlError::NotHere(gone)));
    assert_eq!(fixture.next(answered), Some(expected));
}
