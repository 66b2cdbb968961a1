//! The run loop against librdkafka's built-in mock cluster, which speaks the real protocol over
//! local sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use tokio::sync::Semaphore;
use waybill_agent::testing::StepRequestBuilder;
use waybill_agent::{
    Agents, AgentsSettings, BoxFuture, Handler, Membership, Outcome, StepCall, StepRequest,
    permanent, success,
};
use waybill_engine::{Epoch, LayoutShard, Offset, OperationId, PartitionId, StepReply, Timestamp};
use waybill_kafka::{
    ConsumerOptions, KafkaSettings, OutRecord, PartitionConsumer, PollLimits, Producer,
    ProducerOptions, RawRecord, Settlement,
};
use waybill_messages::{Record as _, Topics, headers};
use waybill_test_support::batches;

const PATIENCE: Duration = Duration::from_secs(30);
const REPLY_PARTITIONS: u32 = 3;

/// A broker with the topics of the agents `fast` and `slow`.
struct Broker {
    cluster: MockCluster<'static, DefaultProducerContext>,
    kafka: KafkaSettings,
    topics: Topics,
    producer: Producer<Arc<Settlement>>,
    replies: PartitionConsumer,
}

impl Broker {
    fn start() -> Self {
        let cluster = MockCluster::new(1).unwrap();
        let topics = Topics::default();
        for agent in ["fast", "slow"] {
            let topic = topics.step_requests(agent);
            cluster.create_topic(&topic, 2, 1).unwrap();
            cluster
                .create_topic(&Topics::dead_letter(&topic), 2, 1)
                .unwrap();
        }
        let partitions = REPLY_PARTITIONS.try_into().unwrap();
        cluster
            .create_topic(topics.step_replies(), partitions, 1)
            .unwrap();
        let kafka = KafkaSettings::new(cluster.bootstrap_servers());
        let replies = consumer(&kafka, topics.step_replies(), REPLY_PARTITIONS);
        Self {
            producer: Producer::new(&kafka, &ProducerOptions::new("test")).unwrap(),
            cluster,
            kafka,
            topics,
            replies,
        }
    }

    fn config(&self) -> AgentsSettings {
        let mut config = AgentsSettings::new(self.kafka.clone(), self.topics.clone());
        config.commit_interval = Duration::from_millis(50);
        config
    }

    fn send(&self, requests: &[StepRequest]) {
        let records: Vec<(String, Vec<u8>)> = requests
            .iter()
            .map(|request| {
                let mut value = Vec::new();
                request.encode(&mut value).unwrap();
                (self.topics.step_requests(&request.agent), value)
            })
            .collect();
        self.send_raw(&records);
    }

    fn send_raw(&self, records: &[(String, Vec<u8>)]) {
        let (settlement, settled) = Settlement::channel(records.len());
        for (topic, value) in records {
            let record = OutRecord::new(topic, PartitionId(0), b"key", value);
            self.producer
                .send(&record, Arc::clone(&settlement))
                .unwrap();
        }
        let settled = tokio::task::block_in_place(|| settled.blocking_recv());
        assert_eq!(settled, Ok(Ok(())));
    }

    /// Reads until this many additional replies arrived: partition and reply, in order of arrival.
    fn replies(&self, count: usize) -> Vec<(PartitionId, StepReply)> {
        read(&self.replies, count)
            .into_iter()
            .map(|raw| {
                let reply = StepReply::decode(raw.value.as_deref().unwrap()).unwrap();
                assert_eq!(raw.key.as_deref(), Some(&reply.operation.key()[..]));
                (raw.partition, reply)
            })
            .collect()
    }
}

fn consumer(kafka: &KafkaSettings, topic: &str, partitions: u32) -> PartitionConsumer {
    let consumer = PartitionConsumer::new(kafka, &ConsumerOptions::new("test")).unwrap();
    let all: Vec<_> = (0..partitions)
        .map(|partition| (topic, PartitionId(partition), Offset(0)))
        .collect();
    consumer.assign(&all).unwrap();
    consumer
}

/// Reads until exactly this many records arrived.
fn read(consumer: &PartitionConsumer, count: usize) -> Vec<RawRecord> {
    let deadline = Instant::now() + PATIENCE;
    let mut records = Vec::new();
    tokio::task::block_in_place(|| {
        while records.len() < count {
            let came = records.len();
            assert!(Instant::now() < deadline, "{came} of {count} records came");
            let limits = PollLimits {
                records: count - came,
                bytes: 1 << 24,
            };
            consumer
                .poll(limits, Duration::from_millis(100), &mut |record| {
                    records.push(record.to_raw());
                })
                .unwrap();
        }
    });
    records
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn request(agent: &str, step: &str) -> StepRequestBuilder {
    StepRequestBuilder::new(agent, step)
}

/// Records the calls, and answers each according to its step.
#[derive(Default)]
struct Scripted {
    calls: Mutex<Vec<StepCall>>,
    running: AtomicUsize,
    running_most: AtomicUsize,
    /// Steps named `hold` wait for a permit.
    gate: Option<Semaphore>,
    concurrency: usize,
}

impl Scripted {
    fn new(concurrency: usize) -> Arc<Self> {
        Arc::new(Self {
            gate: Some(Semaphore::new(0)),
            concurrency,
            ..Self::default()
        })
    }

    fn open(&self, permits: usize) {
        self.gate.as_ref().unwrap().add_permits(permits);
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    fn keys(&self) -> BTreeMap<String, usize> {
        let mut keys = BTreeMap::new();
        for call in self.calls.lock().unwrap().iter() {
            *keys.entry(call.idempotency_key()).or_default() += 1;
        }
        keys
    }
}

impl Handler for Scripted {
    fn run<'a>(&'a self, call: &'a StepCall) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.running_most.fetch_max(running, Ordering::SeqCst);
            self.calls.lock().unwrap().push(call.clone());
            let outcome = match &*call.request.step {
                "refuse" => permanent("refused", "no"),
                "panic" => panic!("on purpose"),
                "hang" => pending().await,
                "hold" => {
                    let gate = self.gate.as_ref().unwrap();
                    gate.acquire().await.unwrap().forget();
                    success(vec![])
                }
                step => success(vec![("did".to_owned(), step.to_owned())]),
            };
            self.running.fetch_sub(1, Ordering::SeqCst);
            outcome
        })
    }

    fn concurrency_max(&self) -> usize {
        self.concurrency
    }
}

fn start(broker: &Broker, agents: &[(&str, &Arc<Scripted>)]) -> Agents {
    start_with(broker.config(), agents)
}

fn start_with(config: AgentsSettings, agents: &[(&str, &Arc<Scripted>)]) -> Agents {
    let agents = agents
        .iter()
        .map(|(name, handler)| {
            let handler: Arc<dyn Handler> = Arc::<Scripted>::clone(handler);
            ((*name).to_owned(), handler)
        })
        .collect();
    Agents::start(config, agents).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_goes_to_the_partition_that_its_request_names() {
    let broker = Broker::start();
    let fast = Scripted::new(8);
    let agents = start(&broker, &[("fast", &fast)]);
    let requests: Vec<_> = (0..REPLY_PARTITIONS)
        .map(|partition| {
            request("fast", "greet")
                .reply_partition(PartitionId(partition))
                .build()
        })
        .collect();
    broker.send(&requests);
    let mut replies = broker.replies(3);
    replies.sort_by_key(|(partition, _)| *partition);
    for (index, (partition, reply)) in replies.iter().enumerate() {
        let request = &requests[index];
        assert_eq!(*partition, request.reply_partition);
        assert_eq!(
            *reply,
            StepReply {
                operation: request.operation,
                step: "greet".to_owned(),
                attempt: request.attempt,
                epoch: request.epoch,
                action: request.action,
                nonce: request.nonce,
                outcome: success(vec![("did".to_owned(), "greet".to_owned())]),
            }
        );
    }
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_harms_only_its_own_attempt() {
    let broker = Broker::start();
    let fast = Scripted::new(1);
    let agents = start(&broker, &[("fast", &fast)]);
    broker.send(&[
        request("fast", "panic").build(),
        request("fast", "refuse").build(),
    ]);
    let replies = broker.replies(2);
    assert!(matches!(&replies[0].1.outcome, Outcome::Unknown { error }
        if error.code == "agent-panicked" && error.message.contains("on purpose")));
    assert!(matches!(&replies[1].1.outcome, Outcome::Permanent { error }
        if error.code == "refused"));
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_attempts_stay_within_the_limit_of_the_handler() {
    let broker = Broker::start();
    let fast = Scripted::new(3);
    let agents = start(&broker, &[("fast", &fast)]);
    broker.send(
        &(0..40)
            .map(|_| request("fast", "hold").build())
            .collect::<Vec<_>>(),
    );
    eventually("three run", || fast.running.load(Ordering::SeqCst) == 3).await;
    fast.open(40);
    assert_eq!(broker.replies(40).len(), 40);
    assert_eq!(fast.running_most.load(Ordering::SeqCst), 3);
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_past_complete_by_is_neither_started_nor_answered() {
    let broker = Broker::start();
    let fast = Scripted::new(4);
    let agents = start(&broker, &[("fast", &fast)]);
    let late = request("fast", "late").complete_by(Timestamp(1)).build();
    let hangs = request("fast", "hang")
        .complete_within(Duration::from_millis(300))
        .build();
    let good = request("fast", "good").build();
    broker.send(&[late, hangs, good.clone()]);
    assert_eq!(broker.replies(1)[0].1.operation, good.operation);
    // The drain ends immediately: neither open request needs a reply.
    agents.shutdown().await.unwrap();
    assert!(
        fast.calls
            .lock()
            .unwrap()
            .iter()
            .all(|call| &*call.request.step != "late")
    );

    // They were committed as done: the next process gets only the next request.
    let next = Scripted::new(4);
    let agents = start(&broker, &[("fast", &next)]);
    let after = request("fast", "after").build();
    broker.send(std::slice::from_ref(&after));
    assert_eq!(broker.replies(1)[0].1.operation, after.operation);
    assert_eq!(next.calls(), 1);
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_an_owner_that_was_superseded_is_handed_back_and_not_performed() {
    let broker = Broker::start();
    let fast = Scripted::new(1);
    let agents = start(&broker, &[("fast", &fast)]);
    let of_epoch = |step: &str, epoch: u64| StepRequest {
        shard: Some(LayoutShard {
            layout: 0,
            number: 4,
        }),
        ..request("fast", step).epoch(Epoch(epoch)).build()
    };
    broker.send(&[of_epoch("newer", 8)]);
    assert_eq!(broker.replies(1)[0].1.step, "newer");
    let older = of_epoch("older", 7);
    broker.send(&[older.clone(), of_epoch("after", 8)]);
    let replies = broker.replies(2);
    let answer = replies.iter().find(|(_, reply)| reply.step == "older");
    let (_, answer) = answer.expect("the older request is answered");
    assert_eq!(
        (answer.operation, answer.epoch),
        (older.operation, Epoch(7))
    );
    let Outcome::NotAttempted { error, .. } = &answer.outcome else {
        panic!("the request was attempted: {answer:?}");
    };
    assert_eq!(error.code, "owner-superseded");
    assert_eq!(fast.calls(), 2, "only requests of the newer owner");
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_agent_hands_back_immediately_and_blocks_no_other() {
    let broker = Broker::start();
    let (fast, slow) = (Scripted::new(4), Scripted::new(1));
    let mut config = broker.config();
    config.in_flight_max = 2;
    let agents = start_with(config, &[("fast", &fast), ("slow", &slow)]);
    // One request runs, one waits, and three are refused.
    let held: Vec<_> = (0..5).map(|_| request("slow", "hold").build()).collect();
    broker.send(&held);
    let back = broker.replies(3);
    for (_, reply) in &back {
        let Outcome::NotAttempted {
            error,
            retry_after_ms,
        } = &reply.outcome
        else {
            panic!("{reply:?}");
        };
        assert_eq!(error.code, "no-room");
        assert!((100..=1_500).contains(retry_after_ms));
    }
    let other = request("fast", "greet").build();
    broker.send(std::slice::from_ref(&other));
    assert_eq!(broker.replies(1)[0].1.operation, other.operation);
    slow.open(2);
    assert!(
        broker
            .replies(2)
            .iter()
            .all(|(_, reply)| reply.outcome == success(vec![]))
    );
    agents.shutdown().await.unwrap();
}

/// Lets the agent `slow` make its first attempt, which sets its average duration.
async fn learns(broker: &Broker, slow: &Scripted, takes: Duration) {
    broker.send(&[request("slow", "hold").build()]);
    eventually("the first runs", || slow.calls() == 1).await;
    tokio::time::sleep(takes).await;
    slow.open(1);
    assert_eq!(broker.replies(1).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_could_not_start_in_time_is_handed_back() {
    let broker = Broker::start();
    let slow = Scripted::new(1);
    let agents = start(&broker, &[("slow", &slow)]);
    learns(&broker, &slow, Duration::from_millis(400)).await;
    // One runs and twenty wait for about 0.4 s each: a request with two seconds left cannot start
    // in time.
    let patient: Vec<_> = (0..21).map(|_| request("slow", "hold").build()).collect();
    broker.send(&patient);
    let hasty = request("slow", "hold")
        .complete_within(Duration::from_secs(2))
        .build();
    broker.send(std::slice::from_ref(&hasty));
    let (_, reply) = &broker.replies(1)[0];
    assert_eq!(reply.operation, hasty.operation);
    assert!(
        matches!(&reply.outcome, Outcome::NotAttempted { error, .. } if error.code == "no-room")
    );
    slow.open(21);
    assert_eq!(broker.replies(21).len(), 21);
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_with_too_little_time_left_is_handed_back_and_done() {
    let broker = Broker::start();
    let slow = Scripted::new(1);
    let agents = start(&broker, &[("slow", &slow)]);
    learns(&broker, &slow, Duration::from_secs(4)).await;
    broker.send(&[request("slow", "hold").build()]);
    eventually("the second runs", || slow.calls() == 2).await;
    // After a wait of eight seconds, the request has less time left than two attempts take.
    let hasty = request("slow", "hold")
        .complete_within(Duration::from_secs(15))
        .build();
    broker.send(std::slice::from_ref(&hasty));
    tokio::time::sleep(Duration::from_secs(8)).await;
    slow.open(1);
    let replies = broker.replies(2);
    let of_hasty = replies
        .iter()
        .find(|(_, reply)| reply.operation == hasty.operation);
    let Some((_, reply)) = of_hasty else {
        panic!("{replies:?}");
    };
    assert!(
        matches!(&reply.outcome, Outcome::NotAttempted { error, .. } if error.code == "no-room"),
        "{reply:?}"
    );
    assert_eq!(slow.calls(), 2, "the work was not started");
    // No request is left open: a shutdown waits for open ones.
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_finishes_running_attempts_and_hands_back_waiting_ones() {
    let broker = Broker::start();
    let slow = Scripted::new(1);
    let agents = start(&broker, &[("slow", &slow)]);
    let requests: Vec<_> = (0..4).map(|_| request("slow", "hold").build()).collect();
    broker.send(&requests);
    // Records are taken in order: once this one is a dead letter, all before it are taken.
    let topic = broker.topics.step_requests("slow");
    broker.send_raw(&[(topic.clone(), b"no request".to_vec())]);
    let dead_letters = consumer(&broker.kafka, &Topics::dead_letter(&topic), 2);
    assert_eq!(read(&dead_letters, 1).len(), 1);
    eventually("one request runs", || slow.calls() == 1).await;
    let shutdown = tokio::spawn(agents.shutdown());
    let back = broker.replies(3);
    assert!(back.iter().all(|(_, reply)| matches!(&reply.outcome,
        Outcome::NotAttempted { error, .. } if error.code == "agent-stopping")));
    assert!(!shutdown.is_finished());
    slow.open(1);
    let (_, reply) = &broker.replies(1)[0];
    assert_eq!(reply.operation, requests[0].operation);
    assert_eq!(reply.outcome, success(vec![]));
    shutdown.await.unwrap().unwrap();

    // Everything was committed.
    let next = Scripted::new(1);
    let agents = start(&broker, &[("slow", &next)]);
    broker.send(&[request("slow", "after").build()]);
    assert_eq!(broker.replies(1).len(), 1);
    assert_eq!(next.calls(), 1);
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_does_not_wait_longer_than_the_drain_time() {
    let broker = Broker::start();
    let slow = Scripted::new(1);
    let mut config = broker.config();
    config.drain_timeout = Duration::from_millis(100);
    let agents = start_with(config, &[("slow", &slow)]);
    broker.send(&[request("slow", "hang").build()]);
    eventually("the request runs", || slow.calls() == 1).await;
    let start = Instant::now();
    agents.shutdown().await.unwrap();
    assert!(start.elapsed() < PATIENCE / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_unclean_stop_open_requests_are_repeated_with_the_same_key() {
    let broker = Broker::start();
    let first = Scripted::new(4);
    let agents = start(&broker, &[("fast", &first)]);
    let done = request("fast", "done").build();
    let open: Vec<_> = (0..2).map(|_| request("fast", "hold").build()).collect();
    broker.send(&[done, open[0].clone(), open[1].clone()]);
    eventually("all were started", || first.calls() == 3).await;
    assert_eq!(broker.replies(1).len(), 1);
    drop(agents);

    let second = Scripted::new(4);
    second.open(2);
    let agents = start(&broker, &[("fast", &second)]);
    let (before, mut replied) = (first.keys(), Vec::<OperationId>::new());
    while !open
        .iter()
        .all(|request| replied.contains(&request.operation))
    {
        replied.extend(broker.replies(1).iter().map(|(_, reply)| reply.operation));
    }
    for request in &open {
        let key = request.idempotency_key();
        assert_eq!(before[&key], 1);
        assert_eq!(second.keys()[&key], 1);
    }
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_record_is_dead_lettered_and_the_rest_continues() {
    let broker = Broker::start();
    let topic = broker.topics.step_requests("fast");
    let fast = Scripted::new(4);
    let agents = start(&broker, &[("fast", &fast)]);
    broker.send_raw(&[(topic.clone(), b"not avro".to_vec())]);
    let good = request("fast", "good").build();
    broker.send(std::slice::from_ref(&good));
    assert_eq!(broker.replies(1)[0].1.operation, good.operation);

    let dead_letters = consumer(&broker.kafka, &Topics::dead_letter(&topic), 2);
    let dead_letter = read(&dead_letters, 1).remove(0);
    assert_eq!(dead_letter.value.as_deref(), Some(&b"not avro"[..]));
    assert_eq!(dead_letter.key.as_deref(), Some(&b"key"[..]));
    let header = |name: &str| {
        let (_, value) = dead_letter
            .headers
            .iter()
            .find(|(key, _)| key == name)
            .unwrap();
        String::from_utf8(value.clone().unwrap()).unwrap()
    };
    assert_eq!(header("__connect.errors.topic"), topic);
    assert_eq!(header("__connect.errors.offset"), "0");
    agents.shutdown().await.unwrap();
}

/// The client encounters the record twice before it skips it, which takes most of a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecodable_records_are_dead_lettered_with_their_position_and_the_rest_continues() {
    let broker = Broker::start();
    let topic = broker.topics.step_requests("fast");
    // The length of its value is -2.
    let batch = batches::batch(0, &[vec![5 * 2, 0, 0, 0, 0, 3]]);
    let appended = batches::produce(&broker.kafka.brokers, &topic, &batch);
    assert_eq!(appended, 0, "the broker accepts it");
    let fast = Scripted::new(4);
    let agents = start(&broker, &[("fast", &fast)]);
    let dead_letters = consumer(&broker.kafka, &Topics::dead_letter(&topic), 2);
    let deadline = Instant::now() + PATIENCE * 4;
    while dead_letters.known_end(&Topics::dead_letter(&topic), PartitionId(0)) != Some(Offset(1)) {
        assert!(Instant::now() < deadline, "no dead letter arrived");
        tokio::time::sleep(PATIENCE / 100).await;
    }
    let dead_letter = read(&dead_letters, 1).remove(0);
    let place: serde_json::Value = serde_json::from_slice(&dead_letter.value.unwrap()).unwrap();
    assert_eq!(place["topic"], *topic, "{place}");
    let offsets = ["partition", "firstOffset", "nextOffset"].map(|field| &place[field]);
    assert_eq!(offsets, [0, 0, 1], "{place}");
    let is_mark = |(name, _): &&(String, _)| name == headers::UNDECODABLE_UNTIL;
    let (_, next) = dead_letter.headers.iter().find(is_mark).unwrap();
    assert_eq!(next.as_deref(), Some(&b"1"[..]));
    let good = request("fast", "good").build();
    broker.send(std::slice::from_ref(&good));
    assert_eq!(broker.replies(1)[0].1.operation, good.operation);
    agents.shutdown().await.unwrap();

    // It is not read again.
    let agents = start(&broker, &[("fast", &fast)]);
    let next = request("fast", "next").build();
    broker.send(std::slice::from_ref(&next));
    assert_eq!(broker.replies(1)[0].1.operation, next.operation);
    agents.shutdown().await.unwrap();
    let end = dead_letters.watermarks(&Topics::dead_letter(&topic), PartitionId(0), PATIENCE);
    assert_eq!(end.unwrap().1, Offset(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_requests_are_each_answered_once() {
    const COUNT: usize = 5_000;
    let broker = Broker::start();
    let fast = Scripted::new(64);
    let mut config = broker.config();
    config.in_flight_max = COUNT;
    let agents = start_with(config, &[("fast", &fast)]);
    let requests: Vec<_> = (0..COUNT).map(|_| request("fast", "go").build()).collect();
    broker.send(&requests);
    let replies = broker.replies(COUNT);
    assert!(
        replies
            .iter()
            .all(|(_, reply)| matches!(reply.outcome, Outcome::Success { .. }))
    );
    agents.shutdown().await.unwrap();
    assert_eq!(fast.keys().len(), COUNT);
    assert_eq!(fast.calls(), COUNT);
}

#[tokio::test]
async fn missing_and_duplicate_agent_names_are_refused() {
    let config = AgentsSettings::new(KafkaSettings::new("127.0.0.1:1"), Topics::default());
    assert!(Agents::start(config.clone(), vec![]).is_err());
    let handler: Arc<dyn Handler> = Scripted::new(1);
    let twice = vec![
        ("a".to_owned(), Arc::clone(&handler)),
        ("a".to_owned(), handler),
    ];
    assert!(Agents::start(config, twice).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_answered_despite_a_fatal_producer_error() {
    let broker = Broker::start();
    let fast = Scripted::new(4);
    let agents = start(&broker, &[("fast", &fast)]);
    let held: Vec<_> = (0..4).map(|_| request("fast", "hold").build()).collect();
    broker.send(&held);
    eventually("all run", || fast.calls() == 4).await;
    // The sequence numbers of the agents' producer and the broker diverge.
    broker.cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER],
    );
    fast.open(4);
    let expected: BTreeSet<_> = held.iter().map(|request| request.operation).collect();
    let answered: BTreeSet<_> = broker
        .replies(4)
        .iter()
        .map(|(_, reply)| reply.operation)
        .collect();
    assert_eq!(answered, expected);
    let after = request("fast", "after").build();
    broker.send(std::slice::from_ref(&after));
    assert_eq!(broker.replies(1)[0].1.operation, after.operation);
    agents.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_are_members_once_they_have_an_assignment() {
    let broker = Broker::start();
    let nowhere = AgentsSettings::new(KafkaSettings::new("127.0.0.1:1"), broker.topics.clone());
    let fast = Scripted::new(1);
    let alone = start_with(nowhere, &[("fast", &fast)]);
    // Three processes share two partitions: one assignment is empty.
    let processes: Vec<_> = (0..3).map(|_| start(&broker, &[("fast", &fast)])).collect();
    for agents in &processes {
        reaches(agents, Membership::Member).await;
    }
    let shown = alone.membership();
    for agents in processes {
        agents.shutdown().await.unwrap();
    }
    alone.shutdown().await.unwrap();
    let last = *shown.borrow();
    assert_eq!(
        last,
        Membership::Joining,
        "there is no group without a broker"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_refuses_the_agents_is_reported_until_it_takes_them() {
    let broker = Broker::start();
    let refusal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INCONSISTENT_GROUP_PROTOCOL;
    broker
        .cluster
        .request_errors(RDKafkaApiKey::JoinGroup, &[refusal; 3]);
    let fast = Scripted::new(1);
    let agents = start(&broker, &[("fast", &fast)]);
    reaches(&agents, Membership::Refused).await;
    reaches(&agents, Membership::Member).await;
    agents.shutdown().await.unwrap();
}

async fn reaches(agents: &Agents, expected: Membership) {
    let mut membership = agents.membership();
    let reached = membership.wait_for(|now| *now == expected);
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    assert!(
        reached.is_ok_and(|reached| reached.is_ok()),
        "never {expected:?}"
    );
}
