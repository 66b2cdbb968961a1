//! The outlet on librdkafka's mock cluster: what leaves it, and what the loop hears of it.

use std::sync::mpsc::{self, Receiver};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::{ClientConfig, Message as _, Offset as At, TopicPartitionList};
use waybill_engine::{Action, Attempt, StepError, StepState, Timestamp};
use waybill_messages::VALUE_BYTES_MAX;

use super::*;
use crate::scheduler::Own;

/// How long anything may take that is waited for. Generous: it bounds a failure, not a success.
const PATIENCE: Duration = Duration::from_secs(20);
const KIB: usize = 1024;

struct World {
    cluster: MockCluster<'static, DefaultProducerContext>,
    topics: Topics,
    outlet: Outlet,
    inputs: Receiver<Input>,
}

impl World {
    fn new() -> Self {
        let cluster = MockCluster::new(1).unwrap();
        let topics = Topics::default();
        let failed = topics.failed_operations();
        cluster.create_topic(failed, 1, 1).unwrap();
        let (sender, inputs) = mpsc::channel();
        let outlet = Outlet::start(
            &KafkaSettings::new(cluster.bootstrap_servers()),
            &topics,
            &Workflows::new(Vec::new()).unwrap(),
            &settings(),
            1,
            &sender,
        );
        Self {
            cluster,
            topics,
            outlet: outlet.unwrap(),
            inputs,
        }
    }

    /// Sends messages and waits until the loop hears that all are settled.
    fn send(&mut self, messages: &[Message]) {
        self.outlet.send(7, PartitionId(0), messages);
        match self.inputs.recv_timeout(PATIENCE).unwrap() {
            Input::Settled { number: 7, result } => assert_eq!(result, Ok(())),
            other => panic!("{other:?}"),
        }
    }

    /// The failed operations that were told of, in order.
    fn told(&self) -> Vec<FailedOperation> {
        let topic = self.topics.failed_operations();
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
                FailedOperation::decode(record.payload().unwrap()).unwrap()
            })
            .collect()
    }
}

fn settings() -> SchedulerSettings {
    let second = Duration::from_secs(1);
    SchedulerSettings {
        step_partitions: 1,
        own: Own::All,
        in_flight_max: 1,
        in_flight_bytes_max: 1,
        hand_off_after: second,
        retention: second,
        timeout_grace: second,
        fresh_for: second,
        checkpoint_every: second,
        checkpoint_records: 1,
        lease: second,
        lease_margin: second,
        drain: second,
        decide_within: second,
        tell_steps: false,
        start_without_state: false,
        skip_deleted_requests: false,
        reply_to_prefixes: Vec::new(),
    }
}

/// An operation that failed with an input and an error's message of so many bytes.
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
fn a_failure_that_is_too_large_for_a_record_is_told_without_its_input() {
    let mut world = World::new();
    let fits = failed("fits", 600 * KIB, KIB);
    let too_large = failed("too-large", 600 * KIB, 500 * KIB);
    assert!(too_large.input.len() + too_large.error.message.len() > VALUE_BYTES_MAX);
    world.send(&messages(&[too_large.clone(), fits.clone()]));

    let without_input = FailedOperation {
        input: b"{}".to_vec(),
        ..too_large
    };
    assert_eq!(world.told(), [without_input, fits]);
}

#[test]
fn a_failure_that_no_record_can_tell_holds_up_no_other() {
    let mut world = World::new();
    let hopeless = failed("hopeless", 0, VALUE_BYTES_MAX);
    let small = failed("small", 0, 0);
    world.send(&messages(&[hopeless, small.clone()]));
    assert_eq!(world.told(), [small]);
}
