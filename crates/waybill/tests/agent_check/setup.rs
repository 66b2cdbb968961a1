//! A broker in its own process, additional processes, and the command that checks agents.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use waybill_test_support::process::{Process, log_tail, without_variables};

/// A running broker. Dropping it kills it and the processes started with it.
pub struct Setup {
    pub dir: TempDir,
    pub broker: SocketAddr,
    processes: Vec<Process>,
}

impl Setup {
    pub fn new() -> Self {
        let mut setup = Self {
            dir: tempfile::tempdir().unwrap(),
            broker: "127.0.0.1:0".parse().unwrap(),
            processes: Vec::new(),
        };
        let command = setup.role("broker", &["--broker-listen", "127.0.0.1:0"]);
        setup.broker = setup.start(command, &["broker"])["broker"];
        setup
    }

    /// A role in its own process, with its own data directory.
    pub fn role(&self, role: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        command
            .arg(role)
            .args(arguments)
            .args(["--admin", "127.0.0.1:0", "--data-dir"])
            .arg(self.dir.path().join(role));
        command
    }

    /// Starts a process that announces listeners.
    pub fn start(&mut self, command: Command, announces: &[&str]) -> HashMap<String, SocketAddr> {
        let (process, addresses) = Process::start(command, announces, &self.log());
        self.processes.push(process);
        addresses
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs a check to its end.
    pub fn check(&self, arguments: &[&str]) -> Checked {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        let output = without_variables(&mut command)
            .args(["agent-check", "--output", "json", "--brokers"])
            .arg(self.broker.to_string())
            .args(arguments)
            .output()
            .unwrap();
        Checked::of(&output)
    }

    pub fn log(&self) -> PathBuf {
        self.dir.path().join("log.txt")
    }

    pub fn log_tail(&self) -> String {
        log_tail(&self.log())
    }
}

/// The output of a check.
#[derive(Debug)]
pub struct Checked {
    pub code: Option<i32>,
    /// Rule, verdict and observation.
    pub verdicts: Vec<(String, String, String)>,
    pub stderr: String,
}

impl Checked {
    fn of(output: &Output) -> Self {
        let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
        let verdicts = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                (
                    text(&line, "rule"),
                    text(&line, "verdict"),
                    text(&line, "seen"),
                )
            })
            .collect();
        Self {
            code: output.status.code(),
            verdicts,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The rules with this verdict.
    pub fn with(&self, verdict: &str) -> Vec<&str> {
        let with = self
            .verdicts
            .iter()
            .filter(|(_, given, _)| given == verdict);
        with.map(|(rule, ..)| rule.as_str()).collect()
    }

    pub fn seen(&self, rule: &str) -> &str {
        let found = self.verdicts.iter().find(|(name, ..)| name == rule);
        found.map_or("", |(.., seen)| seen)
    }
}

/// The top of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
