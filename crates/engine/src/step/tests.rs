//! Every (state, event) pair, with the whole progress after it.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::*;
use crate::definition::Backoff;
use crate::workflow::StepSet;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn step() -> Step {
    Step {
        name: "drone".into(),
        agent: "drones".into(),
        after: StepSet::EMPTY,
        ancestors: StepSet::EMPTY,
        when: None,
        complete_by: Duration::from_secs(10),
        failures_max: 3,
        backoff: Backoff::default(),
    }
}

fn spread() -> Spread {
    Spread::of(OperationId(Uuid::from_u128(1)), 2)
}

fn error(code: &str) -> StepError {
    StepError {
        code: code.to_owned(),
        message: "because".to_owned(),
    }
}

fn outputs() -> Outputs {
    vec![("drone".to_owned(), "d-7".to_owned())]
}

/// A step in each state that is to be told apart, as it looks after one failure of two attempts.
fn in_state(name: &str) -> StepProgress {
    let base = StepProgress {
        attempt: Attempt(2),
        failure_count: 1,
        error: Some(error("busy")),
        ..StepProgress::default()
    };
    let retry_at = Some(NOW);
    match name {
        "NotStarted" => StepProgress::default(),
        "NotStarted, to be tried again" => StepProgress { retry_at, ..base },
        "Running" => StepProgress {
            state: StepState::Running,
            complete_by: Some(Timestamp::from_millis(1_000_500)),
            ..base
        },
        "Completed" => StepProgress {
            state: StepState::Completed,
            error: None,
            outputs: outputs(),
            ..base
        },
        "Failed, to be tried again" => StepProgress {
            state: StepState::Failed,
            retry_at,
            ..base
        },
        "Failed for good" => StepProgress {
            state: StepState::Failed,
            ..base
        },
        "TimedOut, to be tried again" => StepProgress {
            state: StepState::TimedOut,
            retry_at,
            ..base
        },
        "TimedOut for good" => StepProgress {
            state: StepState::TimedOut,
            ..base
        },
        "Skipped" => StepProgress {
            state: StepState::Skipped,
            ..StepProgress::default()
        },
        _ => unreachable!("{name}"),
    }
}

const STATES: [&str; 9] = [
    "NotStarted",
    "NotStarted, to be tried again",
    "Running",
    "Completed",
    "Failed, to be tried again",
    "Failed for good",
    "TimedOut, to be tried again",
    "TimedOut for good",
    "Skipped",
];

fn events() -> [StepEvent; 9] {
    [
        StepEvent::Start,
        StepEvent::Skip,
        StepEvent::Retry,
        StepEvent::Resume,
        StepEvent::Succeeded { outputs: outputs() },
        StepEvent::FailedTransiently {
            error: error("slow"),
        },
        StepEvent::FailedPermanently { error: error("no") },
        StepEvent::NotAttempted {
            error: error("open"),
            retry_after: Duration::from_secs(3),
        },
        StepEvent::TimedOut,
    ]
}

/// What a legal pair leads to; `None` for the others.
fn expected(state: &str, event: &str) -> Option<StepProgress> {
    let before = in_state(state);
    let running = |attempt| StepProgress {
        state: StepState::Running,
        attempt: Attempt(attempt),
        complete_by: Some(Timestamp::from_millis(1_010_000)),
        retry_at: None,
        ..before.clone()
    };
    let failed = |state, error| StepProgress {
        state,
        complete_by: None,
        retry_at: Some(NOW + retry_wait(&step(), 2, Attempt(2), spread())),
        failure_count: 2,
        error: Some(error),
        ..before.clone()
    };
    match (state, event) {
        ("NotStarted", "Start") => Some(running(1)),
        ("NotStarted", "Skip") => Some(StepProgress {
            state: StepState::Skipped,
            ..StepProgress::default()
        }),
        (
            "NotStarted, to be tried again"
            | "Failed, to be tried again"
            | "TimedOut, to be tried again",
            "Retry",
        ) => Some(running(3)),
        ("Running", "Resume") => Some(running(2)),
        ("Running", "Succeeded") => Some(StepProgress {
            state: StepState::Completed,
            complete_by: None,
            error: None,
            outputs: outputs(),
            ..before
        }),
        ("Running", "FailedTransiently") => Some(failed(StepState::Failed, error("slow"))),
        ("Running", "FailedPermanently") => Some(StepProgress {
            retry_at: None,
            ..failed(StepState::Failed, error("no"))
        }),
        ("Running", "NotAttempted") => Some(StepProgress {
            state: StepState::NotStarted,
            complete_by: None,
            retry_at: Some(Timestamp::from_millis(1_003_000)),
            error: Some(error("open")),
            ..before
        }),
        ("Running", "TimedOut") => Some(failed(
            StepState::TimedOut,
            StepError {
                code: "complete-by-passed".to_owned(),
                message: "no answer came within 10s".to_owned(),
            },
        )),
        _ => None,
    }
}

#[test]
fn every_pair_of_state_and_event_does_what_the_table_says() {
    let mut legal = 0;
    for state in STATES {
        for event in events() {
            let name = event.name();
            let before = in_state(state);
            let mut after = before.clone();
            let result = transition(&mut after, event, &step(), spread(), NOW);
            match expected(state, name) {
                Some(expected) => {
                    legal += 1;
                    assert_eq!(result, Ok(()), "{name} in {state}");
                    assert_eq!(after, expected, "{name} in {state}");
                }
                None => {
                    let refused = IllegalTransition {
                        state: before.state,
                        event: name,
                    };
                    assert_eq!(result, Err(refused), "{name} in {state}");
                    assert_eq!(after, before, "{name} in {state} must change nothing");
                }
            }
        }
    }
    assert_eq!(legal, 11);
}

#[test]
fn the_last_failure_that_is_allowed_leaves_nothing_to_try_again() {
    for event in [
        StepEvent::FailedTransiently {
            error: error("slow"),
        },
        StepEvent::TimedOut,
    ] {
        let mut progress = StepProgress {
            failure_count: 2,
            ..in_state("Running")
        };
        transition(&mut progress, event, &step(), spread(), NOW).unwrap();
        assert_eq!(progress.failure_count, 3);
        assert_eq!(progress.retry_at, None);
    }
}

#[test]
fn an_agent_that_asks_for_no_wait_is_left_alone_for_a_moment_all_the_same() {
    let mut progress = in_state("Running");
    let event = StepEvent::NotAttempted {
        error: error("open"),
        retry_after: Duration::ZERO,
    };
    transition(&mut progress, event, &step(), spread(), NOW).unwrap();
    assert_eq!(progress.retry_at, Some(NOW + NOT_ATTEMPTED_WAIT_MIN));
    assert_eq!(progress.failure_count, 1, "it is no failure");
}

#[test]
fn waits_grow_by_the_factor_up_to_the_longest_and_are_never_less_than_half() {
    let step = step();
    for (failures, full_ms) in [
        (1, 200),
        (2, 400),
        (3, 800),
        (8, 25_600),
        (9, 30_000),
        (u32::MAX, 30_000),
    ] {
        let full = Duration::from_millis(full_ms);
        for operation in 0..100 {
            let spread = Spread::of(OperationId(Uuid::from_u128(operation)), 0);
            let wait = retry_wait(&step, failures, Attempt(failures), spread);
            assert!(
                full / 2 <= wait && wait <= full,
                "{wait:?} after {failures} failures"
            );
        }
    }
}

#[test]
fn waits_differ_by_operation_step_and_attempt_but_not_from_call_to_call() {
    let step = step();
    let mut waits = BTreeSet::new();
    for operation in 0..10 {
        for index in 0..10 {
            for attempt in 1..=10 {
                let spread = Spread::of(OperationId(Uuid::from_u128(operation)), index);
                let wait = retry_wait(&step, 9, Attempt(attempt), spread);
                assert_eq!(wait, retry_wait(&step, 9, Attempt(attempt), spread));
                waits.insert(wait);
            }
        }
    }
    assert!(waits.len() > 990, "{} different waits", waits.len());
}
