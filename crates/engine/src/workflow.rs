//! Workflows, checked and compiled: what cannot work is refused when it is loaded, so that nothing
//! of it has to be considered while operations run.
//!
//! What must hold of every [`Workflow`]: steps come in an order in which every step follows all
//! that it waits for, and a condition reads only a step that is sure to have ended before. Sets of
//! steps are bits of a `u64`, hence at most 64 steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use compile::WorkflowError;

use crate::definition::{CancelPolicy, OnFailure, RetryPolicy};
use crate::operation::{StepProgress, StepState};
use crate::record::Action;

mod compile;
mod promise;

/// Most steps that a workflow may have.
pub const STEPS_MAX: usize = 64;

/// Longest name of a workflow, step or agent, in characters.
pub const NAME_LENGTH_MAX: usize = 64;

/// Longest time-out of an attempt and longest wait between attempts.
pub const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Most attempts that may be allowed.
pub const ATTEMPTS_MAX: u32 = 1_000;

/// Largest factor by which the wait between attempts may grow.
pub const MULTIPLIER_MAX: f64 = 100.0;

/// A set of a workflow's steps, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepSet(u64);

impl StepSet {
    /// No step.
    pub const EMPTY: Self = Self(0);

    /// Adds the step with this index.
    pub fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// Takes the step with this index out.
    pub fn remove(&mut self, index: usize) {
        self.0 &= !(1 << index);
    }

    /// Whether the step with this index is in it.
    #[must_use]
    pub fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    /// Whether no step is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The indices in it, ascending.
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
    /// All steps that are sure to have ended before it.
    pub ancestors: StepSet,
    /// It is skipped unless this holds.
    pub when: Option<StepCondition>,
    /// How often and for how long it is tried.
    pub run: Tries,
    /// How it is undone.
    pub undo: Undo,
    /// Whether the operation only goes forward once it is completed.
    pub is_pivot: bool,
    /// What happens once it has failed for good.
    pub on_failure: OnFailure,
    /// With [`OnFailure::Retry`], the wait before each further attempt.
    pub long_interval: Duration,
    /// Whether its agent is asked about attempts of unknown outcome.
    pub probe: bool,
    /// The fields of the input that stand once it was asked for.
    pub uses: Vec<String>,
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

    /// The agent that is asked for an action.
    #[must_use]
    pub fn agent_for(&self, action: Action) -> &Arc<str> {
        match (action, self.compensation()) {
            (Action::Compensate, Some(compensation)) => &compensation.agent,
            (Action::Compensate, None) | (Action::Run | Action::Probe, _) => &self.agent,
        }
    }

    /// What its next attempt does: it performs the step, undoes it, or finds out whether an undo has held. (Whether the
    /// next attempt at performing it is a probe is decided when it begins; that is asked of the same agent.)
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

    /// How often and for how long an action is tried.
    #[must_use]
    pub fn tries_for(&self, action: Action) -> &Tries {
        match (action, self.compensation()) {
            (Action::Compensate, Some(compensation)) => &compensation.tries,
            (Action::Compensate, None) | (Action::Run | Action::Probe, _) => &self.run,
        }
    }
}

/// How often and for how long an action is tried.
#[derive(Clone, PartialEq, Debug)]
pub struct Tries {
    /// How long one attempt may take.
    pub timeout: Duration,
    /// It fails for good once so many attempts have failed.
    pub max_attempts: u32,
    /// The waits between attempts.
    pub intervals: RetryIntervals,
}

/// How the waits between attempts grow: [`RetryPolicy`] says how.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RetryIntervals {
    /// After the first failure.
    pub initial: Duration,
    /// By how much they grow.
    pub multiplier: f64,
    /// The longest.
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
    /// How often and for how long it is tried.
    pub tries: Tries,
    /// How long after its complete-by an attempt of unknown outcome may still take effect.
    pub settle: Duration,
    /// Whether the step's service refuses to perform it once it was undone. If not, an undo that was asked for before
    /// all attempts have settled is confirmed afterwards.
    pub tombstones: bool,
    /// What the agent needs for it, as `step.output`: outputs of the step itself, or of steps that
    /// come before it.
    pub needs: Vec<String>,
}

/// A [`Condition`](crate::Condition) whose step was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepCondition {
    /// The index of the step whose output is read.
    pub step: usize,
    /// The name of the output.
    pub output: String,
    /// The value that it must have.
    pub equals: String,
}

/// A workflow that can run.
#[derive(Clone, PartialEq, Debug)]
pub struct Workflow {
    name: Arc<str>,
    version: u32,
    steps: Vec<Step>,
    step_names: Vec<Arc<str>>,
    /// Indices of `steps`, every step after all of its ancestors.
    order: Vec<usize>,
    cancel: CancelPolicy,
    deadline: Option<Duration>,
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

    /// Until when a caller may cancel an operation.
    #[must_use]
    pub fn cancel(&self) -> CancelPolicy {
        self.cancel
    }

    /// How long an operation may take if its caller sets no deadline.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The agents that it needs, each once, by name: those that perform steps and those that undo
    /// them.
    #[must_use]
    pub fn agents(&self) -> BTreeSet<Arc<str>> {
        let of_step = |step: &Step| {
            let actions = [Action::Run, Action::Compensate];
            actions.map(|action| Arc::clone(step.agent_for(action)))
        };
        self.steps.iter().flat_map(of_step).collect()
    }

    /// The indices of its steps in an order in which each follows all that it waits for.
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
    /// Puts workflows together.
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

    /// The version of a workflow that new operations start with.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&Arc<Workflow>> {
        self.by_name.get(name)?.values().next_back()
    }

    /// One version of a workflow.
    #[must_use]
    pub fn get(&self, name: &str, version: u32) -> Option<&Arc<Workflow>> {
        self.by_name.get(name)?.get(&version)
    }

    /// The agents that the workflows need, each once, by name.
    #[must_use]
    pub fn agents(&self) -> Vec<Arc<str>> {
        let agents: BTreeSet<_> = self.iter().flat_map(|workflow| workflow.agents()).collect();
        agents.into_iter().collect()
    }

    /// All of them, by name and version.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Workflow>> {
        self.by_name.values().flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests;
