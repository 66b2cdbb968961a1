//! The life of one step: one function over (state, event).
//!
//! ```text
//!              Skip                        Succeeded
//! NotStarted ────────▶ Skipped    Running ───────────▶ Completed
//!     │ ▲                          ▲ │ ▲
//!     │ │ NotAttempted             │ │ │ Retry
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
//! attempt in progress (`complete_by`), or waits for a retry (`retry_at`). If its service may
//! perform the step after an undo, an undo that was requested before all attempts had settled
//! leaves the step in `Compensating`: the undo is confirmed once they have. `Renew` makes a step
//! that has failed for good due for `Retry`.
//!
//! What must hold: an attempt's number never falls, and grows with every attempt, whatever its
//! action. A skipped step never changes again, and a completed step is only ever undone. A step
//! that has failed for good has no `retry_at`. Whether a reply belongs to the attempt in progress
//! is decided before it becomes an event here.

use std::time::Duration;

use crate::action::{Action, Outputs};
use crate::definition::OnFailure;
use crate::id::{Attempt, OperationId};
use crate::operation::{StepError, StepProgress, StepState};
use crate::time::Timestamp;
use crate::workflow::{RetryIntervals, Step, Tries, Undo};

/// Minimum wait before the next request to an agent that did not try.
pub const NOT_ATTEMPTED_WAIT_MIN: Duration = Duration::from_millis(100);

/// Maximum wait before the next request to an agent that did not try, unless it asks for more.
pub const NOT_ATTEMPTED_WAIT_MAX: Duration = Duration::from_secs(60);

/// Maximum pause that an agent can ask for: one reply delays all attempts of a partition at that
/// agent.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(5 * 60);

/// An event of a step.
#[derive(Clone, PartialEq, Debug)]
pub enum StepEvent {
    /// The steps before it have ended, and its condition holds: its first attempt begins.
    Start,
    /// The steps before it have ended, and its condition does not hold.
    Skip,
    /// Its agent is throttled: the attempt that would begin now is delayed.
    PutOff {
        /// For how long.
        wait: Duration,
    },
    /// Its retry is due: another attempt begins.
    Retry {
        /// How long the attempt may take, if it differs from the workflow's timeout.
        budget: Option<Duration>,
    },
    /// Its operation was taken over from an earlier owner: the attempt in progress is requested
    /// again.
    Resume,
    /// The attempt in progress has succeeded. (For a probe: the step was performed.)
    Succeeded {
        /// Its outputs.
        outputs: Outputs,
    },
    /// A probe found that the step was not performed.
    NotPerformed,
    /// The attempt in progress failed, and another may succeed.
    FailedTransiently {
        /// Why.
        error: StepError,
        /// Whether the attempt may have taken effect despite the failure.
        unknown: bool,
    },
    /// The attempt in progress failed, and so would any other.
    FailedPermanently {
        /// Why.
        error: StepError,
    },
    /// The agent did not make the attempt in progress.
    NotAttempted {
        /// Why.
        error: StepError,
        /// How long the agent asks for no attempts, at most [`RETRY_AFTER_MAX`].
        retry_after: Duration,
    },
    /// The attempt in progress exceeded its complete-by.
    TimedOut,
    /// Completed steps are to be undone, including this one if it was ever requested.
    Undo,
    /// Every later step is undone: the undo of this one begins.
    BeginUndo,
    /// The outcome of the attempt that was in progress when the undo began is now known.
    OutcomeKnown {
        /// Its outputs, if it succeeded.
        outputs: Option<Outputs>,
    },
    /// A superseded attempt has succeeded, or any attempt after the step's undo began.
    LateSuccess {
        /// The attempt.
        attempt: Attempt,
    },
    /// A person undid it.
    Undone,
    /// An operator retries it after it, or its undo, had failed for good.
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
            Self::BeginUndo => "BeginUndo",
            Self::OutcomeKnown { .. } => "OutcomeKnown",
            Self::LateSuccess { .. } => "LateSuccess",
            Self::Undone => "Undone",
            Self::Renew => "Renew",
        }
    }
}

/// An event that cannot happen in a step's state. The step is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("event {event} is not allowed in step state {}", state.as_str())]
pub struct IllegalTransition {
    /// The state of the step.
    pub state: StepState,
    /// The event.
    pub event: &'static str,
}

/// The transition function of steps: changes `progress` according to `event`.
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
        (S::Compensating, E::BeginUndo) if !under_way && !waits => on.begin_undo(),
        (S::Compensating, E::OutcomeKnown { outputs })
            if !under_way && on.progress.awaited_until.is_some() =>
        {
            on.outcome_known(outputs);
        }
        (S::Compensating, E::Retry { budget }) if waits => {
            on.ask(on.step.next_action(on.progress), budget);
        }
        (S::Compensating, E::Resume) if under_way => on.resume(),
        // A probe found that the step has an effect after all: undo it again.
        (S::Compensating, E::Succeeded { .. })
            if under_way && on.progress.action == Action::Probe =>
        {
            on.enter(S::Compensating);
        }
        (S::Compensating, E::Succeeded { .. } | E::NotPerformed) if under_way => on.undone(),
        (S::Compensating, E::FailedTransiently { error, .. }) if under_way => {
            on.fail_undo(S::Failed, error);
        }
        // The agent does not support probes: undo it once more instead.
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
            // An undo in progress may have preceded the late effect, so it is superseded.
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
            | E::BeginUndo
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

/// A step during a transition.
struct StepTransition<'a> {
    progress: &'a mut StepProgress,
    step: &'a Step,
    jitter: Jitter,
    now: Timestamp,
}

impl StepTransition<'_> {
    /// Enters a state with no attempt in progress and no retry.
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

    /// Notes when the attempt in progress settles, if an undo is conclusive only after that.
    fn note_settling(&mut self) {
        if self.progress.action != Action::Run {
            return;
        }
        if let Some(undo) = self.step.compensation().filter(|undo| !undo.tombstones) {
            let settled_at = self.progress.complete_by.map(|by| by + undo.settle);
            self.progress.settled_at = self.progress.settled_at.max(settled_at);
        }
    }

    /// Restarts the timeout of the attempt in progress. A clock that was ahead may have given the
    /// earlier request a later complete-by, which is kept. From now on the reply to one copy of the
    /// request says nothing about the other, so a step that can be undone settles first.
    fn resume(&mut self) {
        let complete_by = Some(self.now + self.budget());
        self.progress.complete_by = self.progress.complete_by.max(complete_by);
        if self.step.compensation().is_some() {
            self.unsettle();
        }
        self.note_settling();
    }

    /// The limits for the latest attempt's action.
    fn tries(&self) -> &Tries {
        self.step.tries_for(self.progress.action)
    }

    fn budget(&self) -> Duration {
        self.tries().timeout
    }

    /// Until when the attempt in progress may take effect: its complete-by plus the settling time.
    /// `None` if it does not perform the step.
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

    /// The attempt in progress, or another copy of it, may take effect after it has ended here.
    fn unsettle(&mut self) {
        self.progress.unsettled_until = self.progress.unsettled_until.max(self.settles_at());
    }

    fn time_out(&self) -> StepError {
        StepError {
            code: "complete-by-passed".to_owned(),
            message: format!("no reply arrived within {:?}", self.budget()),
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
        // Kept even if the confirmation is given up: no effect is known, so the steps before it are
        // undone.
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

    /// The outcome of the attempt that was in progress when the undo began is known. The undo need
    /// not wait any longer, unless an earlier attempt, or another copy of this one, has not
    /// settled.
    fn outcome_known(&mut self, outputs: Option<Outputs>) {
        self.progress.awaited_until = None;
        self.progress.retry_at = None;
        if let Some(outputs) = outputs {
            self.progress.outputs = outputs;
            self.progress.succeeded = Some(self.progress.attempt);
        }
    }

    /// Starts to undo the step. If no agent can, an operator must.
    fn begin_undo(&mut self) {
        if self.step.compensation().is_none() {
            self.enter(StepState::Failed);
            self.progress.action = Action::Compensate;
            self.progress.error = Some(StepError {
                code: "manual-undo-needed".to_owned(),
                message:
                    "an operator must undo this step by hand and record it with `waybill ops undone`"
                        .to_owned(),
            });
            return;
        }
        match self.progress.undo_from() {
            Some(from) if from > self.now => self.progress.retry_at = Some(from),
            Some(_) | None => self.ask(Action::Compensate, None),
        }
    }

    /// The agent has undone it, or found nothing to undo. If an attempt may have taken effect after
    /// the undo was requested, the undo is confirmed once all attempts have settled.
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

/// Separates the retries of steps that failed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// The jitter of one step of one operation.
    #[must_use]
    pub fn of(operation: OperationId, step_index: usize) -> Self {
        let (high, low) = operation.0.as_u64_pair();
        Self(mix(mix(high) ^ low).wrapping_add(step_index as u64))
    }
}

/// The wait before the next attempt, after `failures` failures of which the last was that of
/// `attempt`: between half and all of the interval. The fraction is derived from the operation, the
/// step and the attempt.
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
