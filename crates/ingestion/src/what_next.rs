//! What happens next with an operation, and which verbs it accepts now.

use waybill_api::verb::{Verb, as_typed};
use waybill_clock::time_text;
use waybill_clock::wall_clock;
use waybill_engine::{
    Action, Amendment, Asked, OperationRow, ProcessState, StepProgress, StepState, Timestamp,
    Workflows, refusal,
};

use super::refusals;

/// How many steps the sentence names at most.
const STEPS_NAMED_MAX: usize = 3;

/// What happens next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WhatNext {
    /// In one sentence.
    pub sentence: String,
    /// The accepted verbs: `cancel` by the caller, the others by an operator.
    pub verbs: Vec<Verb>,
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

fn verbs(row: &OperationRow, workflows: &Workflows, now: Timestamp) -> Vec<Verb> {
    let state = &row.state;
    let accepts = |asked: Asked<'_>| refusal(row, workflows, asked, now).is_none();
    let recovers = |verb: Verb, step: &str| {
        let recovery = verb.recovery(step);
        recovery.is_some_and(|recovery| accepts(Asked::Recovery(&recovery)))
    };
    let is_open = |verb: &Verb| match *verb {
        // A cancel that is under way needs no second one.
        Verb::Cancel if state.state == ProcessState::Compensating && state.cancelled => false,
        Verb::Cancel => {
            let workflow = String::new();
            accepts(Asked::Amendment(&Amendment::Cancel { workflow }))
        }
        Verb::Abandon if state.abandoned => false,
        Verb::Undone => {
            let mut steps = row.created.step_names.iter().zip(&state.steps);
            steps.any(|(name, step)| {
                step.state != StepState::Compensated && recovers(Verb::Undone, name)
            })
        }
        Verb::ResubmitAsNew => refusals::of_resubmission_as_new(row).is_none(),
        other => recovers(other, ""),
    };
    let meant = Verb::ALL.into_iter();
    let meant = meant.filter(|verb| verb.states().contains(&state.state));
    meant.filter(is_open).collect()
}

fn sentence(row: &OperationRow, verbs: &[Verb]) -> String {
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
            let open = verbs.iter().filter(|verb| **verb != Verb::Cancel);
            let open: Vec<&str> = open.map(|verb| as_typed(verb.as_str())).collect();
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
                StepState::Compensating if step.is_to_be_confirmed => {
                    "is undone, and will be undone once more, to confirm it,"
                }
                StepState::Compensating => "will be undone",
                _ => "will be retried",
            };
            Some(format!("{again} at {}", time_text(retry_at)))
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_undo_that_is_to_be_confirmed_is_not_shown_as_the_first() {
        let mut step = StepProgress {
            state: StepState::Compensating,
            retry_at: Some(Timestamp(0)),
            ..StepProgress::default()
        };
        let next = step_next(&step);
        assert_eq!(
            next.as_deref(),
            Some("will be undone at 1970-01-01T00:00:00Z")
        );
        step.is_to_be_confirmed = true;
        let next = step_next(&step);
        assert_eq!(
            next.as_deref(),
            Some("is undone, and will be undone once more, to confirm it, at 1970-01-01T00:00:00Z")
        );
    }
}
