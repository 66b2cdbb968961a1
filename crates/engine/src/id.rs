//! Identifiers and counters. Each is its own type, so that they cannot be confused.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The id of one operation: a UUIDv7 from the server, or the UUIDv5 of a tenant and the caller's
/// own id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(pub Uuid);

impl OperationId {
    /// The namespace of callers' ids: a random constant that must never change.
    const CALLER_NAMESPACE: Uuid = Uuid::from_u128(0x9d5f_57c3_0c0e_4c1b_8a53_6e1f_2f5a_b7d4);

    /// The id of the operation that `tenant` calls `caller_id`. Two tenants that choose the same
    /// id get different operations: the tenant's length is part of the name.
    #[must_use]
    pub fn of_caller(tenant: &str, caller_id: &str) -> Self {
        let mut name = Vec::with_capacity(tenant.len() + caller_id.len() + 8);
        name.extend_from_slice(&(tenant.len() as u64).to_be_bytes());
        name.extend_from_slice(tenant.as_bytes());
        name.extend_from_slice(caller_id.as_bytes());
        Self(Uuid::new_v5(&Self::CALLER_NAMESPACE, &name))
    }

    /// The record key of this operation on every topic: the hyphenated lower-case form.
    #[must_use]
    pub fn key(self) -> [u8; 36] {
        let mut key = [0; 36];
        self.0.hyphenated().encode_lower(&mut key);
        key
    }

    /// A stable id for one of the operation's events, the same however often it is sent.
    #[must_use]
    pub fn event_id(self, event: &str) -> Uuid {
        Uuid::new_v5(&self.0, event.as_bytes())
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for OperationId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text).map(Self)
    }
}

/// The name of one process as owner: a nonce made at process start, never a host or pod name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnerId(pub Uuid);

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

counter! {
    /// A partition of the operation topics, counted from 0.
    PartitionId(u32)
}
counter! {
    /// A part of a partition that one scheduler owns, counted from 0 over all partitions; see
    /// [`ShardingScheme`](crate::ShardingScheme).
    ShardId(u32)
}
counter! {
    /// A position in a partition's log, counted from 0.
    Offset(i64)
}
counter! {
    /// One try at a step. Attempts of a step are numbered from 1; 0 means that there was none.
    Attempt(u32)
}
counter! {
    /// The number of a shard's ownership. Every new owner has a higher one, also an owner of a
    /// shard that follows this one.
    Epoch(u64)
}

/// A shard of a layout. Its epochs count its owners.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
pub struct LayoutShard {
    /// The number of its layout, which counts the changes of partitions and shards.
    pub layout: u64,
    /// Its number within the layout.
    pub number: u32,
}

counter! {
    /// The number of a batch of commands of one partition engine, counted from 0.
    BatchNumber(u64)
}
