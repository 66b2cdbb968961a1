//! The data of a report: the structure of `report.json`. Times are in milliseconds unless stated
//! otherwise.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::verdict::Verdict;

/// The version of this structure. `compare` refuses others.
pub const FORMAT: u32 = 1;

/// The results of one invocation.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// The start time, as RFC 3339 in UTC.
    pub begun: String,
    /// The machine.
    pub machine: Machine,
    /// The runs, in the order in which they were made.
    pub runs: Vec<Run>,
    /// Measured goals; empty for a single run.
    pub goals: Vec<Goal>,
}

/// The machine on which the absolute figures were measured.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// The processor's name as it reports it.
    pub cpu: String,
    /// The number of usable processors.
    pub cores: usize,
    /// The total memory.
    pub memory_mib: u64,
    /// The operating system and its kernel.
    pub system: String,
}

/// One scenario on one system.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Run {
    /// The scenario.
    pub scenario: String,
    /// The measured system: `waybill`, `floor`, `textbook`, or the name of a peer.
    pub system: String,
    /// The transport of requests.
    pub transport: String,
    /// The seed with which requests are drawn from the mix.
    pub seed: u64,
    /// The offered load, in consecutive phases.
    pub phases: Vec<Phase>,
    /// The number of planned requests.
    pub offered: u64,
    /// Requests that were answered with 202 (or acknowledged by the broker).
    pub accepted: u64,
    /// Other answers, by status; `none` for a missing or unreadable answer.
    pub refused: BTreeMap<String, u64>,
    /// The first of these answers, by status. For `none`, the reason.
    #[serde(default)]
    pub refused_examples: BTreeMap<String, String>,
    /// The number of operations in each final or parked state.
    pub states: BTreeMap<String, u64>,
    /// Accepted operations that had not ended after the wait.
    pub open: u64,
    /// From the first intended time to the last answer.
    pub accepting_seconds: f64,
    /// From the first intended time to the last end.
    pub ending_seconds: f64,
    /// From the intended time to the acceptance.
    pub acceptance_ms: Option<Percentiles>,
    /// From the intended time to the first final state.
    pub end_to_end_ms: Option<Percentiles>,
    /// The results by tenant; empty without tenants.
    pub tenants: Vec<Tenant>,
    /// The results by kind.
    #[serde(default)]
    pub kinds: Vec<KindOutcome>,
    /// The CPU and memory of processes.
    pub processes: Vec<Process>,
    /// The run over time, in samples.
    pub samples: Vec<Sample>,
    /// The highest rate that held, if the scenario measures it.
    #[serde(default)]
    pub breaking_point: Option<BreakingPoint>,
    /// The judge's verdict, if there is one.
    pub verdict: Option<Verdict>,
    /// Why there is no verdict.
    #[serde(default)]
    pub not_judged: Option<String>,
    /// Why the run failed; empty if it did not.
    pub failures: Vec<String>,
}

impl Run {
    /// The maximum memory of the subject's processes, in MiB; `None` without processes.
    pub fn subject_memory_mib_max(&self) -> Option<f64> {
        let is_subject = |process: &&Process| process.part == Part::Subject;
        let subject = self.processes.iter().filter(is_subject);
        let memory = subject.map(|process| process.resident_mib_max);
        memory.reduce(|a, b| a + b)
    }
}

/// A part of a scenario.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Phase {
    /// The name.
    pub name: String,
    /// Its first intended time, in seconds from the first of the run.
    pub from_seconds: f64,
    /// How long requests are sent.
    pub seconds: f64,
    /// Requests per second at its beginning.
    pub rate: f64,
    /// Requests per second at its end. Differs only on a ramp.
    pub rate_end: f64,
    /// The number of planned requests.
    pub offered: u64,
    /// Accepted requests.
    pub accepted: u64,
    /// The acceptance times of the phase's requests.
    pub acceptance_ms: Option<Percentiles>,
    /// The end-to-end times of the phase's requests.
    pub end_to_end_ms: Option<Percentiles>,
}

/// The requests of one tenant.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tenant {
    pub name: String,
    pub offered: u64,
    pub accepted: u64,
    pub acceptance_ms: Option<Percentiles>,
    pub end_to_end_ms: Option<Percentiles>,
}

/// The requests of one kind.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KindOutcome {
    /// The kind; `garbage` for undecodable records.
    pub name: String,
    /// Requests with a required result: the accepted ones, and all of bad input.
    pub held_to: u64,
    /// Those that had it. Under faults, good requests may correctly end otherwise.
    pub as_meant: u64,
    /// Whether it is bad input, which must be refused or moved to a dead-letter topic.
    pub is_bad: bool,
    /// From the intended time to the first final state.
    #[serde(default)]
    pub end_to_end_ms: Option<Percentiles>,
}

/// The highest rate of a ramp that held.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BreakingPoint {
    /// The highest rate that held, in requests per second.
    pub rate: f64,
    /// The first rate that did not hold. `None` if all rates held.
    pub broke_at: Option<f64>,
    /// The limit that was exceeded there.
    pub because: Option<String>,
}

/// A distribution of times in milliseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// The role of a process in the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// Part of the measured system.
    Subject,
    /// A broker or database outside the measured system.
    Server,
    /// The services that the agents call.
    Services,
    /// The load generator.
    Load,
}

/// A process during a run.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Process {
    /// The name in the report.
    pub name: String,
    pub part: Part,
    /// CPU in microseconds per finished delivery (per accepted one, if ends are not followed).
    pub cpu_us_per_delivery: f64,
    /// The same by group of threads: their names without trailing digits.
    pub cpu_us_by_threads: BTreeMap<String, f64>,
    /// Resident memory before the first request.
    pub resident_mib_before: f64,
    /// The maximum resident memory of all samples.
    pub resident_mib_max: f64,
}

/// An interval of a run between two samples.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sample {
    /// The end of the interval, in seconds from the first intended time.
    pub at_seconds: f64,
    /// The length of the interval.
    pub seconds: f64,
    /// Requests with an intended time in the interval.
    pub offered: u64,
    /// Requests accepted in the interval.
    pub accepted: u64,
    /// Requests refused or unanswered in the interval.
    pub refused: u64,
    /// Operations that ended in the interval.
    pub ended: u64,
    /// Operations accepted and not ended at the end of the interval: the lag.
    pub open: u64,
    /// The acceptance times of requests accepted in the interval.
    pub acceptance_ms: Option<Percentiles>,
    /// The end-to-end times of operations that ended in the interval.
    pub end_to_end_ms: Option<Percentiles>,
    /// CPU of each process of [`Run::processes`], in the same order, in cores.
    pub cpu_cores: Vec<f64>,
    /// Resident memory of each process at the end, in the same order.
    pub resident_mib: Vec<f64>,
}

/// A row of the table of goals.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Goal {
    /// The work.
    pub work: String,
    /// The goal, with its unit.
    pub goal: String,
    /// The measured result in the same unit, or why it was not measured.
    pub measured: String,
    /// The share of the goal that was reached: 1 is all of it, and more is better for every unit.
    /// `None` if it was not measured.
    pub ratio: Option<f64>,
}

impl Percentiles {
    /// The percentiles of a histogram of microseconds; `None` if it is empty.
    #[must_use]
    pub fn of(micros: &Histogram<u64>) -> Option<Self> {
        if micros.is_empty() {
            return None;
        }
        let ms = |quantile| micros.value_at_quantile(quantile) as f64 / 1_000.0;
        Some(Self {
            p50: ms(0.5),
            p90: ms(0.9),
            p99: ms(0.99),
            p999: ms(0.999),
            max: micros.max() as f64 / 1_000.0,
        })
    }
}

impl KindOutcome {
    /// Whether some requests did not end as required.
    #[must_use]
    pub const fn is_missed(&self) -> bool {
        self.as_meant < self.held_to
    }
}
