//! Validated and compiled workflows: a workflow that cannot work is refused when it is loaded, so
//! that running operations need no such checks.
//!
//! What must hold for every [`Workflow`]: each step follows all its dependencies in the order of
//! steps, and a condition reads only a step that is certain to have ended. Sets of steps are bits
//! of a `u64`, so there are at most 64 steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use compile::WorkflowError;

use crate::action::Action;
use crate::definition::{CancelPolicy, OnFailure, RetryPolicy};
use crate::operation::{StepProgress, StepState};

mod compile;
mod promise;

/// Maximum number of steps of a workflow.
pub const STEPS_MAX: usize = 64;

/// Maximum length of the name of a workflow, step or agent, in characters.
pub const NAME_LENGTH_MAX: usize = 64;

/// Maximum timeout of an attempt and maximum wait between attempts.
pub const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Maximum number of attempts that can be configured.
pub const ATTEMPTS_MAX: u32 = 1_000;

/// Maximum number of sensitive fields of a workflow's input, and of a step's outputs.
pub const SENSITIVE_MAX: usize = 64;

/// Maximum factor by which the wait between attempts may grow.
pub const MULTIPLIER_MAX: f64 = 100.0;

/// A set of a workflow's steps, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepSet(u64);

impl StepSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Adds the step with this index.
    pub fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// Removes the step with this index.
    pub fn remove(&mut self, index: usize) {
        self.0 &= !(1 << index);
    }

    /// Whether the set contains the step with this index.
    #[must_use]
    pub fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The indices in the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let lowest = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(lowest)
        })
    }

    /// Whether the sets have a step in common.
    #[must_use]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A step of a [`Workflow`].
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// Its name.
    pub name: Arc<str>,
    /// The agent that performs it.
    pub agent: Arc<str>,
    /// The steps that must be completed or skipped before it.
    pub after: StepSet,
    /// All steps that are certain to have ended before it starts.
    pub ancestors: StepSet,
    /// The step is skipped unless this condition holds.
    pub when: Option<StepCondition>,
    /// The limits of its attempts.
    pub run: Tries,
    /// How it is undone.
    pub undo: Undo,
    /// Whether the operation can no longer be undone once this step is completed.
    pub is_pivot: bool,
    /// What happens after it has failed for good.
    pub on_failure: OnFailure,
    /// With [`OnFailure::Retry`], the wait before each further attempt.
    pub long_interval: Duration,
    /// Whether its agent is asked about attempts of unknown outcome.
    pub probe: bool,
    /// The input fields that are fixed once the step was requested.
    pub uses: Vec<String>,
    /// The sensitive outputs, as JSON pointers.
    pub sensitive: Vec<String>,
}

impl Step {
    /// How an agent undoes it, if one does.
    #[must_use]
    pub fn compensation(&self) -> Option<&Compensation> {
        match &self.undo {
            Undo::Agent(compensation) => Some(compensation),
            Undo::Nothing | Undo::Manual | Undo::Impossible => None,
        }
    }

    /// The agent that receives requests for an action.
    #[must_use]
    pub fn agent_for(&self, action: Action) -> &Arc<str> {
        match (action, self.compensation()) {
            (Action::Compensate, Some(compensation)) => &compensation.agent,
            (Action::Compensate, None) | (Action::Run | Action::Probe, _) => &self.agent,
        }
    }

    /// The action of its next attempt: run it, undo it, or probe whether an undo has lasted.
    /// (Whether a run is replaced by a probe is decided when the attempt starts; both go to the
    /// same agent.)
    #[must_use]
    pub fn next_action(&self, progress: &StepProgress) -> Action {
        match progress.state {
            StepState::Compensating if progress.is_to_be_confirmed && self.probe => Action::Probe,
            StepState::Compensating => Action::Compensate,
            StepState::NotStarted
            | StepState::Running
            | StepState::Completed
            | StepState::Failed
            | StepState::TimedOut
            | StepState::Skipped
            | StepState::Compensated => Action::Run,
        }
    }

    /// The limits of the attempts at an action.
    #[must_use]
    pub fn tries_for(&self, action: Action) -> &Tries {
        match (action, self.compensation()) {
            (Action::Compensate, Some(compensation)) => &compensation.tries,
            (Action::Compensate, None) | (Action::Run | Action::Probe, _) => &self.run,
        }
    }
}

/// The limits of the attempts at an action.
#[derive(Clone, PartialEq, Debug)]
pub struct Tries {
    /// How long one attempt may take.
    pub timeout: Duration,
    /// It fails for good after this many failed attempts.
    pub max_attempts: u32,
    /// The waits between attempts.
    pub intervals: RetryIntervals,
}

/// How the waits between attempts grow; see [`RetryPolicy`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RetryIntervals {
    /// The wait after the first failure.
    pub initial: Duration,
    /// The factor by which it grows.
    pub multiplier: f64,
    /// The maximum.
    pub max: Duration,
}

impl From<&RetryPolicy> for RetryIntervals {
    fn from(policy: &RetryPolicy) -> Self {
        Self {
            initial: policy.initial_interval,
            multiplier: policy.multiplier,
            max: policy.max_interval,
        }
    }
}

/// How a step is undone.
#[derive(Clone, PartialEq, Debug)]
pub enum Undo {
    /// There is nothing to undo.
    Nothing,
    /// An agent undoes it.
    Agent(Compensation),
    /// A person undoes it.
    Manual,
    /// It cannot be undone.
    Impossible,
}

/// How an agent undoes a step.
#[derive(Clone, PartialEq, Debug)]
pub struct Compensation {
    /// The agent.
    pub agent: Arc<str>,
    /// The limits of its attempts.
    pub tries: Tries,
    /// How long after its complete-by an attempt of unknown outcome may still take effect.
    pub settle: Duration,
    /// Whether the step's service refuses to perform the step after its undo. If not, an undo that
    /// was requested before all attempts had settled is confirmed afterwards.
    pub tombstones: bool,
    /// The outputs that the agent needs, as `step.output`: of the step itself, or of earlier steps.
    pub needs: Vec<String>,
}

/// A resolved [`Condition`](crate::Condition).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepCondition {
    /// The index of the step whose output is read.
    pub step: usize,
    /// The name of the output.
    pub output: String,
    /// The required value.
    pub equals: String,
}

/// A valid workflow, ready to run.
#[derive(Clone, PartialEq, Debug)]
pub struct Workflow {
    name: Arc<str>,
    version: u32,
    steps: Vec<Step>,
    step_names: Vec<Arc<str>>,
    /// Indices of `steps`, each step after all of its ancestors.
    order: Vec<usize>,
    cancel: CancelPolicy,
    deadline: Option<Duration>,
    sensitive: Vec<String>,
}

impl Workflow {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Its steps, in the order of the definition.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The names of its steps, in the order of the definition.
    #[must_use]
    pub fn step_names(&self) -> &[Arc<str>] {
        &self.step_names
    }

    /// The index of the step with this name.
    #[must_use]
    pub fn step_index(&self, name: &str) -> Option<usize> {
        self.step_names.iter().position(|step| &**step == name)
    }

    /// The time until which a caller may cancel an operation.
    #[must_use]
    pub fn cancel(&self) -> CancelPolicy {
        self.cancel
    }

    /// How long an operation may take if its caller sets no deadline.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The sensitive fields of the input, as JSON pointers.
    #[must_use]
    pub fn sensitive(&self) -> &[String] {
        &self.sensitive
    }

    /// The names of its agents, sorted and without duplicates: those that perform steps and those
    /// that undo them.
    #[must_use]
    pub fn agents(&self) -> BTreeSet<Arc<str>> {
        let of_step = |step: &Step| {
            let actions = [Action::Run, Action::Compensate];
            actions.map(|action| Arc::clone(step.agent_for(action)))
        };
        self.steps.iter().flat_map(of_step).collect()
    }

    /// The indices of its steps, each step after all of its dependencies.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }
}

/// All workflows, by name and version.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Workflows {
    by_name: BTreeMap<Arc<str>, BTreeMap<u32, Arc<Workflow>>>,
}

impl Workflows {
    /// Collects workflows.
    ///
    /// # Errors
    ///
    /// If two have the same name and version.
    pub fn new(workflows: Vec<Workflow>) -> Result<Self, WorkflowError> {
        let mut by_name: BTreeMap<Arc<str>, BTreeMap<u32, Arc<Workflow>>> = BTreeMap::new();
        for workflow in workflows {
            let versions = by_name.entry(Arc::clone(&workflow.name)).or_default();
            if versions.contains_key(&workflow.version) {
                return Err(WorkflowError::DuplicateWorkflow {
                    workflow: workflow.name.to_string(),
                    version: workflow.version,
                });
            }
            versions.insert(workflow.version, Arc::new(workflow));
        }
        Ok(Self { by_name })
    }

    /// The latest version of a workflow, which new operations use.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&Arc<Workflow>> {
        self.by_name.get(name)?.values().next_back()
    }

    /// One version of a workflow.
    #[must_use]
    pub fn get(&self, name: &str, version: u32) -> Option<&Arc<Workflow>> {
        self.by_name.get(name)?.get(&version)
    }

    /// The names of the agents of all workflows, sorted and without duplicates.
    #[must_use]
    pub fn agents(&self) -> Vec<Arc<str>> {
        let agents: BTreeSet<_> = self.iter().flat_map(|workflow| workflow.agents()).collect();
        agents.into_iter().collect()
    }

    /// All workflows, ordered by name and version.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Workflow>> {
        self.by_name.values().flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests;
