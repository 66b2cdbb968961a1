//! The actions that an operation's row forbids at the time it is read, and the texts of the
//! refusals.

use waybill_engine::{
    Amendment, Asked, CancelPolicy, HistoryEntry, OperationId, OperationRow, OperationState,
    ProcessState, RecoveryVerb, StepState, Timestamp, Workflows, refusal, workflow_of,
};
use waybill_http::problem::{Kind, Problem};

/// The code of a refusal because a completed step cannot be undone.
pub const PAST_PIVOT: &str = "past-pivot";

/// Why a recovery would be refused now; `None` if it would not.
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

/// Whether an operation is parked, and cannot continue because its workflow is unknown.
pub fn is_stranded(row: &OperationRow, workflows: &Workflows) -> bool {
    let waits_for_a_person = row.state.state.is_parked() && !row.state.abandoned;
    waits_for_a_person && workflow_of(row, workflows).is_none()
}

/// Why an operation cannot continue with its workflow, and how to fix that; `None` if it can.
pub fn trouble_with_workflow(row: &OperationRow, workflows: &Workflows) -> Option<String> {
    if workflow_of(row, workflows).is_some() {
        return None;
    }
    let created = &row.created;
    let (name, version) = (&created.workflow, created.workflow_version);
    if created.step_names.is_empty() {
        return Some(format!(
            "Workflow {name:?} did not exist when the request arrived. Add the workflow, abandon \
             the operation, and resubmit it as a new one."
        ));
    }
    let was = match workflows.get(name, version) {
        Some(_) => "has other steps now than when the operation started: the file was changed",
        None => "is unknown: its file is missing, or has another version now",
    };
    let steps = created.step_names.join(", ");
    Some(format!(
        "Version {version} of workflow {name:?} {was}. Restore the file of that version (steps \
         {steps}) to let the operation continue, and give changes a new version."
    ))
}

/// The problem of a row that forbids a verb.
fn refused_of(row: &OperationRow, workflows: &Workflows, code: &'static str) -> Problem {
    match trouble_with_workflow(row, workflows).filter(|_| code == "workflow-unknown") {
        Some(trouble) => Problem::new(Kind::VerbRefused, trouble).with_code(code),
        None => refused(code),
    }
}

/// Whether the verb was already applied: an undone step stays undone.
pub fn is_done(row: &OperationRow, verb: &RecoveryVerb) -> bool {
    let RecoveryVerb::Undone { step } = verb else {
        return false;
    };
    let mut steps = row.created.step_names.iter().zip(&row.state.steps);
    steps.any(|(name, found)| **name == **step && found.state == StepState::Compensated)
}

/// The expected result of a cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelWouldBe {
    /// The cancel should be sent.
    Asked,
    /// The cancel was already applied.
    Done,
    /// The operation was final, or abandoned after a failed undo, when the row was read.
    Late,
    /// The operation was parked with a failed undo when the row was read.
    Parked,
    /// A completed step can never be undone.
    PastPivot,
}

/// The expected result of a cancel. A cancel is refused here only for a permanent reason: a final
/// state, or a completed step that is never undone. All other refusals are the scheduler's, and
/// appear in the operation's history.
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

/// Why a reschedule would be refused now; `None` if it would not.
pub fn of_reschedule(
    row: &OperationRow,
    workflows: &Workflows,
    amendment: &Amendment,
    now: Timestamp,
) -> Result<(), Problem> {
    match refusal(row, workflows, Asked::Amendment(amendment), now) {
        None => Ok(()),
        Some(code) => {
            // A person can still resume a parked operation, so it is not called final here.
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

/// The entry of the history about the resubmission as a new operation, and the ID of that
/// operation.
pub fn resubmission(state: &OperationState) -> Option<(&HistoryEntry, OperationId)> {
    let mut newest_first = state.history.iter().rev();
    newest_first.find_map(|entry| Some((entry, resubmitted_as(entry)?)))
}

/// The ID of the new operation, if the entry is about a resubmission.
pub fn resubmitted_as(entry: &HistoryEntry) -> Option<OperationId> {
    entry.verb.strip_prefix("resubmitted ")?.parse().ok()
}

/// Why an operation cannot be resubmitted as a new one; `None` if it can. A new one would repeat
/// its effects, or it was never created.
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

/// The problem of an operation whose state forbids the verb.
pub fn refused(code: &'static str) -> Problem {
    Problem::new(Kind::VerbRefused, sentence(code)).with_code(code)
}

fn sentence(code: &'static str) -> &'static str {
    match code {
        "pending" => "No scheduler has read the operation's request yet.",
        "final" => "The operation is final.",
        "failed" => "The operation has failed, or is being undone.",
        PAST_PIVOT => "A completed step cannot be undone; the operation can only go forward.",
        "step-sent" => "A step that uses a changed field was already requested.",
        "compensation-failed" => {
            "The operation could not be undone: use retry-compensation, undone or abandon."
        }
        "not-parked-in-error" => {
            "Only an operation in Error can be resubmitted. An undone or abandoned one can be run \
             again as a new operation: --as-new (API: `asNew`)."
        }
        "partly-undone" => "Some steps were undone: resubmit the operation with asNew.",
        "nothing-undone" => "No step was undone: resubmit the operation without asNew.",
        "not-parked" => "Only a parked operation can be abandoned.",
        "not-compensation-failed" => "The operation is not in CompensationFailed.",
        "manual-undo-needed" => {
            "The remaining steps must be undone manually. Then report each with the verb `undone`."
        }
        "unknown-step" => "The workflow has no step of this name.",
        "not-to-be-undone" => "The step is not waiting to be undone.",
        "never-created" => {
            "The operation was cancelled before its request arrived. No step was started, so \
             there is nothing to do."
        }
        "not-failed" => "The operation did not fail.",
        "not-final" => "The operation has not ended yet.",
        "resubmitted-before" => {
            "The operation was already resubmitted as a new one. To run it once more, resubmit \
             the new operation."
        }
        "input-invalid" => "The input is invalid: submit a new, corrected request.",
        "workflow-unknown" => "The operation's workflow is unknown.",
        _ => "The operation's state does not allow this.",
    }
}
