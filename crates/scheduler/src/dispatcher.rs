//! Sends the engine's messages: records to topics, through one producer, and step requests to
//! agents of this process.

mod refused;

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use waybill_agent::{DirectAgents, WorkerPanicked, not_attempted};
use waybill_clock::boot_clock;
use waybill_engine::{
    AlertKind, BootTime, ByPriority, FailedOperation, ForwardRecord, Message, Offset, OperationId,
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
use waybill_scheduler_core::{Input, Requester, SendNumber, Undelivered};
use waybill_telemetry::chain;

use self::refused::RefusedSteps;
use super::SchedulerSettings;
use super::dead_letters::{DEAD_LETTERS_MAX, InFlight, Place};
use super::incoming::Inputs;
use super::metrics::{COPIES_DROPPED, STEPS_UNSENT, UNSENDABLE, alert_raised};
use super::nonces::Nonces;
use super::spans;

/// How long to wait for a full producer queue, over all messages of a partition, before the
/// partition restarts. Well below a lease, because the loop renews no lease in the meantime.
const QUEUE_PATIENCE: Duration = Duration::from_secs(1);
/// When to retry a step whose request the broker refused because of its topic.
const UNSENT_RETRY_AFTER: Duration = Duration::from_secs(5);
/// How long a graceful shutdown waits for attempts that agents of this process have started.
const AGENTS_PATIENCE: Duration = Duration::from_secs(5);
/// How long a graceful shutdown waits for acknowledgements.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// All messages that were sent under a number are acknowledged, or one failed for good.
#[derive(Debug)]
pub(super) struct Settled {
    pub number: SendNumber,
    pub result: Result<(), Undelivered>,
}

impl From<Settled> for Input {
    fn from(Settled { number, result }: Settled) -> Self {
        Self::Settled { number, result }
    }
}

/// The producer, and the names of all topics that it writes to.
pub(super) struct Dispatcher {
    producer: Producer<Arc<Settlement>>,
    /// Agents that receive requests without a record, if there are any.
    direct: Option<DirectAgents<Requester>>,
    nonces: Nonces,
    inputs: Inputs,
    topics: Topics,
    reply_to_prefixes: Vec<String>,
    /// The topic of each agent's step requests.
    of_agent: HashMap<Arc<str>, Arc<str>>,
    dead_requests: ByPriority<String>,
    dead_replies: String,
    dead_recoveries: String,
    dead_letters: InFlight,
    partitions: u32,
    step_partitions: u32,
    publish_step_status: bool,
    refused: Arc<RefusedSteps>,
    settled: (mpsc::Sender<Settled>, mpsc::Receiver<Settled>),
    buffer: Vec<u8>,
    /// Until when the messages being sent may wait for room in the queue.
    wait_until: Instant,
    /// From when on the messages being sent must not be sent, if their shard's lease ends.
    lease_ends: Option<Instant>,
}

impl Dispatcher {
    /// Starts the producer.
    ///
    /// # Errors
    ///
    /// If the Kafka client cannot be created.
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
            // Exported from the start: an alert cannot see the first value of a counter as an
            // increase.
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
            dead_letters: InFlight::new(DEAD_LETTERS_MAX),
            partitions,
            step_partitions: settings.step_partitions,
            publish_step_status: settings.publish_step_status,
            refused: Arc::default(),
            settled: mpsc::channel(),
            buffer: Vec::new(),
            wait_until: Instant::now(),
            lease_ends: None,
        })
    }

    /// Sends the requests for agents of this process to them directly.
    pub(super) fn with_agents(self, direct: Option<DirectAgents<Requester>>) -> Self {
        Self { direct, ..self }
    }

    /// Sets the number of partitions over which operations are spread.
    pub(super) fn written(&mut self, partitions: u32) {
        self.partitions = partitions;
    }

    /// Sends the messages of a shard, unless its lease, which is valid until `valid_until`, has
    /// ended meanwhile: sending those of the shard before it may have taken a while.
    /// [`Dispatcher::settled`] returns `number` once all records are acknowledged. Requests to
    /// agents of this process need no acknowledgement: they are lost together with the engine, and
    /// the next owner sends them again.
    pub(super) fn send(
        &mut self,
        number: SendNumber,
        from: Requester,
        mut messages: Vec<Message>,
        valid_until: BootTime,
    ) {
        let boot_time = boot_clock();
        if boot_time >= valid_until {
            let result = Err(Undelivered::LeaseEnded);
            // The receiver is a field of this type.
            let _ = self.settled.0.send(Settled { number, result });
            return;
        }
        let spans = spans::of_messages(&mut messages, |request| self.topic_for(request));
        if let Some(direct) = &self.direct {
            direct.ask(asked_directly(direct, from, &mut messages));
        }
        let sender = self.settled.0.clone();
        let settlement = Settlement::new(messages.len(), move |settled| {
            let result = settled.map_err(|error: ProduceError| chain(&error));
            spans::sent(spans, result.as_ref().err().map(String::as_str));
            let result = result.map_err(Undelivered::Failed);
            let _ = sender.send(Settled { number, result });
        });
        let now = Instant::now();
        let lease_ends = now + valid_until.since(boot_time);
        self.wait_until = lease_ends.min(now + QUEUE_PATIENCE);
        self.lease_ends = Some(lease_ends);
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

    /// The next messages that have settled.
    pub(super) fn settled(&self) -> Option<Settled> {
        self.settled.1.try_recv().ok()
    }

    /// The replies of agents in this process, with the shard that each is for.
    pub(super) fn answers(&self) -> Vec<(Requester, StepReply)> {
        let direct = self.direct.as_ref();
        direct.map_or_else(Vec::new, DirectAgents::take_answers)
    }

    /// Checks that the agents in this process will answer all requests.
    ///
    /// # Errors
    ///
    /// If they will not.
    pub(super) fn check_agents(&self) -> Result<(), WorkerPanicked> {
        self.direct.as_ref().map_or(Ok(()), DirectAgents::check)
    }

    /// Publishes a reply of an agent of this process to the replies topic, where the current owner
    /// of the operation reads it. The agent's request had no nonce, but replies on the topic need
    /// one.
    pub(super) fn pass_on(&mut self, requester: &Requester, mut reply: StepReply) {
        reply.nonce = Some(self.nonces.of_reply(&reply));
        let operation = reply.operation;
        let settlement = Settlement::new(1, move |settled| {
            if let Err(error) = settled {
                tracing::warn!(
                    %operation,
                    %error,
                    "could not forward a step reply; the step will be requested again"
                );
            }
        });
        self.wait_until = Instant::now();
        self.lease_ends = None;
        let mut buffer = std::mem::take(&mut self.buffer);
        let address = (self.topics.step_replies(), requester.partition);
        self.keyed(address, operation, &reply, None, &mut buffer, &settlement);
        self.buffer = buffer;
    }

    /// Drops requests of a shard that agents of this process have not started. Its next owner sends
    /// them again.
    pub(super) fn forget(&self, shard: ShardId) {
        if let Some(direct) = &self.direct {
            direct.forget(|requester| requester.shard == shard);
        }
    }

    /// Updates the metrics of the agents in this process.
    pub(super) fn show(&self) {
        if let Some(direct) = &self.direct {
            direct.show_depths();
        }
    }

    fn send_one(
        &self,
        from: Requester,
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
                self.send_to_own_partition(topic, alert.operation, &**alert, buffer, settlement);
            }
            Message::Owner(notice) => {
                let topic = self.topics.owner_notices();
                self.send_to_own_partition(topic, notice.operation, &**notice, buffer, settlement);
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

    /// Publishes an operation that failed for good. If the input does not fit into the record, it
    /// is left out: the operation's row has it.
    fn failed(&self, failed: &FailedOperation, buffer: &mut Vec<u8>, settlement: &Arc<Settlement>) {
        let topic = self.topics.failed_operations();
        buffer.clear();
        if self.topics.framing().encode(failed, buffer).is_ok() {
            let address = self.own_partition(topic, failed.operation);
            return self.send_value(address, failed.operation, None, buffer, settlement);
        }
        tracing::warn!(
            operation = %failed.operation,
            "record of a failed operation is too large; leaving out its input"
        );
        let without_input = FailedOperation {
            input: b"{}".to_vec(),
            ..failed.clone()
        };
        self.send_to_own_partition(topic, failed.operation, &without_input, buffer, settlement);
    }

    /// Sends a record of an operation to its partition of a topic.
    fn send_to_own_partition(
        &self,
        topic: &str,
        operation: OperationId,
        message: &impl Record,
        buffer: &mut Vec<u8>,
        settlement: &Arc<Settlement>,
    ) {
        let address = self.own_partition(topic, operation);
        self.keyed(address, operation, message, None, buffer, settlement);
    }

    /// Sends final states and answers to the status topic, and all status records to the caller's
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
            self.send_to_own_partition(topic, status.operation, status, buffer, settlement);
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

    /// The topic of an agent's requests; `None` if it is called directly, or is not known.
    fn topic_for(&self, request: &StepRequest) -> Option<&str> {
        let direct = self.direct.as_ref();
        if direct.is_some_and(|direct| direct.has(&request.agent)) {
            return None;
        }
        self.of_agent.get(&request.agent).map(|topic| &**topic)
    }

    fn step(
        &self,
        from: Requester,
        request: &StepRequest,
        buffer: &mut Vec<u8>,
        settlement: &Arc<Settlement>,
    ) {
        let Some(topic) = self.of_agent.get(&request.agent) else {
            // An operation runs only workflows that were given at start, whose agents are all
            // known.
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

    /// The settlement of one step request. If the broker refuses the request because of its topic
    /// (the partition is missing, or this client has no permission to write to it), the request
    /// counts as sent and the engine receives a reply that the attempt was not made. So a fault of
    /// one agent's topic delays the steps of that agent alone.
    fn of_step(
        &self,
        from: Requester,
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
                let unsent = Input::Unsent {
                    requester: from,
                    agent,
                    reply,
                    why,
                };
                // The send fails only after the loop has ended.
                let _ = inputs.send(unsent.into());
                count_as_sent(&settlement);
            }
            Err(error) => settlement.fail(error),
        })
    }

    /// Sends the caller its copy of a status record. A fault of the caller's topic must not hold up
    /// the partition, so a failed delivery is only logged. The status topic has the record in any
    /// case.
    ///
    /// The prefixes are checked here, too: a request that was written straight to the topic has
    /// bypassed ingestion.
    fn copy_to_caller(&self, reply_to: &str, status: &OperationStatus, buffer: &[u8]) {
        let operation = status.operation;
        let mut allowed = self.reply_to_prefixes.iter();
        if !is_topic_name(reply_to) || !allowed.any(|prefix| reply_to.starts_with(prefix)) {
            tracing::warn!(
                topic = reply_to,
                %operation,
                "not copying a status to the caller: its topic is not allowed"
            );
            COPIES_DROPPED.of([]).increment(1);
            return;
        }
        let topic = reply_to.to_owned();
        let settlement = Settlement::new(1, move |settled| {
            if let Err(error) = settled {
                tracing::warn!(
                    topic,
                    %operation,
                    %error,
                    "could not deliver a status to the caller's topic"
                );
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
        let Some(place) = self.dead_letters.place(self.wait_until) else {
            let code = ErrorCode::QueueFull;
            return settlement.fail(ProduceError::Refused { code });
        };
        let settlement = Self::dead_letter_settlement(dead_letters, place, settlement);
        let dead_letter = OutRecord {
            topic: dead_letters,
            partition: from,
            key: kept.key.as_deref(),
            value: kept.value.as_deref(),
            headers: &headers,
        };
        self.enqueue(&dead_letter, &settlement);
    }

    /// The settlement of a dead letter, which frees its place. A dead letter that the broker would
    /// refuse for ever counts as sent, because it must not hold up the partition. The original
    /// record stays where it is for as long as its topic keeps it.
    fn dead_letter_settlement(
        topic: &str,
        place: Place,
        settlement: &Arc<Settlement>,
    ) -> Arc<Settlement> {
        let (topic, settlement) = (topic.to_owned(), settlement.clone());
        Settlement::new(1, move |settled| {
            drop(place);
            match settled {
                Ok(()) => count_as_sent(&settlement),
                Err(error) if error.is_permanent() => {
                    Self::unsendable(&topic, None, &error, &settlement);
                }
                Err(error) => settlement.fail(error),
            }
        })
    }

    /// The partition of an operation on a topic with as many partitions as the requests.
    fn own_partition<'a>(&self, topic: &'a str, operation: OperationId) -> (&'a str, PartitionId) {
        (topic, partition_for(operation, self.partitions))
    }

    /// Sends a record of an operation to a partition of a topic. Afterwards `buffer` holds the
    /// record's value, or is empty if it cannot be encoded.
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
        let now = Instant::now();
        if self.lease_ends.is_some_and(|ends| now >= ends) {
            // The messages before it waited for room.
            let code = ErrorCode::QueueFull;
            return settlement.fail(ProduceError::Refused { code });
        }
        let patience = self.wait_until.saturating_duration_since(now);
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

    /// A message that is too large to be sent must not hold up its partition for ever, so it counts
    /// as sent. A step request that was not sent times out, and its operation ends in `Error`,
    /// where a person sees it.
    fn unsendable(
        topic: &str,
        operation: Option<OperationId>,
        error: &dyn std::fmt::Display,
        settlement: &Arc<Settlement>,
    ) {
        let operation = operation.map(tracing::field::display);
        tracing::error!(topic, operation, %error, "a message cannot be sent");
        UNSENDABLE.of([]).increment(1);
        count_as_sent(settlement);
    }

    /// Lets agents of this process finish the attempts that they have started, and publishes their
    /// replies. Waits for acknowledgements, within bounds, and closes the producer.
    pub(super) fn close(mut self) {
        if let Some(direct) = &self.direct {
            direct.drain(AGENTS_PATIENCE);
        }
        for (requester, reply) in self.answers() {
            self.pass_on(&requester, reply);
        }
        if let Err(error) = self.producer.flush(FLUSH_PATIENCE) {
            tracing::warn!(
                %error,
                "some messages were not acknowledged; the next owner sends them again"
            );
        }
    }
}

/// Takes the requests to agents of this process out of `messages`.
fn asked_directly(
    direct: &DirectAgents<Requester>,
    from: Requester,
    messages: &mut Vec<Message>,
) -> Vec<(Requester, StepRequest)> {
    let is_direct =
        |message: &mut Message| matches!(message, Message::Step(step) if direct.has(&step.agent));
    let taken = messages.extract_if(.., is_direct);
    let steps = taken.filter_map(|message| match message {
        Message::Step(request) => Some((from, request)),
        _ => None,
    });
    steps.collect()
}

/// Settles a message for which no record is sent as if it were acknowledged.
fn count_as_sent(settlement: &Settlement) {
    settlement.delivered(Delivery {
        partition: PartitionId(0),
        offset: None,
        result: Ok(()),
    });
}

/// Also logs an alert, without the text of services, which may contain anything.
fn log_alert(alert: &OperatorAlert, partition: PartitionId) {
    let kind = alert.kind.as_str();
    let message = match alert.kind {
        AlertKind::Waiting => "a step keeps failing; retrying with long waits",
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
