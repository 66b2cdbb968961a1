//! Keeping what cannot be read: a record that a follower of a topic cannot read goes to its dead-letter
//! topic, whole, with where it lay and why, as the scheduler's and the agents' do.

use std::sync::Arc;
use std::time::Duration;

use waybill_kafka::{OutRecord, ProduceError, Producer, RawRecord, SendError, Settlement};
use waybill_messages::headers::Stage;
use waybill_messages::{Contents, DeadLetter, Topics};

/// How long to wait for room in a full producer queue.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// The letter that keeps a record: the record itself, and behind its own headers why it is there and who
/// could not read it.
pub fn letter(record: RawRecord, component: &str, cause: &str) -> RawRecord {
    let letter = DeadLetter {
        topic: &record.topic,
        partition: record.partition,
        offset: record.offset,
        task_id: "0",
        stage: Stage::Value,
        component,
        error_kind: "DecodeError",
        message: cause,
    };
    let Contents {
        key,
        value,
        headers,
    } = letter.keep(Contents {
        key: record.key,
        value: record.value,
        headers: record.headers,
    });
    RawRecord {
        topic: Topics::dead_letter(&record.topic),
        key,
        value,
        headers,
        ..record
    }
}

/// Keeps letters; returns once the broker has acknowledged each, or has refused it for good.
///
/// # Errors
///
/// If a letter was not acknowledged. All of them may be kept again: two letters of one record say the same.
pub async fn keep(
    producer: &Producer<Arc<Settlement>>,
    letters: &[RawRecord],
) -> Result<(), ProduceError> {
    for letter in letters {
        match send(producer, std::slice::from_ref(letter)).await {
            // Whoever waited for it would do nothing else any more; the record itself stays where it lay
            // for as long as its topic keeps it.
            Err(error) if error.is_permanent() => tracing::error!(
                topic = letter.topic,
                error = &error as &dyn std::error::Error,
                "a record that cannot be read is not kept as a dead letter"
            ),
            kept => kept?,
        }
    }
    Ok(())
}

/// Sends records as they are; returns once the broker has acknowledged each.
///
/// # Errors
///
/// If one was not acknowledged.
pub async fn send(
    producer: &Producer<Arc<Settlement>>,
    records: &[RawRecord],
) -> Result<(), ProduceError> {
    if records.is_empty() {
        return Ok(());
    }
    let (settlement, settled) = Settlement::channel(records.len());
    for record in records {
        let record = OutRecord {
            topic: &record.topic,
            partition: record.partition,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &record.headers(),
        };
        enqueue(producer, &record, &settlement).await?;
    }
    drop(settlement);
    match settled.await {
        Ok(result) => result,
        Err(_) => unreachable!("a settlement says what became of its records"),
    }
}

/// Hands a record to the producer, once there is room for it.
///
/// # Errors
///
/// If the producer refuses it.
pub async fn enqueue(
    producer: &Producer<Arc<Settlement>>,
    record: &OutRecord<'_>,
    settlement: &Arc<Settlement>,
) -> Result<(), ProduceError> {
    let mut token = settlement.clone();
    loop {
        match producer.send(record, token) {
            Ok(()) => return Ok(()),
            Err(SendError::QueueFull(back)) => {
                token = back;
                tokio::time::sleep(FULL_PAUSE).await;
            }
            Err(SendError::Refused { error, .. }) => return Err(error),
        }
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
        let letter = letter(record.clone(), "supervisor", "no schema");
        assert_eq!(letter.topic, "waybill.failed-operations.v1.dlq");
        assert_eq!(
            (letter.partition, &letter.key, &letter.value),
            (record.partition, &record.key, &record.value)
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
