//! `waybill records` and `waybill dlq` as processes, against a `waybill broker` in another.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset as At, TopicPartitionList};
use serde_json::{Value, json};
use tempfile::TempDir;
use waybill_engine::{
    Action, Attempt, Epoch, Offset, OperationId, Outcome, PartitionId, StepReply,
};
use waybill_messages::headers::{DeadLetter, Stage};
use waybill_messages::{RECORD_SCHEMAS, Record as _};

/// How long anything may take that is waited for. Generous: it bounds a failure, not a success.
const PATIENCE: Duration = Duration::from_secs(60);

const REPLIES: &str = "waybill.step-replies.v1";
const DEAD: &str = "dlq.waybill.step-replies.v1";

/// Key, value and headers that no text can hold.
const KEY: &[u8] = b"\xffkey";
const POISON: &[u8] = b"\x00\x01poison\r\n\xff";

/// A running broker with two topics. Dropping it kills it.
struct World {
    dir: TempDir,
    broker: Child,
    address: SocketAddr,
    producer: BaseProducer,
    /// The timestamp of every record. Not an old one, which retention would take.
    made_at: jiff::Timestamp,
}

impl World {
    /// A broker with the topic of replies and that of its dead letters, two partitions each.
    fn new() -> Self {
        let world = Self::start("broker", &["--broker-listen", "127.0.0.1:0"]);
        world.create(REPLIES, 2);
        world.create(DEAD, 2);
        world
    }

    /// A process that brings a broker along.
    fn start(role: &str, listeners: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut broker = Command::new(env!("CARGO_BIN_EXE_waybill"))
            .arg(role)
            .args(listeners)
            .args(["--admin", "127.0.0.1:0", "--data-dir"])
            .arg(dir.path().join("data"))
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.path().join("log.txt")).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(broker.stdout.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("listening broker ")?.parse().unwrap()))
            .expect("the broker announces its address");
        // Read to the end, so that the process never blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let producer = client(address).create().unwrap();
        Self {
            dir,
            broker,
            address,
            producer,
            made_at: jiff::Timestamp::now(),
        }
    }

    fn made_at(&self) -> String {
        format!("{:.3}", self.made_at)
    }

    fn client(&self) -> ClientConfig {
        client(self.address)
    }

    fn create(&self, topic: &str, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let made = block_on(admin.create_topics([&topic], &AdminOptions::new())).unwrap();
        assert!(made.iter().all(Result::is_ok), "{made:?}");
    }

    /// Deletes what a partition holds below an offset.
    fn forget(&self, topic: &str, partition: i32, below: i64) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, At::Offset(below))
            .unwrap();
        block_on(admin.delete_records(&list, &AdminOptions::new())).unwrap();
    }

    fn produce(
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

    /// A dead letter as Waybill writes them, of offset 17 of its source.
    fn bury(&self, source: &str, partition: u32, own: &[(&str, Option<&[u8]>)], value: &[u8]) {
        let letter = DeadLetter {
            topic: source,
            partition: PartitionId(partition),
            offset: Offset(17),
            task_id: "0",
            stage: Stage::Value,
            component: "scheduler",
            error_kind: "DecodeError",
            message: "no\nrecord",
        };
        let errors = letter.headers();
        let errors = errors
            .iter()
            .map(|(name, value)| (*name, Some(value.as_slice())));
        let headers: Vec<_> = own.iter().copied().chain(errors).collect();
        let at = (DEAD, i32::try_from(partition).unwrap());
        self.produce(at, Some(KEY), Some(value), &headers);
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command
            .args(arguments.split_whitespace())
            .args(["--brokers", &self.address.to_string()])
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &str) -> Output {
        let running = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        finished(running.unwrap(), arguments)
    }

    /// What a command that succeeds writes.
    fn text(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The lines of JSON that a command that succeeds writes.
    fn json(&self, arguments: &str) -> Vec<Value> {
        json_lines(&self.text(arguments))
    }

    /// What a command that fails says.
    fn refusal(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Everything that a partition holds.
    fn held(&self, topic: &str, partition: i32) -> Vec<OwnedMessage> {
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

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
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

/// Waits for a process that ends by itself.
fn finished(mut child: Child, what: &str) -> Output {
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

fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn reply(step: &str) -> Vec<u8> {
    let reply = StepReply {
        operation: OperationId::of_caller("", step),
        step: step.to_owned(),
        attempt: Attempt(2),
        epoch: Epoch(3),
        action: Action::Run,
        outcome: Outcome::Success {
            outputs: vec![("droneId".to_owned(), "d-5".to_owned())],
        },
    };
    let mut bytes = Vec::new();
    reply.encode(&mut bytes).unwrap();
    bytes
}

fn field<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().map(|line| &line[name]).collect()
}

#[test]
fn records_are_printed_decoded_and_what_does_not_decode_harms_no_other() {
    let world = World::new();
    let headers: [(&str, Option<&[u8]>); 2] = [("traceparent", Some(b"00-1")), ("none", None)];
    world.produce((REPLIES, 0), Some(b"key"), Some(&reply("drone")), &headers);
    world.produce((REPLIES, 0), Some(KEY), Some(POISON), &[]);
    world.produce((REPLIES, 0), None, None, &[]);
    world.produce((REPLIES, 1), None, Some(&reply("package")), &[]);

    let lines = world.json("records step-replies");
    assert_eq!(lines, world.json(&format!("records {REPLIES}")));
    assert_eq!(field(&lines, "partition"), [0, 0, 0, 1]);
    assert_eq!(field(&lines, "offset"), [0, 1, 2, 0]);

    assert_eq!(lines[0]["timestamp"], world.made_at());
    assert_eq!(lines[0]["key"], "key");
    assert_eq!(
        lines[0]["headers"],
        json!([{"name": "traceparent", "value": "00-1"}, {"name": "none", "value": null}])
    );
    assert_eq!(lines[0]["schema"], "step-reply");
    assert_eq!(lines[0]["value"]["step"], "drone");
    assert_eq!(lines[0]["value"]["outputs"], json!({"droneId": "d-5"}));
    assert_eq!(lines[0].get("error"), None);

    assert_eq!(lines[1]["value"], Value::Null);
    assert_eq!(lines[1]["key"], json!({"base64": "/2tleQ=="}));
    assert_eq!(lines[1]["bytes"], "AAFwb2lzb24NCv8=");
    let cause = lines[1]["error"].as_str().unwrap();
    assert!(cause.contains("the registry's schema 24145769"), "{cause}");

    assert_eq!(lines[2]["value"], Value::Null);
    assert_eq!(lines[2].get("error"), None, "no value is nothing to decode");
    assert_eq!(lines[3]["value"]["step"], "package");

    let table = world.text("records step-replies --output table");
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.lines().nth(2).unwrap().ends_with("AAFwb2lzb24NCv8="));
}

#[test]
fn where_to_start_and_where_to_stop_can_be_said() {
    let world = World::new();
    for index in 0..30 {
        let step = format!("step-{index}");
        world.produce((REPLIES, index % 2), None, Some(&reply(&step)), &[]);
    }
    let offsets = |arguments: &str| -> Vec<(u64, u64)> {
        let lines = world.json(&format!("records step-replies {arguments}"));
        let number = |line: &Value, name: &str| line[name].as_u64().unwrap();
        let place = |line: &Value| (number(line, "partition"), number(line, "offset"));
        lines.iter().map(place).collect()
    };
    let of = |partition: u64, offsets: std::ops::Range<u64>| offsets.map(move |at| (partition, at));
    let all: Vec<_> = of(0, 0..15).chain(of(1, 0..15)).collect();
    assert_eq!(offsets(""), all);
    assert_eq!(offsets("--count 17"), all[..17]);
    assert_eq!(offsets("--partition 1"), all[15..]);
    assert_eq!(offsets("--partition 1 --from 13"), all[28..]);
    assert_eq!(offsets("--partition 1 --from 13 --count 1"), all[28..29]);
    assert_eq!(offsets("--from end"), []);
    assert_eq!(offsets("--partition 0 --from 15"), []);

    let refusal = world.refusal("records step-replies --partition 1 --from 16");
    assert!(
        refusal.contains("no offset 16: it holds 0 up to 15"),
        "{refusal}"
    );
    world.forget(REPLIES, 1, 4);
    assert_eq!(offsets("--partition 1"), all[19..]);
    let refusal = world.refusal("records step-replies --partition 1 --from 3");
    assert!(
        refusal.contains("no offset 3: it holds 4 up to 15"),
        "{refusal}"
    );
    let refusal = world.refusal("records step-replies --from 3");
    assert!(
        refusal.contains("has 2 partitions: say with --partition"),
        "{refusal}"
    );
    let refusal = world.refusal("records step-replies --partition 2");
    assert!(refusal.contains("has no partition 2"), "{refusal}");
}

#[test]
fn following_prints_what_comes_and_nothing_that_was_there() {
    let world = World::new();
    world.produce((REPLIES, 0), None, Some(&reply("before")), &[]);
    let mut following = world
        .command("records step-replies --from end --follow --output table --count 2")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The heading is written once the start is fixed.
    let mut out = BufReader::new(following.stdout.take().unwrap());
    let mut heading = String::new();
    out.read_line(&mut heading).unwrap();
    assert!(heading.starts_with("PARTITION"), "{heading}");
    world.produce((REPLIES, 0), None, Some(&reply("first")), &[]);
    world.produce((REPLIES, 1), None, Some(&reply("second")), &[]);
    assert!(finished(following, "records --follow").status.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.lines().count(), 2, "{rest}");
    assert!(
        rest.contains("first") && rest.contains("second") && !rest.contains("before"),
        "{rest}"
    );
}

#[test]
fn looking_makes_no_topic_and_commits_nothing() {
    let world = World::new();
    world.produce((REPLIES, 0), None, Some(&reply("drone")), &[]);
    assert_eq!(world.json("records step-replies").len(), 1);
    let refusal = world.refusal("records nowhere");
    assert!(
        refusal.contains("there is no topic nowhere or waybill.nowhere.v1 at 127.0.0.1:"),
        "{refusal}"
    );
    let consumer: BaseConsumer = world
        .client()
        .set("group.id", "waybill-no-group")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(None, PATIENCE).unwrap();
    let mut topics: Vec<&str> = metadata.topics().iter().map(|topic| topic.name()).collect();
    topics.sort_unstable();
    assert_eq!(topics, [DEAD, REPLIES]);
    let mut list = TopicPartitionList::new();
    list.add_partition(REPLIES, 0);
    let committed = consumer.committed_offsets(list, PATIENCE).unwrap();
    assert_eq!(committed.elements()[0].offset(), At::Invalid);
}

#[test]
fn a_confluent_framed_record_is_decoded_with_the_schema_that_is_given() {
    let world = World::new();
    let confluent = [&[0, 0, 0, 0, 7], &reply("drone")[10..]].concat();
    world.produce((REPLIES, 0), None, Some(&confluent), &[]);
    let line = &world.json("records step-replies")[0];
    let cause = line["error"].as_str().unwrap();
    assert!(cause.contains("--schema 7=FILE"), "{cause}");

    let schema = RECORD_SCHEMAS
        .iter()
        .find(|record| record.name == "step-reply")
        .unwrap();
    let file = world.dir.path().join("reply.avsc");
    std::fs::write(&file, schema.json).unwrap();
    let given = format!("records step-replies --schema 7={}", file.display());
    assert_eq!(world.json(&given)[0]["value"]["step"], "drone");

    std::fs::write(&file, "{").unwrap();
    let refusal = world.refusal(&given);
    assert!(refusal.contains("not an Avro schema"), "{refusal}");
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let world = World::new();
    for _ in 0..3 {
        world.produce((REPLIES, 0), None, Some(&[b'x'; 200_000]), &[]);
    }
    let mut printing = world
        .command("records step-replies")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    let mut out = printing.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    drop(out);
    let output = finished(printing, "records");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn brokers_that_are_away_and_arguments_that_mean_nothing_are_refused() {
    let world = World::new();
    // Nobody listens on a port that was just given back.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = free.local_addr().unwrap().to_string();
    drop(free);
    let output = Command::new(env!("CARGO_BIN_EXE_waybill"))
        .args(["records", "step-replies", "--brokers", &away])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains(&format!("no broker answered at {away}")),
        "{said}"
    );

    for arguments in [
        "records",
        "records a/b",
        "records t --from soon",
        "records t --count 0",
        "records t --schema 7",
        "dlq show t 0",
        "dlq show t 0 -1",
        "dlq list --after t/0",
        "dlq replay t",
        "dlq replay t 0",
        "dlq replay t 0 1 --all",
        "dlq replay t 0 1 --limit 5",
        "dlq replay t --all --rate 0/s",
    ] {
        let output = world.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
    }
}

#[test]
fn dead_letters_are_listed_page_by_page_each_once() {
    let world = World::new();
    for index in 0..25 {
        world.bury(REPLIES, index % 2, &[], POISON);
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = world.json(&format!("dlq list --output json --limit 10 {after}"));
        assert!(page.len() <= 10, "{}", page.len());
        let Some(last) = page.last() else { break };
        after = format!("--after {}", last["cursor"].as_str().unwrap());
        seen.extend(page);
    }
    let places: Vec<(u64, u64)> = seen
        .iter()
        .map(|line| {
            (
                line["partition"].as_u64().unwrap(),
                line["offset"].as_u64().unwrap(),
            )
        })
        .collect();
    let expected: Vec<_> = (0..13)
        .map(|at| (0, at))
        .chain((0..12).map(|at| (1, at)))
        .collect();
    assert_eq!(places, expected);
    let source = json!({"topic": REPLIES, "partition": 0, "offset": 17});
    for (name, value) in [
        ("topic", json!(DEAD)),
        ("timestamp", json!(world.made_at())),
        ("source", source),
        ("stage", json!("VALUE_CONVERTER")),
        ("component", json!("scheduler")),
        ("kind", json!("DecodeError")),
        ("cause", json!("no\nrecord")),
        ("key", json!({"base64": "/2tleQ=="})),
        ("bytes", json!(KEY.len() + POISON.len())),
    ] {
        assert_eq!(seen[0][name], value, "{name}");
    }

    let output = world.run("dlq list --topic step-replies --limit 20");
    let (table, note) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(table.lines().count(), 21, "{table}");
    assert!(table.contains("no\\nrecord"), "{table}");
    assert!(
        note.contains(&format!("there are more: --after {DEAD}/1/6")),
        "{note}"
    );
}

#[test]
fn a_dead_letter_is_shown_in_full_and_given_out_byte_for_byte() {
    let world = World::new();
    let own: [(&str, Option<&[u8]>); 2] = [("traceparent", Some(b"00-1")), ("none", None)];
    world.bury(REPLIES, 1, &own, POISON);
    let shown = world.text("dlq show step-replies 1 0");
    for part in [
        "letter     dlq.waybill.step-replies.v1/1/0",
        "source     waybill.step-replies.v1/1/17",
        "cause      no\\nrecord",
        "headers    2\n  traceparent: 00-1\n  none: -\n",
        "value      11 bytes\n",
        "00 01 70 6f 69 73 6f 6e 0d 0a ff ",
        "|..poison...|",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let raw = world.run("dlq show dlq.step-replies 1 0 --raw");
    assert_eq!(raw.stdout, POISON);
    let refusal = world.refusal("dlq show step-replies 1 1");
    assert!(
        refusal.contains("no letter at offset 1: it holds 0 up to 1"),
        "{refusal}"
    );
}

#[test]
fn a_replay_sends_the_same_bytes_to_the_same_partition_once() {
    let world = World::new();
    let own: [(&str, Option<&[u8]>); 3] = [
        ("bytes", Some(b"\xff\x00")),
        ("none", None),
        ("bytes", Some(b"")),
    ];
    world.bury(REPLIES, 1, &own, POISON);

    let dry = world.json("dlq replay step-replies 1 0 --dry-run --output json");
    assert_eq!(field(&dry, "outcome"), ["would-replay"]);
    assert!(world.held(REPLIES, 1).is_empty());
    assert_eq!(world.held(DEAD, 1).len(), 1, "a dry run leaves no receipt");

    let done = world.json("dlq replay step-replies 1 0 --output json");
    assert_eq!(field(&done, "outcome"), ["replayed"]);
    assert_eq!(
        done[0]["to"],
        json!({"topic": REPLIES, "partition": 1, "offset": 0})
    );
    let held = world.held(REPLIES, 1);
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].key(), Some(KEY));
    assert_eq!(held[0].payload(), Some(POISON));
    let headers: Vec<(&str, Option<&[u8]>)> = held[0]
        .headers()
        .unwrap()
        .iter()
        .map(|header| (header.key, header.value))
        .collect();
    let mark = format!("{DEAD}/1/0");
    let expected: Vec<_> = own
        .into_iter()
        .chain([("waybill-replayed-from", Some(mark.as_bytes()))])
        .collect();
    assert_eq!(headers, expected);

    let repeated = world.json("dlq replay step-replies 1 0 --output json");
    assert_eq!(field(&repeated, "outcome"), ["skipped"]);
    let note = repeated[0]["note"].as_str().unwrap();
    assert!(note.contains("replayed before"), "{note}");
    assert_eq!(world.held(REPLIES, 1).len(), 1);
    let forced = world.json("dlq replay step-replies 1 0 --again --output json");
    assert_eq!(field(&forced, "outcome"), ["replayed"]);
    assert_eq!(world.held(REPLIES, 1).len(), 2);

    // Receipts are no letters.
    assert_eq!(world.json("dlq list --output json").len(), 1);
    assert_eq!(world.json("dlq list --open --output json").len(), 0);
    let refusal = world.refusal("dlq show step-replies 1 1");
    assert!(refusal.contains("the receipt of a replay"), "{refusal}");
}

#[test]
fn replaying_all_goes_on_where_it_stopped_and_leaves_out_what_has_no_place() {
    let world = World::new();
    // Foreign records on the topic: one says nothing, one lies about its topic.
    world.produce((DEAD, 0), Some(b"k"), Some(b"v"), &[]);
    world.bury("somewhere-else", 0, &[], POISON);
    for index in 0..250_u32 {
        world.bury(REPLIES, 0, &[], &index.to_be_bytes());
    }
    for index in 250..260_u32 {
        world.bury(REPLIES, 1, &[], &index.to_be_bytes());
    }
    let replayed = |output: &Output| {
        let lines = json_lines(std::str::from_utf8(&output.stdout).unwrap());
        let count = |outcome: &str| {
            lines
                .iter()
                .filter(|line| line["outcome"] == outcome)
                .count()
        };
        (count("replayed"), count("failed"))
    };
    let some = world.run("dlq replay step-replies --all --limit 120 --output json");
    assert_eq!(replayed(&some), (120, 2));
    assert_eq!(some.status.code(), Some(1), "two letters have no place");
    let said = String::from_utf8_lossy(&some.stderr).into_owned();
    assert!(
        said.contains("120 replayed, 0 replayed before, 2 failed"),
        "{said}"
    );
    assert_eq!(
        world
            .json("dlq list --open --output json --limit 1000")
            .len(),
        142
    );

    let rest = world.run("dlq replay step-replies --all --output json");
    assert_eq!(replayed(&rest), (140, 2));
    let notes = String::from_utf8(rest.stdout).unwrap();
    assert!(
        notes.contains("does not say which topic") && notes.contains("came from somewhere-else"),
        "{notes}"
    );
    let values = |partition| -> Vec<Vec<u8>> {
        let held = world.held(REPLIES, partition);
        held.iter()
            .map(|record| record.payload().unwrap().to_vec())
            .collect()
    };
    let numbers = |range: std::ops::Range<u32>| range.map(|n| n.to_be_bytes().to_vec());
    assert_eq!(values(0), numbers(0..250).collect::<Vec<_>>());
    assert_eq!(values(1), numbers(250..260).collect::<Vec<_>>());
    let again = world.run("dlq replay step-replies --all --output json");
    assert_eq!(replayed(&again), (0, 2));
}

#[test]
fn a_replay_keeps_to_its_rate() {
    let world = World::new();
    for _ in 0..4 {
        world.bury(REPLIES, 0, &[], POISON);
    }
    let began = Instant::now();
    world.text("dlq replay step-replies 0 --all --rate 5/s");
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert_eq!(world.held(REPLIES, 0).len(), 4);
}

#[test]
fn kcat_reads_what_was_replayed_and_its_records_are_printed() {
    let world = World::new();
    let address = world.address.to_string();
    let kcat = |arguments: &[&str], input: &[u8]| -> Option<Output> {
        let spawned = Command::new("kcat")
            .args(["-b", &address])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => panic!("{error}"),
        };
        child.stdin.take().unwrap().write_all(input).unwrap();
        Some(finished(child, "kcat"))
    };
    let produce = ["-P", "-t", REPLIES, "-p", "0", "-K:", "-H", "a=b"];
    let Some(produced) = kcat(&produce, b"key:{\"not\": \"avro\"}\n") else {
        println!("SKIPPED: kcat is not installed");
        return;
    };
    assert!(produced.status.success(), "{produced:?}");
    let line = &world.json("records step-replies --partition 0")[0];
    assert_eq!(line["key"], "key");
    assert_eq!(line["headers"], json!([{"name": "a", "value": "b"}]));
    assert!(line["error"].as_str().unwrap().contains("framed neither"));

    world.bury(REPLIES, 1, &[("own", Some(b"header"))], b"some value");
    world.text("dlq replay step-replies 1 0");
    let consume = [
        "-C",
        "-t",
        REPLIES,
        "-p",
        "1",
        "-o",
        "beginning",
        "-e",
        "-q",
        "-f",
        "%s|%h\n",
    ];
    let consumed = kcat(&consume, b"").unwrap();
    let expected = format!("some value|own=header,waybill-replayed-from={DEAD}/1/0\n");
    assert_eq!(String::from_utf8(consumed.stdout).unwrap(), expected);
}

#[test]
fn a_poison_request_of_a_running_system_is_listed_replayed_and_comes_back() {
    const DEAD_REQUESTS: &str = "dlq.waybill.operation-requests.v1";
    let world = World::start(
        "up",
        &[
            "--http=127.0.0.1:0",
            "--services=127.0.0.1:0",
            "--broker-listen=127.0.0.1:0",
        ],
    );
    let letters = || world.json("dlq list --output json");
    let wait_for = |count: usize| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let letters = letters();
            if letters.len() == count {
                return letters;
            }
            let log = std::fs::read_to_string(world.dir.path().join("log.txt")).unwrap();
            assert!(Instant::now() < deadline, "{letters:?}\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // The topics are made while the process starts.
    wait_for_topic(&world, DEAD_REQUESTS);
    let requests = ("waybill.operation-requests.v1", 2);
    world.produce(requests, Some(KEY), Some(POISON), &[]);
    let first = &wait_for(1)[0];
    assert_eq!(first["cursor"], format!("{DEAD_REQUESTS}/2/0"));
    assert_eq!(first["source"]["offset"], 0);

    world.text("dlq replay operation-requests 2 0");
    let second = &wait_for(2)[1];
    assert_eq!(second["source"]["offset"], 1);
    assert_eq!(second["replayedFrom"], format!("{DEAD_REQUESTS}/2/0"));
    let cursor: Vec<_> = second["cursor"].as_str().unwrap().split('/').collect();
    let show = format!("dlq show operation-requests 2 {} --raw", cursor[2]);
    assert_eq!(
        world.run(&show).stdout,
        POISON,
        "it is still the same record"
    );

    // The letters of agents are found by the workflows that name them.
    world.produce(
        ("waybill.drone.requests.v1", 1),
        Some(KEY),
        Some(POISON),
        &[],
    );
    let third = &wait_for(3)[0];
    assert_eq!(third["cursor"], "dlq.waybill.drone.requests.v1/1/0");
    assert_eq!(third["component"], "agent");
}

fn wait_for_topic(world: &World, topic: &str) {
    let consumer: BaseConsumer = world.client().set("group.id", "test").create().unwrap();
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
