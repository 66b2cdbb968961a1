//! Checks whether the agents of a file support the requests that workflows need.
//!
//! What must hold for agents that pass: each step that they perform, undo or probe has a request
//! for that. Each result that a request requires is an output of an earlier step, whose agent keeps
//! it. So no operation, and above all no undo, fails for a value that could never exist. And no
//! workflow relies on a service to refuse a step after its undo unless the agent declares that it
//! does.
//!
//! Deliberately absent: checks of agents that are not in the file, and of steps that may be
//! skipped. Only a running operation shows whether a value always exists.

use std::collections::{BTreeMap, BTreeSet};

use waybill_engine::{Action, Step, Undo, Workflow, Workflows};

use super::answer::Kept;
use super::plan::{Requests, StepPlan};
use super::{AgentsFile, LoadError};

impl AgentsFile {
    /// Checks that the agents support the workflows: each step that an agent of this file performs,
    /// undoes or probes has its request, and other agents keep the results of earlier steps that it
    /// uses. Agents that are not in this file are assumed to support their steps.
    ///
    /// # Errors
    ///
    /// If an agent does not support a step, if its requests cannot be loaded, or if two have the
    /// same name.
    pub fn check(&self, workflows: &Workflows) -> Result<(), LoadError> {
        self.check_unique_names()?;
        let agents = self
            .agents
            .iter()
            .map(|agent| match Requests::compile(&agent.http, None) {
                Ok(requests) => {
                    let tombstones = agent.http.tombstones;
                    let known = DeclaredAgent {
                        requests,
                        tombstones,
                    };
                    Ok((agent.name.as_str(), known))
                }
                Err(error) => Err(error.of_agent(&agent.name)),
            })
            .collect::<Result<Agents<'_>, _>>()?;
        for workflow in workflows.iter() {
            for index in 0..workflow.steps().len() {
                let requirements = StepRequirements {
                    agents: &agents,
                    workflow,
                    index,
                };
                requirements.check()?;
            }
        }
        Ok(())
    }
}

impl AgentsFile {
    /// The input fields that these agents require to render their requests for a workflow's steps,
    /// each with the steps that use it.
    ///
    /// # Errors
    ///
    /// If the requests of an agent cannot be loaded.
    pub fn needed_inputs(&self, workflow: &Workflow) -> Result<NeededInputs, LoadError> {
        let mut needed = NeededInputs::new();
        for agent in &self.agents {
            let requests = Requests::compile(&agent.http, None);
            let requests = requests.map_err(|error| error.of_agent(&agent.name))?;
            for step in workflow.steps() {
                let Some(actions) = requests.of(&step.name) else {
                    continue;
                };
                for action in [Action::Run, Action::Compensate] {
                    if **step.agent_for(action) != *agent.name {
                        continue;
                    }
                    let request = actions.request(action);
                    for field in request.map(StepPlan::needed_inputs).unwrap_or_default() {
                        let steps: &mut BTreeSet<String> = needed.entry(field).or_default();
                        steps.insert(step.name.to_string());
                    }
                }
            }
        }
        Ok(needed)
    }
}

/// Fields of an input, with dots between keys, each with the steps that use it.
pub type NeededInputs = BTreeMap<String, BTreeSet<String>>;

/// The known agents, by name.
type Agents<'a> = BTreeMap<&'a str, DeclaredAgent>;

/// What the file declares about an agent.
struct DeclaredAgent {
    requests: Requests,
    /// Its service refuses to perform a step once it was undone.
    tombstones: bool,
}

/// What a step requires of the agents.
struct StepRequirements<'a> {
    agents: &'a Agents<'a>,
    workflow: &'a Workflow,
    index: usize,
}

impl StepRequirements<'_> {
    fn check(&self) -> Result<(), LoadError> {
        let step = self.step();
        if let Some(when) = &step.when {
            let read = &self.workflow.steps()[when.step];
            // An optional value is allowed here: without it, the condition is false.
            self.kept(read, &when.output).map_err(|why| {
                self.unmet(&read.agent, "when.output", format!("cannot be read: {why}"))
            })?;
        }
        self.request(&step.agent, Action::Run)?;
        if step.probe {
            self.request(&step.agent, Action::Probe)?;
        }
        if let Undo::Agent(undo) = &step.undo {
            self.request(&undo.agent, Action::Compensate)?;
            let performer = self.agents.get(&*step.agent);
            if undo.tombstones && performer.is_some_and(|known| !known.tombstones) {
                let why = "is true, but the agent does not declare that its service refuses an \
                           undone step; set `tombstones: true` under `http` if it does, or remove \
                           the key from the workflow";
                return Err(self.unmet(&step.agent, "compensation.tombstones", why));
            }
            for need in &undo.needs {
                self.supplied(Action::Compensate, need).map_err(|why| {
                    let why = format!("names {need:?}, but {why}");
                    self.unmet(&undo.agent, "compensation.needs", why)
                })?;
            }
        }
        Ok(())
    }

    /// Checks that the agent, if it is in the file, has the request, and that its required values
    /// exist.
    fn request(&self, agent: &str, action: Action) -> Result<(), LoadError> {
        let Some(DeclaredAgent { requests, .. }) = self.agents.get(agent) else {
            return Ok(());
        };
        let step = &self.step().name;
        let actions = requests.of(step);
        let of_step = actions.map_or_else(|| format!("steps.{step}"), |found| found.key.clone());
        let (key, missing) = match action {
            Action::Run => (
                of_step,
                "is missing, and there is no `request` for all steps, but the agent must perform \
                 the step",
            ),
            Action::Compensate => (
                format!("{of_step}.compensate"),
                "is missing, but the agent must undo the step; add the request, or declare in the \
                 workflow that an operator undoes the step (`compensation: { manual: true }`), that \
                 it cannot be undone (`kind: irreversible`), or that there is nothing to undo \
                 (`kind: pure`)",
            ),
            Action::Probe => (
                format!("{of_step}.probe"),
                "is missing, but the step has `probe: true`",
            ),
        };
        let Some(request) = actions.and_then(|found| found.request(action)) else {
            return Err(self.unmet(agent, key, missing));
        };
        for (part, result) in request.needed_results() {
            self.supplied(action, result).map_err(|why| {
                let why = format!("uses `{{{{results.{result}}}}}`, but {why}");
                self.unmet(agent, format!("{key}.{part}"), why)
            })?;
        }
        Ok(())
    }

    /// Checks that a result, `step.output`, exists when the action is requested. The error says why
    /// not.
    fn supplied(&self, action: Action, result: &str) -> Result<(), String> {
        let (name, output) = result.split_once('.').unwrap_or((result, ""));
        let Some(by) = self.workflow.step_index(name) else {
            return Err(format!("the workflow has no step {name:?}"));
        };
        let is_own = by == self.index && action == Action::Compensate;
        if !is_own && !self.step().ancestors.contains(by) {
            return Err(format!("step {name:?} does not come before this one"));
        }
        let supplier = &self.workflow.steps()[by];
        match self.kept(supplier, output)? {
            Some(kept) if kept.optional => Err(format!(
                "agent {:?} keeps it only if it is present (its pointer under `keep` ends in `?`)",
                supplier.agent
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The output that the agent of a step keeps; `None` if the agent is not in the file. An error
    /// if it does not keep this output, or does not know the step.
    fn kept(&self, supplier: &Step, output: &str) -> Result<Option<&Kept>, String> {
        let Some(DeclaredAgent { requests, .. }) = self.agents.get(&*supplier.agent) else {
            return Ok(None);
        };
        let actions = requests.of(&supplier.name);
        match actions.and_then(|actions| actions.run.keep.find(output)) {
            Some(kept) => Ok(Some(kept)),
            None => Err(format!(
                "agent {:?} keeps no {output:?} of step {:?}'s response (`keep`)",
                supplier.agent, supplier.name
            )),
        }
    }

    fn step(&self) -> &Step {
        &self.workflow.steps()[self.index]
    }

    fn unmet(&self, agent: &str, key: impl Into<String>, why: impl Into<String>) -> LoadError {
        LoadError::UnmetRequirement {
            agent: agent.to_owned(),
            workflow: self.workflow.name().to_string(),
            version: self.workflow.version(),
            step: self.step().name.to_string(),
            key: key.into(),
            why: why.into(),
        }
    }
}
