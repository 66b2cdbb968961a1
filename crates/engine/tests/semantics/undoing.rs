//! Failures for good: the supervisor's decision, undos, parking, and requests of operators.

use std::collections::BTreeMap;
use std::sync::Arc;

use waybill_engine::{
    Action, Amendment, Asked, Attempt, AttemptSeen, Command, CreateRequest, HISTORY_MAX, Message,
    Offset, OnFailure, Outcome, PartitionId, Position, Priority, ProcessState, RecoveryVerb,
    StepDefinition, StepKind, StepState, Workflows, refusal,
};

use crate::fixture::{
    Fixture, OTHER_HASH, PARTITION, T0, error, id, ms, reply, request, step, success, summary,
    with_steps, workflows,
};

fn refused() -> Outcome {
    Outcome::Permanent {
        error: error("refused"),
    }
}

fn undone() -> Outcome {
    Outcome::Success {
        outputs: Vec::new(),
    }
}

/// An operation whose first step is completed and whose second was refused; the supervisor has yet
/// to decide.
fn refused_at_b() -> Fixture {
    let mut fixture = Fixture::new();
    fail_at_b(&mut fixture);
    fixture
}

fn fail_at_b(fixture: &mut Fixture) {
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), reply("b", 1, refused()));
    let failed = fixture.round();
    fixture.decide(&failed);
}

fn compensation_failed() -> Fixture {
    let mut fixture = refused_at_b();
    fixture.round();
    fixture.undo_reply(id(1), reply("b", 2, undone()));
    fixture.undo_reply(id(1), reply("a", 2, refused()));
    fixture
}

#[test]
fn requested_steps_are_undone_in_reverse_order() {
    let mut fixture = refused_at_b();
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Compensating locked due 10500 a:Compensating#1 b:Compensating#2!1",
            "undo b#2 by 10000",
        ]
    );
    fixture.undo_reply(id(1), reply("b", 2, undone()));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Compensating locked due 10500 a:Compensating#2 b:Compensated#2!1",
            "undo a#2 by 10000",
        ]
    );
    fixture.undo_reply(id(1), reply("a", 2, undone()));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Compensated created free a:Compensated#2 b:Compensated#2!1",
            "status 1 Final Compensated refused",
        ]
    );
    assert_eq!(fixture.requests_checkpoint(), 1);
    assert_eq!(fixture.engine.take_stats().compensations, 2);
}

#[test]
fn an_undo_parked_for_an_unknown_workflow_continues_once_the_workflow_is_known() {
    let mut fixture = refused_at_b();
    fixture.round();
    fixture.undo_reply(id(1), reply("b", 2, undone()));
    fixture.round();
    fixture.restart_knowing(Workflows::new(Vec::new()).unwrap());
    fixture.hint(fixture.now, id(1));
    fixture.load();
    fixture.round();
    let error = fixture.state(id(1)).error.clone().unwrap();
    assert_eq!(error.error.code, "workflow-unknown");

    fixture.restart_knowing(workflows());
    fixture.recover(7, id(1), None, RecoveryVerb::Compensate { seen: None });
    fixture.load();
    let again = summary(&fixture.round());
    assert!(again.contains(&"undo a#2 by 10000".to_owned()), "{again:?}");
    fixture.undo_reply(id(1), reply("a", 2, undone()));
    fixture.round();
    let state = fixture.state(id(1));
    assert_eq!(state.state, ProcessState::Compensated);
    let attempts: Vec<_> = state.steps.iter().map(|step| step.attempt.0).collect();
    assert_eq!(attempts, [2, 2], "nothing was undone twice");
}

#[test]
fn an_undo_gets_the_outputs_of_its_step() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.round();
    fixture.cancel(1);
    fixture.round();
    // Step b was in progress: it is undone once its attempt has settled, a second after
    // complete-by.
    fixture.pass(ms(11_000));
    let commands = fixture.round();
    fixture.undo_reply(id(1), reply("b", 2, undone()));
    fixture.load();
    let commands = [commands, fixture.round()].concat();
    let results = commands.iter().find_map(|command| match command {
        waybill_engine::Command::Send(Message::Step(request)) if &*request.step == "a" => {
            assert_eq!(request.action, Action::Compensate);
            assert_eq!(request.idempotency_key(), format!("{}/a", id(1)));
            Some(request.results.clone())
        }
        _ => None,
    });
    assert_eq!(results, Some(vec![("a.made".to_owned(), "a-1".to_owned())]));
}

#[test]
fn a_step_of_unknown_outcome_is_undone_after_it_settles() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.cancel(1);
    assert_eq!(
        summary(&fixture.round()),
        ["row Compensating locked due 11000 a:Compensating#1 b:NotStarted"]
    );
    fixture.pass(ms(10_999));
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].attempt, Attempt(1));
    // It was handed off in the meantime; its index entry is at least a second ahead.
    fixture.now = T0 + ms(11_999);
    fixture.hint(T0 + ms(11_999), id(1));
    fixture.load();
    let summary = summary(&fixture.round());
    assert!(
        summary.contains(&"undo a#2 by 21999".to_owned()),
        "{summary:?}"
    );
}

#[test]
fn a_failed_undo_parks_the_operation_and_can_be_retried() {
    let mut fixture = compensation_failed();
    assert_eq!(
        summary(&fixture.round()),
        [
            "attention 0",
            "row CompensationFailed created free a:Failed#2?1 b:Compensated#2!1",
            "alert compensation-failed refused",
            "status 1 Final CompensationFailed refused",
        ]
    );
    fixture.recover(1, id(1), None, RecoveryVerb::RetryCompensation);
    fixture.load();
    let again = summary(&fixture.round());
    assert_eq!(again.last().unwrap(), "undo a#3 by 10000");
    assert!(
        again.iter().any(|line| line.starts_with("index")),
        "nothing else holds a checkpoint for it: {again:?}"
    );
    fixture.undo_reply(id(1), reply("a", 3, undone()));
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "status 2 Final Compensated refused"
    );
    let history = &fixture.state(id(1)).history;
    let verbs: Vec<_> = history.iter().map(|entry| entry.verb.as_str()).collect();
    assert_eq!(verbs, ["compensate", "retry-compensation"]);
    assert_eq!(history[1].by, "ada");
}

#[test]
fn an_operator_reports_an_undone_step_and_the_compensation_continues() {
    let mut fixture = compensation_failed();
    fixture.round();
    let step = "a".to_owned();
    for _ in 0..2 {
        let step = step.clone();
        fixture.recover(9, id(1), None, RecoveryVerb::Undone { step });
        fixture.load();
    }
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "status 2 Final Compensated refused"
    );
    assert_eq!(fixture.state(id(1)).history.len(), 2, "a repeat is nothing");
}

#[test]
fn the_row_of_a_parked_operation_never_expires() {
    let keep_for = |fixture: &mut Fixture| {
        let batch = fixture.take().unwrap();
        fixture.settle(batch.number);
        batch.commands.iter().find_map(|command| match command {
            waybill_engine::Command::Persist(row) => Some(row.keep_for),
            _ => None,
        })
    };
    let mut fixture = compensation_failed();
    assert_eq!(keep_for(&mut fixture), Some(None));
    fixture.recover(2, id(1), None, RecoveryVerb::Abandon);
    fixture.load();
    assert!(keep_for(&mut fixture).unwrap().is_some());
    assert!(fixture.state(id(1)).abandoned);
}

#[test]
fn a_recovery_of_a_superseded_attempt_is_ignored() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    let retry = |attempt| RecoveryVerb::Retry {
        seen: AttemptSeen {
            step: "a".to_owned(),
            action: Action::Run,
            attempt: Attempt(attempt),
        },
        budget: ms(3_000),
    };
    fixture.now = T0 + ms(10_500);
    fixture.recover(1, id(1), None, retry(1));
    fixture.recover(2, id(1), None, retry(1));
    assert_eq!(
        summary(&fixture.round()),
        ["row Processing locked due 10655 a:TimedOut#1!1 b:NotStarted"],
        "the second finds that it is not due"
    );
    fixture.now = T0 + ms(10_700);
    fixture.recover(3, id(1), None, retry(1));
    fixture.recover(4, id(1), None, retry(1));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing locked due 14200 a:Running#2!1 b:NotStarted",
            "ask a#2 by 13700",
        ],
        "with the requested budget"
    );
    assert_eq!(fixture.engine.take_stats().recoveries, 2);
}

#[test]
fn a_cancel_undoes_completed_steps_and_a_repeat_is_ignored() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.round();
    fixture.cancel(1);
    fixture.cancel(1);
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Compensating);
    assert_eq!(fixture.state(id(1)).history.len(), 1);
    fixture.reply(id(1), success("b", 1));
    assert_eq!(
        fixture.engine.take_stats().late_successes,
        1,
        "the attempt was running when the cancel arrived"
    );
}

#[test]
fn an_early_cancel_wins_over_the_create() {
    let mut fixture = Fixture::new();
    fixture.cancel(1);
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        ["row Cancelled created free", "status 1 Final Cancelled"]
    );
    let mut create = request(id(1));
    create.id_origin = waybill_engine::IdOrigin::Caller;
    fixture.request(create.clone());
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Cancelled created free a:NotStarted b:NotStarted",
            "status 2 Final Cancelled",
        ]
    );
    create.request_hash = OTHER_HASH;
    fixture.request(create);
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        ["status 0 Rejected Error id-conflict"]
    );
    assert_eq!(fixture.requests_checkpoint(), 3);
}

#[test]
fn a_cancel_of_a_final_operation_is_refused_with_a_status_for_the_caller() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), success("b", 1));
    fixture.round();
    fixture.cancel(1);
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processed created free a:Completed#1 b:Completed#1",
            "status 0 CancelRefused Processed final",
        ]
    );
    let refused = &fixture.state(id(1)).history[0].refused;
    assert_eq!(refused.as_deref(), Some("final"));
}

#[test]
fn verbs_on_an_operation_cancelled_before_its_create_are_refused() {
    let mut fixture = Fixture::new();
    fixture.cancel(1);
    fixture.load();
    fixture.round();
    assert!(fixture.state(id(1)).tombstone);
    for (number, verb) in [
        RecoveryVerb::Resubmit,
        RecoveryVerb::Compensate { seen: None },
        RecoveryVerb::Abandon,
        RecoveryVerb::RetryCompensation,
        RecoveryVerb::Undone {
            step: "a".to_owned(),
        },
    ]
    .into_iter()
    .enumerate()
    {
        let (row, asked) = (&fixture.rows[&id(1)], Asked::Recovery(&verb));
        let foreseen = refusal(row, &workflows(), asked, fixture.now);
        assert_eq!(foreseen, Some("never-created"), "{verb:?}");
        fixture.recover(100 + number as u128, id(1), None, verb);
        fixture.load();
        fixture.round();
        let noted = fixture.state(id(1)).history.last().unwrap();
        assert_eq!(noted.refused.as_deref(), Some("never-created"));
    }
}

#[test]
fn nothing_is_undone_after_a_completed_pivot() {
    let mut fixture = with_steps(vec![
        StepDefinition {
            kind: StepKind::Pivot,
            compensation: None,
            ..step("a")
        },
        step("b"),
    ]);
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.cancel(1);
    let commands = summary(&fixture.round());
    let refusal = "status 0 CancelRefused Processing past-pivot".to_owned();
    assert!(commands.contains(&refusal), "{commands:?}");
    assert_eq!(fixture.state(id(1)).state, ProcessState::Processing);
}

#[test]
fn a_late_success_of_an_undone_step_is_undone() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.cancel(1);
    fixture.round();
    fixture.pass(ms(11_000));
    fixture.round();
    fixture.undo_reply(id(1), reply("a", 2, undone()));
    fixture.load();
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Cancelled);
    fixture.reply(id(1), success("a", 1));
    fixture.load();
    let reopened = summary(&fixture.round());
    assert!(
        reopened.iter().any(|line| line.starts_with("undo a#3")),
        "{reopened:?}"
    );
    fixture.undo_reply(id(1), reply("a", 3, undone()));
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "status 2 Final Cancelled"
    );
}

/// An operation whose step `a` was performed and undone after `b` was refused; it ended
/// `Compensated`.
fn compensated() -> Fixture {
    let mut fixture = refused_at_b();
    fixture.round();
    fixture.undo_reply(id(1), reply("b", 2, undone()));
    fixture.round();
    fixture.undo_reply(id(1), reply("a", 2, undone()));
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Compensated);
    fixture
}

#[test]
fn a_repeated_success_after_the_undo_began_is_undone_again() {
    // While the undo is in progress: it may precede the effect of the second copy.
    let mut fixture = refused_at_b();
    fixture.round();
    fixture.undo_reply(id(1), reply("b", 2, undone()));
    fixture.round();
    fixture.reply(id(1), success("a", 1));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Compensating locked due 10500 a:Compensating#3 b:Compensated#2!1",
            "undo a#3 by 10000",
        ]
    );
    fixture.undo_reply(id(1), reply("a", 3, undone()));
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Compensated);

    // After the end.
    let mut fixture = compensated();
    for attempt in [3, 4] {
        fixture.reply(id(1), success("a", 1));
        fixture.load();
        let reopened = summary(&fixture.round());
        let undo = format!("undo a#{attempt} by 10000");
        assert_eq!(
            reopened.last(),
            Some(&undo),
            "each copy of it is new evidence"
        );
        fixture.undo_reply(id(1), reply("a", attempt, undone()));
        let ended = summary(&fixture.round());
        let status = format!("status {} Final Compensated refused", attempt - 1);
        assert_eq!(ended.last(), Some(&status));
    }
}

#[test]
fn a_success_read_again_is_no_evidence() {
    let mut fixture = compensated();
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), reply("b", 1, refused()));
    fixture.load();
    let again = summary(&fixture.round());
    assert_eq!(
        again.last().unwrap(),
        "status 1 Final Compensated refused",
        "the new owner repeats the final status: {again:?}"
    );
    assert_eq!(fixture.engine.take_stats().late_successes, 0);
}

#[test]
fn a_success_in_another_partition_at_a_known_offset_is_evidence() {
    let mut fixture = compensated();
    let row = fixture.rows.get_mut(&id(1)).unwrap();
    row.state.last_reply.as_mut().unwrap().partition = PartitionId(1);
    fixture.restart(1, 0);
    fixture.reply(id(1), success("a", 1));
    fixture.load();
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Compensating);
}

#[test]
fn a_direct_success_after_the_undo_began_is_undone_again() {
    let mut fixture = compensated();
    fixture.reply_directly(id(1), success("a", 1));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "undo a#3 by 10000"
    );
}

#[test]
fn a_repeated_attempt_settles_before_its_step_is_undone() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.restart(0, 0);
    fixture.now = T0 + ms(2_000);
    fixture.request(request(id(1)));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "ask a#1 by 12000"
    );
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), reply("b", 1, refused()));
    let failed = fixture.round();
    fixture.decide(&failed);
    fixture.round();
    fixture.undo_reply(id(1), reply("b", 2, undone()));
    assert_eq!(
        summary(&fixture.round()),
        ["row Compensating locked due 13000 a:Compensating#1 b:Compensated#2!1"],
        "the other copy may act until 12000, and a second after"
    );
    fixture.hint(T0 + ms(13_000), id(1));
    fixture.pass(ms(11_000));
    fixture.load();
    let summary = summary(&fixture.round());
    assert!(
        summary.contains(&"undo a#2 by 23000".to_owned()),
        "{summary:?}"
    );
}

#[test]
fn a_late_success_of_a_step_without_effect_is_ignored() {
    let pure = StepDefinition {
        kind: StepKind::Pure,
        compensation: None,
        ..step("a")
    };
    let mut fixture = with_steps(vec![pure, step("b")]);
    fixture.request(request(id(1)));
    fixture.round();
    fixture.cancel(1);
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Cancelled);
    fixture.reply(id(1), success("a", 1));
    fixture.load();
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Cancelled);
}

#[test]
fn a_resubmitted_operation_continues_at_the_failed_step() {
    let mut fixture = with_steps(vec![
        step("a"),
        StepDefinition {
            on_failure: Some(OnFailure::Park),
            ..step("b")
        },
    ]);
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), reply("b", 1, refused()));
    fixture.round();
    let seen = AttemptSeen {
        step: "b".to_owned(),
        action: Action::Run,
        attempt: Attempt(1),
    };
    fixture.recover(1, id(1), None, RecoveryVerb::Park { seen });
    assert_eq!(
        summary(&fixture.round())[2..],
        [
            "alert operation-parked refused",
            "status 1 Final Error refused",
        ]
    );
    fixture.recover(2, id(1), None, RecoveryVerb::Resubmit);
    fixture.load();
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "ask b#2 by 10000"
    );
    fixture.reply(id(1), success("b", 2));
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "status 2 Final Processed"
    );
}

#[test]
fn a_resubmitted_step_that_fails_again_is_decided_again() {
    let parking = StepDefinition {
        on_failure: Some(OnFailure::Park),
        ..step("a")
    };
    let mut fixture = with_steps(vec![parking]);
    // The agent asks for a pause, so the step of another operation is not requested.
    fixture.request(request(id(2)));
    let closed = Outcome::NotAttempted {
        error: error("circuit-open"),
        retry_after_ms: 4_000,
    };
    fixture.reply(id(2), reply("a", 1, closed));
    let soon = |seconds: u64| Some(T0 + ms(1_000 * seconds));
    fixture.request(CreateRequest {
        deadline: soon(5),
        ..request(id(1))
    });
    let failed = fixture.round();
    fixture.decide(&failed);
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Error);

    fixture.recover(1, id(1), None, RecoveryVerb::Resubmit);
    fixture.load();
    fixture.amend(
        2,
        Amendment::Reschedule {
            fields: b"{}".to_vec(),
            deadline: soon(13),
        },
    );
    fixture.pass(ms(4_100));
    let failed = fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].attempt, Attempt(0));
    fixture.decide(&failed);
    fixture.load();
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Error);
}

#[test]
fn a_reschedule_beyond_the_history_is_applied_once() {
    let mut fixture = Fixture::new();
    let reschedule_often = |fixture: &mut Fixture| {
        for number in 1..=100_u32 {
            let fields = format!(r#"{{"weight":{number}}}"#).into_bytes();
            let deadline = None;
            fixture.amend(number.into(), Amendment::Reschedule { fields, deadline });
        }
    };
    fixture.request(request(id(1)));
    reschedule_often(&mut fixture);
    fixture.round();
    let newest: Arc<[u8]> = br#"{"weight":100}"#.as_slice().into();
    assert_eq!(fixture.rows[&id(1)].input(), &newest);
    assert_eq!(fixture.state(id(1)).history.len(), HISTORY_MAX);

    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    reschedule_often(&mut fixture);
    fixture.load();
    fixture.round();
    assert_eq!(fixture.rows[&id(1)].input(), &newest);
}

#[test]
fn a_verb_beyond_the_history_is_applied_once() {
    let mut fixture = compensation_failed();
    fixture.round();
    let refused_often = |fixture: &mut Fixture, numbers: std::ops::Range<u128>| {
        for number in numbers {
            fixture.recover(number, id(1), None, RecoveryVerb::Resubmit);
        }
        fixture.load();
    };
    let retry = |fixture: &mut Fixture| {
        fixture.recover(500, id(1), None, RecoveryVerb::RetryCompensation);
        fixture.load();
    };
    refused_often(&mut fixture, 100..150);
    retry(&mut fixture);
    fixture.round();
    fixture.undo_reply(id(1), reply("a", 3, refused()));
    refused_often(&mut fixture, 200..300);
    fixture.round();
    let parked = ProcessState::CompensationFailed;
    assert_eq!(fixture.state(id(1)).state, parked);

    // The supervisor's decision is on the topic before these.
    fixture.restart(1, 3);
    fixture.hint(T0, id(1));
    refused_often(&mut fixture, 100..150);
    retry(&mut fixture);
    refused_often(&mut fixture, 200..300);
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, parked);
}

#[test]
fn a_reschedule_changes_inputs_until_a_step_uses_them() {
    let mut fixture = with_steps(vec![
        step("a"),
        StepDefinition {
            uses: vec!["weight".to_owned()],
            ..step("b")
        },
    ]);
    fixture.request(request(id(1)));
    fixture.round();
    let heavier = |weight: u32| Amendment::Reschedule {
        fields: format!(r#"{{"weight":{weight}}}"#).into_bytes(),
        deadline: None,
    };
    fixture.amend(1, heavier(4));
    fixture.round();
    fixture.reply(id(1), success("a", 1));
    let commands = fixture.round();
    let input = commands.iter().find_map(|command| match command {
        waybill_engine::Command::Send(Message::Step(request)) => Some(request.input.to_vec()),
        _ => None,
    });
    assert_eq!(input, Some(br#"{"weight":4}"#.to_vec()));
    fixture.amend(2, heavier(5));
    let summary = summary(&fixture.round());
    assert_eq!(
        summary.last().unwrap(),
        "status 0 RescheduleRefused Processing step-sent"
    );
}

#[test]
fn a_reschedule_precedes_its_create_by_position_only() {
    // From the request's own partition, and from another one, after the number of partitions has
    // grown.
    for (partition, answer) in [
        (
            PARTITION,
            "status 0 RescheduleRefused Processing unknown-operation",
        ),
        (PartitionId(1), "status 0 Rescheduled Processing"),
    ] {
        let mut fixture = with_steps(vec![step("a")]);
        fixture.request(request(id(1)));
        fixture.round();
        let row = fixture.rows.get_mut(&id(1)).unwrap();
        let offset = Offset(1_000);
        Arc::make_mut(&mut row.created).request = Position {
            priority: Priority::Normal,
            partition,
            offset,
        };
        fixture.restart(1, 0);
        fixture.amend(
            1,
            Amendment::Reschedule {
                fields: br#"{"weight":4}"#.to_vec(),
                deadline: None,
            },
        );
        fixture.load();
        let summary = summary(&fixture.round());
        assert!(summary.iter().any(|line| line == answer), "{summary:?}");
    }
}

#[test]
fn a_caller_with_its_own_topic_gets_each_step_status_in_order() {
    let mut fixture = Fixture::new();
    let mut request = request(id(1));
    request.reply_to = Some("acme.status".to_owned());
    fixture.request(request);
    let mut statuses = summary(&fixture.round());
    for step in ["a", "b"] {
        fixture.reply(id(1), success(step, 1));
        statuses.extend(summary(&fixture.round()));
    }
    statuses.retain(|line| line.starts_with("status"));
    assert_eq!(
        statuses,
        [
            "status 1 Received Processing",
            "status 2 Step a:Completed",
            "status 3 Step b:Completed",
            "status 4 Final Processed",
        ]
    );
}

#[test]
fn a_step_that_completes_while_its_operation_is_parked_repeats_no_earlier_status() {
    let beside = |name| StepDefinition {
        after: Some(Vec::new()),
        on_failure: Some(OnFailure::Park),
        ..step(name)
    };
    let mut fixture = with_steps(vec![beside("a"), beside("b")]);
    let mut request = request(id(1));
    request.reply_to = Some("acme.status".to_owned());
    fixture.request(request);
    let transient = Outcome::Transient {
        error: error("busy"),
    };
    fixture.reply(id(1), reply("b", 1, transient));
    let mut commands = fixture.round();
    fixture.pass(ms(1_000));
    commands.extend(fixture.round());
    fixture.reply(id(1), reply("a", 1, refused()));
    fixture.load();
    let failed = fixture.round();
    fixture.decide(&failed);
    commands.extend(failed);
    commands.extend(fixture.round());
    assert_eq!(fixture.state(id(1)).state, ProcessState::Error);

    fixture.reply(id(1), success("b", 2));
    fixture.load();
    commands.extend(fixture.round());
    fixture.recover(2, id(1), None, RecoveryVerb::Resubmit);
    fixture.load();
    commands.extend(fixture.round());
    let step = |fixture: &Fixture, index: usize| fixture.state(id(1)).steps[index].state;
    assert_eq!(step(&fixture, 0), StepState::Running);
    assert_eq!(step(&fixture, 1), StepState::Completed);

    // The next owner sends again what the previous one may not have sent.
    fixture.restart(1, 3);
    fixture.hint(fixture.now, id(1));
    fixture.load();
    commands.extend(fixture.round());
    let mut sent = BTreeMap::new();
    for command in commands {
        let Command::Send(Message::Status(status)) = command else {
            continue;
        };
        let content = (status.sequence, status.kind, status.step.clone());
        let earlier = sent.insert(status.event_id, content.clone());
        assert!(
            earlier.is_none_or(|earlier| earlier == content),
            "{status:?}"
        );
    }
    assert!(sent.len() > 3, "{sent:?}");
}

#[test]
fn an_operation_past_its_pivot_is_parked_by_the_supervisor() {
    let pivot = StepDefinition {
        kind: StepKind::Pivot,
        compensation: None,
        ..step("a")
    };
    let mut fixture = with_steps(vec![pivot, step("b")]);
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), reply("b", 1, refused()));
    let failed = fixture.round();
    let verb = fixture.decision(&failed).verb;
    assert!(matches!(verb, RecoveryVerb::Park { .. }), "{verb:?}");
}

#[test]
fn a_completed_step_that_cannot_be_undone_needs_an_operator() {
    let mut fixture = with_steps(vec![StepDefinition {
        kind: StepKind::Irreversible,
        compensation: None,
        ..step("a")
    }]);
    fixture.request(request(id(1)));
    let busy = Outcome::Transient {
        error: error("busy"),
    };
    fixture.reply(id(1), reply("a", 1, busy));
    fixture.pass(ms(200));
    fixture.round();
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), reply("a", 2, refused()));
    let failed = fixture.round();
    fixture.decide(&failed);
    let summary = summary(&fixture.round());
    let parked = "status 1 Final CompensationFailed manual-undo-needed";
    assert_eq!(summary.last().unwrap(), parked);
}

#[test]
fn an_undo_that_fails_again_raises_another_alert() {
    let mut fixture = compensation_failed();
    fixture.round();
    fixture.recover(1, id(1), None, RecoveryVerb::RetryCompensation);
    fixture.load();
    fixture.round();
    fixture.undo_reply(id(1), reply("a", 3, refused()));
    let summary = summary(&fixture.round());
    assert_eq!(
        summary[summary.len() - 2..],
        [
            "alert compensation-failed refused",
            "status 2 Final CompensationFailed refused",
        ]
    );
}

#[test]
fn steps_that_run_in_parallel_with_a_failure_still_complete() {
    let beside = |name| StepDefinition {
        after: Some(Vec::new()),
        on_failure: Some(OnFailure::Park),
        ..step(name)
    };
    let mut fixture = with_steps(vec![beside("a"), beside("b")]);
    fixture.request(request(id(1)));
    fixture.reply(id(1), reply("a", 1, refused()));
    let failed = fixture.round();
    fixture.decide(&failed);
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Error);
    fixture.reply(id(1), success("b", 1));
    fixture.load();
    fixture.round();
    fixture.recover(2, id(1), None, RecoveryVerb::Resubmit);
    fixture.load();
    fixture.round();
    fixture.reply(id(1), success("a", 2));
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "status 2 Final Processed"
    );
}
