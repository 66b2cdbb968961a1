//! What happens next with an operation, and which verbs it accepts now.

use waybill_clock::time_text;
use waybill_clock::wall_clock;
use waybill_engine::{
    Action, Amendment, Asked, OperationRow, ProcessState, RecoveryVerb, StepProgress, StepState,
    Timestamp, Workflows, refusal,
};

use super::refusals;
use super::verb::Verb;

/// The verb of an operation's caller.
pub const CANCEL: &str = Verb::Cancel.as_str();

/// Resubmits an operation as a new one: the verb `resubmit` with `asNew`. This is its name for
/// programs.
const RESUBMIT_AS_NEW: &str = "resubmit-as-new";

/// The form of a verb after `waybill ops`, as a person types it.
pub fn as_typed(verb: &str) -> &str {
    match verb {
        RESUBMIT_AS_NEW => "resubmit --as-new",
        other => other,
    }
}

/// How many steps the sentence names at most.
const STEPS_NAMED_MAX: usize = 3;

/// What happens next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WhatNext {
    /// In one sentence.
    pub sentence: String,
    /// The accepted verbs: `cancel` by the caller, the others by an operator.
    pub verbs: Vec<&'static str>,
}

/// What happens next with the operation of a row.
pub fn of(row: &OperationRow, workflows: &Workflows) -> WhatNext {
    let verbs = verbs(row, workflows, wall_clock());
    let mut sentence = sentence(row, &verbs);
    let trouble = refusals::trouble_with_workflow(row, workflows);
    if let Some(trouble) = trouble.filter(|_| refusals::is_stranded(row, workflows)) {
        sentence.push(' ');
        sentence.push_str(&trouble);
    }
    WhatNext { sentence, verbs }
}

fn verbs(row: &OperationRow, workflows: &Workflows, now: Timestamp) -> Vec<&'static str> {
    let candidates: &[Verb] = match row.state.state {
        ProcessState::Pending | ProcessState::Compensated | ProcessState::Cancelled => &[],
        ProcessState::Processed => &[Verb::Cancel],
        ProcessState::Processing => &[Verb::Cancel, Verb::Compensate],
        ProcessState::Compensating if row.state.cancelled => &[Verb::Undone],
        ProcessState::Compensating => &[Verb::Cancel, Verb::Undone],
        ProcessState::Error if row.state.abandoned => {
            &[Verb::Cancel, Verb::Resubmit, Verb::Compensate]
        }
        ProcessState::Error => &[
            Verb::Cancel,
            Verb::Resubmit,
            Verb::Compensate,
            Verb::Abandon,
        ],
        ProcessState::CompensationFailed if row.state.abandoned => {
            &[Verb::RetryCompensation, Verb::Undone]
        }
        ProcessState::CompensationFailed => &[Verb::RetryCompensation, Verb::Undone, Verb::Abandon],
    };
    let recovery =
        |verb: &RecoveryVerb| refusal(row, workflows, Asked::Recovery(verb), now).is_none();
    let is_open = |verb: &&Verb| match verb {
        Verb::Cancel => {
            let workflow = String::new();
            let cancel = Amendment::Cancel { workflow };
            refusal(row, workflows, Asked::Amendment(&cancel), now).is_none()
        }
        Verb::Resubmit => recovery(&RecoveryVerb::Resubmit),
        Verb::Compensate => recovery(&RecoveryVerb::Compensate { seen: None }),
        Verb::Abandon => recovery(&RecoveryVerb::Abandon),
        Verb::RetryCompensation => recovery(&RecoveryVerb::RetryCompensation),
        Verb::Undone => row
            .created
            .step_names
            .iter()
            .zip(&row.state.steps)
            .filter(|(_, step)| step.state != StepState::Compensated)
            .any(|(name, _)| {
                let step = name.to_string();
                recovery(&RecoveryVerb::Undone { step })
            }),
    };
    let mut open: Vec<&'static str> = candidates
        .iter()
        .filter(is_open)
        .map(|verb| verb.as_str())
        .collect();
    if refusals::of_resubmission_as_new(row).is_none() {
        open.push(RESUBMIT_AS_NEW);
    }
    open
}

fn sentence(row: &OperationRow, verbs: &[&str]) -> String {
    let state = &row.state;
    match state.state {
        ProcessState::Pending => "Waiting for the scheduler to read the request.".to_owned(),
        ProcessState::Processed => "Nothing: every step is completed or skipped.".to_owned(),
        ProcessState::Compensated => {
            "Nothing: it failed, and all of its effects are undone.".to_owned()
        }
        ProcessState::Cancelled if state.tombstone => {
            "Nothing: it was cancelled before its request arrived. A request with this id will \
             end Cancelled."
                .to_owned()
        }
        ProcessState::Cancelled => {
            "Nothing: it was cancelled, and all of its effects are undone.".to_owned()
        }
        ProcessState::Error | ProcessState::CompensationFailed if state.abandoned => {
            "Nothing: an operator abandoned it; its effects remain.".to_owned()
        }
        ProcessState::Error | ProcessState::CompensationFailed => {
            let open = verbs.iter().filter(|verb| **verb != CANCEL);
            let open: Vec<&str> = open.map(|verb| as_typed(verb)).collect();
            match open.split_last() {
                None => "Waiting for an operator.".to_owned(),
                Some((only, [])) => format!("Waiting for an operator: {only}."),
                Some((last, rest)) => {
                    format!("Waiting for an operator: {} or {last}.", rest.join(", "))
                }
            }
        }
        ProcessState::Processing if state.awaits_decision() => {
            let failed = state.error.as_ref().and_then(|error| error.step.as_deref());
            format!(
                "Step {} has failed permanently. The supervisor decides what happens next.",
                failed.unwrap_or("?")
            )
        }
        ProcessState::Processing | ProcessState::Compensating => steps(row),
    }
}

/// The steps that are running, and those that wait for their next attempt.
fn steps(row: &OperationRow) -> String {
    let named = row.created.step_names.iter().zip(&row.state.steps);
    let parts: Vec<String> = named
        .filter_map(|(name, step)| Some(format!("step {name} {}", step_next(step)?)))
        .collect();
    let Some((first, rest)) = parts.split_first() else {
        return match row.state.next_due {
            Some(due) => format!("The scheduler checks it again at {}.", time_text(due)),
            None => "The scheduler continues it.".to_owned(),
        };
    };
    let mut sentence = first.replacen('s', "S", 1);
    for part in rest.iter().take(STEPS_NAMED_MAX - 1) {
        sentence.push_str("; ");
        sentence.push_str(part);
    }
    let unnamed = rest.len().saturating_sub(STEPS_NAMED_MAX - 1);
    if unnamed > 0 {
        sentence.push_str(&format!("; and {unnamed} more"));
    }
    sentence.push('.');
    sentence
}

fn step_next(step: &StepProgress) -> Option<String> {
    let attempt = step.attempt;
    match (step.complete_by, step.retry_at) {
        (Some(complete_by), _) => {
            let what = match step.action {
                Action::Run => "is running",
                Action::Compensate => "is being undone",
                Action::Probe => "is being probed",
            };
            let until = time_text(complete_by);
            Some(format!("{what}, attempt {attempt}, until {until}"))
        }
        (None, Some(retry_at)) => {
            let again = match step.state {
                StepState::Compensating => "will be undone",
                _ => "will be retried",
            };
            Some(format!("{again} at {}", time_text(retry_at)))
        }
        (None, None) => None,
    }
}
