//! The report: for people ([`text`], [`page`]) and for programs (JSON).

pub mod compare;
mod number;
mod page;
#[cfg(test)]
mod sample;
pub mod text;

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::model::{FORMAT, Machine, Report, Run};

impl Machine {
    /// The machine on which this process runs.
    #[must_use]
    pub fn this_one() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once([':', '=']));
            value.map(|(_, value)| value.trim().trim_matches('"').to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib =
            memory.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        let distribution = field(&read("/etc/os-release"), "PRETTY_NAME");
        let kernel = read("/proc/sys/kernel/osrelease");
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name")
                .unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib.unwrap_or_default() / 1024,
            system: format!(
                "{}, Linux {}",
                distribution.unwrap_or_default(),
                kernel.trim()
            ),
        }
    }
}

impl Report {
    /// A report of runs that started at `begun`.
    #[must_use]
    pub fn new(begun: jiff::Timestamp, runs: Vec<Run>) -> Self {
        Self {
            format: FORMAT,
            begun: format!("{begun:.0}"),
            machine: Machine::this_one(),
            runs,
            goals: Vec::new(),
        }
    }

    /// Writes the report to the given files: as JSON, and as a page.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn write(&self, json: Option<&Path>, html: Option<&Path>) -> anyhow::Result<()> {
        let write = |path: &Path, bytes: &[u8]| {
            std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
        };
        if let Some(path) = json {
            write(path, &serde_json::to_vec_pretty(self)?)?;
        }
        if let Some(path) = html {
            write(path, self.page()?.as_bytes())?;
        }
        Ok(())
    }

    /// The report as a page.
    fn page(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Data<'a> {
            report: &'a Report,
        }
        page::page("Load test", &Data { report: self })
    }
}

#[cfg(test)]
pub mod testing {
    //! An empty run for tests to fill.

    use std::collections::BTreeMap;

    use crate::model::Run;

    /// A run in which nothing happened.
    pub fn run() -> Run {
        Run {
            scenario: "smoke".to_owned(),
            system: "waybill".to_owned(),
            transport: "single".to_owned(),
            seed: 0,
            phases: Vec::new(),
            offered: 0,
            accepted: 0,
            refused: BTreeMap::new(),
            refused_examples: BTreeMap::new(),
            states: BTreeMap::new(),
            open: 0,
            accepting_seconds: 0.0,
            ending_seconds: 0.0,
            acceptance_ms: None,
            end_to_end_ms: None,
            tenants: Vec::new(),
            kinds: Vec::new(),
            processes: Vec::new(),
            samples: Vec::new(),
            breaking_point: None,
            verdict: None,
            not_judged: None,
            failures: Vec::new(),
        }
    }
}
