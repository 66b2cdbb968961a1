//! CPU and memory of a run's processes, as tables with bars.

use super::markup::Markup;
use super::number::{NONE, count, measure};
use super::table::{head, table};
use crate::model::{Part, Process, Run};

const PARTS: [Part; 4] = [Part::Subject, Part::Server, Part::Services, Part::Load];

/// Groups of threads with a smaller share of their process's CPU are shown together.
const SHARE_MIN: f64 = 0.01;

/// The name of a part.
pub const fn part_name(part: Part) -> &'static str {
    match part {
        Part::Subject => "subject",
        Part::Server => "servers",
        Part::Services => "services",
        Part::Load => "load",
    }
}

/// Writes the CPU per delivery, by part, process and group of threads.
pub fn write(page: &mut Markup, run: &Run) {
    if run.processes.is_empty() {
        page.leaf("p", &[("class", &"none")], "No process was watched.");
        return;
    }
    let most = run
        .processes
        .iter()
        .map(|process| process.cpu_us_per_delivery)
        .fold(0.0, f64::max);
    let heads = [
        head("process"),
        head("CPU"),
        head("µs"),
        head("MiB before"),
        head("MiB at most"),
    ];
    table(
        page,
        "CPU for each delivery, and resident memory",
        2,
        &heads,
        |rows| {
            for part in PARTS {
                let of_part: Vec<&Process> = run
                    .processes
                    .iter()
                    .filter(|process| process.part == part)
                    .collect();
                if of_part.is_empty() {
                    continue;
                }
                rows.body(|rows| {
                    rows.row("part", |row| {
                        row.cell(part_name(part));
                        row.cell("");
                        row.cell(run.cpu_us(part).map_or(NONE.to_owned(), measure));
                        row.cell("");
                        row.cell("");
                    });
                    for process in &of_part {
                        rows.row("process", |row| {
                            row.cell(&process.name);
                            row.with(|cell| bar(cell, process.cpu_us_per_delivery, most));
                            row.cell(measure(process.cpu_us_per_delivery));
                            row.cell(mib(process.resident_mib_before));
                            row.cell(mib(process.resident_mib_max));
                        });
                        for (name, micros) in threads(process) {
                            rows.row("thread", |row| {
                                row.cell(name);
                                row.with(|cell| bar(cell, micros, most));
                                row.cell(measure(micros));
                                row.cell("");
                                row.cell("");
                            });
                        }
                    }
                });
            }
        },
    );
}

/// The groups of threads with the highest usage first, and the small ones together.
fn threads(process: &Process) -> Vec<(String, f64)> {
    let least = process.cpu_us_per_delivery * SHARE_MIN;
    let (mut shown, small): (Vec<_>, Vec<_>) = process
        .cpu_us_by_threads
        .iter()
        .map(|(name, micros)| (name.clone(), *micros))
        .partition(|(_, micros)| *micros >= least && *micros > 0.0);
    shown.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let rest: f64 = small.iter().map(|(_, micros)| micros).sum();
    if rest > 0.0 {
        shown.push((format!("{} others", small.len()), rest));
    }
    shown
}

fn bar(page: &mut Markup, value: f64, most: f64) {
    let part = if most > 0.0 {
        (value / most).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let width = format!("width:{:.1}%", part * 100.0);
    page.element(
        "span",
        &[("class", &"bar"), ("aria-hidden", &"true")],
        |bar| {
            bar.leaf("span", &[("style", &width)], "");
        },
    );
}

fn mib(value: f64) -> String {
    if value.is_finite() && value >= 0.0 {
        count(value.round() as u64)
    } else {
        NONE.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::sample;

    #[test]
    fn threads_that_use_little_are_shown_together() {
        let mut process = sample::process("p", Part::Subject);
        process.cpu_us_per_delivery = 100.0;
        let threads_of = [("a", 30.0), ("b", 69.0), ("c", 0.6), ("d", 0.4)];
        process.cpu_us_by_threads = threads_of
            .into_iter()
            .map(|(name, micros)| (name.to_owned(), micros))
            .collect();
        let names: Vec<String> = threads(&process)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["b", "a", "2 others"]);
    }

    #[test]
    fn parts_are_summed_separately() {
        let mut run = sample::spike(130, 1.0);
        run.processes.retain(|process| process.part != Part::Server);
        let mut second = sample::process("second", Part::Subject);
        second.cpu_us_per_delivery = 0.5;
        let first = run.processes[0].cpu_us_per_delivery;
        run.processes.push(second);
        assert_eq!(run.cpu_us(Part::Subject), Some(first + 0.5));
        assert_eq!(run.cpu_us(Part::Server), None);
    }
}
