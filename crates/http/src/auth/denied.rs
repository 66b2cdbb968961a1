//! Why a caller is denied access, and the answer: RFC 6750 within problem details.

use super::{AnotherTenant, Scope};
use crate::problem::{Kind, Problem};

/// Why a caller is denied access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// The request has no token.
    NoToken,
    /// The token is invalid, and why.
    BadToken(&'static str),
    /// The token has expired.
    Expired,
    /// The token is a JWT, and the keys of its issuer have not been fetched.
    NoKeys,
    /// The groups of the token give no rights, and why.
    Groups(&'static str),
    /// The caller lacks this scope.
    Scope(Scope),
}

/// The codes of 401 and the problems of 403 and 503, by which denials are counted. They are stable.
pub const DENIALS: [&str; 6] = [
    NO_TOKEN,
    BAD_TOKEN,
    EXPIRED,
    "insufficient-scope",
    "another-tenant",
    "keys-unavailable",
];
const NO_TOKEN: &str = "no-token";
const BAD_TOKEN: &str = "invalid-token";
const EXPIRED: &str = "expired-token";

impl Denied {
    /// The token is not in the token file.
    pub(super) const UNKNOWN_TOKEN: Self = Self::BadToken("The token is unknown.");
}

/// The detail for a missing scope.
macro_rules! of_scope {
    ($scope:literal) => {
        (
            concat!("The token does not have the scope ", $scope, "."),
            concat!(
                "Bearer realm=\"waybill\", error=\"insufficient_scope\", scope=\"",
                $scope,
                "\""
            ),
        )
    };
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        const CHALLENGE: &str = "Bearer realm=\"waybill\"";
        const INVALID: &str = "Bearer realm=\"waybill\", error=\"invalid_token\"";
        let unknown = |detail, code, challenge| {
            Self::new(Kind::Unauthenticated, detail)
                .with_code(code)
                .with_challenge(challenge)
        };
        match denied {
            Denied::NoToken => {
                let detail = "Send a token: Authorization: Bearer TOKEN.";
                unknown(detail, NO_TOKEN, CHALLENGE)
            }
            Denied::BadToken(detail) => unknown(detail, BAD_TOKEN, INVALID),
            Denied::Expired => unknown("The token has expired.", EXPIRED, INVALID),
            Denied::NoKeys => {
                let detail = "The keys of the token's issuer have not been fetched.";
                Self::new(Kind::KeysUnavailable, detail)
            }
            Denied::Groups(detail) => {
                const NO_RIGHTS: &str = "Bearer realm=\"waybill\", error=\"insufficient_scope\"";
                Self::new(Kind::InsufficientScope, detail).with_challenge(NO_RIGHTS)
            }
            Denied::Scope(scope) => {
                let (detail, challenge) = match scope {
                    Scope::Submit => of_scope!("submit"),
                    Scope::Read => of_scope!("read"),
                    Scope::Repair => of_scope!("repair"),
                    Scope::Payload => of_scope!("payload"),
                    Scope::Admin => of_scope!("admin"),
                };
                Self::new(Kind::InsufficientScope, detail).with_challenge(challenge)
            }
        }
    }
}

impl From<AnotherTenant> for Problem {
    fn from(_: AnotherTenant) -> Self {
        let detail = "The request names a different tenant from that of the token.";
        Self::new(Kind::AnotherTenant, detail)
    }
}
