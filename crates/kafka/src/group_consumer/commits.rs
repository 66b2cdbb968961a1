//! The offset commits of one group member: their outcomes, and which offsets to commit again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use waybill_engine::{Offset, PartitionId};

use super::TopicPartition;
use crate::group_commits::GroupCommits;

/// How long after a refusal to commit the offsets again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The commits of one member of a group.
#[derive(Debug)]
pub(super) struct Commits {
    group: String,
    shared: GroupCommits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest offsets to commit, of the partitions that the member owns.
    offsets: BTreeMap<TopicPartition, Offset>,
    refused_at: Option<Instant>,
}

impl Commits {
    pub(super) fn new(group: &str, shared: GroupCommits) -> Self {
        Self {
            group: group.to_owned(),
            shared,
            state: Mutex::default(),
        }
    }

    /// Records that these offsets are about to be committed.
    pub(super) fn begin(&self, offsets: &[(&str, PartitionId, Offset)]) {
        let mut state = self.state();
        for (topic, partition, offset) in offsets {
            let at = TopicPartition {
                topic: (*topic).to_owned(),
                partition: *partition,
            };
            state.offsets.insert(at, *offset);
        }
    }

    /// Records the broker's answer to a commit.
    pub(super) fn note(&self, error: Option<&KafkaError>) {
        let now = Instant::now();
        self.shared.note(&self.group, error, now);
        self.state().refused_at = error.map(|_| now);
    }

    /// Records that a commit could not be sent.
    pub(super) fn note_unsent(&self) {
        self.state().refused_at = Some(Instant::now());
    }

    /// Forgets partitions that the member no longer owns.
    pub(super) fn forget<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) {
        let mut state = self.state();
        for partition in partitions {
            state.offsets.remove(partition);
        }
        // There is nothing left to commit again, so no later commit would clear the error.
        if state.offsets.is_empty() && state.refused_at.take().is_some() {
            self.shared.note(&self.group, None, Instant::now());
        }
    }

    /// The offsets to commit again, some time after a refused commit.
    pub(super) fn take_refused(&self, now: Instant) -> Vec<(TopicPartition, Offset)> {
        let mut state = self.state();
        let is_due = |at| now.saturating_duration_since(at) >= AGAIN_AFTER;
        if !state.refused_at.is_some_and(is_due) {
            return Vec::new();
        }
        state.refused_at = None;
        let offsets = state.offsets.iter();
        offsets.map(|(at, offset)| (at.clone(), *offset)).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        self.shared.note(&self.group, None, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::types::RDKafkaErrorCode;

    use super::*;

    const REFUSAL: KafkaError = KafkaError::ConsumerCommit(RDKafkaErrorCode::PolicyViolation);

    #[test]
    fn refused_offsets_are_committed_again_with_the_newest_of_the_member() {
        let commits = Commits::new("agents", GroupCommits::default());
        let [first, second] = [0, 1].map(PartitionId);
        commits.begin(&[("t", first, Offset(3)), ("t", second, Offset(5))]);
        commits.note(Some(&REFUSAL));
        commits.begin(&[("t", first, Offset(7))]);
        let given_up = TopicPartition {
            topic: "t".to_owned(),
            partition: second,
        };
        commits.forget([&given_up]);
        assert!(commits.take_refused(Instant::now()).is_empty(), "not yet");
        let later = Instant::now() + AGAIN_AFTER;
        let again = commits.take_refused(later);
        let kept = TopicPartition {
            topic: "t".to_owned(),
            partition: first,
        };
        assert_eq!(again, [(kept, Offset(7))]);
        assert!(commits.take_refused(later).is_empty(), "once a refusal");
        commits.note_unsent();
        assert_eq!(commits.take_refused(Instant::now() + AGAIN_AFTER).len(), 1);
    }

    #[test]
    fn a_member_without_pending_commits_is_not_shown() {
        let groups = GroupCommits::default();
        let commits = Commits::new("agents", groups.clone());
        let partition = TopicPartition {
            topic: "t".to_owned(),
            partition: PartitionId(0),
        };
        commits.begin(&[("t", PartitionId(0), Offset(3))]);
        for _ in 0..3 {
            commits.note(Some(&REFUSAL));
        }
        assert!(groups.is_noted("agents"));
        commits.forget([&partition]);
        assert!(!groups.is_noted("agents"));
    }
}
