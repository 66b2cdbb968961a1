//! The first and the next offset of a partition.

use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use waybill_engine::{Offset, PartitionId};

use crate::partition::partition_number;

/// The first offset of a partition and the one that its next record will get, from the broker.
/// librdkafka caches the partition's leader for three times as long as its metadata is fresh. So
/// this retries once with fresh metadata for a leader that librdkafka does not know.
pub(crate) fn watermarks<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partition: PartitionId,
    timeout: Duration,
) -> Result<(Offset, Offset), KafkaError> {
    let deadline = Instant::now() + timeout;
    let left = || deadline.saturating_duration_since(Instant::now());
    let number = partition_number(partition);
    let offsets = |(low, high)| (Offset(low), Offset(high));
    match client.fetch_watermarks(topic, number, timeout) {
        Err(error) if is_unknown(&error) => {
            client.fetch_metadata(Some(topic), left())?;
            client.fetch_watermarks(topic, number, left()).map(offsets)
        }
        found => found.map(offsets),
    }
}

/// Whether the client, or the broker that it asked, does not know the partition.
fn is_unknown(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::UnknownPartition | RDKafkaErrorCode::UnknownTopicOrPartition)
    )
}
