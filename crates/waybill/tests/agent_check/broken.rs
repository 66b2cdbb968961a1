//! A small agent on plain rdkafka with one fault, and its service, which counts its effects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Message as _, Offset as At, TopicPartitionList};
use waybill_agent::{
    Action, Outcome, Outputs, StepError, StepRequest, permanent, success, unknown,
};
use waybill_agent_check::{EffectCounts, Ledger, LedgerError};
use waybill_engine::{
    Attempt, Epoch, Nonce, Offset, OperationId, PartitionId, StepReply, Timestamp, partition_for,
};
use waybill_messages::DeadLetter;
use waybill_messages::headers::{Stage, TRACEPARENT};
use waybill_messages::{Record as _, Topics};

/// The fault of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No fault.
    None,
    /// It reads requests and never answers.
    Silent,
    /// Every reply carries the first attempt's number.
    EchoesFirstAttempt,
    /// No reply carries the epoch.
    EchoesNoEpoch,
    /// Every reply carries the action `Run`.
    EchoesNoAction,
    /// No reply carries the nonce.
    EchoesNoNonce,
    /// Every reply carries the same nonce.
    EchoesOtherNonce,
    /// A partitioner chooses the partition of replies.
    RepliesByKey,
    RepliesWithoutKey,
    /// A repeated request is not answered.
    AnswersOnce,
    /// The service ignores idempotency keys: each attempt makes an effect.
    EffectPerDelivery,
    /// Attempts under a key in progress are refused permanently.
    RefusesOverlaps,
    /// Requests of older epochs are ignored.
    IgnoresOlderEpochs,
    AnswersLate,
    /// Late requests are performed without a reply.
    PerformsLate,
    /// Steps take longer than their complete-by.
    Overruns,
    /// A probe performs the step.
    ProbePerforms,
    ProbeForgetsOutputs,
    ProbeSeesUndone,
    UndoDoesNothing,
    /// A second undo is an error.
    UndoesOnce,
    /// An undo without an effect is an error.
    UndoNeedsEffect,
    /// An early undo leaves no tombstone.
    ForgetsEarlyUndo,
    /// An undone step is performed again.
    PerformsAgain,
    /// The first poison record ends the agent.
    DiesOfPoison,
    /// Poison records are skipped.
    DropsPoison,
    /// Poison records go to the dead-letter topic without a cause.
    BuriesWithoutCause,
    /// Every record is decoded with the same schema.
    GuessesSchemas,
    /// Unknown steps are skipped.
    PassesOverUnknownSteps,
    ErrorsWithoutCode,
    ErrorsWithoutMessage,
    /// Every error has another code.
    ErrorsOfChance,
    /// Replies carry a trace of the agent's own.
    CarriesOtherTrace,
    /// Requests above its capacity are dropped.
    DropsOverload,
    /// Offsets are committed when requests are read.
    CommitsFirst,
    NeverCommits,
}

impl Fault {
    /// The delay of a reply.
    fn pace(self) -> Duration {
        match self {
            Self::Overruns | Self::CommitsFirst => Duration::from_millis(300),
            Self::RefusesOverlaps | Self::DropsOverload => Duration::from_millis(50),
            _ => Duration::ZERO,
        }
    }
}

/// The step that the agent performs.
pub const STEP: &str = "greet";
/// The capacity with [`Fault::DropsOverload`].
const ROOM: usize = 20;
const COMMIT_EVERY: Duration = Duration::from_millis(100);

/// The agent on its own thread. Dropping it stops it.
pub struct BrokenAgent {
    service: Arc<Mutex<Service>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BrokenAgent {
    pub fn start(broker: SocketAddr, topics: &Topics, agent: &str, fault: Fault) -> Self {
        let service = Arc::new(Mutex::new(Service::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let running = Running::new(broker, topics, agent, fault, Arc::clone(&service));
        let stop_flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || running.run(&stop_flag));
        Self {
            service,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for BrokenAgent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the agent panicked");
        }
    }
}

impl Ledger for BrokenAgent {
    fn effects(&self, operation: OperationId, step: &str) -> Result<EffectCounts, LedgerError> {
        let service = self.service.lock().unwrap();
        let key = format!("{operation}/{step}");
        let kept = service.keys.get(&key);
        Ok(kept.map(|kept| kept.counts).unwrap_or_default())
    }
}

/// The state of the service by key.
#[derive(Default)]
struct Service {
    keys: HashMap<String, Kept>,
    made: u32,
}

#[derive(Default)]
struct Kept {
    outputs: Option<Outputs>,
    barred: bool,
    counts: EffectCounts,
}

impl Service {
    fn perform(&mut self, key: &str, fault: Fault) -> Outcome {
        self.made += 1;
        let number = self.made;
        let kept = self.keys.entry(key.to_owned()).or_default();
        if kept.barred && fault != Fault::PerformsAgain {
            return permanent("undone", "it was undone under this key");
        }
        kept.barred = false;
        if kept.outputs.is_none() || fault == Fault::EffectPerDelivery {
            kept.outputs = Some(vec![("greeting".to_owned(), format!("hello {number}"))]);
            kept.counts.made += 1;
        }
        success(kept.outputs.clone().unwrap_or_default())
    }

    fn undo(&mut self, key: &str, fault: Fault) -> Outcome {
        let kept = self.keys.entry(key.to_owned()).or_default();
        match fault {
            Fault::UndoDoesNothing => return success(vec![]),
            Fault::UndoesOnce if kept.barred => return permanent("undone", "it is undone"),
            Fault::UndoNeedsEffect if kept.outputs.is_none() && !kept.barred => {
                return permanent("nothing", "there is nothing to undo");
            }
            Fault::ForgetsEarlyUndo if kept.outputs.is_none() => return success(vec![]),
            _ => {}
        }
        kept.barred = true;
        if fault != Fault::ProbeSeesUndone {
            kept.outputs = None;
        }
        kept.counts.undone = kept.counts.made;
        success(vec![])
    }

    fn probe(&mut self, key: &str, fault: Fault) -> Outcome {
        if fault == Fault::ProbePerforms {
            return self.perform(key, fault);
        }
        match self.keys.get(key).and_then(|kept| kept.outputs.clone()) {
            Some(_) if fault == Fault::ProbeForgetsOutputs => success(vec![]),
            Some(outputs) => success(outputs),
            None => Outcome::NotPerformed,
        }
    }
}

/// A reply with its due time.
struct Outgoing {
    due: Instant,
    until: Option<Timestamp>,
    topic: String,
    partition: i32,
    key: Option<Vec<u8>>,
    value: Vec<u8>,
    headers: OwnedHeaders,
    source: (i32, i64),
    /// The step that the reply completes.
    under_way: Option<String>,
}

/// The agent on its thread.
struct Running {
    fault: Fault,
    requests: String,
    replies: String,
    reply_partitions: u32,
    consumer: BaseConsumer,
    producer: BaseProducer,
    service: Arc<Mutex<Service>>,
    outgoing: Vec<Outgoing>,
    /// The open offsets and the next offset, by partition.
    open: BTreeMap<i32, (BTreeSet<i64>, i64)>,
    answered: BTreeSet<(String, u32, u64, String)>,
    newest_epochs: HashMap<OperationId, u64>,
    errors: u32,
    dead: bool,
}

impl Running {
    fn new(
        broker: SocketAddr,
        topics: &Topics,
        agent: &str,
        fault: Fault,
        service: Arc<Mutex<Service>>,
    ) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", broker.to_string());
        let producer = config.clone().set("linger.ms", "0").create().unwrap();
        let consumer: BaseConsumer = config
            .set("group.id", format!("{}-agents", topics.prefix()))
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("topic.metadata.refresh.interval.ms", "200")
            .set("fetch.wait.max.ms", "20")
            .create()
            .unwrap();
        let requests = topics.step_requests(agent);
        consumer.subscribe(&[&requests]).unwrap();
        Self {
            fault,
            requests,
            replies: topics.step_replies().to_owned(),
            reply_partitions: 3,
            consumer,
            producer,
            service,
            outgoing: Vec::new(),
            open: BTreeMap::new(),
            answered: BTreeSet::new(),
            newest_epochs: HashMap::new(),
            errors: 0,
            dead: false,
        }
    }

    fn run(mut self, stop: &AtomicBool) {
        let mut commit_at = Instant::now() + COMMIT_EVERY;
        while !stop.load(Ordering::Relaxed) && !self.dead {
            self.read();
            self.send_due();
            if Instant::now() >= commit_at {
                self.commit();
                commit_at = Instant::now() + COMMIT_EVERY;
            }
        }
    }

    fn read(&mut self) {
        let mut taken = Vec::new();
        let mut wait = Duration::from_millis(2);
        while let Some(polled) = self.consumer.poll(wait) {
            wait = Duration::ZERO;
            if let Ok(message) = polled {
                taken.push(Taken::of(&message));
            }
        }
        for record in taken {
            if self.dead {
                return;
            }
            let source = (record.partition, record.offset);
            let (open, next) = self.open.entry(source.0).or_default();
            open.insert(source.1);
            *next = source.1 + 1;
            if self.fault == Fault::CommitsFirst {
                self.done(source);
            }
            self.take(&record, source);
        }
    }

    fn take(&mut self, record: &Taken, source: (i32, i64)) {
        let fault = self.fault;
        let mut value = record.value.clone();
        if fault == Fault::GuessesSchemas && value.len() > 10 {
            value[2..10].copy_from_slice(&StepRequest::fingerprint().to_le_bytes());
            if StepRequest::decode(&value).is_err() && value.ends_with(&[2, b'x']) {
                value.truncate(value.len() - 2);
            }
        }
        let request = match StepRequest::decode(&value) {
            Ok(request) => request,
            Err(_) => return self.bury(record, source),
        };
        let is_late = request.complete_by <= wall_clock();
        let identity = (
            request.idempotency_key(),
            request.attempt.0,
            request.epoch.0,
            format!("{:?}", request.action),
        );
        let newest = self.newest_epochs.entry(request.operation).or_default();
        *newest = request.epoch.0.max(*newest);
        let is_older = request.epoch.0 < *newest;
        let is_known = &*request.step == STEP;
        let is_overload = self.outgoing.len() >= ROOM;
        let is_passed_over = match fault {
            Fault::Silent => true,
            Fault::AnswersOnce => !self.answered.insert(identity),
            Fault::IgnoresOlderEpochs => is_older,
            Fault::PassesOverUnknownSteps => !is_known,
            Fault::DropsOverload => is_overload,
            _ => false,
        };
        if is_passed_over {
            return self.done(source);
        }
        if is_late {
            match fault {
                Fault::AnswersLate => {
                    let outcome = unknown("too-late", "complete-by has passed");
                    return self.answer(record, &request, outcome, source);
                }
                Fault::PerformsLate => drop(self.act(&request)),
                _ => {}
            }
            return self.done(source);
        }
        let outcome = if is_known || request.action != Action::Run {
            self.act(&request)
        } else {
            permanent("step-unknown", "there is no such step")
        };
        self.answer(record, &request, outcome, source);
    }

    fn act(&self, request: &StepRequest) -> Outcome {
        let key = request.idempotency_key();
        let is_under_way = |out: &Outgoing| out.under_way.as_ref() == Some(&key);
        if self.fault == Fault::RefusesOverlaps
            && request.action == Action::Run
            && self.outgoing.iter().any(is_under_way)
        {
            return permanent("under-way", "another attempt performs it");
        }
        let mut service = self.service.lock().unwrap();
        match request.action {
            Action::Run => service.perform(&key, self.fault),
            Action::Compensate => service.undo(&key, self.fault),
            Action::Probe => service.probe(&key, self.fault),
        }
    }

    fn answer(
        &mut self,
        record: &Taken,
        request: &StepRequest,
        outcome: Outcome,
        source: (i32, i64),
    ) {
        let fault = self.fault;
        let mut reply = StepReply {
            operation: request.operation,
            step: request.step.to_string(),
            attempt: request.attempt,
            epoch: request.epoch,
            action: request.action,
            nonce: request.nonce,
            outcome: self.spoilt(outcome),
        };
        match fault {
            Fault::EchoesFirstAttempt => reply.attempt = Attempt(1),
            Fault::EchoesNoEpoch => reply.epoch = Epoch(0),
            Fault::EchoesNoAction => reply.action = Action::Run,
            Fault::EchoesNoNonce => reply.nonce = None,
            Fault::EchoesOtherNonce => reply.nonce = Some(Nonce([7; Nonce::BYTES])),
            _ => {}
        }
        let mut value = Vec::new();
        reply.encode(&mut value).unwrap();
        let partition = match fault {
            Fault::RepliesByKey => partition_for(request.operation, self.reply_partitions),
            _ => request.reply_partition,
        };
        let mut headers = OwnedHeaders::new();
        let other = "00-11111111111111111111111111111111-2222222222222222-01";
        let trace = match fault {
            Fault::CarriesOtherTrace => Some(other.as_bytes().to_vec()),
            _ => record.trace.clone(),
        };
        if let Some(trace) = &trace {
            headers = headers.insert(Header {
                key: TRACEPARENT,
                value: Some(trace),
            });
        }
        let ignores_time = matches!(fault, Fault::Overruns | Fault::AnswersLate);
        self.outgoing.push(Outgoing {
            due: Instant::now() + fault.pace(),
            until: (!ignores_time).then_some(request.complete_by),
            topic: self.replies.clone(),
            partition: i32::try_from(partition.0).unwrap(),
            key: (fault != Fault::RepliesWithoutKey).then(|| request.operation.key().to_vec()),
            value,
            headers,
            source,
            under_way: (request.action == Action::Run).then(|| request.idempotency_key()),
        });
    }

    /// The outcome, with the fault applied to its error.
    fn spoilt(&mut self, mut outcome: Outcome) -> Outcome {
        if let Outcome::Permanent {
            error: StepError { code, message },
        } = &mut outcome
        {
            self.errors += 1;
            match self.fault {
                Fault::ErrorsWithoutCode => code.clear(),
                Fault::ErrorsWithoutMessage => message.clear(),
                Fault::ErrorsOfChance => *code = format!("error-{}", self.errors),
                _ => {}
            }
        }
        outcome
    }

    fn bury(&mut self, record: &Taken, source: (i32, i64)) {
        match self.fault {
            Fault::DropsPoison => return self.done(source),
            Fault::DiesOfPoison => {
                self.dead = true;
                return;
            }
            _ => {}
        }
        let dead_letter = DeadLetter {
            topic: &self.requests,
            partition: PartitionId(u32::try_from(source.0).unwrap()),
            offset: Offset(source.1),
            task_id: "0",
            stage: Stage::Value,
            component: "test",
            error_kind: "DecodeError",
            message: "no request",
        };
        let mut headers = OwnedHeaders::new();
        if self.fault != Fault::BuriesWithoutCause {
            for (key, value) in dead_letter.headers() {
                let value = Some(&value);
                headers = headers.insert(Header { key, value });
            }
        }
        self.outgoing.push(Outgoing {
            due: Instant::now(),
            until: None,
            topic: Topics::dead_letter(&self.requests),
            partition: source.0,
            key: record.key.clone(),
            value: record.value.clone(),
            headers,
            source,
            under_way: None,
        });
    }

    fn send_due(&mut self) {
        let now = Instant::now();
        let outgoing = std::mem::take(&mut self.outgoing);
        let (due, later): (Vec<_>, Vec<_>) = outgoing.into_iter().partition(|out| out.due <= now);
        self.outgoing = later;
        let mut sources = Vec::new();
        for out in due {
            sources.push(out.source);
            if out.until.is_some_and(|until| until <= wall_clock()) {
                continue;
            }
            let mut record = BaseRecord::<[u8], [u8]>::to(&out.topic)
                .partition(out.partition)
                .payload(&out.value)
                .headers(out.headers);
            record.key = out.key.as_deref();
            self.producer
                .send(record)
                .map_err(|(error, _)| error)
                .unwrap();
        }
        // A flush would take a tenth of a second.
        while self.producer.in_flight_count() > 0 {
            self.producer.poll(Duration::from_millis(1));
        }
        for source in sources {
            self.done(source);
        }
    }

    fn done(&mut self, (partition, offset): (i32, i64)) {
        if let Some((open, _)) = self.open.get_mut(&partition) {
            open.remove(&offset);
        }
        if self.fault == Fault::CommitsFirst {
            self.commit();
        }
    }

    fn commit(&self) {
        if self.fault == Fault::NeverCommits || self.open.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::new();
        for (partition, (open, next)) in &self.open {
            let offset = open.first().unwrap_or(next);
            list.add_partition_offset(&self.requests, *partition, At::Offset(*offset))
                .unwrap();
        }
        self.consumer.commit(&list, CommitMode::Async).unwrap();
    }
}

/// A consumed record.
struct Taken {
    partition: i32,
    offset: i64,
    key: Option<Vec<u8>>,
    value: Vec<u8>,
    trace: Option<Vec<u8>>,
}

impl Taken {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message
            .headers()
            .into_iter()
            .flat_map(|headers| headers.iter());
        let mut traces = headers.filter(|header| header.key == TRACEPARENT);
        Self {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().unwrap_or_default().to_vec(),
            trace: traces
                .next()
                .and_then(|header| header.value)
                .map(<[u8]>::to_vec),
        }
    }
}

fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp(i64::try_from(since_epoch.as_micros()).unwrap())
}
