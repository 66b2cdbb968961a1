//! The life of one step: one function over (state, event).
//!
//! ```text
//!              Skip                        Succeeded
//! NotStarted ────────▶ Skipped    Running ───────────▶ Completed
//!     │ ▲                          ▲ │ ▲
//!     │ │ NotAttempted             │ │ │ Retry, Renew
//!     │ └──────────────────────────┼─┤ └──────────────┐
//!     └────────────────────────────┘ │                │
//!        Start, Retry                ├─▶ Failed ──────┤   FailedTransiently, FailedPermanently
//!                                    └─▶ TimedOut ────┘   TimedOut
//!
//!                                      Undo                    Succeeded, Undone
//! whatever may have been performed ──────────▶ Compensating ─────────────────────▶ Compensated
//!                                               │ ▲     ▲                               │
//!                FailedPermanently, or too often ▼ │ Renew└──────────────────────────────┘
//!                                  Failed, TimedOut            LateSuccess
//! ```
//!
//! A step in `Compensating` waits for its turn (neither `complete_by` nor `retry_at`), has an
//! attempt under way (`complete_by`), or waits to be tried (`retry_at`). Where its service does not refuse what comes
//! after an undo, an undo that was asked for before all attempts at performing the step had settled leaves it in
//! `Compensating`: it is asked about once more when they have.
//!
//! What must hold: an attempt's number never falls and grows with every attempt, whatever it does;
//! a step that is skipped never changes again, and one that is completed is only ever undone;
//! whoever failed for good has no `retry_at`. That a reply belongs to the attempt under way is
//! decided before it becomes an event here.

use std::time::Duration;

use crate::definition::OnFailure;
use crate::id::{Attempt, OperationId};
use crate::operation::{StepError, StepProgress, StepState};
use crate::record::{Action, Outputs};
use crate::time::Timestamp;
use crate::workflow::{RetryIntervals, Step, Tries, Undo};

/// Shortest wait before an agent that did not try is asked again.
pub const NOT_ATTEMPTED_WAIT_MIN: Duration = Duration::from_millis(100);

/// Longest wait before an agent that did not try is asked again, unless it asks for more.
pub const NOT_ATTEMPTED_WAIT_MAX: Duration = Duration::from_secs(60);

/// Longest time for which an agent that did not try is left alone, however long it asks for: one answer holds back all
/// attempts of a partition at that agent.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(5 * 60);

/// Something that happens to a step.
#[derive(Clone, PartialEq, Debug)]
pub enum StepEvent {
    /// All that it waits for has ended, and its condition holds: its first attempt begins.
    Start,
    /// All that it waits for has ended, and its condition does not hold.
    Skip,
    /// Its agent is throttled: the attempt that would begin now is put off.
    PutOff {
        /// For how long.
        wait: Duration,
    },
    /// Its time to try again has come: another attempt begins.
    Retry {
        /// How long it may take, if not as long as the workflow says.
        budget: Option<Duration>,
    },
    /// Its operation was taken over from an earlier owner: the attempt under way is asked for
    /// again.
    Resume,
    /// The attempt under way is done. (Of a probe: the step was performed.)
    Succeeded {
        /// What it produced.
        outputs: Outputs,
    },
    /// A probe found that the step was not performed.
    NotPerformed,
    /// The attempt under way failed, and another may succeed.
    FailedTransiently {
        /// Why.
        error: StepError,
        /// Whether it may have taken effect all the same.
        unknown: bool,
    },
    /// The attempt under way failed, and so would any other.
    FailedPermanently {
        /// Why.
        error: StepError,
    },
    /// The agent did not make the attempt under way.
    NotAttempted {
        /// Why.
        error: StepError,
        /// How long it asks to be left alone, at most [`RETRY_AFTER_MAX`].
        retry_after: Duration,
    },
    /// The attempt under way outlived its complete-by.
    TimedOut,
    /// What was done is to be undone, this step included if it was ever asked for.
    Undo,
    /// All that was done after it is undone: its turn to be undone has come.
    Turn,
    /// While it waits to be undone, the attempt that was under way when that began has ended, and how is known.
    OutcomeKnown {
        /// What it produced, if it succeeded.
        outputs: Option<Outputs>,
    },
    /// A superseded attempt at performing it has succeeded, or an attempt has after the step's undo began.
    LateSuccess {
        /// The attempt.
        attempt: Attempt,
    },
    /// A person undid it.
    Undone,
    /// A person wants it tried again after it, or undoing it, had failed for good.
    Renew,
}

impl StepEvent {
    const fn name(&self) -> &'static str {
        match self {
            Self::Start => "Start",
            Self::Skip => "Skip",
            Self::PutOff { .. } => "PutOff",
            Self::Retry { .. } => "Retry",
            Self::Resume => "Resume",
            Self::Succeeded { .. } => "Succeeded",
            Self::NotPerformed => "NotPerformed",
            Self::FailedTransiently { .. } => "FailedTransiently",
            Self::FailedPermanently { .. } => "FailedPermanently",
            Self::NotAttempted { .. } => "NotAttempted",
            Self::TimedOut => "TimedOut",
            Self::Undo => "Undo",
            Self::Turn => "Turn",
            Self::OutcomeKnown { .. } => "OutcomeKnown",
            Self::LateSuccess { .. } => "LateSuccess",
            Self::Undone => "Undone",
            Self::Renew => "Renew",
        }
    }
}

/// An event that cannot happen in a step's state. The step is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a step in state {} cannot take {event}", state.as_str())]
pub struct IllegalTransition {
    /// The state that the step is in.
    pub state: StepState,
    /// The event.
    pub event: &'static str,
}

/// The transition function of steps: `progress` becomes what it is after `event`.
///
/// `jitter` separates the retries of steps that failed together; see [`retry_wait`].
///
/// # Errors
///
/// If the event cannot happen in the step's state; `progress` is unchanged then.
pub fn transition(
    progress: &mut StepProgress,
    event: StepEvent,
    step: &Step,
    jitter: Jitter,
    now: Timestamp,
) -> Result<(), IllegalTransition> {
    use StepEvent as E;
    use StepState as S;
    let mut on = StepTransition {
        progress,
        step,
        jitter,
        now,
    };
    let (state, under_way, waits) = (
        on.progress.state,
        on.progress.is_under_way(),
        on.progress.retry_at.is_some(),
    );
    match (state, event) {
        (S::NotStarted, E::Start) if !waits => on.run(None),
        (S::NotStarted | S::Compensating, E::PutOff { wait }) if !under_way => {
            on.progress.retry_at = Some(now + wait);
        }
        (S::Failed | S::TimedOut, E::PutOff { wait }) if waits => {
            on.progress.retry_at = Some(now + wait);
        }
        (S::NotStarted, E::Skip) if !waits => on.enter(S::Skipped),
        (S::NotStarted | S::Failed | S::TimedOut, E::Retry { budget }) if waits => on.run(budget),
        (S::Running, E::Resume) => on.resume(),
        (S::Running, E::Succeeded { outputs }) => {
            on.enter(S::Completed);
            on.progress.error = None;
            on.progress.outputs = outputs;
            on.progress.succeeded = Some(on.progress.attempt);
        }
        (S::Running, E::NotPerformed) => {
            on.enter(S::NotStarted);
            on.progress.retry_at = Some(now);
        }
        (S::Running, E::FailedTransiently { error, unknown }) => {
            if unknown {
                on.unsettle();
            }
            on.fail(S::Failed, error);
        }
        (S::Running, E::FailedPermanently { error }) => {
            on.fail(S::Failed, error);
            on.progress.retry_at = None;
        }
        (S::Running, E::TimedOut) => {
            on.unsettle();
            let error = on.time_out();
            on.fail(S::TimedOut, error);
        }
        (S::Running, E::NotAttempted { error, retry_after }) => {
            on.enter(S::NotStarted);
            on.wait_for_agent(error, retry_after);
        }
        (S::NotStarted | S::Running | S::Completed | S::Failed | S::TimedOut, E::Undo)
            if on.progress.was_asked_for() =>
        {
            on.undo()
        }
        (S::NotStarted | S::Failed | S::TimedOut, E::Renew)
            if on.progress.action != Action::Compensate =>
        {
            on.progress.failure_count = 0;
            on.progress.retry_at = Some(now);
        }
        (S::Compensating, E::Turn) if !under_way && !waits => on.turn(),
        (S::Compensating, E::OutcomeKnown { outputs })
            if !under_way && on.progress.awaited_until.is_some() =>
        {
            on.outcome_known(outputs);
        }
        (S::Compensating, E::Retry { budget }) if waits => {
            on.ask(on.step.next_action(on.progress), budget);
        }
        (S::Compensating, E::Resume) if under_way => on.resume(),
        // A probe found that the step stands after all: it is undone again.
        (S::Compensating, E::Succeeded { .. })
            if under_way && on.progress.action == Action::Probe =>
        {
            on.enter(S::Compensating);
        }
        (S::Compensating, E::Succeeded { .. } | E::NotPerformed) if under_way => on.undone(),
        (S::Compensating, E::FailedTransiently { error, .. }) if under_way => {
            on.fail_undo(S::Failed, error);
        }
        // Its agent has no probe: undoing it once more is as good.
        (S::Compensating, E::FailedPermanently { .. })
            if under_way && on.progress.action == Action::Probe =>
        {
            on.enter(S::Compensating);
        }
        (S::Compensating, E::FailedPermanently { error }) if under_way => {
            on.fail_undo(S::Failed, error);
            on.progress.state = S::Failed;
            on.progress.retry_at = None;
        }
        (S::Compensating, E::TimedOut) if under_way => {
            let error = on.time_out();
            on.fail_undo(S::TimedOut, error);
        }
        (S::Compensating, E::NotAttempted { error, retry_after }) if under_way => {
            on.progress.complete_by = None;
            on.wait_for_agent(error, retry_after);
        }
        (S::Compensating, E::Undone) => on.compensated(),
        (S::Failed | S::TimedOut, E::Undone) if on.progress.action == Action::Compensate => {
            on.compensated();
        }
        (S::Failed | S::TimedOut, E::Renew) if on.progress.action == Action::Compensate => {
            on.progress.undo_failure_count = 0;
            on.enter(S::Compensating);
            on.progress.retry_at = Some(now);
        }
        (S::Compensated | S::Compensating, E::LateSuccess { attempt }) => {
            // Whatever undo is under way may have come before the late effect: it is superseded.
            on.progress.late_success = Some(attempt);
            on.enter(S::Compensating);
        }
        (
            S::NotStarted | S::Running | S::Completed | S::Failed | S::TimedOut,
            E::LateSuccess { attempt },
        ) => {
            on.progress.late_success = Some(attempt);
            on.progress.is_to_be_confirmed = false;
        }
        (
            state @ (S::NotStarted
            | S::Running
            | S::Completed
            | S::Failed
            | S::TimedOut
            | S::Skipped
            | S::Compensating
            | S::Compensated),
            event @ (E::Start
            | E::Skip
            | E::PutOff { .. }
            | E::Retry { .. }
            | E::Resume
            | E::Succeeded { .. }
            | E::NotPerformed
            | E::FailedTransiently { .. }
            | E::FailedPermanently { .. }
            | E::NotAttempted { .. }
            | E::TimedOut
            | E::Undo
            | E::Turn
            | E::OutcomeKnown { .. }
            | E::LateSuccess { .. }
            | E::Undone
            | E::Renew),
        ) => {
            return Err(IllegalTransition {
                state,
                event: event.name(),
            });
        }
    }
    Ok(())
}

/// A step that something happens to.
struct StepTransition<'a> {
    progress: &'a mut StepProgress,
    step: &'a Step,
    jitter: Jitter,
    now: Timestamp,
}

impl StepTransition<'_> {
    /// Enters a state in which no attempt is under way and none follows by itself.
    fn enter(&mut self, state: StepState) {
        self.progress.state = state;
        self.progress.awaited_until = None;
        self.progress.is_to_be_confirmed = false;
        self.progress.complete_by = None;
        self.progress.retry_at = None;
        self.progress.changed_at = self.now;
    }

    fn run(&mut self, budget: Option<Duration>) {
        let last_is_unknown =
            self.progress.unsettled_until.is_some() && self.progress.action == Action::Run;
        let action = if self.step.probe && last_is_unknown {
            Action::Probe
        } else {
            Action::Run
        };
        self.progress.state = StepState::Running;
        self.ask(action, budget);
    }

    fn ask(&mut self, action: Action, budget: Option<Duration>) {
        self.progress.attempt = self.progress.attempt.next();
        self.progress.action = action;
        self.progress.awaited_until = None;
        self.progress.retry_at = None;
        self.progress.complete_by = Some(self.now + budget.unwrap_or(self.budget()));
        self.progress.changed_at = self.now;
        self.note_settling();
    }

    /// Notes until when the attempt under way may take effect, if nothing but that makes an undo conclusive.
    fn note_settling(&mut self) {
        if self.progress.action != Action::Run {
            return;
        }
        if let Some(undo) = self.step.compensation().filter(|undo| !undo.tombstones) {
            let settled_at = self.progress.complete_by.map(|by| by + undo.settle);
            self.progress.settled_at = self.progress.settled_at.max(settled_at);
        }
    }

    /// Gives the attempt under way its time again. What was asked for before may have been given
    /// more, by a clock that was ahead. From now on the answer to one copy of the request says
    /// nothing about the other, so a step that can be undone settles first.
    fn resume(&mut self) {
        let complete_by = Some(self.now + self.budget());
        self.progress.complete_by = self.progress.complete_by.max(complete_by);
        if self.step.compensation().is_some() {
            self.unsettle();
        }
        self.note_settling();
    }

    /// How the newest attempt's action is tried.
    fn tries(&self) -> &Tries {
        self.step.tries_for(self.progress.action)
    }

    fn budget(&self) -> Duration {
        self.tries().timeout
    }

    /// Until when the attempt under way may take effect: until its complete-by, and a while after. `None` if it does not
    /// perform the step.
    fn settles_at(&self) -> Option<Timestamp> {
        let settle = self
            .step
            .compensation()
            .map_or(Duration::ZERO, |undo| undo.settle);
        let complete_by = self.progress.complete_by;
        complete_by
            .filter(|_| self.progress.action == Action::Run)
            .map(|by| by + settle)
    }

    /// The attempt under way, or another copy of it, may take effect after it has ended here.
    fn unsettle(&mut self) {
        self.progress.unsettled_until = self.progress.unsettled_until.max(self.settles_at());
    }

    fn time_out(&self) -> StepError {
        StepError {
            code: "complete-by-passed".to_owned(),
            message: format!("no answer came within {:?}", self.budget()),
        }
    }

    fn fail(&mut self, state: StepState, error: StepError) {
        self.progress.failure_count += 1;
        self.progress.not_attempted_count = 0;
        let failures = self.progress.failure_count;
        let retry_at = if failures < self.step.run.max_attempts {
            Some(self.now + self.retry_wait(failures))
        } else if self.step.on_failure == OnFailure::Retry {
            Some(self.now + self.step.long_interval)
        } else {
            None
        };
        self.enter(state);
        self.progress.retry_at = retry_at;
        self.progress.error = Some(error);
    }

    fn fail_undo(&mut self, last: StepState, error: StepError) {
        self.progress.undo_failure_count += 1;
        self.progress.not_attempted_count = 0;
        let failures = self.progress.undo_failure_count;
        let another = failures < self.tries().max_attempts;
        let retry_at = self.now + self.retry_wait(failures);
        let is_to_be_confirmed = self.progress.is_to_be_confirmed;
        self.enter(if another {
            StepState::Compensating
        } else {
            last
        });
        // Also one that is given up: nothing stands that is known of, so that the steps before it are undone.
        self.progress.is_to_be_confirmed = is_to_be_confirmed;
        if another {
            self.progress.retry_at = Some(retry_at);
        } else {
            self.progress.action = Action::Compensate;
        }
        self.progress.error = Some(error);
    }

    fn retry_wait(&self, failures: u32) -> Duration {
        retry_wait(
            self.tries().intervals,
            failures,
            self.progress.attempt,
            self.jitter,
        )
    }

    /// Waits for an agent that did not try: longer each time, up to a limit.
    fn wait_for_agent(&mut self, error: StepError, retry_after: Duration) {
        let doubled = self.progress.not_attempted_count.min(16);
        let patience = NOT_ATTEMPTED_WAIT_MIN * (1 << doubled);
        let wait = retry_after.max(patience.min(NOT_ATTEMPTED_WAIT_MAX));
        self.progress.not_attempted_count += 1;
        self.progress.retry_at = Some(self.now + wait);
        self.progress.error = Some(error);
    }

    fn undo(&mut self) {
        let awaited_until = match self.progress.state {
            StepState::Running => self.settles_at(),
            _ => None,
        };
        let is_definite = self.progress.state == StepState::Failed
            || (self.progress.state == StepState::NotStarted);
        let had_no_effect = is_definite
            && self.progress.unsettled_until.is_none()
            && self.progress.late_success.is_none();
        self.progress.not_attempted_count = 0;
        match &self.step.undo {
            Undo::Nothing => self.enter(StepState::Compensated),
            Undo::Impossible if had_no_effect => self.enter(StepState::Compensated),
            Undo::Agent(_) | Undo::Manual | Undo::Impossible => {
                self.enter(StepState::Compensating);
                self.progress.awaited_until = awaited_until;
            }
        }
    }

    /// How the attempt ended that was under way when the undo began: there is nothing left to wait for, unless an
    /// earlier attempt, or another copy of this one, has not settled.
    fn outcome_known(&mut self, outputs: Option<Outputs>) {
        self.progress.awaited_until = None;
        self.progress.retry_at = None;
        if let Some(outputs) = outputs {
            self.progress.outputs = outputs;
            self.progress.succeeded = Some(self.progress.attempt);
        }
    }

    /// Begins to undo the step, or finds that an agent cannot: then a person has to.
    fn turn(&mut self) {
        if self.step.compensation().is_none() {
            self.enter(StepState::Failed);
            self.progress.action = Action::Compensate;
            self.progress.error = Some(StepError {
                code: "manual-undo-needed".to_owned(),
                message: "a person has to undo this step, and to say so".to_owned(),
            });
            return;
        }
        match self.progress.undo_from() {
            Some(from) if from > self.now => self.progress.retry_at = Some(from),
            Some(_) | None => self.ask(Action::Compensate, None),
        }
    }

    /// Its agent has undone it, or found nothing to undo. If an attempt at performing it may have taken effect after
    /// the agent was asked, that is asked again when none can any more.
    fn undone(&mut self) {
        let asked_at = self.progress.changed_at;
        match self.progress.settled_at {
            Some(settled_at) if settled_at > asked_at => {
                self.enter(StepState::Compensating);
                self.progress.is_to_be_confirmed = true;
                self.progress.retry_at = Some(settled_at);
                self.progress.undo_failure_count = 0;
                self.progress.error = None;
            }
            Some(_) | None => self.compensated(),
        }
    }

    fn compensated(&mut self) {
        self.enter(StepState::Compensated);
        self.progress.error = None;
    }
}

/// Tells steps apart, so that those that failed together do not try again together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Of one step of one operation.
    #[must_use]
    pub fn of(operation: OperationId, step_index: usize) -> Self {
        let (high, low) = operation.0.as_u64_pair();
        Self(mix(mix(high) ^ low).wrapping_add(step_index as u64))
    }
}

/// How long to wait before the next attempt, after `failures` failures of which the last was that
/// of `attempt`: between half and all of the interval, which part being derived from the operation,
/// the step and the attempt.
#[must_use]
pub fn retry_wait(
    intervals: RetryIntervals,
    failures: u32,
    attempt: Attempt,
    jitter: Jitter,
) -> Duration {
    let full = interval_micros(intervals, failures);
    let half = full / 2;
    let part = mix(jitter.0 ^ (u64::from(attempt.0) << 32)) >> 32;
    let extra = (u128::from(full - half) * u128::from(part)) >> 32;
    let extra = u64::try_from(extra).expect("a part of a u64 fits into one");
    Duration::from_micros(half + extra)
}

/// `initial * multiplier^(failures - 1)`, at most `max`.
fn interval_micros(intervals: RetryIntervals, failures: u32) -> u64 {
    let micros = |duration: Duration| {
        u64::try_from(duration.as_micros()).expect("a checked workflow has no such duration")
    };
    let max = micros(intervals.max);
    let mut wait = micros(intervals.initial) as f64;
    for _ in 1..failures {
        if wait >= max as f64 {
            break;
        }
        wait *= intervals.multiplier;
    }
    (wait as u64).min(max)
}

/// The finalizer of SplitMix64: every bit of the input moves every bit of the output.
/// (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.)
const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
