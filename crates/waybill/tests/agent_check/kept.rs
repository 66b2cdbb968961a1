//! Agents that keep the rules.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use waybill_agent_check::Rule;

use crate::setup::{Setup, root};

/// The time limit of all waits. Generous, because it limits only failures.
const PATIENCE: Duration = Duration::from_secs(60);

const DELIVERY: &str = r#"{
    "ownerId": "check",
    "packageInfo": {"packageId": "package-{{operation}}", "size": "small"},
    "pickupLocation": "here",
    "dropOffLocation": "there",
    "expedited": false
}"#;

#[test]
fn the_declared_agent_passes_every_rule() {
    let mut setup = Setup::new();
    let services = setup.role("services", &["--services", "127.0.0.1:0"]);
    let services = setup.start(services, &["services"])["services"].to_string();
    start_agents(&mut setup, &services);
    let input = setup.file("input.json", DELIVERY);
    let ledger = format!("http://{services}");
    let checked = setup.check(&[
        "--topic",
        "trial.drone.requests.v1",
        "--step",
        "drone",
        "--must-undo",
        "--must-probe",
        "--ledger",
        &ledger,
        "--input",
        input.to_str().unwrap(),
    ]);
    assert_eq!(
        checked.with("pass"),
        Rule::ALL.map(Rule::name),
        "{checked:#?}"
    );
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    assert!(
        checked.stderr.contains("none left an effect"),
        "{checked:#?}"
    );
}

#[test]
fn unsupported_actions_are_skipped_and_break_no_rule_unless_required() {
    let mut setup = Setup::new();
    let services = setup.role("services", &["--services", "127.0.0.1:0"]);
    let services = setup.start(services, &["services"])["services"].to_string();
    start_agents(&mut setup, &services);
    let input = setup.file("input.json", DELIVERY);
    // An account is only read, so there is nothing to undo or to probe.
    let arguments = [
        "--prefix",
        "trial",
        "--agent",
        "account",
        "--step",
        "account",
        "--burst",
        "20",
        "--without",
        "trace",
        "--input",
        input.to_str().unwrap(),
    ];
    let checked = setup.check(&arguments);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    let undoing = [
        "undo",
        "undo-repeated",
        "undo-first",
        "tombstone",
        "undo-race",
    ];
    let not_tried = ["probe"]
        .into_iter()
        .chain(undoing)
        .chain(["trace", "effects"]);
    assert_eq!(
        checked.with("not tried"),
        not_tried.collect::<Vec<_>>(),
        "{checked:#?}"
    );
    assert!(
        checked.seen("undo").contains("compensation-unknown"),
        "{checked:#?}"
    );

    let must = [&arguments[..], &["--must-undo", "--must-probe"]].concat();
    let checked = setup.check(&must);
    assert_eq!(checked.code, Some(1), "{checked:#?}");
    for rule in ["probe", "undo", "undo-first"] {
        assert!(checked.with("fail").contains(&rule), "{checked:#?}");
    }
}

/// `waybill agents` with the built-in agents, on the topic prefix of a check.
fn start_agents(setup: &mut Setup, services: &str) {
    let brokers = setup.broker.to_string();
    let arguments = ["--brokers", &brokers, "--services", services];
    let mut agents = setup.role("agents", &arguments);
    agents.env("WAYBILL_KAFKA__TOPIC_PREFIX", "trial");
    setup.start(agents, &["admin"]);
}

#[test]
fn the_prefix_of_an_installation_is_refused_and_nothing_is_written() {
    let mut setup = Setup::new();
    let brokers = setup.broker.to_string();
    let mut up = setup.role("up", &["--brokers", &brokers, "--http", "127.0.0.1:0"]);
    up.args(["--services", "127.0.0.1:0"])
        .env("WAYBILL_KAFKA__TOPIC_PREFIX", "live");
    setup.start(up, &["http"]);
    for (prefix, reason) in [
        (
            "live",
            "live.operation-requests.v1 exists: an installation uses this prefix",
        ),
        (
            "waybill",
            "waybill is the prefix of the installation itself",
        ),
    ] {
        let checked = setup.check(&["--prefix", prefix, "--agent", "drone", "--step", "drone"]);
        assert_eq!(checked.code, Some(2), "{checked:#?}");
        assert!(checked.stderr.contains(reason), "{checked:#?}");
    }
    assert_eq!(end_of(&setup, "live.drone.requests.v1"), 0);
}

#[test]
fn a_missing_agent_fails_the_first_rule_and_skips_the_others() {
    let setup = Setup::new();
    let checked = setup.check(&["--agent", "nobody", "--step", "wait", "--wait", "1s"]);
    assert_eq!(checked.code, Some(1), "{checked:#?}");
    assert_eq!(checked.with("fail"), ["answer"], "{checked:#?}");
    assert_eq!(checked.with("not tried").len(), Rule::ALL.len() - 1);
    assert!(
        checked
            .seen("answer")
            .contains("agent-check.nobody.requests.v1"),
        "{checked:#?}"
    );
}

#[test]
fn the_python_sample_passes_every_rule_and_stops_in_order() {
    let Some(python) = python() else {
        return;
    };
    let setup = Setup::new();
    let store = setup.dir.path().join("seats.db");
    let mut agent = Sample::start(&python, &setup, "agent-check", &setup.log());
    let input = setup.file("input.json", r#"{"seats": 2}"#);
    let checked = setup.check(&[
        "--agent",
        "seats",
        "--step",
        "book",
        "--must-undo",
        "--must-probe",
        "--group",
        "agent-check-agents",
        "--input",
        input.to_str().unwrap(),
    ]);
    let log = setup.log_tail();
    assert_eq!(
        checked.with("not tried"),
        ["effects"],
        "{checked:#?}\n{log}"
    );
    assert_eq!(
        checked.with("fail"),
        Vec::<&str>::new(),
        "{checked:#?}\n{log}"
    );
    assert_eq!(checked.code, Some(0), "{checked:#?}\n{log}");

    // By the end of its shutdown it has committed everything that it received.
    agent.stop();
    let topic = "agent-check.seats.requests.v1";
    assert_eq!(
        committed(&setup, "agent-check-agents", topic),
        end_of(&setup, topic)
    );
    // The service's database agrees: every key was undone, and each was booked once.
    let count = "import sqlite3, sys\n\
                 print(sqlite3.connect(sys.argv[1]).execute(\n\
                 'SELECT count(*) FROM bookings WHERE undone = 0').fetchone()[0])";
    let standing = Command::new(&python)
        .args(["-c", count])
        .arg(&store)
        .output();
    assert_eq!(String::from_utf8(standing.unwrap().stdout).unwrap(), "0\n");
}

/// The sample as a process. Dropping it kills it.
pub struct Sample(Child);

impl Sample {
    /// Starts it with this topic prefix, and the store `seats.db` in the directory of the test.
    pub fn start(python: &PathBuf, setup: &Setup, prefix: &str, log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        let child = Command::new(python)
            .arg(root().join("examples/python-agent/agent.py"))
            .args(["--prefix", prefix, "--brokers"])
            .arg(setup.broker.to_string())
            .arg("--store")
            .arg(setup.dir.path().join("seats.db"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Self(child.unwrap())
    }

    /// Sends SIGTERM and waits for an orderly exit.
    pub fn stop(&mut self) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(sent.success());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < deadline, "the sample does not stop");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Python with the sample's dependencies, created once for all runs. If that fails, prints a line
/// and returns `None`.
pub fn python() -> Option<PathBuf> {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("python-agent");
    let python = place.join("bin/python");
    let has_all = || {
        let imported = Command::new(&python)
            .args(["-c", "import confluent_kafka, fastavro"])
            .output();
        imported.is_ok_and(|output| output.status.success())
    };
    if has_all() {
        return Some(python);
    }
    let requirements = root().join("examples/python-agent/requirements.txt");
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&place)).and_then(|()| {
        let mut pip = Command::new(&python);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
        ]);
        run(pip.arg(requirements))
    });
    match made {
        Ok(()) if has_all() => Some(python),
        Ok(()) => panic!("what was installed cannot be imported"),
        Err(reason) => {
            println!("SKIPPED: examples/python-agent: {reason}");
            None
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(message.lines().last().unwrap_or("it fails").to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The number of records on a topic, in all partitions together.
fn end_of(setup: &Setup, topic: &str) -> i64 {
    let consumer = consumer(setup, "test");
    let partitions = partitions(&consumer, topic);
    let ends = partitions.into_iter().map(|partition| {
        let (_, end) = consumer
            .fetch_watermarks(topic, partition, PATIENCE)
            .unwrap();
        end
    });
    ends.sum()
}

/// The number of records that a group has committed.
fn committed(setup: &Setup, group: &str, topic: &str) -> i64 {
    let consumer = consumer(setup, group);
    let mut list = TopicPartitionList::new();
    for partition in partitions(&consumer, topic) {
        list.add_partition(topic, partition);
    }
    let committed = consumer.committed_offsets(list, PATIENCE).unwrap();
    let elements = committed.elements();
    let offsets = elements.iter().map(|element| match element.offset() {
        Offset::Offset(offset) => offset,
        _ => 0,
    });
    offsets.sum()
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> Vec<i32> {
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
    let partitions = metadata.topics()[0].partitions().iter();
    partitions.map(|partition| partition.id()).collect()
}

fn consumer(setup: &Setup, group: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", setup.broker.to_string())
        .set("group.id", group)
        .create()
        .unwrap()
}
