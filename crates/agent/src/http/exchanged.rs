//! The results of requests.

use std::time::Duration;

use hyper::StatusCode;
use tokio::time::Instant;
use waybill_engine::Outcome;

use super::client::{Answer, SendError};
use crate::breaker::Judged;

/// The result of one exchange.
pub(super) struct Exchanged {
    pub(super) outcome: Outcome,
    /// The wait that the service asks for.
    pub(super) retry_after: Option<Duration>,
    /// What the result says about the service.
    pub(super) health: Health,
}

/// What the result of an exchange says about the service.
pub(super) enum Health {
    /// The outcome decides.
    OfOutcome,
    /// It has refused a credential, and there is no other one.
    NoToken,
    /// Nothing: complete-by passed before the service had sufficient time to answer.
    CutShort,
}

/// The result of sending a request.
pub(super) struct Sent {
    /// `None` if no answer arrived in time.
    pub(super) answer: Option<Result<Answer, SendError>>,
    pub(super) ended: Instant,
    /// Whether redirects led to a host other than the service's.
    pub(super) is_elsewhere: bool,
    /// Why the agent did not follow the redirect in the answer.
    pub(super) redirect_refused: Option<String>,
}

impl Default for Sent {
    fn default() -> Self {
        Self {
            answer: None,
            ended: Instant::now(),
            is_elsewhere: false,
            redirect_refused: None,
        }
    }
}

impl Sent {
    pub(super) fn of(answer: Result<Answer, SendError>) -> Self {
        Self {
            answer: Some(answer),
            ..Self::default()
        }
    }

    pub(super) fn status(&self) -> Option<StatusCode> {
        match &self.answer {
            Some(Ok(answer)) => Some(answer.head.status),
            Some(Err(_)) | None => None,
        }
    }

    /// Whether the service refused the credential.
    pub(super) fn is_unauthorized(&self) -> bool {
        !self.is_elsewhere && self.status() == Some(StatusCode::UNAUTHORIZED)
    }
}

impl Exchanged {
    pub(super) fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            retry_after: None,
            health: Health::OfOutcome,
        }
    }

    /// How the result counts for the circuit breaker.
    pub(super) fn judge(self) -> Judged<Self> {
        match (&self.health, &self.outcome) {
            (Health::CutShort, _) => Judged::CutShort(self),
            (Health::OfOutcome, Outcome::Transient { .. } | Outcome::Unknown { .. }) => {
                Judged::Failure(self)
            }
            (Health::NoToken, _)
            | (
                Health::OfOutcome,
                Outcome::Success { .. }
                | Outcome::Permanent { .. }
                | Outcome::NotPerformed
                | Outcome::NotAttempted { .. },
            ) => Judged::Healthy(self),
        }
    }
}
