//! The state machine of one consumer group.
//!
//! ```text
//!            join                all joined, or time-out        leader's sync
//!   Empty ─────────▶ Preparing ──────────────────────▶ Completing ───────────▶ Stable
//!     ▲                  ▲  ▲                               │                    │
//!     │ no members left  │  └──── member lost or joined ────┴────────────────────┘
//!     └──────────────────┘
//! ```
//!
//! What must hold: members of one generation get assignments of that generation only; a static
//! member (one with an instance id) that comes back with the same subscription takes over its
//! predecessor's assignment immediately, and the predecessor is fenced; a member that is waiting
//! for an answer does not lose its session.
//!
//! The broker keeps no members over a restart: it rejects them as unknown, and they join again.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::protocol::StrBytes;
use tokio::sync::oneshot;

use super::joining::same_instance;
use super::member::Member;
use super::messages::{
    CommitCheck, Described, DescribedMember, Join, Joined, Leaver, Membership, Sync, SyncAnswer,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Empty,
    Preparing {
        /// No join is answered before this, so that members that start together share a generation.
        not_before: Instant,
        /// Members that have not joined by then are left out.
        deadline: Instant,
    },
    Completing {
        /// Members that have not asked for their assignment by then are left out.
        deadline: Instant,
    },
    Stable,
}

pub(crate) struct Group {
    pub(super) state: State,
    generation: i32,
    pub(super) protocol_type: StrBytes,
    pub(super) protocol: StrBytes,
    pub(super) leader: StrBytes,
    pub(super) members: Vec<Member>,
    /// Ids that were issued and not used yet, with their expiry.
    pub(super) promised: Vec<(StrBytes, Instant)>,
    pub(super) members_max: usize,
    pub(super) refusal_logged_at: Option<Instant>,
}

impl Group {
    pub(crate) fn new(members_max: usize) -> Self {
        Self {
            state: State::Empty,
            generation: 0,
            protocol_type: StrBytes::new(),
            protocol: StrBytes::new(),
            leader: StrBytes::new(),
            members: Vec::new(),
            promised: Vec::new(),
            members_max,
            refusal_logged_at: None,
        }
    }

    /// How many members it has, present and promised.
    pub(crate) fn len(&self) -> usize {
        self.members.len() + self.promised.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its memory and that of its members, present and promised, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = [&self.protocol_type, &self.protocol, &self.leader];
        let promised = self.promised.iter().map(|(id, _)| id.len());
        size_of::<Self>()
            + texts.map(|text| text.len()).iter().sum::<usize>()
            + self.members.capacity() * size_of::<Member>()
            + self.members.iter().map(Member::bytes).sum::<usize>()
            + self.promised.capacity() * size_of::<(StrBytes, Instant)>()
            + promised.sum::<usize>()
    }

    /// The memory of the member that joins again by `join`, without its assignment; 0 if it is
    /// unknown.
    pub(crate) fn bytes_of(&self, join: &Join) -> usize {
        let known = self
            .members
            .iter()
            .find(|member| member.id == join.member_id || same_instance(member, join));
        known.map_or(0, |known| {
            size_of::<Member>() + known.bytes() - known.assignment.len()
        })
    }

    /// A member asks for its assignment; the leader brings all of them.
    /// `room` is how many bytes of memory these may take.
    pub(crate) fn sync(
        &mut self,
        now: Instant,
        sync: Sync,
        room: usize,
        answer: oneshot::Sender<SyncAnswer>,
    ) {
        let at = match self.member(&sync.membership) {
            Ok(at) => at,
            Err(error) => {
                let _ = answer.send(Err(error));
                return;
            }
        };
        if sync.assignments.len() > self.members_max {
            let _ = answer.send(Err(ResponseError::InvalidRequest));
            return;
        }
        let differs = |given: &Option<StrBytes>, ours: &StrBytes| {
            given.as_ref().is_some_and(|given| given != ours)
        };
        if differs(&sync.protocol_type, &self.protocol_type)
            || differs(&sync.protocol, &self.protocol)
        {
            let _ = answer.send(Err(ResponseError::InconsistentGroupProtocol));
            return;
        }
        self.members[at].session_deadline = now + self.members[at].session_timeout;
        match self.state {
            State::Empty => {
                let _ = answer.send(Err(ResponseError::UnknownMemberId));
            }
            State::Preparing { .. } => {
                let _ = answer.send(Err(ResponseError::RebalanceInProgress));
            }
            State::Stable => {
                let _ = answer.send(Ok(self.assignment(at)));
            }
            State::Completing { .. }
                if self.members[at].id == self.leader && sync.bytes() > room =>
            {
                tracing::warn!(
                    "refused the assignments of a group: the memory for members is used up"
                );
                let _ = answer.send(Err(ResponseError::CoordinatorNotAvailable));
            }
            State::Completing { .. } => {
                self.members[at].syncing = Some(answer);
                self.members[at].synced = true;
                if self.members[at].id == self.leader {
                    for member in &mut self.members {
                        let given = sync.assignments.iter().find(|(id, _)| *id == member.id);
                        member.assignment = given.map_or(Bytes::new(), |(_, bytes)| bytes.clone());
                    }
                    self.state = State::Stable;
                    for at in 0..self.members.len() {
                        let assignment = self.assignment(at);
                        let member = &mut self.members[at];
                        if let Some(waiting) = member.syncing.take() {
                            member.session_deadline = now + member.session_timeout;
                            let _ = waiting.send(Ok(assignment));
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn heartbeat(
        &mut self,
        now: Instant,
        membership: &Membership,
    ) -> Result<(), ResponseError> {
        let at = self.member(membership)?;
        self.members[at].session_deadline = now + self.members[at].session_timeout;
        match self.state {
            State::Empty => Err(ResponseError::UnknownMemberId),
            State::Preparing { .. } => Err(ResponseError::RebalanceInProgress),
            State::Completing { .. } | State::Stable => Ok(()),
        }
    }

    pub(crate) fn leave(&mut self, now: Instant, leaver: &Leaver) -> Result<(), ResponseError> {
        if let Some(at) = self
            .promised
            .iter()
            .position(|(id, _)| *id == leaver.member_id)
        {
            self.promised.swap_remove(at);
            self.complete_join(now);
            return Ok(());
        }
        let at = match &leaver.instance_id {
            Some(instance) => {
                let at = self
                    .members
                    .iter()
                    .position(|member| member.instance_id.as_ref() == Some(instance))
                    .ok_or(ResponseError::UnknownMemberId)?;
                if !leaver.member_id.is_empty() && self.members[at].id != leaver.member_id {
                    return Err(ResponseError::FencedInstanceId);
                }
                at
            }
            None => self
                .position(&leaver.member_id)
                .ok_or(ResponseError::UnknownMemberId)?,
        };
        self.remove(now, at);
        Ok(())
    }

    /// Whether this member may commit offsets.
    pub(crate) fn check_commit(&mut self, now: Instant, membership: &Membership) -> CommitCheck {
        // A consumer that assigns its own partitions is no member.
        if membership.generation < 0 && membership.member_id.is_empty() && self.members.is_empty() {
            return Ok(());
        }
        let at = self.member(membership)?;
        self.members[at].session_deadline = now + self.members[at].session_timeout;
        match self.state {
            State::Completing { .. } => Err(ResponseError::RebalanceInProgress),
            State::Empty => Err(ResponseError::UnknownMemberId),
            State::Preparing { .. } | State::Stable => Ok(()),
        }
    }

    /// Applies the time-outs that are due.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.promised.retain(|&(_, until)| until > now);
        let expired = |member: &Member| {
            member.joining.is_none() && member.syncing.is_none() && member.session_deadline <= now
        };
        while let Some(at) = self.members.iter().position(expired) {
            tracing::info!(member = %self.members[at].id, "a group member's session timed out");
            self.remove(now, at);
        }
        if let State::Completing { deadline } = self.state
            && deadline <= now
        {
            while let Some(at) = self.members.iter().position(|member| !member.synced) {
                self.remove(now, at);
            }
        }
        self.complete_join(now);
    }

    /// When [`Group::tick`] is next needed.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let state = match self.state {
            State::Preparing {
                not_before,
                deadline,
            } => {
                let all = self.members.iter().all(|member| member.joining.is_some())
                    && self.promised.is_empty();
                Some(if all {
                    not_before.min(deadline)
                } else {
                    deadline
                })
            }
            State::Completing { deadline } => Some(deadline),
            State::Empty | State::Stable => None,
        };
        let sessions = self
            .members
            .iter()
            .filter(|member| member.joining.is_none() && member.syncing.is_none())
            .map(|member| member.session_deadline);
        let promises = self.promised.iter().map(|&(_, until)| until);
        state.into_iter().chain(sessions).chain(promises).min()
    }

    /// The group as operators see it.
    pub(crate) fn describe(&self) -> Described {
        let state = match self.state {
            State::Empty => "Empty",
            State::Preparing { .. } => "PreparingRebalance",
            State::Completing { .. } => "CompletingRebalance",
            State::Stable => "Stable",
        };
        let members = self.members.iter().map(|member| DescribedMember {
            member_id: member.id.clone(),
            instance_id: member.instance_id.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            subscription: self.subscription(member),
            assignment: member.assignment.clone(),
        });
        Described {
            state,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            members: members.collect(),
        }
    }

    pub(super) fn position(&self, id: &StrBytes) -> Option<usize> {
        self.members.iter().position(|member| member.id == *id)
    }

    /// The member that `membership` names, if its claim is valid.
    fn member(&self, membership: &Membership) -> Result<usize, ResponseError> {
        if let Some(instance) = &membership.instance_id {
            let holder = self
                .members
                .iter()
                .find(|m| m.instance_id.as_ref() == Some(instance));
            match holder {
                None => return Err(ResponseError::UnknownMemberId),
                Some(holder) if holder.id != membership.member_id => {
                    return Err(ResponseError::FencedInstanceId);
                }
                Some(_) => {}
            }
        }
        let at = self
            .position(&membership.member_id)
            .ok_or(ResponseError::UnknownMemberId)?;
        if membership.generation != self.generation {
            return Err(ResponseError::IllegalGeneration);
        }
        Ok(at)
    }

    fn remove(&mut self, now: Instant, at: usize) {
        let member = self.members.remove(at);
        if let Some(waiting) = member.joining {
            let _ = waiting.send(Err((ResponseError::UnknownMemberId, member.id)));
        }
        if let Some(waiting) = member.syncing {
            let _ = waiting.send(Err(ResponseError::UnknownMemberId));
        }
        match self.state {
            State::Stable | State::Completing { .. } => self.prepare(now, Duration::ZERO),
            State::Empty | State::Preparing { .. } => {}
        }
        self.complete_join(now);
    }

    /// Begins a rebalance.
    pub(super) fn prepare(&mut self, now: Instant, delay: Duration) {
        for member in &mut self.members {
            if let Some(waiting) = member.syncing.take() {
                let _ = waiting.send(Err(ResponseError::RebalanceInProgress));
                member.session_deadline = now + member.session_timeout;
            }
        }
        let timeout = self.rebalance_timeout();
        self.state = State::Preparing {
            not_before: now + delay,
            deadline: now + timeout.max(delay),
        };
    }

    fn rebalance_timeout(&self) -> Duration {
        self.members
            .iter()
            .map(|m| m.rebalance_timeout)
            .max()
            .unwrap_or(Duration::ZERO)
    }

    /// Ends the joining phase if all have joined or the time is over.
    pub(super) fn complete_join(&mut self, now: Instant) {
        let State::Preparing {
            not_before,
            deadline,
        } = self.state
        else {
            return;
        };
        let all_joined =
            self.promised.is_empty() && self.members.iter().all(|member| member.joining.is_some());
        if !(deadline <= now || (all_joined && not_before <= now)) {
            return;
        }
        // An absent static member keeps its place until its session ends.
        self.members
            .retain(|member| member.joining.is_some() || member.instance_id.is_some());
        let Some(first) = self.members.iter().find(|member| member.joining.is_some()) else {
            if self.members.is_empty() {
                self.state = State::Empty;
                self.generation += 1;
                self.leader = StrBytes::new();
            } else {
                // No member can lead: wait for one to join, or for the sessions to end.
                let deadline = now + self.rebalance_timeout().max(Duration::from_millis(100));
                self.state = State::Preparing {
                    not_before,
                    deadline,
                };
            }
            return;
        };
        let led = self
            .members
            .iter()
            .any(|m| m.joining.is_some() && m.id == self.leader);
        if !led {
            self.leader = first.id.clone();
        }
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.protocol = self.elect_protocol();
        self.state = State::Completing {
            deadline: now + self.rebalance_timeout(),
        };
        for at in 0..self.members.len() {
            let joined = self.joined(at, false);
            let member = &mut self.members[at];
            member.assignment = Bytes::new();
            member.synced = false;
            if let Some(waiting) = member.joining.take() {
                member.session_deadline = now + member.session_timeout;
                let _ = waiting.send(Ok(joined));
            } else {
                member.synced = true;
            }
        }
    }

    /// Of the protocols that all members support, the one that most members prefer.
    fn elect_protocol(&self) -> StrBytes {
        let common = |name: &StrBytes| {
            self.members
                .iter()
                .all(|m| m.protocols.iter().any(|(known, _)| known == name))
        };
        let mut votes: Vec<(&StrBytes, usize)> = Vec::new();
        for member in &self.members {
            if let Some((best, _)) = member.protocols.iter().find(|(name, _)| common(name)) {
                match votes.iter_mut().find(|(name, _)| *name == best) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((best, 1)),
                }
            }
        }
        let most = votes.iter().map(|&(_, count)| count).max();
        let elected = votes.iter().find(|&&(_, count)| Some(count) == most);
        elected.map(|&(name, _)| name.clone()).unwrap_or_default()
    }

    pub(super) fn joined(&self, at: usize, skip_assignment: bool) -> Joined {
        let member = &self.members[at];
        let members = if member.id == self.leader {
            self.members
                .iter()
                .map(|m| (m.id.clone(), m.instance_id.clone(), self.subscription(m)))
                .collect()
        } else {
            Vec::new()
        };
        Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            member_id: member.id.clone(),
            members,
            skip_assignment,
        }
    }

    fn subscription(&self, member: &Member) -> Bytes {
        let known = member
            .protocols
            .iter()
            .find(|(name, _)| *name == self.protocol);
        known.map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }

    fn assignment(&self, at: usize) -> (StrBytes, StrBytes, Bytes) {
        let assignment = self.members[at].assignment.clone();
        (
            self.protocol_type.clone(),
            self.protocol.clone(),
            assignment,
        )
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
