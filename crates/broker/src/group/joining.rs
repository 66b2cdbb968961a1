//! How members join a group: new ones, known ones, and static ones that take over.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::member::Member;
use super::messages::{Join, JoinAnswer};
use super::state::{Group, State};

/// Assignment protocols of one member. Each is compared with each of every other member; clients
/// have two or three.
const PROTOCOLS_MAX: usize = 32;

/// How often a group logs that it refuses members for their protocols.
const REFUSAL_LOGGED_EVERY: Duration = Duration::from_secs(60);

impl Group {
    /// A member joins; it is answered when all have.
    pub(crate) fn join(
        &mut self,
        now: Instant,
        initial_delay: Duration,
        join: Join,
        answer: oneshot::Sender<JoinAnswer>,
    ) {
        if let Err((error, member_id)) = self.try_join(now, initial_delay, join, answer) {
            let (answer, error) = error;
            // The member may no longer wait.
            let _ = answer.send(Err((error, member_id)));
        }
        self.complete_join(now);
    }

    fn try_join(
        &mut self,
        now: Instant,
        initial_delay: Duration,
        join: Join,
        answer: oneshot::Sender<JoinAnswer>,
    ) -> Result<(), ((oneshot::Sender<JoinAnswer>, ResponseError), StrBytes)> {
        let refuse = |answer, error, id: &StrBytes| Err(((answer, error), id.clone()));
        if !self.accepts_protocols(&join) {
            return refuse(
                answer,
                ResponseError::InconsistentGroupProtocol,
                &join.member_id,
            );
        }
        let by_instance = join.instance_id.as_ref().and_then(|instance| {
            self.members
                .iter()
                .position(|m| m.instance_id.as_ref() == Some(instance))
        });
        let at = if join.member_id.is_empty() {
            match by_instance {
                Some(at) => return self.replace_static(now, at, join, answer),
                None => {
                    if self.len() >= self.members_max {
                        return refuse(answer, ResponseError::GroupMaxSizeReached, &join.member_id);
                    }
                    let id = new_member_id(join.instance_id.as_ref().unwrap_or(&join.client_id));
                    if join.instance_id.is_none() && join.takes_generated_id {
                        self.promised.push((id.clone(), now + join.session_timeout));
                        return refuse(answer, ResponseError::MemberIdRequired, &id);
                    }
                    self.add_member(now, id, &join)
                }
            }
        } else if let Some(at) = self.position(&join.member_id) {
            if by_instance.is_some_and(|instance| instance != at) {
                return refuse(answer, ResponseError::FencedInstanceId, &join.member_id);
            }
            at
        } else if by_instance.is_some() {
            return refuse(answer, ResponseError::FencedInstanceId, &join.member_id);
        } else if let Some(promise) = self
            .promised
            .iter()
            .position(|(id, _)| *id == join.member_id)
        {
            let (id, _) = self.promised.swap_remove(promise);
            self.add_member(now, id, &join)
        } else {
            return refuse(answer, ResponseError::UnknownMemberId, &join.member_id);
        };
        let is_new = self.members[at].protocols.is_empty();
        let changed = self.members[at].protocols != join.protocols;
        let is_leader = self.members[at].id == self.leader;
        self.update_member(now, at, join);
        match self.state {
            State::Empty => self.prepare(now, initial_delay),
            State::Preparing { .. } => {}
            // A repeated request, whose first answer was lost.
            State::Completing { .. } if !changed && !is_new => {
                let joined = self.joined(at, false);
                let _ = answer.send(Ok(joined));
                return Ok(());
            }
            State::Stable if !changed && !is_new && !is_leader => {
                let joined = self.joined(at, false);
                let _ = answer.send(Ok(joined));
                return Ok(());
            }
            State::Completing { .. } | State::Stable => self.prepare(now, Duration::ZERO),
        }
        self.members[at].joining = Some(answer);
        Ok(())
    }

    /// A static member came back under a new id.
    fn replace_static(
        &mut self,
        now: Instant,
        at: usize,
        join: Join,
        answer: oneshot::Sender<JoinAnswer>,
    ) -> Result<(), ((oneshot::Sender<JoinAnswer>, ResponseError), StrBytes)> {
        let new_id = new_member_id(join.instance_id.as_ref().unwrap_or(&join.client_id));
        let member = &mut self.members[at];
        let old_id = std::mem::replace(&mut member.id, new_id.clone());
        if let Some(old) = member.joining.take() {
            let _ = old.send(Err((ResponseError::FencedInstanceId, old_id.clone())));
        }
        if let Some(old) = member.syncing.take() {
            let _ = old.send(Err(ResponseError::FencedInstanceId));
        }
        let was_leader = self.leader == old_id;
        if was_leader {
            self.leader = new_id;
        }
        let subscription = |protocols: &[(StrBytes, Bytes)], name: &StrBytes| {
            protocols
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, bytes)| bytes.clone())
        };
        let same_subscription = subscription(&self.members[at].protocols, &self.protocol)
            == subscription(&join.protocols, &self.protocol);
        let can_skip_assignment = join.can_skip_assignment;
        self.update_member(now, at, join);
        match self.state {
            State::Stable if same_subscription => {
                let mut joined = self.joined(at, was_leader && can_skip_assignment);
                if was_leader && !can_skip_assignment {
                    // The member must not act as a leader that computes an assignment.
                    joined.leader = old_id;
                    joined.members.clear();
                }
                let _ = answer.send(Ok(joined));
                return Ok(());
            }
            State::Stable | State::Completing { .. } | State::Empty => {
                self.prepare(now, Duration::ZERO);
            }
            State::Preparing { .. } => {}
        }
        self.members[at].joining = Some(answer);
        Ok(())
    }

    fn accepts_protocols(&self, join: &Join) -> bool {
        if !(1..=PROTOCOLS_MAX).contains(&join.protocols.len()) || join.protocol_type.is_empty() {
            return false;
        }
        let mut others = self
            .members
            .iter()
            .filter(|m| m.id != join.member_id && !same_instance(m, join))
            .peekable();
        if others.peek().is_none() {
            return true;
        }
        self.protocol_type == join.protocol_type
            && join.protocols.iter().any(|(name, _)| {
                self.members
                    .iter()
                    .filter(|m| m.id != join.member_id && !same_instance(m, join))
                    .all(|member| member.protocols.iter().any(|(known, _)| known == name))
            })
    }

    /// Logs a member that the group will refuse for its protocols. Clients ask again every second.
    pub(super) fn log_refusal(&mut self, now: Instant, group: &str, join: &Join) {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= REFUSAL_LOGGED_EVERY;
        if !self.accepts_protocols(join) && self.refusal_logged_at.is_none_or(is_due) {
            self.refusal_logged_at = Some(now);
            let of_group = self.members.first().map(|member| names(&member.protocols));
            tracing::warn!(
                client = &*join.client_id,
                group,
                protocols = names(&join.protocols),
                of_group,
                "refused a group member: it has no partition.assignment.strategy in common with the group"
            );
        }
    }

    fn add_member(&mut self, now: Instant, id: StrBytes, join: &Join) -> usize {
        self.members.push(Member {
            id,
            instance_id: join.instance_id.clone(),
            client_id: join.client_id.clone(),
            client_host: join.client_host.clone(),
            session_timeout: join.session_timeout,
            rebalance_timeout: join.rebalance_timeout,
            protocols: Vec::new(),
            assignment: Bytes::new(),
            session_deadline: now + join.session_timeout,
            joining: None,
            syncing: None,
            synced: false,
        });
        self.members.len() - 1
    }

    fn update_member(&mut self, now: Instant, at: usize, join: Join) {
        if self.members.len() == 1 {
            self.protocol_type = join.protocol_type;
        }
        let member = &mut self.members[at];
        member.client_id = join.client_id;
        member.client_host = join.client_host;
        member.session_timeout = join.session_timeout;
        member.rebalance_timeout = join.rebalance_timeout;
        member.protocols = join.protocols;
        member.session_deadline = now + join.session_timeout;
    }
}

fn names(protocols: &[(StrBytes, Bytes)]) -> String {
    let names: Vec<&str> = protocols.iter().map(|(name, _)| &**name).collect();
    names.join(",")
}

pub(super) fn same_instance(member: &Member, join: &Join) -> bool {
    member.instance_id.is_some() && member.instance_id == join.instance_id
}

fn new_member_id(prefix: &str) -> StrBytes {
    StrBytes::from_string(format!("{prefix}-{}", Uuid::new_v4()))
}
