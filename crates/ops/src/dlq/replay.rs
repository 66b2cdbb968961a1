//! `waybill dlq replay`: sends poison records to their original partitions again, byte for byte.
//!
//! Key, value and headers are the original ones, without the dead-letter headers and with one that
//! names the poison record. The timestamp is that of the replay: with the original one, retention
//! might delete the record before it is read.
//!
//! What must hold: a record counts as replayed only once it is acknowledged; then a receipt is
//! written, and later runs skip it. Records are sent in order, and at most a second's worth is
//! unacknowledged.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::ControlFlow;
use std::ops::Range;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use tokio::sync::oneshot;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{Delivery, Header, OutRecord, Producer, ProducerOptions};
use waybill_messages::DEAD_LETTER_BYTES_MAX;
use waybill_node::config::Config;
use waybill_telemetry::chain;
use waybill_telemetry::visible::to_json;
use waybill_terminal::Output;

use super::dead_letter::{DeadLetter, Place, Position, REPLAYED_FROM, refuse_arguments};
use super::outcome::{Line, Outcome, Tally, Target};
use super::receipts::{REPLAYED, Receipts, is_receipt};
use super::show::dead_letter_at;
use crate::broker_login::BrokerLogin;
use crate::connection::{CLIENT_ID, Connection, chosen};

/// The maximum number of unacknowledged records.
const BATCH_MAX: usize = 100;
/// The maximum size of unacknowledged records.
const QUEUE_KIB_MAX: u32 = 16 * 1024;
/// How long the producer may wait for space in its queue.
const ROOM_PATIENCE: Duration = Duration::from_secs(30);

type ReplayProducer = Producer<Box<oneshot::Sender<Delivery>>>;

/// The arguments of `waybill dlq replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// A dead letter as `dlq list` prints it (topic/partition/offset), or the full or short name of
    /// the source topic or dead-letter topic
    #[arg(value_name = "DEAD_LETTER|TOPIC")]
    place: Place,
    /// After TOPIC: the partition of the dead letters; with --all, replay only this one
    partition: Option<u32>,
    /// After TOPIC: the offsets of the dead letters
    #[arg(
        value_name = "OFFSET",
        conflicts_with = "all",
        value_parser = clap::value_parser!(i64).range(0..)
    )]
    offsets: Vec<i64>,
    /// Replay every dead letter that exists now and was not replayed
    #[arg(long)]
    all: bool,
    /// With --all: stop after this number of dead letters; the next run continues after them
    #[arg(long, value_name = "N", conflicts_with = "offsets")]
    limit: Option<NonZeroU64>,
    /// Replay dead letters that were replayed before, too
    #[arg(long)]
    again: bool,
    /// Show what would be replayed, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// The maximum number of dead letters per second
    #[arg(long, value_name = "N/s")]
    rate: Option<Rate>,
    /// The format of the outcomes
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    login: BrokerLogin,
}

/// Dead letters per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate(NonZeroU32);

impl FromStr for Rate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_suffix("/s").unwrap_or(text);
        let rate = number.parse().map(Self);
        rate.map_err(|_| "expected a number of dead letters per second, such as 50/s")
    }
}

impl ReplayArgs {
    pub(super) fn run(&self, config: &Config) -> anyhow::Result<()> {
        let (topic, partition, offsets) = self.chosen();
        let connection = Connection::open(&self.login.on(config)?)?;
        let (topic, partitions) = connection.dead_letter_topic(topic)?;
        let partitions = chosen(&topic, partitions, partition)?;
        let mut replay = Replay::new(self, &connection, io::stdout().lock())?;
        for partition in partitions {
            let flow = match self.all {
                true => replay.all_of(&topic, partition),
                false => replay.chosen_of(&topic, partition, &offsets),
            };
            // After a failure, settle and report the records that were sent before it.
            let settled = replay.settle(&topic, partition);
            let flow = flow?;
            settled?;
            if flow.is_break() {
                break;
            }
        }
        replay.conclude()
    }

    /// The topic, partition and offsets that the arguments name.
    fn chosen(&self) -> (&str, Option<u32>, Vec<i64>) {
        let (partition, offsets) = (self.partition, self.offsets.clone());
        match &self.place {
            Place::DeadLetter(at) if partition.is_none() && !self.all => {
                (&at.topic, Some(at.partition.0), vec![at.offset.0])
            }
            Place::Topic(topic) if self.all || !offsets.is_empty() => (topic, partition, offsets),
            _ => refuse_arguments(
                "name dead letters: TOPIC/PARTITION/OFFSET, TOPIC PARTITION OFFSET..., or TOPIC [PARTITION] --all",
            ),
        }
    }
}

/// A running replay.
struct Replay<'a, W> {
    arguments: &'a ReplayArgs,
    connection: &'a Connection,
    /// `None` if nothing is sent.
    producer: Option<ReplayProducer>,
    pace: Pace,
    batch_max: usize,
    /// The remaining number of dead letters to replay; `None` for all.
    left: Option<u64>,
    /// The source topics of dead letters, with their number of partitions.
    sources: BTreeMap<String, Option<u32>>,
    waiting: Vec<Waiting>,
    tally: Tally,
    out: W,
}

/// A dead letter whose record was sent and is unacknowledged.
struct Waiting {
    dead_letter: Position,
    to: Target,
    delivery: oneshot::Receiver<Delivery>,
}

impl<'a, W: Write> Replay<'a, W> {
    fn new(arguments: &'a ReplayArgs, connection: &'a Connection, out: W) -> anyhow::Result<Self> {
        let producer = match arguments.dry_run {
            true => None,
            false => {
                let mut options = ProducerOptions::new(CLIENT_ID);
                options.queue_kib_max = QUEUE_KIB_MAX;
                options.message_bytes_max = DEAD_LETTER_BYTES_MAX;
                Some(Producer::new(connection.settings(), &options)?)
            }
        };
        Ok(Self {
            arguments,
            connection,
            producer,
            pace: Pace::new(arguments.rate),
            batch_max: batch_max(arguments.rate),
            left: arguments.limit.map(NonZeroU64::get),
            sources: BTreeMap::new(),
            waiting: Vec::new(),
            tally: Tally::default(),
            out,
        })
    }

    /// Replays the records that a partition holds now. New dead letters are left for another run.
    fn all_of(&mut self, topic: &str, partition: PartitionId) -> anyhow::Result<ControlFlow<()>> {
        let connection = self.connection;
        let range = connection.offsets(topic, partition)?;
        let replayed = self.replayed(topic, partition, range.clone())?;
        connection.read(topic, partition, range, &mut |record| {
            if is_receipt(&record) {
                return Ok(ControlFlow::Continue(()));
            }
            if replayed.contains(record.offset().0) {
                self.tally.skipped += 1;
                return Ok(ControlFlow::Continue(()));
            }
            if self.left == Some(0) {
                return Ok(ControlFlow::Break(()));
            }
            self.take(DeadLetter::of(record.to_raw()))?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The dead letters to skip, by the receipts in a range of the partition's offsets.
    fn replayed(
        &self,
        topic: &str,
        partition: PartitionId,
        range: Range<i64>,
    ) -> anyhow::Result<Receipts> {
        match self.arguments.again {
            true => Ok(Receipts::default()),
            false => Receipts::read(self.connection, topic, partition, range),
        }
    }

    /// Replays the dead letters at these offsets, in order.
    fn chosen_of(
        &mut self,
        topic: &str,
        partition: PartitionId,
        offsets: &[i64],
    ) -> anyhow::Result<ControlFlow<()>> {
        let mut offsets = offsets.to_vec();
        offsets.sort_unstable();
        offsets.dedup();
        let mut held = self.connection.offsets(topic, partition)?;
        // A receipt comes after its dead letter.
        held.start = held.start.max(offsets.first().copied().unwrap_or(0));
        let replayed = self.replayed(topic, partition, held)?;
        for offset in offsets {
            let line = |outcome, note| Line {
                dead_letter: Position {
                    topic: topic.to_owned(),
                    partition,
                    offset: Offset(offset),
                },
                outcome,
                to: None,
                note: Some(note),
            };
            if replayed.contains(offset) {
                let note = "it was replayed before; --again replays it again";
                self.report(line(Outcome::Skipped, note.to_owned()))?;
                continue;
            }
            match dead_letter_at(self.connection, topic, partition, offset) {
                Ok(dead_letter) => self.take(dead_letter)?,
                Err(error) => self.report(line(Outcome::Failed, chain(&*error)))?,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Sends one dead letter's record, if it has a destination.
    fn take(&mut self, dead_letter: DeadLetter) -> anyhow::Result<()> {
        let to = match self.destination(&dead_letter)? {
            Ok(to) => to,
            Err(reason) => {
                return self.report(Line {
                    dead_letter: dead_letter.position,
                    outcome: Outcome::Failed,
                    to: None,
                    note: Some(reason),
                });
            }
        };
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        let Some(producer) = &self.producer else {
            return self.report(Line {
                dead_letter: dead_letter.position,
                outcome: Outcome::WouldReplay,
                to: Some(to),
                note: None,
            });
        };
        self.pace.wait();
        let (sender, delivery) = oneshot::channel();
        let mark = dead_letter.position.to_string();
        let headers = headers(&dead_letter, &mark);
        let record = OutRecord {
            topic: &to.topic,
            partition: to.partition,
            key: dead_letter.key.as_deref(),
            value: dead_letter.value.as_deref(),
            headers: &headers,
        };
        if let Err(refused) = producer.send_or_wait(&record, Box::new(sender), ROOM_PATIENCE) {
            // Report it like a record that the brokers refused.
            let (sender, error) = refused.into_parts();
            drop(sender.send(Delivery::failed(to.partition, error)));
        }
        let position = dead_letter.position;
        self.waiting.push(Waiting {
            dead_letter: position.clone(),
            to,
            delivery,
        });
        if self.waiting.len() >= self.batch_max {
            self.settle(&position.topic, position.partition)?;
        }
        Ok(())
    }

    /// The destination of a dead letter's record, or the reason why it has none.
    fn destination(&mut self, dead_letter: &DeadLetter) -> anyhow::Result<Result<Target, String>> {
        let Position {
            topic, partition, ..
        } = match dead_letter.destination() {
            Ok(source) => source,
            Err(unplaced) => return Ok(Err(unplaced.to_string())),
        };
        let partitions = match self.sources.get(&topic) {
            Some(partitions) => *partitions,
            None => {
                let partitions = self.connection.partitions(&topic)?;
                self.sources.insert(topic.clone(), partitions);
                partitions
            }
        };
        Ok(match partitions {
            None => Err(format!("the topic {topic} no longer exists")),
            Some(partitions) if partition.0 >= partitions => Err(format!(
                "{topic} has no partition {partition}: it has {partitions}, numbered from 0"
            )),
            Some(_) => Ok(Target {
                topic,
                partition,
                offset: None,
            }),
        })
    }

    /// Waits for acknowledgements, writes the receipt, and then reports the outcomes. The receipt
    /// comes first because the output may be closed.
    ///
    /// Fails if the brokers stop taking records, because the following dead letters would fail too.
    /// If they refuse a single record, the replay continues.
    fn settle(&mut self, topic: &str, partition: PartitionId) -> anyhow::Result<()> {
        let mut replayed = Receipts::default();
        let mut stopped = None;
        let mut lines = Vec::new();
        for sent in std::mem::take(&mut self.waiting) {
            let delivery = sent
                .delivery
                .blocking_recv()
                .context("the producer ended before it reported the outcome of a record")?;
            let (outcome, note) = match delivery.result {
                Ok(()) => {
                    replayed.add(sent.dead_letter.offset.0);
                    (Outcome::Replayed, None)
                }
                Err(error) => {
                    match &mut self.left {
                        // The next run skips no failed record, so it must not count towards the
                        // limit.
                        Some(left) if error.is_permanent() => *left += 1,
                        _ => {}
                    }
                    if !error.is_permanent() {
                        stopped = Some(error);
                    }
                    (Outcome::Failed, Some(chain(&error)))
                }
            };
            let to = Target {
                offset: delivery.offset,
                ..sent.to
            };
            lines.push(Line {
                dead_letter: sent.dead_letter,
                outcome,
                to: Some(to),
                note,
            });
        }
        if !replayed.is_empty()
            && let Err(error) = self.write_receipt(topic, partition, &replayed)
        {
            tracing::warn!(
                topic,
                partition = partition.0,
                dead_letters = replayed.to_text(),
                error = chain(&*error),
                "could not write a receipt; a repeat would replay these dead letters again"
            );
        }
        for line in lines {
            self.report(line)?;
        }
        match stopped {
            None => Ok(()),
            Some(error) => Err(anyhow::Error::new(error).context("the replay stopped")),
        }
    }

    fn write_receipt(
        &self,
        topic: &str,
        partition: PartitionId,
        replayed: &Receipts,
    ) -> anyhow::Result<()> {
        let producer = self.producer.as_ref().context("nothing is sent")?;
        let text = replayed.to_text();
        let header = Header {
            key: REPLAYED,
            value: Some(text.as_bytes()),
        };
        let record = OutRecord {
            topic,
            partition,
            key: None,
            value: None,
            headers: &[header],
        };
        let (sender, delivery) = oneshot::channel();
        producer
            .send_or_wait(&record, Box::new(sender), ROOM_PATIENCE)
            .map_err(|refused| refused.into_parts().1)?;
        Ok(delivery.blocking_recv()?.result?)
    }

    /// Reports the outcome for a dead letter, and counts it.
    fn report(&mut self, line: Line) -> anyhow::Result<()> {
        self.tally.count(line.outcome);
        match self.arguments.output {
            Output::Json => writeln!(self.out, "{}", to_json(&line)?)?,
            Output::Table => writeln!(self.out, "{line}")?,
        }
        Ok(())
    }

    fn conclude(self) -> anyhow::Result<()> {
        let Tally {
            replayed,
            would_replay,
            skipped,
            failed,
        } = self.tally;
        if self.arguments.dry_run {
            eprintln!("{would_replay} to replay, {skipped} replayed before, {failed} impossible");
        } else {
            eprintln!("{replayed} replayed, {skipped} replayed before, {failed} failed");
        }
        ensure!(failed == 0, "some dead letters cannot be replayed");
        Ok(())
    }
}

/// A record's own headers, with the mark of this replay instead of an older one.
fn headers<'a>(dead_letter: &'a DeadLetter, mark: &'a str) -> Vec<Header<'a>> {
    let own = dead_letter.headers.iter().map(|(key, value)| Header {
        key,
        value: value.as_deref(),
    });
    let mark = Header {
        key: REPLAYED_FROM,
        value: Some(mark.as_bytes()),
    };
    own.filter(|header| header.key != REPLAYED_FROM)
        .chain([mark])
        .collect()
}

/// The maximum number of unacknowledged dead letters: at most one second's worth, so that a slow
/// replay that is killed leaves few without a receipt.
fn batch_max(rate: Option<Rate>) -> usize {
    let of_rate = rate.and_then(|Rate(rate)| usize::try_from(rate.get()).ok());
    of_rate.map_or(BATCH_MAX, |rate| rate.min(BATCH_MAX))
}

/// Limits the rate.
struct Pace {
    interval: Duration,
    next: Instant,
}

impl Pace {
    fn new(rate: Option<Rate>) -> Self {
        let interval = rate.map(|Rate(rate)| Duration::from_secs(1) / rate.get());
        Self {
            interval: interval.unwrap_or_default(),
            next: Instant::now(),
        }
    }

    fn wait(&mut self) {
        let now = Instant::now();
        thread::sleep(self.next.saturating_duration_since(now));
        self.next = self.next.max(now) + self.interval;
    }
}

#[cfg(test)]
mod tests;
