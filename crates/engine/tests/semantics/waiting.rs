//! Waiting: for an agent, for a retry, for a row; and waits and values that exceed a limit.

use waybill_engine::{
    Action, Attempt, AttemptSeen, Command, Message, OnFailure, Outcome, RecoveryVerb, RetryPolicy,
    StepDefinition,
};

use crate::fixture::{
    Fixture, T0, error, id, ms, reply, request, step, success, summary, with_steps,
};

#[test]
fn a_waiting_step_is_retried_without_limit_and_raises_one_alert() {
    let mut fixture = with_steps(vec![StepDefinition {
        on_failure: Some(OnFailure::Retry),
        retry: RetryPolicy {
            max_attempts: Some(1),
            long_interval: Some(ms(20_000)),
            ..RetryPolicy::default()
        },
        ..step("a")
    }]);
    let mut alerts = 0;
    fixture.request(request(id(1)));
    for attempt in 1..=2 {
        let busy = Outcome::Transient {
            error: error("busy"),
        };
        fixture.reply(id(1), reply("a", attempt, busy));
        fixture.load();
        let commands = summary(&fixture.round());
        alerts += commands
            .iter()
            .filter(|line| *line == "alert waiting busy")
            .count();
        fixture.pass(ms(20_000));
        fixture.round();
    }
    assert_eq!(fixture.state(id(1)).steps[0].attempt, Attempt(3));
    assert_eq!(alerts, 1);
}

#[test]
fn a_new_owner_repeats_the_alert_about_a_step_that_keeps_failing() {
    let mut fixture = with_steps(vec![StepDefinition {
        on_failure: Some(OnFailure::Retry),
        retry: RetryPolicy {
            max_attempts: Some(1),
            long_interval: Some(ms(20_000)),
            ..RetryPolicy::default()
        },
        ..step("a")
    }]);
    fixture.request(request(id(1)));
    let busy = Outcome::Transient {
        error: error("busy"),
    };
    fixture.reply(id(1), reply("a", 1, busy));
    let batch = fixture.take().unwrap();
    let alert = |commands: &[Command]| {
        commands.iter().find_map(|command| match command {
            Command::Send(Message::Alert(alert)) => Some(alert.event_id),
            _ => None,
        })
    };
    let lost = alert(&batch.commands).unwrap();
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.load();
    assert_eq!(alert(&fixture.round()), Some(lost));
}

#[test]
fn an_unreachable_deadline_stops_the_operation_before_the_next_step() {
    let mut fixture = Fixture::new();
    let mut hurried = request(id(1));
    hurried.deadline = Some(T0 + ms(20_000));
    fixture.request(hurried);
    fixture.round();
    fixture.now = T0 + ms(10_001);
    fixture.reply(id(1), success("a", 1));
    let failed = fixture.round();
    assert_eq!(
        summary(&failed).last().unwrap(),
        "failed deadline-unreachable",
        "step b may take ten seconds"
    );
    fixture.decide(&failed);
    let summary = summary(&fixture.round());
    assert_eq!(summary.last().unwrap(), "undo a#2 by 20001");
}

#[test]
fn a_wait_past_the_deadline_stops_the_operation_immediately() {
    let busy = Outcome::NotAttempted {
        error: error("circuit-open"),
        retry_after_ms: 5_000,
    };
    let mut fixture = Fixture::new();
    let mut hurried = request(id(1));
    hurried.deadline = Some(T0 + ms(24_000));
    fixture.request(hurried.clone());
    fixture.round();
    fixture.reply(id(1), reply("a", 1, busy));
    let failed = fixture.round();
    assert_eq!(
        summary(&failed).last().unwrap(),
        "failed deadline-unreachable"
    );
    let error = fixture.state(id(1)).error.clone().unwrap().error;
    assert_eq!(
        error.message,
        "this step and the steps after it may take 25s, which is longer than the time left until \
         the deadline; previous error: circuit-open"
    );
    // Another operation waits behind the same breaker without having been refused itself.
    hurried.operation = id(2);
    fixture.request(hurried.clone());
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "failed deadline-unreachable"
    );
    hurried.operation = id(3);
    hurried.deadline = Some(T0 + ms(26_000));
    fixture.request(hurried);
    fixture.round();
    assert_eq!(fixture.state(id(3)).error, None, "there is time enough");
    assert!(fixture.state(id(3)).steps[0].retry_at.is_some());
}

#[test]
fn an_attempt_that_waits_for_room_does_not_make_its_deadline_unreachable() {
    let busy = Outcome::NotAttempted {
        error: error("circuit-open"),
        retry_after_ms: 1_000,
    };
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.reply(id(1), reply("a", 1, busy));
    for number in 2..4_000 {
        fixture.request(request(id(number)));
    }
    let commands = summary(&fixture.round());
    assert!(
        !commands.iter().any(|line| line.starts_with("failed")),
        "all have a minute, and need twenty seconds"
    );
    let last = fixture.state(id(3_999)).steps[0].retry_at.unwrap();
    assert!(last > T0 + ms(8_000), "{last:?}");
}

#[test]
fn an_agent_is_throttled_for_five_minutes_at_most() {
    let closed = Outcome::NotAttempted {
        error: error("circuit-open"),
        retry_after_ms: u32::MAX,
    };
    let five_minutes = T0 + ms(300_000);
    let mut fixture = Fixture::new();
    let patient = |number| waybill_engine::CreateRequest {
        deadline: None,
        ..request(id(number))
    };
    fixture.request(patient(1));
    fixture.reply(id(1), reply("a", 1, closed));
    fixture.request(patient(2));
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].retry_at, Some(five_minutes));
    assert_eq!(
        fixture.state(id(2)).steps[0].retry_at,
        Some(five_minutes),
        "others wait for the same agent, and no longer"
    );
}

#[test]
fn an_unreadable_row_blocks_nothing_and_raises_an_alert() {
    let mut fixture = Fixture::new();
    let mut create = request(id(1));
    create.id_origin = waybill_engine::IdOrigin::Caller;
    fixture.request(create);
    fixture.reply(id(1), success("a", 1));
    fixture.hint(T0, id(1));
    fixture.cancel(1);
    assert_eq!(fixture.engine.loads(), [id(1)]);
    fixture.apply(waybill_engine::Event::Unloadable {
        operation: id(1),
        cause: "it ends early".to_owned(),
    });
    assert_eq!(
        summary(&fixture.round()),
        ["index 600000", "alert row-unreadable row-unreadable",],
        "it is looked at again when the row may have been restored"
    );
    let checkpoint = fixture.engine.checkpoint();
    assert_eq!(
        (
            checkpoint.at.requests.0,
            checkpoint.at.replies.0,
            checkpoint.at.recoveries.0
        ),
        (2, 1, 1)
    );
    assert_eq!(fixture.engine.in_flight().bytes, 0);

    // An event before the next look-up adds no second entry; only the entry itself leads to the
    // next.
    let unloadable = || waybill_engine::Event::Unloadable {
        operation: id(1),
        cause: "it ends early".to_owned(),
    };
    fixture.cancel(1);
    assert_eq!(fixture.engine.loads(), [id(1)]);
    fixture.apply(unloadable());
    assert_eq!(summary(&fixture.round()), [""; 0]);
    fixture.hint(T0 + ms(600_000), id(1));
    assert_eq!(fixture.engine.loads(), [id(1)]);
    fixture.apply(unloadable());
    assert_eq!(
        summary(&fixture.round()),
        ["index 601000", "alert row-unreadable row-unreadable"],
        "later than the entry that came up, whose sweep was ahead"
    );
}

#[test]
fn a_reply_to_an_unreadable_row_is_applied_once_the_row_is_readable() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.pass(ms(6_000));
    fixture.round();
    assert_eq!(fixture.engine.in_flight().operations, 0, "it is handed off");
    fixture.reply(id(1), success("a", 1));
    assert_eq!(fixture.engine.loads(), [id(1)]);
    fixture.apply(waybill_engine::Event::Unloadable {
        operation: id(1),
        cause: "it ends early".to_owned(),
    });
    fixture.round();
    assert_eq!(fixture.replies_checkpoint(), 1, "nothing waits for the row");

    // The row is restored after the attempt has become overdue.
    fixture.pass(ms(6_000));
    let seen = AttemptSeen {
        step: "a".to_owned(),
        action: Action::Run,
        attempt: Attempt(1),
    };
    let budget = ms(10_000);
    fixture.recover(1, id(1), None, RecoveryVerb::Retry { seen, budget });
    fixture.load();
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "ask b#1 by 22000"
    );
    assert_eq!(fixture.engine.take_stats().time_outs, 0);
}

#[test]
fn outputs_too_large_for_a_row_fail_their_step() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    let outputs = vec![(
        "made".to_owned(),
        "x".repeat(waybill_engine::OUTPUTS_BYTES_MAX),
    )];
    fixture.reply(id(1), reply("a", 1, Outcome::Success { outputs }));
    let failed = fixture.round();
    assert_eq!(summary(&failed).last().unwrap(), "failed outputs-too-long");
    fixture.decide(&failed);
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "undo a#2 by 10000"
    );
}

#[test]
fn a_long_error_is_clipped_between_characters() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    let mut long = error("refused");
    long.message = "ü".repeat(100_000) + "!";
    fixture.reply(id(1), reply("a", 1, Outcome::Permanent { error: long }));
    fixture.round();
    let kept = fixture.state(id(1)).steps[0].error.clone().unwrap();
    assert_eq!(kept.message, "ü".repeat(2_048));
}
