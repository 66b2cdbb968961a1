//! Connects commands to the brokers, resolves the topic name in an argument, and reads the records
//! of a partition in order.
//!
//! What must hold: reading changes nothing. The client joins no group, commits no offset, and
//! creates no topic by naming it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, ConsumerOptions, KafkaSettings, PartitionConsumer, PollError, PollLimits, RecordRef,
};
use waybill_messages::{Topics, is_topic_name};
use waybill_node::config::Config;

use crate::broker_ready::wait_ready;
use crate::dead_letter_topics::{DeadLetterTopics, of_roles};
use crate::runtime::{Runtime, runtime};

/// The maximum time for an answer of the brokers.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);
/// After this time without a record the client checks that the brokers are still reachable.
const QUIET_MAX: Duration = Duration::from_secs(5);
/// The wait of one poll.
const POLL_WAIT: Duration = Duration::from_millis(500);
/// The limits of one poll.
const POLL_LIMITS: PollLimits = PollLimits {
    records: 500,
    bytes: 1024 * 1024,
};
/// The size of the read-ahead.
const READ_AHEAD_KIB_MAX: u32 = 4 * 1024;
const READ_AHEAD_RECORDS_MAX: u32 = 1_000;

/// How long the brokers may hold an empty fetch back. Short, because other requests on the same
/// connection wait for it.
const FETCH_WAIT_MAX: Duration = Duration::from_millis(50);

/// The client ID that brokers see.
pub(crate) const CLIENT_ID: &str = "waybill-cli";

/// The result of a reader: whether it wants the next record.
pub(crate) type Next = anyhow::Result<ControlFlow<()>>;

/// A connection to the brokers.
pub(crate) struct Connection {
    settings: KafkaSettings,
    topic_prefix: String,
    runtime: Runtime,
    admin: Admin,
    consumer: PartitionConsumer,
}

impl Connection {
    /// Connects to the configured brokers, or to the embedded one at its configured address.
    pub(crate) fn open(config: &Config) -> anyhow::Result<Self> {
        let settings = config.kafka_settings_of_commands();
        let runtime = runtime()?;
        let admin = Admin::new(&settings, CLIENT_ID)?;
        runtime.block_on(wait_ready(&admin, config, BROKER_PATIENCE))?;
        let mut options = ConsumerOptions::new(CLIENT_ID);
        options.queue_kib_max = READ_AHEAD_KIB_MAX;
        options.queue_records_max = READ_AHEAD_RECORDS_MAX;
        options.fetch_wait_max = FETCH_WAIT_MAX;
        let consumer = PartitionConsumer::new(&settings, &options)?;
        Ok(Self {
            settings,
            topic_prefix: config.kafka.topic_prefix.clone(),
            runtime,
            admin,
            consumer,
        })
    }

    /// The settings for additional clients.
    pub(crate) fn settings(&self) -> &KafkaSettings {
        &self.settings
    }

    /// The number of partitions of a topic; `None` if it does not exist.
    pub(crate) fn partitions(&self, topic: &str) -> anyhow::Result<Option<u32>> {
        Ok(self.runtime.block_on(self.admin.topic_partitions(topic))?)
    }

    /// Resolves a topic's full or short name, and returns its number of partitions.
    pub(crate) fn topic(&self, given: &str) -> anyhow::Result<(String, u32)> {
        self.first_of(names_of(&self.topic_prefix, given))
    }

    /// Resolves a dead-letter topic by its own name or by that of its source.
    pub(crate) fn dead_letter_topic(&self, given: &str) -> anyhow::Result<(String, u32)> {
        let source = Topics::source_of_dead_letter(given).unwrap_or(given);
        let names = names_of(&self.topic_prefix, source)
            .iter()
            .map(|name| Topics::dead_letter(name))
            .collect();
        self.first_of(names)
    }

    /// The dead-letter topics that this user may describe, and those of roles that it may not.
    pub(crate) fn dead_letter_topics(&self) -> anyhow::Result<DeadLetterTopics> {
        let prefix = &self.topic_prefix;
        let found = DeadLetterTopics::find(&self.admin, prefix, of_roles(prefix));
        self.runtime.block_on(found)
    }

    fn first_of(&self, names: Vec<String>) -> anyhow::Result<(String, u32)> {
        let mut tried = Vec::new();
        for name in names.into_iter().filter(|name| is_topic_name(name)) {
            if let Some(partitions) = self.partitions(&name)? {
                return Ok((name, partitions));
            }
            tried.push(name);
        }
        bail!(
            "there is no topic {} at {}",
            tried.join(" or "),
            self.settings.brokers
        )
    }

    /// The range of offsets that a partition holds. Asks the brokers.
    pub(crate) fn offsets(
        &self,
        topic: &str,
        partition: PartitionId,
    ) -> anyhow::Result<Range<i64>> {
        let (low, high) = self
            .consumer
            .watermarks(topic, partition, BROKER_PATIENCE)
            .with_context(|| format!("{topic} partition {partition}"))?;
        Ok(low.0..high.0)
    }

    /// Passes the records of a range of offsets to the reader in order, until the range ends or the
    /// reader stops. Skips offsets without a record: deleted by retention, or used by the broker
    /// itself.
    ///
    /// The range must not go beyond the end of the partition.
    pub(crate) fn read(
        &self,
        topic: &str,
        partition: PartitionId,
        range: Range<i64>,
        on_record: &mut dyn FnMut(RecordRef<'_>) -> Next,
    ) -> anyhow::Result<ControlFlow<()>> {
        if range.is_empty() {
            // An empty range may start at an offset that does not exist.
            return Ok(ControlFlow::Continue(()));
        }
        let read = self.read_assigned(topic, partition, range, on_record);
        // An open fetch at the end would delay the next request.
        self.start(&[])?;
        read
    }

    fn read_assigned(
        &self,
        topic: &str,
        partition: PartitionId,
        mut range: Range<i64>,
        on_record: &mut dyn FnMut(RecordRef<'_>) -> Next,
    ) -> anyhow::Result<ControlFlow<()>> {
        let mut quiet_since = Instant::now();
        let mut end_met = false;
        self.start(&[(topic, partition, Offset(range.start))])?;
        while !range.is_empty() {
            let mut next: Next = Ok(ControlFlow::Continue(()));
            let read_to = Cell::new(range.start);
            let polled = self.consumer.poll_with_positions(
                POLL_LIMITS,
                POLL_WAIT,
                &mut |record| {
                    let offset = record.offset().0;
                    if range.contains(&offset) && wants_more(&next) {
                        next = on_record(record);
                    }
                    read_to.set(offset + 1);
                },
                &mut |_, _, position| {
                    end_met = true;
                    read_to.set(position.0.max(read_to.get()));
                },
            );
            range.start = range.start.max(read_to.get());
            if next?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match polled {
                Ok(polled) if polled.records > 0 => quiet_since = Instant::now(),
                Ok(_) if quiet_since.elapsed() < QUIET_MAX => {}
                Ok(_) => {
                    self.offsets(topic, partition)
                        .with_context(|| format!("reading stopped at offset {}", range.start))?;
                    // The brokers are reachable and sent all they have. Compaction can leave an end
                    // that no position reaches.
                    if end_met {
                        break;
                    }
                    quiet_since = Instant::now();
                }
                Err(PollError::OffsetOutOfRange(of))
                    if of.iter().all(|of| of.low.0 > range.start) =>
                {
                    // Only one partition is assigned.
                    let low = of[0].low;
                    tracing::warn!(
                        topic,
                        partition = partition.0,
                        from = range.start,
                        to = low.0,
                        "retention deleted records during the read"
                    );
                    range.start = low.0;
                    self.start(&[(topic, partition, low)])?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Passes new records of partitions to the reader as they arrive, until the reader stops.
    pub(crate) fn follow(
        &self,
        partitions: &[(&str, PartitionId, Offset)],
        on_record: &mut dyn FnMut(RecordRef<'_>) -> Next,
    ) -> anyhow::Result<()> {
        self.start(partitions)?;
        loop {
            let mut next: Next = Ok(ControlFlow::Continue(()));
            self.consumer.poll(POLL_LIMITS, POLL_WAIT, &mut |record| {
                if wants_more(&next) {
                    next = on_record(record);
                }
            })?;
            if next?.is_break() {
                return Ok(());
            }
        }
    }

    fn start(&self, partitions: &[(&str, PartitionId, Offset)]) -> anyhow::Result<()> {
        Ok(self.consumer.assign(partitions)?)
    }
}

fn wants_more(next: &Next) -> bool {
    matches!(next, Ok(ControlFlow::Continue(())))
}

/// The full names that a topic name on the command line may mean, the literal one first.
pub(crate) fn names_of(prefix: &str, given: &str) -> Vec<String> {
    let whole = match Topics::source_of_dead_letter(given) {
        Some(source) => Topics::dead_letter(&format!("{prefix}.{source}.v1")),
        None => format!("{prefix}.{given}.v1"),
    };
    vec![given.to_owned(), whole]
}

/// All partitions, or the requested one.
pub(crate) fn chosen(
    topic: &str,
    partitions: u32,
    wanted: Option<u32>,
) -> anyhow::Result<BTreeSet<PartitionId>> {
    let Some(wanted) = wanted else {
        return Ok((0..partitions).map(PartitionId).collect());
    };
    ensure!(
        wanted < partitions,
        "{topic} has no partition {wanted}: it has {partitions}, numbered from 0"
    );
    Ok(BTreeSet::from([PartitionId(wanted)]))
}

/// Treats a closed output, such as that of `| head`, as the end of the command.
pub(crate) fn until_reader_leaves(result: anyhow::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        other => other,
    }
}

/// Whether the reader of the output has left.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Parses the name of a topic on the command line.
pub(crate) fn topic_from_text(text: &str) -> Result<String, String> {
    if is_topic_name(text) {
        Ok(text.to_owned())
    } else {
        Err("must have 1 to 249 characters, and only a-z, A-Z, 0-9, '.', '_' and '-'".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_may_be_given_with_or_without_prefix() {
        assert_eq!(
            names_of("acme", "failed-operations"),
            ["failed-operations", "acme.failed-operations.v1"]
        );
        assert_eq!(
            names_of("acme", "drone.requests.dlq"),
            ["drone.requests.dlq", "acme.drone.requests.v1.dlq"]
        );
    }

    #[test]
    fn a_missing_partition_is_refused_with_the_existing_ones() {
        assert_eq!(chosen("t", 2, None).unwrap().len(), 2);
        assert_eq!(
            chosen("t", 2, Some(1)).unwrap(),
            BTreeSet::from([PartitionId(1)])
        );
        let error = chosen("t", 2, Some(2)).unwrap_err().to_string();
        assert_eq!(error, "t has no partition 2: it has 2, numbered from 0");
    }

    #[test]
    fn without_brokers_the_embedded_one_is_used() {
        let mut config = Config::default();
        assert_eq!(
            config.kafka_settings_of_commands().brokers,
            config.broker.listen.to_string()
        );
        config.kafka.brokers = Some(vec!["a:1".to_owned(), "b:2".to_owned()]);
        assert_eq!(config.kafka_settings_of_commands().brokers, "a:1,b:2");
    }
}
