//! The table of goals: a pure function of the runs.

use crate::model::{Goal, Part, Run};

use super::{
    ACCEPT, ALONE, BACKLOG, DIRECT, FLOOR, IDLE, IN_PROCESS, OPEN_LOOP, SPIKE, SUSTAINED, TEXTBOOK,
    TOP_RATE, WAYBILL,
};

/// The results of the runs, row by row. `peers` names the other systems.
pub fn table(runs: &[Run], peers: &[String]) -> Vec<Goal> {
    let runs = Runs(runs);
    vec![
        runs.top_rate(),
        runs.against_peers(peers),
        runs.cpu(
            WAYBILL,
            "Waybill's CPU per delivery, over HTTP agents",
            300.0,
        ),
        runs.cpu(
            DIRECT,
            "the same, asked directly in the scheduler's process",
            300.0,
        ),
        runs.cpu(
            IN_PROCESS,
            "Waybill's CPU per delivery, in-process agents",
            150.0,
        ),
        runs.in_process(),
        runs.latency(
            ALONE,
            WAYBILL,
            "one delivery alone (20/s), end to end, p50 / p99",
            [8.0, 20.0],
        ),
        runs.latency(ALONE, DIRECT, "the same, asked directly", [8.0, 20.0]),
        runs.latency(
            OPEN_LOOP,
            WAYBILL,
            "1,000/s open loop, end to end, p50 / p99",
            [15.0, 50.0],
        ),
        runs.latency(OPEN_LOOP, DIRECT, "the same, asked directly", [15.0, 50.0]),
        runs.spike(),
        runs.spike_drain(),
        runs.sustained(),
        not_measured(
            "on Kafka and Cassandra, share of their raw floor",
            "≥ 60 %",
            "loadtest/compare-backends",
        ),
        runs.accept(),
        runs.floor(),
        runs.textbook(),
        runs.memory(IDLE, "memory, idle", 60.0, |run| {
            run.processes.first().map(|of| of.resident_mib_before)
        }),
        runs.memory(
            TOP_RATE,
            "memory, at the top rate",
            300.0,
            Run::subject_memory_mib_max,
        ),
        runs.backlog(),
        not_measured(
            "how cost grows with partitions, operations and those in flight",
            "flat",
            "waybill-loadtest growth",
        ),
    ]
}

struct Runs<'a>(&'a [Run]);

impl<'a> Runs<'a> {
    fn of(&self, scenario: &'static str, system: &'a str) -> impl Iterator<Item = &'a Run> {
        let of = move |run: &&Run| run.scenario == scenario && run.system == system;
        self.0.iter().filter(of)
    }

    /// The median of a figure over all runs.
    fn median(
        &self,
        scenario: &'static str,
        system: &str,
        figure: impl Fn(&Run) -> Option<f64>,
    ) -> Option<f64> {
        median(
            self.0
                .iter()
                .filter(|run| run.scenario == scenario && run.system == system)
                .filter_map(figure)
                .collect(),
        )
    }

    fn rate(&self, system: &str) -> Option<f64> {
        self.median(TOP_RATE, system, |run| Some(run.completed_per_second()))
    }

    /// The median of the rounds' ratios of Waybill's speed to that of another system.
    fn times(&self, other: &'a str) -> Option<f64> {
        let ours = self.of(TOP_RATE, WAYBILL);
        let rounds = ours.zip(self.of(TOP_RATE, other));
        median(
            rounds
                .map(|(ours, other)| ours.completed_per_second() / other.completed_per_second())
                .collect(),
        )
    }

    fn top_rate(&self) -> Goal {
        at_least(
            "five sequential HTTP steps",
            5_000.0,
            self.rate(WAYBILL),
            "completed/s",
        )
    }

    fn against_peers(&self, peers: &'a [String]) -> Goal {
        let work = "the same against the fastest peer of this run";
        let times = peers
            .iter()
            .filter_map(|peer| Some((self.times(peer)?, peer)));
        let fastest = times.min_by(|(a, _), (b, _)| a.total_cmp(b));
        match fastest {
            Some((times, peer)) => Goal {
                measured: format!("{times:.2}x {peer}"),
                ..at_least(work, 3.0, Some(times), "x")
            },
            None => not_measured(work, "≥ 3 x", "no --peer was given"),
        }
    }

    fn cpu(&self, system: &str, work: &str, goal: f64) -> Goal {
        let cpu = |part| self.median(TOP_RATE, system, |run| run.cpu_us(part));
        let ours = at_most(work, goal, cpu(Part::Subject), "µs");
        match (ours.ratio, cpu(Part::Services), cpu(Part::Load)) {
            (Some(_), Some(services), Some(load)) => Goal {
                measured: format!(
                    "{} (and services {services:.0}, load {load:.0})",
                    ours.measured
                ),
                ..ours
            },
            (Some(_), None, Some(load)) => Goal {
                measured: format!("{}, services within (and load {load:.0})", ours.measured),
                ..ours
            },
            (Some(_), _, _) => ours,
            (None, _, _) => not_measured(work, &ours.goal, "there was no such run"),
        }
    }

    fn in_process(&self) -> Goal {
        let work = "in-process agents";
        match self.rate(IN_PROCESS) {
            Some(rate) => at_least(work, 10_000.0, Some(rate), "completed/s"),
            None => not_measured(work, "≥ 10,000 completed/s", "there was no such run"),
        }
    }

    fn latency(
        &self,
        scenario: &'static str,
        system: &str,
        work: &str,
        [p50_goal, p99_goal]: [f64; 2],
    ) -> Goal {
        let goal = format!("≤ {p50_goal} / {p99_goal} ms");
        let found = self.median_pair(scenario, system);
        let Some((p50, p99)) = found else {
            return not_measured(work, &goal, "there was no such run");
        };
        Goal {
            work: work.to_owned(),
            goal,
            measured: format!("{p50:.1} / {p99:.1} ms"),
            ratio: Some(f64::min(p50_goal / p50, p99_goal / p99)),
        }
    }

    fn median_pair(&self, scenario: &'static str, system: &str) -> Option<(f64, f64)> {
        let figure = |of: fn(&crate::model::Percentiles) -> f64| {
            self.median(scenario, system, |run| run.end_to_end_ms.as_ref().map(of))
        };
        Some((figure(|ms| ms.p50)?, figure(|ms| ms.p99)?))
    }

    fn spike(&self) -> Goal {
        let work = "spike, 50,000/s for 10 s in batches: refused, lost, acceptance p99";
        let goal = "0, 0, ≤ 50 ms";
        let Some(run) = self.of(SPIKE, WAYBILL).next() else {
            return not_measured(work, goal, "there was no such run");
        };
        accepted_well(run, work, goal, 50.0)
    }

    fn spike_drain(&self) -> Goal {
        let work = "the spike drained, as a share of the top rate";
        let drained = self.of(SPIKE, WAYBILL).next().and_then(drain_rate);
        match (drained, self.rate(WAYBILL)) {
            (Some(drained), Some(top)) => Goal {
                work: work.to_owned(),
                goal: "≥ 100 %".to_owned(),
                measured: format!("{:.0} % ({drained:.0} completed/s)", drained / top * 100.0),
                ratio: Some(drained / top),
            },
            _ => not_measured(work, "≥ 100 %", "there was no such run"),
        }
    }

    fn sustained(&self) -> Goal {
        let work = "sustained, 10,000/s for 10 min: refused, lost, acceptance p99";
        let goal = "0, 0, ≤ 100 ms";
        match self.0.iter().find(|run| run.scenario == SUSTAINED) {
            Some(run) => {
                let measured = accepted_well(run, work, goal, 100.0);
                let seconds: f64 = run.phases.iter().map(|phase| phase.seconds).sum();
                let shown = format!("{} ({}, {seconds:.0} s)", measured.measured, run.system);
                Goal {
                    measured: shown,
                    // A shorter run is no evidence for ten minutes.
                    ratio: measured.ratio.filter(|_| seconds >= 600.0),
                    ..measured
                }
            }
            None => not_measured(work, goal, "takes suite --full"),
        }
    }

    fn accept(&self) -> Goal {
        let cpu = self.median(ACCEPT, WAYBILL, |run| run.cpu_us(Part::Subject));
        at_most(
            "one-by-one HTTP/1.1 acceptance, CPU per request",
            40.0,
            cpu,
            "µs",
        )
    }

    fn floor(&self) -> Goal {
        let work = "share of the raw floor";
        match self.times(FLOOR) {
            Some(share) => Goal {
                work: work.to_owned(),
                goal: "≥ 60 %".to_owned(),
                measured: format!("{:.0} %", share * 100.0),
                ratio: Some(share / 0.6),
            },
            None => not_measured(work, "≥ 60 %", "the floor did not run"),
        }
    }

    fn textbook(&self) -> Goal {
        match self.times(TEXTBOOK) {
            Some(times) => at_least("against textbook", 5.0, Some(times), "x"),
            None => not_measured("against textbook", "≥ 5 x", "textbook did not run"),
        }
    }

    fn memory(
        &self,
        scenario: &'static str,
        work: &str,
        goal: f64,
        figure: impl Fn(&Run) -> Option<f64>,
    ) -> Goal {
        at_most(work, goal, self.median(scenario, WAYBILL, figure), "MiB")
    }

    /// The backlog of the spike is below a million and is reported separately.
    fn backlog(&self) -> Goal {
        let work = "memory, with a backlog of 1,000,000";
        if let Some(run) = self.of(BACKLOG, WAYBILL).next() {
            let measured = self.memory(BACKLOG, work, 400.0, Run::subject_memory_mib_max);
            let shown = format!("{} with {}", measured.measured, run.accepted);
            return Goal {
                measured: shown,
                ratio: measured.ratio.filter(|_| run.accepted >= 1_000_000),
                ..measured
            };
        }
        let spike = self.of(SPIKE, WAYBILL).next();
        let because = match spike.and_then(|run| Some((run.subject_memory_mib_max()?, run))) {
            Some((memory, run)) => {
                let most = run.samples.iter().map(|sample| sample.open).max();
                let most = most.unwrap_or_default();
                format!("takes suite --full; {memory:.0} MiB with the spike's {most}")
            }
            None => "takes suite --full".to_owned(),
        };
        not_measured(work, "≤ 400 MiB", &because)
    }
}

/// Finished operations per second after the last request was sent.
pub fn drain_rate(run: &Run) -> Option<f64> {
    let sent: f64 = run.phases.iter().map(|phase| phase.seconds).sum();
    let behind = run
        .samples
        .iter()
        .filter(|sample| sample.at_seconds > sent + 1.0);
    let ended: u64 = behind.clone().map(|sample| sample.ended).sum();
    let seconds = run.ending_seconds
        - behind
            .map(|sample| sample.at_seconds - sample.seconds)
            .next()?;
    (ended > 0 && seconds > 0.0).then(|| ended as f64 / seconds)
}

/// Refusals, losses and the acceptance time in one row. Any refusal or loss makes the ratio zero.
fn accepted_well(run: &Run, work: &str, goal: &str, p99_goal: f64) -> Goal {
    let refused: u64 = run.refused.values().sum();
    let lost = run
        .verdict
        .as_ref()
        .map_or(run.open, |verdict| verdict.lost.count as u64);
    let p99 = run.acceptance_ms.map_or(f64::INFINITY, |ms| ms.p99);
    Goal {
        work: work.to_owned(),
        goal: goal.to_owned(),
        measured: format!("{refused}, {lost}, {p99:.0} ms"),
        ratio: Some(if refused + lost > 0 {
            0.0
        } else {
            p99_goal / p99
        }),
    }
}

fn at_least(work: &str, goal: f64, measured: Option<f64>, unit: &str) -> Goal {
    row(
        work,
        format!("≥ {goal} {unit}"),
        measured,
        unit,
        |measured| measured / goal,
    )
}

fn at_most(work: &str, goal: f64, measured: Option<f64>, unit: &str) -> Goal {
    row(
        work,
        format!("≤ {goal} {unit}"),
        measured,
        unit,
        |measured| goal / measured,
    )
}

fn row(
    work: &str,
    goal: String,
    measured: Option<f64>,
    unit: &str,
    ratio: impl Fn(f64) -> f64,
) -> Goal {
    let Some(measured) = measured else {
        return not_measured(work, &goal, "there was no such run");
    };
    let digits = if measured < 100.0 { 1 } else { 0 };
    Goal {
        work: work.to_owned(),
        goal,
        measured: format!("{measured:.digits$} {unit}"),
        ratio: Some(ratio(measured)),
    }
}

fn not_measured(work: &str, goal: &str, because: &str) -> Goal {
    Goal {
        work: work.to_owned(),
        goal: goal.to_owned(),
        measured: format!("not measured: {because}"),
        ratio: None,
    }
}

/// The median; of an even number of values, the lower middle one.
pub fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len().checked_sub(1)? / 2;
    Some(figures[middle])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::Percentiles;
    use crate::report::testing;

    fn top_rate(system: &str, completed: u64) -> Run {
        Run {
            scenario: TOP_RATE.to_owned(),
            system: system.to_owned(),
            states: BTreeMap::from([("Processed".to_owned(), completed)]),
            ending_seconds: 1.0,
            ..testing::run()
        }
    }

    fn row<'a>(table: &'a [Goal], work: &str) -> &'a Goal {
        let found = table.iter().find(|goal| goal.work.starts_with(work));
        found.unwrap_or_else(|| panic!("{work} is a row"))
    }

    #[test]
    fn a_comparison_is_the_median_of_the_rounds_ratios() {
        let mut runs = Vec::new();
        for (ours, textbook, peer) in [
            (4_000, 1_000, 2_000),
            (3_000, 500, 2_000),
            (6_000, 6_000, 2_000),
        ] {
            runs.push(top_rate(WAYBILL, ours));
            runs.push(top_rate(TEXTBOOK, textbook));
            runs.push(top_rate("other", peer));
        }
        let table = table(&runs, &["other".to_owned()]);
        assert_eq!(row(&table, "five").ratio, Some(0.8));
        assert_eq!(row(&table, "against textbook").measured, "4.0 x");
        assert_eq!(row(&table, "the same against").measured, "2.00x other");
        assert_eq!(
            row(&table, "share").measured,
            "not measured: the floor did not run"
        );
        assert_eq!(row(&table, "share").ratio, None);
    }

    #[test]
    fn less_is_better_for_limits() {
        let mut run = testing::run();
        run.scenario = ALONE.to_owned();
        run.end_to_end_ms = Some(Percentiles {
            p50: 4.0,
            p90: 5.0,
            p99: 40.0,
            p999: 41.0,
            max: 42.0,
        });
        let table = table(&[run], &[]);
        let alone = row(&table, "one delivery alone");
        assert_eq!(
            (&*alone.measured, alone.ratio),
            ("4.0 / 40.0 ms", Some(0.5))
        );
    }

    #[test]
    fn a_spike_with_a_refusal_reaches_no_goal() {
        let mut run = testing::run();
        run.scenario = SPIKE.to_owned();
        run.acceptance_ms = Some(Percentiles {
            p50: 1.0,
            p90: 1.0,
            p99: 25.0,
            p999: 25.0,
            max: 25.0,
        });
        assert_eq!(row(&table(&[clone(&run)], &[]), "spike").ratio, Some(2.0));
        run.refused = BTreeMap::from([("503".to_owned(), 1)]);
        assert_eq!(row(&table(&[run], &[]), "spike").ratio, Some(0.0));
    }

    fn clone(run: &Run) -> Run {
        let json = serde_json::to_string(run).expect("a report is JSON");
        serde_json::from_str(&json).expect("and reads back")
    }
}
