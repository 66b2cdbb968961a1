//! How an attempt to deliver can fail.

use std::time::Duration;

/// Why an attempt failed. The causes contain no secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// Temporary: another attempt may succeed.
    Passing {
        cause: String,
        /// How long the receiver asks to wait.
        retry_after: Option<Duration>,
    },
    /// The receiver will never accept this message.
    Refused { cause: String },
    /// The receiver does not want any more messages.
    Gone,
}

impl Failure {
    pub(super) fn passing(cause: impl Into<String>) -> Self {
        Self::Passing {
            cause: cause.into(),
            retry_after: None,
        }
    }
}
