use uuid::Uuid;
use waybill_engine::{Action, Attempt, BootTime, OperationId, RecoveryVerb, StepError};

use super::*;

const P: PartitionId = PartitionId(2);
const Q: PartitionId = PartitionId(5);

/// A machine whose driver performs nothing: the test says what each effect results in.
struct Driven {
    failed: FailedOperations,
    notices: Vec<Notice>,
}

impl Driven {
    fn new() -> Self {
        let failed = FailedOperations::new(FailedSettings {
            name: "supervisor".into(),
            workflows: Arc::new(Workflows::new(Vec::new()).unwrap()),
            timeout_grace: Duration::ZERO,
            chunk: 2,
        });
        let mut driven = Self {
            failed,
            notices: Vec::new(),
        };
        assert_eq!(driven.next(Event::Started), polls());
        driven
    }

    fn next(&mut self, event: Event) -> Effect {
        let now = Now {
            wall: Timestamp(7),
            boot: BootTime::new(Duration::ZERO),
        };
        let output = self.failed.handle(event, now).unwrap();
        self.notices = output.notices;
        output.effect
    }
}

fn polls() -> Effect {
    Effect::Poll { is_paused: false }
}

fn failed(number: u128) -> Content {
    Content::Failed(Box::new(FailedOperation {
        event_id: Uuid::from_u128(number),
        operation: OperationId(Uuid::from_u128(number)),
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

fn record(partition: PartitionId, next: i64, content: Content) -> Uncommitted {
    Uncommitted {
        partition,
        next: Offset(next),
        content,
    }
}

fn published(effect: &Effect) -> Vec<u128> {
    let Effect::Publish(recoveries) = effect else {
        panic!("{effect:?}");
    };
    let parks = |recovery: &Recovery| matches!(recovery.verb, RecoveryVerb::Park { .. });
    assert!(recoveries.iter().all(parks), "the workflow is unknown");
    let ids = recoveries.iter().map(|recovery| recovery.operation.0);
    ids.map(|id| id.as_u128()).collect()
}

#[test]
fn offsets_are_committed_once_recoveries_and_dead_letters_are_acknowledged() {
    let mut driven = Driven::new();
    let records = vec![
        record(P, 6, failed(1)),
        record(Q, 3, failed(2)),
        record(P, 7, failed(3)),
        record(P, 12, Content::Undecodable),
    ];
    let buried = driven.next(Event::Polled(records));
    assert_eq!(buried, Effect::PublishDeadLetters);
    let decided = Notice::Decided {
        recoveries: 3,
        undecodable: 1,
    };
    assert_eq!(driven.notices, [decided]);
    assert_eq!(driven.next(Event::Published), Effect::TakeTurn(2));
    let wait = Duration::from_secs(1);
    assert_eq!(driven.next(Event::Turn(wait)), Effect::Wait(wait));
    assert_eq!(published(&driven.next(Event::Waited)), [1, 2]);
    assert_eq!(driven.next(Event::Published), Effect::TakeTurn(1));
    assert_eq!(published(&driven.next(Event::Turn(Duration::ZERO))), [3]);
    let committed = driven.next(Event::Published);
    let next = vec![(P, Offset(12)), (Q, Offset(3))];
    assert_eq!(committed, Effect::Commit(next));
    assert_eq!(driven.next(Event::Committed), polls());
}

#[test]
fn a_failure_publishes_everything_again_after_a_rest() {
    let mut driven = Driven::new();
    let records = vec![record(P, 6, failed(1)), record(P, 7, Content::Undecodable)];
    driven.next(Event::Polled(records));
    driven.next(Event::Published);
    driven.next(Event::Turn(Duration::ZERO));
    assert_eq!(driven.next(Event::Failed), Effect::Wait(RETRY_PAUSE));
    assert_eq!(driven.notices, [Notice::PublishFailed]);
    assert_eq!(driven.next(Event::Waited), Effect::PublishDeadLetters);
    assert_eq!(driven.notices, []);
    assert_eq!(driven.next(Event::Failed), Effect::Wait(RETRY_PAUSE));
    driven.failed.stop();
    assert_eq!(driven.next(Event::Waited), Effect::End);
}

#[test]
fn records_wait_for_a_schema_while_the_consumer_is_polled() {
    let mut driven = Driven::new();
    let records = vec![
        record(P, 6, failed(1)),
        record(P, 7, Content::WaitsForSchema),
    ];
    let paused = Effect::Poll { is_paused: true };
    assert_eq!(driven.next(Event::Polled(records.clone())), paused);
    assert_eq!(driven.next(Event::Polled(records)), paused);
    // They belong to another supervisor now.
    assert_eq!(driven.next(Event::Polled(Vec::new())), polls());
    assert_eq!(driven.notices, []);
}

#[test]
fn a_stop_ends_the_wait_for_a_turn_without_a_commit() {
    let mut driven = Driven::new();
    driven.next(Event::Polled(vec![record(P, 6, failed(1))]));
    driven.failed.stop();
    let hour = Duration::from_secs(3_600);
    assert_eq!(driven.next(Event::Turn(hour)), Effect::End);
}
