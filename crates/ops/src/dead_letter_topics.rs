//! The dead-letter topics that a login may read, for `waybill dlq` and `waybill doctor`.

use std::collections::BTreeMap;

use anyhow::ensure;
use waybill_kafka::Admin;
use waybill_messages::Topics;
use waybill_topology::topics::is_forbidden;

/// The dead-letter topics that the user has permission to describe.
#[derive(Default)]
pub(crate) struct DeadLetterTopics {
    /// The number of partitions of each, by name.
    pub(crate) topics: BTreeMap<String, u32>,
    /// Topics that the user has no permission to describe.
    pub(crate) forbidden: Vec<String>,
}

impl DeadLetterTopics {
    /// Finds all topics whose names begin with the prefix: other applications may share the
    /// brokers.
    ///
    /// A broker's list omits topics that the user has no permission to describe. Topics in `known`
    /// are requested by name, so that a missing permission is reported.
    pub(crate) async fn find(
        admin: &Admin,
        topic_prefix: &str,
        known: Vec<String>,
    ) -> anyhow::Result<Self> {
        let mut topics = admin.topics().await?;
        topics.retain(|name, _| {
            let rest = name.strip_prefix(topic_prefix);
            let is_ours = rest.is_some_and(|rest| rest.starts_with('.'));
            is_ours && Topics::source_of_dead_letter(name).is_some()
        });
        let mut forbidden = Vec::new();
        for name in known {
            if topics.contains_key(&name) {
                continue;
            }
            match admin.topic_partitions(&name).await.map_err(Into::into) {
                Ok(Some(partitions)) => drop(topics.insert(name, partitions)),
                Ok(None) => {}
                Err(error) if is_forbidden(&error) => forbidden.push(name),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { topics, forbidden })
    }

    /// # Errors
    ///
    /// If the user has no permission to describe one of them.
    pub(crate) fn require_all(&self) -> anyhow::Result<()> {
        ensure!(
            self.forbidden.is_empty(),
            "not listed, because this login has no permission to describe them: {}",
            self.forbidden.join(", ")
        );
        Ok(())
    }
}

/// The dead-letter topics of the topics that roles read, independent of workflows.
pub(crate) fn of_roles(topic_prefix: &str) -> Vec<String> {
    let topics = Topics::new(topic_prefix);
    let sources = [
        topics.requests(),
        topics.high_priority_requests(),
        topics.step_replies(),
        topics.recovery(),
        topics.failed_operations(),
        topics.operator_alerts(),
        topics.owner_notices(),
    ];
    sources.map(Topics::dead_letter).to_vec()
}
