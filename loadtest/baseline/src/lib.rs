//! Two baselines for Waybill: the minimum cost of the same work, and the cost of the obvious
//! design.
//!
//! Both run deliveries in the load generator's mix, through the same kinds of topics, rows and
//! services, in one process. A run ends when the status topic has the final state of each delivery.
//!
//! * `floor`: Waybill's records and rows through Waybill's own clients, without decisions, state or
//!   recovery. The difference to Waybill is the price of its engine and its guarantees.
//! * `textbook`: one record at a time, with each wait awaited. The difference to Waybill is the
//!   gain of its design.
//!
//! Common to both and `waybill up`:
//!
//! * **The deliveries**: those of [`Delivery`](delivery::Delivery). Every fifth one goes to a
//!   remote place, with a third-party booking and no drone: four steps instead of five. The average
//!   delivery has 4.8 HTTP requests, 11.6 records and 5.8 row writes.
//! * **The effects**: every request to a service has the method, path, idempotency key and body of
//!   the built-in agents, byte for byte (a test compares them).
//! * **The topics**: the same number of partitions and the same settings. The topic of requests is
//!   synced before a request is acknowledged, the others are not.
//! * **The rows**: one for the request and one after each step, synced before the messages that
//!   follow.
//! * **The broker and the store**: the embedded ones in the same process, or others' (`--brokers`,
//!   `--scylla`).
//!
//! Only Waybill has an API (here requests go straight to their topic, as with the generator's
//! `--transport topic`), leases, a deadline index, time-outs, retries, compensation, metrics, and
//! an admin port. Only the baselines send the requests and read the status topic in the measured
//! process.
//!
//! The last line on standard output is one JSON object: the number of finished deliveries, the
//! seconds since the first record, and the CPU time. Standard error has the CPU time by thread.

mod calls;
pub mod delivery;
mod floor;
mod installation;
pub mod pattern;
mod textbook;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::Serialize;

use waybill_usage::Usage;

/// Which measure, and how much of it.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    baseline: Baseline,
}

/// What to compare Waybill with.
#[derive(Subcommand, Debug)]
enum Baseline {
    /// Write the same records and rows through the same clients, without an engine.
    Floor(floor::Arguments),
    /// Process one record at a time, and wait for every write.
    Textbook(textbook::Arguments),
}

/// What both need to know.
#[derive(Args, Clone, Debug)]
struct Common {
    /// Number of deliveries.
    #[arg(long, env = "WAYBILL_LOADTEST_COUNT", default_value_t = 10_000)]
    count: u32,
    /// Address of the simulated services (`waybill services`).
    #[arg(long, env = "WAYBILL_LOADTEST_SERVICES", value_name = "HOST:PORT")]
    services: Option<String>,
    /// Call no services: answer every step immediately.
    #[arg(long)]
    no_services: bool,
    #[command(flatten)]
    installation: installation::Arguments,
}

impl Common {
    /// The address of the services; `None` if none are to be called.
    ///
    /// # Errors
    ///
    /// If the flags name neither an address nor `--no-services`, or both.
    fn services(&self) -> anyhow::Result<Option<&str>> {
        anyhow::ensure!(self.count > 0, "--count must be above 0");
        if self.no_services {
            return Ok(None);
        }
        match &self.services {
            Some(services) => Ok(Some(services)),
            None => anyhow::bail!(
                "give the address of the services with --services (or WAYBILL_LOADTEST_SERVICES), \
                 or run without them with --no-services"
            ),
        }
    }
}

/// The result of a baseline.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    /// The number of finished deliveries.
    completed: u32,
    /// From the first sent record to the last final state.
    seconds: f64,
    /// The CPU time of the process in that period.
    cpu_seconds: f64,
}

/// Runs a baseline and prints its result.
///
/// # Errors
///
/// If its installation cannot be set up, a record or row is refused, or a service answers with an
/// error.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let outcome = match &arguments.baseline {
        Baseline::Floor(arguments) => floor::run(arguments)?,
        Baseline::Textbook(arguments) => textbook::run(arguments)?,
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// Measures time and CPU from the first record on.
struct Clock {
    began: Instant,
    usage: Usage,
}

impl Clock {
    fn start() -> anyhow::Result<Self> {
        let usage = Usage::of(std::process::id())?;
        let began = Instant::now();
        Ok(Self { began, usage })
    }

    /// Ends the measurement after `completed` deliveries. Prints the CPU time by thread on standard
    /// error.
    fn stop(self, completed: u32) -> anyhow::Result<Outcome> {
        let elapsed: Duration = self.began.elapsed();
        let now = Usage::of(std::process::id())?;
        let used = now.since(&self.usage);
        let micros = |seconds: f64| seconds * 1e6 / f64::from(completed.max(1));
        eprintln!("CPU {:.0} µs per delivery", micros(used.cpu_seconds));
        for (thread, &seconds) in used.threads.iter().filter(|(_, seconds)| **seconds > 0.0) {
            eprintln!("  {:7.1}  {thread}", micros(seconds));
        }
        eprintln!("memory {:.0} MiB resident", now.resident_mib);
        Ok(Outcome {
            completed,
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: used.cpu_seconds,
        })
    }
}
