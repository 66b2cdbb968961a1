//! Sample reports for tests.

use std::collections::BTreeMap;

use crate::model::{
    BreakingPoint, FORMAT, Goal, KindOutcome, Machine, Part, Percentiles, Phase, Process, Report,
    Run, Sample, Tenant,
};
use crate::report::testing;
use crate::verdict::{Findings, Verdict};

/// The maximum rate of a subject with speed 1, in deliveries per second.
const CAPACITY: f64 = 1_150.0;

/// A report with a successful run, a failed one, and one that measured only acceptance.
pub fn report(speed: f64) -> Report {
    Report {
        format: FORMAT,
        begun: "2026-03-01T08:30:12.345Z".to_owned(),
        machine: Machine {
            cpu: "Example 4 GHz".to_owned(),
            cores: 2,
            memory_mib: 7_941,
            system: "Linux 6.12".to_owned(),
        },
        runs: vec![spike(130, speed), failed(speed), floor(), empty()],
        goals: vec![
            goal(
                "spike, acceptance p99",
                "50 ms",
                "41.2 ms",
                Some(50.0 / 41.2),
            ),
            goal(
                "steady, completed",
                "1,500/s",
                "1,214/s",
                Some(1_214.0 / 1_500.0),
            ),
            goal(
                "steady, CPU for each delivery",
                "300 µs",
                "290 µs",
                Some(300.0 / 290.0),
            ),
            goal("sink, acceptance", "20,000/s", "52,000/s", Some(2.6)),
            goal(
                "three brokers, completed",
                "900/s",
                "not measured: one machine",
                None,
            ),
        ],
    }
}

/// Text that tries to become markup.
pub const HOSTILE: &str = "</td></style></script><script>alert(1)</script><!-- \"' & \\u003c";

/// A report whose every text is hostile.
pub fn hostile() -> Report {
    let evil = HOSTILE.to_owned();
    let mut run = spike(130, 1.0);
    run.seed = u64::MAX;
    run.scenario.clone_from(&evil);
    run.system.clone_from(&evil);
    run.transport.clone_from(&evil);
    run.phases[0].name.clone_from(&evil);
    run.kinds[0].name.clone_from(&evil);
    run.tenants[0].name.clone_from(&evil);
    run.processes[0].name.clone_from(&evil);
    run.processes[1]
        .cpu_us_by_threads
        .insert(evil.clone(), 50.0);
    run.refused.insert(evil.clone(), 1);
    run.states.insert(evil.clone(), 1);
    run.failures.push(evil.clone());
    let mut report = report(1.0);
    report.runs = vec![run];
    report.begun.clone_from(&evil);
    report.machine.cpu.clone_from(&evil);
    report.machine.system.clone_from(&evil);
    report.goals[0].work.clone_from(&evil);
    report.goals[0].goal.clone_from(&evil);
    report.goals[0].measured.clone_from(&evil);
    report
}

fn goal(work: &str, goal: &str, measured: &str, ratio: Option<f64>) -> Goal {
    Goal {
        work: work.to_owned(),
        goal: goal.to_owned(),
        measured: measured.to_owned(),
        ratio,
    }
}

/// A spike in the middle of a steady load, with one sample per second.
pub fn spike(seconds: u32, speed: f64) -> Run {
    let spike = (seconds * 6 / 13, seconds * 7 / 13);
    let rate = |second: u32| {
        if (spike.0..spike.1).contains(&second) {
            3_000.0
        } else {
            480.0
        }
    };
    let mut noise = Noise(7);
    let mut open = 0.0;
    let samples = (0..seconds + 8).map(|second| {
        let offered = if second < seconds { rate(second) } else { 0.0 };
        let accepted = offered
            - if offered > 2_000.0 {
                noise.upto(40.0).floor()
            } else {
                0.0
            };
        let ended = (CAPACITY * speed * noise.about())
            .min(open + accepted * 0.96)
            .floor();
        open = f64::max(open + accepted - ended, 0.0);
        let wait_ms = 6.0 / speed + open / (CAPACITY * speed) * 1_000.0;
        let busy = (ended / (CAPACITY * speed)).min(1.0);
        let accepting_ms = 1.8 * noise.about() + offered / 300.0;
        Sample {
            at_seconds: f64::from(second + 1) + noise.upto(0.003),
            seconds: 1.0,
            offered: offered as u64,
            accepted: accepted as u64,
            refused: (offered - accepted) as u64,
            ended: ended as u64,
            open: open as u64,
            acceptance_ms: (accepted > 0.0).then(|| percentiles(accepting_ms, noise.about())),
            end_to_end_ms: (ended > 0.0).then(|| percentiles(wait_ms, noise.about())),
            cpu_cores: [1.2, 0.35, 0.2, 0.15]
                .map(|cores| cores * busy * noise.about())
                .to_vec(),
            resident_mib: vec![
                118.0 + open / 90.0 + f64::from(second) / 8.0,
                41.0,
                22.5,
                30.0 + f64::from(second) / 20.0,
            ],
        }
    });
    let samples: Vec<Sample> = samples.collect();
    let sum = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>();
    let (offered, accepted, refused) =
        (sum(|s| s.offered), sum(|s| s.accepted), sum(|s| s.refused));
    let of_phase = |name: &str, from: u32, to: u32, scale: f64| {
        let of_it = &samples[from as usize..to as usize];
        Phase {
            name: name.to_owned(),
            from_seconds: f64::from(from),
            seconds: f64::from(to - from),
            rate: rate(from),
            rate_end: rate(from),
            offered: of_it.iter().map(|sample| sample.offered).sum(),
            accepted: of_it.iter().map(|sample| sample.accepted).sum(),
            acceptance_ms: Some(percentiles(2.2 * scale, 1.0)),
            end_to_end_ms: Some(percentiles(8.0 * scale * scale / speed, 1.0)),
        }
    };
    let tenants = ["north", "south", "harbour"].iter().enumerate();
    Run {
        scenario: "spike".to_owned(),
        system: "waybill".to_owned(),
        transport: "http2".to_owned(),
        seed: 7,
        phases: vec![
            of_phase("steady", 0, spike.0, 1.0),
            of_phase("spike", spike.0, spike.1, 20.0),
            of_phase("after the spike", spike.1, seconds, 4.0),
        ],
        offered,
        accepted,
        refused: BTreeMap::from([("503".to_owned(), refused - 3), ("none".to_owned(), 3)]),
        refused_examples: BTreeMap::from([(
            "503".to_owned(),
            "the brokers are unavailable".to_owned(),
        )]),
        states: BTreeMap::from([
            ("Processed".to_owned(), accepted - 57),
            ("Compensated".to_owned(), 57),
        ]),
        open: 0,
        accepting_seconds: f64::from(seconds),
        ending_seconds: f64::from(seconds) + 3.4 / speed,
        acceptance_ms: Some(percentiles(2.4, 4.0)),
        end_to_end_ms: Some(percentiles(11.0 / speed, 60.0)),
        kinds: vec![
            KindOutcome {
                name: "drone".to_owned(),
                held_to: 900_000,
                as_meant: 899_990,
                is_bad: false,
                end_to_end_ms: None,
            },
            KindOutcome {
                name: "garbage".to_owned(),
                held_to: 40,
                as_meant: 40,
                is_bad: true,
                end_to_end_ms: None,
            },
        ],
        breaking_point: Some(BreakingPoint {
            rate: 4_200.0,
            broke_at: Some(5_000.0),
            because: Some("acceptance p99 was 240 ms".to_owned()),
        }),
        tenants: tenants
            .map(|(at, name)| Tenant {
                name: (*name).to_owned(),
                offered: offered / 3,
                accepted: accepted / 3 - at as u64,
                acceptance_ms: Some(percentiles(2.3 + at as f64 / 10.0, 3.0)),
                end_to_end_ms: Some(percentiles(10.0 / speed + at as f64, 50.0)),
            })
            .collect(),
        processes: vec![
            process("waybill", Part::Subject).using(612.0 / speed, 104.0, 171.0),
            process("kafka", Part::Server).using(241.0, 310.0, 402.0),
            process("services", Part::Services).using(124.0, 21.0, 23.0),
            process("loadtest", Part::Load).using(88.0, 24.0, 37.0),
        ],
        samples,
        not_judged: None,
        verdict: Some(Verdict {
            judged: accepted as usize,
            ..Verdict::default()
        }),
        failures: Vec::new(),
    }
}

/// A run that lost deliveries and did not finish.
fn failed(speed: f64) -> Run {
    let mut run = spike(130, speed * 0.6);
    run.scenario = "cancel-storm".to_owned();
    run.open = 412;
    run.verdict = Some(Verdict {
        judged: run.accepted as usize,
        lost: findings(412, "no final state; nothing in the ledger"),
        double: findings(
            2,
            "Processed; standing package, drone, delivery; double drone",
        ),
        half_undone: findings(0, ""),
        parked: findings(9, "Error; standing package"),
    });
    run.failures = vec![
        "412 of 91,000 accepted deliveries did not end within 60 s".to_owned(),
        "the ledger does not balance".to_owned(),
    ];
    run
}

/// A run that was neither followed to its end nor judged.
fn floor() -> Run {
    let mut run = spike(40, 1.0);
    run.system = "floor".to_owned();
    run.scenario = "accept <only> & \"nothing\" else".to_owned();
    run.states.clear();
    run.end_to_end_ms = None;
    run.verdict = None;
    run.refused.clear();
    run.tenants.clear();
    run.processes.truncate(1);
    for sample in &mut run.samples {
        sample.end_to_end_ms = None;
        sample.ended = 0;
        sample.open = 0;
        sample.cpu_cores.truncate(1);
        sample.resident_mib.truncate(1);
    }
    run
}

/// A run without any results.
pub fn empty() -> Run {
    Run {
        scenario: "trickle".to_owned(),
        system: "textbook".to_owned(),
        failures: vec!["no delivery was accepted".to_owned()],
        ..testing::run()
    }
}

/// An idle process.
pub fn process(name: &str, part: Part) -> Process {
    Process {
        name: name.to_owned(),
        part,
        cpu_us_per_delivery: 0.0,
        cpu_us_by_threads: BTreeMap::new(),
        resident_mib_before: 0.0,
        resident_mib_max: 0.0,
    }
}

impl Process {
    fn using(mut self, micros: f64, before: f64, most: f64) -> Self {
        let shares = [
            ("tokio-worker", 0.44),
            ("rdk:broker", 0.31),
            ("commit", 0.17),
            ("sync", 0.07),
            ("main", 0.006),
            ("rdk:main", 0.004),
        ];
        let threads = shares
            .iter()
            .map(|(name, share)| ((*name).to_owned(), share * micros));
        self.cpu_us_by_threads = threads.collect();
        self.cpu_us_per_delivery = micros;
        self.resident_mib_before = before;
        self.resident_mib_max = most;
        self
    }
}

fn percentiles(middle: f64, spread: f64) -> Percentiles {
    Percentiles {
        p50: middle,
        p90: middle * (1.3 + spread / 10.0),
        p99: middle * (2.0 + spread),
        p999: middle * (2.6 + spread * 1.4),
        max: middle * (3.1 + spread * 2.0),
    }
}

fn findings(count: usize, what: &str) -> Findings {
    let ids = (0..count.min(5)).map(|at| format!("0195f3a0-7c11-7bb2-9d0e-4f2a6c1b8e{at:02}"));
    Findings {
        count,
        examples: ids.map(|id| format!("{id}: {what}")).collect(),
    }
}

/// Reproducible pseudorandom numbers.
struct Noise(u64);

impl Noise {
    fn upto(&mut self, most: f64) -> f64 {
        // Multiplier and increment of Knuth's MMIX.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64 * most
    }

    fn about(&mut self) -> f64 {
        0.9 + self.upto(0.2)
    }
}
