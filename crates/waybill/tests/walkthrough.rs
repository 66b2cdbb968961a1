//! Runs every command of docs/failure-walkthrough.md, in order, and holds its output against the
//! page.
//!
//! A block ```` ```console ```` has commands (`$ …`) with their output below them; one that says
//! `console until` is repeated until the output is as printed. `…` matches anything within a line.

#[path = "support/process.rs"]
mod process;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use process::{Process, log_tail, without_test_variables};

/// How long an output is waited for. Generous: it bounds a failure, not a success.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command of the page.
#[derive(Debug, PartialEq)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
    until: bool,
}

#[test]
fn every_command_of_the_walkthrough_says_what_the_page_prints() {
    let root = root();
    let page = std::fs::read_to_string(root.join("docs/failure-walkthrough.md")).unwrap();
    let steps = steps(&page);
    assert!(steps.len() > 10, "the page has lost its commands");
    let world = World::start(&root);
    for step in steps {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = world.run(&step.command);
            if matches(&step.output, &output) {
                break;
            }
            assert!(
                step.until && Instant::now() < deadline,
                "line {}: {}\nprints\n{output}\nnot\n{}\n{}",
                step.line,
                step.command,
                step.output.join("\n"),
                world.log(),
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut block: Option<bool> = None;
    for (number, line) in page.lines().enumerate() {
        match (block, line) {
            (None, "```console") => block = Some(false),
            (None, "```console until") => block = Some(true),
            (Some(_), "```") => block = None,
            (Some(until), line) => match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step {
                    line: number + 1,
                    command: command.to_owned(),
                    output: Vec::new(),
                    until,
                }),
                None => steps
                    .last_mut()
                    .expect("an output follows a command")
                    .output
                    .push(line.to_owned()),
            },
            (None, _) => {}
        }
    }
    steps
}

fn matches(expected: &[String], output: &str) -> bool {
    if expected == ["…"] {
        return !output.trim().is_empty();
    }
    let lines: Vec<&str> = output.lines().collect();
    lines.len() == expected.len()
        && expected
            .iter()
            .zip(lines)
            .all(|(expected, line)| line_matches(expected, line))
}

fn line_matches(expected: &str, line: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in between {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The `waybill up` of the page, on ports of its own.
struct World {
    dir: TempDir,
    _process: Process,
    root: PathBuf,
    addresses: HashMap<String, SocketAddr>,
}

impl World {
    fn start(root: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command
            .current_dir(root)
            .args([
                "up",
                "--config",
                "examples/failure-walkthrough/waybill.yaml",
            ])
            .arg("--data-dir")
            .arg(dir.path().join("data"));
        for flag in ["--http", "--admin", "--broker-listen", "--services"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        let listeners = ["http", "admin", "broker", "services"];
        let (process, addresses) = Process::start(command, &listeners, &dir.path().join("log.txt"));
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_waybill"), dir.path().join("waybill"))
            .unwrap();
        let world = Self {
            dir,
            _process: process,
            root: root.to_owned(),
            addresses,
        };
        let readiness = format!("curl -sf http://{}/readyz", world.addresses["admin"]);
        let deadline = Instant::now() + PATIENCE;
        while world.run(&readiness).is_empty() {
            assert!(
                Instant::now() < deadline,
                "it is not ready\n{}",
                world.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        world
    }

    /// Runs a command of the page, with the addresses of this world in place of the page's.
    fn run(&self, command: &str) -> String {
        let mut command = command.to_owned();
        for (name, address) in [
            ("http", "127.0.0.1:8080"),
            ("services", "127.0.0.1:8082"),
            ("broker", "127.0.0.1:9092"),
        ] {
            command = command.replace(address, &self.addresses[name].to_string());
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let output = without_test_variables(&mut Command::new("bash"))
            .args(["-c", &command])
            .current_dir(&self.root)
            .env("PATH", format!("{}:{path}", self.dir.path().display()))
            .env("WAYBILL_HTTP__LISTEN", self.addresses["http"].to_string())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn log(&self) -> String {
        log_tail(&self.dir.path().join("log.txt"))
    }
}
