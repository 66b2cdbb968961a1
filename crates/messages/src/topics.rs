//! The topics: their names, and the framing of their records.

use waybill_engine::{Priority, Source};

use crate::framing::Framing;

/// The suffix of dead-letter topics.
const DEAD_LETTER_SUFFIX: &str = ".dlq";

/// The topics of one installation. Their prefix separates them from others on the same brokers.
#[derive(Clone, Debug)]
pub struct Topics {
    framing: Framing,
    prefix: String,
    requests: String,
    high_priority: String,
    step_replies: String,
    failed_operations: String,
    operation_status: String,
    recovery: String,
    operator_alerts: String,
    owner_notices: String,
}

impl Topics {
    /// The topics under a prefix, which must itself be a valid topic name. The framing is that
    /// without a schema registry.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self {
            framing: Framing::single_object(),
            prefix: prefix.to_owned(),
            requests: format!("{prefix}.operation-requests.v1"),
            high_priority: format!("{prefix}.high-priority-requests.v1"),
            step_replies: format!("{prefix}.step-replies.v1"),
            failed_operations: format!("{prefix}.failed-operations.v1"),
            operation_status: format!("{prefix}.operation-status.v1"),
            recovery: format!("{prefix}.recovery.v1"),
            operator_alerts: format!("{prefix}.operator-alerts.v1"),
            owner_notices: format!("{prefix}.owner-notices.v1"),
        }
    }

    /// The same topics with another framing.
    #[must_use]
    pub fn framed(self, framing: Framing) -> Self {
        Self { framing, ..self }
    }

    /// The framing of their records, which encodes and decodes them.
    #[must_use]
    pub fn framing(&self) -> &Framing {
        &self.framing
    }

    /// The prefix of all names.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Callers' requests.
    #[must_use]
    pub fn requests(&self) -> &str {
        &self.requests
    }

    /// Callers' requests with high priority, which do not wait behind the others.
    #[must_use]
    pub fn high_priority_requests(&self) -> &str {
        &self.high_priority
    }

    /// The request topic of a priority.
    #[must_use]
    pub fn of_priority(&self, priority: Priority) -> &str {
        self.of(priority.source())
    }

    /// The topic of a scheduler's source.
    #[must_use]
    pub fn of(&self, source: Source) -> &str {
        match source {
            Source::Requests => &self.requests,
            Source::HighPriority => &self.high_priority,
            Source::Replies => &self.step_replies,
            Source::Recoveries => &self.recovery,
        }
    }

    /// The requests to one agent. Allocates the name: senders of records should keep it.
    #[must_use]
    pub fn step_requests(&self, agent: &str) -> String {
        format!("{}.{agent}.requests.v1", self.prefix)
    }

    /// The agents' replies.
    #[must_use]
    pub fn step_replies(&self) -> &str {
        &self.step_replies
    }

    /// Operations that failed for good.
    #[must_use]
    pub fn failed_operations(&self) -> &str {
        &self.failed_operations
    }

    /// The states of operations.
    #[must_use]
    pub fn operation_status(&self) -> &str {
        &self.operation_status
    }

    /// Requests of the supervisor and operators to the scheduler.
    #[must_use]
    pub fn recovery(&self) -> &str {
        &self.recovery
    }

    /// Conditions that need an operator.
    #[must_use]
    pub fn operator_alerts(&self) -> &str {
        &self.operator_alerts
    }

    /// Notifications to the contacts of operations.
    #[must_use]
    pub fn owner_notices(&self) -> &str {
        &self.owner_notices
    }

    /// The topic for a topic's poison records. Like all names, it begins with the prefix.
    #[must_use]
    pub fn dead_letter(topic: &str) -> String {
        format!("{topic}{DEAD_LETTER_SUFFIX}")
    }

    /// The topic whose poison records go to `dead_letters`; `None` if that is not a dead-letter
    /// topic.
    #[must_use]
    pub fn source_of_dead_letter(dead_letters: &str) -> Option<&str> {
        dead_letters.strip_suffix(DEAD_LETTER_SUFFIX)
    }
}

impl Default for Topics {
    fn default() -> Self {
        Self::new("waybill")
    }
}

/// Whether Kafka accepts this as a topic name: 1 to 249 letters, digits, dots, underscores and
/// hyphens, and neither `.` nor `..`.
#[must_use]
pub fn is_topic_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=249).contains(&name.len()) && name.bytes().all(legal) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_have_the_documented_names() {
        let topics = Topics::default();
        assert_eq!(topics.requests(), "waybill.operation-requests.v1");
        assert_eq!(
            topics.high_priority_requests(),
            "waybill.high-priority-requests.v1"
        );
        assert_eq!(topics.step_requests("drone"), "waybill.drone.requests.v1");
        assert_eq!(topics.step_replies(), "waybill.step-replies.v1");
        assert_eq!(topics.failed_operations(), "waybill.failed-operations.v1");
        assert_eq!(topics.operation_status(), "waybill.operation-status.v1");
        assert_eq!(topics.recovery(), "waybill.recovery.v1");
        assert_eq!(topics.operator_alerts(), "waybill.operator-alerts.v1");
        assert_eq!(topics.owner_notices(), "waybill.owner-notices.v1");
        assert_eq!(
            Topics::dead_letter(topics.requests()),
            "waybill.operation-requests.v1.dlq"
        );
        let source = Topics::source_of_dead_letter("waybill.recovery.v1.dlq");
        assert_eq!(source, Some("waybill.recovery.v1"));
        assert_eq!(Topics::source_of_dead_letter("waybill.dlq.v1"), None);
        assert_eq!(Topics::new("acme").requests(), "acme.operation-requests.v1");
    }

    #[test]
    fn names_that_kafka_refuses_are_detected() {
        for good in ["a", "waybill.drone-delivery.requests_v1", &"x".repeat(249)] {
            assert!(is_topic_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", &"x".repeat(250)] {
            assert!(!is_topic_name(bad), "{bad}");
        }
    }
}
