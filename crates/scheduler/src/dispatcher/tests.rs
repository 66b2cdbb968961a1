//! The dispatcher on librdkafka's mock cluster: which records it sends, and what it reports to the
//! loop.

use std::sync::mpsc::{self, Receiver};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::{ClientConfig, Message as _, Offset as At, TopicPartitionList};
use waybill_agent::testing::StepRequestBuilder;
use waybill_agent::{BoxFuture, DirectConfig, Handler, StepCall, success};
use waybill_engine::{
    Action, Attempt, Outcome, StepDefinition, StepError, StepState, Timestamp, Workflow,
    WorkflowDefinition,
};
use waybill_messages::VALUE_BYTES_MAX;
use waybill_scheduler_core::Generation;
use waybill_store::ReplyKey;

use super::*;
use crate::Own;
use crate::incoming::{Incoming, Inputs};

/// Timeout for anything that a test waits for. Generous: it bounds a failure, not a success.
const PATIENCE: Duration = Duration::from_secs(20);
const KIB: usize = 1024;

struct Fixture {
    cluster: MockCluster<'static, DefaultProducerContext>,
    topics: Topics,
    dispatcher: Dispatcher,
    inputs: Receiver<Incoming>,
}

fn nonces() -> Nonces {
    Nonces::new(&ReplyKey::new([1; ReplyKey::BYTES]))
}

/// The shard that the dispatcher sends for.
fn requester() -> Requester {
    Requester {
        shard: ShardId(3),
        generation: Generation::default(),
        partition: PartitionId(0),
    }
}

/// An agent that succeeds at every request.
struct Willing;

impl Handler for Willing {
    fn run<'a>(&'a self, _call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        Box::pin(async { success(Vec::new()) })
    }
}

impl Fixture {
    fn new() -> Self {
        Self::with_agents(|_| None)
    }

    /// A fixture with agents that are called directly.
    fn with_agents(agents: impl FnOnce(Inputs) -> Option<DirectAgents<Requester>>) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        let topics = Topics::default();
        let failed = topics.failed_operations();
        for topic in [failed, topics.step_replies()] {
            cluster.create_topic(topic, 1, 1).unwrap();
        }
        let elsewhere = topics.step_requests("elsewhere");
        cluster.create_topic(&elsewhere, 1, 1).unwrap();
        let (sender, inputs) = mpsc::channel();
        let dispatcher = Dispatcher::start(
            &KafkaSettings::new(cluster.bootstrap_servers()),
            &topics,
            &Workflows::new(vec![workflow()]).unwrap(),
            &settings(),
            1,
            nonces(),
            sender.clone(),
        );
        Self {
            cluster,
            topics,
            dispatcher: dispatcher.unwrap().with_agents(agents(sender)),
            inputs,
        }
    }

    /// Sends messages and waits until all are settled.
    fn send(&mut self, messages: impl Into<Vec<Message>>) {
        let valid_until = boot_clock() + PATIENCE;
        self.dispatcher
            .send(SendNumber(7), requester(), messages.into(), valid_until);
        assert_eq!(self.settled(), Ok(()));
    }

    /// The result of the messages that were sent under number 7, once it is known.
    fn settled(&self) -> Result<(), Undelivered> {
        let settled = self.dispatcher.settled.1.recv_timeout(PATIENCE).unwrap();
        assert_eq!(settled.number, SendNumber(7));
        settled.result
    }

    /// The published failed operations, in order.
    fn failures(&self) -> Vec<FailedOperation> {
        self.values(self.topics.failed_operations())
    }

    /// The records on a topic.
    fn values<R: Record>(&self, topic: &str) -> Vec<R> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.cluster.bootstrap_servers())
            .set("group.id", "test")
            .create()
            .unwrap();
        let (low, high) = consumer.fetch_watermarks(topic, 0, PATIENCE).unwrap();
        let mut partitions = TopicPartitionList::new();
        partitions
            .add_partition_offset(topic, 0, At::Beginning)
            .unwrap();
        consumer.assign(&partitions).unwrap();
        (low..high)
            .map(|_| {
                let record = consumer.poll(PATIENCE).unwrap().unwrap();
                R::decode(record.payload().unwrap()).unwrap()
            })
            .collect()
    }
}

pub(crate) fn settings() -> SchedulerSettings {
    let second = Duration::from_secs(1);
    SchedulerSettings {
        step_partitions: 1,
        own: Own::All,
        in_flight_max: 1,
        in_flight_bytes_max: 1,
        read_ahead_max: 1,
        read_ahead_bytes_max: 1,
        tracked_requests_max: 2,
        high_priority_weight: 1,
        hand_off_after: second,
        retention: second,
        timeout_grace: second,
        fresh_for: second,
        checkpoint_every: second,
        checkpoint_records: 1,
        lease: second,
        lease_margin: second,
        drain: second,
        supervisor_decision_timeout: second,
        publish_step_status: false,
        start_without_state: false,
        stuck_after: second,
        skip_deleted_requests: false,
        reply_to_prefixes: Vec::new(),
    }
}

/// A workflow with one step for an agent of this process, and one for an agent with a topic.
pub(crate) fn workflow() -> Workflow {
    let steps = vec![
        StepDefinition::new("here", "here"),
        StepDefinition::new("there", "elsewhere"),
    ];
    Workflow::try_from(WorkflowDefinition::new("pair", 1, steps)).unwrap()
}

fn request(agent: &str) -> StepRequest {
    StepRequestBuilder::new(agent, agent).build()
}

/// A failed operation with an input and an error message of these sizes, in bytes.
fn failed(caller_id: &str, input: usize, message: usize) -> FailedOperation {
    let operation = OperationId::of_caller("", caller_id);
    FailedOperation {
        event_id: operation.0,
        operation,
        caller_id: Some(caller_id.to_owned()),
        workflow: "order".to_owned(),
        workflow_version: 1,
        tenant: String::new(),
        failing_step: Some("ship".to_owned()),
        failing_agent: Some("shipper".to_owned()),
        failing_attempt: Attempt(3),
        failing_action: Action::Run,
        awaits_decision: true,
        error: StepError {
            code: "refused".to_owned(),
            message: "x".repeat(message),
        },
        completed_steps: vec!["pay".to_owned()],
        failure_counts: vec![("ship".to_owned(), 3)],
        step_states: vec![
            ("pay".to_owned(), StepState::Completed),
            ("ship".to_owned(), StepState::Failed),
        ],
        input: [b"{\"note\":\"", "y".repeat(input).as_bytes(), b"\"}"].concat(),
        requested_at: Timestamp(1),
        failed_at: Timestamp(2),
    }
}

fn messages<const COUNT: usize>(failed: &[FailedOperation; COUNT]) -> [Message; COUNT] {
    failed
        .each_ref()
        .map(|failed| Message::Failed(Box::new(failed.clone())))
}

#[test]
fn a_failure_too_large_for_a_record_is_published_without_its_input() {
    let mut fixture = Fixture::new();
    let fits = failed("fits", 600 * KIB, KIB);
    let too_large = failed("too-large", 600 * KIB, 500 * KIB);
    assert!(too_large.input.len() + too_large.error.message.len() > VALUE_BYTES_MAX);
    fixture.send(messages(&[too_large.clone(), fits.clone()]));

    let without_input = FailedOperation {
        input: b"{}".to_vec(),
        ..too_large
    };
    assert_eq!(fixture.failures(), [without_input, fits]);
}

#[test]
fn an_unsendable_failure_blocks_no_other() {
    let mut fixture = Fixture::new();
    let hopeless = failed("hopeless", 0, VALUE_BYTES_MAX);
    let small = failed("small", 0, 0);
    fixture.send(messages(&[hopeless, small.clone()]));
    assert_eq!(fixture.failures(), [small]);
}

#[test]
fn a_step_without_its_partition_is_not_attempted_and_blocks_no_other() {
    let mut fixture = Fixture::new();
    // The topic has one partition.
    fixture.dispatcher.step_partitions = 2;
    let of_partition = |partition| {
        std::iter::repeat_with(|| request("elsewhere"))
            .find(|request| partition_for(request.operation, 2) == PartitionId(partition))
            .unwrap()
    };
    // The client first learns from the broker that the partition is missing, and knows it
    // afterwards.
    let steps = [(); 2].map(|()| (of_partition(0), of_partition(1)));
    for (there, missing) in &steps {
        fixture.send([missing.clone(), there.clone()].map(Message::Step));
        let Ok(Incoming::Input(input)) = fixture.inputs.recv_timeout(PATIENCE) else {
            panic!("the loop gets no report");
        };
        let Input::Unsent {
            requester,
            reply,
            why,
            ..
        } = *input
        else {
            panic!("{input:?}");
        };
        assert_eq!(requester.shard, self::requester().shard);
        assert!(
            why.contains("partition 1 of topic waybill.elsewhere.requests.v1: "),
            "{why}"
        );
        let outcome = not_attempted(STEP_REQUEST_REFUSED, why, UNSENT_RETRY_AFTER);
        let nonce = None;
        let expected = StepReply {
            nonce,
            ..StepReply::to(missing, outcome)
        };
        assert_eq!(reply, expected);
    }
    let sent = fixture.values::<StepRequest>(&fixture.topics.step_requests("elsewhere"));
    let sent = sent.iter().map(|request| request.operation);
    assert!(sent.eq(steps.iter().map(|(there, _)| there.operation)));
}

#[test]
fn agents_of_this_process_are_called_directly_and_others_over_their_topics() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let mut fixture = Fixture::with_agents(|inputs| {
        let agents = vec![("here".to_owned(), Arc::new(Willing) as Arc<dyn Handler>)];
        let roomy = DirectConfig {
            in_flight_max: 10,
            in_flight_bytes_max: 1_000_000,
        };
        let notify = move || inputs.send(Incoming::Answered).unwrap();
        Some(DirectAgents::start(agents, roomy, notify).unwrap())
    });
    let (here, mut there) = (request("here"), request("elsewhere"));
    let asked = [here.clone(), there.clone()].map(Message::Step);
    let valid_until = boot_clock() + PATIENCE;
    fixture
        .dispatcher
        .send(SendNumber(7), requester(), asked.into(), valid_until);
    assert_eq!(fixture.settled(), Ok(()));
    let answered = fixture.inputs.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(answered, Incoming::Answered), "{answered:?}");
    let answers = fixture.dispatcher.answers();
    assert_eq!(answers.len(), 1);
    let outputs = Vec::new();
    let reply = StepReply::to(&here, Outcome::Success { outputs });
    assert_eq!(answers[0].0.shard, requester().shard);
    assert_eq!(answers[0].1, reply);
    let elsewhere = fixture.topics.step_requests("elsewhere");
    there.nonce = Some(nonces().of_request(&there));
    assert_eq!(fixture.values::<StepRequest>(&elsewhere), [there]);

    // A reply for the current owner of the partition.
    fixture.dispatcher.pass_on(&requester(), reply.clone());
    fixture.dispatcher.producer.flush(PATIENCE).unwrap();
    let replies = fixture.values::<StepReply>(fixture.topics.step_replies());
    let proven = StepReply {
        nonce: Some(nonces().of_request(&here)),
        ..reply
    };
    assert_eq!(replies, [proven]);
    assert_eq!(nonces().verify(&replies[0]), Ok(()));
}

#[test]
fn nothing_is_sent_after_the_lease_has_ended() {
    let mut fixture = Fixture::new();
    let there = request("elsewhere");
    let messages = vec![Message::Step(there)];
    fixture
        .dispatcher
        .send(SendNumber(7), requester(), messages, boot_clock());
    assert_eq!(fixture.settled(), Err(Undelivered::LeaseEnded));
    fixture.dispatcher.producer.flush(PATIENCE).unwrap();
    let elsewhere = fixture.topics.step_requests("elsewhere");
    assert!(fixture.values::<StepRequest>(&elsewhere).is_empty());
}

#[test]
fn a_message_is_refused_if_the_lease_ended_while_those_before_it_waited() {
    let mut fixture = Fixture::new();
    fixture.dispatcher.lease_ends = Some(Instant::now());
    let (sender, settled) = mpsc::channel();
    let settlement = Settlement::new(1, move |result| sender.send(result.is_ok()).unwrap());
    let elsewhere = fixture.topics.step_requests("elsewhere");
    let record = OutRecord::new(&elsewhere, PartitionId(0), b"key", b"value");
    fixture.dispatcher.enqueue(&record, &settlement);
    assert_eq!(settled.recv_timeout(PATIENCE), Ok(false));
    fixture.dispatcher.producer.flush(PATIENCE).unwrap();
    assert!(fixture.values::<StepRequest>(&elsewhere).is_empty());
}
