//! The messages of members to a group, and its answers.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;
use uuid::fmt::Hyphenated;

use super::member::Member;

/// A member's request to join.
pub(crate) struct Join {
    pub(crate) member_id: StrBytes,
    pub(crate) instance_id: Option<StrBytes>,
    pub(crate) client_id: StrBytes,
    pub(crate) client_host: StrBytes,
    pub(crate) session_timeout: Duration,
    pub(crate) rebalance_timeout: Duration,
    pub(crate) protocol_type: StrBytes,
    /// Assignment protocols with the member's subscription, best first.
    pub(crate) protocols: Vec<(StrBytes, Bytes)>,
    /// The member can receive a generated id and join again with it.
    pub(crate) takes_generated_id: bool,
    /// The member understands an assignment that it must not compute.
    pub(crate) can_skip_assignment: bool,
}

impl Join {
    /// The memory that its member will take, in bytes, at least.
    pub(crate) fn bytes(&self) -> usize {
        // A generated id begins with that of the instance or the client.
        let generated = self.instance_id.as_ref().unwrap_or(&self.client_id).len();
        let id = match self.member_id.len() {
            0 => generated + 1 + Hyphenated::LENGTH,
            known => known,
        };
        size_of::<Member>()
            + id
            + self.client_id.len()
            + self.client_host.len()
            + self.instance_id.as_ref().map_or(0, |id| id.len())
            + protocols_bytes(&self.protocols)
    }
}

/// The memory of assignment protocols with their subscriptions, in bytes.
pub(super) fn protocols_bytes(protocols: &[(StrBytes, Bytes)]) -> usize {
    let held = |(name, subscription): &(StrBytes, Bytes)| {
        size_of::<(StrBytes, Bytes)>() + name.len() + subscription.len()
    };
    protocols.iter().map(held).sum()
}

/// The answer to a member that has joined, once all have.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Joined {
    pub(crate) generation: i32,
    pub(crate) protocol_type: StrBytes,
    pub(crate) protocol: StrBytes,
    pub(crate) leader: StrBytes,
    pub(crate) member_id: StrBytes,
    /// For the leader: id, instance id and subscription of every member.
    pub(crate) members: Vec<(StrBytes, Option<StrBytes>, Bytes)>,
    pub(crate) skip_assignment: bool,
}

/// The answer to a join; an error carries the member's id.
pub(crate) type JoinAnswer = Result<Joined, (ResponseError, StrBytes)>;

/// A member's request for its assignment; the leader brings everyone's.
pub(crate) struct Sync {
    pub(crate) membership: Membership,
    pub(crate) protocol_type: Option<StrBytes>,
    pub(crate) protocol: Option<StrBytes>,
    pub(crate) assignments: Vec<(StrBytes, Bytes)>,
}

impl Sync {
    /// The bytes of all assignments that a leader brings.
    pub(crate) fn bytes(&self) -> usize {
        self.assignments.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

/// The protocol's type and name, and the member's assignment.
pub(crate) type SyncAnswer = Result<(StrBytes, StrBytes, Bytes), ResponseError>;

/// The identity that a member claims.
pub(crate) struct Membership {
    pub(crate) member_id: StrBytes,
    pub(crate) instance_id: Option<StrBytes>,
    pub(crate) generation: i32,
}

/// A member that leaves: by its id, or by an instance id that an operator names.
pub(crate) struct Leaver {
    pub(crate) member_id: StrBytes,
    pub(crate) instance_id: Option<StrBytes>,
}

/// Whether a group accepts a commit.
pub(crate) type CommitCheck = Result<(), ResponseError>;

/// A group as it is described to operators.
#[derive(Default)]
pub(crate) struct Described {
    pub(crate) state: &'static str,
    pub(crate) protocol_type: StrBytes,
    pub(crate) protocol: StrBytes,
    pub(crate) members: Vec<DescribedMember>,
}

/// A member as it is described to operators.
pub(crate) struct DescribedMember {
    pub(crate) member_id: StrBytes,
    pub(crate) instance_id: Option<StrBytes>,
    pub(crate) client_id: StrBytes,
    pub(crate) client_host: StrBytes,
    pub(crate) subscription: Bytes,
    pub(crate) assignment: Bytes,
}
