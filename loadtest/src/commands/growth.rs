//! `waybill-loadtest growth`: measures how the cost of a delivery grows.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::installation::Starting;
use super::suite::print_summary;
use crate::interrupt::Interrupt;
use crate::model::Report;
use crate::suite::growth::{Growth, Plan};

/// Its flags.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory for report.json and report.html
    #[arg(long, value_name = "DIR", default_value = "target/growth")]
    out: PathBuf,
    /// Number of deliveries that each installation completes; a twentieth of it if few may be in
    /// progress
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..))]
    count: u64,
    /// Maximum number of operations to store before a measurement; ten million need seven gigabytes
    /// of disk and some minutes
    #[arg(long, value_name = "COUNT", default_value_t = 10_000_000)]
    stored_max: u64,
    #[command(flatten)]
    starting: Starting,
}

/// Measures growth, prints the results and writes the reports. Returns whether every run is
/// balanced.
///
/// # Errors
///
/// If a measurement is impossible, or the reports cannot be written.
pub async fn act(arguments: &Arguments, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let out = &arguments.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let begun = jiff::Timestamp::now();
    let plan = Plan {
        start: arguments.starting.options(),
        count: arguments.count,
        stored_max: arguments.stored_max,
    };
    let mut growth = Growth::default();
    let measured = plan.run(&mut growth, interrupt).await;
    if growth.runs.is_empty() {
        measured?;
        return Ok(true);
    }
    let mut report = Report::new(begun, growth.runs);
    report.goals = growth.table;
    let is_balanced = print_summary(&report, &[], out)?;
    measured?;
    Ok(is_balanced)
}
