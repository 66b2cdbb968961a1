//! Compiles a definition into a workflow: validates it, and derives what running operations need.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::definition::{
    CompensationDefinition, Condition, OnFailure, RetryPolicy, StepDefinition, StepKind,
    WorkflowDefinition,
};
use crate::workflow::{
    ATTEMPTS_MAX, Compensation, DURATION_MAX, MULTIPLIER_MAX, NAME_LENGTH_MAX, SENSITIVE_MAX,
    STEPS_MAX, Step, StepCondition, StepSet, Tries, Undo, Workflow, promise,
};

/// Why a definition cannot become a [`Workflow`], or several cannot be used together.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum WorkflowError {
    /// A name is invalid.
    #[error("workflow {workflow:?}: {field} {name:?} must be 1 to 64 of a-z, 0-9 and -")]
    Name {
        /// The workflow.
        workflow: String,
        /// The field with the name: `name`, `steps.name` or `steps.agent`.
        field: &'static str,
        /// The name.
        name: String,
    },
    /// It has no steps.
    #[error("workflow {workflow:?} has no steps")]
    NoSteps {
        /// The workflow.
        workflow: String,
    },
    /// It has too many steps.
    #[error("workflow {workflow:?} has {steps} steps; at most 64 are allowed")]
    TooManySteps {
        /// The workflow.
        workflow: String,
        /// The number of steps.
        steps: usize,
    },
    /// A sensitive field of the input is named wrongly.
    #[error("workflow {workflow:?}: sensitive must be {POINTERS}")]
    Sensitive {
        /// The workflow.
        workflow: String,
    },
    /// Two of its steps have the same name.
    #[error("workflow {workflow:?} has two steps named {step:?}")]
    DuplicateStep {
        /// The workflow.
        workflow: String,
        /// The name.
        step: String,
    },
    /// A step refers to an unknown step.
    #[error(
        "workflow {workflow:?}, step {step:?}: {field} names {unknown:?}, which is not a step of \
         this workflow"
    )]
    UnknownStep {
        /// The workflow.
        workflow: String,
        /// The step.
        step: String,
        /// The field with the reference: `after` or `when`.
        field: &'static str,
        /// The unknown name.
        unknown: String,
    },
    /// Steps depend on each other in a cycle.
    #[error("workflow {workflow:?}: these steps form a cycle: {}", steps.join(", "))]
    Cycle {
        /// The workflow.
        workflow: String,
        /// The steps that can never start.
        steps: Vec<String>,
    },
    /// A condition reads a step that might not have ended.
    #[error(
        "workflow {workflow:?}, step {step:?}: when reads step {read:?}, which does not come \
         before this step"
    )]
    ConditionNotBefore {
        /// The workflow.
        workflow: String,
        /// The step.
        step: String,
        /// The step that its condition reads.
        read: String,
    },
    /// A value is out of its range.
    #[error("workflow {workflow:?}, step {step:?}: {field} must be {expected}")]
    Value {
        /// The workflow.
        workflow: String,
        /// The step.
        step: String,
        /// The field's path in the step.
        field: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// A step has a compensation, although it cannot or need not be undone.
    #[error(
        "workflow {workflow:?}, step {step:?}: a step of kind {kind} cannot have a compensation"
    )]
    CompensationOfKind {
        /// The workflow.
        workflow: String,
        /// The step.
        step: String,
        /// Its kind, as written in the file.
        kind: &'static str,
    },
    /// No step produces an output that a compensation needs.
    #[error(
        "workflow {workflow:?}, step {step:?}: compensation.needs has {need:?}, which is not an \
         output (written step.output) of this step or of an earlier step"
    )]
    UndoInput {
        /// The workflow.
        workflow: String,
        /// The step.
        step: String,
        /// The missing output.
        need: String,
    },
    /// A step that cannot be undone comes before one whose failure would require its undo.
    #[error(
        "workflow {workflow:?}, step {step:?} cannot be undone, but {may_fail:?} may fail after \
         it; put the step last, put a pivot before it, or set onFailure: park for {may_fail:?}"
    )]
    IrreversibleTooEarly {
        /// The workflow.
        workflow: String,
        /// The step that cannot be undone.
        step: String,
        /// The step that may fail after it.
        may_fail: String,
    },
    /// A step runs in parallel with a pivot, so it may still fail after the pivot is completed.
    #[error(
        "workflow {workflow:?}: pivot {pivot:?} and step {step:?} may run at the same time; every \
         step must come before or after a pivot"
    )]
    BesidePivot {
        /// The workflow.
        workflow: String,
        /// The pivot.
        pivot: String,
        /// The step parallel to it.
        step: String,
    },
    /// A step after a pivot has `onFailure: compensate`.
    #[error(
        "workflow {workflow:?}, step {step:?}: onFailure cannot be compensate after pivot \
         {pivot:?}, because no step is undone once the pivot is completed"
    )]
    CompensateBehindPivot {
        /// The workflow.
        workflow: String,
        /// The step.
        step: String,
        /// The pivot.
        pivot: String,
    },
    /// A workflow that can always be cancelled has a step that cannot be undone.
    #[error(
        "workflow {workflow:?}: with cancel: always, every step must be undoable, but step \
         {step:?} cannot be undone once it is completed"
    )]
    CancelAlways {
        /// The workflow.
        workflow: String,
        /// The step.
        step: String,
    },
    /// The attempts of a step may take longer than the operation.
    #[error(
        "workflow {workflow:?}, step {step:?}: its attempts may take {schedule:?}, longer than the workflow's deadline of {deadline:?}"
    )]
    ScheduleBeyondDeadline {
        /// The workflow.
        workflow: String,
        /// The step.
        step: String,
        /// The maximum duration of all attempts and waits.
        schedule: Duration,
        /// The workflow's deadline.
        deadline: Duration,
    },
    /// Two workflows have the same name and version.
    #[error("workflow {workflow:?} is defined twice with version {version}")]
    DuplicateWorkflow {
        /// The workflow.
        workflow: String,
        /// The version.
        version: u32,
    },
}

impl TryFrom<WorkflowDefinition> for Workflow {
    type Error = WorkflowError;

    fn try_from(definition: WorkflowDefinition) -> Result<Self, WorkflowError> {
        let workflow = &definition.name;
        check_name(workflow, "name", workflow)?;
        if definition.steps.is_empty() {
            return Err(WorkflowError::NoSteps {
                workflow: workflow.clone(),
            });
        }
        if definition.steps.len() > STEPS_MAX {
            return Err(WorkflowError::TooManySteps {
                workflow: workflow.clone(),
                steps: definition.steps.len(),
            });
        }
        let mut names = BTreeMap::new();
        for (index, step) in definition.steps.iter().enumerate() {
            check_name(workflow, "steps.name", &step.name)?;
            check_name(workflow, "steps.agent", &step.agent)?;
            check_values(workflow, step)?;
            if names.insert(step.name.as_str(), index).is_some() {
                return Err(WorkflowError::DuplicateStep {
                    workflow: workflow.clone(),
                    step: step.name.clone(),
                });
            }
        }
        let after = definition
            .steps
            .iter()
            .enumerate()
            .map(|(index, step)| predecessors(workflow, index, step, &names))
            .collect::<Result<Vec<_>, _>>()?;
        if !are_pointers(&definition.sensitive) {
            return Err(WorkflowError::Sensitive {
                workflow: workflow.clone(),
            });
        }
        let order = order(workflow, &definition.steps, &after)?;
        let mut ancestors = vec![StepSet::EMPTY; after.len()];
        for &index in &order {
            ancestors[index] = after[index]
                .iter()
                .fold(after[index], |all, before| all.union(ancestors[before]));
        }
        let steps = definition
            .steps
            .iter()
            .enumerate()
            .map(|(index, step)| {
                let on_failure = on_failure(&definition, index, &ancestors);
                if step.retry.long_interval.is_some() && on_failure != OnFailure::Retry {
                    return Err(WorkflowError::Value {
                        workflow: workflow.clone(),
                        step: step.name.clone(),
                        field: "retry.longInterval".to_owned(),
                        expected: "omitted unless onFailure is retry",
                    });
                }
                Ok(Step {
                    name: step.name.as_str().into(),
                    agent: step.agent.as_str().into(),
                    after: after[index],
                    ancestors: ancestors[index],
                    when: step
                        .when
                        .as_ref()
                        .map(|when| condition(workflow, step, when, ancestors[index], &names))
                        .transpose()?,
                    run: Tries {
                        timeout: step.timeout,
                        max_attempts: max_attempts(
                            &step.retry,
                            StepDefinition::max_attempts_default(),
                        ),
                        intervals: (&step.retry).into(),
                    },
                    undo: undo(workflow, index, step, ancestors[index], &names)?,
                    is_pivot: step.kind == StepKind::Pivot,
                    on_failure,
                    long_interval: long_interval(step),
                    probe: step.probe,
                    uses: step.uses.clone(),
                    sensitive: step.sensitive.clone(),
                })
            })
            .collect::<Result<Vec<_>, WorkflowError>>()?;
        let compiled = Self {
            name: workflow.as_str().into(),
            version: definition.version,
            step_names: steps.iter().map(|step| Arc::clone(&step.name)).collect(),
            steps,
            order,
            cancel: definition.cancel,
            deadline: definition.deadline,
            sensitive: definition.sensitive,
        };
        promise::check(&compiled)?;
        Ok(compiled)
    }
}

/// What happens after this step has failed for good.
fn on_failure(definition: &WorkflowDefinition, index: usize, ancestors: &[StepSet]) -> OnFailure {
    let is_behind_pivot = ancestors[index]
        .iter()
        .any(|before| definition.steps[before].kind == StepKind::Pivot);
    let otherwise = if is_behind_pivot {
        OnFailure::Park
    } else {
        definition.on_failure.unwrap_or(OnFailure::Compensate)
    };
    definition.steps[index].on_failure.unwrap_or(otherwise)
}

fn undo(
    workflow: &str,
    index: usize,
    step: &StepDefinition,
    ancestors: StepSet,
    names: &BTreeMap<&str, usize>,
) -> Result<Undo, WorkflowError> {
    let refused_for = match (step.kind, &step.compensation) {
        (StepKind::Pure, Some(_)) => Some("pure"),
        (StepKind::Irreversible, Some(_)) => Some("irreversible"),
        (StepKind::Pure | StepKind::Irreversible, None)
        | (StepKind::Compensable | StepKind::Pivot, _) => None,
    };
    if let Some(kind) = refused_for {
        return Err(WorkflowError::CompensationOfKind {
            workflow: workflow.to_owned(),
            step: step.name.clone(),
            kind,
        });
    }
    let compensation = match (step.kind, step.compensation.clone()) {
        (StepKind::Pure, _) => return Ok(Undo::Nothing),
        (StepKind::Irreversible, _) | (StepKind::Pivot, None) => return Ok(Undo::Impossible),
        (StepKind::Compensable, compensation) => compensation.unwrap_or_default(),
        (StepKind::Pivot, Some(compensation)) => compensation,
    };
    for need in &compensation.needs {
        let supplied = need.split_once('.').is_some_and(|(name, output)| {
            let supplier = names.get(name).copied();
            !output.is_empty() && supplier.is_some_and(|by| by == index || ancestors.contains(by))
        });
        if !supplied {
            return Err(WorkflowError::UndoInput {
                workflow: workflow.to_owned(),
                step: step.name.clone(),
                need: need.clone(),
            });
        }
    }
    if compensation.manual {
        return Ok(Undo::Manual);
    }
    let agent = compensation.agent.as_deref().unwrap_or(&step.agent);
    Ok(Undo::Agent(Compensation {
        agent: agent.into(),
        tries: Tries {
            timeout: compensation.timeout,
            max_attempts: max_attempts(
                &compensation.retry,
                CompensationDefinition::max_attempts_default(),
            ),
            intervals: (&compensation.retry).into(),
        },
        settle: compensation.settle,
        tombstones: compensation.tombstones,
        needs: compensation.needs,
    }))
}

fn check_name(workflow: &str, field: &'static str, name: &str) -> Result<(), WorkflowError> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(WorkflowError::Name {
        workflow: workflow.to_owned(),
        field,
        name: name.to_owned(),
    })
}

/// The allowed values of `sensitive`.
const POINTERS: &str =
    "at most 64 JSON pointers to fields, each with a / before every name, such as /card";

/// Whether these are JSON pointers (RFC 6901) to something in an object.
fn are_pointers(texts: &[String]) -> bool {
    let is_escape = |rest: &str| rest.starts_with(['0', '1']);
    let is_pointer = |text: &String| {
        text.len() > 1 && text.starts_with('/') && text.split('~').skip(1).all(is_escape)
    };
    texts.len() <= SENSITIVE_MAX && texts.iter().all(is_pointer)
}

/// The allowed values of a duration.
const DURATION: &str = "more than 0 and at most 7d";

fn check_values(workflow: &str, step: &StepDefinition) -> Result<(), WorkflowError> {
    let wrong = |field: &str, expected| {
        Err(WorkflowError::Value {
            workflow: workflow.to_owned(),
            step: step.name.clone(),
            field: field.to_owned(),
            expected,
        })
    };
    let attempts = max_attempts(&step.retry, StepDefinition::max_attempts_default());
    if let Some((field, expected)) = wrong_tries(step.timeout, attempts, &step.retry) {
        return wrong(field, expected);
    }
    if !in_range(long_interval(step)) {
        return wrong("retry.longInterval", DURATION);
    }
    if step
        .when
        .as_ref()
        .is_some_and(|when| when.output.is_empty())
    {
        return wrong("when.output", "the name of an output");
    }
    if !are_pointers(&step.sensitive) {
        return wrong("sensitive", POINTERS);
    }
    let Some(undo) = &step.compensation else {
        return Ok(());
    };
    if let Some(agent) = &undo.agent {
        check_name(workflow, "steps.compensation.agent", agent)?;
    }
    let attempts = max_attempts(&undo.retry, CompensationDefinition::max_attempts_default());
    if let Some((field, expected)) = wrong_tries(undo.timeout, attempts, &undo.retry) {
        return wrong(&format!("compensation.{field}"), expected);
    }
    if undo.retry.long_interval.is_some() {
        return wrong(
            "compensation.retry.longInterval",
            "omitted: it applies only to the step itself",
        );
    }
    if undo.settle > DURATION_MAX {
        return wrong("compensation.settle", "at most 7d");
    }
    Ok(())
}

fn max_attempts(retry: &RetryPolicy, default: u32) -> u32 {
    retry.max_attempts.unwrap_or(default)
}

fn long_interval(step: &StepDefinition) -> Duration {
    let default = StepDefinition::long_interval_default();
    step.retry.long_interval.unwrap_or(default)
}

fn in_range(duration: Duration) -> bool {
    !duration.is_zero() && duration <= DURATION_MAX
}

/// The first field that is out of range, with its allowed values.
fn wrong_tries(
    timeout: Duration,
    max_attempts: u32,
    retry: &RetryPolicy,
) -> Option<(&'static str, &'static str)> {
    if !in_range(timeout) {
        Some(("timeout", DURATION))
    } else if !(1..=ATTEMPTS_MAX).contains(&max_attempts) {
        Some(("retry.maxAttempts", "between 1 and 1000"))
    } else if !in_range(retry.initial_interval) {
        Some(("retry.initialInterval", DURATION))
    } else if !in_range(retry.max_interval) {
        Some(("retry.maxInterval", DURATION))
    } else if retry.max_interval < retry.initial_interval {
        let expected = "at least retry.initialInterval; the default is 30s";
        Some(("retry.maxInterval", expected))
    } else if !(1.0..=MULTIPLIER_MAX).contains(&retry.multiplier) {
        Some(("retry.multiplier", "between 1 and 100"))
    } else {
        None
    }
}

fn predecessors(
    workflow: &str,
    index: usize,
    step: &StepDefinition,
    names: &BTreeMap<&str, usize>,
) -> Result<StepSet, WorkflowError> {
    let mut before = StepSet::EMPTY;
    match &step.after {
        None if index > 0 => before.insert(index - 1),
        None => {}
        Some(after) => {
            for name in after {
                before.insert(find(workflow, step, "after", name, names)?);
            }
        }
    }
    Ok(before)
}

fn find(
    workflow: &str,
    step: &StepDefinition,
    field: &'static str,
    name: &str,
    names: &BTreeMap<&str, usize>,
) -> Result<usize, WorkflowError> {
    names
        .get(name)
        .copied()
        .ok_or_else(|| WorkflowError::UnknownStep {
            workflow: workflow.to_owned(),
            step: step.name.clone(),
            field,
            unknown: name.to_owned(),
        })
}

/// Sorts the steps so that each follows its dependencies; among the candidates, the first in the
/// file comes next.
fn order(
    workflow: &str,
    steps: &[StepDefinition],
    after: &[StepSet],
) -> Result<Vec<usize>, WorkflowError> {
    let mut placed = StepSet::EMPTY;
    let mut order = Vec::with_capacity(steps.len());
    loop {
        let next = (0..steps.len()).find(|&index| {
            !placed.contains(index) && after[index].iter().all(|before| placed.contains(before))
        });
        match next {
            Some(index) => {
                placed.insert(index);
                order.push(index);
            }
            None if order.len() == steps.len() => return Ok(order),
            None => {
                return Err(WorkflowError::Cycle {
                    workflow: workflow.to_owned(),
                    steps: (0..steps.len())
                        .filter(|&index| waits_for_itself(index, after))
                        .map(|index| steps[index].name.clone())
                        .collect(),
                });
            }
        }
    }
}

/// Whether a step depends on itself, directly or through others.
fn waits_for_itself(step: usize, after: &[StepSet]) -> bool {
    let mut seen = StepSet::EMPTY;
    let mut next = vec![step];
    while let Some(index) = next.pop() {
        for before in after[index].iter() {
            if before == step {
                return true;
            }
            if !seen.contains(before) {
                seen.insert(before);
                next.push(before);
            }
        }
    }
    false
}

fn condition(
    workflow: &str,
    step: &StepDefinition,
    when: &Condition,
    ancestors: StepSet,
    names: &BTreeMap<&str, usize>,
) -> Result<StepCondition, WorkflowError> {
    let read = find(workflow, step, "when", &when.step, names)?;
    if !ancestors.contains(read) {
        return Err(WorkflowError::ConditionNotBefore {
            workflow: workflow.to_owned(),
            step: step.name.clone(),
            read: when.step.clone(),
        });
    }
    Ok(StepCondition {
        step: read,
        output: when.output.clone(),
        equals: when.equals.clone(),
    })
}
