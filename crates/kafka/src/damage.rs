//! Locates the damaged batch that a consumer met.
//!
//! Every batch carries a checksum, and every consumer verifies it (`check.crcs`). librdkafka's
//! reaction to a wrong checksum is unusable: it reports an error from which rust-rdkafka drops the
//! partition, and continues somewhere after the batch, so that it silently skips records. So a
//! consumer that meets damage discards all prefetched records. It locates the damaged partition
//! with this module, and reads every other partition again from the end of the records that it has
//! handed over.
//!
//! If librdkafka cannot parse a record, it reports nothing, and the partition stalls.
//! [`crate::stall`] finds candidates; this module asks the brokers to confirm them.
//!
//! What must hold here:
//!
//! * No readable record is skipped, however early the time for a search ends.
//! * All questions of one poll end within [`ROUND_MAX`], whatever the number of partitions. The
//!   consumer reads no records in the meantime, and a group member that polls too late loses its
//!   partitions. A partition that was not checked is read on, and its damage is met again; the next
//!   round checks it first.

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

/// Maximum time for all questions of one poll.
const ROUND_MAX: Duration = Duration::from_secs(10);
/// How long the search waits for the first answer about one partition.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// The same for a partition that may have stalled: the same answer must fail more than once.
const STALL_PATIENCE: Duration = Duration::from_secs(5);
/// How long the broker may take to report the end of a partition.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How many offsets or batches one search for the end of undecodable records tries.
const SEARCHED_MAX: usize = 256;

/// Why records cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DamageKind {
    /// They are not as they were written, or that is not certain. They may be accepted requests,
    /// and another replica may have them intact.
    Corrupt,
    /// They are as they were written, and no client could ever decode them.
    Undecodable,
}

/// A partition that cannot be read on, because its records from an offset on are damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedLog {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
    /// The first unreadable offset. Every record before it was handed over.
    pub offset: Offset,
    /// The error that the client or the broker reports.
    pub cause: String,
    /// Why they cannot be read.
    pub kind: DamageKind,
    /// Where to continue after undecodable records, once they were met twice. Everything before
    /// this offset was found to be undecodable.
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

impl DamagedLog {
    /// Logs that no record before `next` can be decoded, and that the reader continues at `next`.
    pub fn log_passed_over(&self, next: Offset) {
        tracing::error!(
            topic = self.topic,
            partition = %self.partition,
            offset = %self.offset,
            %next,
            cause = self.cause,
            "skipped records that no client can decode"
        );
    }

    /// Logs that the partition is not read, and when the client retries on its own.
    pub(crate) fn log_stopped(&self, client: &str, again_after: Option<Duration>) {
        tracing::error!(
            client,
            topic = self.topic,
            partition = %self.partition,
            offset = %self.offset,
            cause = self.cause,
            again_after_s = again_after.map(|after| after.as_secs()),
            "records are damaged; stopped reading the partition"
        );
    }
}

/// Where to continue reading a partition.
pub(crate) type Position = (String, PartitionId, Offset);

/// What later rounds need to know of earlier ones.
#[derive(Default, Debug)]
pub(crate) struct History {
    /// Where undecodable records were met. One such answer may be a fault of the partition's
    /// leader. If the same offset is undecodable again some time later, the record was written that
    /// way.
    undecodable: HashMap<(String, PartitionId), Offset>,
    /// The partition that was checked last.
    asked_last: Option<(String, PartitionId)>,
}

impl History {
    /// Notes records of this kind. Returns whether undecodable ones were met there before.
    fn is_repeated(
        &mut self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        kind: DamageKind,
    ) -> bool {
        let at = (topic.to_owned(), partition);
        match kind {
            DamageKind::Undecodable => self.undecodable.insert(at, offset) == Some(offset),
            DamageKind::Corrupt => {
                self.undecodable.remove(&at);
                false
            }
        }
    }

    /// The positions in the order in which to check them: each round begins after the partition at
    /// which the previous one ended.
    fn in_turn(&self, mut positions: Vec<Position>) -> Vec<Position> {
        positions.sort_unstable();
        if let Some((topic, partition)) = &self.asked_last {
            let is_before = |at: &Position| (at.0.as_str(), at.1) <= (topic.as_str(), *partition);
            let first = positions.partition_point(is_before);
            positions.rotate_left(first);
        }
        positions
    }
}

/// When a round that begins now must end.
pub(crate) fn round_end() -> Instant {
    Instant::now() + ROUND_MAX
}

/// The questions of one poll.
pub(crate) struct Round<'a> {
    pub(crate) config: &'a ClientConfig,
    pub(crate) history: &'a mut History,
    /// See [`round_end`].
    pub(crate) until: Instant,
    /// Whether to look for the end of records that were found to be undecodable twice.
    pub(crate) finds_next: bool,
}

impl Round<'_> {
    /// The partitions of a consumer that are damaged at their positions. A partition without an
    /// answer counts as undamaged: reading it again meets the damage again.
    pub(crate) fn find<C: ConsumerContext>(
        &mut self,
        consumer: &BaseConsumer<C>,
        positions: Vec<Position>,
    ) -> Vec<DamagedLog> {
        let mut damaged = Vec::new();
        for at in self.history.in_turn(positions) {
            // The consumer has fetched no damage from a partition that it has read to its end.
            let end = native::known_end(consumer.client(), &at.0, at.1);
            if end.is_some_and(|end| at.2 >= end) {
                continue;
            }
            if !self.begin(&at) {
                break;
            }
            let Some(probe) = self.new_probe() else {
                break;
            };
            if let Found::Damaged(damage) = self.ask(&probe, &at, PROBE_PATIENCE) {
                damaged.push(self.log_of(&probe, at, damage));
            }
        }
        damaged
    }

    /// Those of the given partitions, which have handed over no record for a long time, that really
    /// cannot be read on. The watch backs off from all others.
    pub(crate) fn find_stalled<C: ConsumerContext>(
        &mut self,
        consumer: &BaseConsumer<C>,
        suspects: Vec<Position>,
        watch: &mut StallWatch,
    ) -> Vec<DamagedLog> {
        let mut stalled = Vec::new();
        for at in self.history.in_turn(suspects) {
            if !self.begin(&at) {
                break;
            }
            // A broker that does not answer this is unreachable, so nothing has stalled. Asking
            // takes time, so the interval grows, as it does for every partition without a finding.
            let patience = END_PATIENCE.min(self.left());
            let end = watermarks(consumer.client(), &at.0, at.1, patience);
            if !matches!(end, Ok((_, end)) if at.2 < end) {
                watch.back_off(&at.0, at.1);
                continue;
            }
            // Each partition gets its own probe, so that no event of another partition is left
            // over.
            let Some(probe) = self.new_probe() else {
                break;
            };
            match self.ask(&probe, &at, STALL_PATIENCE) {
                Found::Damaged(damage) => stalled.push(self.log_of(&probe, at, damage)),
                // The time left was shorter than an answer may take.
                Found::Unanswered if self.left().is_zero() => {}
                Found::Readable | Found::Unanswered => watch.back_off(&at.0, at.1),
            }
        }
        stalled
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Begins to check a partition. Returns whether there is time for that.
    fn begin(&mut self, (topic, partition, _): &Position) -> bool {
        let has_time = !self.left().is_zero();
        if has_time {
            self.history.asked_last = Some((topic.clone(), *partition));
        }
        has_time
    }

    fn new_probe(&self) -> Option<Probe> {
        let probe = Probe::new(self.config);
        probe
            .inspect_err(
                |error| tracing::warn!(%error, "could not search for the damaged partition"),
            )
            .ok()
    }

    /// Asks the broker, for no longer than the round may take.
    fn ask(&self, probe: &Probe, at: &Position, patience: Duration) -> Found {
        match self.left() {
            Duration::ZERO => Found::Unanswered,
            left => probe.ask(&at.0, at.1, at.2, patience.min(left)),
        }
    }

    /// The report of damage, with the offset to continue at if the records there were written
    /// undecodable.
    fn log_of(&mut self, probe: &Probe, at: Position, damage: Damage) -> DamagedLog {
        let is_repeated = self.history.is_repeated(&at.0, at.1, at.2, damage.kind);
        let next = (is_repeated && self.finds_next).then(|| self.behind(probe, &at, damage.batch));
        let (topic, partition, offset) = at;
        DamagedLog {
            topic,
            partition,
            offset,
            cause: damage.cause,
            kind: damage.kind,
            next,
        }
    }

    /// The first offset after undecodable records, within the range of one search.
    fn behind(&self, probe: &Probe, at: &Position, batch: Option<Offset>) -> Offset {
        let (topic, partition, offset) = at;
        let patience = END_PATIENCE.min(self.left());
        let Ok((_, end)) = watermarks(probe.client(), topic, *partition, patience) else {
            return offset.next();
        };
        first_behind(*offset, end, batch, |offset| {
            self.ask(probe, &(topic.clone(), *partition, offset), PROBE_PATIENCE)
        })
    }
}

/// The first offset after an undecodable record, as far as `ask` answers. Damage after it is found
/// when it is read.
///
/// No readable record is skipped. So the search tries each offset in turn, except within a batch
/// that the client names: all of that is unreadable, and halving finds its end. Offsets without an
/// answer are not skipped.
fn first_behind(
    undecodable: Offset,
    end: Offset,
    mut batch: Option<Offset>,
    ask: impl Fn(Offset) -> Found,
) -> Offset {
    let mut next = undecodable.next();
    for _ in 0..SEARCHED_MAX {
        if batch.is_some() {
            let is_of_batch = |offset: Offset| match ask(offset) {
                Found::Damaged(damage) => damage.batch == batch,
                Found::Readable | Found::Unanswered => false,
            };
            next = end_of_batch(next, end, is_of_batch);
        }
        if next >= end {
            return next;
        }
        match ask(next) {
            Found::Damaged(damage) if damage.kind == DamageKind::Undecodable => {
                batch = damage.batch;
                next = next.next();
            }
            Found::Damaged(_) | Found::Readable | Found::Unanswered => return next,
        }
    }
    next
}

/// The first offset from `first` on that is outside the batch of the offset before. An offset
/// without an answer counts as outside.
fn end_of_batch(first: Offset, end: Offset, is_of_batch: impl Fn(Offset) -> bool) -> Offset {
    let mut step = 1;
    // All offsets before `first` are in the batch; `outside` is not.
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

/// Logs that the search for the cause of a client's error found no damage.
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
    fn the_end_of_a_batch_is_found_by_binary_search() {
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

    /// The record at an offset of a partition in a test.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum At {
        Record,
        Unparsable,
        /// A record of the batch with this number, which the client names.
        Batch(i64),
        Corrupt,
        Nothing,
    }

    /// What the client finds at an offset, or at the first readable offset after it.
    fn found(log: &[At], offset: Offset) -> Found {
        let first = usize::try_from(offset.0).unwrap();
        let Some(at) = (first..log.len()).find(|at| log[*at] != At::Nothing) else {
            return Found::Readable;
        };
        let damaged = |kind, batch| {
            let cause = String::new();
            Found::Damaged(Damage { kind, cause, batch })
        };
        match log[at] {
            At::Record | At::Nothing => Found::Readable,
            At::Unparsable => damaged(DamageKind::Undecodable, None),
            At::Batch(number) => damaged(DamageKind::Undecodable, Some(Offset(number))),
            At::Corrupt => damaged(DamageKind::Corrupt, None),
        }
    }

    #[test]
    fn an_interrupted_search_skips_no_readable_record() {
        use At::{Batch, Corrupt, Nothing, Record, Unparsable};
        const KINDS: [At; 6] = [Record, Unparsable, Batch(100), Batch(200), Corrupt, Nothing];
        for number in 0..KINDS.len().pow(6) {
            let kind = |at: u32| KINDS[number / KINDS.len().pow(at) % KINDS.len()];
            let log: Vec<At> = (0..6).map(kind).collect();
            let Found::Damaged(first) = found(&log, Offset(0)) else {
                continue;
            };
            // The offsets of a batch are contiguous.
            let is_split = [Batch(100), Batch(200)].iter().any(|batch| {
                let mut of_batch = log.iter().filter(|at| **at != Nothing);
                of_batch.position(|at| at == batch);
                of_batch.by_ref().find(|at| *at != batch);
                of_batch.any(|at| at == batch)
            });
            if first.kind == DamageKind::Corrupt || is_split {
                continue;
            }
            for answers in 0..=8 {
                let asked = std::cell::Cell::new(0);
                let ask = |offset| {
                    asked.set(asked.get() + 1);
                    match asked.get() > answers {
                        true => Found::Unanswered,
                        false => found(&log, offset),
                    }
                };
                let next = first_behind(Offset(0), Offset(6), first.batch, ask);
                let passed = &log[..usize::try_from(next.0).unwrap()];
                assert!(!passed.is_empty());
                let is_lost = passed.contains(&Record) || passed.contains(&Corrupt);
                assert!(!is_lost, "{log:?} to {next} after {answers} answers");
            }
        }
    }

    #[test]
    fn a_round_starts_after_the_last_partition_of_the_previous_one() {
        let positions = |partitions: &[u32]| -> Vec<Position> {
            let of = |at: &u32| ("t".to_owned(), PartitionId(*at), Offset(7));
            partitions.iter().map(of).collect()
        };
        let mut history = History::default();
        assert_eq!(
            history.in_turn(positions(&[2, 0, 1])),
            positions(&[0, 1, 2])
        );
        for (last, expected) in [
            (0, [1, 2, 0]),
            (1, [2, 0, 1]),
            (2, [0, 1, 2]),
            (9, [0, 1, 2]),
        ] {
            history.asked_last = Some(("t".to_owned(), PartitionId(last)));
            assert_eq!(history.in_turn(positions(&[2, 0, 1])), positions(&expected));
        }
        history.asked_last = Some(("s".to_owned(), PartitionId(9)));
        assert_eq!(history.in_turn(positions(&[1, 0])), positions(&[0, 1]));
    }

    #[test]
    fn only_a_record_undecodable_twice_is_reported() {
        use DamageKind::{Corrupt, Undecodable};
        let mut history = History::default();
        let mut again =
            |offset, kind| history.is_repeated("t", PartitionId(0), Offset(offset), kind);
        assert!(!again(7, Undecodable));
        assert!(!again(8, Undecodable));
        assert!(again(8, Undecodable));
        assert!(!again(8, Corrupt));
        assert!(!again(8, Undecodable));
    }
}
