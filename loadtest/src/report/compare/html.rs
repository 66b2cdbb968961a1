//! The comparison as a page, with the plots of both runs overlaid.

use std::fmt::Display;

use super::figures::Outcome;
use super::{Comparison, Pair};
use crate::report::html::markup::Markup;
use crate::report::html::table::{Tone, badge, head, table};
use crate::report::html::{badges, document, machine, moment, plots};

/// The page, with the names of the two files.
pub fn page(comparison: &Comparison<'_>, names: &[String; 2]) -> String {
    document("Comparison of load tests", |page| {
        page.element("header", &[], |header| {
            header.leaf("h1", &[], "Comparison of load tests");
            reports(header, comparison, names);
        });
        warnings(page, &comparison.all_warnings());
        if comparison.pairs.is_empty() {
            let nothing = "No run of A has the same scenario and system as a run of B.";
            page.leaf("p", &[("class", &"none")], nothing);
            return;
        }
        page.leaf("h2", &[], "Runs");
        summary(page, comparison);
        let note = "B/A is the ratio of B's figure to A's. Differences of up to 2% count as the \
                    same. One run of each does not show how much of a difference is chance.";
        page.leaf("p", &[("class", &"note")], note);
        for (number, of) in comparison.pairs.iter().enumerate() {
            pair(page, of, number + 1);
        }
    })
}

fn reports(page: &mut Markup, comparison: &Comparison<'_>, names: &[String; 2]) {
    let heads = ["", "report", "begun", "machine"].map(head);
    table(page, "The reports", 4, &heads, |rows| {
        rows.body(|rows| {
            let reports = [comparison.a, comparison.b];
            for ((side, name), report) in ["A", "B"].iter().zip(names).zip(reports) {
                rows.row("", |row| {
                    row.cell(side);
                    row.cell(name);
                    row.cell(moment(&report.begun));
                    row.cell(machine(&report.machine));
                });
            }
        });
    });
}

fn warnings(page: &mut Markup, warnings: &[String]) {
    if warnings.is_empty() {
        return;
    }
    page.element("div", &[("class", &"finding bad")], |finding| {
        finding.leaf("h3", &[], "Warnings");
        finding.element("ul", &[], |list| {
            for warning in warnings {
                list.leaf("li", &[], warning);
            }
        });
    });
}

/// Writes the number of better and worse figures of each pair.
fn summary(page: &mut Markup, comparison: &Comparison<'_>) {
    let heads = ["scenario", "system", "A", "B", "better", "same", "worse"].map(head);
    table(
        page,
        "How many figures of B are better or worse than those of A",
        4,
        &heads,
        |rows| {
            rows.body(|rows| {
                for (number, pair) in comparison.pairs.iter().enumerate() {
                    let figures = || pair.groups.iter().flat_map(|group| &group.figures);
                    let times = |outcome| figures().filter(|f| f.outcome() == outcome).count();
                    rows.row("", |row| {
                        row.with(|cell| {
                            let target = format!("#pair-{}", number + 1);
                            cell.leaf("a", &[("href", &target)], &pair.a.scenario);
                        });
                        row.cell(&pair.a.system);
                        row.with(|cell| badges(cell, pair.a));
                        row.with(|cell| badges(cell, pair.b));
                        for outcome in [Outcome::Better, Outcome::Same, Outcome::Worse] {
                            row.cell(times(outcome));
                        }
                    });
                }
            });
        },
    );
}

fn pair(page: &mut Markup, pair: &Pair<'_>, number: usize) {
    let id = format!("pair-{number}");
    page.element("section", &[("id", &id), ("class", &"run")], |section| {
        section.element("h2", &[], |title| {
            title.text(&pair.a.scenario);
            title.leaf("span", &[("class", &"on")], " on ");
            title.text(&pair.a.system);
        });
        warnings(section, &pair.warnings);
        section.leaf("h3", &[], "Over time");
        if pair.a.samples.is_empty() && pair.b.samples.is_empty() {
            let nothing = "No samples were taken, so there is nothing to plot.";
            section.leaf("p", &[("class", &"none")], nothing);
        } else {
            let whose = "The phases behind the lines are those of A.";
            section.leaf("p", &[("class", &"none")], whose);
            section.element("div", &[("class", &"plots")], |grid| {
                for (at, plot) in plots::of_pair(pair.a, pair.b).iter().enumerate() {
                    plot.write(grid, format_args!("{id}-plot-{at}"));
                }
            });
        }
        section.leaf("h3", &[], "Figures");
        figures(section, pair);
    });
}

fn figures(page: &mut Markup, pair: &Pair<'_>) {
    let heads = [
        head("figure"),
        head("A"),
        head("B"),
        head("B/A"),
        head("B is"),
    ];
    table(page, "Every figure of both", 1, &heads, |rows| {
        for group in &pair.groups {
            rows.body(|rows| {
                rows.row("part", |row| {
                    row.cell(group.name);
                    (0..4).for_each(|_| row.cell(""));
                });
                for figure in &group.figures {
                    rows.row("", |row| {
                        row.cell(&figure.name);
                        figure.texts().into_iter().for_each(|text| row.cell(text));
                        row.cell(figure.ratio_text());
                        row.with(|cell| outcome(cell, figure.outcome()));
                    });
                }
            });
        }
    });
}

fn outcome(page: &mut Markup, outcome: Outcome) {
    let word: &dyn Display = &outcome.word();
    match outcome {
        Outcome::Better => badge(page, Tone::Good, word),
        Outcome::Worse => badge(page, Tone::Bad, word),
        Outcome::Same => page.leaf("span", &[("class", &"on")], word),
        Outcome::None => {}
    }
}
