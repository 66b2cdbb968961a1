//! What the row of an operation forbids, when it is read, and how that is said.

use waybill_engine::{
    Amendment, Asked, CancelPolicy, HistoryEntry, OperationId, OperationRow, OperationState,
    ProcessState, RecoveryVerb, StepState, Timestamp, Workflows, refusal, workflow_of,
};
use waybill_http::problem::{Kind, Problem};

/// The code of a refusal because a completed step cannot be undone.
pub const PAST_PIVOT: &str = "past-pivot";

/// Why a recovery would be refused now, if it would.
pub fn of_recovery(
    row: &OperationRow,
    workflows: &Workflows,
    verb: &RecoveryVerb,
    now: Timestamp,
) -> Result<(), Problem> {
    match refusal(row, workflows, Asked::Recovery(verb), now) {
        None => Ok(()),
        Some(code) => Err(refused_of(row, workflows, code)),
    }
}

/// Whether an operation waits for a person, and cannot go on for want of its workflow.
pub fn is_stranded(row: &OperationRow, workflows: &Workflows) -> bool {
    let waits_for_a_person = row.state.state.is_parked() && !row.state.abandoned;
    waits_for_a_person && workflow_of(row, workflows).is_none()
}

/// Why an operation cannot go on with its workflow, and what mends it; `None` if it can.
pub fn trouble_with_workflow(row: &OperationRow, workflows: &Workflows) -> Option<String> {
    if workflow_of(row, workflows).is_some() {
        return None;
    }
    let created = &row.created;
    let (name, version) = (&created.workflow, created.workflow_version);
    if created.step_names.is_empty() {
        return Some(format!(
            "There was no workflow {name:?} when it came. Once there is one: abandon it, and resubmit it as a new one."
        ));
    }
    let was = match workflows.get(name, version) {
        Some(_) => "has other steps here than those that it started with: the file was changed",
        None => "is not known here: its file is missing, or has another version now",
    };
    let steps = created.step_names.join(", ");
    Some(format!(
        "Version {version} of its workflow {name:?} {was}. With the file of that version put back (steps {steps}) it can \
         go on; what is changed needs a version of its own."
    ))
}

/// The problem of what a row forbids.
fn refused_of(row: &OperationRow, workflows: &Workflows, code: &'static str) -> Problem {
    match trouble_with_workflow(row, workflows).filter(|_| code == "workflow-unknown") {
        Some(trouble) => Problem::new(Kind::VerbRefused, trouble).with_code(code),
        None => refused(code),
    }
}

/// Whether what is asked was done before: a step that is undone stays so.
pub fn is_done(row: &OperationRow, verb: &RecoveryVerb) -> bool {
    let RecoveryVerb::Undone { step } = verb else {
        return false;
    };
    let mut steps = row.created.step_names.iter().zip(&row.state.steps);
    steps.any(|(name, found)| **name == **step && found.state == StepState::Compensated)
}

/// What a cancel would come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelWouldBe {
    /// It is to be asked for.
    Asked,
    /// It was applied before.
    Done,
    /// The operation was final, or abandoned after an undo that failed, when it was read.
    Late,
    /// The operation was parked, with an undo that failed, when it was read.
    Parked,
    /// A step was completed that is never undone.
    PastPivot,
}

/// What a cancel would come to. It is refused for what cannot change: a final state, or a completed step that is never
/// undone. Whatever else forbids it is the scheduler's to say, and it says so in the operation's history.
pub fn of_cancel(row: &OperationRow, workflows: &Workflows, now: Timestamp) -> CancelWouldBe {
    match row.state.state {
        ProcessState::Cancelled => CancelWouldBe::Done,
        ProcessState::Compensated => CancelWouldBe::Late,
        ProcessState::CompensationFailed if row.state.abandoned => CancelWouldBe::Late,
        ProcessState::CompensationFailed => CancelWouldBe::Parked,
        ProcessState::Processed => {
            let created = &row.created;
            let workflow = workflows.get(&created.workflow, created.workflow_version);
            match workflow.is_some_and(|workflow| workflow.cancel() == CancelPolicy::Always) {
                true => CancelWouldBe::Asked,
                false => CancelWouldBe::Late,
            }
        }
        ProcessState::Processing | ProcessState::Error => {
            let cancel = Amendment::Cancel {
                workflow: row.created.workflow.to_string(),
            };
            match refusal(row, workflows, Asked::Amendment(&cancel), now) {
                Some(PAST_PIVOT) => CancelWouldBe::PastPivot,
                _ => CancelWouldBe::Asked,
            }
        }
        ProcessState::Pending | ProcessState::Compensating => CancelWouldBe::Asked,
    }
}

/// Why a reschedule would be refused now, if it would.
pub fn of_reschedule(
    row: &OperationRow,
    workflows: &Workflows,
    amendment: &Amendment,
    now: Timestamp,
) -> Result<(), Problem> {
    match refusal(row, workflows, Asked::Amendment(amendment), now) {
        None => Ok(()),
        Some(code) => {
            // A person can still go on with a parked operation, so that it is not called final here.
            let code = match code {
                "final" if row.state.state.is_parked() => "failed",
                other => other,
            };
            let kind = match code {
                "final" => Kind::OperationFinal,
                "step-sent" => Kind::StepSent,
                _ => Kind::VerbRefused,
            };
            Err(match kind {
                Kind::VerbRefused => refused_of(row, workflows, code),
                kind => Problem::new(kind, sentence(code)).with_code(code),
            })
        }
    }
}

/// The entry of the history about the operation that runs this one again, and the ID of that operation.
pub fn resubmission(state: &OperationState) -> Option<(&HistoryEntry, OperationId)> {
    let mut newest_first = state.history.iter().rev();
    newest_first.find_map(|entry| Some((entry, resubmitted_as(entry)?)))
}

/// The ID of the operation that runs this one again, if the entry is about that.
pub fn resubmitted_as(entry: &HistoryEntry) -> Option<OperationId> {
    entry.verb.strip_prefix("resubmitted ")?.parse().ok()
}

/// Why an operation cannot be run again as a new one, if it cannot: its effects would be made twice, or it was never
/// created.
pub fn of_resubmission_as_new(row: &OperationRow) -> Option<&'static str> {
    let state = &row.state;
    let is_undone = |state| matches!(state, StepState::Compensating | StepState::Compensated);
    match state.state {
        _ if state.tombstone => Some("never-created"),
        _ if resubmission(state).is_some() => Some("resubmitted-before"),
        ProcessState::Processed => Some("not-failed"),
        ProcessState::Pending | ProcessState::Processing | ProcessState::Compensating => {
            Some("not-final")
        }
        ProcessState::Error => {
            let is_partly_undone = state.steps.iter().any(|step| is_undone(step.state));
            (!is_partly_undone && !state.abandoned).then_some("nothing-undone")
        }
        ProcessState::Compensated | ProcessState::Cancelled | ProcessState::CompensationFailed => {
            None
        }
    }
}

/// The problem of an operation whose state forbids what is asked.
pub fn refused(code: &'static str) -> Problem {
    Problem::new(Kind::VerbRefused, sentence(code)).with_code(code)
}

fn sentence(code: &'static str) -> &'static str {
    match code {
        "pending" => "No scheduler has read the operation's request yet.",
        "final" => "The operation is final.",
        "failed" => "The operation has failed, or is being undone.",
        PAST_PIVOT => "A step is completed after which the operation only goes forward.",
        "step-sent" => "A step that uses a changed field was asked for before.",
        "compensation-failed" => "The operation could not be undone: retry its compensation.",
        "not-parked-in-error" => {
            "Only an operation in Error can be resubmitted; one that failed otherwise runs again with asNew, as a new one."
        }
        "partly-undone" => "Something of it was undone: resubmit it with asNew.",
        "nothing-undone" => "Nothing of it was undone: resubmit it without asNew.",
        "not-parked" => "Only an operation that waits for a person can be abandoned.",
        "not-compensation-failed" => "The operation is not in CompensationFailed.",
        "manual-undo-needed" => "What is left is for a person to undo, who then says `undone`.",
        "unknown-step" => "Its workflow has no step of this name.",
        "not-to-be-undone" => "The step is not waiting to be undone.",
        "never-created" => {
            "The operation was cancelled before its request came. Nothing was begun, so that there is nothing to do."
        }
        "not-failed" => "It did not fail.",
        "not-final" => "It has not ended yet.",
        "resubmitted-before" => {
            "It was resubmitted as a new operation before. To run it once more, resubmit that operation."
        }
        "input-invalid" => {
            "Its input is not one that can be requested: request it anew, corrected."
        }
        "workflow-unknown" => "Its workflow is not known here.",
        _ => "The operation's state forbids it.",
    }
}
