//! The answers of the mocked agents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use waybill_agent::http::OfflineAgent;
use waybill_engine::{Action, Attempt, Outcome, StepError, StepRequest};

use crate::cases::{Answer, AnswerOutcome, ByStep, Case, CasesFile};
use crate::place::Placed;

/// The unused answers of one case.
#[derive(Debug)]
pub(crate) struct Mocks<'a> {
    file: &'a CasesFile,
    case: &'a Case,
    /// How many answers of each list were used.
    used: BTreeMap<(String, &'static str), usize>,
    /// The attempts that were answered: a repeated request for an attempt gets no other answer.
    answered: BTreeSet<(String, Attempt)>,
}

/// An answer to an attempt.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
    pub(crate) after: Duration,
}

/// A request without an answer in the file.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub(crate) struct Unmocked {
    step: String,
    attempt: Attempt,
    key: &'static str,
    /// How many answers the list has; `None` if there is no list.
    answers: Option<usize>,
}

impl Unmocked {
    fn text(&self) -> String {
        let Self {
            step,
            attempt,
            key,
            answers,
        } = self;
        match answers {
            None => format!("no answer for step {step}, attempt {attempt}: add {key}.{step}"),
            Some(answers) => format!(
                "no answer left for step {step}, attempt {attempt}: {key}.{step} has {answers}"
            ),
        }
    }
}

/// The key of the answers to an action.
pub(crate) const fn key_of(action: Action) -> &'static str {
    match action {
        Action::Run => "answers",
        Action::Compensate => "undoAnswers",
        Action::Probe => "probeAnswers",
    }
}

type Answers = ByStep<Vec<Placed<Answer>>>;

impl<'a> Mocks<'a> {
    pub(crate) fn new(file: &'a CasesFile, case: &'a Case) -> Self {
        Self {
            file,
            case,
            used: BTreeMap::new(),
            answered: BTreeSet::new(),
        }
    }

    /// The next answer to a request; `None` if none ever arrives.
    pub(crate) fn answer(
        &mut self,
        agent: Option<&OfflineAgent>,
        request: &StepRequest,
    ) -> Result<Option<Reply>, Unmocked> {
        let step = request.step.to_string();
        if !self.answered.insert((step.clone(), request.attempt)) {
            return Ok(None);
        }
        let key = key_of(request.action);
        let Some(answers) = self.of(request.action, &step) else {
            if request.action == Action::Compensate {
                return Ok(Some(Reply {
                    outcome: success(),
                    after: Duration::ZERO,
                }));
            }
            return Err(Unmocked {
                step,
                attempt: request.attempt,
                key,
                answers: None,
            });
        };
        let used = self.used.entry((step.clone(), key)).or_default();
        let mut left = *used;
        *used += 1;
        for answer in answers {
            let times = times(&answer.value);
            if left < times {
                let outcome = outcome(&answer.value, agent, request);
                let after = answer.value.after;
                return Ok(outcome.map(|outcome| Reply { outcome, after }));
            }
            left -= times;
        }
        Err(Unmocked {
            step,
            attempt: request.attempt,
            key,
            answers: Some(answers.iter().map(|answer| times(&answer.value)).sum()),
        })
    }

    /// The answers of the case for a step, or else those of the file.
    fn of(&self, action: Action, step: &str) -> Option<&'a [Placed<Answer>]> {
        let (case, file) = (self.case, self.file);
        let (own, common): (&'a Answers, &'a Answers) = match action {
            Action::Run => (&case.answers, &file.answers),
            Action::Compensate => (&case.undo_answers, &file.undo_answers),
            Action::Probe => (&case.probe_answers, &file.probe_answers),
        };
        own.get(step)
            .or_else(|| common.get(step))
            .map(Vec::as_slice)
    }
}

fn times(answer: &Answer) -> usize {
    answer.times.map_or(1, |times| times as usize)
}

fn success() -> Outcome {
    Outcome::Success {
        outputs: Vec::new(),
    }
}

/// The outcome of an answer; `None` if there is none.
fn outcome(
    answer: &Answer,
    agent: Option<&OfflineAgent>,
    request: &StepRequest,
) -> Option<Outcome> {
    if let (Some(status), Some(agent)) = (&answer.status, agent) {
        return agent.outcome(request, status.value, answer.body.as_ref());
    }
    let kind = answer.outcome.unwrap_or(AnswerOutcome::Success);
    let error = || StepError {
        code: answer
            .code
            .clone()
            .unwrap_or_else(|| kind.code().to_owned()),
        message: answer.message.clone().unwrap_or_default(),
    };
    Some(match kind {
        AnswerOutcome::Success => Outcome::Success {
            outputs: answer.outputs.0.clone().into_iter().collect(),
        },
        AnswerOutcome::Transient => Outcome::Transient { error: error() },
        AnswerOutcome::Permanent => Outcome::Permanent { error: error() },
        AnswerOutcome::Unknown => Outcome::Unknown { error: error() },
        AnswerOutcome::NotPerformed => Outcome::NotPerformed,
        AnswerOutcome::NotAttempted => Outcome::NotAttempted {
            error: error(),
            retry_after_ms: answer.retry_after.map_or(0, |wait| {
                u32::try_from(wait.as_millis()).unwrap_or(u32::MAX)
            }),
        },
        AnswerOutcome::NoAnswer => return None,
    })
}
