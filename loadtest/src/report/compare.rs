//! Compares two reports: the runs of the same scenario on the same system, side by side.
//!
//! It says which figure is better, and how the conditions of the measurements differ. It does not
//! say whether a difference is more than chance, because that takes several runs.

mod figures;
mod page;
mod text;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use self::figures::Group;
use crate::model::{FORMAT, Machine, Phase, Report, Run};

/// Which reports to compare.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The reference report
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The report to compare with the reference
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// Also write the comparison as an HTML page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Reads the reports, prints their differences, and writes the page if requested.
///
/// # Errors
///
/// If a file cannot be read or written, or is not a report of this format; the error names the file
/// and the field. Also if the reports have no run in common.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let a = read(&arguments.a)?;
    let b = read(&arguments.b)?;
    let comparison = Comparison::of(&a, &b);
    anyhow::ensure!(
        !comparison.pairs.is_empty(),
        "the reports have no run in common: {}",
        comparison.all_warnings().join("; ")
    );
    let names = [&arguments.a, &arguments.b].map(|path| path.display().to_string());
    print!("{}", text::write(&comparison, &names));
    if let Some(path) = &arguments.html {
        let page = page::page(&comparison, &names)?;
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Two reports, compared run by run.
struct Comparison<'a> {
    a: &'a Report,
    b: &'a Report,
    pairs: Vec<Pair<'a>>,
    /// Runs without a counterpart, as `scenario on system`, of A and of B.
    alone: [Vec<String>; 2],
    /// How the machines differ.
    warnings: Vec<String>,
}

/// A run of A and a run of B with the same scenario and system.
#[derive(Serialize)]
struct Pair<'a> {
    a: &'a Run,
    b: &'a Run,
    groups: Vec<Group>,
    /// Differences in the conditions of the two measurements.
    warnings: Vec<String>,
}

impl<'a> Comparison<'a> {
    /// Pairs runs by scenario and system. Several runs of the same kind are paired in order.
    fn of(a: &'a Report, b: &'a Report) -> Self {
        let mut left: Vec<&Run> = b.runs.iter().collect();
        let mut pairs = Vec::new();
        let mut alone_a = Vec::new();
        for run in &a.runs {
            let is_same =
                |other: &&Run| (&other.scenario, &other.system) == (&run.scenario, &run.system);
            match left.iter().position(is_same) {
                Some(at) => pairs.push(Pair::of(run, left.remove(at))),
                None => alone_a.push(name(run)),
            }
        }
        Self {
            a,
            b,
            pairs,
            alone: [alone_a, left.into_iter().map(name).collect()],
            warnings: differing_machines(&a.machine, &b.machine),
        }
    }

    /// The warnings to read before any figure.
    fn all_warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        for (of, alone) in ["A", "B"].iter().zip(&self.alone) {
            if !alone.is_empty() {
                warnings.push(format!("only in {of}: {}", alone.join("; ")));
            }
        }
        warnings
    }
}

impl<'a> Pair<'a> {
    fn of(a: &'a Run, b: &'a Run) -> Self {
        Self {
            a,
            b,
            groups: figures::of(a, b),
            warnings: differing_runs(a, b),
        }
    }

    fn name(&self) -> String {
        name(self.a)
    }
}

fn name(run: &Run) -> String {
    format!("{} on {}", run.scenario, run.system)
}

fn differing_machines(a: &Machine, b: &Machine) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |what, a: String, b: String| {
        if a != b {
            warnings.push(format!("{what} differs: A {a}, B {b}"));
        }
    };
    warn("the processor", a.cpu.clone(), b.cpu.clone());
    warn(
        "the number of cores",
        a.cores.to_string(),
        b.cores.to_string(),
    );
    warn(
        "the memory in MiB",
        a.memory_mib.to_string(),
        b.memory_mib.to_string(),
    );
    warn("the operating system", a.system.clone(), b.system.clone());
    warnings
}

fn differing_runs(a: &Run, b: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    if a.transport != b.transport {
        warnings.push(format!(
            "the transport differs: A {}, B {}",
            a.transport, b.transport
        ));
    }
    if a.seed != b.seed {
        warnings.push(format!("the seed differs: A {}, B {}", a.seed, b.seed));
    }
    let [of_a, of_b] = [a, b].map(|run| run.phases.iter().map(plan).collect::<Vec<_>>());
    if of_a != of_b {
        let [of_a, of_b] = [of_a, of_b].map(|phases| phases.join(", "));
        warnings.push(format!("the phases differ: A {of_a}; B {of_b}"));
    }
    for (of, run) in [("A", a), ("B", b)] {
        if !run.failures.is_empty() {
            warnings.push(format!("{of} failed: {}", run.failures.join("; ")));
        }
    }
    warnings
}

/// The offered load of a phase.
fn plan(phase: &Phase) -> String {
    let Phase {
        name,
        from_seconds,
        seconds,
        rate,
        rate_end,
        ..
    } = phase;
    let to = if rate == rate_end {
        String::new()
    } else {
        format!(" to {rate_end}")
    };
    format!("{name} ({rate}{to}/s for {seconds} s from {from_seconds} s)")
}

/// Reads a report from a file.
///
/// # Errors
///
/// If it cannot be read or is not a report of this format. The error names the file and the field.
pub fn read(path: &Path) -> anyhow::Result<Report> {
    let json = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&json).with_context(|| path.display().to_string())
}

/// Checks the format first, because other errors mean little in another format.
fn parse(json: &[u8]) -> anyhow::Result<Report> {
    #[derive(Deserialize)]
    struct Probe {
        format: Option<serde_json::Value>,
    }
    let probe: Probe = serde_json::from_slice(json).context("is not a JSON report")?;
    let format = probe
        .format
        .context("format is missing; is this a report?")?;
    anyhow::ensure!(
        format.as_u64() == Some(u64::from(FORMAT)),
        "format is {format}; only {FORMAT} is supported"
    );
    let reader = &mut serde_json::Deserializer::from_slice(json);
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let path = error.path().to_string();
        anyhow::anyhow!("{path}: {}", error.into_inner())
    })
}

/// The page of a comparison of two sample reports.
#[cfg(test)]
pub fn sample_page() -> String {
    use super::sample;

    let (a, b) = (sample::report(1.0), sample::report(1.4));
    let names = ["a.json", "b.json"].map(str::to_owned);
    page::page(&Comparison::of(&a, &b), &names).expect("a page")
}

#[cfg(test)]
mod tests;
