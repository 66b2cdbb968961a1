//! Consumer groups: requests of members, and what operators see and do.

use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    GroupId, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse, SyncGroupRequest,
    SyncGroupResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::{Call, NO_OPERATIONS, Reply, each_once};
use crate::access::Action;
use crate::frame::Frame;
use crate::group::{Join, JoinAnswer, Leaver, Membership, Sync, SyncAnswer};
use crate::meta::MetaError;
use waybill_wire::Malformed;
use waybill_wire::OK;

/// The longest session and rebalance time-outs, in milliseconds: 30 minutes, as in Kafka.
const SESSION_MS_MAX: i32 = 30 * 60 * 1000;

/// The longest name of a group, and of a kind of assignment protocols.
const NAME_BYTES_MAX: usize = 1024;

/// A member joins and is answered when all have.
pub(super) fn join(
    call: Call,
    client_id: &StrBytes,
    request: JoinGroupRequest,
) -> Result<Reply, Malformed> {
    let version = call.head.version;
    let refused = |error: ResponseError, member_id: StrBytes| {
        answer_join(&call, Err((error, member_id))).map(Reply::Now)
    };
    if !(1..=NAME_BYTES_MAX).contains(&request.group_id.len()) {
        return refused(ResponseError::InvalidGroupId, request.member_id);
    }
    if request.protocol_type.len() > NAME_BYTES_MAX {
        return refused(ResponseError::InconsistentGroupProtocol, request.member_id);
    }
    if let Err(error) = call.may_use_group(&request.group_id) {
        return refused(error, request.member_id);
    }
    if !(1..=SESSION_MS_MAX).contains(&request.session_timeout_ms) {
        return refused(ResponseError::InvalidSessionTimeout, request.member_id);
    }
    let rebalance_ms = if version >= 1 {
        request.rebalance_timeout_ms.clamp(1, SESSION_MS_MAX)
    } else {
        request.session_timeout_ms
    };
    let millis = |ms: i32| Duration::from_millis(u64::from(ms.unsigned_abs()));
    let member_id = owned(&request.member_id);
    let join = Join {
        member_id: member_id.clone(),
        instance_id: request.group_instance_id.as_ref().map(owned),
        client_id: owned(client_id),
        client_host: StrBytes::from_string(format!("/{}", call.ends.peer.ip())),
        session_timeout: millis(request.session_timeout_ms),
        rebalance_timeout: millis(rebalance_ms),
        protocol_type: owned(&request.protocol_type),
        protocols: request
            .protocols
            .iter()
            .map(|protocol| (owned(&protocol.name), protocol.metadata.to_vec().into()))
            .collect(),
        takes_generated_id: version >= 4,
        can_skip_assignment: version >= 9,
    };
    let Some(mut answered) = call.server.coordinator.join(&request.group_id, join) else {
        return refused(ResponseError::GroupMaxSizeReached, member_id);
    };
    if let Ok(answer) = answered.try_recv() {
        return answer_join(&call, answer).map(Reply::Now);
    }
    Ok(Reply::Later(Box::pin(async move {
        let stopping = call.server.stopping.clone();
        let gone = Err((ResponseError::CoordinatorNotAvailable, member_id));
        let answer = tokio::select! {
            answer = answered => answer.unwrap_or(gone),
            () = stopping.cancelled() => gone,
        };
        answer_join(&call, answer).map(Frame::from)
    })))
}

fn answer_join(call: &Call, answer: JoinAnswer) -> Result<bytes::Bytes, Malformed> {
    let version = call.head.version;
    let response = match answer {
        Ok(joined) => {
            let members = joined
                .members
                .into_iter()
                .map(|(id, instance, subscription)| {
                    let member = JoinGroupResponseMember::default()
                        .with_member_id(id)
                        .with_metadata(subscription);
                    if version >= 5 {
                        member.with_group_instance_id(instance)
                    } else {
                        member
                    }
                });
            let response = JoinGroupResponse::default()
                .with_generation_id(joined.generation)
                .with_protocol_name(Some(joined.protocol))
                .with_leader(joined.leader)
                .with_member_id(joined.member_id)
                .with_members(members.collect());
            let response = if version >= 7 {
                response.with_protocol_type(Some(joined.protocol_type))
            } else {
                response
            };
            if version >= 9 {
                response.with_skip_assignment(joined.skip_assignment)
            } else {
                response
            }
        }
        Err((error, member_id)) => JoinGroupResponse::default()
            .with_error_code(error.code())
            .with_generation_id(-1)
            .with_protocol_name((version < 7).then(StrBytes::new))
            .with_member_id(member_id),
    };
    call.head.answer(&response)
}

/// A member gets its assignment when the leader has brought it.
pub(super) fn sync(call: Call, request: SyncGroupRequest) -> Result<Reply, Malformed> {
    if let Err(error) = call.may_use_group(&request.group_id) {
        return answer_sync(&call, Err(error)).map(Reply::Now);
    }
    let sync = Sync {
        membership: membership(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
        ),
        protocol_type: request.protocol_type,
        protocol: request.protocol_name,
        assignments: request
            .assignments
            .into_iter()
            .map(|assigned| (assigned.member_id, assigned.assignment.to_vec().into()))
            .collect(),
    };
    let mut answered = call.server.coordinator.sync(&request.group_id, sync);
    if let Ok(answer) = answered.try_recv() {
        return answer_sync(&call, answer).map(Reply::Now);
    }
    Ok(Reply::Later(Box::pin(async move {
        let stopping = call.server.stopping.clone();
        let gone = Err(ResponseError::CoordinatorNotAvailable);
        let answer = tokio::select! {
            answer = answered => answer.unwrap_or(gone),
            () = stopping.cancelled() => gone,
        };
        answer_sync(&call, answer).map(Frame::from)
    })))
}

fn answer_sync(call: &Call, answer: SyncAnswer) -> Result<bytes::Bytes, Malformed> {
    let response = match answer {
        Ok((protocol_type, protocol, assignment)) => {
            let response = SyncGroupResponse::default().with_assignment(assignment);
            if call.head.version >= 5 {
                response
                    .with_protocol_type(Some(protocol_type))
                    .with_protocol_name(Some(protocol))
            } else {
                response
            }
        }
        Err(error) => SyncGroupResponse::default().with_error_code(error.code()),
    };
    call.head.answer(&response)
}

pub(super) fn heartbeat(call: &Call, request: &HeartbeatRequest) -> HeartbeatResponse {
    let member = membership(
        request.member_id.clone(),
        request.group_instance_id.clone(),
        request.generation_id,
    );
    let alive = call.may_use_group(&request.group_id).and_then(|()| {
        call.server
            .coordinator
            .heartbeat(&request.group_id, &member)
    });
    HeartbeatResponse::default().with_error_code(code_of(alive))
}

pub(super) fn leave(call: &Call, request: LeaveGroupRequest) -> LeaveGroupResponse {
    let allowed = call.may_use_group(&request.group_id);
    let leave = |member_id, instance_id| {
        let leaver = Leaver {
            member_id,
            instance_id,
        };
        let left = allowed.and_then(|()| call.server.coordinator.leave(&request.group_id, &leaver));
        code_of(left)
    };
    if call.head.version < 3 {
        let code = leave(request.member_id.clone(), None);
        return LeaveGroupResponse::default().with_error_code(code);
    }
    let members = request.members.iter().map(|member| {
        let code = leave(member.member_id.clone(), member.group_instance_id.clone());
        MemberResponse::default()
            .with_member_id(member.member_id.clone())
            .with_group_instance_id(member.group_instance_id.clone())
            .with_error_code(code)
    });
    LeaveGroupResponse::default().with_members(members.collect())
}

/// Groups as operators see them.
pub(super) fn describe(call: &Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse {
    let server = &*call.server;
    let groups = each_once(request.groups, Clone::clone);
    let groups = groups.into_iter().map(|group| {
        let answer = DescribedGroup::default().with_authorized_operations(NO_OPERATIONS);
        if let Err(error) = call.may_use_group(&group) {
            return answer.with_error_code(error.code()).with_group_id(group);
        }
        let answer = match server.coordinator.describe(&group) {
            Some(described) => {
                let members = described.members.into_iter().map(|member| {
                    DescribedGroupMember::default()
                        .with_member_id(member.member_id)
                        .with_group_instance_id(member.instance_id)
                        .with_client_id(member.client_id)
                        .with_client_host(member.client_host)
                        .with_member_metadata(member.subscription)
                        .with_member_assignment(member.assignment)
                });
                answer
                    .with_group_state(StrBytes::from_static_str(described.state))
                    .with_protocol_type(described.protocol_type)
                    .with_protocol_data(described.protocol)
                    .with_members(members.collect())
            }
            None => {
                let has_offsets = server
                    .meta
                    .offsets(&group)
                    .is_ok_and(|found| !found.is_empty());
                let state = if has_offsets { "Empty" } else { "Dead" };
                answer.with_group_state(StrBytes::from_static_str(state))
            }
        };
        answer.with_group_id(group)
    });
    DescribeGroupsResponse::default().with_groups(groups.collect())
}

pub(super) fn list(call: &Call, request: &ListGroupsRequest) -> ListGroupsResponse {
    let (server, version) = (&*call.server, call.head.version);
    let mut found: Vec<(Arc<str>, &'static str, StrBytes)> = server
        .coordinator
        .list()
        .into_iter()
        .map(|(name, group)| (name, group.state, group.protocol_type))
        .collect();
    match server.meta.groups() {
        Ok(stored) => {
            for name in stored {
                if !found.iter().any(|(known, _, _)| **known == *name) {
                    let consumer = StrBytes::from_static_str("consumer");
                    found.push((name.into(), "Empty", consumer));
                }
            }
        }
        Err(error) => {
            return ListGroupsResponse::default().with_error_code(storage_failed(&error).code());
        }
    }
    let wanted = |state: &str| {
        request.states_filter.is_empty() || request.states_filter.iter().any(|s| **s == *state)
    };
    found.retain(|(name, state, _)| wanted(state) && call.sees(Action::Group(name)));
    let groups = found.into_iter().map(|(name, state, protocol_type)| {
        let group = ListedGroup::default()
            .with_group_id(GroupId(StrBytes::from_string(name.to_string())))
            .with_protocol_type(protocol_type);
        if version >= 4 {
            group.with_group_state(StrBytes::from_static_str(state))
        } else {
            group
        }
    });
    ListGroupsResponse::default().with_groups(groups.collect())
}

/// Forgets groups that have no members.
pub(super) fn delete(call: &Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse {
    let server = &*call.server;
    let allowed = call.may_administer(ResponseError::GroupAuthorizationFailed);
    let results = request.groups_names.into_iter().map(|group| {
        let code = if let Err(refused) = &allowed {
            refused.error.code()
        } else if server.coordinator.describe(&group).is_some() {
            ResponseError::NonEmptyGroup.code()
        } else {
            match server.meta.remove_group(&group) {
                Ok(true) => OK,
                Ok(false) => ResponseError::GroupIdNotFound.code(),
                Err(error) => storage_failed(&error).code(),
            }
        };
        DeletableGroupResult::default()
            .with_group_id(group)
            .with_error_code(code)
    });
    DeleteGroupsResponse::default().with_results(results.collect())
}

pub(super) fn membership(
    member_id: StrBytes,
    instance_id: Option<StrBytes>,
    generation: i32,
) -> Membership {
    Membership {
        member_id,
        instance_id,
        generation,
    }
}

/// A copy that does not hold the request's whole frame in memory.
fn owned(text: &StrBytes) -> StrBytes {
    StrBytes::from_string(text.to_string())
}

pub(super) fn code_of(outcome: Result<(), ResponseError>) -> i16 {
    outcome.map_or_else(|error| error.code(), |()| OK)
}

pub(super) fn storage_failed(error: &MetaError) -> ResponseError {
    tracing::error!(%error, "committed offsets cannot be read");
    ResponseError::KafkaStorageError
}
