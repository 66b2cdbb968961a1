//! The services behind the agents, and their effects. Some refuse late requests after an undo. The
//! others are plain, with PUT and DELETE: they forget what they have deleted, including its key.

use waybill_engine::{Action, OperationId, Outcome, StepError, StepRequest, Undo};

use crate::history::Rule;
use crate::run::Run;
use crate::seen::Sight;
use crate::workload::Protection;

/// What a service does in a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    Do,
    /// It does nothing, and reports that.
    Fail,
    /// It refuses, for good.
    Refuse,
}

/// A service's record of one step of one operation.
#[derive(Debug)]
pub struct Effect {
    pub operation: OperationId,
    pub step: usize,
    /// The idempotency key under which it was made.
    key: Option<String>,
    /// How often it was made.
    pub made: u32,
    pub exists: bool,
    /// It was undone, and later requests are refused.
    tombstone: bool,
    /// There was more than one request for one attempt.
    pub has_copies: bool,
    /// The attempts that were requested.
    attempts: Vec<u32>,
}

#[derive(Debug, Default)]
pub struct Services {
    effects: Vec<Effect>,
}

impl Services {
    pub fn effect(&mut self, operation: OperationId, step: usize) -> &mut Effect {
        let mut effects = self.effects.iter();
        let found = effects.position(|effect| (effect.operation, effect.step) == (operation, step));
        let index = found.unwrap_or_else(|| {
            self.effects.push(Effect {
                operation,
                step,
                key: None,
                made: 0,
                exists: false,
                tombstone: false,
                has_copies: false,
                attempts: Vec::new(),
            });
            self.effects.len() - 1
        });
        &mut self.effects[index]
    }

    pub fn exists(&self, operation: OperationId, step: usize) -> bool {
        self.of(operation)
            .any(|effect| effect.step == step && effect.exists)
    }

    pub fn of(&self, operation: OperationId) -> impl Iterator<Item = &Effect> {
        let effects = self.effects.iter();
        effects.filter(move |effect| effect.operation == operation)
    }
}

impl Effect {
    /// A request for an attempt is about to be delivered.
    pub fn requested(&mut self, attempt: u32) {
        self.has_copies |= self.attempts.contains(&attempt);
        self.attempts.push(attempt);
    }

    /// A person undoes it, and sees to it that it stays so.
    pub fn undo_by_hand(&mut self) {
        self.exists = false;
        self.tombstone = true;
    }
}

impl Run {
    /// A call reaches its service.
    pub fn serve(
        &mut self,
        request: &StepRequest,
        key: String,
        step: usize,
        deed: Deed,
    ) -> Outcome {
        match (deed, request.action) {
            (Deed::Fail, _) => Outcome::Transient {
                error: error("busy"),
            },
            (Deed::Refuse, _) => Outcome::Permanent {
                error: error("refused"),
            },
            (Deed::Do, Action::Run) => self.perform(request, key, step),
            (Deed::Do, Action::Compensate) => {
                self.undo(request, step);
                Outcome::Success {
                    outputs: Vec::new(),
                }
            }
            (Deed::Do, Action::Probe) => self.probe(request, step),
        }
    }

    fn perform(&mut self, request: &StepRequest, key: String, step: usize) -> Outcome {
        let operation = request.operation;
        let outputs = outputs(operation);
        if self.undo_of(request, step) == Undo::Nothing {
            return Outcome::Success { outputs };
        }
        let effect = self.services.effect(operation, step);
        if effect.key.as_ref() == Some(&key) && (effect.exists || !effect.tombstone) {
            return Outcome::Success { outputs };
        }
        if effect.tombstone {
            self.seen.count(Sight::LateCallsRefused);
            self.note(operation, || {
                format!("service: {key} refused, its undo came first")
            });
            return Outcome::Permanent {
                error: error("undone-before"),
            };
        }
        effect.made += 1;
        effect.exists = true;
        effect.key = Some(key);
        let made = effect.made;
        self.note(operation, || {
            format!("service: effect of {} made", request.step)
        });
        if made > 1 {
            self.fail(Rule::EffectTwice, operation, || {
                format!("{} took effect {made} times", request.step)
            });
        }
        Outcome::Success { outputs }
    }

    fn undo(&mut self, request: &StepRequest, step: usize) {
        let refuses_late = self.plan.protection == Protection::Tombstones;
        let effect = self.services.effect(request.operation, step);
        effect.tombstone |= refuses_late;
        if !refuses_late {
            // It has deleted what it knew: the same request makes it again.
            effect.key = None;
            effect.made = 0;
        }
        let existed = std::mem::take(&mut effect.exists);
        let state = self.store.row(request.operation).map(|row| &row.state);
        let is_late = state.is_some_and(|state| state.steps[step].late_success.is_some());
        if existed && is_late {
            self.seen.count(Sight::LateEffectsUndone);
        }
        let is_confirmed = state.is_some_and(|state| {
            let progress = &state.steps[step];
            progress
                .settled_at
                .is_some_and(|at| progress.changed_at >= at)
        });
        if existed && is_confirmed {
            self.seen.count(Sight::ConfirmationsThatUndid);
        }
        self.note(request.operation, || {
            let what = if existed {
                "undone"
            } else {
                "undone, nothing existed"
            };
            format!("service: effect of {} {what}", request.step)
        });
    }

    fn probe(&mut self, request: &StepRequest, step: usize) -> Outcome {
        self.seen.count(Sight::Probes);
        if self.services.effect(request.operation, step).made > 0 {
            return Outcome::Success {
                outputs: outputs(request.operation),
            };
        }
        self.seen.count(Sight::ProbesNotPerformed);
        Outcome::NotPerformed
    }

    pub fn undo_of(&self, request: &StepRequest, step: usize) -> Undo {
        let workflow = self.plan.workflows.newest(&request.workflow);
        workflow.map_or(Undo::Nothing, |found| found.steps()[step].undo.clone())
    }
}

pub fn error(code: &str) -> StepError {
    StepError {
        code: code.to_owned(),
        message: String::new(),
    }
}

/// What a step produces: `yes` or `no`, decided by the operation, for conditions to read.
fn outputs(operation: OperationId) -> Vec<(String, String)> {
    let yes = operation.0.as_u128() & 1 == 0;
    vec![(
        "needed".to_owned(),
        if yes { "yes" } else { "no" }.to_owned(),
    )]
}
