//! The consumer groups of a process whose offset commits are refused.
//!
//! Why it exists: a group whose commits are refused continues to read, and after a restart it reads
//! all records again. Nothing else reports that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

/// A group is reported after this many refused commits in a row, over at least this time: a commit
/// may fail while a group rebalances or a broker restarts.
const REFUSALS_MIN: u32 = 3;
const REFUSED_FOR_MIN: Duration = Duration::from_secs(5);

/// The consumer groups of a process whose offset commits are refused. Clones share one list. A
/// process has at most one member of each group.
#[derive(Clone, Debug, Default)]
pub struct GroupCommits(Arc<Mutex<BTreeMap<String, Refused>>>);

#[derive(Debug)]
struct Refused {
    since: Instant,
    commits: u32,
    error: String,
}

impl GroupCommits {
    /// The groups whose commits are refused repeatedly, each with its last error.
    #[must_use]
    pub fn refused(&self) -> Vec<String> {
        self.refused_at(Instant::now())
    }

    fn refused_at(&self, now: Instant) -> Vec<String> {
        let groups = self.groups();
        let lasts = |refused: &Refused| {
            refused.commits >= REFUSALS_MIN
                && now.saturating_duration_since(refused.since) >= REFUSED_FOR_MIN
        };
        let refused = groups.iter().filter(|(_, refused)| lasts(refused));
        refused
            .map(|(group, refused)| format!("consumer group {group}: {}", refused.error))
            .collect()
    }

    /// Records the outcome of a commit.
    pub(crate) fn note(&self, group: &str, error: Option<&KafkaError>, now: Instant) {
        let mut groups = self.groups();
        let Some(error) = error else {
            groups.remove(group);
            return;
        };
        let refused = groups.entry(group.to_owned()).or_insert_with(|| Refused {
            since: now,
            commits: 0,
            error: String::new(),
        });
        refused.commits = refused.commits.saturating_add(1);
        refused.error = cause(error);
    }

    #[cfg(test)]
    pub(crate) fn is_noted(&self, group: &str) -> bool {
        self.groups().contains_key(group)
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<String, Refused>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error, with advice if one broker setting is the cause. Apache Kafka never answers a commit
/// with this error.
fn cause(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::GroupMaxSizeReached) => {
            "the broker has reached its limit of groups with stored offsets: delete unused groups, \
             or raise broker.storedGroupsMax"
                .to_owned()
        }
        Some(_) | None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSAL: KafkaError = KafkaError::ConsumerCommit(RDKafkaErrorCode::PolicyViolation);

    #[test]
    fn a_group_with_repeatedly_refused_commits_is_shown() {
        let commits = GroupCommits::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in [0, 2] {
            commits.note("agents", Some(&REFUSAL), at(second));
        }
        assert!(commits.refused_at(at(9)).is_empty(), "two may be by chance");
        commits.note("agents", Some(&REFUSAL), at(4));
        assert!(commits.refused_at(at(4)).is_empty());
        let expected = format!("consumer group agents: {REFUSAL}");
        assert_eq!(commits.refused_at(at(5)), [expected]);
        commits.note("others", None, at(6));
        assert_eq!(commits.refused_at(at(6)).len(), 1);
        commits.note("agents", None, at(7));
        assert!(commits.refused_at(at(8)).is_empty());
    }

    #[test]
    fn a_full_group_store_is_shown_with_its_setting() {
        let commits = GroupCommits::default();
        let start = Instant::now();
        let full = KafkaError::ConsumerCommit(RDKafkaErrorCode::GroupMaxSizeReached);
        for second in 0..3 {
            commits.note("agents", Some(&full), start + Duration::from_secs(second));
        }
        assert_eq!(
            commits.refused_at(start + Duration::from_secs(9)),
            [
                "consumer group agents: the broker has reached its limit of groups with stored \
                 offsets: delete unused groups, or raise broker.storedGroupsMax"
            ]
        );
    }
}
