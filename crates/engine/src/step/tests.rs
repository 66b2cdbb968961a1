//! Every (state, event) pair, with the whole progress after it.

use crate::workflow::Compensation;
use std::collections::BTreeSet;

use uuid::Uuid;

use super::*;
use crate::definition::RetryPolicy;
use crate::workflow::StepSet;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn step() -> Step {
    Step {
        name: "drone".into(),
        agent: "drones".into(),
        after: StepSet::EMPTY,
        ancestors: StepSet::EMPTY,
        when: None,
        run: Tries {
            timeout: Duration::from_secs(10),
            max_attempts: 3,
            intervals: intervals(),
        },
        undo: Undo::Agent(Compensation {
            agent: "yard".into(),
            tries: Tries {
                timeout: Duration::from_secs(20),
                max_attempts: 2,
                intervals: intervals(),
            },
            settle: Duration::from_secs(3),
            tombstones: true,
            needs: Vec::new(),
        }),
        is_pivot: false,
        on_failure: OnFailure::Compensate,
        long_interval: Duration::from_secs(600),
        probe: false,
        uses: Vec::new(),
        sensitive: Vec::new(),
    }
}

fn intervals() -> RetryIntervals {
    (&RetryPolicy::default()).into()
}

fn jitter() -> Jitter {
    Jitter::of(OperationId(Uuid::from_u128(1)), 2)
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

/// A step in each distinct state, after one failure of two attempts.
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
        "Compensating, waiting" => StepProgress {
            state: StepState::Compensating,
            ..base
        },
        "Compensating, in progress" => StepProgress {
            state: StepState::Compensating,
            action: Action::Compensate,
            complete_by: Some(Timestamp::from_millis(1_000_500)),
            ..base
        },
        "Compensating, to be tried again" => StepProgress {
            state: StepState::Compensating,
            action: Action::Compensate,
            retry_at,
            ..base
        },
        "Compensating, awaiting an answer" => StepProgress {
            state: StepState::Compensating,
            awaited_until: Some(Timestamp::from_millis(1_003_500)),
            retry_at: Some(Timestamp::from_millis(1_003_500)),
            ..base
        },
        "Undo failed for good" => StepProgress {
            state: StepState::Failed,
            action: Action::Compensate,
            undo_failure_count: 2,
            ..base
        },
        "Compensated" => StepProgress {
            state: StepState::Compensated,
            action: Action::Compensate,
            error: None,
            ..base
        },
        _ => unreachable!("{name}"),
    }
}

const STATES: [&str; 15] = [
    "NotStarted",
    "NotStarted, to be tried again",
    "Running",
    "Completed",
    "Failed, to be tried again",
    "Failed for good",
    "TimedOut, to be tried again",
    "TimedOut for good",
    "Skipped",
    "Compensating, waiting",
    "Compensating, in progress",
    "Compensating, to be tried again",
    "Compensating, awaiting an answer",
    "Undo failed for good",
    "Compensated",
];

fn events() -> [StepEvent; 17] {
    [
        StepEvent::Start,
        StepEvent::Skip,
        StepEvent::PutOff {
            wait: Duration::ZERO,
        },
        StepEvent::Retry { budget: None },
        StepEvent::Resume,
        StepEvent::Succeeded { outputs: outputs() },
        StepEvent::NotPerformed,
        StepEvent::FailedTransiently {
            error: error("slow"),
            unknown: false,
        },
        StepEvent::FailedPermanently { error: error("no") },
        StepEvent::NotAttempted {
            error: error("open"),
            retry_after: Duration::from_secs(3),
        },
        StepEvent::TimedOut,
        StepEvent::Undo,
        StepEvent::BeginUndo,
        StepEvent::OutcomeKnown {
            outputs: Some(outputs()),
        },
        StepEvent::LateSuccess {
            attempt: Attempt(1),
        },
        StepEvent::Undone,
        StepEvent::Renew,
    ]
}

/// The result of a legal pair; `None` for the others.
#[expect(clippy::too_many_lines, reason = "it is the table")]
fn expected(state: &str, event: &str) -> Option<StepProgress> {
    let before = in_state(state);
    // A step that enters a state, with no attempt in progress and no retry.
    let entered = |state| StepProgress {
        state,
        complete_by: None,
        retry_at: None,
        awaited_until: None,
        changed_at: NOW,
        ..before.clone()
    };
    let asked = |state, action, attempt, seconds| StepProgress {
        state,
        action,
        attempt: Attempt(attempt),
        complete_by: Some(NOW + Duration::from_secs(seconds)),
        ..entered(state)
    };
    let failed = |state, error| StepProgress {
        retry_at: Some(NOW + retry_wait(intervals(), 2, Attempt(2), jitter())),
        failure_count: 2,
        error: Some(error),
        ..entered(state)
    };
    let undo_failed = |error| StepProgress {
        retry_at: Some(NOW + retry_wait(intervals(), 1, Attempt(2), jitter())),
        undo_failure_count: 1,
        error: Some(error),
        ..entered(StepState::Compensating)
    };
    let undone = || StepProgress {
        error: None,
        ..entered(StepState::Compensated)
    };
    let late = |progress: StepProgress| StepProgress {
        late_success: Some(Attempt(1)),
        ..progress
    };
    let timed_out = |budget| StepError {
        code: "complete-by-passed".to_owned(),
        message: format!("no reply arrived within {budget}"),
    };
    // Complete-by of the running attempt, and the settling time after it.
    let unsettled = Some(Timestamp::from_millis(1_003_500));
    match (state, event) {
        ("NotStarted", "Start") => Some(asked(StepState::Running, Action::Run, 1, 10)),
        ("NotStarted", "Skip") => Some(entered(StepState::Skipped)),
        (
            "NotStarted"
            | "NotStarted, to be tried again"
            | "Failed, to be tried again"
            | "TimedOut, to be tried again"
            | "Compensating, waiting"
            | "Compensating, to be tried again"
            | "Compensating, awaiting an answer",
            "PutOff",
        ) => Some(StepProgress {
            retry_at: Some(NOW),
            ..before
        }),
        (
            "NotStarted, to be tried again"
            | "Failed, to be tried again"
            | "TimedOut, to be tried again",
            "Retry",
        ) => Some(asked(StepState::Running, Action::Run, 3, 10)),
        ("Running", "Resume") => Some(StepProgress {
            complete_by: Some(Timestamp::from_millis(1_010_000)),
            unsettled_until: Some(Timestamp::from_millis(1_013_000)),
            ..before
        }),
        ("Running", "Succeeded") => Some(StepProgress {
            error: None,
            outputs: outputs(),
            succeeded: Some(Attempt(2)),
            ..entered(StepState::Completed)
        }),
        ("Running", "NotPerformed") => Some(StepProgress {
            retry_at: Some(NOW),
            ..entered(StepState::NotStarted)
        }),
        ("Running", "FailedTransiently") => Some(failed(StepState::Failed, error("slow"))),
        ("Running", "FailedPermanently") => Some(StepProgress {
            retry_at: None,
            ..failed(StepState::Failed, error("no"))
        }),
        ("Running", "NotAttempted") => Some(StepProgress {
            retry_at: Some(Timestamp::from_millis(1_003_000)),
            not_attempted_count: 1,
            error: Some(error("open")),
            ..entered(StepState::NotStarted)
        }),
        ("Running", "TimedOut") => Some(StepProgress {
            unsettled_until: unsettled,
            ..failed(StepState::TimedOut, timed_out("10s"))
        }),
        ("Running", "Undo") => Some(StepProgress {
            awaited_until: unsettled,
            ..entered(StepState::Compensating)
        }),
        (
            "NotStarted, to be tried again"
            | "Completed"
            | "Failed, to be tried again"
            | "Failed for good"
            | "TimedOut, to be tried again"
            | "TimedOut for good"
            | "Undo failed for good",
            "Undo",
        ) => Some(entered(StepState::Compensating)),
        (
            "NotStarted"
            | "NotStarted, to be tried again"
            | "Failed, to be tried again"
            | "Failed for good"
            | "TimedOut, to be tried again"
            | "TimedOut for good",
            "Renew",
        ) => Some(StepProgress {
            failure_count: 0,
            retry_at: Some(NOW),
            ..before
        }),
        ("Undo failed for good", "Renew") => Some(StepProgress {
            undo_failure_count: 0,
            retry_at: Some(NOW),
            ..entered(StepState::Compensating)
        }),
        ("Compensating, waiting", "BeginUndo") => {
            Some(asked(StepState::Compensating, Action::Compensate, 3, 20))
        }
        ("Compensating, to be tried again" | "Compensating, awaiting an answer", "Retry") => {
            Some(asked(StepState::Compensating, Action::Compensate, 3, 20))
        }
        ("Compensating, awaiting an answer", "OutcomeKnown") => Some(StepProgress {
            awaited_until: None,
            retry_at: None,
            outputs: outputs(),
            succeeded: Some(Attempt(2)),
            ..before
        }),
        ("Compensating, in progress", "Resume") => Some(StepProgress {
            complete_by: Some(Timestamp::from_millis(1_020_000)),
            ..before
        }),
        ("Compensating, in progress", "Succeeded" | "NotPerformed") => Some(undone()),
        ("Compensating, in progress", "FailedTransiently") => Some(undo_failed(error("slow"))),
        ("Compensating, in progress", "FailedPermanently") => Some(StepProgress {
            state: StepState::Failed,
            retry_at: None,
            ..undo_failed(error("no"))
        }),
        ("Compensating, in progress", "TimedOut") => Some(undo_failed(timed_out("20s"))),
        ("Compensating, in progress", "NotAttempted") => Some(StepProgress {
            complete_by: None,
            retry_at: Some(Timestamp::from_millis(1_003_000)),
            not_attempted_count: 1,
            error: Some(error("open")),
            ..before
        }),
        (
            "Compensating, waiting"
            | "Compensating, in progress"
            | "Compensating, to be tried again"
            | "Compensating, awaiting an answer"
            | "Undo failed for good",
            "Undone",
        ) => Some(undone()),
        (
            "Compensating, waiting"
            | "Compensating, in progress"
            | "Compensating, to be tried again"
            | "Compensating, awaiting an answer"
            | "Compensated",
            "LateSuccess",
        ) => Some(late(entered(StepState::Compensating))),
        (
            "NotStarted"
            | "NotStarted, to be tried again"
            | "Running"
            | "Completed"
            | "Failed, to be tried again"
            | "Failed for good"
            | "TimedOut, to be tried again"
            | "TimedOut for good"
            | "Undo failed for good",
            "LateSuccess",
        ) => Some(late(before)),
        _ => None,
    }
}

#[test]
fn every_state_and_event_matches_the_transition_table() {
    for state in STATES {
        for event in events() {
            let name = event.name();
            let before = in_state(state);
            let mut after = before.clone();
            let result = transition(&mut after, event, &step(), jitter(), NOW);
            match expected(state, name) {
                Some(expected) => {
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
}

#[test]
fn a_probe_follows_an_unknown_outcome_and_a_run_follows_the_probe() {
    let step = Step {
        probe: true,
        ..step()
    };
    let mut progress = in_state("Running");
    let mut happen = |event| transition(&mut progress, event, &step, jitter(), NOW).unwrap();
    happen(StepEvent::TimedOut);
    happen(StepEvent::Retry { budget: None });
    happen(StepEvent::NotPerformed);
    happen(StepEvent::Retry { budget: None });
    assert_eq!(progress.action, Action::Run);
    assert_eq!(progress.attempt, Attempt(4));

    let mut progress = in_state("Running");
    transition(&mut progress, StepEvent::TimedOut, &step, jitter(), NOW).unwrap();
    let retry = StepEvent::Retry { budget: None };
    transition(&mut progress, retry, &step, jitter(), NOW).unwrap();
    assert_eq!(progress.action, Action::Probe);
}

#[test]
fn an_undo_waits_until_the_unknown_outcome_has_settled() {
    let mut progress = in_state("Running");
    transition(&mut progress, StepEvent::Undo, &step(), jitter(), NOW).unwrap();
    transition(&mut progress, StepEvent::BeginUndo, &step(), jitter(), NOW).unwrap();
    assert_eq!(progress.retry_at, Some(Timestamp::from_millis(1_003_500)));
    assert_eq!(progress.attempt, Attempt(2), "nothing was asked for yet");
}

/// A step whose service may perform it after an undo, with a probe or without.
fn forgetful(probe: bool) -> Step {
    let mut step = Step { probe, ..step() };
    if let Undo::Agent(undo) = &mut step.undo {
        undo.tombstones = false;
    }
    step
}

#[test]
fn an_undo_is_final_if_it_was_requested_after_all_attempts_settled() {
    let step = forgetful(false);
    let mut progress = StepProgress::default();
    let mut happen = |event, seconds| {
        let now = NOW + Duration::from_secs(seconds);
        transition(&mut progress, event, &step, jitter(), now).unwrap();
        (progress.state, progress.retry_at, progress.attempt)
    };
    let undone = || StepEvent::Succeeded {
        outputs: Outputs::new(),
    };
    happen(StepEvent::Start, 0);
    happen(StepEvent::Succeeded { outputs: outputs() }, 1);
    happen(StepEvent::Undo, 2);
    happen(StepEvent::BeginUndo, 2);
    let settled_at = Some(NOW + Duration::from_secs(13));
    assert_eq!(
        happen(undone(), 14),
        (StepState::Compensating, settled_at, Attempt(2)),
        "the undo was requested at 2, whenever it was done"
    );
    happen(StepEvent::Retry { budget: None }, 14);
    assert_eq!(
        happen(undone(), 15),
        (StepState::Compensated, None, Attempt(3))
    );
}

#[test]
fn an_undo_is_confirmed_by_a_probe_and_repeated_if_the_effect_remains() {
    for (answer, expected) in [
        (StepEvent::NotPerformed, StepState::Compensated),
        (
            StepEvent::Succeeded { outputs: outputs() },
            StepState::Compensating,
        ),
        (
            StepEvent::FailedPermanently {
                error: error("probe-unknown"),
            },
            StepState::Compensating,
        ),
    ] {
        let step = forgetful(true);
        let mut progress = StepProgress {
            retry_at: Some(NOW),
            settled_at: Some(NOW),
            is_to_be_confirmed: true,
            ..in_state("Compensating, to be tried again")
        };
        let mut happen = |event| transition(&mut progress, event, &step, jitter(), NOW).unwrap();
        happen(StepEvent::Retry { budget: None });
        happen(answer.clone());
        assert_eq!(progress.state, expected, "{answer:?}");
        if expected == StepState::Compensated {
            continue;
        }
        assert_eq!(progress.action, Action::Probe);
        let mut happen = |event| transition(&mut progress, event, &step, jitter(), NOW).unwrap();
        happen(StepEvent::BeginUndo);
        happen(StepEvent::Succeeded {
            outputs: Outputs::new(),
        });
        assert_eq!(progress.state, StepState::Compensated, "{answer:?}");
        assert_eq!(progress.action, Action::Compensate);
    }
}

#[test]
fn repeated_failures_of_a_probe_fail_the_undo() {
    let step = forgetful(true);
    let mut progress = StepProgress {
        retry_at: Some(NOW),
        settled_at: Some(NOW),
        is_to_be_confirmed: true,
        undo_failure_count: 0,
        ..in_state("Compensating, to be tried again")
    };
    for failure in 1..=3 {
        let mut happen = |event| transition(&mut progress, event, &step, jitter(), NOW).unwrap();
        happen(StepEvent::Retry { budget: None });
        happen(StepEvent::TimedOut);
        assert_eq!(progress.undo_failure_count, failure);
        assert!(
            progress.is_to_be_confirmed,
            "the steps before it are undone"
        );
    }
    assert!(progress.failed_for_good());
    assert_eq!(progress.action, Action::Compensate);
}

#[test]
fn a_step_that_no_agent_can_undo_needs_an_operator_unless_it_had_no_effect() {
    for (undo, state, expected) in [
        (Undo::Nothing, "Running", StepState::Compensated),
        (Undo::Impossible, "Failed for good", StepState::Compensated),
        (Undo::Impossible, "Running", StepState::Failed),
        (Undo::Impossible, "Completed", StepState::Failed),
        (Undo::Manual, "Completed", StepState::Failed),
    ] {
        let step = Step { undo, ..step() };
        let mut progress = in_state(state);
        transition(&mut progress, StepEvent::Undo, &step, jitter(), NOW).unwrap();
        if progress.state == StepState::Compensating {
            transition(&mut progress, StepEvent::BeginUndo, &step, jitter(), NOW).unwrap();
        }
        assert_eq!(progress.state, expected, "{:?} {state}", step.undo);
        if expected == StepState::Failed {
            let code = progress.error.map(|error| error.code);
            assert_eq!(code.as_deref(), Some("manual-undo-needed"));
        }
    }
}

#[test]
fn a_retried_step_waits_for_its_long_interval() {
    let step = Step {
        on_failure: OnFailure::Retry,
        ..step()
    };
    let mut progress = StepProgress {
        failure_count: 2,
        ..in_state("Running")
    };
    transition(&mut progress, StepEvent::TimedOut, &step, jitter(), NOW).unwrap();
    assert_eq!(progress.retry_at, Some(NOW + Duration::from_secs(600)));
}

#[test]
fn no_attempt_follows_the_last_allowed_failure() {
    for event in [
        StepEvent::FailedTransiently {
            error: error("slow"),
            unknown: false,
        },
        StepEvent::TimedOut,
    ] {
        let mut progress = StepProgress {
            failure_count: 2,
            ..in_state("Running")
        };
        transition(&mut progress, event, &step(), jitter(), NOW).unwrap();
        assert_eq!(progress.failure_count, 3);
        assert_eq!(progress.retry_at, None);
    }
}

#[test]
fn an_agent_that_requests_no_wait_is_still_given_a_short_pause() {
    let mut progress = in_state("Running");
    let event = StepEvent::NotAttempted {
        error: error("open"),
        retry_after: Duration::ZERO,
    };
    transition(&mut progress, event, &step(), jitter(), NOW).unwrap();
    assert_eq!(progress.retry_at, Some(NOW + NOT_ATTEMPTED_WAIT_MIN));
    assert_eq!(progress.failure_count, 1, "it is no failure");
}

#[test]
fn waits_grow_by_the_multiplier_within_their_bounds() {
    let intervals = intervals();
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
            let jitter = Jitter::of(OperationId(Uuid::from_u128(operation)), 0);
            let wait = retry_wait(intervals, failures, Attempt(failures), jitter);
            assert!(
                full / 2 <= wait && wait <= full,
                "{wait:?} after {failures} failures"
            );
        }
    }
}

#[test]
fn jitter_depends_on_operation_step_and_attempt_only() {
    let intervals = intervals();
    let mut waits = BTreeSet::new();
    for operation in 0..10 {
        for index in 0..10 {
            for attempt in 1..=10 {
                let jitter = Jitter::of(OperationId(Uuid::from_u128(operation)), index);
                let wait = retry_wait(intervals, 9, Attempt(attempt), jitter);
                assert_eq!(wait, retry_wait(intervals, 9, Attempt(attempt), jitter));
                waits.insert(wait);
            }
        }
    }
    assert!(waits.len() > 990, "{} different waits", waits.len());
}
