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
//! ```
//!
//! What must hold: an attempt's number never falls and grows with every attempt; a step that is
//! completed or skipped never changes again; whoever failed for good has no `retry_at`. That a
//! reply belongs to the running attempt is decided before it becomes an event here.

use std::time::Duration;

use crate::id::{Attempt, OperationId};
use crate::operation::{StepError, StepProgress, StepState};
use crate::record::Outputs;
use crate::time::Timestamp;
use crate::workflow::Step;

/// Shortest wait before an agent that did not try is asked again.
pub const NOT_ATTEMPTED_WAIT_MIN: Duration = Duration::from_millis(100);

/// Something that happens to a step.
#[derive(Clone, PartialEq, Debug)]
pub enum StepEvent {
    /// All that it waits for has ended, and its condition holds: its first attempt begins.
    Start,
    /// All that it waits for has ended, and its condition does not hold.
    Skip,
    /// Its time to try again has come: another attempt begins.
    Retry,
    /// Its operation was taken over from an earlier owner: the running attempt is asked for again.
    Resume,
    /// The running attempt is done.
    Succeeded {
        /// What it produced.
        outputs: Outputs,
    },
    /// The running attempt failed, or may have, and another may succeed.
    FailedTransiently {
        /// Why.
        error: StepError,
    },
    /// The running attempt failed, and so would any other.
    FailedPermanently {
        /// Why.
        error: StepError,
    },
    /// The agent did not make the running attempt.
    NotAttempted {
        /// Why.
        error: StepError,
        /// How long it asks to be left alone.
        retry_after: Duration,
    },
    /// The running attempt outlived its complete-by.
    TimedOut,
}

impl StepEvent {
    const fn name(&self) -> &'static str {
        match self {
            Self::Start => "Start",
            Self::Skip => "Skip",
            Self::Retry => "Retry",
            Self::Resume => "Resume",
            Self::Succeeded { .. } => "Succeeded",
            Self::FailedTransiently { .. } => "FailedTransiently",
            Self::FailedPermanently { .. } => "FailedPermanently",
            Self::NotAttempted { .. } => "NotAttempted",
            Self::TimedOut => "TimedOut",
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
/// `spread` tells apart what is retried at one time; see [`retry_wait`].
///
/// # Errors
///
/// If the event cannot happen in the step's state; `progress` is unchanged then.
pub fn transition(
    progress: &mut StepProgress,
    event: StepEvent,
    step: &Step,
    spread: Spread,
    now: Timestamp,
) -> Result<(), IllegalTransition> {
    use StepEvent as E;
    use StepState as S;
    match (progress.state, event) {
        (S::NotStarted, E::Start) if progress.retry_at.is_none() => run(progress, step, now),
        (S::NotStarted, E::Skip) if progress.retry_at.is_none() => {
            progress.state = S::Skipped;
        }
        (S::NotStarted | S::Failed | S::TimedOut, E::Retry) if progress.retry_at.is_some() => {
            run(progress, step, now);
        }
        (S::Running, E::Resume) => {
            progress.complete_by = Some(now + step.complete_by);
        }
        (S::Running, E::Succeeded { outputs }) => {
            progress.state = S::Completed;
            progress.complete_by = None;
            progress.error = None;
            progress.outputs = outputs;
        }
        (S::Running, E::FailedTransiently { error }) => {
            fail(progress, S::Failed, error, step, spread, now);
        }
        (S::Running, E::FailedPermanently { error }) => {
            fail(progress, S::Failed, error, step, spread, now);
            progress.retry_at = None;
        }
        (S::Running, E::TimedOut) => {
            let error = StepError {
                code: "complete-by-passed".to_owned(),
                message: format!("no answer came within {:?}", step.complete_by),
            };
            fail(progress, S::TimedOut, error, step, spread, now);
        }
        (S::Running, E::NotAttempted { error, retry_after }) => {
            progress.state = S::NotStarted;
            progress.complete_by = None;
            progress.retry_at = Some(now + retry_after.max(NOT_ATTEMPTED_WAIT_MIN));
            progress.error = Some(error);
        }
        (
            state @ (S::NotStarted | S::Failed | S::TimedOut),
            event @ (E::Start
            | E::Skip
            | E::Retry
            | E::Resume
            | E::Succeeded { .. }
            | E::FailedTransiently { .. }
            | E::FailedPermanently { .. }
            | E::NotAttempted { .. }
            | E::TimedOut),
        )
        | (state @ S::Running, event @ (E::Start | E::Skip | E::Retry))
        | (
            state @ (S::Completed | S::Skipped),
            event @ (E::Start
            | E::Skip
            | E::Retry
            | E::Resume
            | E::Succeeded { .. }
            | E::FailedTransiently { .. }
            | E::FailedPermanently { .. }
            | E::NotAttempted { .. }
            | E::TimedOut),
        ) => {
            return Err(IllegalTransition {
                state,
                event: event.name(),
            });
        }
    }
    Ok(())
}

fn run(progress: &mut StepProgress, step: &Step, now: Timestamp) {
    progress.attempt = progress.attempt.next();
    progress.state = StepState::Running;
    progress.complete_by = Some(now + step.complete_by);
    progress.retry_at = None;
}

fn fail(
    progress: &mut StepProgress,
    state: StepState,
    error: StepError,
    step: &Step,
    spread: Spread,
    now: Timestamp,
) {
    progress.failure_count += 1;
    progress.retry_at = (progress.failure_count < step.failures_max)
        .then(|| now + retry_wait(step, progress.failure_count, progress.attempt, spread));
    progress.state = state;
    progress.complete_by = None;
    progress.error = Some(error);
}

/// Tells steps apart, so that those that failed together do not try again together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread(u64);

impl Spread {
    /// Of one step of one operation.
    #[must_use]
    pub fn of(operation: OperationId, step_index: usize) -> Self {
        let (high, low) = operation.0.as_u64_pair();
        Self(mix(mix(high) ^ low).wrapping_add(step_index as u64))
    }
}

/// How long to wait before the next attempt, after `failures` failures of which the last was that
/// of `attempt`: between half and all of the backoff, which part being derived from the operation,
/// the step and the attempt.
#[must_use]
pub fn retry_wait(step: &Step, failures: u32, attempt: Attempt, spread: Spread) -> Duration {
    let full = backoff_micros(step, failures);
    let half = full / 2;
    let part = mix(spread.0 ^ (u64::from(attempt.0) << 32)) >> 32;
    let extra = (u128::from(full - half) * u128::from(part)) >> 32;
    let extra = u64::try_from(extra).expect("a part of a u64 fits into one");
    Duration::from_micros(half + extra)
}

/// `initial * factor^(failures - 1)`, at most `max`.
fn backoff_micros(step: &Step, failures: u32) -> u64 {
    let micros = |duration: Duration| {
        u64::try_from(duration.as_micros()).expect("a checked workflow has no such duration")
    };
    let max = micros(step.backoff.max);
    let mut wait = micros(step.backoff.initial) as f64;
    for _ in 1..failures {
        if wait >= max as f64 {
            break;
        }
        wait *= step.backoff.factor;
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
