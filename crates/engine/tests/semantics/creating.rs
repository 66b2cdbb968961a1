//! Requests: new, repeated, conflicting, and without a valid workflow.

use waybill_engine::{
    Action, Attempt, Command, EngineConfig, Event, IdOrigin, Message, Offset, OperationRequest,
    OperationStatus, Position, Priority, ProcessState, RowChange, Stamp, StatusKind, StepProgress,
    StepRequest, StepState, WorkflowDefinition,
};

use crate::fixture::{
    EPOCH, Fixture, OTHER_HASH, PARTITION, SHARD, T0, error, id, ms, owner, request, success,
    summary,
};

#[test]
fn a_new_request_is_created_without_a_read_and_requests_its_first_step() {
    let mut fixture = Fixture::new();
    let offset = fixture.request(request(id(1)));
    assert_eq!(fixture.engine.loads(), []);
    let batch = fixture.take().unwrap();
    let [Command::Persist(row), Command::Send(message)] = &batch.commands[..] else {
        panic!("{:?}", batch.commands);
    };

    let RowChange {
        id: written,
        created,
        state,
        stamp,
        keep_for,
    } = &**row;
    assert_eq!(
        (*written, *stamp, *keep_for),
        (id(1), Stamp(T0.as_micros()), None)
    );
    let created = created.as_ref().unwrap();
    assert_eq!(&*created.workflow, "pair");
    assert_eq!(created.workflow_version, 1);
    assert_eq!(
        created.request,
        Position {
            priority: Priority::Normal,
            partition: PARTITION,
            offset
        }
    );
    assert_eq!(created.created_at, T0);
    assert_eq!(state.state, ProcessState::Processing);
    assert_eq!(state.locked_by, Some(owner(EPOCH)));
    assert_eq!(state.epoch, EPOCH);
    assert_eq!(state.next_due, Some(T0 + ms(10_500)));
    assert!(!state.handed_off);
    assert_eq!(state.updated_at, T0);
    assert_eq!(
        state.steps,
        [
            StepProgress {
                state: StepState::Running,
                attempt: Attempt(1),
                complete_by: Some(T0 + ms(10_000)),
                changed_at: T0,
                ..StepProgress::default()
            },
            StepProgress::default(),
        ]
    );
    assert_eq!(
        *message,
        Message::Step(StepRequest {
            operation: id(1),
            workflow: "pair".into(),
            step: "a".into(),
            agent: "a-agent".into(),
            attempt: Attempt(1),
            epoch: EPOCH,
            action: Action::Run,
            complete_by: T0 + ms(10_000),
            tenant: "acme".into(),
            input: br#"{"weight":3}"#.as_slice().into(),
            results: Vec::new(),
            reply_partition: PARTITION,
            shard: Some(SHARD),
            nonce: None,
            traceparent: Some("00-1-1-01".into()),
        })
    );
}

#[test]
fn the_last_success_ends_the_operation_with_one_row_and_one_status() {
    let mut fixture = Fixture::new();
    let offset = fixture.request(request(id(1)));
    fixture.round();
    fixture.reply(id(1), success("a", 1));
    let commands = fixture.round();
    let Command::Send(Message::Step(ask)) = &commands[1] else {
        panic!("{commands:?}");
    };
    assert_eq!(ask.results, [("a.made".to_owned(), "a-1".to_owned())]);
    fixture.now = fixture.now + ms(40);
    fixture.reply(id(1), success("b", 1));
    let batch = fixture.take().unwrap();
    let [Command::Persist(row), Command::Send(status)] = &batch.commands[..] else {
        panic!("{:?}", batch.commands);
    };
    assert!(row.created.is_some(), "the final write repeats all columns");
    assert_eq!(row.keep_for, Some(ms(7 * 24 * 3_600_000)));
    assert_eq!(row.state.state, ProcessState::Processed);
    assert_eq!(row.state.locked_by, None);
    assert_eq!(
        *status,
        Message::Status(Box::new(OperationStatus {
            event_id: id(1).event_id("status-1"),
            operation: id(1),
            caller_id: Some("order-1".to_owned()),
            workflow: "pair".to_owned(),
            tenant: "acme".to_owned(),
            kind: StatusKind::Final,
            state: ProcessState::Processed,
            sequence: 1,
            error: None,
            failing_step: None,
            step: None,
            request: Position {
                priority: Priority::Normal,
                partition: PARTITION,
                offset
            },
            requested_at: T0 - ms(3),
            at: T0 + ms(40),
            reply_to: None,
        }))
    );
    assert_eq!(fixture.requests_checkpoint(), 0, "not before it is settled");
    fixture.settle(batch.number);
    assert_eq!(fixture.requests_checkpoint(), 1);
    assert_eq!(fixture.replies_checkpoint(), 2);
    assert_eq!(fixture.engine.checkpoint().fingerprints.normal, Some(100));
    assert_eq!(
        fixture.engine.in_flight(),
        waybill_engine::InFlight::default()
    );
}

#[test]
fn one_batch_writes_an_operation_once_and_requests_only_its_last_step() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing created locked due 10500 a:Completed#1 b:Running#1",
            "ask b#1 by 10000",
        ]
    );
}

#[test]
fn a_callers_id_is_looked_up_first() {
    let mut fixture = Fixture::new();
    let mut of_caller = request(id(1));
    of_caller.id_origin = IdOrigin::Caller;
    fixture.request(of_caller);
    assert_eq!(summary(&fixture.round()), [""; 0]);
    fixture.load();
    assert_eq!(fixture.loaded, [id(1)]);
    assert_eq!(fixture.round().len(), 2);
}

#[test]
fn a_generated_id_appended_before_the_lease_is_looked_up_first() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.request(request(id(2)));
    fixture.load();
    assert_eq!(fixture.loaded, [id(1)]);
}

#[test]
fn an_old_request_with_a_generated_id_is_looked_up() {
    let mut fixture = Fixture::new();
    let mut late = request(id(1));
    late.requested_at = T0 - EngineConfig::default().fresh_for;
    fixture.request(late);
    let mut young = request(id(2));
    young.requested_at = T0 - EngineConfig::default().fresh_for + ms(1);
    fixture.request(young);
    fixture.load();
    assert_eq!(fixture.loaded, [id(1)]);
}

#[test]
fn a_request_with_a_future_time_is_looked_up() {
    let mut fixture = Fixture::new();
    let mut ahead = request(id(1));
    ahead.requested_at = T0 + ms(61_000);
    fixture.request(ahead);
    let mut nearly = request(id(2));
    nearly.requested_at = T0 + ms(60_000);
    fixture.request(nearly);
    fixture.load();
    assert_eq!(fixture.loaded, [id(1)]);
}

#[test]
fn a_rerouted_request_is_looked_up() {
    let mut fixture = Fixture::new();
    fixture.request_with(request(id(1)), true);
    fixture.load();
    assert_eq!(fixture.loaded, [id(1)]);
}

#[test]
fn events_wait_in_order_while_their_row_is_read() {
    let mut fixture = Fixture::new();
    let mut of_caller = request(id(1));
    of_caller.id_origin = IdOrigin::Caller;
    fixture.request(of_caller.clone());
    let mut other = of_caller.clone();
    other.request_hash = OTHER_HASH;
    fixture.request(other);
    fixture.request(of_caller);
    fixture.reply(id(1), success("a", 1));
    assert_eq!(fixture.engine.in_flight().loading, 1);
    fixture.load();
    assert_eq!(fixture.loaded, [id(1)], "one read serves all");
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing created locked due 10500 a:Completed#1 b:Running#1",
            "ask b#1 by 10000",
            "status 0 Rejected Error id-conflict",
        ]
    );
    let stats = fixture.engine.take_stats();
    assert_eq!((stats.created, stats.duplicates, stats.rejected), (1, 1, 1));
}

#[test]
fn the_rejected_duplicate_gets_the_position_of_its_own_request() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    let mut other = request(id(1));
    other.request_hash = OTHER_HASH;
    other.reply_to = Some("other.status".to_owned());
    let offset = fixture.request(other);
    let commands = fixture.round();
    let [Command::Send(Message::Status(status))] = &commands[..] else {
        panic!("{commands:?}");
    };
    assert_eq!(status.kind, StatusKind::Rejected);
    assert_eq!(
        status.request,
        Position {
            priority: Priority::Normal,
            partition: PARTITION,
            offset
        }
    );
    assert_eq!(status.reply_to.as_deref(), Some("other.status"));
    assert_eq!(status.error.as_ref().unwrap().code, "id-conflict");
    assert_eq!(status.event_id, id(1).event_id("rejected-3-1"));
}

#[test]
fn an_unknown_workflow_parks_the_operation() {
    let mut fixture = Fixture::new();
    let mut unknown = request(id(1));
    unknown.workflow = "nope".to_owned();
    fixture.request(unknown);
    assert_eq!(
        summary(&fixture.round()),
        [
            "attention 0",
            "row Error created free",
            "failed workflow-unknown",
            "alert operation-parked workflow-unknown",
            "status 1 Final Error workflow-unknown",
        ]
    );
    let error = fixture.state(id(1)).error.clone().unwrap();
    assert_eq!(error.error.message, "workflow \"nope\" does not exist");
    assert_eq!(fixture.requests_checkpoint(), 1);
}

#[test]
fn new_operations_start_with_the_newest_version_and_old_ones_keep_theirs() {
    let mut fixture = Fixture::new();
    let mut old = request(id(1));
    old.workflow = "old".to_owned();
    fixture.request(old);
    fixture.round();
    assert_eq!(fixture.rows[&id(1)].created.workflow_version, 2);

    // A stored row of version 1 has one step only.
    let mut row = fixture.rows[&id(1)].clone();
    let mut created = (*row.created).clone();
    created.workflow_version = 1;
    created.step_names.truncate(1);
    row.id = id(2);
    row.created = created.into();
    row.state.steps.truncate(1);
    fixture.rows.insert(id(2), row);
    fixture.restart(0, 0);
    fixture.reply(id(2), success("a", 1));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processed created free a:Completed#1",
            "status 1 Final Processed",
        ]
    );
}

#[test]
fn an_operation_whose_workflow_is_missing_or_has_other_steps_is_parked() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    let mut gone = fixture.rows[&id(1)].clone();
    let mut created = (*gone.created).clone();
    created.workflow_version = 9;
    gone.id = id(2);
    gone.created = created.clone().into();
    created.workflow_version = 1;
    created.step_names.swap(0, 1);
    let mut swapped = gone.clone();
    swapped.id = id(3);
    swapped.created = created.into();
    fixture.rows.extend([(id(2), gone), (id(3), swapped)]);
    fixture.restart(0, 0);
    for (number, version) in [(2, 9), (3, 1)] {
        fixture.reply(id(number), success("a", 1));
        fixture.load();
        fixture.round();
        let state = fixture.state(id(number));
        assert_eq!(state.state, ProcessState::Error);
        let error = &state.error.as_ref().unwrap().error;
        assert_eq!(error.code, "workflow-unknown");
        let version = format!("no version {version} with the steps");
        assert!(error.message.contains(&version), "{}", error.message);
    }
}

#[test]
fn a_record_that_is_read_twice_is_applied_once() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.apply(Event::Request {
        priority: Priority::Normal,
        offset: Offset(0),
        fingerprint: 100,
        bytes: 200,
        rerouted: false,
        request: OperationRequest::Create(request(id(2))),
    });
    assert_eq!(summary(&fixture.round()), [""; 0]);
    assert_eq!(fixture.engine.in_flight().operations, 1);
}

#[test]
fn conditions_read_outputs_and_a_skipped_step_does_not_block() {
    use crate::fixture::step;
    use waybill_engine::{Condition, StepDefinition, Workflow, Workflows};
    let when = |step: &str, equals: &str| {
        Some(Condition {
            step: step.to_owned(),
            output: "made".to_owned(),
            equals: equals.to_owned(),
        })
    };
    let steps = vec![
        step("a"),
        StepDefinition {
            when: when("a", "something else"),
            ..step("b")
        },
        StepDefinition {
            when: when("b", "b-1"),
            ..step("c")
        },
        StepDefinition {
            when: when("a", "a-1"),
            ..step("d")
        },
    ];
    let workflow = Workflow::try_from(WorkflowDefinition::new("pair", 7, steps));
    let workflows = Workflows::new(vec![workflow.unwrap()]).unwrap();
    let mut fixture = Fixture::new();
    fixture.engine = waybill_engine::PartitionEngine::new(
        std::sync::Arc::default(),
        workflows.into(),
        crate::fixture::ownership(EPOCH),
    );
    fixture.request(request(id(1)));
    fixture.round();
    fixture.reply(id(1), success("a", 1));
    let commands = fixture.round();
    assert_eq!(summary(&commands)[1..], ["ask d#1 by 10000"]);
    let states: Vec<_> = fixture
        .state(id(1))
        .steps
        .iter()
        .map(|step| step.state)
        .collect();
    assert_eq!(
        states,
        [
            StepState::Completed,
            StepState::Skipped,
            StepState::Skipped,
            StepState::Running
        ]
    );
    fixture.reply(id(1), success("d", 1));
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Processed);
}

#[test]
fn the_error_of_a_permanent_failure_is_in_row_status_and_dead_letter() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    let refused = error("owner-suspended");
    let outcome = waybill_engine::Outcome::Permanent {
        error: refused.clone(),
    };
    fixture.reply(id(1), ("b".to_owned(), 1, outcome));
    let commands = fixture.round();
    let [
        Command::Attention { at, operation },
        Command::Persist(row),
        Command::Send(Message::Failed(failed)),
    ] = &commands[..]
    else {
        panic!("{commands:?}");
    };
    assert_eq!((*at, *operation), (T0, id(1)));
    let reason = row.state.error.as_ref().unwrap();
    assert_eq!(
        (reason.step.as_deref(), &reason.error),
        (Some("b"), &refused)
    );
    assert_eq!(row.state.state, ProcessState::Processing);
    assert!(row.state.awaits_decision());
    assert_eq!(
        **failed,
        waybill_engine::FailedOperation {
            event_id: id(1).event_id("failed-1"),
            operation: id(1),
            caller_id: Some("order-1".to_owned()),
            workflow: "pair".to_owned(),
            workflow_version: 1,
            tenant: "acme".to_owned(),
            failing_step: Some("b".to_owned()),
            failing_agent: Some("b-agent".to_owned()),
            failing_attempt: Attempt(1),
            failing_action: Action::Run,
            awaits_decision: true,
            error: refused,
            completed_steps: vec!["a".to_owned()],
            failure_counts: vec![("b".to_owned(), 1)],
            step_states: vec![
                ("a".to_owned(), StepState::Completed),
                ("b".to_owned(), StepState::Failed),
            ],
            input: br#"{"weight":3}"#.to_vec(),
            requested_at: T0 - ms(3),
            failed_at: T0,
        }
    );
}
