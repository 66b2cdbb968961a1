//! The report as one self-contained page. It fetches nothing, and without its script it lacks only
//! the values under the pointer. All text from a report is escaped (`markup`).

mod axis;
pub mod markup;
pub mod number;
mod plot;
pub mod plots;
mod run;
#[cfg(test)]
pub mod sample;
pub mod table;
mod thin;
pub mod usage;

use self::markup::Markup;
use self::number::{count, measure, measure_of, per_second, percentile};
use self::table::{Head, Tone, badge, head, table};
use crate::model::{Goal, Machine, Part, Report, Run};

pub use self::run::{badges, refused_of};

/// The state of a successful operation.
const COMPLETED: &str = "Processed";
const TWO: &[&str] = &["p50", "p99"];

/// The page of a report.
pub fn page(report: &Report) -> String {
    document("Load test", |page| {
        page.element("header", &[], |header| {
            header.leaf("h1", &[], "Load test");
            header.element("p", &[("class", &"about")], |about| {
                about.leaf(
                    "time",
                    &[("datetime", &report.begun)],
                    moment(&report.begun),
                );
                about.leaf("span", &[], machine(&report.machine));
            });
        });
        if !report.goals.is_empty() {
            page.leaf("h2", &[], "Goals");
            goals(page, &report.goals);
        }
        page.leaf("h2", &[], "Runs");
        if report.runs.is_empty() {
            page.leaf("p", &[("class", &"none")], "No runs.");
            return;
        }
        summary(page, &report.runs);
        let note = "The subject's CPU is per delivery; its memory is the maximum seen.";
        page.leaf("p", &[("class", &"note")], note);
        for (number, run) in report.runs.iter().enumerate() {
            run::write(page, run, number + 1);
        }
    })
}

/// A whole page with this title.
pub fn document(title: &str, content: impl FnOnce(&mut Markup)) -> String {
    let mut page = Markup::default();
    page.own("<!DOCTYPE html>\n");
    page.element("html", &[("lang", &"en")], |html| {
        html.element("head", &[], |head| {
            head.own(concat!(
                "<meta charset=\"utf-8\"/>",
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>",
                "<meta name=\"color-scheme\" content=\"light dark\"/>",
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; ",
                "style-src &#39;unsafe-inline&#39;; script-src &#39;unsafe-inline&#39;\"/>",
            ));
            head.leaf("title", &[], title);
            head.own(concat!("<style>\n", include_str!("html/style.css"), "</style>"));
        });
        html.element("body", &[], |body| {
            body.element("main", &[], content);
            body.own(concat!("<script>\n", include_str!("html/hover.js"), "</script>"));
        });
    });
    page.into_string()
}

/// The machine of a report, in one line.
pub fn machine(machine: &Machine) -> String {
    let Machine {
        cpu,
        cores,
        memory_mib,
        system,
    } = machine;
    let cores_word = if *cores == 1 { "core" } else { "cores" };
    format!(
        "{cpu}, {cores} {cores_word}, {} MiB of memory, {system}",
        count(*memory_mib)
    )
}

/// A time for people, if it is RFC 3339 in UTC.
pub fn moment(moment: &str) -> String {
    match moment
        .strip_suffix('Z')
        .and_then(|moment| moment.split_once('T'))
    {
        Some((day, time)) => format!("{day} {} UTC", time.split('.').next().unwrap_or(time)),
        None => moment.to_owned(),
    }
}

/// Successful operations; `None` if none was followed to its end.
pub fn completed_of(run: &Run) -> Option<u64> {
    let completed = run.states.get(COMPLETED).copied();
    (!run.states.is_empty()).then(|| completed.unwrap_or(0))
}

fn goals(page: &mut Markup, goals: &[Goal]) {
    let heads = ["work", "goal", "measured", "reached"].map(head);
    table(
        page,
        "Goals, and how far they were reached",
        4,
        &heads,
        |rows| {
            rows.body(|rows| {
                for goal in goals {
                    rows.row("", |row| {
                        row.cell(&goal.work);
                        row.cell(&goal.goal);
                        row.cell(&goal.measured);
                        row.with(|cell| reached(cell, goal.ratio));
                    });
                }
            });
        },
    );
}

/// Writes the share of a goal that was reached: a bar with a mark at 100 %, and a word.
fn reached(page: &mut Markup, ratio: Option<f64>) {
    let Some(ratio) = ratio else {
        badge(page, Tone::Neutral, "not measured");
        return;
    };
    let (tone, word) = if ratio >= 1.0 {
        (Tone::Good, "met")
    } else {
        (Tone::Bad, "missed")
    };
    // The mark is at two thirds, so that there is space for more than 100 %.
    let width = format!("width:{:.1}%", (ratio / 1.5).clamp(0.0, 1.0) * 100.0);
    page.element("span", &[("class", &"reached")], |reached| {
        reached.element(
            "span",
            &[("class", &"bar goal"), ("aria-hidden", &"true")],
            |bar| {
                bar.leaf("span", &[("style", &width)], "");
            },
        );
        reached.leaf(
            "span",
            &[("class", &"ratio")],
            format_args!("{}×", measure(ratio)),
        );
        badge(reached, tone, word);
    });
}

fn summary(page: &mut Markup, runs: &[Run]) {
    let heads = [
        head("scenario"),
        head("system"),
        head("outcome"),
        head("offered"),
        head("accepted"),
        head("refused"),
        head("completed, /s"),
        Head {
            title: "until acceptance, ms",
            columns: TWO,
        },
        Head {
            title: "end to end, ms",
            columns: TWO,
        },
        Head {
            title: "subject",
            columns: &["CPU, µs", "MiB"],
        },
    ];
    table(page, "All runs", 3, &heads, |rows| {
        rows.body(|rows| {
            for (number, run) in runs.iter().enumerate() {
                rows.row("", |row| {
                    row.with(|cell| {
                        let target = format!("#run-{}", number + 1);
                        cell.leaf("a", &[("href", &target)], &run.scenario);
                    });
                    row.cell(&run.system);
                    row.with(|cell| badges(cell, run));
                    row.cell(count(run.offered));
                    row.cell(count(run.accepted));
                    row.cell(count(refused_of(run)));
                    let completed = completed_of(run);
                    let rate = completed.and_then(|count| per_second(count, run.ending_seconds));
                    row.cell(measure_of(rate));
                    for times in [&run.acceptance_ms, &run.end_to_end_ms] {
                        row.cell(percentile(times.as_ref(), |times| times.p50));
                        row.cell(percentile(times.as_ref(), |times| times.p99));
                    }
                    row.cell(measure_of(run.cpu_us(Part::Subject)));
                    row.cell(measure_of(run.subject_memory_mib_max()));
                });
            }
        });
    });
}

#[cfg(test)]
mod tests;
