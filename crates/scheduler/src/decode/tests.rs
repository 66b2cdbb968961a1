//! Replies on librdkafka's mock cluster, and the event that the engine receives for each.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use waybill_agent::testing::StepRequestBuilder;
use waybill_engine::{
    Action, Attempt, Epoch, KeyHash, Nonce, Offset, Outcome, PartitionId, ShardHandover,
    ShardingScheme, StepRequest,
};
use waybill_kafka::{ConsumerOptions, KafkaSettings, PartitionConsumer, PollLimits};
use waybill_messages::Record as _;
use waybill_store::ReplyKey;

use super::*;

/// Timeout for anything that a test waits for. Generous: it bounds a failure, not a success.
const PATIENCE: Duration = Duration::from_secs(20);
const TOPIC: &str = "replies";
const READERS: u32 = 2;

fn nonces() -> Nonces {
    Nonces::new(&ReplyKey::new([1; ReplyKey::BYTES]))
}

/// A request that was sent for the operation with this number.
fn sent(number: u128) -> StepRequest {
    let builder = StepRequestBuilder::new("drone", "fly")
        .operation(OperationId(uuid::Uuid::from_u128(number)))
        .attempt(Attempt(2))
        .epoch(Epoch(3));
    let mut request = builder.build();
    request.nonce = Some(nonces().of_request(&request));
    request
}

fn success(request: &StepRequest) -> StepReply {
    let outputs = vec![("flown".to_owned(), "yes".to_owned())];
    StepReply::to(request, Outcome::Success { outputs })
}

fn encoded(reply: &StepReply) -> Vec<u8> {
    let mut value = Vec::new();
    reply.encode(&mut value).unwrap();
    value
}

/// Produces each reply under its operation's key; returns the events of each shard that takes a
/// reply.
fn events_of(replies: &[StepReply], shards_per_partition: u32) -> Vec<Vec<Event>> {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .create()
        .unwrap();
    for reply in replies {
        let (key, value) = (reply.operation.key(), encoded(reply));
        let record = BaseRecord::to(TOPIC).partition(0).key(&key[..]);
        producer.send(record.payload(&value)).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    let scheme = ShardingScheme {
        partitions: 1,
        shards_per_partition,
    };
    let of_shard = |shard| ShardFilter::new(scheme, shard, ShardHandover::default());
    let filters: Vec<ShardFilter> = scheme.all().map(of_shard).collect();
    let decoder = Decoder::new(
        Source::Replies,
        Framing::single_object(),
        nonces(),
        Forms::default(),
    );
    let kafka = KafkaSettings::new(cluster.bootstrap_servers());
    let consumer = PartitionConsumer::new(&kafka, &ConsumerOptions::new("test")).unwrap();
    consumer.add(&[(TOPIC, PartitionId(0), Offset(0))]).unwrap();
    let mut events = Vec::new();
    let mut read = |record: RecordRef<'_>| {
        let key = KeyHash::of(record.key().unwrap_or_default());
        let takes = |filter: &&ShardFilter| filter.takes(Source::Replies, record.offset(), key);
        let takers = filters.iter().filter(takes);
        events.push(
            takers
                .map(|filter| decoder.event(&record, filter).unwrap())
                .collect(),
        );
    };
    let limits = PollLimits {
        records: 100,
        bytes: 1_000_000,
    };
    let deadline = Instant::now() + PATIENCE;
    let mut records = 0;
    while records < replies.len() {
        assert!(Instant::now() < deadline, "{records} records came");
        let polled = consumer.poll(limits, Duration::from_millis(100), &mut read);
        records += polled.unwrap().records;
    }
    events
}

/// Asserts that a reply is refused; returns the reason.
#[track_caller]
fn refused(events: &[Event], reply: &StepReply) -> String {
    match events {
        [
            Event::Unreadable {
                source: Source::Replies,
                cause,
                record,
                ..
            },
        ] => {
            assert_eq!(record.value, Some(encoded(reply)), "unchanged");
            cause.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reply_with_the_nonce_of_its_request_reaches_the_engine() {
    let reply = success(&sent(7));
    let events = events_of(std::slice::from_ref(&reply), 1);
    match &events[0][..] {
        [
            Event::Reply {
                offset: Offset(0),
                reply: read,
            },
        ] => assert_eq!(*read, reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reply_without_the_nonce_of_its_request_is_poison_with_advice() {
    let (request, other) = (sent(7), sent(8));
    let of_attempt = |attempt| {
        let mut other = request.clone();
        other.attempt = attempt;
        Some(nonces().of_request(&other))
    };
    let with = |nonce| StepReply {
        nonce,
        ..success(&request)
    };
    let replies = [
        with(None),
        with(Some(Nonce([0; Nonce::BYTES]))),
        with(other.nonce),
        with(of_attempt(Attempt(1))),
        StepReply {
            action: Action::Compensate,
            ..success(&request)
        },
    ];
    let events = events_of(&replies, 1);
    let causes: Vec<String> = events
        .iter()
        .zip(&replies)
        .map(|(events, reply)| refused(events, reply))
        .collect();
    assert!(causes[0].contains("has no nonce"), "{causes:?}");
    for cause in &causes[1..] {
        assert!(cause.contains("does not match a request"), "{causes:?}");
    }
    for cause in causes {
        assert!(cause.contains("an agent must repeat"), "{cause}");
    }
}

#[test]
fn exactly_one_shard_of_a_partition_dead_letters_a_forged_reply() {
    let forged: Vec<StepReply> = (0..20)
        .map(|number| StepReply {
            nonce: None,
            ..success(&sent(number))
        })
        .collect();
    for (events, reply) in events_of(&forged, READERS).iter().zip(&forged) {
        refused(events, reply);
    }
}
