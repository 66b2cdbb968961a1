//! `waybill-loadtest run`: one scenario on one Waybill.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use waybill_telemetry::chain;
use waybill_units::duration_from_text;

use super::installation::{Running, StartedInstallation, Starting};
use crate::installation::Installation;
use crate::interrupt::{Interrupt, Interrupted};
use crate::load::endpoint::Access;
use crate::measure::{self, Options};
use crate::model::Report;
use crate::scenario::{Expect, Scenario, Transport, file};
use crate::suite::warm_up;

/// The default rate, in requests per second.
const RATE: f64 = 1_000.0;
/// The default duration.
const LENGTH: Duration = Duration::from_secs(10);

/// Its flags.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A built-in scenario (see `scenarios`) or a file; by default, one phase of deliveries defined
    /// by the flags
    scenario: Option<String>,
    /// Requests per second in the first phase; scales the rates of the other phases [default
    /// without a scenario: 1000]
    #[arg(long)]
    rate: Option<f64>,
    /// Total number of requests; scales the length of the phases
    #[arg(long, conflicts_with = "seconds")]
    count: Option<u64>,
    /// Total length of the phases in seconds; scales each phase [default without a scenario: 10]
    #[arg(long)]
    seconds: Option<f64>,
    /// How to send requests
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// Number of connections. With `single` and `batch`, each has one request or batch in progress;
    /// with `http2`, a hundred
    #[arg(long)]
    connections: Option<usize>,
    /// Requests per batch, with `batch`
    #[arg(long)]
    batch: Option<usize>,
    /// Seed for drawing requests from the mix
    #[arg(long)]
    seed: Option<u64>,
    /// How long to wait for operations to end after the last request, such as 90s; 0s measures only
    /// acceptance
    #[arg(long, value_name = "TIME", value_parser = duration_from_text)]
    wait: Option<Duration>,
    /// How requests must end; otherwise the exit code is 1
    #[arg(long, value_enum)]
    expect: Option<Expect>,
    /// Start a Waybill on free ports with its own data, and simulated services; at the end, stop
    /// both and remove the data
    #[arg(long, conflicts_with_all = ["http", "brokers", "topic_prefix", "schema_registry", "services", "process"])]
    start: bool,
    #[command(flatten)]
    running: Running,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    starting: Starting,
    /// Write the report as JSON to this file
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    json: Option<PathBuf>,
    /// Write the report as an HTML page to this file
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    html: Option<PathBuf>,
}

/// Runs the scenario and reports it. Returns whether it succeeded.
///
/// # Errors
///
/// If nothing could be measured, or a file cannot be written.
pub async fn act(arguments: &Arguments, interrupt: &Interrupt) -> anyhow::Result<bool> {
    let scenario = arguments.scenario()?;
    let begun = jiff::Timestamp::now();
    let options = Options {
        system: "waybill".to_owned(),
        is_quiet: false,
        interrupt: interrupt.clone(),
        hold: None,
    };
    let run = match arguments.start {
        false => {
            let installation = arguments.with_access(arguments.running.installation())?;
            measure::run_as_far_as_it_goes(&scenario, &installation, &options).await?
        }
        true => {
            let start = arguments.starting.options();
            let started = interrupt.unless(StartedInstallation::start(&start)).await?;
            let run = async {
                let installation = arguments.with_access(started.installation())?;
                warm_up(&installation, &options, scenario.schedule().count()).await?;
                measure::run_as_far_as_it_goes(&scenario, &installation, &options).await
            };
            let run = run.await;
            let stopped = started.stop().await;
            let mut run = run?;
            if let Err(error) = stopped {
                run.failures.push(chain(error.as_ref()));
            }
            run
        }
    };
    print!("{run}");
    let has_failed = !run.failures.is_empty();
    let report = Report::new(begun, vec![run]);
    report.write(arguments.json.as_deref(), arguments.html.as_deref())?;
    match interrupt.is_asked() {
        true => Err(Interrupted.into()),
        false => Ok(!has_failed),
    }
}

impl Arguments {
    /// Adds the token and TLS settings from the flags to the installation.
    fn with_access(&self, installation: Installation) -> anyhow::Result<Installation> {
        let http = installation.http.clone().with(&self.access)?;
        Ok(Installation {
            http,
            ..installation
        })
    }

    /// The scenario, with values from the flags.
    fn scenario(&self) -> anyhow::Result<Scenario> {
        let mut scenario = match &self.scenario {
            Some(name) => file::named(name)?,
            None => Scenario::ad_hoc("load", RATE, LENGTH),
        };
        if let Some(rate) = self.rate {
            anyhow::ensure!(rate.is_finite() && rate > 0.0, "--rate must be above 0");
            scenario.set_rate(rate);
        }
        if let Some(count) = self.count {
            anyhow::ensure!(count > 0, "--count must be above 0");
            scenario.set_count(count);
        }
        if let Some(seconds) = self.seconds {
            anyhow::ensure!(
                seconds.is_finite() && seconds > 0.0,
                "--seconds must be above 0"
            );
            scenario.set_seconds(seconds);
        }
        set(&mut scenario.transport, self.transport);
        set(&mut scenario.connections, self.connections);
        set(&mut scenario.batch, self.batch);
        set(&mut scenario.seed, self.seed);
        set(&mut scenario.drain, self.wait);
        set(&mut scenario.expect, self.expect);
        scenario
            .check()
            .map_err(|error| anyhow::anyhow!("with these flags, {error}"))?;
        Ok(scenario)
    }
}

fn set<T>(value: &mut T, flag: Option<T>) {
    if let Some(flag) = flag {
        *value = flag;
    }
}
