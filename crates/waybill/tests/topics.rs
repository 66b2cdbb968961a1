//! `waybill topics` as a process, on an embedded broker in another process and, if
//! `WAYBILL_TEST_BROKERS` names one (`HOST:PORT`), on Apache Kafka.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;
use waybill_test_support::clock;
use waybill_test_support::clock::Clock;
use waybill_test_support::process::{Process, log_tail, without_variables};

const PATIENCE: Duration = Duration::from_secs(60);

/// A broker, and a topic prefix for one test alone.
struct Setup {
    brokers: String,
    prefix: String,
    embedded: Option<(Process, TempDir)>,
}

impl Setup {
    fn embedded() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command.args(["broker", "--broker-listen", "127.0.0.1:0"]);
        command.args(["--admin", "127.0.0.1:0", "--data-dir"]);
        command.arg(dir.path().join("data"));
        let log = dir.path().join("log.txt");
        let (process, addresses) = Process::start(command, &["broker"], &log);
        Self::new(addresses["broker"].to_string(), Some((process, dir)))
    }

    fn apache_kafka_or_skip() -> Option<Self> {
        match std::env::var("WAYBILL_TEST_BROKERS") {
            Ok(brokers) => Some(Self::new(brokers, None)),
            Err(_) => {
                println!("SKIPPED: topics on Apache Kafka: WAYBILL_TEST_BROKERS names none");
                None
            }
        }
    }

    fn new(brokers: String, embedded: Option<(Process, TempDir)>) -> Self {
        Self {
            brokers,
            prefix: format!("test-{}", Uuid::new_v4().simple()),
            embedded,
        }
    }

    fn topic(&self, name: &str) -> String {
        format!("{}.{name}.v1", self.prefix)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        without_variables(&mut command);
        command.args(arguments).args(["--brokers", &self.brokers]);
        command.env("WAYBILL_KAFKA__TOPIC_PREFIX", &self.prefix);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(self.command(arguments).output().unwrap())
    }

    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    /// Creates a topic with its own settings.
    fn make(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let made = block_on(admin.create_topics([&topic], &AdminOptions::new())).unwrap();
        assert!(made.iter().all(Result::is_ok), "{made:?}");
        let deadline = std::time::Instant::now() + PATIENCE;
        while !self.topics().contains(&name.to_owned()) {
            assert!(std::time::Instant::now() < deadline, "{name} is not known");
        }
    }

    /// The topics of this test.
    fn topics(&self) -> Vec<String> {
        let consumer: BaseConsumer = self.client().create().unwrap();
        let metadata = consumer.fetch_metadata(None, PATIENCE).unwrap();
        let names = metadata.topics().iter().map(|topic| topic.name());
        names
            .filter(|name| name.contains(&self.prefix))
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        match &self.embedded {
            Some((_, dir)) if std::thread::panicking() => {
                eprintln!("{}", log_tail(&dir.path().join("log.txt")));
            }
            Some(_) => {}
            None => {
                let topics = self.topics();
                let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
                let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
                // Topics that cannot be deleted do not affect other tests.
                _ = block_on(admin.delete_topics(&topics, &AdminOptions::new()));
            }
        }
    }
}

/// The output of a command.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The lines of JSON.
    fn json(&self) -> Vec<Value> {
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// Makes a test on the embedded broker and one on Apache Kafka from each of these functions.
macro_rules! on_both_brokers {
    ($($test:ident)+) => {
        mod embedded {
            $(#[test]
            fn $test() {
                super::$test(&super::Setup::embedded());
            })+
        }
        mod apache_kafka {
            $(#[test]
            fn $test() {
                if let Some(setup) = super::Setup::apache_kafka_or_skip() {
                    super::$test(&setup);
                }
            })+
        }
    };
}

on_both_brokers! {
    what_is_missing_is_found_and_made_once_and_then_nothing_is_found
    concurrent_creations_of_topics_all_succeed
    a_topic_that_is_not_as_it_must_be_is_found_with_what_mends_it
    topics_are_described_with_offsets_and_settings
}

fn what_is_missing_is_found_and_made_once_and_then_nothing_is_found(setup: &Setup) {
    let requests = setup.topic("operation-requests");
    let missing = setup.run(&["topics", "verify"]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    let line = format!(
        "{requests}: does not exist; expected a topic of 4 partitions and replication factor 1"
    );
    assert!(missing.out.contains(&line), "{missing:?}");
    assert!(
        missing.out.contains("\n  waybill topics create\n"),
        "{missing:?}"
    );
    assert!(missing.err.contains("findings"), "{missing:?}");

    let tried = setup.run(&["topics", "create", "--dry-run"]);
    assert_eq!(tried.code, Some(0), "{tried:?}");
    assert!(tried.out.contains("would be made"), "{tried:?}");
    assert_eq!(setup.topics(), Vec::<String>::new());

    let outcomes = |ran: &Ran| -> Vec<String> {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let rows = ran.json();
        let outcomes = rows.iter().map(|row| row["outcome"].as_str().unwrap());
        outcomes.map(str::to_owned).collect()
    };
    let create = ["topics", "create", "--output", "json"];
    let made = outcomes(&setup.run(&create));
    assert!(made.len() > 10, "{made:?}");
    assert!(made.iter().all(|outcome| outcome == "made"), "{made:?}");
    let again = outcomes(&setup.run(&create));
    assert_eq!(again.len(), made.len());
    assert!(
        again.iter().all(|outcome| outcome == "existed"),
        "{again:?}"
    );

    let good = setup.run(&["topics", "verify"]);
    assert_eq!(good.code, Some(0), "{good:?}");
    assert_eq!(
        good.out,
        format!("ok: {} topics as configured\n", made.len())
    );
    let good = setup.run(&["topics", "verify", "--output", "json"]);
    assert_eq!((good.code, good.out.as_str()), (Some(0), ""), "{good:?}");
}

fn concurrent_creations_of_topics_all_succeed(setup: &Setup) {
    let all = [(); 16].map(|()| {
        setup
            .command(&["topics", "create", "--output", "json"])
            .spawn()
            .unwrap()
    });
    let mut made = 0;
    let mut needed = 0;
    for process in all {
        let ran = Ran::new(process.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let rows = ran.json();
        needed = rows.len();
        made += rows.iter().filter(|row| row["outcome"] == "made").count();
    }
    assert_eq!(made, needed, "each topic is made by one of them");
    assert_eq!(setup.run(&["topics", "verify"]).code, Some(0));
}

fn a_topic_that_is_not_as_it_must_be_is_found_with_what_mends_it(setup: &Setup) {
    let requests = setup.topic("operation-requests");
    setup.make(
        &requests,
        3,
        &[("retention.ms", "60000"), ("max.message.bytes", "1000")],
    );
    assert_eq!(setup.run(&["topics", "create"]).code, Some(0));
    let found = setup.run(&["topics", "verify", "--output", "json"]);
    assert_eq!(found.code, Some(1), "{found:?}");
    let rows = found.json();
    assert!(rows.iter().all(|row| row["topic"] == requests.as_str()));
    let finding = |key: &str| {
        let row = rows.iter().find(|row| row["key"] == key);
        row.unwrap_or_else(|| panic!("{key} is not found: {rows:?}"))
    };
    let partitions = finding("partitions");
    assert_eq!(
        (&partitions["found"], &partitions["harm"]),
        (&"3".into(), &true.into())
    );
    let retention = finding("retention.ms");
    assert_eq!(
        (&retention["found"], &retention["harm"]),
        (&"60000".into(), &true.into())
    );
    let size = finding("max.message.bytes");
    assert_eq!(size["harm"], false);
    let fix = format!(
        "kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name {requests} \
         --add-config max.message.bytes=1114112",
        setup.brokers
    );
    assert_eq!(size["fix"], fix.as_str());

    // No role starts with this topic.
    let dir = tempfile::tempdir().unwrap();
    let mut up = setup.command(&["up"]);
    for flag in ["--http", "--admin", "--services"] {
        up.args([flag, "127.0.0.1:0"]);
    }
    let refused = Ran::new(up.arg("--data-dir").arg(dir.path()).output().unwrap());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let why = format!(
        "topic {requests} has 3 partitions, not 4: set `partitions` to 3: its value applies only \
         to new topics"
    );
    assert!(refused.err.contains(&why), "{refused:?}");
    assert!(
        refused
            .err
            .contains("a topic differs from its required configuration"),
        "the size is a warning: {refused:?}"
    );
}

fn topics_are_described_with_offsets_and_settings(setup: &Setup) {
    let missing = setup.run(&["topics", "describe", "recovery", "--output", "json"]);
    assert_eq!(missing.code, Some(0), "{missing:?}");
    assert_eq!(missing.json()[0]["exists"], false);

    assert_eq!(setup.run(&["topics", "create"]).code, Some(0));
    let all = setup.run(&["topics", "describe", "--output", "json"]);
    assert_eq!(all.code, Some(0), "{all:?}");
    assert_eq!(all.json().len(), setup.topics().len());

    let one = setup.run(&[
        "topics",
        "describe",
        "operation-requests",
        "--output",
        "json",
    ]);
    let rows = one.json();
    let [row] = &rows[..] else { panic!("{one:?}") };
    assert_eq!(row["topic"], setup.topic("operation-requests").as_str());
    let partitions = row["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 4);
    for (number, partition) in partitions.iter().enumerate() {
        assert_eq!(partition["partition"], number);
        assert_eq!(
            (&partition["low"], &partition["high"]),
            (&0.into(), &0.into())
        );
        assert_eq!(partition["replicas"], partition["inSync"]);
        assert_eq!(partition["replicas"][0], partition["leader"]);
    }
    let settings = &row["settings"];
    assert_eq!(settings["cleanup.policy"], "delete");
    // The settings for durability of acknowledged requests, although the broker is reached like any
    // other one, and for their retention: on the embedded broker until they are done.
    let retention = match setup.embedded {
        Some(_) => {
            assert_eq!(settings["flush.messages"], "1");
            "-1"
        }
        None => {
            assert_eq!(settings["min.insync.replicas"], "1");
            assert_eq!(settings["message.timestamp.type"], "LogAppendTime");
            "259200000"
        }
    };
    assert_eq!(settings["retention.ms"], retention);

    let people = setup.run(&["topics", "describe", "operation-requests"]);
    assert!(
        people
            .out
            .contains(&format!("\n  retention.ms={retention}\n")),
        "{people:?}"
    );
    assert!(people.out.contains("PARTITION  LEADER"), "{people:?}");
    let unknown = setup.run(&["topics", "describe", "parcels"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(
        unknown.err.contains("parcels is not a topic of Waybill"),
        "{unknown:?}"
    );
}

#[test]
fn all_ports_in_use_are_named_and_nothing_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let taken = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [http, services] = taken.each_ref().map(|it| it.local_addr().unwrap());
    let data = dir.path().join("data");
    let mut up = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut up);
    up.args(["up", "--admin", "127.0.0.1:0"]);
    up.args(["--broker-listen", "127.0.0.1:0"]);
    up.args(["--http", &http.to_string()]);
    up.args(["--services", &services.to_string()]);
    let refused = Ran::new(up.arg("--data-dir").arg(&data).output().unwrap());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for named in [
        format!("http.listen (--http) {http}"),
        format!("services.listen (--services) {services}"),
    ] {
        assert!(refused.err.contains(&named), "{refused:?}");
    }
    let topics = std::fs::read_dir(data.join("broker/logs")).map_or(0, Iterator::count);
    assert_eq!(topics, 0, "no topic was made");
}

#[test]
fn the_names_of_all_topics_and_groups_begin_with_the_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = Command::new(env!("CARGO_BIN_EXE_waybill"));
    up.args(["up", "--samples", "3"]);
    for flag in ["--http", "--admin", "--services", "--broker-listen"] {
        up.args([flag, "127.0.0.1:0"]);
    }
    up.env("WAYBILL_KAFKA__TOPIC_PREFIX", "acme");
    up.env("WAYBILL_AGENTS__TRANSPORT", "topics");
    up.arg("--data-dir").arg(dir.path().join("data"));
    let log = dir.path().join("log.txt");
    let (_up, addresses) = Process::start(up, &["broker", "http"], &log);
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", addresses["broker"].to_string());
    let client: BaseConsumer = client.create().unwrap();
    let groups = || -> Vec<String> {
        let groups = client.fetch_group_list(None, PATIENCE).unwrap();
        let names = groups.groups().iter().map(|group| group.name());
        names.map(str::to_owned).collect()
    };
    // A group exists once its members have joined, or a first checkpoint was copied.
    let expected = ["acme-agents", "acme-scheduler", "acme.supervisors"];
    let deadline = std::time::Instant::now() + PATIENCE;
    let found = loop {
        let found = groups();
        let is_there = |name: &&str| found.iter().any(|group| group == name);
        if expected.iter().all(is_there) {
            break found;
        }
        let log = || log_tail(&dir.path().join("log.txt"));
        assert!(std::time::Instant::now() < deadline, "{found:?}: {}", log());
        std::thread::sleep(Duration::from_millis(50));
    };
    let others: Vec<_> = found
        .iter()
        .filter(|name| !name.starts_with("acme"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    let metadata = client.fetch_metadata(None, PATIENCE).unwrap();
    let topics: Vec<&str> = metadata.topics().iter().map(|topic| topic.name()).collect();
    assert!(topics.contains(&"acme.recovery.v1.dlq"), "{topics:?}");
    let others: Vec<_> = topics
        .iter()
        .filter(|name| !name.starts_with("acme."))
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_clock_step_of_days_deletes_no_waiting_request() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = Command::new(env!("CARGO_BIN_EXE_waybill"));
    up.args(["up", "--partitions", "1"]);
    for flag in ["--http", "--admin", "--services", "--broker-listen"] {
        up.args([flag, "127.0.0.1:0"]);
    }
    up.arg("--data-dir").arg(dir.path().join("data"));
    let Some(library) = clock::library() else {
        println!("SKIPPED: a clock that steps: libfaketime is not installed (Debian: faketime)");
        return;
    };
    let clock = Clock::new(&library, dir.path(), "up");
    up.envs(clock.env.iter().cloned());
    let log = dir.path().join("log.txt");
    let (_up, addresses) = Process::start(up, &["broker", "http", "admin", "services"], &log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = reqwest::Client::new();
    let deadline = std::time::Instant::now() + PATIENCE * 2;
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        while !holds() {
            assert!(
                std::time::Instant::now() < deadline,
                "{what}: {}",
                log_tail(&log)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let send = |request: reqwest::RequestBuilder| -> (u16, Value) {
        runtime.block_on(async {
            let Ok(answer) = request.send().await else {
                return (0, Value::Null);
            };
            let status = answer.status().as_u16();
            (status, answer.json().await.unwrap_or_default())
        })
    };
    let admin = |path: &str| format!("http://{}{path}", addresses["admin"]);
    let http = |path: &str| format!("http://{}{path}", addresses["http"]);
    let is_ready = || send(client.get(admin("/readyz"))).0 == 200;
    until("it is ready", &is_ready);
    let scheduler = |running: bool| {
        let wanted = serde_json::json!({ "running": running });
        send(client.put(admin("/schedulers/0")).json(&wanted)).0
    };
    // One request is done, so that the partition has a checkpoint and its requests are known.
    let accept = |id: &str| {
        let delivery = serde_json::json!({
            "deliveryId": id, "ownerId": "o", "pickupLocation": "12 Harbour Street",
            "dropOffLocation": "7 Hill Road", "pickupTime": "2030-01-01T10:00:00Z",
            "deadline": "2030-01-01T18:00:00Z", "expedited": false, "confirmationRequired": "None",
            "packageInfo": { "packageId": id, "size": "Small", "weight": 1.5, "tag": "t" },
        });
        let request = client.post(http("/api/deliveryrequests"));
        let (status, accepted) = send(request.json(&delivery));
        assert_eq!(status, 202, "{accepted}");
        accepted["id"].as_str().unwrap().to_owned()
    };
    let is_processed = |id: &str| {
        let (_, operation) = send(client.get(http(&format!("/v1/operations/{id}"))));
        operation["state"] == "Processed"
    };
    let first = accept("first");
    until("the first ends", &|| is_processed(&first));
    assert_eq!(scheduler(false), 200);
    let waiting: Vec<String> = (0..20).map(|n| accept(&format!("waiting-{n}"))).collect();

    clock.set("+345600");
    // Retention has run once a record with a retention of a millisecond is deleted.
    let mut probe = ClientConfig::new();
    probe.set("bootstrap.servers", addresses["broker"].to_string());
    let topics: AdminClient<DefaultClientContext> = probe.create().unwrap();
    let topic = NewTopic::new("probe", 1, TopicReplication::Fixed(1)).set("retention.ms", "1");
    block_on(topics.create_topics([&topic], &AdminOptions::new())).unwrap();
    let producer: rdkafka::producer::BaseProducer = probe.create().unwrap();
    let record = rdkafka::producer::BaseRecord::<(), _>::to("probe").payload("x");
    producer.send(record).unwrap();
    rdkafka::producer::Producer::flush(&producer, PATIENCE).unwrap();
    let consumer: BaseConsumer = probe.create().unwrap();
    let is_gone = || consumer.fetch_watermarks("probe", 0, PATIENCE).unwrap() == (1, 1);
    until("the probe was deleted", &is_gone);

    clock.set("+0");
    assert_eq!(scheduler(true), 200);
    for id in &waiting {
        until("what waited ends", &|| is_processed(id));
    }
}
