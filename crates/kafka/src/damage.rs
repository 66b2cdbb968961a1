//! Finding the damaged batch that a consumer met.
//!
//! Every batch carries a checksum, and every consumer verifies it (`check.crcs`). What librdkafka does with
//! one that does not match cannot be worked with: it reports an error that rust-rdkafka strips of its
//! partition, and reads on somewhere behind the batch, so that records are passed over in silence. So
//! a consumer that meets damage discards everything that was prefetched: it looks for the damaged partition here, and
//! reads every other one again from the end of the records that it has handed over.

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use waybill_engine::{Offset, PartitionId};

use crate::native;
use crate::partition_list::offsets_list;
use crate::poll::{Severity, severity};

/// How long the search waits for the first answer about one partition.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// A partition that cannot be read on, because the records from an offset on are damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedLog {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
    /// The first offset that cannot be read. Every record before it was handed over.
    pub offset: Offset,
    /// What the client or the broker says of it.
    pub cause: String,
}

impl fmt::Display for DamagedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            partition,
            offset,
            cause,
        } = self;
        write!(
            f,
            "{topic} partition {partition} is damaged at offset {offset}: {cause}"
        )
    }
}

/// Where a partition is to be read on.
pub(crate) type Position = (String, PartitionId, Offset);

/// Those of a consumer's partitions whose records are damaged where they are to be read on. A partition without
/// an answer counts as whole: reading it again meets the damage again.
pub(crate) fn find<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    config: &ClientConfig,
    positions: &[Position],
) -> Vec<DamagedLog> {
    let mut config = config.clone();
    config.set("enable.partition.eof", "true");
    let probe: BaseConsumer = match config.create() {
        Ok(probe) => probe,
        Err(error) => {
            tracing::warn!(%error, "cannot look for the damaged partition");
            return Vec::new();
        }
    };
    let damaged = positions.iter().filter_map(|(topic, partition, offset)| {
        // Of a partition that was read to its end, no damage was fetched.
        let end = native::known_end(consumer.client(), topic, *partition);
        if end.is_some_and(|end| *offset >= end) {
            return None;
        }
        let cause = damage_at(&probe, topic, *partition, *offset)?;
        Some(DamagedLog {
            topic: topic.clone(),
            partition: *partition,
            offset: *offset,
            cause,
        })
    });
    damaged.collect()
}

/// Logs what a search found for a client that met `error`, and when it reads the partitions again by itself.
pub(crate) fn log_found(
    client: &str,
    error: &KafkaError,
    damaged: &[DamagedLog],
    again_after: Option<Duration>,
) {
    if damaged.is_empty() {
        tracing::warn!(
            client,
            %error,
            "damaged records were fetched; reading them again"
        );
    }
    for log in damaged {
        tracing::error!(
            client,
            topic = log.topic,
            partition = %log.partition,
            offset = %log.offset,
            cause = log.cause,
            again_after_s = again_after.map(|after| after.as_secs()),
            "records are damaged; stopped reading the partition"
        );
    }
}

/// What is wrong with the batch that holds an offset, or comes first behind it.
fn damage_at(
    probe: &BaseConsumer,
    topic: &str,
    partition: PartitionId,
    offset: Offset,
) -> Option<String> {
    let list = offsets_list(&[(topic, partition, offset)]).ok()?;
    probe.assign(&list).ok()?;
    let deadline = Instant::now() + PROBE_PATIENCE;
    loop {
        match probe.poll(deadline.saturating_duration_since(Instant::now())) {
            Some(Ok(_)) | Some(Err(KafkaError::PartitionEOF(_))) => return None,
            Some(Err(error)) if severity(&error) == Severity::Damaged => {
                return Some(error.to_string());
            }
            Some(Err(_)) => {}
            None if Instant::now() >= deadline => return None,
            None => {}
        }
    }
}
