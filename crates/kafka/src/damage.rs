//! Finding the damaged batch that a consumer seen.
//!
//! Every batch carries a checksum, and every consumer verifies it (`check.crcs`). What librdkafka does with
//! one that does not match cannot be worked with: it reports an error that rust-rdkafka strips of its
//! partition, and reads on somewhere behind the batch, so that records are passed over in silence. So
//! a consumer that meets damage discards everything that was prefetched: it looks for the damaged partition here, and
//! reads every other one again from the end of the records that it has handed over.
//!
//! A record that librdkafka cannot parse is worse: it reports nothing, and the partition stalls. [`crate::stall`]
//! finds candidates; this module asks the brokers to confirm them.

mod probe;

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use waybill_engine::{Offset, PartitionId};

use self::probe::{Damage, Found, Probe};
use crate::native;
use crate::stall::StallWatch;
use crate::watermarks::watermarks;

/// How long the search waits for the first answer about one partition.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// The same for a partition that may have stalled: the same answer has to fail more than once.
const STALL_PATIENCE: Duration = Duration::from_secs(5);
/// How long the broker may take to say where a partition ends.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How long one round of asking about suspects may take. The rest comes in the next one.
const ROUND_MAX: Duration = Duration::from_secs(5);
/// How long one search for the end of undecodable records may take, and how many offsets it may try one by one.
const SEARCH_MAX: Duration = Duration::from_secs(10);
const SEARCHED_MAX: usize = 256;

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
    /// Where the partition is to be read on behind undecodable records, once they were met twice. Everything before it
    /// was found to be undecodable.
    pub next: Option<Offset>,
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

/// Remembers where undecodable records were seen. What a leader of the partition hands out once may be a fault of its
/// own; what was met twice at one offset, with a while between, is what was written.
#[derive(Default, Debug)]
pub(crate) struct SeenUndecodable(HashMap<(String, PartitionId), Offset>);

impl SeenUndecodable {
    /// Notes that records of this kind were seen. Returns whether undecodable ones were met there before.
    fn again(
        &mut self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        kind: DamageKind,
    ) -> bool {
        let at = (topic.to_owned(), partition);
        match kind {
            DamageKind::Undecodable => self.0.insert(at, offset) == Some(offset),
            DamageKind::Corrupt => {
                self.0.remove(&at);
                false
            }
        }
    }
}

/// Those of a consumer's partitions whose records are damaged where they are to be read on. A partition without
/// an answer counts as whole: reading it again meets the damage again.
pub(crate) fn find<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    config: &ClientConfig,
    positions: &[Position],
    seen: &mut SeenUndecodable,
) -> Vec<DamagedLog> {
    let damaged = positions.iter().filter_map(|(topic, partition, offset)| {
        // Of a partition that was read to its end, no damage was fetched.
        let end = native::known_end(consumer.client(), topic, *partition);
        if end.is_some_and(|end| *offset >= end) {
            return None;
        }
        let probe = probe(config)?;
        match probe.ask(topic, *partition, *offset, PROBE_PATIENCE) {
            Found::Damaged(damage) => {
                Some(log_of(&probe, (topic, *partition, *offset), damage, seen))
            }
            Found::Readable | Found::Unanswered => None,
        }
    });
    damaged.collect()
}

/// Those of a consumer's partitions that really cannot be read on, of some that have handed no record over for long.
/// The watch backs off from all others.
pub(crate) fn find_stalled<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    config: &ClientConfig,
    suspects: &[Position],
    watch: &mut StallWatch,
    seen: &mut SeenUndecodable,
) -> Vec<DamagedLog> {
    let until = Instant::now() + ROUND_MAX;
    let mut stalled = Vec::new();
    for (topic, partition, offset) in suspects {
        if Instant::now() >= until {
            break;
        }
        // A broker that does not answer this is unreachable: nothing has stalled. Asking it takes time, so it is asked
        // less and less often, as is every partition about which nothing was found.
        let end = watermarks(consumer.client(), topic, *partition, END_PATIENCE);
        if !matches!(end, Ok((_, end)) if *offset < end) {
            watch.back_off(topic, *partition);
            continue;
        }
        // A probe for each partition: no event is left over from another one.
        let Some(probe) = probe(config) else {
            break;
        };
        match probe.ask(topic, *partition, *offset, STALL_PATIENCE) {
            Found::Readable | Found::Unanswered => watch.back_off(topic, *partition),
            Found::Damaged(damage) => {
                let at = (topic.as_str(), *partition, *offset);
                stalled.push(log_of(&probe, at, damage, seen));
            }
        }
    }
    stalled
}

/// The report of damage, with the offset to continue at if nothing there was ever a record.
fn log_of(
    probe: &Probe,
    (topic, partition, offset): (&str, PartitionId, Offset),
    damage: Damage,
    seen: &mut SeenUndecodable,
) -> DamagedLog {
    let is_met_again = seen.again(topic, partition, offset, damage.kind);
    let next = is_met_again.then(|| behind(probe, (topic, partition, offset), damage.batch));
    DamagedLog {
        topic: topic.to_owned(),
        partition,
        offset,
        cause: damage.cause,
        kind: damage.kind,
        next,
    }
}

/// The first offset after undecodable records, as far as one search gets. Whatever follows is met when it is read.
///
/// No record that can be read is passed over. So each offset is tried in turn, except within a batch that the client
/// names: nothing of that can be read, and its end is found by halving.
fn behind(
    probe: &Probe,
    (topic, partition, offset): (&str, PartitionId, Offset),
    batch: Option<Offset>,
) -> Offset {
    let until = Instant::now() + SEARCH_MAX;
    let mut next = offset.next();
    let Ok((_, end)) = watermarks(probe.client(), topic, partition, END_PATIENCE) else {
        return next;
    };
    let mut batch = batch;
    for _ in 0..SEARCHED_MAX {
        if let Some(batch) = batch {
            let is_of_batch = |offset: Offset| {
                Instant::now() < until
                    && matches!(
                        probe.ask(topic, partition, offset, PROBE_PATIENCE),
                        Found::Damaged(damage) if damage.batch == Some(batch)
                    )
            };
            next = end_of_batch(next, end, is_of_batch);
        }
        if next >= end || Instant::now() >= until {
            return next;
        }
        match probe.ask(topic, partition, next, PROBE_PATIENCE) {
            Found::Damaged(damage) if damage.kind == DamageKind::Undecodable => {
                batch = damage.batch;
                next = next.next();
            }
            Found::Damaged(_) | Found::Readable | Found::Unanswered => return next,
        }
    }
    next
}

/// The first offset from `first` on that is not of a batch to which the one before belongs. What is asked of no more
/// answers counts as none of it.
fn end_of_batch(first: Offset, end: Offset, is_of_batch: impl Fn(Offset) -> bool) -> Offset {
    let mut step = 1;
    // All before `first` are of the batch; `outside` is not.
    let (mut first, mut outside) = (first, end);
    while first < outside {
        let at = Offset(first.0 + step - 1);
        if at >= outside {
            break;
        }
        match is_of_batch(at) {
            true => first = at.next(),
            false => outside = at,
        }
        step *= 2;
    }
    while first < outside {
        let at = Offset(first.0 + (outside.0 - first.0) / 2);
        match is_of_batch(at) {
            true => first = at.next(),
            false => outside = at,
        }
    }
    first
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
        if let Some(next) = log.next {
            tracing::error!(
                client,
                topic = log.topic,
                partition = %log.partition,
                offset = %log.offset,
                %next,
                cause = log.cause,
                "records cannot be decoded by any client"
            );
            continue;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_batch_is_found_by_halving() {
        for (first, last, end) in [
            (8, 8, 9),
            (8, 8, 900),
            (8, 107, 900),
            (8, 1_000_007, 1_000_008),
        ] {
            let asked = std::cell::Cell::new(0);
            let found = end_of_batch(Offset(first), Offset(end), |at| {
                assert!(at < Offset(end));
                asked.set(asked.get() + 1);
                at.0 <= last
            });
            assert_eq!(found, Offset(last + 1));
            assert!(asked.get() <= 42, "{}", asked.get());
        }
        assert_eq!(end_of_batch(Offset(8), Offset(900), |_| false), Offset(8));
    }

    #[test]
    fn only_what_is_undecodable_twice_at_one_offset_is_met_again() {
        use DamageKind::{Corrupt, Undecodable};
        let mut seen = SeenUndecodable::default();
        let mut again = |offset, kind| seen.again("t", PartitionId(0), Offset(offset), kind);
        assert!(!again(7, Undecodable));
        assert!(!again(8, Undecodable));
        assert!(again(8, Undecodable));
        assert!(!again(8, Corrupt));
        assert!(!again(8, Undecodable));
    }
}
