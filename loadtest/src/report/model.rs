//! What a report says: the shape of `report.json`. Times are in milliseconds where nothing else is said.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::judge::Verdict;

/// The version of this shape. Another one is refused by `compare`.
pub const FORMAT: u32 = 1;

/// Everything that one invocation measured.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// When it was begun, as RFC 3339 in UTC.
    pub begun: String,
    /// What it ran on.
    pub machine: Machine,
    /// The runs, in the order in which they were made.
    pub runs: Vec<Run>,
    /// Measured goals; none of a single run.
    pub goals: Vec<Goal>,
}

/// What a report's absolute figures belong to.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// The processor's name, as it says itself.
    pub cpu: String,
    /// How many processors may be used.
    pub cores: usize,
    /// All memory.
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
    /// What was measured: `waybill`, `floor`, `textbook`, or the name that a peer was given.
    pub system: String,
    /// How requests travelled.
    pub transport: String,
    /// With which requests are drawn from the mix.
    pub seed: u64,
    /// What was offered when, one behind the other.
    pub phases: Vec<Phase>,
    /// Requests that were to leave.
    pub offered: u64,
    /// Those that were answered 202 (or acknowledged by the broker).
    pub accepted: u64,
    /// Other answers, by status; `none` where none came that could be read.
    pub refused: BTreeMap<String, u64>,
    /// What the first of them said, by status; of none why no answer came.
    #[serde(default)]
    pub refused_examples: BTreeMap<String, String>,
    /// How many ended in each final or parked state.
    pub states: BTreeMap<String, u64>,
    /// Accepted ones that had not ended when nobody waited any longer.
    pub open: u64,
    /// From the first intended time to the last answer.
    pub accepting_seconds: f64,
    /// From the first intended time to the last end.
    pub ending_seconds: f64,
    /// From the intended time to the acceptance.
    pub acceptance_ms: Option<Percentiles>,
    /// From the intended time to the first final state.
    pub end_to_end_ms: Option<Percentiles>,
    /// What came of the requests of each tenant; empty where none was named.
    pub tenants: Vec<Tenant>,
    /// What came of the requests of each kind.
    #[serde(default)]
    pub kinds: Vec<KindOutcome>,
    /// Who used CPU and memory.
    pub processes: Vec<Process>,
    /// How it went, one after the other.
    pub samples: Vec<Sample>,
    /// Up to which rate it held, if that was asked.
    #[serde(default)]
    pub breaking_point: Option<BreakingPoint>,
    /// What the judge found, if one was asked.
    pub verdict: Option<Verdict>,
    /// Why no judge was.
    #[serde(default)]
    pub not_judged: Option<String>,
    /// Why the run failed; empty if it did not.
    pub failures: Vec<String>,
}

impl Run {
    /// The most memory that the subject's processes had, in MiB; `None` of no processes.
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
    /// What it is called.
    pub name: String,
    /// Its first intended time, in seconds from the first of the run.
    pub from_seconds: f64,
    /// How long requests leave.
    pub seconds: f64,
    /// Requests a second at its beginning.
    pub rate: f64,
    /// Requests a second at its end; the same but on a ramp.
    pub rate_end: f64,
    /// Requests that were to leave in it.
    pub offered: u64,
    /// Those that were accepted.
    pub accepted: u64,
    /// Of those accepted in it.
    pub acceptance_ms: Option<Percentiles>,
    /// Of those accepted in it.
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
    /// The kind; `garbage` for records that nobody can read.
    pub name: String,
    /// Those that had to end in a certain way: accepted ones; of bad input all.
    pub held_to: u64,
    /// Those that did. Under faults good ones may rightly end otherwise.
    pub as_meant: u64,
    /// Whether it is bad input, which has to be refused or put aside.
    pub is_bad: bool,
    /// From the intended time to the first final state.
    #[serde(default)]
    pub end_to_end_ms: Option<Percentiles>,
}

/// Up to which rate a ramp held.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BreakingPoint {
    /// The highest rate that held, in requests a second.
    pub rate: f64,
    /// The rate from which on it did not. `None` if it held to the end.
    pub broke_at: Option<f64>,
    /// What did not hold there.
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

/// What a process is to the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// What is measured.
    Subject,
    /// A broker or database that is not part of it.
    Server,
    /// The services that are called.
    Services,
    /// Who sends the requests.
    Load,
}

/// A process over a run.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Process {
    /// What it is called here.
    pub name: String,
    pub part: Part,
    /// CPU in microseconds for each delivery that ended (for each that was accepted where none was waited for).
    pub cpu_us_per_delivery: f64,
    /// The same by group of threads: those whose names differ in their trailing digits only.
    pub cpu_us_by_threads: BTreeMap<String, f64>,
    /// Resident memory before the first request.
    pub resident_mib_before: f64,
    /// The most that any sample saw.
    pub resident_mib_max: f64,
}

/// A piece of a run, from one look to the next.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sample {
    /// When it ended, in seconds from the first intended time.
    pub at_seconds: f64,
    /// How long it was.
    pub seconds: f64,
    /// Requests that were to leave in it.
    pub offered: u64,
    /// Accepted in it.
    pub accepted: u64,
    /// Refused or unanswered in it.
    pub refused: u64,
    /// Ended in it.
    pub ended: u64,
    /// Accepted and not ended at its end: the lag.
    pub open: u64,
    /// Of those accepted in it.
    pub acceptance_ms: Option<Percentiles>,
    /// Of those ended in it.
    pub end_to_end_ms: Option<Percentiles>,
    /// CPU of each process of [`Run::processes`], in that order, in cores.
    pub cpu_cores: Vec<f64>,
    /// Resident memory of each process at its end, in the same order.
    pub resident_mib: Vec<f64>,
}

/// A line of the table of goals.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Goal {
    /// What was done.
    pub work: String,
    /// What was to be reached, with its unit.
    pub goal: String,
    /// What was, in the same unit; or why it was not measured.
    pub measured: String,
    /// How much of the goal was reached: 1 is all of it, more is better whichever way the unit counts. `None` if it
    /// was not measured.
    pub ratio: Option<f64>,
}
