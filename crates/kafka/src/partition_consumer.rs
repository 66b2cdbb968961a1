//! A consumer of partitions that the caller names; it belongs to no group.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{TopicPartitionList, TopicPartitionListElem};
use rdkafka::types::RDKafkaErrorCode;
use waybill_engine::{Offset, PartitionId};

use crate::TopicId;
use crate::client_log::ClientLog;
use crate::damage::{self, DamagedLog, History, Position, Round};
use crate::error::{ClientError, RequestError};
use crate::native;
use crate::partition::{partition_id, partition_number};
use crate::partition_list::{check_each, offsets_list, partitions_list};
use crate::poll::{self, OutOfRange, PollError, PollLimits, Polled};
use crate::rebootstrap::Rebootstrap;
use crate::record::RecordRef;
use crate::settings::{KafkaSettings, no_group};
use crate::severity::{Severity, severity};
use crate::stall::{Behind, StallWatch};
use crate::watermarks::watermarks;

/// How long a poll with an invalid position may ask the broker which partition has it.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long after damaged records, errors about positions may still result from them.
const DAMAGE_ECHO: Duration = Duration::from_secs(10);

/// How large one fetch is, of all partitions, unless its first batch is larger. Everything in it
/// takes memory at once, whatever the queue's limit: a record some 500 bytes besides its own, and a
/// compressed batch up to a hundred times its size.
pub(crate) const FETCH_BYTES_MAX: u32 = 256 * 1024;

/// Settings of a [`PartitionConsumer`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerOptions {
    /// The client's name in the brokers' metrics and in logs.
    pub client_id: String,
    /// The group under which [`PartitionConsumer::commit_copy`] commits; `None` if it never does.
    pub group_for_lag: Option<String>,
    /// Approximate size limit of prefetched records, over all partitions. Default 16 MiB.
    pub queue_kib_max: u32,
    /// Approximate limit of prefetched records per partition. Default 10,000.
    pub queue_records_max: u32,
    /// The longest that the broker may hold back an empty fetch: it sends records that arrive in
    /// the meantime immediately. Default 500 ms.
    pub fetch_wait_max: Duration,
}

impl ConsumerOptions {
    /// The defaults for a client ID.
    #[must_use]
    pub fn new(client_id: impl Into<String>) -> Self {
        Self {
            client_id: client_id.into(),
            group_for_lag: None,
            queue_kib_max: 16 * 1024,
            queue_records_max: 10_000,
            fetch_wait_max: Duration::from_millis(500),
        }
    }

    /// Options for reading single records: prefetches one record, and the broker holds no fetch
    /// back for long, as the next read would have to wait for it.
    #[must_use]
    pub fn single_records(client_id: impl Into<String>) -> Self {
        Self {
            queue_kib_max: 1_024,
            queue_records_max: 1,
            fetch_wait_max: Duration::from_millis(10),
            ..Self::new(client_id)
        }
    }
}

/// Fetch settings that both kinds of consumers share.
///
/// The pause after a full queue is short, because librdkafka's default of one second starves a
/// small queue.
pub(crate) fn fetch_settings(
    queue_kib_max: u32,
    queue_records_max: u32,
    fetch_wait_max: Duration,
) -> Vec<(&'static str, String)> {
    let queue_kib = queue_kib_max.clamp(1, 2_097_151);
    vec![
        ("queued.max.messages.kbytes", queue_kib.to_string()),
        (
            "queued.min.messages",
            queue_records_max.clamp(1, 10_000_000).to_string(),
        ),
        ("fetch.queue.backoff.ms", "5".to_owned()),
        ("fetch.error.backoff.ms", "100".to_owned()),
        (
            "fetch.wait.max.ms",
            fetch_wait_max.as_millis().clamp(1, 60_000).to_string(),
        ),
        ("fetch.min.bytes", "1".to_owned()),
        ("fetch.max.bytes", FETCH_BYTES_MAX.to_string()),
        ("max.partition.fetch.bytes", FETCH_BYTES_MAX.to_string()),
        // librdkafka raises `fetch.max.bytes` to this.
        ("message.max.bytes", FETCH_BYTES_MAX.to_string()),
        ("allow.auto.create.topics", "false".to_owned()),
    ]
}

/// A consumer of assigned partitions, polled from the caller's own thread.
///
/// To apply backpressure, stop polling: prefetching stops once the queue is full. Several threads
/// may use the consumer, but records of one partition are in order only if one thread polls.
pub struct PartitionConsumer {
    consumer: BaseConsumer<Context>,
    config: ClientConfig,
    client_id: String,
    commits: bool,
    /// The start offset of each assigned partition: its position before its first record.
    started_at: Mutex<HashMap<(String, i32), i64>>,
    /// When damaged records were met last.
    damage_met: Mutex<Option<Instant>>,
    stalls: Mutex<StallWatch>,
    damage_history: Mutex<History>,
}

impl PartitionConsumer {
    /// Creates a consumer without an assignment. Does not need a reachable broker.
    pub fn new(settings: &KafkaSettings, options: &ConsumerOptions) -> Result<Self, ClientError> {
        let mut defaults = fetch_settings(
            options.queue_kib_max,
            options.queue_records_max,
            options.fetch_wait_max,
        );
        // This consumer has no session, but dropping it waits this long for commits that reached no
        // broker.
        defaults.push(("session.timeout.ms", "2000".to_owned()));
        defaults.push(("heartbeat.interval.ms", "500".to_owned()));
        let group = options.group_for_lag.clone();
        let group = group.unwrap_or_else(|| no_group(&settings.group_prefix));
        let fixed = [
            ("group.id", group),
            ("enable.auto.commit", "false".to_owned()),
            ("enable.auto.offset.store", "false".to_owned()),
            ("enable.partition.eof", "true".to_owned()),
            ("auto.offset.reset", "error".to_owned()),
        ];
        let config = settings.consumer_config(&options.client_id, &defaults, &fixed)?;
        let context = Context {
            log: ClientLog::new(&options.client_id),
            rebootstrap: Rebootstrap::new(&config),
            position_lost: Mutex::default(),
        };
        let consumer = config
            .create_with_context(context)
            .map_err(|error| ClientError::new(&options.client_id, error))?;
        Ok(Self {
            consumer,
            config,
            client_id: options.client_id.clone(),
            commits: options.group_for_lag.is_some(),
            started_at: Mutex::default(),
            damage_met: Mutex::default(),
            stalls: Mutex::default(),
            damage_history: Mutex::default(),
        })
    }

    /// Replaces the assignment: each partition is read from its offset on. Drops all prefetched
    /// records, even those of partitions assigned both before and after. To change a running
    /// assignment, use [`PartitionConsumer::add`] and [`PartitionConsumer::remove`].
    pub fn assign(&self, partitions: &[(&str, PartitionId, Offset)]) -> Result<(), RequestError> {
        let failed = RequestError::new("assigning partitions");
        let list = match offsets_list(partitions) {
            Ok(list) => list,
            Err(error) => return Err(failed(error)),
        };
        self.consumer.assign(&list).map_err(failed)?;
        let mut started_at = self.started_at();
        started_at.clear();
        started_at.extend(start_positions(partitions));
        Ok(())
    }

    /// Adds partitions to the assignment and leaves the others unchanged.
    pub fn add(&self, partitions: &[(&str, PartitionId, Offset)]) -> Result<(), RequestError> {
        let failed = RequestError::new("adding partitions");
        let list = match offsets_list(partitions) {
            Ok(list) => list,
            Err(error) => return Err(failed(error)),
        };
        self.consumer.incremental_assign(&list).map_err(failed)?;
        self.started_at().extend(start_positions(partitions));
        Ok(())
    }

    /// Removes partitions from the assignment; none of their records is handed over after this.
    pub fn remove(&self, partitions: &[(&str, PartitionId)]) -> Result<(), RequestError> {
        let list = partitions_list(partitions.iter().copied());
        self.consumer
            .incremental_unassign(&list)
            .map_err(RequestError::new("removing partitions"))?;
        let mut started_at = self.started_at();
        for (topic, partition) in partitions {
            started_at.remove(&((*topic).to_owned(), partition_number(*partition)));
        }
        Ok(())
    }

    /// Waits up to `timeout` for a record, then takes the available records, up to the limits,
    /// without further waiting.
    pub fn poll(
        &self,
        limits: PollLimits,
        timeout: Duration,
        on_record: &mut dyn FnMut(RecordRef<'_>),
    ) -> Result<Polled, PollError> {
        self.take(limits, timeout, on_record, |_| {})
    }

    /// Polls, and reports the position in each partition whose end was reached: `on_end` gets
    /// topic, partition and an offset below which every record was handed over. The offset may be
    /// beyond the last record handed over, if control records of transactions or records of aborted
    /// ones follow it. Called once for each end that is reached, after the records of the same
    /// poll. Only for consumers that one thread polls.
    ///
    /// One kind of gap is not reported, because librdkafka does not count it as read: batches at
    /// the end that compaction has emptied completely.
    pub fn poll_with_positions(
        &self,
        limits: PollLimits,
        timeout: Duration,
        on_record: &mut dyn FnMut(RecordRef<'_>),
        on_end: &mut dyn FnMut(&str, PartitionId, Offset),
    ) -> Result<Polled, PollError> {
        let mut ended = Vec::new();
        let polled = self.take(limits, timeout, on_record, |partition| {
            ended.push(partition);
        });
        if ended.is_empty() {
            return polled;
        }
        let reported = self.report_positions(&ended, on_end);
        polled.and_then(|polled| reported.map(|()| polled))
    }

    fn take(
        &self,
        limits: PollLimits,
        timeout: Duration,
        on_record: &mut dyn FnMut(RecordRef<'_>),
        on_end: impl FnMut(i32),
    ) -> Result<Polled, PollError> {
        let context = self.consumer.context();
        context.rebootstrap.tend(self.consumer.client());
        let polled = poll::take(&self.consumer, limits, timeout, on_record, on_end, || false);
        if let Ok(polled) = polled
            && !limits.are_reached(polled)
        {
            self.leave_stalled()?;
        }
        polled.or_else(|error| match severity(&error) {
            Severity::Damaged => self.leave_damaged(&error),
            Severity::OffsetReset => self.diagnose(&error).map_or(Ok(Polled::default()), Err),
            Severity::Transient | Severity::Inconsistent | Severity::Fatal => {
                Err(PollError::Fatal {
                    client_id: self.client_id.clone(),
                    source: error,
                })
            }
        })
    }

    /// Finds out which partitions are damaged and stops reading them. Reads all others again from
    /// the end of their records: the prefetched ones may have gaps.
    fn leave_damaged(&self, error: &KafkaError) -> Result<Polled, PollError> {
        *self
            .damage_met
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let positions = self.positions()?;
        let damaged = self.ask(|round| round.find(&self.consumer, positions.clone()));
        let (mut all, mut others) = (Vec::new(), Vec::new());
        for (topic, partition, position) in &positions {
            all.push((topic.as_str(), *partition));
            let is_damaged = |log: &DamagedLog| log.topic == *topic && log.partition == *partition;
            if !damaged.iter().any(is_damaged) {
                others.push((topic.as_str(), *partition, *position));
            }
        }
        let again = self.remove(&all).and_then(|()| self.add(&others));
        again.map_err(|error| PollError::PositionLost {
            reason: error.to_string(),
        })?;
        if damaged.is_empty() {
            damage::log_not_found(&self.client_id, error);
            return Ok(Polled::default());
        }
        Err(self.stopped(damaged))
    }

    /// Checks from time to time, after a poll that emptied the queue, for partitions that stall
    /// without an error, and removes those.
    fn leave_stalled(&self) -> Result<(), PollError> {
        let mut watch = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if !watch.is_due(now) {
            return Ok(());
        }
        // Without positions the check is only delayed: the next one reads them again.
        let Ok(positions) = self.positions() else {
            return Ok(());
        };
        let partitions = positions
            .into_iter()
            .map(|(topic, partition, position)| Behind {
                topic,
                partition,
                position: Some(position),
            });
        let suspects = watch.suspects(now, self.consumer.client(), partitions.collect());
        let suspects = suspects
            .into_iter()
            .filter_map(|at| Some((at.topic, at.partition, at.position?)))
            .collect();
        let stalled = self.ask(|round| round.find_stalled(&self.consumer, suspects, &mut watch));
        if stalled.is_empty() {
            return Ok(());
        }
        let at: Vec<_> = stalled
            .iter()
            .map(|log| (log.topic.as_str(), log.partition))
            .collect();
        self.remove(&at).map_err(|error| PollError::PositionLost {
            reason: error.to_string(),
        })?;
        Err(self.stopped(stalled))
    }

    /// Asks the brokers about damage.
    fn ask(&self, questions: impl FnOnce(&mut Round<'_>) -> Vec<DamagedLog>) -> Vec<DamagedLog> {
        let mut history = self
            .damage_history
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        questions(&mut Round {
            config: &self.config,
            history: &mut history,
            until: damage::round_end(),
            finds_next: true,
        })
    }

    /// Reports partitions that were removed. The caller decides whether to pass over undecodable
    /// records, and logs that.
    fn stopped(&self, damaged: Vec<DamagedLog>) -> PollError {
        for log in damaged.iter().filter(|log| log.next.is_none()) {
            log.log_stopped(&self.client_id, None);
        }
        PollError::Damaged(damaged)
    }

    /// The first offset of a partition and the one that its next record will get, from the broker.
    /// Blocks up to `timeout`.
    pub fn watermarks(
        &self,
        topic: &str,
        partition: PartitionId,
        timeout: Duration,
    ) -> Result<(Offset, Offset), RequestError> {
        watermarks(self.consumer.client(), topic, partition, timeout)
            .map_err(RequestError::new("reading a partition's offsets"))
    }

    /// The ID of a topic, from the broker that leads the given partition. `None` if the broker
    /// returns none, or hides the topic from this client. Blocks up to `timeout` for each of two
    /// requests.
    ///
    /// # Errors
    ///
    /// If that broker does not answer, or the partition does not exist.
    pub fn topic_id(
        &self,
        topic: &str,
        partition: PartitionId,
        timeout: Duration,
    ) -> Result<Option<TopicId>, RequestError> {
        native::topic_id(self.consumer.client(), topic, partition, timeout)
            .map_err(RequestError::new("reading the id of a topic"))
    }

    /// The offset that the next record of an assigned partition will get, as of the last fetch.
    /// Sends no request, and does not change while nothing is fetched. `None` before the first
    /// fetch.
    #[must_use]
    pub fn known_end(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        native::known_end(self.consumer.client(), topic, partition)
    }

    /// Commits offsets (of the next record to read) to the group that lag tools read. Best effort:
    /// returns immediately, logs failures, and Waybill never reads them back. Does nothing without
    /// [`ConsumerOptions::group_for_lag`].
    pub fn commit_copy(&self, offsets: &[(&str, PartitionId, Offset)]) {
        if !self.commits || offsets.is_empty() {
            return;
        }
        let committed =
            offsets_list(offsets).and_then(|list| self.consumer.commit(&list, CommitMode::Async));
        if let Err(error) = committed {
            self.consumer
                .context()
                .log
                .transient("committing offsets", &error);
        }
    }

    /// The offsets (of the next record to read) that the group of
    /// [`ConsumerOptions::group_for_lag`] has committed, in the order of `partitions`; `None` if it
    /// has committed none. Queries as lag tools do, and joins no group. Blocks up to `timeout`.
    pub fn committed(
        &self,
        partitions: &[(&str, PartitionId)],
        timeout: Duration,
    ) -> Result<Vec<Option<Offset>>, RequestError> {
        let list = partitions_list(partitions.iter().copied());
        let found = self
            .consumer
            .committed_offsets(list, timeout)
            .map_err(RequestError::new("reading a group's offsets"))?;
        let committed = partitions.iter().map(|(topic, partition)| {
            let element = found.find_partition(topic, partition_number(*partition))?;
            match element.offset() {
                rdkafka::Offset::Offset(offset) => Some(Offset(offset)),
                _ => None,
            }
        });
        Ok(committed.collect())
    }

    /// Reports the positions in these partitions, of any topic: librdkafka does not report which
    /// topic's end it reached, and a position is valid at any time.
    fn report_positions(
        &self,
        partitions: &[i32],
        on_end: &mut dyn FnMut(&str, PartitionId, Offset),
    ) -> Result<(), PollError> {
        for element in self.position_list()?.elements() {
            if partitions.contains(&element.partition()) {
                on_end(
                    element.topic(),
                    partition_id(element.partition()),
                    Offset(self.position_of(&element)),
                );
            }
        }
        Ok(())
    }

    /// Where to continue reading each assigned partition.
    fn positions(&self) -> Result<Vec<Position>, PollError> {
        let list = self.position_list()?;
        let elements = list.elements();
        let positions = elements.iter().map(|element| {
            let position = Offset(self.position_of(element));
            let partition = partition_id(element.partition());
            (element.topic().to_owned(), partition, position)
        });
        Ok(positions.collect())
    }

    fn position_list(&self) -> Result<TopicPartitionList, PollError> {
        let list = self.consumer.position();
        list.and_then(|list| check_each(&list).map(|()| list))
            .map_err(|error| PollError::PositionLost {
                reason: error.to_string(),
            })
    }

    /// The position of an assigned partition: its start offset, or the offset reached since.
    fn position_of(&self, element: &TopicPartitionListElem<'_>) -> i64 {
        match element.offset() {
            rdkafka::Offset::Offset(offset) => offset,
            _ => self
                .started_at()
                .get(&(element.topic().to_owned(), element.partition()))
                .copied()
                .unwrap_or(0),
        }
    }

    /// Finds the partitions whose positions do not exist. librdkafka's error does not name its
    /// partition, and each is reported once only: so this checks all. `None` if every position is
    /// valid and damage was met recently: librdkafka continues at offsets from the damaged bytes,
    /// and reports one of them as invalid after the partition was removed.
    fn diagnose(&self, error: &KafkaError) -> Option<PollError> {
        let positions = match self.positions() {
            Ok(positions) => positions,
            Err(lost) => return Some(lost),
        };
        let mut out_of_range = Vec::new();
        let mut all_are_known = true;
        for (topic, partition, position) in positions {
            let number = partition_number(partition);
            let held = self
                .consumer
                .fetch_watermarks(&topic, number, DIAGNOSIS_TIMEOUT);
            let Ok((low, high)) = held else {
                all_are_known = false;
                break;
            };
            if position.0 < low || position.0 > high {
                out_of_range.push(OutOfRange {
                    topic,
                    partition,
                    offset: position,
                    low: Offset(low),
                    high: Offset(high),
                });
            }
        }
        if all_are_known && !out_of_range.is_empty() {
            return Some(PollError::OffsetOutOfRange(out_of_range));
        }
        let damage_met = *self
            .damage_met
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if all_are_known && damage_met.is_some_and(|at| at.elapsed() < DAMAGE_ECHO) {
            return None;
        }
        let reason = self
            .consumer
            .context()
            .position_lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Some(PollError::PositionLost {
            reason: reason.unwrap_or_else(|| error.to_string()),
        })
    }

    fn started_at(&self) -> std::sync::MutexGuard<'_, HashMap<(String, i32), i64>> {
        self.started_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PartitionConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionConsumer")
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// The callbacks that librdkafka calls while the consumer is polled.
struct Context {
    log: ClientLog,
    rebootstrap: Rebootstrap,
    /// The reason that came with the last invalid position.
    position_lost: Mutex<Option<String>>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.rebootstrap.error(&error);
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AutoOffsetReset) {
            *self
                .position_lost
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        } else {
            self.log.error(&error, reason);
        }
    }

    // The library's own would be compiled, with a parser of JSON, in each crate that drops a
    // consumer. Statistics are off.
    fn stats_raw(&self, _: &[u8]) {}
}

impl ConsumerContext for Context {
    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            self.log.transient("committing offsets", &error);
        }
    }
}

fn start_positions(
    partitions: &[(&str, PartitionId, Offset)],
) -> impl Iterator<Item = ((String, i32), i64)> {
    partitions.iter().map(|(topic, partition, offset)| {
        (
            ((*topic).to_owned(), partition_number(*partition)),
            offset.0,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_is_small_whatever_the_queue() {
        let settings = fetch_settings(2048, 100, Duration::from_millis(20));
        assert!(settings.contains(&("queued.max.messages.kbytes", "2048".to_owned())));
        let fetch = FETCH_BYTES_MAX.to_string();
        assert!(settings.contains(&("fetch.max.bytes", fetch.clone())));
        assert!(settings.contains(&("max.partition.fetch.bytes", fetch)));
        assert!(settings.contains(&("fetch.wait.max.ms", "20".to_owned())));
        assert!(settings.contains(&("fetch.queue.backoff.ms", "5".to_owned())));
    }
}
