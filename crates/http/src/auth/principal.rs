//! Principals: the identity and the permissions of a caller.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check_tenant;

/// Something that one may be allowed to do. None holds another.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Request, cancel and reschedule operations
    Submit,
    /// Read operations, lists and events, without inputs and outputs
    Read,
    /// Use the operator verbs, such as resubmit and abandon
    Repair,
    /// See inputs of operations and outputs of steps, with sensitive fields masked
    Payload,
    /// Stop and start shards, repartition, back up and set the log filter on the admin port
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 5] = [
        Self::Submit,
        Self::Read,
        Self::Repair,
        Self::Payload,
        Self::Admin,
    ];

    /// The name of the scope.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
            Self::Repair => "repair",
            Self::Payload => "payload",
            Self::Admin => "admin",
        }
    }

    /// The scope with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// Whether the set contains this scope.
    #[must_use]
    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | scope.bit()))
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = Scope::ALL.into_iter().filter(|scope| self.contains(*scope));
        f.debug_set().entries(held).finish()
    }
}

/// The tenants whose operations a principal may see and change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Tenants {
    /// All tenants, and operations without a tenant.
    #[default]
    All,
    /// Only this tenant.
    One(Arc<str>),
}

/// The request names a tenant that the caller has no access to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnotherTenant;

/// The text is neither a tenant nor `*`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadTenant(String);

impl Tenants {
    /// How all tenants are written.
    pub const ALL: &'static str = "*";

    /// Parses a tenant, or `*` for all.
    ///
    /// # Errors
    ///
    /// If the text is neither.
    pub fn named(text: &str) -> Result<Self, BadTenant> {
        match text {
            Self::ALL => Ok(Self::All),
            "" => Err(BadTenant("must name a tenant, or be * for all".to_owned())),
            one => check_tenant(one)
                .map(|()| Self::One(one.into()))
                .map_err(BadTenant),
        }
    }

    /// Whether this tenant is included.
    #[must_use]
    pub fn include(&self, tenant: &str) -> bool {
        match self {
            Self::All => true,
            Self::One(only) => **only == *tenant,
        }
    }

    /// The tenant that a request applies to if it names this one. The empty name means no tenant,
    /// and the only tenant for a principal that is restricted to one.
    ///
    /// # Errors
    ///
    /// If the principal may not access the named tenant.
    pub fn meant(&self, named: String) -> Result<String, AnotherTenant> {
        match self {
            Self::All => Ok(named),
            Self::One(only) if named.is_empty() || **only == *named => Ok(only.to_string()),
            Self::One(_) => Err(AnotherTenant),
        }
    }

    /// The only tenant; `None` if all are included.
    #[must_use]
    pub fn only(&self) -> Option<&Arc<str>> {
        match self {
            Self::All => None,
            Self::One(only) => Some(only),
        }
    }
}

/// An authenticated caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    /// Its name, for people and for the history of operations.
    pub name: Arc<str>,
    /// Its permissions.
    pub scopes: Scopes,
    /// The tenants that it may do it for.
    pub tenants: Tenants,
    /// The agents that the principal may act as on the embedded broker.
    pub agents: Arc<[Box<str>]>,
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub struct Caller(Option<Arc<Principal>>);

impl Caller {
    /// Any caller: authentication is off.
    pub const ANYBODY: Self = Self(None);

    /// An authenticated caller.
    #[must_use]
    pub const fn of(principal: Arc<Principal>) -> Self {
        Self(Some(principal))
    }

    /// Whether the caller has this scope.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        self.0.as_ref().is_none_or(|who| who.scopes.contains(scope))
    }

    /// The tenants that the caller may access.
    #[must_use]
    pub fn tenants(&self) -> &Tenants {
        self.0.as_ref().map_or(&Tenants::All, |who| &who.tenants)
    }

    /// The name of the principal; `None` if authentication is off.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|who| &*who.name)
    }
}
