//! The services as functions, for agents in the same process: the same faults, the same ledger, no HTTP.

use std::fmt;
use std::sync::Weak;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::HeaderValue;

pub use super::answer::Unanswered;

use super::answer::AnswerBody;
use super::api::{Call, CallAction};
use super::key::IdempotencyKey;
use super::{Service, Site};

/// Calls the services of this process. Clones call the same ones; once they have ended nobody answers.
#[derive(Clone)]
pub struct Caller {
    site: Weak<Site>,
}

/// What a service is asked.
#[derive(Clone, Debug)]
pub enum Request<'a> {
    /// Whether an owner may order. Of the account service alone.
    Check {
        /// The owner's id.
        owner: &'a str,
    },
    /// To make an effect.
    Run {
        /// The idempotency key.
        key: &'a str,
        /// JSON; only the third-party service looks into it.
        body: Bytes,
    },
    /// To undo an effect.
    Undo {
        /// The idempotency key.
        key: &'a str,
    },
    /// Whether an effect stands.
    Probe {
        /// The idempotency key.
        key: &'a str,
    },
}

/// What a service answers, as it would over HTTP.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The status.
    pub status: StatusCode,
    /// JSON, or nothing.
    pub body: Bytes,
}

/// A request that no service takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The key is not of the form `operation/step`.
    #[error("the idempotency key is malformed")]
    Key,
    /// An account is checked and nothing else, and nothing else is checked.
    #[error("the service is not asked that")]
    Unfit,
    /// It was taken and left without an answer.
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
}

impl Caller {
    pub(super) fn new(site: Weak<Site>) -> Self {
        Self { site }
    }

    /// Asks a service, and waits for its answer.
    ///
    /// # Errors
    ///
    /// If the request is none that the service takes, or is left without an answer.
    pub async fn call(
        &self,
        service: Service,
        request: Request<'_>,
    ) -> Result<Answered, CallError> {
        let action = match request {
            Request::Check { owner } => CallAction::Check {
                owner: owner.to_owned(),
            },
            Request::Run { key, body } => CallAction::Run {
                key: header(key)?,
                body,
            },
            Request::Undo { key } => CallAction::Undo { key: header(key)? },
            Request::Probe { key } => CallAction::Probe { key: header(key)? },
        };
        let is_check = matches!(action, CallAction::Check { .. });
        if is_check != (service == Service::Account) {
            return Err(CallError::Unfit);
        }
        let site = self.site.upgrade().ok_or(Unanswered)?;
        let answer = Call { service, action }.meet_its_fate(&site).await?;
        let (head, body) = answer.into_parts();
        let body = match body {
            AnswerBody::Whole(bytes) => bytes.unwrap_or_default(),
            // What a service answers is small; pieces are for the ledger's pages.
            AnswerBody::Pieces(_) => Bytes::new(),
        };
        Ok(Answered {
            status: head.status,
            body,
        })
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Caller")
    }
}

fn header(key: &str) -> Result<HeaderValue, CallError> {
    IdempotencyKey::parse(key).map_err(|_| CallError::Key)?;
    HeaderValue::from_str(key).map_err(|_| CallError::Key)
}
