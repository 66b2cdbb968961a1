//! Time: retries, time-outs, hand-offs, hints; and how a new owner resumes operations.

use waybill_engine::{
    Action, Attempt, CreateRequest, EngineConfig, Event, Offset, Outcome, Ownership, ProcessState,
    STEP_REQUEST_REFUSED, StepReply, StepState, Timestamp,
};

use crate::fixture::{
    EPOCH, Fixture, HASH, T0, error, id, ms, owner, ownership, request, success, summary,
};

fn transient() -> Outcome {
    Outcome::Transient {
        error: error("busy"),
    }
}

/// A handed-off operation that is no longer in memory: handed off 5 s after its start, due at 10.5
/// s.
fn handed_off() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.pass(ms(5_000));
    fixture.round();
    assert_eq!(fixture.engine.in_flight().operations, 0);
    fixture
}

#[test]
fn a_failed_attempt_is_repeated_after_its_wait_under_the_next_number() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.reply(id(1), ("a".to_owned(), 1, transient()));
    fixture.round();
    let retry_at = fixture.state(id(1)).steps[0].retry_at.unwrap();
    assert!(T0 + ms(100) <= retry_at && retry_at <= T0 + ms(200));
    assert_eq!(fixture.engine.next_timer(), Some(retry_at));
    fixture.pass(ms(99));
    assert_eq!(summary(&fixture.round()), [""; 0], "not yet");
    fixture.pass(ms(101));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing locked due 10700 a:Running#2!1 b:NotStarted",
            "ask a#2 by 10200",
        ]
    );
}

#[test]
fn failures_of_one_step_up_to_the_allowed_number_end_forward_progress() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), ("a".to_owned(), 1, transient()));
    fixture.pass(ms(200));
    fixture.reply(id(1), ("a".to_owned(), 2, transient()));
    fixture.round();
    let state = fixture.state(id(1));
    assert_eq!(state.state, ProcessState::Processing);
    assert!(state.awaits_decision());
    assert_eq!(state.failure_count, 2);
    assert_eq!(state.error.as_ref().unwrap().error, error("busy"));
}

#[test]
fn attempts_that_were_not_made_are_no_failures() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    let mut waits = Vec::new();
    for attempt in 1..=6 {
        let outcome = Outcome::NotAttempted {
            error: error("breaker-open"),
            retry_after_ms: 150,
        };
        fixture.reply(id(1), ("a".to_owned(), attempt, outcome));
        fixture.round();
        let retry_at = fixture.state(id(1)).steps[0].retry_at.unwrap();
        waits.push(retry_at.since(fixture.now).as_millis());
        fixture.pass(retry_at.since(fixture.now));
    }
    fixture.round();
    assert_eq!(waits, [150, 200, 400, 800, 1_600, 3_200]);
    let state = fixture.state(id(1));
    assert_eq!(state.failure_count, 0);
    assert_eq!(state.steps[0].attempt, Attempt(7));
    assert_eq!(state.steps[0].state, StepState::Running);
    assert_eq!(fixture.engine.take_stats().not_attempted, 6);
}

#[test]
fn a_timeout_is_applied_after_the_grace_for_late_replies() {
    let config = EngineConfig {
        hand_off_after: ms(60_000),
        ..EngineConfig::default()
    };
    let mut fixture = Fixture::with(config, ownership(EPOCH));
    fixture.request(request(id(1)));
    fixture.round();
    fixture.pass(ms(10_499));
    assert_eq!(summary(&fixture.round()), [""; 0]);
    fixture.pass(ms(1));
    fixture.round();
    let step = &fixture.state(id(1)).steps[0];
    assert_eq!(step.state, StepState::TimedOut);
    assert_eq!(step.error.as_ref().unwrap().code, "complete-by-passed");
    assert_eq!(fixture.engine.take_stats().time_outs, 1);
}

#[test]
fn no_timeout_is_applied_before_replies_are_caught_up() {
    let config = EngineConfig {
        hand_off_after: ms(60_000),
        ..EngineConfig::default()
    };
    let unread = Ownership {
        replies_end: Offset(2),
        ..ownership(EPOCH)
    };
    let mut fixture = Fixture::with(config, unread);
    fixture.request(request(id(1)));
    fixture.request(request(id(2)));
    fixture.round();
    fixture.pass(ms(20_000));
    assert_eq!(
        summary(&fixture.round()),
        [""; 0],
        "both overdue, both held back"
    );
    assert_eq!(fixture.engine.take_stats().time_outs, 0);
    // The reply that was unread until now.
    fixture.reply(id(1), success("a", 1));
    assert_eq!(fixture.engine.take_stats().time_outs, 0);
    fixture.reply(id(9), success("a", 1));
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].state, StepState::Completed);
    assert_eq!(fixture.state(id(2)).steps[0].state, StepState::TimedOut);
}

#[test]
fn a_pause_of_the_loop_delays_timeouts_until_replies_are_caught_up() {
    let config = EngineConfig {
        hand_off_after: ms(60_000),
        ..EngineConfig::default()
    };
    let mut fixture = Fixture::with(config, ownership(EPOCH));
    fixture.request(request(id(1)));
    fixture.round();
    fixture.now = fixture.now + ms(20_000);
    fixture.apply(Event::InboxEnd(Offset(1)));
    fixture.apply(Event::Tick);
    assert_eq!(fixture.engine.take_stats().time_outs, 0);
    fixture.apply(Event::InboxEnd(Offset(0)));
    assert_eq!(fixture.engine.take_stats().time_outs, 1);
}

#[test]
fn operations_are_counted_by_state_with_the_oldest_age() {
    let mut fixture = Fixture::new();
    for (number, age) in [(1, 20), (2, 50), (3, 30)] {
        let mut request = request(id(number));
        request.requested_at = T0 - ms(age);
        fixture.request(request);
    }
    fixture.cancel(1);
    fixture.round();
    let counted: Vec<_> = fixture
        .engine
        .census()
        .iter()
        .filter(|census| census.operations > 0 || census.oldest.is_some())
        .map(|census| (census.state, census.operations, census.oldest))
        .collect();
    assert_eq!(
        counted,
        [
            (ProcessState::Processing, 2, Some(T0 - ms(50))),
            (ProcessState::Compensating, 1, Some(T0 - ms(20))),
        ]
    );
}

#[test]
fn a_long_running_operation_is_handed_off_and_releases_the_checkpoint() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    let held = fixture.oldest_held().unwrap();
    assert_eq!(
        (held.operation, held.offset, held.since),
        (id(1), Offset(0), T0)
    );
    assert_eq!(fixture.engine.next_timer(), Some(T0 + ms(5_000)));
    fixture.pass(ms(5_000));
    let batch = fixture.take().unwrap();
    assert_eq!(
        summary(&batch.commands),
        [
            "index 10500",
            "attention 5000",
            "row Processing free handed-off due 10500 a:Running#1 b:NotStarted",
        ]
    );
    assert_eq!(fixture.requests_checkpoint(), 0, "not before it is settled");
    fixture.settle(batch.number);
    assert_eq!(fixture.requests_checkpoint(), 1);
    assert_eq!(fixture.engine.in_flight().operations, 0);
    assert_eq!(fixture.oldest_held(), None);
}

#[test]
fn an_operation_that_waits_for_an_agent_leaves_memory_immediately() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    let refused = Outcome::NotAttempted {
        error: error("circuit-open"),
        retry_after_ms: 30_000,
    };
    fixture.reply(id(1), ("a".to_owned(), 1, refused));
    fixture.pass(ms(1));
    assert_eq!(
        summary(&fixture.round()),
        [
            "index 30000",
            "attention 1",
            "row Processing free handed-off due 30000 a:NotStarted#1 b:NotStarted",
        ]
    );
    assert_eq!(fixture.engine.in_flight().operations, 0);
    assert_eq!(fixture.requests_checkpoint(), 1);
}

#[test]
fn a_refused_step_request_does_not_throttle_its_agent() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    let refused = Outcome::NotAttempted {
        error: error(STEP_REQUEST_REFUSED),
        retry_after_ms: 5_000,
    };
    fixture.reply(id(1), ("a".to_owned(), 1, refused));
    fixture.round();
    fixture.request(request(id(2)));
    assert_eq!(
        summary(&fixture.round()).last().unwrap(),
        "ask a#1 by 10000"
    );
    assert_eq!(fixture.state(id(1)).failure_count, 0);
}

#[test]
fn an_index_entry_is_far_enough_ahead_to_be_swept() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.pass(ms(4_990));
    fixture.reply(id(1), ("a".to_owned(), 1, transient()));
    fixture.round();
    assert!(fixture.state(id(1)).next_due.unwrap() < T0 + ms(5_200));
    fixture.pass(ms(10));
    assert_eq!(
        summary(&fixture.round()),
        [
            "index 6000",
            "attention 5000",
            "row Processing free handed-off due 6000 a:Failed#1!1 b:NotStarted",
        ]
    );
}

#[test]
fn a_reply_during_a_hand_off_keeps_the_operation_and_releases_its_request() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.pass(ms(5_000));
    let hand_off = fixture.take().unwrap();
    fixture.now = fixture.now + ms(1);
    fixture.reply(id(1), success("a", 1));
    let batch = fixture.take().unwrap();
    assert_eq!(
        summary(&batch.commands),
        [
            "row Processing locked handed-off due 15501 a:Completed#1 b:Running#1",
            "ask b#1 by 15001",
        ],
        "the entry at 10500 is kept until it is due"
    );
    fixture.settle(hand_off.number);
    assert_eq!(fixture.engine.in_flight().operations, 1);
    assert_eq!(fixture.requests_checkpoint(), 1);
    fixture.settle(batch.number);
    fixture.pass(ms(5_000));
    assert_eq!(
        summary(&fixture.round()),
        [
            "index 15501",
            "row Processing free handed-off due 15501 a:Completed#1 b:Running#1",
        ],
        "and attention was called to it before"
    );
}

#[test]
fn a_reply_resumes_a_handed_off_operation_without_new_requests() {
    let mut fixture = handed_off();
    fixture.reply(id(1), success("a", 1));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing locked handed-off due 15500 a:Completed#1 b:Running#1",
            "ask b#1 by 15000",
        ]
    );
    fixture.reply(id(1), success("b", 1));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processed created free handed-off a:Completed#1 b:Completed#1",
            "status 1 Final Processed",
        ]
    );
}

/// The owner that handed it off may have died before it compared its entry with the cursor of the
/// sweep.
#[test]
fn a_new_owner_trusts_no_index_entry_of_another_one() {
    let mut fixture = handed_off();
    fixture.restart(1, 0);
    fixture.reply(id(1), success("a", 1));
    fixture.load();
    assert_eq!(summary(&fixture.round())[0], "index 15500");
}

#[test]
fn an_earlier_due_time_gets_a_new_index_entry() {
    let mut fixture = handed_off();
    fixture.now = T0 + ms(7_000);
    fixture.reply(id(1), ("a".to_owned(), 1, transient()));
    fixture.load();
    let summary = summary(&fixture.round());
    assert_eq!(summary[0], "index 8000");
    assert_eq!(summary.len(), 2, "{summary:?}");
}

#[test]
fn a_wake_up_times_out_an_overdue_attempt_and_writes_a_new_entry() {
    let mut fixture = handed_off();
    fixture.now = T0 + ms(10_500);
    let sequence = fixture.hint(T0 + ms(10_500), id(1));
    fixture.load();
    let batch = fixture.take().unwrap();
    assert_eq!(summary(&batch.commands)[0], "index 11500");
    assert_eq!(fixture.state(id(1)).steps[0].state, StepState::TimedOut);
    assert_eq!(fixture.state(id(1)).locked_by, Some(owner(EPOCH)));
    assert_eq!(fixture.engine.checkpoint().at.recoveries, sequence);
    fixture.settle(batch.number);
    assert_eq!(fixture.engine.checkpoint().at.recoveries, sequence.next());
}

#[test]
fn a_superseded_wake_up_is_settled_without_a_write() {
    let mut fixture = handed_off();
    fixture.now = T0 + ms(6_000);
    fixture.hint(T0 + ms(6_000), id(1));
    fixture.load();
    assert_eq!(fixture.engine.in_flight().operations, 0);
    assert_eq!(summary(&fixture.round()), [""; 0]);
    assert_eq!(fixture.engine.checkpoint().at.recoveries, Offset(1));
}

#[test]
fn a_wake_up_of_a_resident_operation_writes_a_new_entry() {
    let mut fixture = handed_off();
    fixture.reply(id(1), success("a", 1));
    fixture.load();
    fixture.round();
    fixture.now = T0 + ms(10_500);
    fixture.hint(T0 + ms(10_500), id(1));
    assert_eq!(
        summary(&fixture.round()),
        [
            "index 15500",
            "row Processing locked handed-off due 15500 a:Completed#1 b:Running#1",
        ]
    );
    fixture.reply(id(1), success("b", 1));
    fixture.hint(T0 + ms(15_500), id(1));
    let batch = fixture.take().unwrap();
    assert_eq!(
        summary(&batch.commands).len(),
        2,
        "final: no entry any more"
    );
    assert_eq!(
        fixture.engine.checkpoint().at.recoveries,
        Offset(1),
        "but not before it is announced"
    );
    fixture.settle(batch.number);
    assert_eq!(fixture.engine.checkpoint().at.recoveries, Offset(2));
}

/// A supervisor whose clock is ahead passes over an entry that it has dealt with.
#[test]
fn an_entry_that_came_up_too_early_is_followed_by_a_later_one() {
    let mut fixture = handed_off();
    fixture.now = T0 + ms(6_000);
    fixture.hint(T0 + ms(10_500), id(1));
    fixture.load();
    assert_eq!(summary(&fixture.round())[0], "index 11500");
    fixture.pass(ms(2_000));
    fixture.hint(T0 + ms(11_500), id(1));
    assert_eq!(summary(&fixture.round())[0], "index 12500");
    fixture.pass(ms(3_000));
    assert_eq!(
        summary(&fixture.round()),
        [
            "index 12500",
            "row Processing free handed-off due 12500 a:TimedOut#1!1 b:NotStarted",
        ],
        "and it leaves with that entry"
    );
}

#[test]
fn a_wake_up_of_an_unknown_or_final_operation_is_settled() {
    let mut fixture = Fixture::new();
    fixture.hint(T0, id(7));
    fixture.load();
    assert_eq!(summary(&fixture.round()), [""; 0]);
    assert_eq!(fixture.engine.checkpoint().at.recoveries, Offset(1));
}

#[test]
fn an_owner_with_a_slow_clock_does_not_shorten_an_attempt() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.now = T0 - ms(30_000);
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing created locked due 10500 a:Running#1 b:NotStarted",
            "ask a#1 by 10000",
        ],
        "its agent may work until then, as requested before"
    );
    fixture.pass(ms(40_500));
    fixture.round();
    assert_eq!(fixture.state(id(1)).failure_count, 1);
}

#[test]
fn a_new_owner_requests_running_attempts_again() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.now = T0 + ms(3_000);
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing created locked due 13500 a:Running#1 b:NotStarted",
            "ask a#1 by 13000",
        ]
    );
    assert_eq!(fixture.state(id(1)).epoch, EPOCH.next());
    assert_eq!(fixture.state(id(1)).locked_by, Some(owner(EPOCH.next())));
    assert_eq!(
        fixture.requests_checkpoint(),
        0,
        "its request holds it again"
    );
    assert_eq!(fixture.oldest_held().unwrap().operation, id(1));
    let stats = fixture.engine.take_stats();
    assert_eq!((stats.resumed, stats.duplicates), (1, 0));
}

#[test]
fn a_waiting_reply_saves_the_new_owner_a_repeated_request() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.load();
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing created locked due 10500 a:Completed#1 b:Running#1",
            "ask b#1 by 10000",
        ]
    );
}

#[test]
fn a_new_owner_repeats_the_same_records_of_a_final_operation() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(
        id(1),
        (
            "a".to_owned(),
            1,
            Outcome::Permanent {
                error: error("refused"),
            },
        ),
    );
    let failed = fixture.round();
    fixture.decide(&failed);
    fixture.round();
    let undone = Outcome::Success {
        outputs: Vec::new(),
    };
    fixture.undo_reply(id(1), ("a".to_owned(), 2, undone));
    let first = fixture.take().unwrap().commands;
    fixture.now = fixture.now + ms(60_000);
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.load();
    let again = fixture.round();
    assert_eq!(
        summary(&again),
        [
            "row Compensated created free a:Compensated#2!1 b:NotStarted",
            "failed refused",
            "status 1 Final Compensated refused"
        ]
    );
    assert_eq!(again[2..], first[first.len() - 1..]);
    assert_eq!(fixture.requests_checkpoint(), 1);
    assert_eq!(fixture.engine.in_flight().operations, 0);
}

#[test]
fn a_repeated_request_of_an_announced_operation_is_ignored() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), success("a", 1));
    fixture.reply(id(1), success("b", 1));
    fixture.round();
    let mut repeat = request(id(1));
    repeat.id_origin = waybill_engine::IdOrigin::Caller;
    assert_eq!(repeat.request_hash, HASH);
    fixture.request(repeat);
    fixture.reply(id(1), success("b", 1));
    fixture.load();
    assert_eq!(summary(&fixture.round()), [""; 0]);
    assert_eq!(
        (fixture.requests_checkpoint(), fixture.replies_checkpoint()),
        (2, 3)
    );
    let stats = fixture.engine.take_stats();
    assert_eq!((stats.duplicates, stats.stale_replies), (1, 1));
}

#[test]
fn running_branches_finish_and_no_step_begins_after_a_failure() {
    let mut fixture = Fixture::new();
    let mut twins = request(id(1));
    twins.workflow = "twins".to_owned();
    fixture.request(twins);
    assert_eq!(
        summary(&fixture.round())[1..],
        ["ask a#1 by 10000", "ask b#1 by 10000"]
    );
    let refused = Outcome::Permanent {
        error: error("refused"),
    };
    fixture.reply(id(1), ("a".to_owned(), 1, refused));
    fixture.round();
    let busy = Outcome::Transient {
        error: error("busy"),
    };
    fixture.reply(id(1), ("b".to_owned(), 1, busy));
    fixture.pass(ms(1_000));
    fixture.round();
    let state = fixture.state(id(1));
    assert!(state.awaits_decision());
    assert_eq!(state.steps[1].state, StepState::Failed);
    assert_eq!(state.steps[1].attempt, Attempt(1), "it is not tried again");
}

#[test]
fn a_late_success_of_a_superseded_attempt_is_kept_as_evidence() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.reply(id(1), ("a".to_owned(), 1, transient()));
    fixture.pass(ms(200));
    fixture.round();
    for _ in 0..2 {
        fixture.reply(id(1), success("a", 1));
    }
    assert_eq!(
        summary(&fixture.round()),
        ["row Processing locked due 10700 a:Running#2!1 b:NotStarted"]
    );
    let step = &fixture.state(id(1)).steps[0];
    assert_eq!(step.state, StepState::Running);
    assert_eq!(step.late_success, Some(Attempt(1)));
    let stats = fixture.engine.take_stats();
    assert_eq!((stats.stale_replies, stats.late_successes), (2, 1));
    assert_eq!(
        fixture.replies_checkpoint(),
        3,
        "the record is done nevertheless"
    );
}

#[test]
fn a_clock_that_steps_back_changes_only_times() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.now = Timestamp(T0.as_micros() - 60_000_000);
    fixture.apply(Event::Tick);
    fixture.reply(id(1), success("a", 1));
    let first = fixture.rows[&id(1)].stamp;
    fixture.round();
    assert!(
        fixture.rows[&id(1)].stamp > first,
        "stamps grow nevertheless"
    );
}

/// An hour.
const AHEAD: u64 = 3_600_000;

/// A request without a deadline.
fn undated() -> CreateRequest {
    CreateRequest {
        deadline: None,
        ..request(id(1))
    }
}

#[test]
fn a_step_requested_by_a_clock_an_hour_ahead_is_requested_again_after_the_correction() {
    let mut fixture = Fixture::new();
    fixture.now = T0 + ms(AHEAD);
    fixture.request(undated());
    fixture.load();
    fixture.round();
    let stamp = fixture.rows[&id(1)].stamp;
    fixture.now = T0;
    fixture.apply(Event::Tick);
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing locked due 3610500 a:Running#1 b:NotStarted",
            "ask a#1 by 3610000",
        ],
        "its agent may work until then, and its reply may be lost"
    );
    assert!(fixture.rows[&id(1)].stamp > stamp, "stamps never go back");
    fixture.reply(id(1), success("a", 1));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing locked due 10500 a:Completed#1 b:Running#1",
            "ask b#1 by 10000",
        ]
    );
    fixture.pass(ms(5_000));
    let handed_off = summary(&fixture.round());
    assert_eq!(
        handed_off[0], "index 10500",
        "no request is held for an hour"
    );
}

#[test]
fn a_retry_does_not_wait_for_a_corrected_time() {
    let mut fixture = Fixture::new();
    fixture.now = T0 + ms(AHEAD);
    fixture.request(undated());
    fixture.load();
    fixture.reply(id(1), ("a".to_owned(), 1, transient()));
    fixture.round();
    fixture.now = T0;
    fixture.apply(Event::Tick);
    fixture.round();
    fixture.pass(ms(200));
    assert_eq!(
        summary(&fixture.round()),
        [
            "row Processing locked due 10700 a:Running#2!1 b:NotStarted",
            "ask a#2 by 10200",
        ]
    );
}

#[test]
fn a_retry_due_before_the_clock_stepped_back_is_sent_immediately() {
    let mut fixture = Fixture::new();
    fixture.now = T0 + ms(AHEAD);
    fixture.request(undated());
    fixture.load();
    fixture.reply(id(1), ("a".to_owned(), 1, transient()));
    fixture.round();
    // The retry is due, but other input is applied before the tick that would start it.
    fixture.now = T0 + ms(AHEAD + 300);
    fixture.request(request(id(2)));
    fixture.now = T0;
    fixture.apply(Event::Tick);
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].attempt, Attempt(2));
}

#[test]
fn a_clock_step_does_not_shorten_an_earlier_attempt() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.now = T0 + ms(9_000);
    fixture.apply(Event::Tick);
    fixture.now = T0 + ms(1_000);
    fixture.apply(Event::Tick);
    fixture.round();
    let complete_by = fixture.state(id(1)).steps[0].complete_by;
    assert_eq!(complete_by, Some(T0 + ms(11_000)), "it is asked for again");
    fixture.pass(ms(10_500));
    fixture.round();
    assert_eq!(fixture.state(id(1)).failure_count, 1);
}

#[test]
fn a_corrected_clock_shortens_the_throttling_of_an_agent() {
    let mut fixture = Fixture::new();
    fixture.now = T0 + ms(AHEAD);
    fixture.request(undated());
    fixture.load();
    let refused = Outcome::NotAttempted {
        error: error("breaker-open"),
        retry_after_ms: 2_000,
    };
    fixture.reply(id(1), ("a".to_owned(), 1, refused));
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].attempt, Attempt(1));
    fixture.now = T0;
    fixture.apply(Event::Tick);
    fixture.pass(ms(2_000));
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].attempt, Attempt(2));
}

#[test]
fn a_hand_off_by_a_fast_clock_keeps_its_remaining_wait() {
    let mut fixture = Fixture::new();
    fixture.now = T0 + ms(AHEAD);
    fixture.request(undated());
    fixture.load();
    let refused = Outcome::NotAttempted {
        error: error("breaker-open"),
        retry_after_ms: 60_000,
    };
    fixture.reply(id(1), ("a".to_owned(), 1, refused));
    fixture.round();
    fixture.pass(ms(5_000));
    fixture.round();
    assert!(fixture.state(id(1)).handed_off);
    let due = fixture.state(id(1)).next_due.unwrap();
    fixture.now = T0;
    fixture.apply(Event::Tick);
    fixture.hint(due, id(1));
    fixture.load();
    fixture.round();
    let retry_at = fixture.state(id(1)).steps[0].retry_at.unwrap();
    assert!(retry_at > T0 && retry_at <= T0 + ms(60_000), "{retry_at:?}");
    fixture.pass(ms(60_000));
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].attempt, Attempt(2));
}

#[test]
fn a_new_owner_keeps_the_remaining_wait_of_a_fast_clock() {
    let mut fixture = Fixture::new();
    fixture.now = T0 + ms(AHEAD);
    fixture.request(undated());
    fixture.load();
    fixture.reply(id(1), ("a".to_owned(), 1, transient()));
    fixture.round();
    fixture.now = T0;
    fixture.restart(0, 1);
    fixture.request(undated());
    fixture.load();
    fixture.round();
    let retry_at = fixture.state(id(1)).steps[0].retry_at.unwrap();
    assert!(retry_at <= T0 + ms(200), "{retry_at:?}");
    fixture.pass(ms(200));
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].attempt, Attempt(2));
}

#[test]
fn a_refusal_to_an_earlier_owner_is_ignored() {
    let mut fixture = Fixture::new();
    fixture.request(request(id(1)));
    fixture.round();
    fixture.restart(0, 0);
    fixture.request(request(id(1)));
    fixture.load();
    fixture.round();
    let refused = |epoch| StepReply {
        operation: id(1),
        step: "a".to_owned(),
        attempt: Attempt(1),
        epoch,
        action: Action::Run,
        nonce: None,
        outcome: Outcome::NotAttempted {
            error: error("owner-superseded"),
            retry_after_ms: 100,
        },
    };
    fixture.apply(Event::DirectReply(refused(EPOCH)));
    assert_eq!(summary(&fixture.round()), [""; 0], "it was asked for again");
    fixture.apply(Event::DirectReply(refused(EPOCH.next())));
    fixture.round();
    assert_eq!(fixture.state(id(1)).steps[0].state, StepState::NotStarted);
}
