//! The schemas that a process needs in the registry, and their IDs.

use waybill_messages::{RECORD_SCHEMAS, RecordKind, RecordSchema, SchemaIds, Topics};

use crate::client::{Registry, RegistryError};

/// A subject of the registry, and the schema that it must have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subject {
    /// Its name: the topic's name and `-value`, as every Confluent client expects by default
    /// (`TopicNameStrategy`).
    pub name: String,
    /// The record on the topic.
    pub schema: RecordSchema,
}

/// Why the IDs could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum SubjectError {
    /// The registry did not answer, or refused.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A schema is not in the registry, and registering it is disabled.
    #[error("subject {subject} does not have this version's schema")]
    Missing {
        /// The subject.
        subject: String,
    },
}

/// The subjects of an installation's topics, including those of these agents.
#[must_use]
pub fn subjects<A: AsRef<str>>(topics: &Topics, agents: &[A]) -> Vec<Subject> {
    let subject = |topic: &str, schema: RecordSchema| Subject {
        name: format!("{topic}-value"),
        schema,
    };
    let mut subjects = Vec::new();
    for schema in RECORD_SCHEMAS {
        let topic = match schema.kind {
            RecordKind::OperationRequest => {
                subjects.push(subject(topics.high_priority_requests(), schema));
                topics.requests()
            }
            RecordKind::StepReply => topics.step_replies(),
            RecordKind::FailedOperation => topics.failed_operations(),
            RecordKind::OperationStatus => topics.operation_status(),
            RecordKind::Recovery => topics.recovery(),
            RecordKind::OperatorAlert => topics.operator_alerts(),
            RecordKind::OwnerNotice => topics.owner_notices(),
            RecordKind::StepRequest => {
                let topics = agents
                    .iter()
                    .map(|agent| topics.step_requests(agent.as_ref()));
                subjects.extend(topics.map(|topic| subject(&topic, schema)));
                continue;
            }
        };
        subjects.push(subject(topic, schema));
    }
    subjects
}

/// Looks up the ID of every subject's schema; with `register`, registers each schema first.
///
/// # Errors
///
/// At the first schema without an ID.
pub async fn schema_ids(
    registry: &Registry,
    subjects: &[Subject],
    register: bool,
) -> Result<SchemaIds, SubjectError> {
    let mut ids = SchemaIds::default();
    for Subject { name, schema } in subjects {
        let id = if register {
            registry.register(name, schema.json).await?
        } else {
            let found = registry.look_up(name, schema.json).await?;
            found.ok_or_else(|| SubjectError::Missing {
                subject: name.clone(),
            })?
        };
        ids.set(schema.kind, id);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_has_a_subject_and_step_requests_one_for_each_agent() {
        let names: Vec<String> = subjects(&Topics::new("acme"), &["drone", "account"])
            .into_iter()
            .map(|subject| subject.name)
            .collect();
        assert_eq!(
            names,
            [
                "acme.high-priority-requests.v1-value",
                "acme.operation-requests.v1-value",
                "acme.drone.requests.v1-value",
                "acme.account.requests.v1-value",
                "acme.step-replies.v1-value",
                "acme.failed-operations.v1-value",
                "acme.operation-status.v1-value",
                "acme.recovery.v1-value",
                "acme.operator-alerts.v1-value",
                "acme.owner-notices.v1-value",
            ]
        );
    }
}
