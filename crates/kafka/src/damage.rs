//! Finding the damaged batch that a consumer met.
//!
//! Every batch carries a checksum, and every consumer verifies it (`check.crcs`). What librdkafka does with
//! one that does not match cannot be worked with: it reports an error that rust-rdkafka strips of its
//! partition, and reads on somewhere behind the batch, so that records are passed over in silence. So
//! a consumer that meets damage discards everything that was prefetched: it looks for the damaged partition here, and
//! reads every other one again from the end of the records that it has handed over.
//!
//! A record that librdkafka cannot parse is worse: it reports nothing, and the partition stands still. Which partitions
//! do is watched by [`crate::stall`]; here, the brokers are asked whether it is so.

mod probe;

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use waybill_engine::{Offset, PartitionId};

use self::probe::{Found, Probe};
use crate::native;
use crate::stall::StallWatch;
use crate::watermarks::watermarks;

/// How long the search waits for the first answer about one partition.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// The same about a partition that is suspected to stand still: it is told from the same answer more than once.
const STALL_PATIENCE: Duration = Duration::from_secs(5);
/// How long the broker may take to say where a partition ends.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How long one round of asking about suspects may take. The rest comes in the next one.
const ROUND_MAX: Duration = Duration::from_secs(5);

/// Why records cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DamageKind {
    /// They are not as they were written, or it is not known that they are. Accepted work may lie there, and another
    /// replica may have it whole.
    Corrupt,
    /// They are as they were written, and were never records that anybody could read.
    Undecodable,
}

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
    /// Why they cannot be read.
    pub kind: DamageKind,
}

impl fmt::Display for DamagedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            partition,
            offset,
            cause,
            ..
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
    let Some(probe) = probe(config) else {
        return Vec::new();
    };
    let damaged = positions.iter().filter_map(|(topic, partition, offset)| {
        // Of a partition that was read to its end, no damage was fetched.
        let end = native::known_end(consumer.client(), topic, *partition);
        if end.is_some_and(|end| *offset >= end) {
            return None;
        }
        match probe.ask(topic, *partition, *offset, PROBE_PATIENCE) {
            Found::Damaged { kind, cause } => Some(DamagedLog {
                topic: topic.clone(),
                partition: *partition,
                offset: *offset,
                cause,
                kind,
            }),
            Found::Readable | Found::Unanswered => None,
        }
    });
    damaged.collect()
}

/// Those of a consumer's partitions that really cannot be read on, of some that have handed no record over for long.
/// The watch is told of those that can.
pub(crate) fn find_stalled<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    config: &ClientConfig,
    suspects: &[Position],
    watch: &mut StallWatch,
) -> Vec<DamagedLog> {
    let until = Instant::now() + ROUND_MAX;
    let mut stalled = Vec::new();
    for (topic, partition, offset) in suspects {
        if Instant::now() >= until {
            break;
        }
        // A broker that does not answer this is away: nothing stands still.
        match watermarks(consumer.client(), topic, *partition, END_PATIENCE) {
            Ok((_, end)) if *offset < end => {}
            Ok(_) => {
                watch.acquit(topic, *partition);
                continue;
            }
            Err(_) => continue,
        }
        // One of its own: nothing that is told is left over from another partition.
        let Some(probe) = probe(config) else {
            break;
        };
        match probe.ask(topic, *partition, *offset, STALL_PATIENCE) {
            Found::Readable => watch.acquit(topic, *partition),
            Found::Unanswered => {}
            Found::Damaged { kind, cause } => stalled.push(DamagedLog {
                topic: topic.clone(),
                partition: *partition,
                offset: *offset,
                cause,
                kind,
            }),
        }
    }
    stalled
}

fn probe(config: &ClientConfig) -> Option<Probe> {
    match Probe::new(config) {
        Ok(probe) => Some(probe),
        Err(error) => {
            tracing::warn!(%error, "cannot look for the damaged partition");
            None
        }
    }
}

/// Logs what a search found, and when the client reads the partitions again by itself.
pub(crate) fn log_found(client: &str, damaged: &[DamagedLog], again_after: Option<Duration>) {
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

/// Logs that a search for what a client met found nothing.
pub(crate) fn log_not_found(client: &str, error: &rdkafka::error::KafkaError) {
    tracing::warn!(
        client,
        %error,
        "damaged records were fetched; reading them again"
    );
}
