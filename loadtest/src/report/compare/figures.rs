//! The compared figures of two runs, and which direction of each is better.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::model::{Part, Percentiles, Run};
use crate::report::number::{NONE, count, measure, measure_of, per_second};

/// Figures that differ by less than this share count as equal: no run is more exact.
const SAME: f64 = 0.02;

type Which = fn(&Percentiles) -> f64;

/// Which direction of a figure is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Better {
    Higher,
    Lower,
    /// The figure describes the work, not its quality.
    Neither,
}

/// A figure of B compared with that of A.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Better,
    Worse,
    Same,
    /// A figure is missing, or no direction is better.
    None,
}

impl Outcome {
    /// The outcome as a word; empty if there is none.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::None => "",
        }
    }
}

/// A figure of two runs.
#[derive(Debug)]
pub struct Figure {
    pub name: String,
    pub a: Option<f64>,
    pub b: Option<f64>,
    pub better: Better,
}

/// Figures of one topic.
#[derive(Debug, Serialize)]
pub struct Group {
    pub name: &'static str,
    pub figures: Vec<Figure>,
}

impl Figure {
    /// The figures of A and B as text.
    pub fn texts(&self) -> [String; 2] {
        [self.a, self.b].map(|value| match value {
            Some(whole) if whole >= 0.0 && whole.fract() == 0.0 => count(whole as u64),
            value => measure_of(value),
        })
    }

    /// B divided by A; `None` if one of them is missing or A is zero.
    pub fn ratio(&self) -> Option<f64> {
        let (a, b) = self.a.zip(self.b)?;
        let ratio = b / a;
        ratio.is_finite().then_some(ratio)
    }

    /// The ratio as text.
    pub fn ratio_text(&self) -> String {
        self.ratio()
            .map_or_else(|| NONE.to_owned(), |ratio| format!("{}×", measure(ratio)))
    }

    /// Whether B is better or worse than A.
    pub fn outcome(&self) -> Outcome {
        let Some((a, b)) = self.a.zip(self.b) else {
            return Outcome::None;
        };
        if a == b
            || self
                .ratio()
                .is_some_and(|ratio| (ratio - 1.0).abs() <= SAME)
        {
            return match self.better {
                Better::Neither => Outcome::None,
                Better::Higher | Better::Lower => Outcome::Same,
            };
        }
        match (self.better, b > a) {
            (Better::Neither, _) => Outcome::None,
            (Better::Higher, true) | (Better::Lower, false) => Outcome::Better,
            (Better::Higher, false) | (Better::Lower, true) => Outcome::Worse,
        }
    }
}

impl Serialize for Figure {
    /// The figure as it is shown.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [a, b] = self.texts();
        let mut fields = serializer.serialize_struct("Figure", 5)?;
        fields.serialize_field("name", &self.name)?;
        fields.serialize_field("a", &a)?;
        fields.serialize_field("b", &b)?;
        fields.serialize_field("ratio", &self.ratio_text())?;
        fields.serialize_field("outcome", self.outcome().word())?;
        fields.end()
    }
}

/// All figures of two runs, without empty groups.
pub fn of(a: &Run, b: &Run) -> Vec<Group> {
    let groups = [
        Group {
            name: "counts",
            figures: counts(a, b),
        },
        Group {
            name: "faults",
            figures: faults(a, b),
        },
        Group {
            name: "times of all, ms",
            figures: times(a, b),
        },
        Group {
            name: "times by phase, ms",
            figures: phases(a, b),
        },
        Group {
            name: "times by tenant, ms",
            figures: tenants(a, b),
        },
        Group {
            name: "CPU for each delivery, µs",
            figures: cpu(a, b),
        },
        Group {
            name: "resident memory at most, MiB",
            figures: memory(a, b),
        },
    ];
    groups
        .into_iter()
        .filter(|group| !group.figures.is_empty())
        .collect()
}

fn counts(a: &Run, b: &Run) -> Vec<Figure> {
    let both =
        |name: &str, better, of: &dyn Fn(&Run) -> Option<f64>| figure(name, better, of(a), of(b));
    let mut figures = vec![
        both("offered", Better::Neither, &|run| Some(run.offered as f64)),
        both("accepted", Better::Higher, &|run| Some(run.accepted as f64)),
        both("refused", Better::Lower, &|run| {
            Some(run.refused.values().sum::<u64>() as f64)
        }),
        both("accepted, /s", Better::Higher, &|run| {
            per_second(run.accepted, run.accepting_seconds)
        }),
        both("completed, /s", Better::Higher, &|run| {
            per_second(completed_of(run)?, run.ending_seconds)
        }),
        both("still open", Better::Lower, &|run| Some(run.open as f64)),
    ];
    let states: BTreeSet<&String> = a.states.keys().chain(b.states.keys()).collect();
    for state in states {
        // The state of a delivery depends on its scenario as well.
        figures.push(both(state, Better::Neither, &|run| {
            let count = run.states.get(state).copied();
            (!run.states.is_empty()).then(|| count.unwrap_or(0) as f64)
        }));
    }
    figures
}

fn faults(a: &Run, b: &Run) -> Vec<Figure> {
    if a.verdict.is_none() && b.verdict.is_none() {
        return Vec::new();
    }
    let [of_a, of_b] = [a, b].map(|run| {
        let of = |count: fn(&crate::verdict::Verdict) -> usize| {
            run.verdict.as_ref().map(|verdict| count(verdict) as f64)
        };
        [
            of(|verdict| verdict.lost.count),
            of(|verdict| verdict.double.count),
            of(|verdict| verdict.half_undone.count),
            of(|verdict| verdict.parked.count),
        ]
    });
    let names = ["LOST", "DOUBLE", "HALF-UNDONE", "parked"];
    let figures = names.iter().zip(of_a).zip(of_b);
    figures
        .map(|((name, a), b)| figure(name, Better::Lower, a, b))
        .collect()
}

fn times(a: &Run, b: &Run) -> Vec<Figure> {
    let of = |name: &str, a: Option<&Percentiles>, b: Option<&Percentiles>| {
        let which: [(_, Which); 5] = [
            ("p50", |times| times.p50),
            ("p90", |times| times.p90),
            ("p99", |times| times.p99),
            ("p99.9", |times| times.p999),
            ("max", |times| times.max),
        ];
        let figures = which.into_iter().map(move |(percentile, which)| {
            figure(
                &format!("{name}, {percentile}"),
                Better::Lower,
                a.map(which),
                b.map(which),
            )
        });
        figures.collect::<Vec<_>>()
    };
    let mut figures = of(
        "until acceptance",
        a.acceptance_ms.as_ref(),
        b.acceptance_ms.as_ref(),
    );
    figures.extend(of(
        "end to end",
        a.end_to_end_ms.as_ref(),
        b.end_to_end_ms.as_ref(),
    ));
    figures
}

/// The phases of A that B has under the same name.
fn phases(a: &Run, b: &Run) -> Vec<Figure> {
    let pairs = a.phases.iter().filter_map(|of_a| {
        let of_b = b.phases.iter().find(|of_b| of_b.name == of_a.name)?;
        Some(middle_and_late(
            &of_a.name,
            [&of_a.acceptance_ms, &of_b.acceptance_ms],
            [&of_a.end_to_end_ms, &of_b.end_to_end_ms],
        ))
    });
    pairs.flatten().collect()
}

/// The tenants of A that B has too.
fn tenants(a: &Run, b: &Run) -> Vec<Figure> {
    let pairs = a.tenants.iter().filter_map(|of_a| {
        let of_b = b.tenants.iter().find(|of_b| of_b.name == of_a.name)?;
        Some(middle_and_late(
            &of_a.name,
            [&of_a.acceptance_ms, &of_b.acceptance_ms],
            [&of_a.end_to_end_ms, &of_b.end_to_end_ms],
        ))
    });
    pairs.flatten().collect()
}

fn middle_and_late(
    name: &str,
    acceptance: [&Option<Percentiles>; 2],
    end_to_end: [&Option<Percentiles>; 2],
) -> [Figure; 4] {
    let of = |what, [a, b]: [&Option<Percentiles>; 2], percentile, which: Which| {
        let name = format!("{name}: {what}, {percentile}");
        figure(
            &name,
            Better::Lower,
            a.as_ref().map(which),
            b.as_ref().map(which),
        )
    };
    [
        of("until acceptance", acceptance, "p50", |times| times.p50),
        of("until acceptance", acceptance, "p99", |times| times.p99),
        of("end to end", end_to_end, "p50", |times| times.p50),
        of("end to end", end_to_end, "p99", |times| times.p99),
    ]
}

fn cpu(a: &Run, b: &Run) -> Vec<Figure> {
    let mut figures = Vec::new();
    for part in [Part::Subject, Part::Server, Part::Services, Part::Load] {
        let [of_a, of_b] = [a, b].map(|run| run.cpu_us(part));
        if of_a.is_none() && of_b.is_none() {
            continue;
        }
        // The load generator is not part of the measured system.
        let better = if part == Part::Load {
            Better::Neither
        } else {
            Better::Lower
        };
        let name = part_name(part);
        figures.push(figure(&format!("{name}, all"), better, of_a, of_b));
        figures.extend(by_process(a, b, part, better, |process| {
            process.cpu_us_per_delivery
        }));
    }
    figures
}

fn memory(a: &Run, b: &Run) -> Vec<Figure> {
    let of = |part, better| by_process(a, b, part, better, |process| process.resident_mib_max);
    let mut figures = of(Part::Subject, Better::Lower);
    figures.extend(of(Part::Server, Better::Lower));
    figures.extend(of(Part::Services, Better::Neither));
    figures.extend(of(Part::Load, Better::Neither));
    figures
}

fn by_process(
    a: &Run,
    b: &Run,
    part: Part,
    better: Better,
    of: fn(&crate::model::Process) -> f64,
) -> Vec<Figure> {
    let of_part = |run: &Run| -> Vec<(String, f64)> {
        let processes = run.processes.iter().filter(|process| process.part == part);
        processes
            .map(|process| (process.name.clone(), of(process)))
            .collect()
    };
    let (of_a, mut of_b) = (of_part(a), of_part(b));
    let mut figures = Vec::new();
    let part = part_name(part);
    for (name, a) in of_a {
        let at = of_b.iter().position(|(other, _)| *other == name);
        let b = at.map(|at| of_b.remove(at).1);
        figures.push(figure(&format!("{part}, {name}"), better, Some(a), b));
    }
    let rest = of_b.into_iter();
    figures.extend(rest.map(|(name, b)| figure(&format!("{part}, {name}"), better, None, Some(b))));
    figures
}

const fn part_name(part: Part) -> &'static str {
    match part {
        Part::Subject => "subject",
        Part::Server => "servers",
        Part::Services => "services",
        Part::Load => "load",
    }
}

/// Successful operations; `None` if none was followed to its end.
fn completed_of(run: &Run) -> Option<u64> {
    (!run.states.is_empty()).then(|| run.processed())
}

fn figure(name: &str, better: Better, a: Option<f64>, b: Option<f64>) -> Figure {
    Figure {
        name: name.to_owned(),
        a,
        b,
        better,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn outcome(better: Better, a: f64, b: f64) -> Outcome {
        figure("", better, Some(a), Some(b)).outcome()
    }

    #[test]
    fn better_depends_on_the_direction_of_a_figure() {
        assert_eq!(outcome(Better::Higher, 100.0, 110.0), Outcome::Better);
        assert_eq!(outcome(Better::Higher, 100.0, 90.0), Outcome::Worse);
        assert_eq!(outcome(Better::Lower, 100.0, 110.0), Outcome::Worse);
        assert_eq!(outcome(Better::Lower, 100.0, 90.0), Outcome::Better);
        assert_eq!(outcome(Better::Neither, 100.0, 90.0), Outcome::None);
    }

    #[test]
    fn a_small_difference_is_ignored() {
        assert_eq!(outcome(Better::Lower, 100.0, 101.9), Outcome::Same);
        assert_eq!(outcome(Better::Lower, 100.0, 102.1), Outcome::Worse);
        assert_eq!(outcome(Better::Higher, 0.0, 0.0), Outcome::Same);
    }

    #[test]
    fn a_figure_against_zero_has_no_ratio() {
        let lost = figure("", Better::Lower, Some(0.0), Some(3.0));
        assert_eq!((lost.ratio(), lost.outcome()), (None, Outcome::Worse));
        assert_eq!(lost.ratio_text(), NONE);
        let missing = figure("", Better::Lower, None, Some(3.0));
        assert_eq!((missing.ratio(), missing.outcome()), (None, Outcome::None));
    }

    #[test]
    fn integers_are_written_without_a_decimal_point() {
        let figure = figure("", Better::Lower, Some(57.0), Some(57.25));
        assert_eq!(figure.texts(), ["57", "57.2"]);
        let missing = Figure { a: None, ..figure };
        assert_eq!(missing.texts()[0], NONE);
    }

    #[test]
    fn the_ratio_is_that_of_b_to_a() {
        let figure = figure("", Better::Lower, Some(4.0), Some(10.0));
        assert_eq!(figure.ratio(), Some(2.5));
        assert_eq!(figure.ratio_text(), "2.50×");
    }

    #[test]
    fn each_kind_of_figure_has_its_direction() {
        let run = sample::spike(130, 1.0);
        let groups = of(&run, &run);
        let direction = |group: &str, name: &str| {
            let group = groups
                .iter()
                .find(|of| of.name.starts_with(group))
                .expect("the group");
            let figure = group
                .figures
                .iter()
                .find(|of| of.name == name)
                .expect("the figure");
            figure.better
        };
        assert_eq!(direction("counts", "completed, /s"), Better::Higher);
        assert_eq!(direction("counts", "refused"), Better::Lower);
        assert_eq!(direction("counts", "offered"), Better::Neither);
        assert_eq!(direction("counts", "Compensated"), Better::Neither);
        assert_eq!(direction("faults", "LOST"), Better::Lower);
        assert_eq!(direction("times of all", "end to end, p99"), Better::Lower);
        assert_eq!(
            direction("times by phase", "spike: until acceptance, p50"),
            Better::Lower
        );
        assert_eq!(
            direction("times by tenant", "harbour: end to end, p99"),
            Better::Lower
        );
        assert_eq!(direction("CPU", "subject, all"), Better::Lower);
        assert_eq!(direction("CPU", "load, loadtest"), Better::Neither);
        assert_eq!(direction("resident", "servers, kafka"), Better::Lower);
    }

    #[test]
    fn processes_and_states_of_only_one_run_are_shown() {
        let a = sample::spike(130, 1.0);
        let mut b = sample::spike(130, 1.0);
        b.processes[1].name = "another".to_owned();
        b.states.insert("Cancelled".to_owned(), 4);
        let figures: Vec<Figure> = of(&a, &b)
            .into_iter()
            .flat_map(|group| group.figures)
            .collect();
        let values = |name: &str| {
            let figure = figures
                .iter()
                .find(|figure| figure.name == name)
                .expect("the figure");
            (figure.a, figure.b)
        };
        assert_eq!(values("servers, kafka"), (Some(241.0), None));
        assert_eq!(values("servers, another"), (None, Some(241.0)));
        assert_eq!(values("Cancelled"), (Some(0.0), Some(4.0)));
    }

    #[test]
    fn a_run_not_followed_to_its_end_has_no_completion_rate() {
        let mut run = sample::spike(130, 1.0);
        assert_eq!(completed_of(&run), Some(run.accepted - 57));
        run.states.remove("Processed");
        assert_eq!(completed_of(&run), Some(0));
        run.states.clear();
        assert_eq!(completed_of(&run), None);
    }

    #[test]
    fn groups_without_figures_are_left_out() {
        let (a, b) = (sample::empty(), sample::empty());
        let names: Vec<&str> = of(&a, &b).iter().map(|group| group.name).collect();
        assert_eq!(names, ["counts", "times of all, ms"]);
    }
}
