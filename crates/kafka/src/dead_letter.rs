//! Publishes records that a consumer cannot read to a dead-letter topic: unchanged, with their
//! position and the reason.

use std::sync::Arc;
use std::time::Duration;

use waybill_engine::Offset;
use waybill_messages::headers::Stage;
use waybill_messages::{Contents, DeadLetter, Topics, undecodable};

use crate::{DamagedLog, OutRecord, ProduceError, Producer, RawRecord, SendError, Settlement};

/// How long to wait for room in a full producer queue.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// Turns a record into a dead letter: headers after its own ones name its position, the component
/// that could not read it, and the reason.
#[must_use]
pub fn dead_letter(record: RawRecord, component: &str, cause: &str) -> RawRecord {
    let dead_letter = DeadLetter {
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
    } = dead_letter.keep(Contents {
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

/// A dead letter for the records from `log.offset` up to `next`, which no client can decode. It
/// gives their position instead of their bytes.
#[must_use]
pub fn undecodable_dead_letter(log: &DamagedLog, next: Offset, component: &str) -> RawRecord {
    let range = (log.offset, next);
    let placeholder = undecodable(&log.topic, log.partition, range, &log.cause);
    let record = RawRecord {
        topic: log.topic.clone(),
        partition: log.partition,
        offset: log.offset,
        timestamp_ms: None,
        key: placeholder.key,
        value: placeholder.value,
        headers: placeholder.headers,
    };
    dead_letter(record, component, &log.cause)
}

/// Publishes dead letters. Returns once the broker has acknowledged or permanently refused each
/// one.
///
/// # Errors
///
/// If one was not acknowledged. The caller may publish all of them again: duplicates of a dead
/// letter are identical.
pub async fn publish_dead_letters(
    producer: &Producer<Arc<Settlement>>,
    dead_letters: &[RawRecord],
) -> Result<(), ProduceError> {
    for dead_letter in dead_letters {
        match publish(producer, std::slice::from_ref(dead_letter)).await {
            // A retry would block the topic forever. The record itself stays at its position for as
            // long as its topic retains it.
            Err(error) if error.is_permanent() => tracing::error!(
                topic = dead_letter.topic,
                error = &error as &dyn std::error::Error,
                "could not write a dead letter for an undecodable record"
            ),
            published => published?,
        }
    }
    Ok(())
}

/// Publishes records unchanged. Returns once the broker has acknowledged each one.
///
/// # Errors
///
/// If one was not acknowledged.
pub async fn publish(
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
    fn a_dead_letter_is_the_record_with_its_position_and_the_cause_after_its_headers() {
        let record = RawRecord {
            topic: "waybill.failed-operations.v1".to_owned(),
            partition: PartitionId(3),
            offset: Offset(17),
            timestamp_ms: Some(5),
            key: Some(b"key".to_vec()),
            value: Some(b"noise".to_vec()),
            headers: vec![("own".to_owned(), None)],
        };
        let dead_letter = dead_letter(record.clone(), "supervisor", "no schema");
        assert_eq!(dead_letter.topic, "waybill.failed-operations.v1.dlq");
        assert_eq!(
            (dead_letter.partition, &dead_letter.key, &dead_letter.value),
            (record.partition, &record.key, &record.value)
        );
        assert_eq!(dead_letter.headers[0], record.headers[0]);
        let header = |wanted: &str| {
            let mut headers = dead_letter.headers.iter();
            let (_, value) = headers.find(|(name, _)| name == wanted).unwrap();
            String::from_utf8(value.clone().unwrap()).unwrap()
        };
        assert_eq!(header("__connect.errors.topic"), record.topic);
        assert_eq!(header("__connect.errors.partition"), "3");
        assert_eq!(header("__connect.errors.offset"), "17");
        assert_eq!(header("__connect.errors.exception.message"), "no schema");
    }
}
