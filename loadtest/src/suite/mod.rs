//! The suite: everything that the goals name, measured in worlds of its own, Waybill and others in turn.
//!
//! What must hold: comparisons are made of rounds in which every system has its turn (ABAB), under the same mock
//! services, and a ratio is the median of the rounds' ratios; each top rate begins with an empty store. Goals that are
//! missed fail nothing; a run that is not balanced fails the suite.

pub mod contender;
pub mod goals;
pub mod growth;

use std::time::Duration;

use self::contender::{Called, Contender};
use crate::interrupt::Interrupt;
use crate::measure::{self, Options};
use crate::report::model::Run;
use crate::scenario::limits::Limits;
use crate::scenario::{Scenario, Transport, file};
use crate::world::{Services, StartOptions, Up, World};

/// The scenarios of the suite, as reports name them.
const IDLE: &str = "idle";
const ALONE: &str = "alone";
const OPEN_LOOP: &str = "open-loop";
const ACCEPT: &str = "accept";
const TOP_RATE: &str = "top-rate";
const SPIKE: &str = "spike";
const SUSTAINED: &str = "sustained";
const BACKLOG: &str = "backlog";

/// The systems that goals name.
const WAYBILL: &str = "waybill";
const DIRECT: &str = "waybill-direct";
const IN_PROCESS: &str = "waybill-in-process";
const FLOOR: &str = "floor";
const TEXTBOOK: &str = "textbook";

/// All names that no peer may have.
const OWN_NAMES: [&str; 5] = [WAYBILL, DIRECT, IN_PROCESS, FLOOR, TEXTBOOK];

/// A way to start Waybill.
struct Variant {
    name: &'static str,
    /// What `waybill up` finds in its environment.
    env: &'static [(&'static str, &'static str)],
    /// Whether it runs the services, too.
    has_services: bool,
}

/// All ways to start Waybill. The first one is measured in everything; each takes part in the rounds.
const VARIANTS: &[Variant] = &[
    Variant {
        name: WAYBILL,
        env: &[],
        has_services: false,
    },
    // The same five HTTP steps; the scheduler asks its agents without a record.
    Variant {
        name: DIRECT,
        env: &[("WAYBILL_AGENTS__TRANSPORT", "direct")],
        has_services: false,
    },
    // Agents that do the work in the process itself.
    Variant {
        name: IN_PROCESS,
        env: &[
            ("WAYBILL_AGENTS__TRANSPORT", "direct"),
            ("WAYBILL_AGENTS__BUILT_IN_CALLS", "function"),
        ],
        has_services: true,
    },
];

/// More than any system takes: requests leave as fast as their connections are free.
const RATE_MAX: f64 = 1_000_000.0;
/// What of the top rate is steady.
const STEADY_SHARE: f64 = 0.6;
/// How long an idle process is left alone before its memory is read.
const IDLE_REST: Duration = Duration::from_secs(3);
/// How long anything may take to end behind the last request.
const DRAIN: Duration = Duration::from_secs(900);

/// How the suite is run.
pub struct Plan {
    /// How Waybill is started.
    pub start: StartOptions,
    /// How many rounds comparisons have.
    pub rounds: u64,
    /// How many deliveries a top rate has.
    pub count: u64,
    /// Whether the long runs are made, too.
    pub long: Option<Long>,
    /// Others that take part in the rounds.
    pub contenders: Vec<Contender>,
}

/// The long runs.
pub struct Long {
    /// How long 10,000/s are sustained.
    pub sustained: Duration,
    /// How large a backlog is.
    pub backlog: u64,
    /// How long the soak is.
    pub soak: Duration,
}

/// The suite at work.
pub struct Suite<'a> {
    plan: &'a Plan,
    interrupt: &'a Interrupt,
    services: Services,
    /// The runs so far.
    pub runs: Vec<Run>,
    /// What could not be run, and why.
    pub skipped: Vec<String>,
}

impl<'a> Suite<'a> {
    /// Starts the services, which all systems call.
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
    /// If something could not be measured at all, or the suite was interrupted.
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
    /// If they do not stop in order.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.services.stop().await
    }

    /// What takes a small load.
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

    /// How long a delivery takes that is alone, and among a thousand a second.
    async fn latencies(&mut self, up: &Up, system: &str) -> anyhow::Result<()> {
        let options = self.options(system, None);
        warm_up(&up.world(&self.services), &options, self.plan.count).await?;
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

    /// Every system in turn, round by round.
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
                    eprintln!("{}: {error:#}", contender.name);
                    self.skipped.push(format!("{}: {error:#}", contender.name));
                    failed.push(&contender.name);
                }
            }
        }
        Ok(())
    }

    async fn top_rate(&mut self, up: &Up, variant: &Variant) -> anyhow::Result<()> {
        let options = self.options(variant.name, None);
        warm_up(&up.world(&self.services), &options, self.plan.count).await?;
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

    /// The steady rate of this machine: a share of the top rate that was measured before.
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

    /// The spike itself, whatever the machine.
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
        // In-process agents complete it meanwhile.
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
        let run = measure::run(&scenario, &up.world(&self.services), &options).await?;
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

/// So many deliveries, as fast as they are taken.
fn top_rate(count: u64) -> Scenario {
    let mut scenario = Scenario::ad_hoc(TOP_RATE, RATE_MAX, Duration::from_secs(1));
    scenario.transport = Transport::Batch;
    scenario.set_count(count);
    scenario.drain = DRAIN;
    scenario
}

/// More deliveries than these warm nothing any further.
const WARM_UP_MAX: u64 = 5_000;

/// Has a world meet what is met for the first time, which is no part of what is measured, before it completes so
/// many deliveries.
///
/// # Errors
///
/// If it could not be followed.
pub async fn warm_up(world: &World, options: &Options, count: u64) -> anyhow::Result<()> {
    let mut scenario = top_rate((count / 20).clamp(100, WARM_UP_MAX));
    "warm-up".clone_into(&mut scenario.name);
    let options = Options {
        is_quiet: true,
        ..options.clone()
    };
    let run = measure::run(&scenario, world, &options).await?;
    anyhow::ensure!(
        run.failures.is_empty(),
        "the deliveries that were to warm it up failed: {}",
        run.failures.join("; ")
    );
    Ok(())
}

/// Stops it whatever came of the work; the work's error comes first.
async fn stop(up: Up, done: anyhow::Result<()>) -> anyhow::Result<()> {
    let stopped = up.stop().await;
    done.and(stopped)
}
