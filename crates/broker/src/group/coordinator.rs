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
    groups: Mutex<HashMap<Arc<str>, Group>>,
    /// A time-out may have come nearer.
    changed: Notify,
    initial_delay: Duration,
    groups_max: usize,
    members_max: usize,
}

impl Coordinator {
    pub(crate) fn new(initial_delay: Duration, groups_max: usize, members_max: usize) -> Self {
        Self {
            groups: Mutex::default(),
            changed: Notify::new(),
            initial_delay,
            groups_max,
            members_max,
        }
    }

    /// A member joins `group`, which comes into being with its first member. `None` means that
    /// there are too many groups.
    pub(crate) fn join(&self, group: &str, join: Join) -> Option<oneshot::Receiver<JoinAnswer>> {
        let (answer, answered) = oneshot::channel();
        let mut groups = locked(&self.groups);
        if !groups.contains_key(group) {
            if groups.len() >= self.groups_max {
                return None;
            }
            groups.insert(group.into(), Group::new(self.members_max));
        }
        if let Some(state) = groups.get_mut(group) {
            state.join(Instant::now(), self.initial_delay, join, answer);
            if state.is_empty() {
                groups.remove(group);
            }
        }
        drop(groups);
        self.changed.notify_one();
        Some(answered)
    }

    /// A member asks for its assignment.
    pub(crate) fn sync(&self, group: &str, sync: Sync) -> oneshot::Receiver<SyncAnswer> {
        let (answer, answered) = oneshot::channel();
        match locked(&self.groups).get_mut(group) {
            Some(state) => state.sync(Instant::now(), sync, answer),
            None => {
                let _ = answer.send(Err(ResponseError::UnknownMemberId));
            }
        }
        self.changed.notify_one();
        answered
    }

    /// A member says that it is alive.
    pub(crate) fn heartbeat(&self, group: &str, member: &Membership) -> Result<(), ResponseError> {
        match locked(&self.groups).get_mut(group) {
            Some(state) => state.heartbeat(Instant::now(), member),
            None => Err(ResponseError::UnknownMemberId),
        }
    }

    /// A member leaves; the group ends with its last member.
    pub(crate) fn leave(&self, group: &str, leaver: &Leaver) -> Result<(), ResponseError> {
        let mut groups = locked(&self.groups);
        let state = groups
            .get_mut(group)
            .ok_or(ResponseError::UnknownMemberId)?;
        let left = state.leave(Instant::now(), leaver);
        if state.is_empty() {
            groups.remove(group);
        }
        drop(groups);
        self.changed.notify_one();
        left
    }

    /// Whether offsets of `group` may be committed by whoever this is.
    pub(crate) fn check_commit(&self, group: &str, member: &Membership) -> CommitCheck {
        match locked(&self.groups).get_mut(group) {
            Some(state) => state.check_commit(Instant::now(), member),
            None if member.generation < 0 => Ok(()),
            None => Err(ResponseError::UnknownMemberId),
        }
    }

    /// The group as operators see it; `None` if it has no members.
    pub(crate) fn describe(&self, group: &str) -> Option<Described> {
        locked(&self.groups).get(group).map(Group::describe)
    }

    /// How many groups have members.
    pub(crate) fn groups(&self) -> usize {
        locked(&self.groups).len()
    }

    /// The groups that have members.
    pub(crate) fn list(&self) -> Vec<(Arc<str>, Described)> {
        let groups = locked(&self.groups);
        groups
            .iter()
            .map(|(name, group)| (Arc::clone(name), group.describe()))
            .collect()
    }

    /// Applies time-outs as they come due, until `stopping`.
    pub(crate) async fn run(&self, stopping: CancellationToken) {
        loop {
            let next = locked(&self.groups)
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
            locked(&self.groups).retain(|_, group| {
                if group.next_deadline().is_some_and(|at| at <= now) {
                    group.tick(now);
                }
                !group.is_empty()
            });
        }
    }
}
