//! Agents of several kinds in one consumer group: the brokers refuse a member whose assignment
//! strategy the others do not support.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use waybill_test_support::process::without_variables;

use crate::kept::{Sample, python};
use crate::setup::Setup;

/// The time limit of all waits. Generous, because it limits only failures.
const PATIENCE: Duration = Duration::from_secs(60);

/// The steps of an agent in another language and of a built-in one.
const WORKFLOW: &str = "
name: trip
version: 1
steps:
  - { name: book, agent: seats, kind: pure }
  - { name: account, agent: account, kind: pure }
";
const TOPIC: &str = "trial.seats.requests.v1";
const GROUP: &str = "trial-agents";

#[test]
fn the_python_sample_and_built_in_agents_share_their_group_in_either_order() {
    let Some(python) = python() else {
        return;
    };
    let (mut setup, _) = installation();
    let log = setup.dir.path().join("sample.log");
    let is_assigned = || text(&log).contains("assigned: [0");

    let mut sample = Sample::start(&python, &setup, "trial", &log);
    eventually("the sample has partitions", is_assigned);
    let agents = start_agents(&mut setup);
    eventually("the agents are ready", || {
        readiness(&setup, agents).status.success()
    });
    sample.stop();

    let _sample = Sample::start(&python, &setup, "trial", &log);
    eventually("the sample has partitions beside the agents", is_assigned);
    assert!(readiness(&setup, agents).status.success());
}

#[test]
fn a_member_with_another_strategy_locks_the_agents_out_and_all_say_so() {
    let (mut setup, log) = installation();
    let foreign = foreign_member(&setup, "foreign-first");
    eventually("the foreign member has partitions", || {
        foreign.poll(Duration::from_millis(50));
        foreign.assignment().is_ok_and(|list| list.count() > 0)
    });
    let agents = start_agents(&mut setup);
    let refused = "partitions for the agents (the consumer group trial-agents refuses this process: another member does \
                   not use the partition.assignment.strategy cooperative-sticky)";
    eventually("readiness says that the group refuses the agents", || {
        foreign.poll(Duration::ZERO);
        String::from_utf8_lossy(&readiness(&setup, agents).stderr).contains(refused)
    });
    let found = doctor(&setup, agents);
    let expected = "BAD   agents         the consumer group trial-agents has the partition.assignment.strategy range: \
                    Waybill's agents cannot join it until every member supports cooperative-sticky; without a \
                    consumer: account";
    assert!(found.contains(expected), "{found}");

    drop(foreign);
    eventually("the agents are ready", || {
        readiness(&setup, agents).status.success()
    });
    let foreign = foreign_member(&setup, "foreign-second");
    eventually("the broker names the member that it refuses", || {
        foreign.poll(Duration::from_millis(50));
        text(&log).contains(r#"client="foreign-second""#)
    });
    let lines: Vec<String> = text(&log)
        .lines()
        .filter(|line| line.contains("refused a group member"))
        .map(str::to_owned)
        .collect();
    for (line, parts) in lines.iter().zip([
        [r#"protocols="cooperative-sticky""#, r#"of_group="range""#],
        [r#"protocols="range""#, r#"of_group="cooperative-sticky""#],
    ]) {
        assert!(line.contains(r#"group="trial-agents""#), "{line}");
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    assert_eq!(lines.len(), 2, "each member is named once: {lines:#?}");
    let found = doctor(&setup, agents);
    let expected = "no consumer reads trial.seats.requests.v1, and no requests wait there: no process runs the agent \
                    seats, or its client does not use the partition.assignment.strategy cooperative-sticky of the group \
                    trial-agents";
    assert!(found.contains(expected), "{found}");
}

/// A broker with the topics of both agents, and the file of its log.
fn installation() -> (Setup, std::path::PathBuf) {
    let setup = Setup::new();
    let workflow = setup.file("trip.yaml", WORKFLOW);
    let configuration = format!(
        "partitions: 2\nkafka: {{ topicPrefix: trial }}\nworkflows: {{ files: [{}] }}\n",
        workflow.display()
    );
    setup.file("waybill.yaml", &configuration);
    let created = waybill(&setup, &["topics", "create"]);
    assert!(created.status.success(), "{created:?}");
    let log = setup.log();
    (setup, log)
}

fn waybill(setup: &Setup, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    without_variables(&mut command)
        .args(arguments)
        .arg("--config")
        .arg(setup.dir.path().join("waybill.yaml"))
        .args(["--brokers", &setup.broker.to_string()]);
    command.output().unwrap()
}

/// `waybill agents` with the built-in agents. Returns the address of its admin port.
fn start_agents(setup: &mut Setup) -> SocketAddr {
    let brokers = setup.broker.to_string();
    let mut agents = setup.role("agents", &["--brokers", &brokers]);
    agents
        .arg("--config")
        .arg(setup.dir.path().join("waybill.yaml"));
    setup.start(agents, &["admin"])["admin"]
}

fn readiness(setup: &Setup, admin: SocketAddr) -> Output {
    waybill(setup, &["ready", "--admin", &admin.to_string()])
}

fn doctor(setup: &Setup, admin: SocketAddr) -> String {
    let found = waybill(setup, &["doctor", "--admin", &admin.to_string()]);
    String::from_utf8_lossy(&found.stdout).into_owned()
}

/// A member of the agents' group with librdkafka's own strategies.
fn foreign_member(setup: &Setup, client_id: &str) -> BaseConsumer {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", setup.broker.to_string())
        .set("client.id", client_id)
        .set("group.id", GROUP)
        .set("session.timeout.ms", "6000")
        .set("partition.assignment.strategy", "range")
        .create()
        .unwrap();
    consumer.subscribe(&[TOPIC]).unwrap();
    consumer
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
