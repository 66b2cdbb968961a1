//! Keeping what cannot be read: a record of failed-operations goes to its dead-letter topic, whole, with
//! where it lay and why, as the scheduler's and the agents' do.

use waybill_kafka::{ErrorCode, ProduceError, RawRecord};
use waybill_messages::Topics;
use waybill_messages::headers::{DeadLetter, Stage};

/// The letter that keeps a record: the record itself, and behind its own headers why it is there.
pub(super) fn letter(record: RawRecord, cause: &str) -> RawRecord {
    let errors = DeadLetter {
        topic: &record.topic,
        partition: record.partition,
        offset: record.offset,
        task_id: "0",
        stage: Stage::Value,
        component: "supervisor",
        error_kind: "DecodeError",
        message: cause,
    }
    .headers();
    let mut letter = RawRecord {
        topic: Topics::dead_letter(&record.topic),
        ..record
    };
    let errors = errors.into_iter();
    letter
        .headers
        .extend(errors.map(|(name, value)| (name.to_owned(), Some(value))));
    letter
}

/// Whether a letter would be refused for ever. It is given up then, for whoever waited for it would do
/// nothing else any more; the record itself stays where it lay for as long as its topic keeps it.
pub(super) fn is_hopeless(error: &ProduceError) -> bool {
    match error {
        ProduceError::OutcomeUnknown { .. } => false,
        ProduceError::Refused { code } => matches!(
            code,
            ErrorCode::MessageSizeTooLarge
                | ErrorCode::UnknownTopic
                | ErrorCode::UnknownTopicOrPartition
                | ErrorCode::UnknownPartition
                | ErrorCode::TopicAuthorizationFailed
        ),
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::{Offset, PartitionId};

    use super::*;

    #[test]
    fn a_letter_is_the_record_with_where_it_lay_and_why_it_is_kept_behind_its_headers() {
        let record = RawRecord {
            topic: "waybill.failed-operations.v1".to_owned(),
            partition: PartitionId(3),
            offset: Offset(17),
            timestamp_ms: Some(5),
            key: Some(b"key".to_vec()),
            value: Some(b"noise".to_vec()),
            headers: vec![("own".to_owned(), None)],
        };
        let letter = letter(record.clone(), "no schema");
        assert_eq!(letter.topic, "dlq.waybill.failed-operations.v1");
        assert_eq!(
            (
                letter.partition,
                letter.timestamp_ms,
                &letter.key,
                &letter.value
            ),
            (record.partition, Some(5), &record.key, &record.value)
        );
        assert_eq!(letter.headers[0], record.headers[0]);
        let header = |wanted: &str| {
            let mut headers = letter.headers.iter();
            let (_, value) = headers.find(|(name, _)| name == wanted).unwrap();
            String::from_utf8(value.clone().unwrap()).unwrap()
        };
        assert_eq!(header("__connect.errors.topic"), record.topic);
        assert_eq!(header("__connect.errors.partition"), "3");
        assert_eq!(header("__connect.errors.offset"), "17");
        assert_eq!(header("__connect.errors.exception.message"), "no schema");
    }
}
