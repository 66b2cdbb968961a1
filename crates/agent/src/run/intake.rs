//! Turns records into work of agents, on the polling thread.

use std::sync::Arc;

use waybill_agent_core::{Admission, Purpose, Sent, Source, Work};
use waybill_clock::clocks;
use waybill_engine::{Begun, Offset, StepRequest, Timestamp};
use waybill_kafka::{DamagedLog, GroupHandler, RawRecord, RecordRef, TopicPartition};
use waybill_messages::headers::{Stage, TRACEPARENT};
use waybill_messages::{Contents, DeadLetter, DecodeError, Topics, undecodable};

use super::outbox::Outgoing;
use super::worker::Shared;

/// Takes records on the polling thread.
pub(super) struct Intake {
    shared: Arc<Shared>,
    /// Agents with new work since their workers were last woken.
    touched: Vec<bool>,
    /// Requests whose schema the registry has not returned yet: at most those of one poll.
    waiting: Vec<Waiting>,
}

/// A request that cannot be decoded yet.
struct Waiting {
    source: Source,
    bytes: usize,
    record: RawRecord,
}

impl Intake {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            touched: vec![false; shared.agents.len()],
            shared,
            waiting: Vec::new(),
        }
    }

    /// The number of requests that cannot be decoded yet, without those of revoked partitions. The
    /// consumer must not be polled while there are any.
    pub(super) fn waiting(&self) -> usize {
        let agents = self.shared.state.lock();
        let waiting = self.waiting.iter();
        waiting
            .filter(|waiting| agents.holds(waiting.source))
            .count()
    }

    /// Wakes the workers of agents with new work.
    pub(super) fn wake(&mut self) {
        for (agent, touched) in self.shared.agents.iter().zip(&mut self.touched) {
            if std::mem::take(touched) {
                agent.wake.notify_one();
            }
        }
    }

    fn agent_of(&self, topic: &str) -> Option<usize> {
        self.shared
            .agents
            .iter()
            .position(|agent| agent.topic == topic)
    }

    /// Handles what became of a request that was read.
    fn admitted(&mut self, source: Source, admission: Admission<Source>) {
        let index = source.topic;
        let agent = &self.shared.agents[index];
        match admission {
            Admission::Queued => self.touched[index] = true,
            Admission::Late => agent.metrics.late.increment(1),
            Admission::Refused(refused) => self.shared.refuse(agent, &refused),
        }
    }

    /// Retries requests that could not be decoded yet, except those that another group member owns
    /// by now.
    pub(super) fn read_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let is_held = self.shared.state.lock().holds(waiting.source);
            if is_held {
                self.read(waiting);
            }
        }
        self.wake();
    }

    fn read(&mut self, waiting: Waiting) {
        let value = waiting.record.value.as_deref().unwrap_or_default();
        match self.shared.framing.decode::<StepRequest>(value) {
            Ok(mut request) => {
                request.traceparent = waiting
                    .record
                    .headers
                    .iter()
                    .find(|(name, _)| name == TRACEPARENT)
                    .and_then(|(_, value)| std::str::from_utf8(value.as_deref()?).ok())
                    .map(Arc::from);
                let sent = waiting.record.timestamp_ms.map(Timestamp::from_millis);
                let now = clocks();
                let work = Work::new(request, waiting.source, waiting.bytes, sent, now);
                let state = &self.shared.state;
                let admission = state.finish(|agents| agents.read(work, now));
                self.admitted(waiting.source, admission);
            }
            Err(error) if error.waits_for().is_some() => self.waiting.push(waiting),
            Err(error) => self.bury(waiting.record, waiting.source, &error),
        }
    }

    /// Sends a record that cannot be decoded to its dead-letter topic, unchanged.
    fn bury(&self, raw: RawRecord, source: Source, error: &DecodeError) {
        self.shared.agents[source.topic].metrics.poison.increment(1);
        tracing::warn!(
            topic = raw.topic,
            partition = raw.partition.0,
            offset = raw.offset.0,
            error = error as &dyn std::error::Error,
            "could not decode a step request; sending it to the dead-letter topic"
        );
        let contents = Contents {
            key: raw.key,
            value: raw.value,
            headers: raw.headers,
        };
        self.put_aside(&raw.topic, contents, source, &error.to_string());
    }

    /// Sends the contents of a position to the topic's dead-letter topic.
    fn put_aside(&self, topic: &str, contents: Contents, source: Source, cause: &str) {
        let dead_letter = DeadLetter {
            topic,
            partition: source.partition,
            offset: source.offset,
            task_id: &self.shared.client_id,
            stage: Stage::Value,
            component: "agent",
            error_kind: "DecodeError",
            message: cause,
        };
        let kept = dead_letter.keep(contents);
        self.shared.outbox.send(Outgoing {
            topic: Topics::dead_letter(topic).into(),
            partition: source.partition,
            key: kept.key,
            value: kept.value,
            headers: kept.headers,
            sent: Sent {
                source,
                purpose: Purpose::DeadLetter,
            },
        });
    }
}

impl GroupHandler for Intake {
    fn record(&mut self, record: RecordRef<'_>) {
        let Some(index) = self.agent_of(record.topic()) else {
            return;
        };
        let (partition, offset) = (record.partition(), record.offset());
        let value = record.value().unwrap_or_default();
        let state = &self.shared.state;
        match self.shared.framing.decode::<StepRequest>(value) {
            Ok(mut request) => {
                request.traceparent = record
                    .header(TRACEPARENT)
                    .and_then(|value| std::str::from_utf8(value).ok())
                    .map(Arc::from);
                let sent = record.timestamp_ms().map(Timestamp::from_millis);
                let (now, bytes) = (clocks(), record.bytes());
                let read = state.finish(|agents| {
                    let begun = agents.begin(index, partition, offset)?;
                    let work = Work::new(request, begun.record, bytes, sent, now);
                    Some((begun, agents.read(work, now)))
                });
                if let Some((begun, admission)) = read {
                    report(&record, begun);
                    self.admitted(begun.record, admission);
                }
            }
            Err(error) => {
                let begun = state.lock().begin(index, partition, offset);
                let Some(begun) = begun else {
                    return;
                };
                report(&record, begun);
                let (source, record, bytes) = (begun.record, record.to_raw(), record.bytes());
                match error.waits_for() {
                    Some(_) => self.waiting.push(Waiting {
                        source,
                        bytes,
                        record,
                    }),
                    None => self.bury(record, source, &error),
                }
            }
        }
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            if let Some(agent) = self.agent_of(&at.topic) {
                self.shared.state.lock().assign(agent, at.partition);
            }
        }
    }

    fn revoked(
        &mut self,
        partitions: &[TopicPartition],
        lost: bool,
    ) -> Vec<(TopicPartition, Offset)> {
        if lost {
            tracing::warn!("lost the assigned partitions; other members may own them now");
        }
        partitions
            .iter()
            .filter_map(|at| {
                let agent = self.agent_of(&at.topic)?;
                let state = &self.shared.state;
                let offset = state.finish(|agents| agents.revoke(agent, at.partition))?;
                Some((at.clone(), offset))
            })
            .collect()
    }

    fn takes_undecodable(&self) -> bool {
        true
    }

    fn undecodable(&mut self, log: &DamagedLog, next: Offset) -> bool {
        let Some(index) = self.agent_of(&log.topic) else {
            return false;
        };
        let source = {
            let mut agents = self.shared.state.lock();
            let source = agents.begin_undecodable(index, log.partition, log.offset);
            agents.pass(index, log.partition, next);
            source
        };
        if let Some(source) = source {
            self.shared.agents[index].metrics.poison.increment(1);
            let range = (log.offset, next);
            let contents = undecodable(&log.topic, log.partition, range, &log.cause);
            self.put_aside(&log.topic, contents, source, &log.cause);
        }
        true
    }
}

/// Logs if a record begins another log than the one that was read before.
fn report(record: &RecordRef<'_>, begun: Begun<usize>) {
    if let Some(read_to) = begun.old_log_read_to {
        record.report_new_log(read_to);
    }
}
