//! Where the engine's messages go: to records on topics, by the one producer, and to agents of this process.

mod refused;

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use waybill_agent::{DirectAgents, not_attempted};
use waybill_engine::{
    AlertKind, ByPriority, FailedOperation, ForwardRecord, Message, Offset, OperationId,
    OperationStatus, OperatorAlert, PartitionId, STEP_REQUEST_REFUSED, ShardId, Source, StatusKind,
    StepReply, StepRequest, Workflows, partition_for,
};
use waybill_kafka::{
    DeliveredShared as _, Delivery, ErrorCode, Header, KafkaSettings, OutRecord, ProduceError,
    Producer, ProducerOptions, Settlement,
};
use waybill_messages::headers::{self, Stage};
use waybill_messages::{
    Contents, DEAD_LETTER_BYTES_MAX, DeadLetter, Record, Topics, is_topic_name,
};
use waybill_telemetry::chain;

use self::refused::RefusedSteps;
use super::SchedulerSettings;
use super::input::{Generation, Input, Inputs};
use super::metrics::{COPIES_DROPPED, STEPS_UNSENT, UNSENDABLE, alert_raised};
use super::nonces::Nonces;
use super::spans;

/// How long a full producer queue is waited for, over all messages of a partition, before the
/// partition begins again. Well below a lease: the loop renews none meanwhile.
const QUEUE_PATIENCE: Duration = Duration::from_secs(1);
/// After how long a step is asked for again whose request the broker refused because of its topic.
const UNSENT_RETRY_AFTER: Duration = Duration::from_secs(5);
/// How long an orderly end waits for attempts that agents of this process have begun.
const AGENTS_PATIENCE: Duration = Duration::from_secs(5);
/// How long an orderly end waits for what was sent.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// Which shard an agent of this process is asked by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub shard: ShardId,
    pub generation: Generation,
    /// The partition that it reads.
    pub partition: PartitionId,
}

/// Every message that was sent under a number is acknowledged, or one failed for good.
#[derive(Debug)]
pub(super) struct Settled {
    pub number: u64,
    pub result: Result<(), String>,
}

/// The producer and the names of everything that it writes to.
pub(super) struct Dispatcher {
    producer: Producer<Arc<Settlement>>,
    /// Agents that are asked without a record, if there are some.
    direct: Option<DirectAgents<Asker>>,
    nonces: Nonces,
    inputs: Inputs,
    topics: Topics,
    reply_to_prefixes: Vec<String>,
    /// Topic of each agent's step requests.
    of_agent: HashMap<Arc<str>, Arc<str>>,
    dead_requests: ByPriority<String>,
    dead_replies: String,
    dead_recoveries: String,
    partitions: u32,
    step_partitions: u32,
    publish_step_status: bool,
    refused: Arc<RefusedSteps>,
    settled: (mpsc::Sender<Settled>, mpsc::Receiver<Settled>),
    buffer: Vec<u8>,
    /// Until when the messages being sent may wait for room.
    wait_until: Instant,
}

impl Dispatcher {
    /// Starts the producer.
    ///
    /// # Errors
    ///
    /// If the Kafka client cannot be made.
    pub(super) fn start(
        kafka: &KafkaSettings,
        topics: &Topics,
        workflows: &Workflows,
        settings: &SchedulerSettings,
        partitions: u32,
        nonces: Nonces,
        inputs: Inputs,
    ) -> anyhow::Result<Self> {
        let options = ProducerOptions {
            message_bytes_max: DEAD_LETTER_BYTES_MAX,
            ..ProducerOptions::new("waybill-scheduler")
        };
        let of_agent = workflows.agents().into_iter().map(|agent| {
            // Shown from the beginning: an alert cannot see the first value of a counter as an increase.
            STEPS_UNSENT.of([&agent]).increment(0);
            let topic = topics.step_requests(&agent).into();
            (agent, topic)
        });
        Ok(Self {
            producer: Producer::new(kafka, &options)?,
            direct: None,
            nonces,
            inputs,
            reply_to_prefixes: settings.reply_to_prefixes.clone(),
            topics: topics.clone(),
            of_agent: of_agent.collect(),
            dead_requests: ByPriority::of(|priority| {
                Topics::dead_letter(topics.of_priority(priority))
            }),
            dead_replies: Topics::dead_letter(topics.step_replies()),
            dead_recoveries: Topics::dead_letter(topics.recovery()),
            partitions,
            step_partitions: settings.step_partitions,
            publish_step_status: settings.publish_step_status,
            refused: Arc::default(),
            settled: mpsc::channel(),
            buffer: Vec::new(),
            wait_until: Instant::now(),
        })
    }

    /// Asks agents of this process without a record.
    pub(super) fn with_agents(self, direct: Option<DirectAgents<Asker>>) -> Self {
        Self { direct, ..self }
    }

    /// Operations are spread over so many partitions from now on.
    pub(super) fn written(&mut self, partitions: u32) {
        self.partitions = partitions;
    }

    /// Sends the messages of a shard; [`Dispatcher::settled`] has `number` when all records are acknowledged. What agents
    /// of this process are asked needs no acknowledgement: it is lost with the engine, which then asks again.
    pub(super) fn send(&mut self, number: u64, from: Asker, mut messages: Vec<Message>) {
        let spans = spans::of_messages(&mut messages, |request| self.topic_for(request));
        if let Some(direct) = &self.direct {
            direct.ask(asked_directly(direct, from, &mut messages));
        }
        let sender = self.settled.0.clone();
        let settlement = Settlement::new(messages.len(), move |settled| {
            let result = settled.map_err(|error: ProduceError| chain(&error));
            spans::sent(spans, result.as_ref().err().map(String::as_str));
            let _ = sender.send(Settled { number, result });
        });
        self.wait_until = Instant::now() + QUEUE_PATIENCE;
        let mut buffer = std::mem::take(&mut self.buffer);
        for message in &mut messages {
            if let Message::Step(request) = message {
                request.nonce = Some(self.nonces.of_request(request));
            }
            self.send_one(from, message, &mut buffer, &settlement);
        }
        self.buffer = buffer;
    }

    /// The topics' names.
    pub(super) fn topics(&self) -> &Topics {
        &self.topics
    }

    /// What was settled since this was last asked.
    pub(super) fn settled(&self) -> impl Iterator<Item = Settled> {
        self.settled.1.try_iter()
    }

    /// What agents of this process have answered, and to whom.
    pub(super) fn answers(&self) -> Vec<(Asker, StepReply)> {
        let direct = self.direct.as_ref();
        direct.map_or_else(Vec::new, DirectAgents::take_answers)
    }

    /// Puts an answer of an agent of this process among the replies of its partition, where the present owner of the
    /// operation reads it. The agent was asked without a nonce, and the answer needs one there.
    pub(super) fn pass_on(&mut self, asker: &Asker, mut reply: StepReply) {
        reply.nonce = Some(self.nonces.of_reply(&reply));
        let operation = reply.operation;
        let settlement = Settlement::new(1, move |settled| {
            if let Err(error) = settled {
                tracing::warn!(%operation, %error, "an answer was not passed on; the step is asked for again");
            }
        });
        self.wait_until = Instant::now();
        let mut buffer = std::mem::take(&mut self.buffer);
        let address = (self.topics.step_replies(), asker.partition);
        self.keyed(address, operation, &reply, None, &mut buffer, &settlement);
        self.buffer = buffer;
    }

    /// A shard has lost its work: what agents of this process have not begun for it, its successor asks for.
    pub(super) fn forget(&self, shard: ShardId) {
        if let Some(direct) = &self.direct {
            direct.forget(|asker| asker.shard == shard);
        }
    }

    /// Shows how busy the agents of this process are.
    pub(super) fn show(&self) {
        if let Some(direct) = &self.direct {
            direct.show_depths();
        }
    }

    fn send_one(
        &self,
        from: Asker,
        message: &Message,
        buffer: &mut Vec<u8>,
        settlement: &Arc<Settlement>,
    ) {
        match message {
            Message::Step(request) => self.step(from, request, buffer, settlement),
            Message::Status(status) => self.status(status, buffer, settlement),
            Message::Failed(failed) => self.failed(failed, buffer, settlement),
            Message::Alert(alert) => {
                alert_raised(alert.kind);
                log_alert(alert, from.partition);
                let topic = self.topics.operator_alerts();
                self.told(topic, alert.operation, &**alert, buffer, settlement);
            }
            Message::Owner(notice) => {
                let topic = self.topics.owner_notices();
                self.told(topic, notice.operation, &**notice, buffer, settlement);
            }
            Message::Reroute {
                source,
                partition,
                partitions,
                record,
            } => {
                let partitions = partitions.to_string();
                let mark = Header {
                    key: headers::REROUTED,
                    value: Some(partitions.as_bytes()),
                };
                let headers: Vec<Header<'_>> = borrowed(&record.headers)
                    .chain(std::iter::once(mark))
                    .collect();
                self.forward(
                    self.topics.of(*source),
                    *partition,
                    record,
                    &headers,
                    settlement,
                );
            }
            Message::DeadLetter {
                source,
                offset,
                cause,
                record,
            } => {
                self.dead_letter(from.partition, *source, *offset, cause, record, settlement);
            }
        }
    }

    /// Tells of an operation that failed for good. One whose request leaves no room for the rest goes
    /// without it: the operation's row has it.
    fn failed(&self, failed: &FailedOperation, buffer: &mut Vec<u8>, settlement: &Arc<Settlement>) {
        let topic = self.topics.failed_operations();
        buffer.clear();
        if self.topics.framing().encode(failed, buffer).is_ok() {
            let address = self.home(topic, failed.operation);
            return self.send_value(address, failed.operation, None, buffer, settlement);
        }
        tracing::warn!(operation = %failed.operation, "the record of its failure leaves out its input");
        let without_input = FailedOperation {
            input: b"{}".to_vec(),
            ..failed.clone()
        };
        self.told(topic, failed.operation, &without_input, buffer, settlement);
    }

    /// Sends what an operation has to tell to its partition of a topic.
    fn told(
        &self,
        topic: &str,
        operation: OperationId,
        message: &impl Record,
        buffer: &mut Vec<u8>,
        settlement: &Arc<Settlement>,
    ) {
        let address = self.home(topic, operation);
        self.keyed(address, operation, message, None, buffer, settlement);
    }

    /// Final states and answers go to the status topic, and with everything else to the caller's
    /// own topic.
    fn status(&self, status: &OperationStatus, buffer: &mut Vec<u8>, settlement: &Arc<Settlement>) {
        let for_all = match status.kind {
            StatusKind::Received | StatusKind::Step => self.publish_step_status,
            StatusKind::Final
            | StatusKind::Rejected
            | StatusKind::CancelRefused
            | StatusKind::Rescheduled
            | StatusKind::RescheduleRefused => true,
        };
        if for_all {
            let topic = self.topics.operation_status();
            self.told(topic, status.operation, status, buffer, settlement);
        } else {
            buffer.clear();
            if let Err(error) = self.topics.framing().encode(status, buffer) {
                let topic = status.reply_to.as_deref().unwrap_or_default();
                return Self::unsendable(topic, Some(status.operation), &error, settlement);
            }
            count_as_sent(settlement);
        }
        if let Some(reply_to) = &status.reply_to
            && !buffer.is_empty()
        {
            self.copy_to_caller(reply_to, status, buffer);
        }
    }

    /// The topic by which an agent is asked; `None` if it is asked directly, or is not known.
    fn topic_for(&self, request: &StepRequest) -> Option<&str> {
        let direct = self.direct.as_ref();
        if direct.is_some_and(|direct| direct.has(&request.agent)) {
            return None;
        }
        self.of_agent.get(&request.agent).map(|topic| &**topic)
    }

    fn step(
        &self,
        from: Asker,
        request: &StepRequest,
        buffer: &mut Vec<u8>,
        settlement: &Arc<Settlement>,
    ) {
        let Some(topic) = self.of_agent.get(&request.agent) else {
            // An operation only runs workflows that were given at start, and so were their agents.
            return settlement.fail(ProduceError::Refused {
                code: ErrorCode::UnknownTopic,
            });
        };
        let partition = partition_for(request.operation, self.step_partitions);
        let settlement = self.of_step(from, request, (topic, partition), settlement);
        let traceparent = request.traceparent.as_deref();
        self.keyed(
            (topic, partition),
            request.operation,
            request,
            traceparent,
            buffer,
            &settlement,
        );
    }

    /// A settlement of one step request. If the broker refuses the request because of its topic (it lacks the partition,
    /// or this client may not write to it), the request counts as sent and the engine gets a reply that the attempt
    /// was not made: a fault of one agent's topic holds up the steps of that agent alone.
    fn of_step(
        &self,
        from: Asker,
        request: &StepRequest,
        (topic, partition): (&Arc<str>, PartitionId),
        settlement: &Arc<Settlement>,
    ) -> Arc<Settlement> {
        let (settlement, inputs, topic) = (settlement.clone(), self.inputs.clone(), topic.clone());
        let (agent, step) = (request.agent.clone(), request.step.clone());
        let &StepRequest {
            operation,
            attempt,
            epoch,
            action,
            ..
        } = request;
        let refused = Arc::clone(&self.refused);
        Settlement::new(1, move |settled| match settled {
            Ok(()) => {
                if refused.note_accepted(&agent, partition) {
                    tracing::info!(%agent, %topic, %partition, "step requests are accepted again");
                }
                count_as_sent(&settlement);
            }
            Err(error) if error.is_of_record() => {
                Self::unsendable(&topic, Some(operation), &error, &settlement);
            }
            Err(error) if error.is_permanent() => {
                STEPS_UNSENT.of([&agent]).increment(1);
                refused.note(&agent, partition);
                let why = format!(
                    "cannot write to partition {partition} of topic {topic}: {}",
                    chain(&error)
                );
                let reply = StepReply {
                    operation,
                    step: step.to_string(),
                    attempt,
                    epoch,
                    action,
                    nonce: None,
                    outcome: not_attempted(STEP_REQUEST_REFUSED, &why, UNSENT_RETRY_AFTER),
                };
                // A loop that has ended asks for nothing any more.
                let _ = inputs.send(Input::Unsent {
                    asker: from,
                    agent,
                    reply,
                    why,
                });
                count_as_sent(&settlement);
            }
            Err(error) => settlement.fail(error),
        })
    }

    /// Sends the caller its copy of a status record. The topic is the caller's: whatever is wrong
    /// with it must not hold up the partition, so nothing waits for the acknowledgement but a log
    /// line. The status topic has the record in any case.
    ///
    /// The prefixes are checked here, too: a request that was written straight to the topic has
    /// passed no ingestion.
    fn copy_to_caller(&self, reply_to: &str, status: &OperationStatus, buffer: &[u8]) {
        let operation = status.operation;
        let mut allowed = self.reply_to_prefixes.iter();
        if !is_topic_name(reply_to) || !allowed.any(|prefix| reply_to.starts_with(prefix)) {
            tracing::warn!(topic = reply_to, %operation, "no copy: the topic is not allowed");
            COPIES_DROPPED.of([]).increment(1);
            return;
        }
        let topic = reply_to.to_owned();
        let settlement = Settlement::new(1, move |settled| {
            if let Err(error) = settled {
                tracing::warn!(topic, %operation, %error, "the caller's copy was not delivered");
                COPIES_DROPPED.of([]).increment(1);
            }
        });
        let key = operation.key();
        let record = OutRecord::new(reply_to, OutRecord::BY_KEY, &key, buffer);
        if let Err(refused) = self.producer.send(&record, settlement) {
            let (settlement, error) = refused.into_parts();
            settlement.fail(error);
        }
    }

    fn dead_letter(
        &self,
        from: PartitionId,
        source: Source,
        offset: Offset,
        cause: &str,
        record: &ForwardRecord,
        settlement: &Arc<Settlement>,
    ) {
        let topic = self.topics.of(source);
        tracing::warn!(topic, partition = %from, %offset, cause, "dead-lettered a record");
        let dead_letter = DeadLetter {
            topic,
            partition: from,
            offset,
            task_id: "0",
            stage: Stage::Value,
            component: "scheduler",
            error_kind: "DecodeError",
            message: cause,
        };
        let kept = dead_letter.keep(Contents {
            key: record.key.clone(),
            value: record.value.clone(),
            headers: record.headers.clone(),
        });
        let headers: Vec<Header<'_>> = borrowed(&kept.headers).collect();
        let dead_letters = match source {
            Source::Requests => &self.dead_requests.normal,
            Source::HighPriority => &self.dead_requests.high,
            Source::Replies => &self.dead_replies,
            Source::Recoveries => &self.dead_recoveries,
        };
        let settlement = Self::unless_hopeless(dead_letters, settlement);
        let dead_letter = OutRecord {
            topic: dead_letters,
            partition: from,
            key: kept.key.as_deref(),
            value: kept.value.as_deref(),
            headers: &headers,
        };
        self.enqueue(&dead_letter, &settlement);
    }

    /// A settlement of one record that counts as sent where it would be refused for ever: a dead letter that
    /// nobody takes must not hold up the partition. The record itself stays where it lay for as long as its
    /// topic keeps it.
    fn unless_hopeless(topic: &str, settlement: &Arc<Settlement>) -> Arc<Settlement> {
        let (topic, settlement) = (topic.to_owned(), settlement.clone());
        Settlement::new(1, move |settled| match settled {
            Ok(()) => count_as_sent(&settlement),
            Err(error) if error.is_permanent() => {
                Self::unsendable(&topic, None, &error, &settlement);
            }
            Err(error) => settlement.fail(error),
        })
    }

    /// The partition of an operation on a topic that has as many as the requests.
    fn home<'a>(&self, topic: &'a str, operation: OperationId) -> (&'a str, PartitionId) {
        (topic, partition_for(operation, self.partitions))
    }

    /// Sends a record of an operation to a partition of a topic. `buffer` then holds its value, or
    /// nothing if it cannot be encoded.
    fn keyed(
        &self,
        (topic, partition): (&str, PartitionId),
        operation: OperationId,
        message: &impl Record,
        traceparent: Option<&str>,
        buffer: &mut Vec<u8>,
        settlement: &Arc<Settlement>,
    ) {
        buffer.clear();
        if let Err(error) = self.topics.framing().encode(message, buffer) {
            return Self::unsendable(topic, Some(operation), &error, settlement);
        }
        self.send_value(
            (topic, partition),
            operation,
            traceparent,
            buffer,
            settlement,
        );
    }

    /// Sends an encoded record of an operation to a partition of a topic.
    fn send_value(
        &self,
        (topic, partition): (&str, PartitionId),
        operation: OperationId,
        traceparent: Option<&str>,
        value: &[u8],
        settlement: &Arc<Settlement>,
    ) {
        let key = operation.key();
        let header = traceparent.map(|traceparent| Header {
            key: headers::TRACEPARENT,
            value: Some(traceparent.as_bytes()),
        });
        let record = OutRecord {
            headers: header.as_slice(),
            ..OutRecord::new(topic, partition, &key, value)
        };
        self.enqueue(&record, settlement);
    }

    fn forward(
        &self,
        topic: &str,
        partition: PartitionId,
        record: &ForwardRecord,
        headers: &[Header<'_>],
        settlement: &Arc<Settlement>,
    ) {
        let record = OutRecord {
            topic,
            partition,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers,
        };
        self.enqueue(&record, settlement);
    }

    fn enqueue(&self, record: &OutRecord<'_>, settlement: &Arc<Settlement>) {
        let patience = self.wait_until.saturating_duration_since(Instant::now());
        let Err(refused) = self
            .producer
            .send_or_wait(record, settlement.clone(), patience)
        else {
            return;
        };
        let (settlement, error) = refused.into_parts();
        match error {
            ProduceError::Refused {
                code: code @ ErrorCode::MessageSizeTooLarge,
            } => {
                Self::unsendable(record.topic, None, &code, &settlement);
            }
            error => settlement.fail(error),
        }
    }

    /// A message that can never be sent, because it is too large, must not hold up its partition
    /// for ever. It counts as sent: a step request that nobody received times out, and its
    /// operation ends in `Error` where a person sees it.
    fn unsendable(
        topic: &str,
        operation: Option<OperationId>,
        error: &dyn std::fmt::Display,
        settlement: &Arc<Settlement>,
    ) {
        let operation = operation.map(tracing::field::display);
        tracing::error!(topic, operation, %error, "a message cannot be sent at all");
        UNSENDABLE.of([]).increment(1);
        count_as_sent(settlement);
    }

    /// Lets agents of this process end what they have begun, and passes on what they answer; waits for what was
    /// sent, within bounds, and ends the producer.
    pub(super) fn close(mut self) {
        if let Some(direct) = &self.direct {
            direct.drain(AGENTS_PATIENCE);
        }
        for (asker, reply) in self.answers() {
            self.pass_on(&asker, reply);
        }
        if let Err(error) = self.producer.flush(FLUSH_PATIENCE) {
            tracing::warn!(%error, "messages were left unacknowledged; they are sent again");
        }
    }
}

/// Takes out of `messages` what agents of this process are asked.
fn asked_directly(
    direct: &DirectAgents<Asker>,
    from: Asker,
    messages: &mut Vec<Message>,
) -> Vec<(Asker, StepRequest)> {
    let is_direct =
        |message: &mut Message| matches!(message, Message::Step(step) if direct.has(&step.agent));
    let taken = messages.extract_if(.., is_direct);
    let steps = taken.filter_map(|message| match message {
        Message::Step(request) => Some((from, request)),
        _ => None,
    });
    steps.collect()
}

/// Settles a message for which no record is sent as if one were acknowledged.
fn count_as_sent(settlement: &Settlement) {
    settlement.delivered(Delivery {
        partition: PartitionId(0),
        offset: None,
        result: Ok(()),
    });
}

/// Logs an alert as well, without what services said, which may be anything.
fn log_alert(alert: &OperatorAlert, partition: PartitionId) {
    let kind = alert.kind.as_str();
    let message = match alert.kind {
        AlertKind::Waiting => "a step keeps failing; it is retried with long waits",
        AlertKind::OperationParked
        | AlertKind::CompensationFailed
        | AlertKind::ManualUndo
        | AlertKind::RowUnreadable => "an operation needs operator action",
    };
    tracing::warn!(
        operation = %alert.operation,
        %partition,
        workflow = alert.workflow,
        step = alert.step,
        error = alert.error.as_ref().map(|error| error.code.as_str()),
        kind,
        "{message}"
    );
}

fn borrowed(headers: &[(String, Option<Vec<u8>>)]) -> impl Iterator<Item = Header<'_>> {
    headers.iter().map(|(key, value)| Header {
        key,
        value: value.as_deref(),
    })
}

#[cfg(test)]
pub(super) mod tests;
