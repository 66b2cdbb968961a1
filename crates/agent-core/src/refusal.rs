//! Requests that are answered without an attempt.

use std::time::Duration;

use waybill_engine::{OWNER_SUPERSEDED, OperationId, Outcome, StepError, murmur2};

use crate::work::Work;

/// The shortest retry delay for requests that were handed back or refused.
pub(crate) const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);
/// The longest retry delay for refused requests. Until then the scheduler sends the agent nothing,
/// and the agent works off its queue.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(1);

/// A request to answer without an attempt.
#[derive(Debug)]
pub struct Refused<S> {
    /// The request.
    pub work: Work<S>,
    /// Why.
    pub refusal: Refusal,
}

impl<S> Refused<S> {
    pub(crate) fn new(work: Work<S>, refusal: Refusal) -> Self {
        Self { work, refusal }
    }

    /// The answer to the request.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.refusal.outcome(self.work.request.operation)
    }
}

/// Why a request is answered without an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A newer owner of the shard has requested steps.
    Superseded,
    /// The agent has no capacity or time for the attempt.
    NoRoom {
        /// How long the caller should wait before the next request. The answer keeps it within
        /// limits.
        retry_after: Duration,
    },
    /// The agent's process is stopping.
    Stopping,
}

impl Refusal {
    /// The answer to a request of this operation.
    fn outcome(self, operation: OperationId) -> Outcome {
        match self {
            Self::Superseded => not_attempted(
                OWNER_SUPERSEDED,
                "a newer owner of the shard has requested steps",
                RETRY_AFTER_MIN,
            ),
            Self::NoRoom { retry_after } => {
                // Requests that are refused together must not return together: spread them over
                // half the time.
                let share = f64::from(murmur2(&operation.key())) / f64::from(u32::MAX);
                let wait = retry_after.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX);
                not_attempted(
                    "no-room",
                    "the agent has no capacity or time for the attempt",
                    wait.mul_f64(1.0 + share / 2.0),
                )
            }
            Self::Stopping => not_attempted(
                "agent-stopping",
                "the agent's process is stopping",
                RETRY_AFTER_MIN,
            ),
        }
    }
}

/// An attempt that was not made, with the time to wait before the next one.
#[must_use]
pub fn not_attempted(
    code: impl Into<String>,
    message: impl Into<String>,
    retry_after: Duration,
) -> Outcome {
    Outcome::NotAttempted {
        error: StepError {
            code: code.into(),
            message: message.into(),
        },
        retry_after_ms: u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;

    fn wait_ms(refusal: Refusal, operation: u128) -> u32 {
        match refusal.outcome(OperationId(Uuid::from_u128(operation))) {
            Outcome::NotAttempted { retry_after_ms, .. } => retry_after_ms,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refused_requests_return_at_different_times_within_limits() {
        for (millis, from, to) in [(0, 100, 150), (400, 400, 600), (60_000, 1_000, 1_500)] {
            let refusal = Refusal::NoRoom {
                retry_after: Duration::from_millis(millis),
            };
            let waits: BTreeSet<u32> = (0..100).map(|id| wait_ms(refusal, id)).collect();
            assert!(waits.iter().all(|wait| (from..=to).contains(wait)));
            assert!(waits.len() > 25, "{waits:?}");
        }
        assert_eq!(wait_ms(Refusal::Superseded, 1), 100);
        assert_eq!(wait_ms(Refusal::Stopping, 1), 100);
    }
}
