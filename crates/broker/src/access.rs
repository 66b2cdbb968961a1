//! Logins and what they allow.
//!
//! Without [`BrokerSettings::logins`](crate::BrokerSettings::logins) every client may do
//! everything. With it, a connection must log in with SASL/PLAIN (RFC 4616) before it may send
//! anything but `ApiVersions`.
//!
//! What must hold: every request is checked against the rights that its login has at that moment. A
//! login whose rights are withdrawn can do nothing more, without a reconnect.
//!
//! Deliberately absent: mechanisms that need a password or its derivative on the broker's side
//! (SCRAM). The owner of [`Logins`] can keep nothing but hashes of long random tokens.

use std::fmt;
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use kafka_protocol::protocol::StrBytes;
use waybill_wire::OK;

/// The mechanism, as clients name it.
const PLAIN: &str = "PLAIN";
/// The largest login: user name and password together, in bytes.
const LOGIN_BYTES_MAX: usize = 16 << 10;

/// Checks logins.
pub trait Logins: fmt::Debug + Send + Sync {
    /// The rights of a user with this password; `None` refuses the login. Must not block.
    fn log_in(&self, user: &str, password: &str) -> Option<Arc<dyn Rights>>;
}

/// The rights of one login.
pub trait Rights: fmt::Debug + Send + Sync {
    /// Whether it may do this now. Called for every request and topic; must not block.
    fn allow(&self, action: Action<'_>) -> bool;
}

/// The action of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    /// Reads records, offsets and settings of this topic.
    Read(&'a str),
    /// Appends records to this topic.
    Write(&'a str),
    /// Joins this consumer group, reads and commits its offsets.
    Group(&'a str),
    /// Takes an id for an idempotent producer.
    ProducerId,
    /// Creates, changes or deletes topics, records and groups.
    Administer,
}

/// The progress of a connection's login.
#[derive(Debug)]
pub(crate) enum Login {
    /// The broker has no logins.
    NotNeeded,
    /// The client has sent nothing yet.
    Missing,
    /// The mechanism was agreed on.
    Started,
    /// The login was refused: the connection may do nothing more.
    Refused,
    /// The connection may do what the rights allow.
    Done(Arc<dyn Rights>),
}

impl Login {
    /// The state of a new connection.
    pub(crate) fn new(logins: Option<&Arc<dyn Logins>>) -> Self {
        match logins {
            None => Self::NotNeeded,
            Some(_) => Self::Missing,
        }
    }

    /// Whether the connection still has to log in.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(self, Self::Missing | Self::Started | Self::Refused)
    }

    /// Whether the login was refused.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }

    /// The rights of its requests; `None` if it may do everything.
    pub(crate) fn rights(&self) -> Option<&Arc<dyn Rights>> {
        match self {
            Self::Done(rights) => Some(rights),
            Self::NotNeeded | Self::Missing | Self::Started | Self::Refused => None,
        }
    }

    /// Agrees on the mechanism.
    pub(crate) fn handshake(&mut self, request: &SaslHandshakeRequest) -> SaslHandshakeResponse {
        let code = match self {
            Self::NotNeeded | Self::Refused | Self::Done(_) => {
                ResponseError::IllegalSaslState.code()
            }
            Self::Missing | Self::Started if *request.mechanism == *PLAIN => {
                *self = Self::Started;
                OK
            }
            Self::Missing | Self::Started => ResponseError::UnsupportedSaslMechanism.code(),
        };
        SaslHandshakeResponse::default()
            .with_error_code(code)
            .with_mechanisms(vec![StrBytes::from_static_str(PLAIN)])
    }

    /// Checks user name and password.
    pub(crate) fn authenticate(
        &mut self,
        logins: Option<&Arc<dyn Logins>>,
        request: &SaslAuthenticateRequest,
    ) -> SaslAuthenticateResponse {
        let refused = |error: ResponseError, message: &'static str| {
            SaslAuthenticateResponse::default()
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_static_str(message)))
        };
        let (Self::Started, Some(logins)) = (&*self, logins) else {
            return refused(
                ResponseError::IllegalSaslState,
                "a login follows SaslHandshake, once",
            );
        };
        let rights = credentials(&request.auth_bytes)
            .and_then(|(user, password)| logins.log_in(user, password));
        match rights {
            Some(rights) => {
                *self = Self::Done(rights);
                SaslAuthenticateResponse::default()
            }
            None => {
                *self = Self::Refused;
                refused(
                    ResponseError::SaslAuthenticationFailed,
                    "the user name or the password is wrong",
                )
            }
        }
    }
}

/// User name and password of a message of SASL/PLAIN: an identity to act as, which must be empty or
/// the user, the user and the password, with a zero byte between them.
fn credentials(message: &[u8]) -> Option<(&str, &str)> {
    if message.len() > LOGIN_BYTES_MAX {
        return None;
    }
    let mut parts = std::str::from_utf8(message).ok()?.split('\0');
    let (acts_as, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !user.is_empty();
    (is_whole && (acts_as.is_empty() || acts_as == user)).then_some((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Credentials<'a> = Option<(&'a str, &'a str)>;

    #[test]
    fn a_login_is_a_user_and_a_password_and_nothing_else() {
        let long = format!("\0a\0{}", "x".repeat(LOGIN_BYTES_MAX));
        let cases: [(&[u8], Credentials<'_>); 10] = [
            (b"\0ada\0secret", Some(("ada", "secret"))),
            (b"ada\0ada\0secret", Some(("ada", "secret"))),
            (b"\0ada\0", Some(("ada", ""))),
            (b"bob\0ada\0secret", None),
            (b"\0\0secret", None),
            (b"\0ada\0se\0cret", None),
            (b"ada\0secret", None),
            (b"", None),
            (b"\0\xff\0secret", None),
            (long.as_bytes(), None),
        ];
        for (message, expected) in cases {
            assert_eq!(credentials(message), expected, "{message:?}");
        }
    }
}
