//! Every event in every situation of an operation, with all resulting commands.
//!
//! Times are in milliseconds after the operation's creation. `a:Running#2!1` is a step's state, its
//! attempt and its number of failures. `-` means no command.

use std::fmt::Write as _;

use waybill_engine::{CreateRequest, IdOrigin, Outcome, Timestamp};

use crate::fixture::{Fixture, OTHER_HASH, T0, error, id, ms, request, success, summary};

const SITUATIONS: [&str; 8] = [
    "unknown",
    "first step running",
    "last step running",
    "waiting to try again",
    "being handed off",
    "handed off",
    "processed, not settled",
    "failed, not decided",
];

const EVENTS: [&str; 13] = [
    "request again",
    "request, other body",
    "success a#1",
    "success b#1",
    "success a#2",
    "transient a#1",
    "unknown a#1",
    "permanent a#1",
    "not attempted a#1",
    "tick after 0 s",
    "tick after 5 s",
    "tick after 20 s",
    "hint",
];

const TABLE: &str = include_str!("table.txt");

#[test]
fn every_event_gives_the_commands_of_the_table() {
    let mut actual = String::new();
    for situation in SITUATIONS {
        writeln!(actual, "{situation}").unwrap();
        for event in EVENTS {
            let mut fixture = Fixture::new();
            set_up(&mut fixture, situation);
            apply(&mut fixture, event);
            fixture.load();
            let summary = summary(&fixture.round());
            let summary = if summary.is_empty() {
                "-".to_owned()
            } else {
                summary.join("\n      ")
            };
            writeln!(actual, "  {event}\n      {summary}").unwrap();
        }
    }
    assert!(actual == TABLE, "the table now reads:\n{actual}");
}

fn set_up(fixture: &mut Fixture, situation: &str) {
    if situation == "unknown" {
        return;
    }
    fixture.request(request(id(1)));
    fixture.round();
    match situation {
        "first step running" => {}
        "last step running" => {
            fixture.reply(id(1), success("a", 1));
            fixture.round();
        }
        "waiting to try again" => {
            apply(fixture, "transient a#1");
            fixture.round();
        }
        "being handed off" => {
            fixture.pass(ms(5_000));
            fixture.take();
        }
        "handed off" => {
            fixture.pass(ms(5_000));
            fixture.round();
            assert_eq!(fixture.engine.in_flight().operations, 0);
        }
        "processed, not settled" => {
            fixture.reply(id(1), success("a", 1));
            fixture.reply(id(1), success("b", 1));
            fixture.take();
        }
        "failed, not decided" => {
            apply(fixture, "permanent a#1");
            fixture.take();
        }
        _ => unreachable!("{situation}"),
    }
}

/// A request whose id may have been used before.
fn of_caller() -> CreateRequest {
    let mut request = request(id(1));
    request.id_origin = IdOrigin::Caller;
    request
}

fn apply(fixture: &mut Fixture, event: &str) {
    let error = error("busy");
    let reply = |outcome| ("a".to_owned(), 1, outcome);
    match event {
        "request again" => {
            fixture.request(of_caller());
        }
        "request, other body" => {
            let mut other = of_caller();
            other.request_hash = OTHER_HASH;
            fixture.request(other);
        }
        "success a#1" => {
            fixture.reply(id(1), success("a", 1));
        }
        "success b#1" => {
            fixture.reply(id(1), success("b", 1));
        }
        "success a#2" => {
            fixture.reply(id(1), success("a", 2));
        }
        "transient a#1" => {
            fixture.reply(id(1), reply(Outcome::Transient { error }));
        }
        "unknown a#1" => {
            fixture.reply(id(1), reply(Outcome::Unknown { error }));
        }
        "permanent a#1" => {
            fixture.reply(id(1), reply(Outcome::Permanent { error }));
        }
        "not attempted a#1" => {
            let retry_after_ms = 700;
            let outcome = Outcome::NotAttempted {
                error,
                retry_after_ms,
            };
            fixture.reply(id(1), reply(outcome));
        }
        "tick after 0 s" => fixture.pass(ms(0)),
        "tick after 5 s" => fixture.pass(ms(5_000)),
        "tick after 20 s" => fixture.pass(ms(20_000)),
        "hint" => {
            let due = fixture.rows.get(&id(1)).and_then(|row| row.state.next_due);
            let due: Timestamp = due.unwrap_or(T0);
            fixture.now = fixture.now.max(due);
            fixture.hint(due, id(1));
        }
        _ => unreachable!("{event}"),
    }
}
