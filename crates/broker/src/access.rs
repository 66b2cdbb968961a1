//! Logins and what they allow.
//!
//! Without [`BrokerSettings::logins`](crate::BrokerSettings::logins) every client may do
//! everything. With it, a connection must log in with SASL/PLAIN or SCRAM-SHA-256 before it may
//! send anything but `ApiVersions`.
//!
//! What must hold: every request is checked against the rights that its login has at that moment. A
//! login whose rights are withdrawn can do nothing more, without a reconnect.

use std::fmt;
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;
use waybill_sasl::{Exchange, Refused, Verifier, plain};
use waybill_wire::OK;

/// The mechanisms, as clients name them.
const PLAIN: &str = "PLAIN";
const SCRAM: &str = "SCRAM-SHA-256";
/// The largest message of a login, in bytes.
const LOGIN_BYTES_MAX: usize = 16 << 10;

/// Checks logins.
pub trait Logins: fmt::Debug + Send + Sync {
    /// The rights of a user with this password; `None` refuses the login. Must not block.
    fn log_in(&self, user: &str, password: &str) -> Option<Arc<dyn Rights>>;

    /// The verifier of a user, and the rights that a successful login gets. `None` if the user
    /// cannot log in with SCRAM. Must not block.
    fn verifier(&self, user: &str) -> Option<(Verifier, Arc<dyn Rights>)>;
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
    /// The client will send user name and password.
    Plain,
    /// The client will send its first message of SCRAM.
    Scram,
    /// The client will send its second message of SCRAM.
    ScramBegun(Box<Begun>),
    /// The login was refused: the connection may do nothing more.
    Refused,
    /// The connection may do what the rights allow.
    Done(Arc<dyn Rights>),
}

/// A login with SCRAM after the client's first message.
#[derive(Debug)]
pub(crate) struct Begun {
    exchange: Exchange,
    /// `None` if there is no such user: the exchange will fail.
    rights: Option<Arc<dyn Rights>>,
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
        !matches!(self, Self::NotNeeded | Self::Done(_))
    }

    /// Whether the login was refused.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }

    /// The rights of its requests; `None` if it may do everything.
    pub(crate) fn rights(&self) -> Option<&Arc<dyn Rights>> {
        match self {
            Self::Done(rights) => Some(rights),
            Self::NotNeeded
            | Self::Missing
            | Self::Plain
            | Self::Scram
            | Self::ScramBegun(_)
            | Self::Refused => None,
        }
    }

    /// Agrees on the mechanism.
    pub(crate) fn handshake(&mut self, request: &SaslHandshakeRequest) -> SaslHandshakeResponse {
        let code = match (&*self, &*request.mechanism) {
            (Self::NotNeeded | Self::Refused | Self::Done(_), _) => {
                ResponseError::IllegalSaslState.code()
            }
            (_, PLAIN) => {
                *self = Self::Plain;
                OK
            }
            (_, SCRAM) => {
                *self = Self::Scram;
                OK
            }
            _ => ResponseError::UnsupportedSaslMechanism.code(),
        };
        SaslHandshakeResponse::default()
            .with_error_code(code)
            .with_mechanisms([PLAIN, SCRAM].map(StrBytes::from_static_str).to_vec())
    }

    /// Takes the next message of the login.
    pub(crate) fn authenticate(
        &mut self,
        logins: Option<&Arc<dyn Logins>>,
        secret: &[u8; 32],
        request: &SaslAuthenticateRequest,
    ) -> SaslAuthenticateResponse {
        let refused = |error: ResponseError, message: String| {
            SaslAuthenticateResponse::default()
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_string(message)))
        };
        let illegal = || {
            let message = "SaslAuthenticate is allowed once, after SaslHandshake";
            refused(ResponseError::IllegalSaslState, message.to_owned())
        };
        let Some(logins) = logins else {
            return illegal();
        };
        let message = &*request.auth_bytes;
        let next = match std::mem::replace(self, Self::Refused) {
            other @ (Self::NotNeeded | Self::Missing | Self::Refused | Self::Done(_)) => {
                *self = other;
                return illegal();
            }
            _ if message.len() > LOGIN_BYTES_MAX => Err(Refused::Malformed),
            Self::Plain => by_password(&**logins, message),
            Self::Scram => begin_scram(&**logins, secret, message),
            Self::ScramBegun(begun) => begun.finish(message),
        };
        match next {
            Ok((next, answer)) => {
                *self = next;
                SaslAuthenticateResponse::default().with_auth_bytes(answer.into())
            }
            Err(reason) => refused(ResponseError::SaslAuthenticationFailed, reason.to_string()),
        }
    }
}

/// The state of a login after a message, and the answer.
type Next = Result<(Login, String), Refused>;

fn by_password(logins: &dyn Logins, message: &[u8]) -> Next {
    let (user, password) = plain(message).ok_or(Refused::Malformed)?;
    let rights = logins.log_in(user, password).ok_or(Refused::Wrong)?;
    Ok((Login::Done(rights), String::new()))
}

fn begin_scram(logins: &dyn Logins, secret: &[u8; 32], message: &[u8]) -> Next {
    let nonce = Uuid::new_v4().simple().to_string();
    let mut rights = None;
    let verifier = |user: &str| {
        let (verifier, its_rights) = logins.verifier(user)?;
        rights = Some(its_rights);
        Some(verifier)
    };
    let (exchange, answer) = Exchange::begin(message, &nonce, secret, verifier)?;
    let begun = Begun { exchange, rights };
    Ok((Login::ScramBegun(Box::new(begun)), answer))
}

impl Begun {
    fn finish(self, message: &[u8]) -> Next {
        let answer = self.exchange.finish(message)?;
        let rights = self.rights.ok_or(Refused::Wrong)?;
        Ok((Login::Done(rights), answer))
    }
}
