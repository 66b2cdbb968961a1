//! Applies a caller's request to cancel or reschedule an operation.

use serde_json::{Map, Value};

use crate::advance::{Advance, Verdict};
use crate::definition::CancelPolicy;
use crate::operation::{Amended, ProcessState, input};
use crate::record::Amendment;
use crate::step::IllegalTransition;
use crate::time::Timestamp;

/// Maximum size of an operation's input, also after a reschedule, in bytes: it must fit into step
/// requests together with the results.
pub const INPUT_BYTES_MAX: usize = 512 * 1024;

impl Advance<'_> {
    /// Applies a cancel or a reschedule.
    ///
    /// # Errors
    ///
    /// If a step is in a state that the engine never produces.
    pub fn amend(&mut self, amendment: &Amendment) -> Result<Verdict, IllegalTransition> {
        match amendment {
            Amendment::Cancel { .. } => self.cancel(),
            Amendment::Reschedule { fields, deadline } => Ok(self.reschedule(fields, *deadline)),
        }
    }

    fn cancel(&mut self) -> Result<Verdict, IllegalTransition> {
        match self.state.state {
            ProcessState::Processing | ProcessState::Error if self.has_no_way_back() => {
                return Ok(Verdict::Refused("past-pivot"));
            }
            ProcessState::Processed if self.workflow.cancel() != CancelPolicy::Always => {
                return Ok(Verdict::Refused("final"));
            }
            ProcessState::Processing | ProcessState::Error | ProcessState::Processed => {
                self.turn_back(true)?;
            }
            ProcessState::Compensating => self.state.cancelled = true,
            ProcessState::Cancelled => return Ok(Verdict::Void),
            ProcessState::CompensationFailed => return Ok(Verdict::Refused("compensation-failed")),
            ProcessState::Pending | ProcessState::Compensated => {
                return Ok(Verdict::Refused("final"));
            }
        }
        self.stats.cancelled += 1;
        Ok(Verdict::Applied)
    }

    fn reschedule(&mut self, fields: &[u8], deadline: Option<Timestamp>) -> Verdict {
        if self.state.state.is_final() {
            return Verdict::Refused("final");
        }
        if self.state.state != ProcessState::Processing || self.state.awaits_decision() {
            return Verdict::Refused("failed");
        }
        let changes: Result<Map<String, Value>, _> = serde_json::from_slice(fields);
        let current: Result<Map<String, Value>, _> =
            serde_json::from_slice(input(self.created, self.state));
        let (Ok(changes), Ok(mut merged)) = (changes, current) else {
            return Verdict::Refused("not-an-object");
        };
        let mut steps = self.workflow.steps().iter().zip(&self.state.steps);
        if steps.any(|(step, progress)| {
            progress.was_asked_for() && step.uses.iter().any(|field| changes.contains_key(field))
        }) {
            return Verdict::Refused("step-sent");
        }
        merged.extend(changes);
        let Ok(merged) = serde_json::to_vec(&merged) else {
            return Verdict::Refused("not-an-object");
        };
        if merged.len() > INPUT_BYTES_MAX {
            return Verdict::Refused("too-large");
        }
        let amended = self
            .state
            .amended
            .get_or_insert_with(Box::<Amended>::default);
        amended.input = Some(merged.into());
        if let Some(deadline) = deadline {
            amended.deadline = Some(Some(deadline));
        }
        self.stats.rescheduled += 1;
        Verdict::Applied
    }
}
