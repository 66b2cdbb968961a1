//! Calls the services as functions, for agents in the same process: the same faults and ledger
//! without HTTP.

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

/// Calls the services of this process. Clones share them. After the services end, calls are
/// unanswered.
#[derive(Clone)]
pub struct Caller {
    site: Weak<Site>,
}

/// A request to a service.
#[derive(Clone, Debug)]
pub enum Request<'a> {
    /// Checks whether an owner may order. Only for the account service.
    Check {
        /// The owner's id.
        owner: &'a str,
    },
    /// Makes an effect.
    Run {
        /// The idempotency key.
        key: &'a str,
        /// JSON; only the third-party service reads it.
        body: Bytes,
    },
    /// Undoes an effect.
    Undo {
        /// The idempotency key.
        key: &'a str,
    },
    /// Checks whether an effect exists.
    Probe {
        /// The idempotency key.
        key: &'a str,
    },
}

/// The answer of a service, as over HTTP.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The status.
    pub status: StatusCode,
    /// JSON, or nothing.
    pub body: Bytes,
}

/// Why a call has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The key is not of the form `operation/step`.
    #[error("the idempotency key is malformed")]
    Key,
    /// The account service only checks accounts, and no other service does.
    #[error("the service does not support this request")]
    Unsupported,
    /// The request was accepted and left unanswered.
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
}

impl Caller {
    pub(super) fn new(site: Weak<Site>) -> Self {
        Self { site }
    }

    /// Sends a request to a service and waits for its answer.
    ///
    /// # Errors
    ///
    /// If the service does not have this request, or leaves it unanswered.
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
            return Err(CallError::Unsupported);
        }
        let site = self.site.upgrade().ok_or(Unanswered)?;
        let answer = Call { service, action }.apply_fate(&site).await?;
        let (head, body) = answer.into_parts();
        let body = match body {
            AnswerBody::Whole(bytes) => bytes.unwrap_or_default(),
            // Answers of services are small. Only the ledger's pages come in pieces.
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
