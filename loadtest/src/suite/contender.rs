//! Other systems to compare with Waybill: commands that complete deliveries with five calls each to
//! the same mock services.
//!
//! The contract: the environment of the command has `WAYBILL_LOADTEST_SERVICES` (host:port) and
//! `WAYBILL_LOADTEST_COUNT` (the number of deliveries, five sequential HTTP steps each). The last
//! line of its standard output is a JSON object `{"completed": n, "seconds": s}`, and its exit code
//! is 0. Its CPU is that of all its processes. The command may report a `cpuSeconds` from its first
//! delivery on instead, because Waybill's start is not measured either.
//!
//! What must hold: the services' ledger has every delivery that the command reports as completed,
//! and no effect twice.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper::StatusCode;
use serde::Deserialize;
use tokio::process::Command;
use waybill_engine::ProcessState;
use waybill_usage::{Usage, ended_children_seconds, tree_usage};

use crate::load::client::Client;
use crate::model::{Part, Phase, Process, Run, Sample};
use crate::watch::processes::Watched;

/// A measured command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contender {
    /// The name.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its number of deliveries, as a share of Waybill's, so that slow systems do not take too
    /// long.
    pub share: Share,
}

/// A share, in percent.
pub type Share = u64;

/// The called services.
pub struct Called<'a> {
    /// Their address.
    pub address: SocketAddr,
    /// Their process.
    pub process: &'a Watched,
}

/// The maximum duration of a command.
const TIMEOUT: Duration = Duration::from_secs(900);
/// The interval between samples of its processes.
const PERIOD: Duration = Duration::from_millis(200);

/// The content of the last line.
#[derive(PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeerResult {
    completed: u64,
    seconds: f64,
    cpu_seconds: Option<f64>,
}

/// The ledger's counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
struct Counts {
    /// Operations with all effects of a delivery.
    complete: u64,
    /// Effects that were made a second time.
    double: u64,
}

impl Contender {
    /// Parses `NAME=COMMAND` with a shell command.
    ///
    /// # Errors
    ///
    /// The error in the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, _)) if super::OWN_NAMES.contains(&name) => {
                Err(format!("{name} is the name of a system of the suite"))
            }
            Some((name, command)) if !name.is_empty() && !command.trim().is_empty() => Ok(Self {
                name: name.to_owned(),
                command: ["sh", "-c", command].map(str::to_owned).to_vec(),
                share: 25,
            }),
            _ => Err(format!("{text:?} must be NAME=COMMAND")),
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If it violates the contract.
    pub async fn run(&self, count: u64, services: &Called<'_>) -> anyhow::Result<Run> {
        let (program, arguments) = self.command.split_first().context("there is no command")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("WAYBILL_LOADTEST_SERVICES", services.address.to_string())
            .env("WAYBILL_LOADTEST_COUNT", count.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let counted_before = Counts::read(services.address).await?;
        let services_before = services.process.totals()?;
        let ended_before = ended_children_seconds();
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot start {program}"))?;
        let pid = child.id().context("it has just been started")?;
        // All processes it started are killed too, however this function ends.
        let group = Group(pid);
        let watched = Watch::start(pid)?;
        let ended = tokio::time::timeout(TIMEOUT, child.wait_with_output()).await;
        let (tree, samples) = watched.stop();
        drop(group);
        let output = ended
            .with_context(|| format!("the command took longer than {} s", TIMEOUT.as_secs()))??;
        anyhow::ensure!(
            output.status.success(),
            "the command ended with {}",
            output.status
        );
        let peer_result = PeerResult::read(&String::from_utf8_lossy(&output.stdout), count)?;
        let used = Usage {
            // The kernel's count is complete for ended children. Others count as last seen.
            cpu_seconds: peer_result
                .cpu_seconds
                .unwrap_or_else(|| (ended_children_seconds() - ended_before).max(tree.cpu_seconds)),
            ..tree
        };
        let of_services = services.process.totals()?.since(&services_before);
        let counted = Counts::read(services.address).await?;
        let mut run = self.write_up(&peer_result, count, used, of_services, samples);
        run.failures
            .extend(counted.wrong(counted_before, &peer_result));
        Ok(run)
    }

    fn write_up(
        &self,
        peer_result: &PeerResult,
        count: u64,
        used: Usage,
        of_services: Usage,
        samples: Vec<Sample>,
    ) -> Run {
        let process = |name: &str, part: Part, usage: &Usage| Process {
            name: name.to_owned(),
            part,
            cpu_us_per_delivery: usage.cpu_seconds * 1e6 / peer_result.completed.max(1) as f64,
            cpu_us_by_threads: BTreeMap::new(),
            resident_mib_before: 0.0,
            resident_mib_max: usage.resident_mib,
        };
        let mut failures = Vec::new();
        if peer_result.completed < count {
            failures.push(format!(
                "{} of {count} deliveries were completed",
                peer_result.completed
            ));
        }
        Run {
            scenario: super::TOP_RATE.to_owned(),
            system: self.name.clone(),
            transport: "its own".to_owned(),
            seed: 0,
            phases: vec![Phase {
                name: super::TOP_RATE.to_owned(),
                from_seconds: 0.0,
                seconds: peer_result.seconds,
                rate: count as f64 / peer_result.seconds,
                rate_end: count as f64 / peer_result.seconds,
                offered: count,
                accepted: peer_result.completed,
                acceptance_ms: None,
                end_to_end_ms: None,
            }],
            offered: count,
            accepted: peer_result.completed,
            refused: BTreeMap::new(),
            refused_examples: BTreeMap::new(),
            states: BTreeMap::from([(
                ProcessState::Processed.as_str().to_owned(),
                peer_result.completed,
            )]),
            open: 0,
            accepting_seconds: peer_result.seconds,
            ending_seconds: peer_result.seconds,
            acceptance_ms: None,
            end_to_end_ms: None,
            tenants: Vec::new(),
            kinds: Vec::new(),
            processes: vec![
                process(&self.name, Part::Subject, &used),
                process("services", Part::Services, &of_services),
            ],
            samples,
            breaking_point: None,
            verdict: None,
            not_judged: Some("the system has no judge".to_owned()),
            failures,
        }
    }
}

impl Counts {
    async fn read(services: SocketAddr) -> anyhow::Result<Self> {
        let (status, body) = Client::new(services).get("/ledger/summary").await?;
        anyhow::ensure!(status == StatusCode::OK, "the ledger answered {status}");
        serde_json::from_slice(&body).context("cannot read the ledger's summary")
    }

    /// The contradiction between a command's result and the ledger's counts.
    fn wrong(self, before: Self, peer_result: &PeerResult) -> Option<String> {
        let complete = self.complete.saturating_sub(before.complete);
        if self.double > before.double {
            let double = self.double - before.double;
            return Some(format!("{double} effects were made twice"));
        }
        let completed = peer_result.completed;
        (complete < completed).then(|| {
            format!(
                "the command reports {completed} completed deliveries, but the ledger has \
                 {complete}"
            )
        })
    }
}

impl PeerResult {
    fn read(output: &str, count: u64) -> anyhow::Result<Self> {
        let last = output.lines().rfind(|line| !line.trim().is_empty());
        let last = last.context("the command printed nothing")?;
        let peer_result: Self = serde_json::from_str(last)
            .with_context(|| format!("the last line is not the required object: {last}"))?;
        anyhow::ensure!(
            peer_result.seconds.is_finite()
                && peer_result.seconds > 0.0
                && peer_result.completed <= count,
            "the last line has impossible values: {last}"
        );
        Ok(peer_result)
    }
}

/// A process group, which is killed when this is dropped.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        let kill = format!("kill -KILL -{} 2>/dev/null", self.0);
        // The group may be empty already.
        let _ = std::process::Command::new("sh")
            .args(["-c", &kill])
            .status();
    }
}

/// Watches a tree of processes while it lives.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Usage>,
}

impl Watch {
    fn start(root: u32) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || {
                let mut most = Usage::default();
                let mut due = Instant::now();
                while !stopping.load(Ordering::Relaxed) {
                    if Instant::now() >= due {
                        let now = tree_usage(root);
                        most.cpu_seconds = most.cpu_seconds.max(now.cpu_seconds);
                        most.resident_mib = most.resident_mib.max(now.resident_mib);
                        due += PERIOD;
                    }
                    std::thread::sleep(PERIOD / 20);
                }
                most
            })?;
        Ok(Self { stop, thread })
    }

    /// The maximum that was seen. Without samples, because only the command knows when deliveries
    /// ended.
    fn stop(self) -> (Usage, Vec<Sample>) {
        self.stop.store(true, Ordering::Relaxed);
        (self.thread.join().unwrap_or_default(), Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use waybill_drone_delivery::services::{Services, ServicesSettings};

    use super::*;

    #[test]
    fn the_last_line_is_the_result() {
        let peer_result =
            PeerResult::read("starting\n{\"completed\": 9, \"seconds\": 1.5}\n\n", 10).unwrap();
        assert_eq!(
            peer_result,
            PeerResult {
                completed: 9,
                seconds: 1.5,
                cpu_seconds: None
            }
        );
        for (output, problem) in [
            ("", "printed nothing"),
            ("done", "not the required object"),
            ("{\"completed\": 11, \"seconds\": 1}", "impossible values"),
            ("{\"completed\": 1, \"seconds\": 0}", "impossible values"),
        ] {
            let error = PeerResult::read(output, 10).unwrap_err().to_string();
            assert!(error.contains(problem), "{output}: {error}");
        }
    }

    #[test]
    fn a_peer_has_a_name_and_a_command() {
        let peer = Contender::parse("other=a --b=c | tail").unwrap();
        assert_eq!(peer.name, "other");
        assert_eq!(peer.command[2], "a --b=c | tail");
        for text in ["a", "=a", "a=", "floor=a"] {
            assert!(Contender::parse(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn the_cpu_of_a_command_includes_its_children_and_the_ledger_checks_its_result() {
        let directory = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = ServicesSettings::new(listen, directory.path().to_owned());
        let services = Services::start(config).await.unwrap();
        let this = Watched::this_one();
        let called = Called {
            address: services.address(),
            process: &this,
        };
        // A grandchild counts to a million.
        let script = "sh -c 'i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done'; \
                      echo \"{\\\"completed\\\": $WAYBILL_LOADTEST_COUNT, \\\"seconds\\\": 2}\"";
        let busy = Contender::parse(&format!("busy={script}")).unwrap();
        let run = busy.run(10, &called).await.unwrap();
        assert_eq!((run.accepted, run.ending_seconds), (10, 2.0));
        assert!(run.processes[0].cpu_us_per_delivery > 1_000.0);
        let claim = "the command reports 10 completed deliveries, but the ledger has 0";
        assert_eq!(run.failures, [claim]);
        let failing = Contender::parse("failing=exit 3").unwrap();
        let error = failing.run(10, &called).await.err().unwrap().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }
}
