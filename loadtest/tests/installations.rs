//! The program as a user runs it: scenarios on a Waybill that it starts, and their reports.
//!
//! The program `waybill` is the one next to this one; `cargo test --workspace` builds both. Rates
//! are small, because the tests check reports and not speed.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const LOADTEST: &str = env!("CARGO_BIN_EXE_waybill-loadtest");

/// The report of a run on its own Waybill, and the output of the process. `None` if there is no
/// `waybill`.
fn run(scenario: &str, flags: &[&str]) -> Option<(Value, Output)> {
    if !waybill().exists() {
        println!(
            "SKIPPED: load tests on a started Waybill: {} is not built",
            waybill().display()
        );
        return None;
    }
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let json = directory.path().join("report.json");
    let output = Command::new(LOADTEST)
        .args(["run", scenario, "--start"])
        .args(flags)
        .arg("--json")
        .arg(&json)
        .output()
        .expect("the program was built");
    let message = String::from_utf8_lossy(&output.stderr);
    let report = std::fs::read(&json).unwrap_or_else(|_| panic!("there is no report:\n{message}"));
    let report: Value = serde_json::from_slice(&report).expect("a report is JSON");
    Some((report["runs"][0].clone(), output))
}

fn waybill() -> PathBuf {
    Path::new(LOADTEST).with_file_name("waybill")
}

fn count(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}

fn kind<'a>(run: &'a Value, name: &str) -> &'a Value {
    let kinds = run["kinds"].as_array().expect("a list of kinds");
    let found = kinds.iter().find(|kind| kind["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is among {kinds:?}"))
}

fn assert_balanced(run: &Value, output: &Output) {
    let message = String::from_utf8_lossy(&output.stdout);
    assert_eq!(run["failures"], serde_json::json!([]), "{message}");
    assert!(output.status.success(), "{message}");
    assert_eq!(run["verdict"]["judged"], run["accepted"], "{message}");
    assert_eq!(run["open"], 0, "{message}");
    assert!(message.contains("\nBALANCED "), "{message}");
}

#[test]
fn smoke_ends_every_kind_as_expected_and_reports_the_cost() {
    let Some((run, output)) = run("smoke", &["--rate", "40", "--seconds", "5"]) else {
        return;
    };
    assert_balanced(&run, &output);
    assert_eq!(count(&run["offered"]), 200);
    for name in [
        "drone",
        "remote",
        "suspended",
        "cancelled",
        "repeated",
        "malformed",
    ] {
        let kind = kind(&run, name);
        assert!(count(&kind["heldTo"]) > 0, "{kind}");
        assert_eq!(kind["asMeant"], kind["heldTo"], "{kind}");
    }
    let malformed = count(&kind(&run, "malformed")["heldTo"]);
    assert_eq!(count(&run["accepted"]) + malformed, 200);
    let processes = run["processes"].as_array().expect("a list of processes");
    let parts: Vec<&Value> = processes.iter().map(|process| &process["part"]).collect();
    assert_eq!(parts, ["subject", "services", "load"]);
    assert!(
        processes[0]["cpuUsPerDelivery"].as_f64() > Some(0.0),
        "{}",
        processes[0]
    );
    assert!(
        processes[0]["residentMibMax"].as_f64() > Some(10.0),
        "{}",
        processes[0]
    );
    let samples = run["samples"].as_array().expect("a list of samples");
    let sum = |name: &str| {
        samples
            .iter()
            .map(|sample| count(&sample[name]))
            .sum::<u64>()
    };
    assert_eq!(
        (sum("offered"), sum("accepted")),
        (200, count(&run["accepted"]))
    );
    assert_eq!(sum("ended"), count(&run["accepted"]));
}

#[test]
fn every_poison_record_is_dead_lettered_and_every_wrong_body_refused() {
    let Some((run, output)) = run("poison", &["--rate", "50", "--seconds", "4"]) else {
        return;
    };
    assert_balanced(&run, &output);
    let garbage = kind(&run, "garbage");
    assert_eq!(
        (count(&garbage["heldTo"]), count(&garbage["asMeant"])),
        (200, 200)
    );
    let refused = run["refused"].as_object().expect("refusals by status");
    assert!(
        refused.keys().all(|status| status.starts_with('4')),
        "{refused:?}"
    );
    let refused: u64 = refused.values().map(count).sum();
    assert_eq!(refused, count(&kind(&run, "malformed")["heldTo"]));
    assert_eq!(count(&run["states"]["Processed"]), count(&run["accepted"]));
}

#[test]
fn flaky_services_leave_no_partial_operation() {
    let Some((run, output)) = run("flaky-services", &["--rate", "40", "--seconds", "5"]) else {
        return;
    };
    assert_balanced(&run, &output);
    // Permanently refused operations are undone, so the faults were applied.
    assert!(count(&run["states"]["Compensated"]) > count(&kind(&run, "suspended")["heldTo"]));
    // All other operations are completed.
    assert!(count(&run["states"]["Processed"]) > count(&run["accepted"]) / 2);
}

#[test]
fn an_exceeded_limit_fails_the_run_and_is_in_the_report() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("strict.yaml");
    let strict = "description: nobody is so fast\nphases: [{name: a, rate: 20, for: 1s}]\n\
                  limits: {endToEndP99: 0ms}\n";
    std::fs::write(&file, strict).expect("the directory is writable");
    let Some((run, output)) = run(&file.to_string_lossy(), &[]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(run["scenario"], "strict");
    let failures = run["failures"].as_array().expect("a list of failures");
    assert_eq!(failures.len(), 1, "{failures:?}");
    let failure = failures[0].as_str().expect("a sentence");
    assert!(failure.contains("above the limit of 0 ms"), "{failure}");
}

#[test]
fn scaled_down_batches_do_not_wait_to_be_full() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("batches.yaml");
    // At the scaled rate a whole batch never gathers: its requests would wait for the end of the
    // run, half of them for longer than three seconds.
    let batches = "description: large batches\ntransport: batch\nbatch: 1000\n\
                   phases: [{name: a, rate: 1000, for: 1m}]\n\
                   limits: {acceptanceP50: 2s}\n";
    std::fs::write(&file, batches).expect("the directory is writable");
    let arguments = ["--rate", "20", "--seconds", "6"];
    let Some((run, output)) = run(&file.to_string_lossy(), &arguments) else {
        return;
    };
    assert_balanced(&run, &output);
}

#[test]
fn a_run_against_an_unreachable_address_fails_and_names_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let nobody = listener
        .local_addr()
        .expect("the listener is bound")
        .to_string();
    drop(listener);
    for (flag, message) in [
        ("--http", "(--http) does not answer"),
        ("--services", "does not answer"),
    ] {
        let output = Command::new(LOADTEST)
            .args(["run", "soak", flag, &nobody])
            .output()
            .expect("the program was built");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains(message) && errors.contains("refused"),
            "{errors}"
        );
        assert!(output.stdout.is_empty(), "there is no report");
    }
}

#[test]
fn an_interrupted_run_reports_the_results_so_far() {
    if !waybill().exists() {
        println!("SKIPPED: an interrupted run: there is no Waybill");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let json = directory.path().join("report.json");
    let mut run = Command::new(LOADTEST)
        .args(["run", "soak", "--start", "--rate", "20", "--json"])
        .arg(&json)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let mut progress = BufReader::new(run.stderr.take().expect("the output is piped")).lines();
    let under_way = progress.find(|line| line.as_ref().is_ok_and(|line| line.contains("accepted")));
    assert!(
        matches!(under_way, Some(Ok(_))),
        "the command reports its progress"
    );
    let interrupt = format!("kill -INT {}", run.id());
    let status = Command::new("sh").args(["-c", &interrupt]).status();
    assert!(status.is_ok_and(|status| status.success()));
    for _ in progress {}
    let output = run.wait_with_output().expect("the program ends");
    let message = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(
        message.contains("FAILED      the run was interrupted"),
        "{message}"
    );
    let report = std::fs::read(&json).expect("there is a report");
    let report: Value = serde_json::from_slice(&report).expect("a report is JSON");
    let run = &report["runs"][0];
    assert!(count(&run["accepted"]) > 0, "{message}");
    assert_eq!(run["notJudged"], "the run was interrupted");
}

#[test]
fn a_run_fails_immediately_if_waybill_exits() {
    if !waybill().exists() {
        println!("SKIPPED: a run whose Waybill dies: there is none");
        return;
    }
    let mut run = Command::new(LOADTEST)
        .args([
            "run",
            "steady",
            "--start",
            "--rate",
            "20",
            "--seconds",
            "15",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let mut progress = BufReader::new(run.stderr.take().expect("the output is piped")).lines();
    let under_way = progress.find(|line| line.as_ref().is_ok_and(|line| line.contains("accepted")));
    assert!(
        matches!(under_way, Some(Ok(_))),
        "the command reports its progress"
    );
    let status = Command::new("sh")
        .args(["-c", &format!("kill -KILL {}", child_named("up", run.id()))])
        .status();
    assert!(status.is_ok_and(|status| status.success()));
    // Without the interruption it would wait for minutes.
    for _ in progress {}
    let output = run.wait_with_output().expect("the program ends");
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{message}");
    assert!(message.contains("has ended"), "{message}");
}

#[test]
fn honest_clients_are_served_during_an_attack() {
    if !waybill().exists() {
        println!("SKIPPED: an attack: there is no Waybill");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let listeners = ["http", "admin", "broker", "services"];
    let any = "127.0.0.1:0";
    let mut up = Command::new(waybill());
    // The program refuses unknown variables, such as those of tests.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WAYBILL_") {
            up.env_remove(name);
        }
    }
    let up = up
        .args(["up", "--http", any, "--admin", any, "--services", any])
        .args(["--broker-listen", any, "--data-dir"])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut up = Killed(up.expect("the program was built"));
    let mut lines = BufReader::new(up.0.stdout.take().expect("the output is piped")).lines();
    let addresses = listeners.map(|_| {
        let line = lines.next().expect("it listens").expect("a text");
        let announced = line
            .strip_prefix("listening ")
            .and_then(|rest| rest.split_once(' '));
        let (name, address) = announced.expect("the name and the address of a listener");
        (name.to_owned(), address.to_owned())
    });
    let of = |name: &str| {
        let found = addresses.iter().find(|(listener, _)| listener == name);
        found.expect("it was announced").1.as_str()
    };
    let attack = Command::new(LOADTEST)
        .args(["attack", "--for", "10s", "--attackers", "40"])
        .args(["--http", of("http"), "--admin", of("admin")])
        .args(["--broker", of("broker"), "--services", of("services")])
        .stdout(Stdio::piped())
        .spawn();
    let attack = attack.expect("the program was built");
    let run = Command::new(LOADTEST)
        .args(["run", "--rate", "20", "--seconds", "5"])
        .args(["--http", of("http"), "--brokers", of("broker")])
        .args(["--services", of("services")])
        .output()
        .expect("the program was built");
    let message = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{message}");
    assert!(message.contains("\nBALANCED    100 "), "{message}");
    let attack = attack.wait_with_output().expect("the program ends");
    let message = String::from_utf8_lossy(&attack.stdout);
    let lines: Vec<&str> = message
        .lines()
        .filter(|line| line.contains(" steps, "))
        .collect();
    assert_eq!(lines.len(), 18, "{message}");
    // Attackers that hold a connection until the end have not finished a step.
    let stepped = |kind: &str| {
        let line = lines.iter().find(|line| line.starts_with(kind));
        let mut counts = line.into_iter().flat_map(|line| {
            let words = line.split([' ', ',']);
            words.filter_map(|word| word.parse::<u64>().ok())
        });
        let (steps, failed) = (counts.next(), counts.next());
        failed < steps
    };
    for kind in [
        "AmbiguousFraming",
        "MadeUpOperations",
        "ForeignPage",
        "BadFrames",
        "Undecodable",
        "ForgedReplies",
    ] {
        assert!(stepped(kind), "{kind}: {message}");
    }
}

/// A process that is killed at the end.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child process of `parent` that runs a role.
fn child_named(role: &str, parent: u32) -> String {
    let parent = format!(" {parent} ");
    let processes = std::fs::read_dir("/proc").expect("Linux");
    let found = processes.flatten().find_map(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?;
        let arguments = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
        let is_it = fields[1..].starts_with(&parent) && arguments.split('\0').nth(1) == Some(role);
        is_it.then(|| process.file_name().to_string_lossy().into_owned())
    });
    found.unwrap_or_else(|| panic!("{role} is a child of {parent}"))
}
