//! A load-test kit for Waybill.
//!
//! Requests are sent at their intended times, independent of answers, and latencies count from the
//! intended time. A server that stalls therefore cannot hide it. Acceptance (the answer 202) and
//! end to end (the final state, from the status topic) are measured separately. A judge compares
//! the accepted requests with the services' ledger afterwards. `docs/loadtest.md` describes the
//! usage.

mod attack;
mod commands;
mod faults;
mod installation;
mod interrupt;
mod judge;
mod load;
mod measure;
mod model;
mod report;
mod results;
mod scenario;
mod schedulers;
mod suite;
mod tally;
mod verdict;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use waybill_telemetry::chain;

use crate::commands::{growth, run, scenarios, suite as suite_command};
use crate::interrupt::{Interrupt, Interrupted};
use crate::report::compare;

/// The allocator of the waybill program, so that baselines do not differ by it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Run open-loop load tests of Waybill
#[derive(Parser, Debug)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
enum Command {
    /// Run one scenario, or one phase of deliveries
    Run(Box<run::Arguments>),
    /// Measure all goals in separate installations, with baselines and peers
    Suite(suite_command::Arguments),
    /// Measure how the cost of a delivery grows with the numbers of partitions, of operations in
    /// progress and of stored operations
    Growth(growth::Arguments),
    /// Attack a running Waybill in eighteen ways that need no token, to measure the effect on
    /// honest clients
    Attack(attack::Arguments),
    /// Run deliveries without Waybill, for comparison
    Baseline(waybill_baseline::Arguments),
    /// Compare two reports, run by run
    Compare(compare::Arguments),
    /// List the built-in scenarios
    Scenarios(scenarios::Arguments),
}

/// The exit code of a shell for a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match act(cli.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("waybill-loadtest: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Runs a command. Returns whether it succeeded.
fn act(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Run(arguments) => {
            one_thread()?.block_on(async { run::act(&arguments, &Interrupt::listen()?).await })
        }
        Command::Suite(arguments) => one_thread()?
            .block_on(async { suite_command::act(&arguments, &Interrupt::listen()?).await }),
        Command::Growth(arguments) => {
            one_thread()?.block_on(async { growth::act(&arguments, &Interrupt::listen()?).await })
        }
        Command::Attack(arguments) => {
            let attackers = tokio::task::LocalSet::new();
            one_thread()?.block_on(
                attackers.run_until(async { attack::act(&arguments, &Interrupt::listen()?).await }),
            )
        }
        Command::Baseline(arguments) => waybill_baseline::run(&arguments).map(|()| true),
        Command::Compare(arguments) => compare::run(&arguments).map(|()| true),
        Command::Scenarios(arguments) => scenarios::act(&arguments),
    }
}

/// The sender uses one thread, to take as little as possible from the measured system.
fn one_thread() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
