//! The plots of one run, and of two runs overlaid.

use super::axis::{Scale, Unit};
use super::plot::{Band, Colour, Line, LineStyle, Plot, Source, Stroke};
use crate::model::{Part, Percentiles, Run, Sample};

/// The number of processes that have their own line.
const PROCESSES_MAX: usize = 8;

const COLOURS: [Colour; 5] = [
    Colour::Blue,
    Colour::Ochre,
    Colour::Green,
    Colour::Plum,
    Colour::Grey,
];
const STROKES: [Stroke; 5] = [
    Stroke::Solid,
    Stroke::Dashed,
    Stroke::DashDotted,
    Stroke::LongDashed,
    Stroke::Dotted,
];

const LAG: &str = "Lag: accepted, but not ended";

type Value<'a> = Box<dyn Fn(&Sample) -> Option<f64> + 'a>;
type ValueOf = fn(&Run) -> Value<'_>;
type Distribution = fn(&Sample) -> Option<Percentiles>;
type Which = fn(&Percentiles) -> f64;

const DISTRIBUTIONS: [(&str, Distribution); 2] = [
    ("Time until acceptance", |sample| sample.acceptance_ms),
    ("Time end to end", |sample| sample.end_to_end_ms),
];

/// The plots of one run.
pub fn of_run(run: &Run) -> Vec<Plot> {
    let sheet = Sheet { runs: vec![run] };
    let mut plots = vec![
        sheet.plot("Throughput", Scale::Linear, Unit::PerSecond, |_, run| {
            vec![
                line(
                    "accepted",
                    Colour::Blue,
                    Stroke::Solid,
                    rate(run, |s| s.accepted),
                ),
                line(
                    "ended",
                    Colour::Green,
                    Stroke::LongDashed,
                    rate(run, |s| s.ended),
                ),
                // Drawn over the accepted ones, which hide it if both are equal.
                line(
                    "offered",
                    Colour::Grey,
                    Stroke::Dashed,
                    rate(run, |s| s.offered),
                ),
            ]
        }),
        sheet.plot(LAG, Scale::Linear, Unit::Count, |_, run| {
            let open = |sample: &Sample| Some(sample.open as f64);
            vec![line("open", Colour::Blue, Stroke::Solid, each(run, open))]
        }),
    ];
    for (title, of) in DISTRIBUTIONS {
        plots.push(sheet.plot(title, Scale::Log, Unit::Ms, |_, run| {
            let lines: [(_, _, _, Which); 3] = [
                ("p50", Colour::Blue, Stroke::Solid, |times| times.p50),
                ("p99", Colour::Ochre, Stroke::Dashed, |times| times.p99),
                ("max", Colour::Grey, Stroke::Dotted, |times| times.max),
            ];
            let lines = lines.into_iter().map(|(name, colour, stroke, which)| {
                line(
                    name,
                    colour,
                    stroke,
                    each(run, |sample| of(sample).map(|t| which(&t))),
                )
            });
            lines.collect()
        }));
    }
    plots.push(
        sheet.plot("CPU by process", Scale::Linear, Unit::Cores, |_, run| {
            by_process(run, |sample| &sample.cpu_cores)
        }),
    );
    plots.push(sheet.plot(
        "Resident memory by process",
        Scale::Linear,
        Unit::Mib,
        |_, run| by_process(run, |sample| &sample.resident_mib),
    ));
    for plot in plots.iter_mut().rev().take(2) {
        plot.omitted = run.processes.len().saturating_sub(PROCESSES_MAX);
    }
    plots
}

/// The overlaid plots of two runs, with lines named A and B.
pub fn of_pair(a: &Run, b: &Run) -> Vec<Plot> {
    let sheet = Sheet { runs: vec![a, b] };
    let single: [(_, _, ValueOf); 8] = [
        ("Offered", Unit::PerSecond, |_| {
            Box::new(|s| per_second(s, s.offered))
        }),
        ("Accepted", Unit::PerSecond, |_| {
            Box::new(|s| per_second(s, s.accepted))
        }),
        ("Ended", Unit::PerSecond, |_| {
            Box::new(|s| per_second(s, s.ended))
        }),
        (LAG, Unit::Count, |_| Box::new(|s| Some(s.open as f64))),
        ("CPU of the subject", Unit::Cores, |run| {
            sum(run, true, |s| &s.cpu_cores)
        }),
        ("CPU of everything else", Unit::Cores, |run| {
            sum(run, false, |s| &s.cpu_cores)
        }),
        ("Resident memory of the subject", Unit::Mib, |run| {
            sum(run, true, |s| &s.resident_mib)
        }),
        ("Resident memory of everything else", Unit::Mib, |run| {
            sum(run, false, |s| &s.resident_mib)
        }),
    ];
    let mut plots: Vec<Plot> = single
        .into_iter()
        .map(|(title, unit, of)| {
            sheet.plot(title, Scale::Linear, unit, |at, run| {
                let (name, colour, stroke) = SIDES[at];
                vec![line(name, colour, stroke, each(run, of(run)))]
            })
        })
        .collect();
    for (title, of) in DISTRIBUTIONS.into_iter().rev() {
        let plot = sheet.plot(title, Scale::Log, Unit::Ms, |at, run| {
            let (side, colour, stroke) = SIDES[at];
            let other = [Stroke::DashDotted, Stroke::Dotted][at];
            let p50 = each(run, |sample| of(sample).map(|times| times.p50));
            let p99 = each(run, |sample| of(sample).map(|times| times.p99));
            vec![
                line(format!("{side} p50"), colour, other, p50),
                line(format!("{side} p99"), colour, stroke, p99),
            ]
        });
        // After the counts and before CPU and memory.
        plots.insert(4, plot);
    }
    plots
}

const SIDES: [(&str, Colour, Stroke); 2] = [
    ("A", Colour::Ochre, Stroke::Dashed),
    ("B", Colour::Blue, Stroke::Solid),
];

/// Plots that share times and phases.
struct Sheet<'a> {
    runs: Vec<&'a Run>,
}

impl Sheet<'_> {
    fn plot(
        &self,
        title: &'static str,
        scale: Scale,
        unit: Unit,
        lines: impl Fn(usize, &Run) -> Vec<Line>,
    ) -> Plot {
        let seconds = self.runs.iter().map(|run| seconds(run)).fold(0.0, f64::max);
        // Different phases are not overlaid: only those of the first run are drawn.
        let phases = self.runs.first().map(|run| bands(run)).unwrap_or_default();
        let sources = self.runs.iter().enumerate().map(|(at, run)| Source {
            times: run.samples.iter().map(|sample| sample.at_seconds).collect(),
            lines: lines(at, run),
        });
        Plot {
            title,
            scale,
            unit,
            seconds,
            phases,
            sources: sources.collect(),
            omitted: 0,
        }
    }
}

fn seconds(run: &Run) -> f64 {
    let phases = run
        .phases
        .iter()
        .map(|phase| phase.from_seconds + phase.seconds);
    let samples = run.samples.iter().map(|sample| sample.at_seconds);
    phases.chain(samples).fold(0.0, f64::max)
}

fn bands(run: &Run) -> Vec<Band> {
    let bands = run.phases.iter().map(|phase| Band {
        name: phase.name.clone(),
        from_seconds: phase.from_seconds,
        to_seconds: phase.from_seconds + phase.seconds,
    });
    bands.collect()
}

/// The lines of the processes with the highest peaks, in order of the processes.
fn by_process(run: &Run, of: fn(&Sample) -> &Vec<f64>) -> Vec<Line> {
    let values = |at: usize| each(run, |sample| of(sample).get(at).copied());
    let peak = |at: usize| values(at).into_iter().flatten().fold(0.0, f64::max);
    let mut shown: Vec<usize> = (0..run.processes.len()).collect();
    shown.sort_by(|one, other| peak(*other).total_cmp(&peak(*one)));
    shown.truncate(PROCESSES_MAX);
    shown.sort_unstable();
    let lines = shown.into_iter().map(|at| {
        // After the last colour, strokes are combined with colours differently, so that no two
        // lines look alike.
        let colour = COLOURS[at % COLOURS.len()];
        let stroke = STROKES[(at + at / COLOURS.len()) % STROKES.len()];
        line(run.processes[at].name.clone(), colour, stroke, values(at))
    });
    lines.collect()
}

fn sum(run: &Run, is_subject: bool, of: fn(&Sample) -> &Vec<f64>) -> Value<'_> {
    let is_of_it = move |at: usize| {
        let part = run.processes.get(at).map(|process| process.part);
        part.is_some_and(|part| (part == Part::Subject) == is_subject)
    };
    Box::new(move |sample| {
        let values = of(sample).iter().enumerate();
        values
            .filter(|(at, _)| is_of_it(*at))
            .map(|(_, value)| *value)
            .reduce(|a, b| a + b)
    })
}

fn line(name: impl Into<String>, colour: Colour, stroke: Stroke, values: Vec<Option<f64>>) -> Line {
    Line {
        name: name.into(),
        style: LineStyle { colour, stroke },
        values,
    }
}

fn rate(run: &Run, of: fn(&Sample) -> u64) -> Vec<Option<f64>> {
    each(run, |sample| per_second(sample, of(sample)))
}

fn per_second(sample: &Sample, count: u64) -> Option<f64> {
    super::number::per_second(count, sample.seconds)
}

fn each(run: &Run, of: impl Fn(&Sample) -> Option<f64>) -> Vec<Option<f64>> {
    run.samples.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::sample;

    #[test]
    fn lines_of_a_plot_are_distinguishable() {
        let mut run = sample::spike(130, 1.0);
        while run.processes.len() < PROCESSES_MAX {
            run.processes.push(sample::process("another", Part::Server));
        }
        for plot in of_run(&run).into_iter().chain(of_pair(&run, &run)) {
            let lines: Vec<&Line> = plot
                .sources
                .iter()
                .flat_map(|source| &source.lines)
                .collect();
            assert!(!lines.is_empty());
            for (at, line) in lines.iter().enumerate() {
                let same = lines[..at].iter().filter(|other| other.style == line.style);
                assert_eq!(same.count(), 0, "{}: {}", plot.title, line.name);
            }
        }
    }

    #[test]
    fn of_many_processes_those_with_the_highest_peaks_are_drawn_and_the_others_counted() {
        let mut run = sample::spike(130, 1.0);
        for number in 0..PROCESSES_MAX {
            run.processes
                .push(sample::process(&number.to_string(), Part::Server));
        }
        for sample in &mut run.samples {
            sample.cpu_cores.extend([0.0; PROCESSES_MAX]);
        }
        run.samples[7].cpu_cores[11] = 0.5;
        let plots = of_run(&run);
        let cpu = plots
            .iter()
            .find(|plot| plot.title == "CPU by process")
            .expect("the plot");
        let names: Vec<&str> = cpu.sources[0]
            .lines
            .iter()
            .map(|line| &*line.name)
            .collect();
        assert_eq!(
            names,
            [
                "waybill", "kafka", "services", "loadtest", "0", "1", "2", "7"
            ]
        );
        assert_eq!(cpu.omitted, 4);
    }

    #[test]
    fn strokes_differ_while_enough_exist() {
        let run = sample::spike(130, 1.0);
        for plot in of_run(&run).into_iter().chain(of_pair(&run, &run)) {
            let lines = plot.sources.iter().flat_map(|source| &source.lines);
            let strokes: Vec<Stroke> = lines.map(|line| line.style.stroke).collect();
            for (at, stroke) in strokes.iter().enumerate() {
                assert!(!strokes[..at].contains(stroke), "{}", plot.title);
            }
        }
    }

    #[test]
    fn counts_are_drawn_as_rates_of_the_time_that_their_sample_took() {
        let mut run = sample::spike(130, 1.0);
        run.samples.truncate(2);
        run.samples[0].seconds = 0.5;
        run.samples[0].accepted = 100;
        run.samples[1].seconds = 0.0;
        let plots = of_run(&run);
        let accepted = &plots[0].sources[0].lines[0];
        assert_eq!(accepted.values, [Some(200.0), None]);
    }

    #[test]
    fn the_subject_is_summed_separately() {
        let run = sample::spike(130, 1.0);
        let of = &run.samples[0].cpu_cores;
        let subject = sum(&run, true, |sample| &sample.cpu_cores)(&run.samples[0]);
        let others = sum(&run, false, |sample| &sample.cpu_cores)(&run.samples[0]);
        assert_eq!(subject, Some(of[0]));
        assert_eq!(others, Some(of[1] + of[2] + of[3]));
    }
}
