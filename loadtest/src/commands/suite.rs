//! `waybill-loadtest suite`, which `make loadtest` calls.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use waybill_units::duration_from_text;

use super::installation::Starting;
use crate::interrupt::Interrupt;
use crate::model::Report;
use crate::report::text;
use crate::suite::contender::Contender;
use crate::suite::{Long, Plan, Suite, goals};

/// Its flags.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Include the long runs: 10,000/s sustained, a backlog, a soak
    #[arg(long)]
    full: bool,
    /// Directory for report.json and report.html
    #[arg(long, value_name = "DIR", default_value = "target/loadtest")]
    out: PathBuf,
    /// Number of rounds of a comparison
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Number of deliveries of a top-rate run
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(100..))]
    count: u64,
    /// Another system to compare with: a command that completes WAYBILL_LOADTEST_COUNT deliveries
    /// of five HTTP steps each at WAYBILL_LOADTEST_SERVICES, and prints {"completed": n, "seconds":
    /// s} as its last line. May be repeated
    #[arg(long, value_name = "NAME=COMMAND", value_parser = Contender::parse)]
    peer: Vec<Contender>,
    /// Duration of the sustained 10,000/s, with --full
    #[arg(long, value_name = "TIME", value_parser = duration_from_text, default_value = "10m", requires = "full")]
    sustained: Duration,
    /// Size of the backlog, with --full
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1_000_000,
        requires = "full"
    )]
    backlog: u64,
    /// Duration of the soak, with --full
    #[arg(long, value_name = "TIME", value_parser = duration_from_text, default_value = "1h", requires = "full")]
    soak: Duration,
    #[command(flatten)]
    starting: Starting,
}

/// Runs the suite, prints the table of goals and writes the reports. Returns whether every run is
/// balanced.
///
/// # Errors
///
/// If a measurement is impossible, or the reports cannot be written.
pub async fn act(arguments: &Arguments, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let out = &arguments.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let begun = jiff::Timestamp::now();
    let plan = arguments.plan()?;
    let mut suite = Suite::start(&plan, interrupt).await?;
    let done = suite.run().await;
    let runs = std::mem::take(&mut suite.runs);
    let skipped = std::mem::take(&mut suite.skipped);
    let stopped = suite.stop().await;
    done?;
    let peers: Vec<String> = arguments
        .peer
        .iter()
        .map(|peer| peer.name.clone())
        .collect();
    let mut report = Report::new(begun, runs);
    report.goals = goals::table(&report.runs, &peers);
    let is_balanced = print_summary(&report, &skipped, out)?;
    stopped?;
    Ok(is_balanced)
}

/// Prints the table, skipped goals and failures, and writes the reports to a directory. Returns
/// whether nothing failed.
///
/// # Errors
///
/// If the reports cannot be written.
pub fn print_summary(report: &Report, skipped: &[String], out: &Path) -> anyhow::Result<bool> {
    print!("{}", text::goals(&report.goals));
    for skipped in skipped {
        println!("NOT RUN     {skipped}");
    }
    let mut has_failed = false;
    for run in report.runs.iter().filter(|run| !run.failures.is_empty()) {
        has_failed = true;
        println!(
            "FAILED      {} on {}: {}",
            run.scenario,
            run.system,
            run.failures.join("; ")
        );
    }
    report.write(
        Some(&out.join("report.json")),
        Some(&out.join("report.html")),
    )?;
    Ok(!has_failed)
}

impl Arguments {
    fn plan(&self) -> anyhow::Result<Plan> {
        let this = std::env::current_exe()?.display().to_string();
        let baseline = |name: &str, share| Contender {
            name: name.to_owned(),
            command: vec![this.clone(), "baseline".to_owned(), name.to_owned()],
            share,
        };
        // The textbook baseline is slow and gets fewer deliveries.
        let mut contenders = vec![baseline("floor", 100), baseline("textbook", 5)];
        contenders.extend(self.peer.iter().cloned());
        let long = Long {
            sustained: self.sustained,
            backlog: self.backlog,
            soak: self.soak,
        };
        Ok(Plan {
            start: self.starting.options(),
            rounds: self.rounds,
            count: self.count,
            long: self.full.then_some(long),
            contenders,
        })
    }
}
