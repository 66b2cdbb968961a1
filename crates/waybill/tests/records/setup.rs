//! A broker in its own process, and commands that read it.

use std::io::Read as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset as At, TopicPartitionList};
use serde_json::Value;
use tempfile::TempDir;
use waybill_engine::{
    Action, Attempt, Epoch, Offset, OperationId, Outcome, PartitionId, StepReply,
};
use waybill_messages::DeadLetter;
use waybill_messages::Record as _;
use waybill_messages::headers::Stage;
use waybill_test_support::process::{Process, log_tail, without_variables};

/// The time limit of all waits. Generous, because it limits only failures.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const REPLIES: &str = "waybill.step-replies.v1";
pub const DEAD: &str = "waybill.step-replies.v1.dlq";

/// A key, value and headers that are not valid text.
pub const KEY: &[u8] = b"\xffkey";
pub const POISON: &[u8] = b"\x00\x01poison\r\n\xff";

/// A running broker with two topics. Dropping it kills it.
pub struct Setup {
    pub dir: TempDir,
    _process: Process,
    pub address: SocketAddr,
    producer: BaseProducer,
    /// The timestamp of every record. A recent one, because retention would delete an old one.
    made_at: jiff::Timestamp,
}

impl Setup {
    /// A broker with the topic of replies and its dead-letter topic, of two partitions each.
    pub fn new() -> Self {
        let setup = Self::start("broker", &["--broker-listen", "127.0.0.1:0"]);
        setup.create(REPLIES, 2);
        setup.create(DEAD, 2);
        setup
    }

    /// A process with an embedded broker.
    pub fn start(role: &str, listeners: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command
            .arg(role)
            .args(listeners)
            .args(["--admin", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path().join("data"));
        let (process, addresses) =
            Process::start(command, &["broker"], &dir.path().join("log.txt"));
        let address = addresses["broker"];
        let producer = client(address).create().unwrap();
        Self {
            dir,
            _process: process,
            address,
            producer,
            made_at: jiff::Timestamp::now(),
        }
    }

    pub fn log_tail(&self) -> String {
        log_tail(&self.dir.path().join("log.txt"))
    }

    pub fn made_at(&self) -> String {
        format!("{:.3}", self.made_at)
    }

    pub fn client(&self) -> ClientConfig {
        client(self.address)
    }

    pub fn create(&self, topic: &str, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let made = block_on(admin.create_topics([&topic], &AdminOptions::new())).unwrap();
        assert!(made.iter().all(Result::is_ok), "{made:?}");
    }

    /// Waits until another process has created a topic.
    pub fn wait_for_topic(&self, topic: &str) {
        let consumer: BaseConsumer = self.client().set("group.id", "test").create().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let metadata = consumer.fetch_metadata(None, PATIENCE).unwrap();
            if metadata.topics().iter().any(|found| found.name() == topic) {
                return;
            }
            assert!(Instant::now() < deadline, "{topic} is not made");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Deletes a partition's records below an offset.
    pub fn forget(&self, topic: &str, partition: i32, below: i64) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, At::Offset(below))
            .unwrap();
        block_on(admin.delete_records(&list, &AdminOptions::new())).unwrap();
    }

    pub fn produce(
        &self,
        (topic, partition): (&str, i32),
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) {
        let mut own = OwnedHeaders::new();
        for (key, value) in headers {
            own = own.insert(Header { key, value: *value });
        }
        let mut record = BaseRecord::<[u8], [u8]>::to(topic)
            .partition(partition)
            .headers(own)
            .timestamp(self.made_at.as_millisecond());
        record.key = key;
        record.payload = value;
        self.producer.send(record).unwrap();
        // A flush would take a tenth of a second.
        while self.producer.in_flight_count() > 0 {
            self.producer.poll(Duration::from_millis(1));
        }
    }

    /// A dead letter as Waybill writes it, from offset 17 of its source.
    pub fn bury(&self, source: &str, partition: u32, own: &[(&str, Option<&[u8]>)], value: &[u8]) {
        let dead_letter = DeadLetter {
            topic: source,
            partition: PartitionId(partition),
            offset: Offset(17),
            task_id: "0",
            stage: Stage::Value,
            component: "scheduler",
            error_kind: "DecodeError",
            message: "no\nrecord",
        };
        let errors = dead_letter.headers();
        let errors = errors
            .iter()
            .map(|(name, value)| (*name, Some(value.as_slice())));
        let headers: Vec<_> = own.iter().copied().chain(errors).collect();
        let at = (DEAD, i32::try_from(partition).unwrap());
        self.produce(at, Some(KEY), Some(value), &headers);
    }

    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        without_variables(&mut command)
            .args(arguments.split_whitespace())
            .args(["--brokers", &self.address.to_string()])
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &str) -> Output {
        let running = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        finished(running.unwrap(), arguments)
    }

    /// The output of a successful command.
    pub fn text(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The JSON lines of a successful command.
    pub fn json(&self, arguments: &str) -> Vec<Value> {
        json_lines(&self.text(arguments))
    }

    /// The error of a failed command.
    pub fn refusal(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// All records of a partition.
    pub fn held(&self, topic: &str, partition: i32) -> Vec<OwnedMessage> {
        let consumer: BaseConsumer = self.client().set("group.id", "test").create().unwrap();
        let (low, high) = consumer
            .fetch_watermarks(topic, partition, PATIENCE)
            .unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, At::Beginning)
            .unwrap();
        consumer.assign(&list).unwrap();
        (low..high)
            .map(|_| consumer.poll(PATIENCE).unwrap().unwrap().detach())
            .collect()
    }
}

fn client(address: SocketAddr) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address.to_string());
    config
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future)
}

/// Waits for a process that ends on its own.
pub fn finished(mut child: Child, what: &str) -> Output {
    let drain = |pipe: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                pipe.read_to_end(&mut bytes).unwrap();
            }
            bytes
        })
    };
    let stdout = drain(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = drain(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            panic!("{what} does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    Output {
        status,
        stdout,
        stderr,
    }
}

pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub fn reply(step: &str) -> Vec<u8> {
    let reply = StepReply {
        operation: OperationId::of_caller("", step),
        step: step.to_owned(),
        attempt: Attempt(2),
        epoch: Epoch(3),
        action: Action::Run,
        nonce: None,
        outcome: Outcome::Success {
            outputs: vec![("droneId".to_owned(), "d-5".to_owned())],
        },
    };
    let mut bytes = Vec::new();
    reply.encode(&mut bytes).unwrap();
    bytes
}

pub fn field<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().map(|line| &line[name]).collect()
}
