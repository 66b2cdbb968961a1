//! One run: sends a scenario to an installation, follows it to its end, judges it, and writes the
//! report.
//!
//! What must hold: applied faults are removed, however the run ends. Measured results are reported
//! even if others are missing, which counts as a failure of the run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use waybill_telemetry::chain;
use waybill_usage::Usage;

use crate::faults;
use crate::installation::Installation;
use crate::interrupt::{Interrupt, Interrupted};
use crate::judge;
use crate::load::garbage::Garbage;
use crate::load::{self, Target};
use crate::model::{KindOutcome, Percentiles, Phase, Process, Run, Sample, Tenant};
use crate::results::{Outcome, Refused, RunResults};
use crate::scenario::kind::Kind;
use crate::scenario::{Expect, Scenario};
use crate::schedulers::Schedulers;
use crate::verdict::Verdict;
use crate::watch::processes::{Watched, subjects_are_gone};
use crate::watch::sampler::Sampler;
use crate::watch::status::Statuses;

/// From the end of the preparations to the first intended time.
const LEAD: Duration = Duration::from_millis(100);
/// How long to wait for answers and dead letters after the last intended time, if ends are not
/// followed.
const ANSWERS_PATIENCE: Duration = Duration::from_secs(60);

/// The options of a run.
#[derive(Clone)]
pub struct Options {
    /// The system's name in the report.
    pub system: String,
    /// Whether to hide the progress.
    pub is_quiet: bool,
    /// Whether the user has interrupted the run.
    pub interrupt: Interrupt,
    /// The admin port of the process whose schedulers are stopped while requests are sent, to
    /// measure acceptance alone. CPU then counts up to the last answer, per accepted request.
    pub hold: Option<SocketAddr>,
}

/// The measurements of a run, before the report.
struct Seen {
    began: Instant,
    outcome: Outcome,
    /// The usage of each process before and after.
    usages: Vec<(Watched, Usage, Usage)>,
    samples: Vec<Sample>,
    /// Undecodable records: the number sent, and the number found on the dead-letter topic.
    garbage: Option<(u64, u64)>,
    /// The judge's verdict, or why there is none.
    verdict: Result<Verdict, &'static str>,
    failures: Vec<String>,
}

/// Runs a scenario.
///
/// # Errors
///
/// If nothing could be measured, or the run was interrupted. A failed run is no error: it has
/// [`Run::failures`].
pub async fn run(
    scenario: &Scenario,
    installation: &Installation,
    options: &Options,
) -> anyhow::Result<Run> {
    let run = run_as_far_as_it_goes(scenario, installation, options).await?;
    match options.interrupt.is_asked() {
        true => Err(Interrupted.into()),
        false => Ok(run),
    }
}

/// Runs a scenario. An interruption after the start makes a failed run with the results so far.
///
/// # Errors
///
/// If nothing could be measured.
pub async fn run_as_far_as_it_goes(
    scenario: &Scenario,
    installation: &Installation,
    options: &Options,
) -> anyhow::Result<Run> {
    let interrupt = &options.interrupt;
    interrupt.unless(installation.answers(scenario)).await?;
    let in_force = interrupt
        .unless(faults::InForce::put(scenario, installation.services))
        .await?;
    let seen = see(scenario, installation, options).await;
    let removed = match in_force {
        Some(in_force) => in_force.remove().await,
        None => Ok(()),
    };
    let mut seen = match (seen, &removed) {
        (Ok(seen), _) => seen,
        (Err(error), Ok(())) => return Err(error),
        (Err(error), Err(removed)) => return Err(error.context(format!("{removed:#}"))),
    };
    if let Err(error) = removed {
        seen.failures.push(chain(error.as_ref()));
    }
    Ok(write_up(scenario, options, seen))
}

async fn see(
    scenario: &Scenario,
    installation: &Installation,
    options: &Options,
) -> anyhow::Result<Seen> {
    let (schedule, deck) = (scenario.schedule(), scenario.deck());
    let phases = scenario.phases.len();
    let results = Arc::new(RunResults::new(
        schedule.count(),
        phases,
        deck.tenants().len(),
    ));
    let interrupt = &options.interrupt;
    let topics = interrupt.unless(installation.topics()).await?;
    let is_followed = !scenario.drain.is_zero();
    let statuses = match is_followed {
        true => {
            let statuses = Statuses::follow(&installation.kafka, &topics, results.clone());
            let statuses = interrupt.unless(statuses).await;
            Some(statuses.with_context(|| {
                let status = topics.operation_status();
                format!(
                    "cannot read {status} at {} (--brokers; --kafka-config FILE logs in)",
                    installation.kafka.brokers
                )
            })?)
        }
        false => None,
    };
    let garbage = Garbage::of(scenario, &installation.kafka, &topics);
    let garbage = interrupt.unless(garbage).await?;
    let mut processes = installation.processes.clone();
    processes.push(Watched::this_one());
    let held = match options.hold {
        Some(admin) => Some(Schedulers::stop(admin).await?),
        None => None,
    };
    let before = usages(&processes)?;

    let began = Instant::now() + LEAD;
    results.begin(began);
    let sampler = Sampler::start(
        scenario,
        results.clone(),
        processes.clone(),
        began,
        options.is_quiet,
    )?;
    let patience = if is_followed {
        scenario.drain
    } else {
        ANSWERS_PATIENCE
    };
    let deadline = began + schedule.length() + patience;
    let target = Target {
        http: &installation.http,
        kafka: &installation.kafka,
        topics: &topics,
    };
    let sent = load::send(
        scenario,
        &target,
        &results,
        garbage.clone(),
        (began, deadline),
    );
    // After the start, an interruption ends the requests and not the report.
    let sent = interrupt.unless(sent).await;
    let mut after = usages(&processes);
    if let Some(held) = held {
        held.start().await?;
    }
    if let Err(error) = sent
        && !error.is::<Interrupted>()
    {
        return Err(error);
    }
    if let Some(statuses) = &statuses {
        let ends = async {
            statuses.wait_until(deadline, &processes).await;
            Ok(())
        };
        let _ = interrupt.unless(ends).await;
    }
    if options.hold.is_none() {
        after = usages(&processes);
    }
    // Without subjects, no more operations end and there is nothing to wait for.
    let deadline = match subjects_are_gone(&processes) || interrupt.is_asked() {
        true => Instant::now(),
        false => deadline,
    };
    let samples = sampler.stop();

    let mut failures = Vec::new();
    // A process that has ended is a finding, not the end of the report.
    let after = after.unwrap_or_else(|error| {
        failures.push(chain(error.as_ref()));
        before.clone()
    });
    let garbage = match garbage {
        None => None,
        Some(garbage) => match garbage.find(deadline).await {
            Ok(found) => Some((garbage.count(), found)),
            Err(error) => {
                failures.push(format!(
                    "cannot read the dead letters: {}",
                    chain(error.as_ref())
                ));
                None
            }
        },
    };
    let verdict = match installation.services {
        _ if interrupt.is_asked() => {
            failures
                .push("the run was interrupted; the report covers the time until then".to_owned());
            Err("the run was interrupted")
        }
        _ if !is_followed => Err("the run did not wait for operations to end (--wait)"),
        None => Err("no ledger of the services (--services)"),
        Some(services) => judge::judge(&results, services, deadline)
            .await
            .map_err(|error| {
                failures.push(chain(error.as_ref()));
                "could not read the services' ledger"
            }),
    };
    if let Some(statuses) = statuses
        && let Err(error) = statuses.stop()
    {
        failures.push(chain(error.as_ref()));
    }
    let usages = processes.into_iter().zip(before.into_iter().zip(after));
    Ok(Seen {
        began,
        outcome: results.outcome(),
        usages: usages
            .map(|(process, (before, after))| (process, before, after))
            .collect(),
        samples,
        garbage,
        verdict,
        failures,
    })
}

fn usages(processes: &[Watched]) -> anyhow::Result<Vec<Usage>> {
    processes.iter().map(Watched::usage).collect()
}

fn write_up(scenario: &Scenario, options: &Options, seen: Seen) -> Run {
    let schedule = scenario.schedule();
    let outcome = &seen.outcome;
    let since = |at: Option<Instant>| {
        at.map_or(0.0, |at| {
            at.saturating_duration_since(seen.began).as_secs_f64()
        })
    };
    let is_followed = !scenario.drain.is_zero();
    let deliveries = match is_followed && options.hold.is_none() {
        true => outcome.tally.ended,
        false => outcome.tally.accepted,
    };
    let mut run = Run {
        scenario: scenario.name.clone(),
        system: options.system.clone(),
        transport: scenario.transport.as_str().to_owned(),
        seed: scenario.seed,
        phases: phases(scenario, outcome),
        offered: schedule.count(),
        accepted: outcome.tally.accepted,
        refused: by_status(&outcome.refused, |refused| refused.count),
        refused_examples: by_status(&outcome.refused, |refused| refused.example.clone()),
        states: outcome
            .states
            .iter()
            .map(|(state, count)| ((*state).to_owned(), *count))
            .collect(),
        open: outcome.open(),
        accepting_seconds: since(outcome.last_answer),
        ending_seconds: since(outcome.last_end.or(outcome.last_answer)),
        acceptance_ms: Percentiles::of(&outcome.tally.acceptance_us),
        end_to_end_ms: Percentiles::of(&outcome.tally.end_to_end_us),
        tenants: tenants(scenario, outcome),
        kinds: kinds(scenario, &seen),
        processes: processes(&seen, deliveries),
        samples: Vec::new(),
        breaking_point: None,
        not_judged: seen.verdict.as_ref().err().map(|why| (*why).to_owned()),
        verdict: seen.verdict.ok(),
        failures: seen.failures,
    };
    let strain = scenario.breaking_point.as_ref();
    let offer = schedule.length().as_secs_f64();
    run.breaking_point = strain.map(|strain| strain.breaking_point(&seen.samples, offer));
    run.samples = seen.samples;
    let found = failures(scenario, &run, &seen.outcome, is_followed);
    run.failures.extend(found);
    run
}

/// Why the run failed, judged by its measurements.
fn failures(scenario: &Scenario, run: &Run, outcome: &Outcome, is_followed: bool) -> Vec<String> {
    let mut failures = Vec::new();
    if run.accepted == 0 {
        failures.push("no delivery was accepted".to_owned());
    }
    if is_followed && run.open > 0 {
        let (open, accepted) = (run.open, run.accepted);
        failures.push(format!(
            "{open} of {accepted} accepted deliveries did not end in time"
        ));
    }
    if is_followed && scenario.expect == Expect::Kind {
        for kind in run.kinds.iter().filter(|kind| kind.is_missed()) {
            failures.push(format!(
                "{} of {} {} did not end as required",
                kind.held_to - kind.as_meant,
                kind.held_to,
                kind.name
            ));
        }
    } else if let Some(kind) = run
        .kinds
        .iter()
        .find(|kind| kind.is_bad && kind.is_missed())
    {
        failures.push(format!(
            "{} of {} {} were not handled as required",
            kind.held_to - kind.as_meant,
            kind.held_to,
            kind.name
        ));
    }
    let (count, examples) = &outcome.wrong_answers;
    if *count > 0 {
        failures.push(format!(
            "wrong answers: {count}, such as: {}",
            examples.join("; ")
        ));
    }
    if run
        .verdict
        .as_ref()
        .is_some_and(|verdict| !verdict.is_balanced())
    {
        failures.push("the ledger does not balance".to_owned());
    }
    failures.extend(scenario.limits.broken(run, outcome.refused_good));
    failures
}

fn phases(scenario: &Scenario, outcome: &Outcome) -> Vec<Phase> {
    let schedule = scenario.schedule();
    let phases = scenario.phases.iter().zip(&outcome.phases).enumerate();
    phases
        .map(|(number, (phase, tally))| {
            let (from_seconds, offered) = schedule.phase(number);
            Phase {
                name: phase.name.clone(),
                from_seconds,
                seconds: phase.length.as_secs_f64(),
                rate: phase.rate,
                rate_end: phase.rate_end(),
                offered,
                accepted: tally.accepted,
                acceptance_ms: Percentiles::of(&tally.acceptance_us),
                end_to_end_ms: Percentiles::of(&tally.end_to_end_us),
            }
        })
        .collect()
}

fn by_status<T>(
    refused: &BTreeMap<u16, Refused>,
    value_of: impl Fn(&Refused) -> T,
) -> BTreeMap<String, T> {
    let named = refused.iter().map(|(status, refused)| {
        let name = match status {
            0 => "none".to_owned(),
            status => status.to_string(),
        };
        (name, value_of(refused))
    });
    named.collect()
}

fn tenants(scenario: &Scenario, outcome: &Outcome) -> Vec<Tenant> {
    let (schedule, deck) = (scenario.schedule(), scenario.deck());
    let mut offered = vec![0; deck.tenants().len()];
    if offered.is_empty() {
        return Vec::new();
    }
    for index in 0..schedule.count() {
        let drawn = deck.draw(index, schedule.at(index).1);
        if let Some(tenant) = drawn.tenant {
            offered[usize::from(tenant)] += 1;
        }
    }
    let named = deck.tenants().iter().zip(&outcome.tenants).zip(offered);
    named
        .map(|((name, tally), offered)| Tenant {
            name: name.clone(),
            offered,
            accepted: tally.accepted,
            acceptance_ms: Percentiles::of(&tally.acceptance_us),
            end_to_end_ms: Percentiles::of(&tally.end_to_end_us),
        })
        .collect()
}

fn kinds(scenario: &Scenario, seen: &Seen) -> Vec<KindOutcome> {
    let is_followed = !scenario.drain.is_zero();
    let kinds = seen.outcome.kinds.iter();
    let mut kinds: Vec<KindOutcome> = kinds
        .filter(|(kind, _)| is_followed || !kind.is_good())
        .map(|(kind, tally)| KindOutcome {
            name: kind.as_str().to_owned(),
            held_to: match kind {
                Kind::Malformed => tally.answered,
                _ => tally.tally.accepted,
            },
            as_meant: tally.as_meant,
            is_bad: !kind.is_good(),
            end_to_end_ms: Percentiles::of(&tally.tally.end_to_end_us),
        })
        .collect();
    if let Some((sent, found)) = &seen.garbage {
        kinds.push(KindOutcome {
            name: "garbage".to_owned(),
            held_to: *sent,
            as_meant: *found,
            is_bad: true,
            end_to_end_ms: None,
        });
    }
    kinds
}

fn processes(seen: &Seen, deliveries: u64) -> Vec<Process> {
    let micros = |seconds: f64| seconds * 1e6 / deliveries.max(1) as f64;
    let usages = seen.usages.iter().enumerate();
    usages
        .map(|(number, (process, before, after))| {
            let used = after.since(before);
            let threads = used.threads.iter();
            let resident = seen
                .samples
                .iter()
                .map(|sample| sample.resident_mib[number]);
            Process {
                name: process.name.clone(),
                part: process.part,
                cpu_us_per_delivery: micros(used.cpu_seconds),
                cpu_us_by_threads: threads
                    .map(|(name, seconds)| (name.clone(), micros(*seconds)))
                    .collect(),
                resident_mib_before: before.resident_mib,
                resident_mib_max: resident.fold(before.resident_mib, f64::max),
            }
        })
        .collect()
}
