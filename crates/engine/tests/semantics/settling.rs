//! When an undo begins, and when it is conclusive, given that late attempts may still take effect.

use waybill_engine::{
    Action, Command, CompensationDefinition, Message, Outcome, ProcessState, StepDefinition,
};

use crate::fixture::{
    Fixture, T0, error, id, ms, reply, request, step, success, summary, with_steps,
};

fn undone() -> Outcome {
    Outcome::Success {
        outputs: Vec::new(),
    }
}

/// A step whose service performs it even after its undo.
fn forgetful(name: &str) -> StepDefinition {
    StepDefinition {
        compensation: Some(CompensationDefinition::default()),
        ..step(name)
    }
}

/// An operation that was cancelled a tenth of a second ago, with `a` in progress.
fn cancelled_while_running() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.cancel(1);
    assert_eq!(
        summary(&fixture.round()),
        ["row Compensating locked due 11000 a:Compensating#1 b:NotStarted"]
    );
    fixture.pass(ms(100));
    fixture
}

#[test]
fn a_running_step_is_undone_once_its_outcome_is_known() {
    let known = [
        success("a", 1).2,
        Outcome::Permanent {
            error: error("refused"),
        },
        Outcome::Transient {
            error: error("busy"),
        },
        Outcome::NotAttempted {
            error: error("circuit-open"),
            retry_after_ms: 60_000,
        },
    ];
    for outcome in known {
        let mut fixture = cancelled_while_running();
        fixture.reply(id(1), reply("a", 1, outcome.clone()));
        assert_eq!(
            summary(&fixture.round()),
            [
                "row Compensating locked due 10600 a:Compensating#2 b:NotStarted",
                "undo a#2 by 10100",
            ],
            "{outcome:?}"
        );
        fixture.undo_reply(id(1), reply("a", 2, undone()));
        assert_eq!(
            summary(&fixture.round()).last().unwrap(),
            "status 1 Final Cancelled"
        );
    }
}

#[test]
fn a_delayed_undo_gets_the_outputs_of_its_step() {
    let mut fixture = cancelled_while_running();
    fixture.reply(id(1), success("a", 1));
    let commands = fixture.round();
    let results = commands.iter().find_map(|command| match command {
        Command::Send(Message::Step(request)) => Some((request.action, request.results.clone())),
        _ => None,
    });
    let made = vec![("a.made".to_owned(), "a-1".to_owned())];
    assert_eq!(results, Some((Action::Compensate, made)));
}

#[test]
fn an_undo_waits_while_any_attempt_is_unsettled() {
    let mut fixture = cancelled_while_running();
    let lost = Outcome::Unknown {
        error: error("no-answer"),
    };
    fixture.reply(id(1), reply("a", 1, lost.clone()));
    assert_eq!(summary(&fixture.round()), [""; 0]);
    assert_eq!(fixture.state(id(1)).next_due, Some(T0 + ms(11_000)));

    // The first attempt may take effect until 11000, whatever the outcome of the second.
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), reply("a", 1, lost));
    fixture.pass(ms(200));
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "ask a#2 by 10200"
    );
    fixture.cancel(1);
    fixture.reply(id(1), success("a", 2));
    fixture.round();
    assert_eq!(fixture.state(id(1)).next_due, Some(T0 + ms(11_000)));
}

#[test]
fn an_undo_waits_for_every_request_of_its_attempt() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "ask a#1 by 10000"
    );
    fixture.cancel(1);
    fixture.reply(id(1), success("a", 1));
    assert_eq!(
        summary(&fixture.round()),
        ["row Compensating locked due 11000 a:Compensating#1 b:NotStarted"]
    );
}

#[test]
fn without_tombstones_an_undo_is_confirmed_once_all_attempts_have_settled() {
    let mut fixture = with_steps(vec![forgetful("a"), forgetful("b")]);
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.round();
    fixture.cancel(1);
    fixture.reply(id(1), success("b", 1));
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "undo b#2 by 10000"
    );
    fixture.undo_reply(id(1), reply("b", 2, undone()));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Compensating locked due 10500 a:Compensating#2 b:Compensating#2",
            "undo a#2 by 10000",
        ],
        "an undo to be confirmed blocks nothing before it"
    );
    fixture.undo_reply(id(1), reply("a", 2, undone()));
    assert_eq!(
        summary(&fixture.round()),
        ["row Compensating locked due 11000 a:Compensating#2 b:Compensating#2"]
    );
    fixture.pass(ms(11_000));
    let again = summary(&fixture.round());
    for undo in ["undo a#3 by 21000", "undo b#3 by 21000"] {
        assert!(again.iter().any(|line| line == undo), "{again:?}");
    }
    fixture.undo_reply(id(1), reply("a", 3, undone()));
    fixture.load();
    fixture.round();
    assert_eq!(fixture.state(id(1)).state, ProcessState::Compensating);
    fixture.undo_reply(id(1), reply("b", 3, undone()));
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "status 1 Final Cancelled"
    );
}

#[test]
fn an_undo_is_confirmed_by_the_probe_of_its_agent() {
    let probed = StepDefinition {
        probe: true,
        ..forgetful("a")
    };
    let mut fixture = with_steps(vec![probed]);
    fixture.request(request(id(1)));
    fixture.round();
    fixture.cancel(1);
    fixture.reply(id(1), success("a", 1));
    fixture.undo_reply(id(1), reply("a", 2, undone()));
    fixture.round();
    fixture.pass(ms(11_000));
    let asked = summary(&fixture.round());
    assert!(
        asked.contains(&"probe a#3 by 21000".to_owned()),
        "{asked:?}"
    );
    // A copy of the request took effect after the undo: undo it again, conclusively.
    fixture.reply_to(id(1), Action::Probe, success("a", 3));
    fixture.load();
    let asked = summary(&fixture.round());
    assert!(asked.contains(&"undo a#4 by 21000".to_owned()), "{asked:?}");
    fixture.undo_reply(id(1), reply("a", 4, undone()));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "status 1 Final Cancelled"
    );
}

#[test]
fn an_undo_that_begins_after_all_attempts_have_settled_needs_no_confirmation() {
    let mut fixture = with_steps(vec![forgetful("a")]);
    fixture.request(request(id(1)));
    fixture.round();
    fixture.cancel(1);
    fixture.pass(ms(11_000));
    fixture.round();
    fixture.undo_reply(id(1), reply("a", 2, undone()));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "status 1 Final Cancelled"
    );
}
