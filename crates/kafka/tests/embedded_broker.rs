//! Members of consumer groups against the embedded broker, which keeps sessions and static members
//! as Kafka does.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use waybill_broker::{Broker, BrokerConfig};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, GroupConsumer, GroupHandler, GroupOptions, KafkaSettings, OutRecord, PollLimits,
    Producer, ProducerOptions, RecordRef, Settlement, TopicPartition, TopicSpec,
};

const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than any test waits: whoever waits for a session to end fails.
const LONG_SESSION: Duration = Duration::from_secs(300);

struct World {
    runtime: tokio::runtime::Runtime,
    broker: Broker,
    /// The line to the broker.
    line: Line,
    settings: KafkaSettings,
    _dir: tempfile::TempDir,
}

impl World {
    /// A broker with the topic `t` of two partitions, the first of which holds a record.
    fn new() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut config = BrokerConfig::new(dir.path());
        config.listen = ([127, 0, 0, 1], 0).into();
        let line = Line::new();
        config.advertised = Some((line.address.ip().to_string(), line.address.port()));
        let broker = runtime.block_on(Broker::start(config)).unwrap();
        line.lead_to(broker.address());
        let settings = KafkaSettings::new(line.address.to_string());
        runtime.block_on(async {
            let admin = Admin::new(&settings, "admin").unwrap();
            admin.wait_ready(PATIENCE).await.unwrap();
            let topic = TopicSpec {
                name: "t".to_owned(),
                partitions: 2,
                replication: 1,
                config: Vec::new(),
            };
            admin.create_topics(&[topic]).await.unwrap();
        });
        let producer = Producer::new(&settings, &ProducerOptions::new("p")).unwrap();
        let (settlement, settled) = Settlement::channel(1);
        let record = OutRecord::new("t", PartitionId(0), b"k", b"v");
        producer.send(&record, Arc::clone(&settlement)).unwrap();
        assert_eq!(settled.blocking_recv(), Ok(Ok(())));
        Self {
            runtime,
            broker,
            line,
            settings,
            _dir: dir,
        }
    }

    fn member(&self, instance_id: Option<&str>) -> (GroupConsumer, Share) {
        let mut options = GroupOptions::new("g", "member");
        options.session_timeout = LONG_SESSION;
        options.instance_id = instance_id.map(str::to_owned);
        let consumer = GroupConsumer::new(&self.settings, &options).unwrap();
        consumer.subscribe(&["t"]).unwrap();
        (consumer, Share::default())
    }

    fn end(self) {
        self.runtime.block_on(self.broker.shutdown());
    }
}

/// A line to the broker that may be slow.
struct Line {
    address: SocketAddr,
    listener: TcpListener,
    delay_ms: Arc<AtomicU64>,
}

impl Line {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            listener,
            delay_ms: Arc::default(),
        }
    }

    fn lead_to(&self, broker: SocketAddr) {
        let (listener, delay_ms) = (self.listener.try_clone().unwrap(), self.delay_ms.clone());
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(broker) else {
                    continue;
                };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(from, to, &AtomicU64::new(0)));
                let delay_ms = delay_ms.clone();
                thread::spawn(move || carry(server, client, &delay_ms));
            }
        });
    }

    /// Lets every answer of the broker take this much longer from now on.
    fn slow_down(&self, delay: Duration) {
        let delay_ms = delay.as_millis().try_into().unwrap();
        self.delay_ms.store(delay_ms, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay_ms: &AtomicU64) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        thread::sleep(Duration::from_millis(delay_ms.load(Ordering::Relaxed)));
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The other side may be gone already.
    _ = to.shutdown(Shutdown::Both);
}

/// What a member holds and has read. Everything that it has read counts as done.
#[derive(Default)]
struct Share {
    held: Vec<TopicPartition>,
    read: Vec<(TopicPartition, Offset)>,
}

impl GroupHandler for Share {
    fn record(&mut self, record: RecordRef<'_>) {
        let at = TopicPartition {
            topic: record.topic().to_owned(),
            partition: record.partition(),
        };
        self.read.push((at, record.offset().next()));
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) {
        self.held.extend_from_slice(partitions);
    }

    fn revoked(
        &mut self,
        partitions: &[TopicPartition],
        _lost: bool,
    ) -> Vec<(TopicPartition, Offset)> {
        self.held.retain(|held| !partitions.contains(held));
        self.read.clone()
    }
}

fn poll_until((consumer, share): &mut (GroupConsumer, Share), done: impl Fn(&Share) -> bool) {
    let limits = PollLimits {
        records: 10,
        bytes: 1024,
    };
    let deadline = Instant::now() + PATIENCE;
    while !done(share) {
        assert!(
            Instant::now() < deadline,
            "the member holds {:?} and has read {:?}",
            share.held,
            share.read
        );
        consumer
            .poll(limits, Duration::from_millis(50), share)
            .unwrap();
    }
}

/// The commit that is still under way when partitions are given up must not keep the member from
/// telling the group that it leaves.
#[test]
fn a_member_that_leaves_makes_room_at_once_and_what_it_had_done_is_committed() {
    for instance_id in [None, Some("first")] {
        let world = World::new();
        let mut first = world.member(instance_id);
        poll_until(&mut first, |share| share.read.len() == 1);
        world.line.slow_down(Duration::from_millis(50));
        let (consumer, mut share) = first;
        consumer.close(PATIENCE, &mut share);
        assert_eq!(share.held, []);

        let mut second = world.member(None);
        poll_until(&mut second, |share| share.held.len() == 2);
        // Committed: the next poll that could bring a record brings none.
        let quiet = second.0.poll(
            PollLimits {
                records: 10,
                bytes: 1024,
            },
            Duration::from_millis(300),
            &mut second.1,
        );
        assert_eq!(quiet.unwrap().records, 0);
        drop(second);
        world.end();
    }
}

#[test]
fn a_member_that_comes_back_under_its_name_takes_its_own_place_again() {
    let world = World::new();
    let mut first = world.member(Some("name"));
    poll_until(&mut first, |share| share.read.len() == 1);
    // Without a word to the group, as when the process is killed.
    drop(first);
    let mut again = world.member(Some("name"));
    poll_until(&mut again, |share| {
        share.held.len() == 2 && share.read.len() == 1
    });
    assert!(again.0.was_assigned());
    drop(again);
    world.end();
}
