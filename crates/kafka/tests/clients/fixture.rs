//! A broker for one test.

use std::env;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Runtime;
use waybill_broker::{Broker, BrokerSettings};
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{
    Admin, ConsumerOptions, KafkaSettings, PartitionConsumer, Producer, ProducerOptions, TopicSpec,
};

use crate::line::Line;
use crate::support::{BatchProducer, OneProducer, PATIENCE};

/// A broker for one test.
pub(crate) struct Fixture {
    pub(crate) settings: KafkaSettings,
    pub(crate) admin: Admin,
    pub(crate) runtime: Runtime,
    /// The prefix of every name of this test, and of no other.
    prefix: String,
    /// Created topics that must still be deleted.
    topics: Mutex<Vec<String>>,
    embedded: Option<Embedded>,
}

struct Embedded {
    broker: Broker,
    line: Line,
    dir: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn embedded() -> Self {
        Self::embedded_with(|_| {})
    }

    /// An embedded broker that is configured in another way.
    pub(crate) fn embedded_with(change: impl FnOnce(&mut BrokerSettings)) -> Self {
        let runtime = Runtime::new().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut config = BrokerSettings::new(dir.path());
        config.listen = ([127, 0, 0, 1], 0).into();
        change(&mut config);
        let line = Line::new();
        config.advertised = Some((line.address.ip().to_string(), line.address.port()));
        let broker = runtime.block_on(Broker::start(config)).unwrap();
        line.lead_to(broker.address());
        let brokers = line.address.to_string();
        let embedded = Embedded { broker, line, dir };
        Self::new(runtime, KafkaSettings::new(brokers), Some(embedded))
    }

    /// Apache Kafka, if the environment names a server.
    pub(crate) fn apache_kafka() -> Option<Self> {
        match env::var("WAYBILL_TEST_BROKERS") {
            Ok(brokers) if !brokers.is_empty() => {
                let settings = KafkaSettings::new(brokers);
                Some(Self::of_others(settings))
            }
            _ => {
                println!("SKIPPED: tests on Apache Kafka: WAYBILL_TEST_BROKERS names none");
                None
            }
        }
    }

    /// A broker of another owner, with these settings.
    pub(crate) fn of_others(settings: KafkaSettings) -> Self {
        Self::new(Runtime::new().unwrap(), settings, None)
    }

    fn new(runtime: Runtime, settings: KafkaSettings, embedded: Option<Embedded>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let admin = Admin::new(&settings, "admin").unwrap();
        runtime.block_on(admin.wait_ready(PATIENCE)).unwrap();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            settings,
            admin,
            runtime,
            prefix: format!("test-{}-{number}", since_epoch.as_micros()),
            topics: Mutex::default(),
            embedded,
        }
    }

    /// A name that no other test uses, for a topic or a group.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Creates a topic. Returns its name.
    pub(crate) fn topic(&self, name: &str, partitions: u32) -> String {
        self.topic_with(name, partitions, &[])
    }

    pub(crate) fn topic_with(
        &self,
        name: &str,
        partitions: u32,
        config: &[(&str, &str)],
    ) -> String {
        let mut topic = TopicSpec::new(self.name(name), partitions);
        topic.config = config
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self.topics.lock().unwrap().push(topic.name.clone());
        let name = topic.name.clone();
        self.runtime
            .block_on(self.admin.create_topics(&[topic]))
            .unwrap();
        self.await_partitions(&name, Some(partitions));
        name
    }

    /// Gives a topic more partitions.
    pub(crate) fn more_partitions(&self, topic: &str, partitions: u32) {
        self.runtime
            .block_on(self.admin.add_partitions(&[topic], partitions))
            .unwrap();
        self.await_partitions(topic, Some(partitions));
    }

    /// Deletes a topic, and waits until it no longer exists.
    pub(crate) fn delete(&self, topic: &str) {
        self.runtime
            .block_on(self.admin.delete_topic(topic))
            .unwrap();
        self.await_partitions(topic, None);
    }

    /// Flips a bit of a record of the embedded broker on disk, and back when it is called again.
    pub(crate) fn flip_a_bit_of(&self, value: &[u8]) {
        let mut folders = vec![self.embedded.as_ref().unwrap().dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let mut bytes = std::fs::read(&path).unwrap();
                // The whole value without the byte that changes.
                let at = bytes
                    .windows(value.len())
                    .position(|at| at[1..] == value[1..]);
                if let Some(at) = at {
                    bytes[at] ^= 1;
                    let file = std::fs::File::options().write(true).open(&path).unwrap();
                    file.write_all_at(&bytes[at..=at], at as u64).unwrap();
                    return;
                }
            }
        }
        panic!("no file holds the record");
    }

    /// Deletes the records of partition 0 below an offset.
    pub(crate) fn delete_records(&self, topic: &str, below: i64) {
        let below = [(PartitionId(0), Offset(below))];
        self.runtime
            .block_on(self.admin.delete_records(topic, &below))
            .unwrap();
    }

    /// Delays every answer by this much, if the test has a proxy.
    pub(crate) fn slow_down(&self, delay: Duration) {
        if let Some(embedded) = &self.embedded {
            embedded.line.slow_down(delay);
        }
    }

    /// The proxy of the embedded broker.
    pub(crate) fn line(&self) -> &Line {
        &self.embedded.as_ref().unwrap().line
    }

    pub(crate) fn producer(&self) -> BatchProducer {
        Producer::new(&self.settings, &ProducerOptions::new("p")).unwrap()
    }

    pub(crate) fn one_producer(&self) -> OneProducer {
        Producer::new(&self.settings, &ProducerOptions::new("p")).unwrap()
    }

    /// A consumer of one partition.
    pub(crate) fn consumer(&self, topic: &str, partition: u32, from: i64) -> PartitionConsumer {
        let consumer = PartitionConsumer::new(&self.settings, &ConsumerOptions::new("c")).unwrap();
        consumer
            .assign(&[(topic, PartitionId(partition), Offset(from))])
            .unwrap();
        consumer
    }

    /// Waits: a broker may answer that a topic is created or deleted before all its parts know.
    fn await_partitions(&self, topic: &str, partitions: Option<u32>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.runtime.block_on(self.admin.topic_partitions(topic));
            match found {
                Ok(found) if found == partitions => return,
                other => assert!(Instant::now() < deadline, "{topic}: {other:?}"),
            }
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        match self.embedded.take() {
            Some(embedded) => {
                self.runtime.block_on(embedded.broker.shutdown());
            }
            None => {
                for topic in self.topics.lock().unwrap().drain(..) {
                    // A topic that remains harms no other test.
                    _ = self.runtime.block_on(self.admin.delete_topic(&topic));
                }
            }
        }
    }
}
