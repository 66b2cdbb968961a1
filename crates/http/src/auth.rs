//! Authentication and authorization of callers: bearer tokens, scopes and tenants.
//!
//! A token is either listed by its hash in a token file (`tokens`), or a JWT that a key of a file
//! or of an issuer has signed (`jwt`). Both identify a [`Principal`]: a name, its scopes and its
//! tenants. A handler receives the [`Caller`], which may do everything when authentication is off.
//!
//! What must hold: a caller restricted to one tenant gets the same answer for another tenant's
//! operation as for an operation that does not exist; a token never appears in a log line, a
//! metric, an answer or `Debug` output; and no file is read while a request is served.
//!
//! Deliberately absent: sessions, passwords, and any state that a restart would lose.

mod bearer;
mod config;
mod denied;
mod issuer;
mod jwks;
mod jwt;
mod principal;
mod rights;
mod signatures;
mod tenant;
mod tokens;
mod verified;

use std::sync::{Arc, OnceLock};

use hyper::HeaderMap;
use sha2::{Digest as _, Sha256};
use waybill_clock::wall_clock;
use waybill_config::{Secret, file_permissions};
use waybill_sasl::Verifier;

pub use config::{AuthConfig, GroupConfig, JwtConfig};
pub use denied::Denied;
pub use principal::{AnotherTenant, BadTenant, Caller, Principal, Scope, Scopes, Tenants};
pub use tenant::check_tenant;
pub use tokens::{ListedToken, NewToken};

pub use bearer::bearer;
pub use denied::DENIALS;
pub use issuer::{Issuer, METRICS};
pub use tokens::{check_name, check_rights, to_hex};

use self::jwt::Jwt;
use self::tokens::Tokens;
use crate::{Hosts, Tls};
use waybill_tls::reread::{FileRefused, Reread};

/// The SHA-256 of a token. The token itself is not kept.
type TokenHash = [u8; 32];

fn hash_of(token: &str) -> TokenHash {
    Sha256::digest(token).into()
}

/// Authenticates callers by their tokens.
#[derive(Debug)]
pub struct Authenticator {
    tokens: Option<Reread<Tokens>>,
    jwt: Option<Jwt>,
    /// The token of this process itself, which is in no file.
    own: OnceLock<(TokenHash, Arc<Principal>)>,
}

impl Authenticator {
    /// Loads the files that the configuration names. Returns `None` if it names none:
    /// authentication is then off.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or its content is invalid.
    pub fn load(config: &AuthConfig) -> Result<Option<Arc<Self>>, FileRefused> {
        if !config.is_on() {
            return Ok(None);
        }
        let jwt = &config.jwt;
        for path in [&config.tokens_file, &jwt.jwks_file, &jwt.ca_file]
            .into_iter()
            .flatten()
        {
            file_permissions::warn_if_world_writable(path, "the tokens or keys of the API");
        }
        let tokens = config.tokens_file.clone().map(Tokens::follow).transpose()?;
        if let (Some(path), Some(tokens)) = (&config.tokens_file, &tokens)
            && tokens.get().has_verifiers()
        {
            file_permissions::warn_if_world_readable(path, "the verifiers of logins with SCRAM");
        }
        let jwt = Jwt::load(&config.jwt)?;
        Ok(Some(Arc::new(Self {
            tokens,
            jwt,
            own: OnceLock::new(),
        })))
    }

    /// The caller that sent a request with these headers.
    ///
    /// # Errors
    ///
    /// If the headers hold no token, or no valid one.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Caller, Denied> {
        self.principal(bearer::token(headers)?).map(Caller::of)
    }

    /// The principal that this token identifies.
    ///
    /// # Errors
    ///
    /// If the token is unknown or no longer valid.
    pub fn principal(&self, token: &str) -> Result<Arc<Principal>, Denied> {
        let hash = hash_of(token);
        match &self.jwt {
            _ if tokens::is_token(token) => self.holder(&hash),
            Some(jwt) => jwt.principal(token, hash, wall_clock()),
            None => Err(Denied::UNKNOWN_TOKEN),
        }
    }

    /// The principal whose token has this hash.
    fn holder(&self, hash: &TokenHash) -> Result<Arc<Principal>, Denied> {
        // The time of the look-up may leak something about the hash, but nothing about the token.
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

    /// The token of this name in the token file, and what verifies a login with SCRAM. `None` if it
    /// has no verifier.
    pub fn verifier(&self, name: &str) -> Option<(ListedToken, Verifier)> {
        self.tokens.as_ref()?.get().verifier(name)
    }

    /// The principal whom a token of the file identifies.
    ///
    /// # Errors
    ///
    /// If the file no longer lists the token.
    pub fn holder_of(&self, token: ListedToken) -> Result<Arc<Principal>, Denied> {
        self.holder(&token.0)
    }

    /// The issuer whose keys are fetched; `None` if no keys are.
    pub fn issuer(&self) -> Option<&Arc<Issuer>> {
        self.jwt.as_ref()?.issuer()
    }

    /// Creates a token for this process itself. It is kept in memory only.
    pub fn own_token(&self, principal: Principal) -> Secret {
        let NewToken { token, hash } = NewToken::make();
        if self.own.set((hash, Arc::new(principal))).is_err() {
            tracing::warn!("ignored a second internal token");
        }
        token
    }

    /// Reloads the files that have changed. Blocks.
    fn reload(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.reload();
        }
        if let Some(jwt) = &self.jwt {
            jwt.reload();
        }
    }
}

/// Authentication of a listener: on, or off for every caller.
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

    /// The caller that sent a request with these headers, if it has this scope.
    ///
    /// # Errors
    ///
    /// If the caller is not authenticated, or lacks the scope.
    pub fn admit(&self, headers: &HeaderMap, scope: Scope) -> Result<Caller, Denied> {
        let caller = self.caller(headers)?;
        match caller.may(scope) {
            true => Ok(caller),
            false => Err(Denied::Scope(scope)),
        }
    }

    /// The caller that sent a request with these headers.
    ///
    /// # Errors
    ///
    /// If the caller is not authenticated.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Caller, Denied> {
        match &self.0 {
            None => Ok(Caller::ANYBODY),
            Some(authenticator) => authenticator.caller(headers),
        }
    }

    /// Reloads the files that have changed. Blocks.
    pub fn reload(&self) {
        if let Some(authenticator) = &self.0 {
            authenticator.reload();
        }
    }

    /// The hosts that a listener answers for: all if callers need a token, otherwise the local ones
    /// and `names`.
    #[must_use]
    pub fn hosts(&self, names: &[String], tls: &Tls) -> Hosts {
        match self.0 {
            Some(_) => Hosts::any(),
            None => Hosts::local(names, tls.is_on()),
        }
    }

    /// The authenticator; `None` if authentication is off.
    #[must_use]
    pub fn authenticator(&self) -> Option<&Arc<Authenticator>> {
        self.0.as_ref()
    }
}

#[cfg(test)]
mod tests;
