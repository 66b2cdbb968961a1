//! The suite: measures everything that the goals name, in separate installations, alternating
//! between Waybill and others.
//!
//! What must hold: comparisons use rounds in which every system has its turn (ABAB) with the same
//! mock services. A ratio is the median of the rounds' ratios. Each top rate starts with an empty
//! store. A missed goal is no failure; an unbalanced run fails the suite.

pub mod contender;
pub mod goals;
pub mod growth;

use std::time::Duration;

use waybill_telemetry::chain;

use self::contender::{Called, Contender};
use crate::installation::{Installation, Services, StartOptions, Up};
use crate::interrupt::Interrupt;
use crate::measure::{self, Options};
use crate::model::Run;
use crate::scenario::limits::Limits;
use crate::scenario::{Scenario, Transport, file};

/// The scenarios' names in reports.
const IDLE: &str = "idle";
const ALONE: &str = "alone";
const OPEN_LOOP: &str = "open-loop";
const ACCEPT: &str = "accept";
const TOP_RATE: &str = "top-rate";
const SPIKE: &str = "spike";
const SUSTAINED: &str = "sustained";
const BACKLOG: &str = "backlog";

/// The names of systems in goals.
const WAYBILL: &str = "waybill";
const DIRECT: &str = "waybill-direct";
const IN_PROCESS: &str = "waybill-in-process";
const FLOOR: &str = "floor";
const TEXTBOOK: &str = "textbook";

/// Names that no peer may have.
const OWN_NAMES: [&str; 5] = [WAYBILL, DIRECT, IN_PROCESS, FLOOR, TEXTBOOK];

/// A way to start Waybill.
struct Variant {
    name: &'static str,
    /// The environment variables for `waybill up`.
    env: &'static [(&'static str, &'static str)],
    /// Whether it runs the services itself.
    has_services: bool,
}

/// All ways to start Waybill. The first one is used for every measurement; each takes part in the
/// rounds.
const VARIANTS: &[Variant] = &[
    Variant {
        name: WAYBILL,
        env: &[],
        has_services: false,
    },
    // The same five HTTP steps, but the scheduler calls its agents directly, without records.
    Variant {
        name: DIRECT,
        env: &[("WAYBILL_AGENTS__TRANSPORT", "direct")],
        has_services: false,
    },
    // Agents that do the work within the process.
    Variant {
        name: IN_PROCESS,
        env: &[
            ("WAYBILL_AGENTS__TRANSPORT", "direct"),
            ("WAYBILL_AGENTS__BUILT_IN_CALLS", "function"),
        ],
        has_services: true,
    },
];

/// More than any system achieves: requests are sent as fast as connections are free.
const RATE_MAX: f64 = 1_000_000.0;
/// The steady rate as a share of the top rate.
const STEADY_SHARE: f64 = 0.6;
/// How long a process is idle before its memory is read.
const IDLE_REST: Duration = Duration::from_secs(3);
/// The maximum time for operations to end after the last request.
const DRAIN: Duration = Duration::from_secs(900);

/// The settings of the suite.
pub struct Plan {
    /// The start options of Waybill.
    pub start: StartOptions,
    /// The number of rounds in comparisons.
    pub rounds: u64,
    /// The number of deliveries at a top rate.
    pub count: u64,
    /// The long runs, if requested.
    pub long: Option<Long>,
    /// Other systems in the rounds.
    pub contenders: Vec<Contender>,
}

/// The long runs.
pub struct Long {
    /// The duration at 10,000/s.
    pub sustained: Duration,
    /// The size of the backlog.
    pub backlog: u64,
    /// The duration of the soak.
    pub soak: Duration,
}

/// A running suite.
pub struct Suite<'a> {
    plan: &'a Plan,
    interrupt: &'a Interrupt,
    services: Services,
    /// The runs so far.
    pub runs: Vec<Run>,
    /// Skipped measurements, and why.
    pub skipped: Vec<String>,
}

impl<'a> Suite<'a> {
    /// Starts the services that all systems call.
    ///
    /// # Errors
    ///
    /// If they do not start.
    pub async fn start(plan: &'a Plan, interrupt: &'a Interrupt) -> anyhow::Result<Self> {
        Ok(Self {
            plan,
            interrupt,
            services: interrupt.unless(Services::start(&plan.start)).await?,
            runs: Vec::new(),
            skipped: Vec::new(),
        })
    }

    /// Measures everything.
    ///
    /// # Errors
    ///
    /// If a measurement is impossible, or the suite was interrupted.
    pub async fn run(&mut self) -> anyhow::Result<()> {
        self.small().await?;
        self.rounds().await?;
        self.steady().await?;
        self.spike().await?;
        if let Some(long) = &self.plan.long {
            self.long(long).await?;
        }
        Ok(())
    }

    /// Stops the services.
    ///
    /// # Errors
    ///
    /// If they do not stop gracefully.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.services.stop().await
    }

    /// Measurements with a small load.
    async fn small(&mut self) -> anyhow::Result<()> {
        let up = self.up(&VARIANTS[0]).await?;
        let done = self.small_on(&up).await;
        stop(up, done).await?;
        for variant in VARIANTS.iter().filter(|variant| variant.name == DIRECT) {
            let up = self.up(variant).await?;
            let done = self.latencies(&up, variant.name).await;
            stop(up, done).await?;
        }
        Ok(())
    }

    /// The latency of a single delivery, and at a thousand per second.
    async fn latencies(&mut self, up: &Up, system: &str) -> anyhow::Result<()> {
        let options = self.options(system, None);
        warm_up(&up.installation(&self.services), &options, self.plan.count).await?;
        let alone = Scenario::ad_hoc(ALONE, 20.0, Duration::from_secs(20));
        self.measure_as(up, alone, system, None).await?;
        let open_loop = Scenario::ad_hoc(OPEN_LOOP, 1_000.0, Duration::from_secs(15));
        self.measure_as(up, open_loop, system, None).await
    }

    async fn small_on(&mut self, up: &Up) -> anyhow::Result<()> {
        self.interrupt
            .unless(async {
                tokio::time::sleep(IDLE_REST).await;
                Ok(())
            })
            .await?;
        // Its memory is read before the first request.
        self.measure(
            up,
            Scenario::ad_hoc(IDLE, 1.0, Duration::from_secs(1)),
            false,
        )
        .await?;
        let mut smoke = file::named("smoke")?;
        smoke.drain = DRAIN;
        self.measure(up, smoke, false).await?;
        self.latencies(up, VARIANTS[0].name).await?;
        let mut accept = Scenario::ad_hoc(ACCEPT, RATE_MAX, Duration::from_secs(1));
        accept.set_count(20_000.min(self.plan.count));
        accept.drain = DRAIN;
        self.measure(up, accept, true).await
    }

    /// Measures every system in turn, round by round.
    async fn rounds(&mut self) -> anyhow::Result<()> {
        let mut failed: Vec<&str> = Vec::new();
        for _ in 0..self.plan.rounds {
            for variant in VARIANTS {
                let up = self.up(variant).await?;
                let done = self.top_rate(&up, variant).await;
                stop(up, done).await?;
            }
            for contender in &self.plan.contenders {
                if failed.contains(&contender.name.as_str()) {
                    continue;
                }
                if let Err(error) = self.contend(contender).await {
                    if error.is::<crate::interrupt::Interrupted>() {
                        return Err(error);
                    }
                    eprintln!("{}: {}", contender.name, chain(error.as_ref()));
                    self.skipped
                        .push(format!("{}: {}", contender.name, chain(error.as_ref())));
                    failed.push(&contender.name);
                }
            }
        }
        Ok(())
    }

    async fn top_rate(&mut self, up: &Up, variant: &Variant) -> anyhow::Result<()> {
        let options = self.options(variant.name, None);
        warm_up(&up.installation(&self.services), &options, self.plan.count).await?;
        let scenario = top_rate(self.plan.count);
        self.measure_as(up, scenario, variant.name, None).await
    }

    async fn contend(&mut self, contender: &Contender) -> anyhow::Result<()> {
        let count = (self.plan.count * contender.share / 100).max(1);
        eprintln!("suite: {} completes {count} deliveries", contender.name);
        let process = self.services.watched();
        let called = Called {
            address: self.services.address(),
            process: &process,
        };
        let run = self.interrupt.unless(contender.run(count, &called)).await?;
        println!("{run}");
        self.runs.push(run);
        Ok(())
    }

    /// Measures the steady rate of this machine: a share of its top rate.
    async fn steady(&mut self) -> anyhow::Result<()> {
        let mut steady = file::named("steady")?;
        if let Some(top) = self.measured_top_rate() {
            steady.set_rate((top * STEADY_SHARE).round());
        }
        steady.set_seconds(20.0);
        steady.limits = Limits::default();
        let up = self.up(&VARIANTS[0]).await?;
        let done = self.measure(&up, steady, false).await;
        stop(up, done).await
    }

    fn measured_top_rate(&self) -> Option<f64> {
        let of = |run: &&Run| run.scenario == TOP_RATE && run.system == WAYBILL;
        goals::median(
            self.runs
                .iter()
                .filter(of)
                .map(Run::completed_per_second)
                .collect(),
        )
    }

    /// Measures the spike, with the same rate on every machine.
    async fn spike(&mut self) -> anyhow::Result<()> {
        let mut spike = file::named("spike")?;
        let highest = spike
            .phases
            .iter()
            .map(|phase| phase.rate)
            .fold(0.0, f64::max);
        spike.phases.retain(|phase| phase.rate == highest);
        spike.limits = Limits::default();
        let up = self.up(&VARIANTS[0]).await?;
        let done = self.measure(&up, spike, false).await;
        stop(up, done).await
    }

    async fn long(&mut self, long: &Long) -> anyhow::Result<()> {
        // In-process agents complete the deliveries in the meantime.
        let in_process = VARIANTS.iter().find(|variant| variant.name == IN_PROCESS);
        let variant = in_process.unwrap_or(&VARIANTS[0]);
        let mut sustained = Scenario::ad_hoc(SUSTAINED, 10_000.0, long.sustained);
        sustained.transport = Transport::Batch;
        sustained.drain = 4 * DRAIN;
        let up = self.up(variant).await?;
        let done = self.measure_as(&up, sustained, variant.name, None).await;
        stop(up, done).await?;

        let mut backlog = Scenario::ad_hoc(BACKLOG, 20_000.0, Duration::from_secs(1));
        backlog.transport = Transport::Batch;
        backlog.set_count(long.backlog);
        backlog.drain = 4 * DRAIN;
        let up = self.up(&VARIANTS[0]).await?;
        let done = self.measure(&up, backlog, true).await;
        stop(up, done).await?;

        let mut soak = file::named("soak")?;
        soak.set_seconds(long.soak.as_secs_f64());
        soak.limits = Limits::default();
        let up = self.up(&VARIANTS[0]).await?;
        let done = self.measure(&up, soak, false).await;
        stop(up, done).await
    }

    async fn up(&self, variant: &Variant) -> anyhow::Result<Up> {
        let mut start = self.plan.start.clone();
        let env = variant.env.iter();
        let env = env.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        start.up_env.extend(env);
        let services = (!variant.has_services).then(|| self.services.address());
        self.interrupt.unless(Up::start(&start, services)).await
    }

    async fn measure(&mut self, up: &Up, scenario: Scenario, is_held: bool) -> anyhow::Result<()> {
        let hold = is_held.then(|| up.admin());
        self.measure_as(up, scenario, VARIANTS[0].name, hold).await
    }

    async fn measure_as(
        &mut self,
        up: &Up,
        scenario: Scenario,
        system: &str,
        hold: Option<std::net::SocketAddr>,
    ) -> anyhow::Result<()> {
        let count = scenario.schedule().count();
        eprintln!("suite: {} on {system}, {count} requests", scenario.name);
        let options = self.options(system, hold);
        let run = measure::run(&scenario, &up.installation(&self.services), &options).await?;
        println!("{run}");
        self.runs.push(run);
        Ok(())
    }

    fn options(&self, system: &str, hold: Option<std::net::SocketAddr>) -> Options {
        Options {
            system: system.to_owned(),
            is_quiet: false,
            interrupt: self.interrupt.clone(),
            hold,
        }
    }
}

/// A scenario with this many deliveries, as fast as they are accepted.
fn top_rate(count: u64) -> Scenario {
    let mut scenario = Scenario::ad_hoc(TOP_RATE, RATE_MAX, Duration::from_secs(1));
    scenario.transport = Transport::Batch;
    scenario.set_count(count);
    scenario.drain = DRAIN;
    scenario
}

/// More deliveries have no further warm-up effect.
const WARM_UP_MAX: u64 = 5_000;

/// Warms an installation up before it completes this many deliveries. First-time costs are not part
/// of the measurement.
///
/// # Errors
///
/// If the warm-up could not be followed.
pub async fn warm_up(
    installation: &Installation,
    options: &Options,
    count: u64,
) -> anyhow::Result<()> {
    let mut scenario = top_rate((count / 20).clamp(100, WARM_UP_MAX));
    "warm-up".clone_into(&mut scenario.name);
    let options = Options {
        is_quiet: true,
        ..options.clone()
    };
    let run = measure::run(&scenario, installation, &options).await?;
    anyhow::ensure!(
        run.failures.is_empty(),
        "the warm-up deliveries failed: {}",
        run.failures.join("; ")
    );
    Ok(())
}

/// Stops Waybill even after a failure. The failure takes precedence over an error of the stop.
async fn stop(up: Up, done: anyhow::Result<()>) -> anyhow::Result<()> {
    let stopped = up.stop().await;
    done.and(stopped)
}
