//! What members say to a group, and what they are told.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;

/// What a member says when it joins.
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
    /// The member can take a generated id and come back with it.
    pub(crate) takes_generated_id: bool,
    /// The member understands an assignment that it must not compute.
    pub(crate) can_skip_assignment: bool,
}

/// What a member is told when all have joined.
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

/// What a member says when it asks for its assignment; the leader brings everyone's.
pub(crate) struct Sync {
    pub(crate) membership: Membership,
    pub(crate) protocol_type: Option<StrBytes>,
    pub(crate) protocol: Option<StrBytes>,
    pub(crate) assignments: Vec<(StrBytes, Bytes)>,
}

/// The protocol's type and name, and the member's assignment.
pub(crate) type SyncAnswer = Result<(StrBytes, StrBytes, Bytes), ResponseError>;

/// Who a member says it is.
pub(crate) struct Membership {
    pub(crate) member_id: StrBytes,
    pub(crate) instance_id: Option<StrBytes>,
    pub(crate) generation: i32,
}

/// A member that leaves: by its id, or an operator names an instance id.
pub(crate) struct Leaver {
    pub(crate) member_id: StrBytes,
    pub(crate) instance_id: Option<StrBytes>,
}

/// Whether a group takes a commit.
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
