//! Who asks, and what they may do: bearer tokens, scopes and tenants.
//!
//! A token is one of a file that holds their hashes (`tokens`), or a JWT that a key of a file has signed (`jwt`). Either
//! leads to a [`Principal`]: a name, what it may do, and for which tenants. Handlers are given the [`Caller`], which is
//! anybody where authentication is off.
//!
//! What must hold: whoever may see one tenant only is told of another's operations what is told of none at all; a token
//! is in no log line, no metric, no answer and no `Debug`; and on the way of a request nothing is read from a file.
//!
//! Deliberately absent: sessions, passwords, and any state that a restart would lose.

mod bearer;
mod config;
mod denied;
mod jwks;
mod jwt;
mod principal;
mod tenant;
mod tokens;
mod verified;

use std::sync::{Arc, OnceLock};

use hyper::HeaderMap;
use sha2::{Digest as _, Sha256};
use waybill_clock::wall_clock;
use waybill_config::{Secret, file_modes};

pub use config::{AuthConfig, JwtConfig};
pub use denied::Denied;
pub use principal::{AnotherTenant, BadTenant, Caller, Principal, Scope, Scopes, Tenants};
pub use tenant::check_tenant;
pub use tokens::NewToken;

pub use bearer::bearer;
pub use denied::DENIALS;
pub use tokens::{check_name, check_rights, to_hex};

use self::jwt::Jwt;
use self::tokens::Tokens;
use crate::reread::{FileRefused, Reread};
use crate::{Hosts, Tls};

/// The SHA-256 of a token: all that is kept of one.
type TokenHash = [u8; 32];

fn hash_of(token: &str) -> TokenHash {
    Sha256::digest(token).into()
}

/// Tells who asks.
#[derive(Debug)]
pub struct Authenticator {
    tokens: Option<Reread<Tokens>>,
    jwt: Option<Jwt>,
    /// The token of this process itself, which no file knows.
    own: OnceLock<(TokenHash, Arc<Principal>)>,
}

impl Authenticator {
    /// By the files that the configuration names; `None` where it names none, and authentication is off.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or what it says cannot be.
    pub fn load(config: &AuthConfig) -> Result<Option<Arc<Self>>, FileRefused> {
        if !config.is_on() {
            return Ok(None);
        }
        for path in [&config.tokens_file, &config.jwt.jwks_file]
            .into_iter()
            .flatten()
        {
            file_modes::warn_if_they_may_write(path, "who may use the API");
        }
        let tokens = config.tokens_file.clone().map(Tokens::follow).transpose()?;
        let jwt = config.jwt.jwks_file.clone();
        let jwt = jwt.map(|path| Jwt::follow(path, &config.jwt)).transpose()?;
        Ok(Some(Arc::new(Self {
            tokens,
            jwt,
            own: OnceLock::new(),
        })))
    }

    /// Who sends a request with these headers.
    ///
    /// # Errors
    ///
    /// If they hold no token, or none that is known.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Caller, Denied> {
        self.principal(bearer::token(headers)?).map(Caller::of)
    }

    /// Whose token this is.
    ///
    /// # Errors
    ///
    /// If it is unknown or no longer valid.
    pub fn principal(&self, token: &str) -> Result<Arc<Principal>, Denied> {
        let hash = hash_of(token);
        match &self.jwt {
            _ if tokens::is_token(token) => self.holder(&hash),
            Some(jwt) => jwt.principal(token, hash, wall_clock()),
            None => Err(Denied::UNKNOWN_TOKEN),
        }
    }

    /// Whose token has this hash.
    fn holder(&self, hash: &TokenHash) -> Result<Arc<Principal>, Denied> {
        // The time that looking up takes may tell something of the hash, and so nothing of a token.
        let known = self
            .tokens
            .as_ref()
            .and_then(|tokens| tokens.get().principal(hash));
        let known = known.or_else(|| {
            let (own, principal) = self.own.get()?;
            (own == hash).then(|| Arc::clone(principal))
        });
        known.ok_or(Denied::UNKNOWN_TOKEN)
    }

    /// A token for this process itself, which is kept nowhere but here.
    pub fn own_token(&self, principal: Principal) -> Secret {
        let NewToken { token, hash } = NewToken::make();
        if self.own.set((hash, Arc::new(principal))).is_err() {
            tracing::warn!("this process has a token of its own, and gets no second one");
        }
        token
    }

    /// Reads the files again that have changed. Blocks.
    fn look(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.look();
        }
        if let Some(jwt) = &self.jwt {
            jwt.look();
        }
    }
}

/// Tells who asks, or that anybody may.
#[derive(Clone, Debug, Default)]
pub struct Auth(Option<Arc<Authenticator>>);

impl Auth {
    /// As [`Authenticator::load`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn load(config: &AuthConfig) -> Result<Self, FileRefused> {
        Authenticator::load(config).map(Self)
    }

    /// Whoever sends a request with these headers, which needs this scope.
    ///
    /// # Errors
    ///
    /// If it is not known who that is, or they may not.
    pub fn admit(&self, headers: &HeaderMap, scope: Scope) -> Result<Caller, Denied> {
        let caller = self.caller(headers)?;
        match caller.may(scope) {
            true => Ok(caller),
            false => Err(Denied::Scope(scope)),
        }
    }

    /// Whoever sends a request with these headers.
    ///
    /// # Errors
    ///
    /// If it is not known who that is.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Caller, Denied> {
        match &self.0 {
            None => Ok(Caller::ANYBODY),
            Some(authenticator) => authenticator.caller(headers),
        }
    }

    /// Reads files again that have changed. Blocks.
    pub fn look(&self) {
        if let Some(authenticator) = &self.0 {
            authenticator.look();
        }
    }

    /// Which hosts a listener answers for: those that `names` adds where nobody is asked for a token, else all.
    #[must_use]
    pub fn hosts(&self, names: &[String], tls: &Tls) -> Hosts {
        match self.0 {
            Some(_) => Hosts::any(),
            None => Hosts::local(names, tls.is_on()),
        }
    }

    /// What tells who asks; `None` where anybody may.
    #[must_use]
    pub fn authenticator(&self) -> Option<&Arc<Authenticator>> {
        self.0.as_ref()
    }
}

#[cfg(test)]
mod tests;
