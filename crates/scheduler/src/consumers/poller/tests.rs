//! Damaged batches on librdkafka's mock cluster, and what the loop receives about them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use waybill_api::form::Forms;
use waybill_engine::{ShardHandover, ShardingScheme};
use waybill_kafka::{ConsumerOptions, KafkaSettings};
use waybill_messages::{Framing, Lookup, SchemaId, Schemas};
use waybill_store::ReplyKey;
use waybill_test_support::batches;

use super::*;
use crate::nonces::Nonces;

/// Timeout for anything that a test waits for. Generous: it bounds a failure, not a success.
const LONG: Duration = Duration::from_secs(30);
const TOPIC: &str = "requests";

/// A registry that does not answer at first, and then does not have the schema.
#[derive(Default)]
struct Registry {
    answers: AtomicBool,
}

impl Schemas for Registry {
    fn writer_schema(&self, _: SchemaId) -> Lookup {
        match self.answers.load(Ordering::Relaxed) {
            true => Lookup::Unknown,
            false => Lookup::NotYet,
        }
    }
}

/// A poller of partition 0, which a shard reads from the beginning.
fn poller(
    cluster: &MockCluster<'_, impl rdkafka::producer::ProducerContext>,
    registry: &Arc<Registry>,
) -> (Poller, Receiver<Incoming>) {
    let kafka = KafkaSettings::new(cluster.bootstrap_servers());
    let consumer = PartitionConsumer::new(&kafka, &ConsumerOptions::new("test")).unwrap();
    let nonces = Nonces::new(&ReplyKey::new([1; ReplyKey::BYTES]));
    let framing = Framing::reading(registry.clone());
    let decoder = |source| Decoder::new(source, framing.clone(), nonces.clone(), Forms::default());
    let (sender, inputs) = mpsc::channel();
    let topics = [(Source::Requests, Arc::from(TOPIC))];
    let mut poller = Poller::new(
        Arc::new(consumer),
        &topics,
        &decoder,
        Arc::default(),
        sender,
    );
    let scheme = ShardingScheme {
        partitions: 1,
        shards_per_partition: 1,
    };
    let shard = scheme.all().next().unwrap();
    let added = poller.obey(Order::Add {
        source: Source::Requests,
        partition: PartitionId(0),
        shard,
        generation: Generation::default(),
        filter: ShardFilter::new(scheme, shard, ShardHandover::default()),
        start: Offset(0),
        verify: None,
        end: Offset(0),
    });
    assert!(added);
    (poller, inputs)
}

/// Polls until the loop has received something or the partition waits. Returns what it received.
fn poll(poller: &mut Poller, inputs: &Receiver<Incoming>) -> Vec<Incoming> {
    let deadline = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < deadline, "nothing came");
        poller.poll(POLL_MAX);
        let received: Vec<_> = inputs.try_iter().collect();
        if !received.is_empty() || waits_at(poller).is_some() {
            return received;
        }
    }
}

fn waits_at(poller: &Poller) -> Option<Offset> {
    let waits_at = poller.consumed_topics[0].assigned[&PartitionId(0)].waits_at;
    waits_at.map(|waits| waits.offset)
}

#[test]
fn a_record_that_waits_for_its_schema_is_read_before_the_damage_after_it() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .create()
        .unwrap();
    let of_schema_7 = [0, 0, 0, 0, 7, 1];
    let record = BaseRecord::to(TOPIC).partition(0).key(&b"key"[..]);
    producer.send(record.payload(&of_schema_7)).unwrap();
    producer.flush(LONG).unwrap();
    // Its header declares zstd compression.
    let damaged = batches::batch(4, &[b"not compressed".to_vec()]);
    assert_eq!(
        batches::produce(cluster.bootstrap_servers(), TOPIC, &damaged),
        0
    );
    let registry = Arc::<Registry>::default();
    let (mut poller, inputs) = poller(&cluster, &registry);

    let received = poll(&mut poller, &inputs);
    assert!(received.is_empty(), "{received:?}");
    assert_eq!(waits_at(&poller), Some(Offset(0)));

    registry.answers.store(true, Ordering::Relaxed);
    poller.read_on();
    // The damage may have been met together with the waiting record, and is skipped now. Otherwise
    // wait for it.
    let (mut records, mut blocked) = (Vec::new(), None);
    while blocked.is_none() && records.len() < 2 {
        for input in poll(&mut poller, &inputs) {
            match input {
                Incoming::Records { records: more, .. } => records.extend(more),
                Incoming::Input(input) => match *input {
                    Input::Blocked { why: Some(why), .. } => blocked = Some(why),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        }
    }
    let is_of = |arrived: &Arrived, at: i64| match &arrived.event {
        Event::Unreadable { offset, .. } => *offset == Offset(at),
        _ => false,
    };
    assert!(is_of(&records[0], 0), "the record: {records:?}");
    match blocked {
        Some(why) => {
            assert!(why.contains("is damaged at offset 1"), "{why}");
            assert!(why.contains("skip"), "{why}");
            assert_eq!(waits_at(&poller), Some(Offset(1)));
        }
        None => assert!(is_of(&records[1], 1), "the damage: {records:?}"),
    }
}
