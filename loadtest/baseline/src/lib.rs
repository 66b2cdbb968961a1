//! Two measures to hold Waybill against: how little the same work can cost, and what the obvious design makes of it.
//!
//! Both run deliveries of the same mixture as the generator's, through topics, rows and services of the same
//! kinds, in one process, until the final state of each has been read from the status topic:
//!
//! * `floor`: the records and rows of Waybill through Waybill's own clients, and nothing else: nobody decides,
//!   remembers or recovers anything. What Waybill needs more than this is its engine's and its promises' price.
//! * `textbook`: each record by itself, each wait awaited where it arises. What it needs more than Waybill is
//!   what the design is worth.
//!
//! What both have in common with `waybill up`, and with each other:
//!
//! * **The deliveries**: those of [`Delivery`](delivery::Delivery). Every fifth one goes to a remote place,
//!   where a carrier is booked and no drone: four steps and not five. On the average a delivery is 4.8 HTTP
//!   requests, 11.6 records and 5.8 row writes.
//! * **The effects**: every request to a service has the method, path, idempotency key and body that the built-in
//!   agents send, byte for byte (a test holds them against each other).
//! * **The topics**: as many partitions, and the same settings; the topic of requests is synced before a
//!   request is acknowledged, the others are not.
//! * **The rows**: one for the request and one after each step, synced before the messages that follow.
//! * **The broker and the store**: the embedded ones in the same process, or others' (`--brokers`, `--scylla`).
//!
//! What neither has, and Waybill does: an API (requests go straight to their topic, as with the generator's
//! `--transport topic`), leases, a deadline index, time-outs, retries, undoing, metrics, and an admin port. What
//! Waybill's process does not do and theirs does: they make the requests themselves, and read the status topic.
//!
//! The last line on standard output is one JSON object: how many deliveries ended, after how many seconds from the
//! first record on, and what CPU that took; the same by thread is on standard error.

mod calls;
pub mod delivery;
mod floor;
pub mod pattern;
mod textbook;
mod world;

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

/// What Waybill is held against.
#[derive(Subcommand, Debug)]
enum Baseline {
    /// The same records and rows through the same clients, and no engine.
    Floor(floor::Arguments),
    /// One record at a time, every wait awaited.
    Textbook(textbook::Arguments),
}

/// What both need to know.
#[derive(Args, Clone, Debug)]
struct Common {
    /// How many deliveries.
    #[arg(long, env = "WAYBILL_LOADTEST_COUNT", default_value_t = 10_000)]
    count: u32,
    /// The simulated services, as `waybill services` runs them.
    #[arg(long, env = "WAYBILL_LOADTEST_SERVICES", value_name = "HOST:PORT")]
    services: Option<String>,
    /// Calls no services: every step is answered at once.
    #[arg(long)]
    no_services: bool,
    #[command(flatten)]
    world: world::Arguments,
}

impl Common {
    /// Where the services are; `None` if none are to be called.
    ///
    /// # Errors
    ///
    /// If it is not said which, or both or nothing at all is asked for.
    fn services(&self) -> anyhow::Result<Option<&str>> {
        anyhow::ensure!(self.count > 0, "--count must be above 0");
        if self.no_services {
            return Ok(None);
        }
        match &self.services {
            Some(services) => Ok(Some(services)),
            None => anyhow::bail!(
                "--services (or WAYBILL_LOADTEST_SERVICES) must say where the services are, or --no-services that \
                 there are none"
            ),
        }
    }
}

/// What a baseline measured.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    /// How many deliveries ended.
    completed: u32,
    /// From the first record sent to the last final state seen.
    seconds: f64,
    /// What CPU the process used in that time.
    cpu_seconds: f64,
}

/// Runs one, and prints what it measured.
///
/// # Errors
///
/// If its world cannot be made, a record or row is refused, or a service does not answer as it should.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let outcome = match &arguments.baseline {
        Baseline::Floor(arguments) => floor::run(arguments)?,
        Baseline::Textbook(arguments) => textbook::run(arguments)?,
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// Measures from the first record on.
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

    /// `completed` deliveries have ended. Tells on standard error what the process used for them.
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
