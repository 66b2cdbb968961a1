//! All consumer groups, and the task that drives their time-outs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kafka_protocol::error::ResponseError;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::messages::{
    CommitCheck, Described, Join, JoinAnswer, Leaver, Membership, Sync, SyncAnswer,
};
use super::state::Group;
use crate::locked;

/// The groups that have members. Committed offsets are kept elsewhere.
pub(crate) struct Coordinator {
    groups: Mutex<Groups>,
    /// Signals that a time-out may have come nearer.
    changed: Notify,
    limits: GroupLimits,
}

/// The limits of consumer groups.
pub(crate) struct GroupLimits {
    /// How long the first member of an empty group waits for others.
    pub(crate) initial_delay: Duration,
    /// Groups with members.
    pub(crate) groups_max: usize,
    /// Members of a group.
    pub(crate) members_max: usize,
    /// Memory of all groups, in bytes, as [`Group::bytes`] counts it. Members may join up to three
    /// quarters of it; the last quarter is for assignments, so that existing groups continue.
    pub(crate) bytes_max: usize,
}

#[derive(Default)]
struct Groups {
    by_name: HashMap<Arc<str>, Group>,
    /// The sum of [`bytes_of`].
    bytes: usize,
}

impl Groups {
    /// Changes a group and counts its memory again; a group without members ends. `None` if there
    /// is no such group.
    fn change<T>(&mut self, name: &str, change: impl FnOnce(&mut Group) -> T) -> Option<T> {
        let group = self.by_name.get_mut(name)?;
        let before = bytes_of(name, group);
        let changed = change(group);
        let mut after = bytes_of(name, group);
        if group.is_empty() {
            self.by_name.remove(name);
            after = 0;
        }
        self.bytes = (self.bytes + after).saturating_sub(before);
        Some(changed)
    }

    /// Adds a group without members. The next [`Groups::change`] removes it again if none joins.
    fn add(&mut self, name: &str, group: Group) {
        self.bytes += bytes_of(name, &group);
        self.by_name.insert(name.into(), group);
    }
}

/// The memory of a group and its name, in bytes.
fn bytes_of(name: &str, group: &Group) -> usize {
    name.len() + group.bytes()
}

impl Coordinator {
    pub(crate) fn new(limits: GroupLimits) -> Self {
        Self {
            groups: Mutex::default(),
            changed: Notify::new(),
            limits,
        }
    }

    /// A member joins `group`, which begins with its first member. `None` if there are too many
    /// groups, or their members hold too much memory.
    pub(crate) fn join(&self, group: &str, join: Join) -> Option<oneshot::Receiver<JoinAnswer>> {
        let (answer, answered) = oneshot::channel();
        let mut groups = locked(&self.groups);
        let known = groups.by_name.get(group);
        if known.is_none() && groups.by_name.len() >= self.limits.groups_max {
            return None;
        }
        let new = Group::new(self.limits.members_max);
        let (needed, replaced) = match known {
            Some(known) => (join.bytes(), known.bytes_of(&join)),
            None => (join.bytes() + bytes_of(group, &new), 0),
        };
        let allowed = self.limits.bytes_max / 4 * 3;
        if needed > replaced && groups.bytes - replaced + needed > allowed {
            tracing::warn!(
                group,
                "refused a group member: the memory for members is used up"
            );
            return None;
        }
        if known.is_none() {
            groups.add(group, new);
        }
        groups.change(group, |state| {
            let now = Instant::now();
            state.log_refusal(now, group, &join);
            state.join(now, self.limits.initial_delay, join, answer);
        });
        drop(groups);
        self.changed.notify_one();
        Some(answered)
    }

    /// A member asks for its assignment.
    pub(crate) fn sync(&self, group: &str, sync: Sync) -> oneshot::Receiver<SyncAnswer> {
        let (answer, answered) = oneshot::channel();
        let mut groups = locked(&self.groups);
        let room = self.limits.bytes_max.saturating_sub(groups.bytes);
        if groups.by_name.contains_key(group) {
            groups.change(group, |state| {
                state.sync(Instant::now(), sync, room, answer)
            });
        } else {
            let _ = answer.send(Err(ResponseError::UnknownMemberId));
        }
        drop(groups);
        self.changed.notify_one();
        answered
    }

    pub(crate) fn heartbeat(&self, group: &str, member: &Membership) -> Result<(), ResponseError> {
        match locked(&self.groups).by_name.get_mut(group) {
            Some(state) => state.heartbeat(Instant::now(), member),
            None => Err(ResponseError::UnknownMemberId),
        }
    }

    /// A member leaves; the group ends with its last member.
    pub(crate) fn leave(&self, group: &str, leaver: &Leaver) -> Result<(), ResponseError> {
        let left = locked(&self.groups).change(group, |state| state.leave(Instant::now(), leaver));
        self.changed.notify_one();
        left.unwrap_or(Err(ResponseError::UnknownMemberId))
    }

    /// Whether offsets of `group` may be committed by this member.
    pub(crate) fn check_commit(&self, group: &str, member: &Membership) -> CommitCheck {
        match locked(&self.groups).by_name.get_mut(group) {
            Some(state) => state.check_commit(Instant::now(), member),
            None if member.generation < 0 => Ok(()),
            None => Err(ResponseError::UnknownMemberId),
        }
    }

    /// The group as operators see it; `None` if it has no members.
    pub(crate) fn describe(&self, group: &str) -> Option<Described> {
        locked(&self.groups).by_name.get(group).map(Group::describe)
    }

    /// How many groups have members, how many the largest has, and what all of them hold in memory,
    /// in bytes.
    pub(crate) fn totals(&self) -> (usize, usize, usize) {
        let groups = locked(&self.groups);
        let most = groups.by_name.values().map(Group::len).max();
        (groups.by_name.len(), most.unwrap_or(0), groups.bytes)
    }

    /// The groups that have members.
    pub(crate) fn list(&self) -> Vec<(Arc<str>, Described)> {
        let groups = locked(&self.groups);
        groups
            .by_name
            .iter()
            .map(|(name, group)| (Arc::clone(name), group.describe()))
            .collect()
    }

    /// Applies time-outs as they come due, until `stopping`.
    pub(crate) async fn run(&self, stopping: CancellationToken) {
        loop {
            let next = locked(&self.groups)
                .by_name
                .values()
                .filter_map(Group::next_deadline)
                .min();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.changed.notified() => {}
                () = stopping.cancelled() => return,
            }
            let now = Instant::now();
            let mut groups = locked(&self.groups);
            let is_due = |group: &Group| group.next_deadline().is_some_and(|at| at <= now);
            let due: Vec<Arc<str>> = groups
                .by_name
                .iter()
                .filter(|(_, group)| is_due(group))
                .map(|(name, _)| Arc::clone(name))
                .collect();
            for name in due {
                groups.change(&name, |group| group.tick(now));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kafka_protocol::protocol::StrBytes;

    use super::*;

    const MIB: usize = 1 << 20;

    fn coordinator(bytes_max: usize) -> Coordinator {
        Coordinator::new(GroupLimits {
            initial_delay: Duration::ZERO,
            groups_max: 10,
            members_max: 10,
            bytes_max,
        })
    }

    fn join(member_id: &StrBytes, subscription: usize) -> Join {
        Join {
            member_id: member_id.clone(),
            instance_id: None,
            client_id: StrBytes::from_static_str("client"),
            client_host: StrBytes::from_static_str("/127.0.0.1"),
            session_timeout: Duration::from_secs(60),
            rebalance_timeout: Duration::from_secs(60),
            protocol_type: StrBytes::from_static_str("consumer"),
            protocols: vec![(
                StrBytes::from_static_str("range"),
                Bytes::from(vec![0; subscription]),
            )],
            takes_generated_id: false,
            can_skip_assignment: true,
        }
    }

    /// Joins and returns the member's id and the group's generation.
    fn joined(coordinator: &Coordinator, group: &str, join: Join) -> (StrBytes, i32) {
        let mut answered = coordinator.join(group, join).expect("there is room");
        let joined = answered.try_recv().unwrap().unwrap();
        (joined.member_id, joined.generation)
    }

    /// A leader's request with these assignments.
    fn sync_of(leader: &StrBytes, generation: i32, assignments: Vec<(StrBytes, Bytes)>) -> Sync {
        Sync {
            membership: Membership {
                member_id: leader.clone(),
                instance_id: None,
                generation,
            },
            protocol_type: None,
            protocol: None,
            assignments,
        }
    }

    #[test]
    fn the_members_of_all_groups_share_one_memory_limit() {
        let coordinator = coordinator(4 * MIB);
        let anew = StrBytes::new();
        let (first, _) = joined(&coordinator, "a", join(&anew, 2 * MIB));
        joined(&coordinator, "b", join(&anew, MIB / 2));
        assert!(coordinator.join("c", join(&anew, MIB)).is_none());
        assert_eq!(
            coordinator.totals().0,
            2,
            "a refused member leaves no group"
        );

        // The memory that a known member held is not counted when it joins again.
        joined(&coordinator, "a", join(&first, 2 * MIB + MIB / 4));

        let leaver = Leaver {
            member_id: first,
            instance_id: None,
        };
        coordinator.leave("a", &leaver).unwrap();
        joined(&coordinator, "c", join(&anew, MIB));
    }

    #[test]
    fn assignments_count_like_subscriptions() {
        let coordinator = coordinator(2 * MIB);
        let (leader, generation) = joined(&coordinator, "a", join(&StrBytes::new(), MIB));
        let sync = |bytes: usize| {
            let assignments = vec![(leader.clone(), Bytes::from(vec![0; bytes]))];
            let sync = sync_of(&leader, generation, assignments);
            coordinator.sync("a", sync).try_recv().unwrap()
        };
        assert_eq!(sync(MIB), Err(ResponseError::CoordinatorNotAvailable));
        assert!(sync(MIB / 2).is_ok());
        assert!(coordinator.join("b", join(&StrBytes::new(), MIB)).is_none());
    }

    #[test]
    fn exhausted_group_memory_does_not_stop_existing_groups() {
        let coordinator = coordinator(2 * MIB);
        let anew = StrBytes::new();
        let (member, _) = joined(&coordinator, "a", join(&anew, MIB));
        joined(&coordinator, "b", join(&anew, MIB / 4 + MIB / 8));
        assert!(coordinator.join("c", join(&anew, MIB / 4)).is_none());
        let (_, generation) = joined(&coordinator, "a", join(&member, MIB));
        let assignments = vec![(member.clone(), Bytes::from(vec![0; MIB / 4]))];
        let sync = sync_of(&member, generation, assignments);
        assert!(coordinator.sync("a", sync).try_recv().unwrap().is_ok());
    }

    #[test]
    fn names_count_and_ended_groups_release_their_memory() {
        let coordinator = coordinator(2 * MIB);
        let name = "g".repeat(MIB / 2);
        let mut ids = Vec::new();
        for at in 0..2 {
            let (id, _) = joined(
                &coordinator,
                &format!("{name}{at}"),
                join(&StrBytes::new(), 0),
            );
            ids.push(id);
        }
        assert!(coordinator.totals().2 > MIB);
        for (at, member_id) in ids.into_iter().enumerate() {
            let leaver = Leaver {
                member_id,
                instance_id: None,
            };
            coordinator.leave(&format!("{name}{at}"), &leaver).unwrap();
        }
        assert_eq!(coordinator.totals(), (0, 0, 0));
    }

    #[test]
    fn promised_ids_count() {
        let coordinator = coordinator(MIB);
        let promised = |group| {
            coordinator.join(
                group,
                Join {
                    client_id: StrBytes::from_string("c".repeat(MIB / 8)),
                    takes_generated_id: true,
                    ..join(&StrBytes::new(), 0)
                },
            )
        };
        let taken = (0..10).take_while(|_| promised("a").is_some()).count();
        assert_eq!(taken, 4, "a member that joins has the client's id twice");
        assert!(promised("b").is_none());
    }

    #[test]
    fn more_protocols_or_assignments_than_clients_send_are_refused() {
        let coordinator = coordinator(MIB);
        let protocol = |at| (StrBytes::from_string(format!("{at}")), Bytes::new());
        let many = Join {
            protocols: (0..33).map(protocol).collect(),
            ..join(&StrBytes::new(), 0)
        };
        let answer = coordinator.join("a", many).unwrap().try_recv().unwrap();
        let (error, _) = answer.unwrap_err();
        assert_eq!(error, ResponseError::InconsistentGroupProtocol);

        let (leader, generation) = joined(&coordinator, "a", join(&StrBytes::new(), 0));
        let sync = sync_of(
            &leader,
            generation,
            vec![(leader.clone(), Bytes::new()); 11],
        );
        let answer = coordinator.sync("a", sync).try_recv().unwrap();
        assert_eq!(answer, Err(ResponseError::InvalidRequest));
    }
}
