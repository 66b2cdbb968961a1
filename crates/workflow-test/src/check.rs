//! Checks a file of cases against the workflow and the agents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use waybill_agent::http::OfflineAgent;
use waybill_config::misspelling_of;
use waybill_engine::{Action, INPUT_BYTES_MAX, Workflow};

use crate::cases::{Answer, AnswerOutcome, ByStep, Case, CasesFile, Expectation, Verb, VerbName};
use crate::mocks::key_of;
use crate::path::PathEntry;
use crate::place::Placed;
use crate::run::{Setting, input_of};

/// Maximum number of cases of a file.
const CASES_MAX: usize = 1_000;

/// Maximum number of attempts that one answer is for.
const TIMES_MAX: u32 = 1_000;

/// Maximum of all times and durations in a case.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A fault of the file.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Line and column, if known.
    pub(crate) position: Option<(u64, u64)>,
    pub(crate) problem: String,
}

type Checked = Result<(), Fault>;

fn fault(position: (u64, u64), problem: impl Into<String>) -> Fault {
    Fault {
        position: Some(position),
        problem: problem.into(),
    }
}

/// Checks a file.
pub(crate) fn check(file: &CasesFile, setting: &Setting) -> Checked {
    let check = Check { file, setting };
    check.all()
}

struct Check<'a> {
    file: &'a CasesFile,
    setting: &'a Setting,
}

impl Check<'_> {
    fn all(&self) -> Checked {
        let file = self.file;
        if file.cases.is_empty() || file.cases.len() > CASES_MAX {
            return Err(Fault {
                position: None,
                problem: format!("cases: must be 1 to {CASES_MAX}"),
            });
        }
        self.answers(&file.answers, &file.undo_answers, &file.probe_answers)?;
        let mut names = BTreeSet::new();
        for case in &file.cases {
            let name = &case.name;
            if !names.insert(name.value.as_str()) {
                let problem = format!("cases.name: there are two cases {:?}", name.value);
                return Err(fault(name.position, problem));
            }
            self.case(case)?;
        }
        Ok(())
    }

    fn case(&self, case: &Case) -> Checked {
        let position = case.name.position;
        let input = Value::Object(input_of(self.file, case));
        if input.to_string().len() > INPUT_BYTES_MAX {
            let problem = format!("cases.input: must be at most {INPUT_BYTES_MAX} bytes long");
            return Err(fault(position, problem));
        }
        if let Some(deadline) = case.deadline {
            bounded("cases.deadline", deadline, position)?;
        }
        self.answers(&case.answers, &case.undo_answers, &case.probe_answers)?;
        for verb in &case.verbs {
            self.verb(verb)?;
        }
        self.expectation(&case.expect)
    }

    fn answers(
        &self,
        run: &ByStep<Vec<Placed<Answer>>>,
        undo: &ByStep<Vec<Placed<Answer>>>,
        probe: &ByStep<Vec<Placed<Answer>>>,
    ) -> Checked {
        let lists = [
            (Action::Run, run),
            (Action::Compensate, undo),
            (Action::Probe, probe),
        ];
        for (action, by_step) in lists {
            let key = key_of(action);
            for (step, answers) in &by_step.0 {
                self.step(key, step)?;
                for answer in answers {
                    let key = format!("{key}.{}", step.value);
                    self.answer(&key, &step.value, action, answer)?;
                }
            }
        }
        Ok(())
    }

    fn answer(&self, key: &str, step: &str, action: Action, placed: &Placed<Answer>) -> Checked {
        let Placed {
            value: answer,
            position,
        } = placed;
        let refuse = |problem: &str| Err(fault(*position, format!("{key}: {problem}")));
        if !(1..=TIMES_MAX).contains(&answer.times.unwrap_or(1)) {
            return refuse(&format!("times must be 1 to {TIMES_MAX}"));
        }
        bounded(&format!("{key}.after"), answer.after, *position)?;
        let agent = self.agent_of(step, action);
        if let Some(status) = &answer.status {
            let has_others = answer.outcome.is_some()
                || !answer.outputs.0.is_empty()
                || answer.code.is_some()
                || answer.message.is_some();
            if has_others {
                return refuse("status excludes outcome, outputs, code and message");
            }
            if !(100..=599).contains(&status.value) {
                return refuse("status must be 100 to 599");
            }
            if agent.is_none() {
                return refuse(
                    "status needs the file that declares the step's agent: name it with --agents",
                );
            }
        } else if answer.body.is_some() {
            return refuse("body needs a status");
        }
        let outcome = answer.outcome.unwrap_or(AnswerOutcome::Success);
        let is_error = matches!(
            outcome,
            AnswerOutcome::Transient
                | AnswerOutcome::Permanent
                | AnswerOutcome::Unknown
                | AnswerOutcome::NotAttempted
        );
        if !answer.outputs.0.is_empty() && outcome != AnswerOutcome::Success {
            return refuse("only a success has outputs");
        }
        if (answer.code.is_some() || answer.message.is_some()) && !is_error {
            return refuse("only a failure has a code and a message");
        }
        if answer.retry_after.is_some() && outcome != AnswerOutcome::NotAttempted {
            return refuse("only notAttempted has retryAfter");
        }
        if outcome == AnswerOutcome::NotPerformed && action == Action::Run {
            return refuse("notPerformed answers probes and undos alone");
        }
        if let (Some(agent), Action::Run | Action::Probe) = (agent, action) {
            let kept = agent.kept_outputs(step);
            let mut outputs = answer.outputs.0.keys();
            if let Some(unknown) = outputs.find(|name| !kept.contains(&name.as_str())) {
                let instead = instead(unknown, kept.iter().copied());
                return refuse(&format!(
                    "the agent keeps no output {unknown:?} (`keep`){instead}"
                ));
            }
        }
        Ok(())
    }

    /// The declared agent that receives the requests for an action.
    fn agent_of(&self, step: &str, action: Action) -> Option<&OfflineAgent> {
        let workflow: &Workflow = &self.setting.workflow;
        let step = &workflow.steps()[workflow.step_index(step)?];
        let agents: &BTreeMap<String, OfflineAgent> = &self.setting.agents;
        agents.get(&**step.agent_for(action))
    }

    fn verb(&self, verb: &Verb) -> Checked {
        let position = verb.verb.position;
        let name = verb.verb.value;
        let refuse = |problem: String| Err(fault(position, format!("cases.verbs: {problem}")));
        bounded("cases.verbs.at", verb.at, position)?;
        match (&verb.step, name) {
            (Some(step), VerbName::Undone) => self.step("cases.verbs.step", step)?,
            (None, VerbName::Undone) => return refuse("undone needs a step".to_owned()),
            (Some(_), _) => return refuse(format!("{} takes no step", name.as_str())),
            (None, _) => {}
        }
        match (&verb.fields, name) {
            (None, VerbName::Reschedule) => refuse("reschedule needs fields".to_owned()),
            (Some(_), VerbName::Reschedule) | (None, _) => Ok(()),
            (Some(_), _) => refuse(format!("{} takes no fields", name.as_str())),
        }
    }

    fn expectation(&self, expect: &Expectation) -> Checked {
        const KEY: &str = "cases.expect";
        if let Some(step) = &expect.failing_step {
            self.step(&format!("{KEY}.failingStep"), step)?;
        }
        for entry in expect.path.iter().flatten() {
            let key = format!("{KEY}.path");
            let Some(parsed) = PathEntry::parse(&entry.value) else {
                let problem = format!(
                    "{key}: {:?} is not `STEP`, `undo STEP` or `probe STEP`, with an optional `#N`",
                    entry.value
                );
                return Err(fault(entry.position, problem));
            };
            let step = Placed {
                value: parsed.step,
                position: entry.position,
            };
            self.step(&key, &step)?;
        }
        for (key, steps) in [("undone", &expect.undone), ("skipped", &expect.skipped)] {
            for step in steps.iter().flatten() {
                self.step(&format!("{KEY}.{key}"), step)?;
            }
        }
        for (step, _) in &expect.outputs.0 {
            self.step(&format!("{KEY}.outputs"), step)?;
        }
        for request in &expect.requests {
            let expected = &request.value;
            self.step(&format!("{KEY}.requests"), &expected.step)?;
            let is_http = expected.method.is_some()
                || expected.path.is_some()
                || expected.body.is_some()
                || !expected.headers.0.is_empty();
            let action = expected.action.of_engine();
            if is_http && self.agent_of(&expected.step.value, action).is_none() {
                let problem = format!(
                    "{KEY}.requests: method, path, headers and body need the file that declares the \
                     agent of step {}: name it with --agents",
                    expected.step.value
                );
                return Err(fault(request.position, problem));
            }
        }
        if let Some(bounds) = &expect.duration {
            let (min, max) = (bounds.value.min, bounds.value.max);
            if min.zip(max).is_some_and(|(min, max)| min > max) {
                let problem = format!("{KEY}.duration: min exceeds max");
                return Err(fault(bounds.position, problem));
            }
        }
        Ok(())
    }

    /// Refuses a step that the workflow does not have.
    fn step(&self, key: &str, step: &Placed<String>) -> Checked {
        let workflow = &self.setting.workflow;
        if workflow.step_index(&step.value).is_some() {
            return Ok(());
        }
        let names = workflow.step_names().iter().map(|name| &**name);
        let instead = instead(&step.value, names);
        let problem = format!("{key}: unknown step {:?}{instead}", step.value);
        Err(fault(step.position, problem))
    }
}

/// The end of a message about an unknown name.
fn instead<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    match misspelling_of(wanted, names.clone()) {
        Some(near) => format!("; did you mean {near:?}?"),
        None => {
            let names: Vec<&str> = names.collect();
            match names.is_empty() {
                true => String::new(),
                false => format!("; expected one of {}", names.join(", ")),
            }
        }
    }
}

fn bounded(key: &str, duration: Duration, position: (u64, u64)) -> Checked {
    match duration > DURATION_MAX {
        true => Err(fault(position, format!("{key}: must be at most 365d"))),
        false => Ok(()),
    }
}
