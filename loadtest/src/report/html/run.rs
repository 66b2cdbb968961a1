//! The section of the page about one run.

use std::fmt::Display;

use super::markup::Markup;
use super::number::{NONE, count, measure, per_second, percentile, plain};
use super::table::{Head, Row, Tone, badge, head, table};
use super::{plots, usage};
use crate::model::{BreakingPoint, KindOutcome, Percentiles, Phase, Run, Tenant};
use crate::verdict::{Findings, Verdict};

/// The maximum number of tenants in the table.
const TENANTS_MAX: usize = 50;
const THREE: &[&str] = &["p50", "p99", "max"];

/// Writes the section of a run; `number` is its number on the page.
pub fn write(page: &mut Markup, run: &Run, number: usize) {
    let id = format!("run-{number}");
    page.element("section", &[("id", &id), ("class", &"run")], |section| {
        section.element("h2", &[], |title| {
            title.text(&run.scenario);
            title.leaf("span", &[("class", &"on")], " on ");
            title.text(&run.system);
        });
        section.element("p", &[("class", &"about")], |about| {
            badges(about, run);
            let transport = &run.transport;
            about.leaf(
                "span",
                &[],
                format_args!("sent as {transport}, seed {}", run.seed),
            );
        });
        findings(section, run);
        figures(section, run);
        percentiles(section, run);
        section.leaf("h3", &[], "Over time");
        if run.samples.is_empty() {
            let nothing = "No samples were taken, so there is nothing to plot.";
            section.leaf("p", &[("class", &"none")], nothing);
        } else {
            section.element("div", &[("class", &"plots")], |grid| {
                for (at, plot) in plots::of_run(run).iter().enumerate() {
                    plot.write(grid, format_args!("{id}-plot-{at}"));
                }
            });
        }
        section.leaf("h3", &[], "Phases");
        phases(section, &run.phases);
        if let Some(breaking) = &run.breaking_point {
            section.leaf("p", &[], breaking_point(breaking));
        }
        if !run.kinds.is_empty() {
            section.leaf("h3", &[], "Kinds of requests");
            request_kinds(section, &run.kinds);
        }
        if !run.tenants.is_empty() {
            section.leaf("h3", &[], "Tenants");
            tenants(section, &run.tenants);
        }
        section.leaf("h3", &[], "CPU and memory");
        usage::write(section, run);
    });
}

/// Writes the result of a run in a few words.
pub fn badges(page: &mut Markup, run: &Run) {
    if !run.failures.is_empty() {
        badge(page, Tone::Bad, "FAILED");
    }
    match &run.verdict {
        Some(verdict) => {
            if verdict.is_balanced() {
                badge(page, Tone::Good, "BALANCED");
            }
            for (tone, name, findings) in kinds(verdict) {
                badge(
                    page,
                    tone,
                    format_args!("{name} {}", count(findings.count as u64)),
                );
            }
        }
        None => badge(page, Tone::Neutral, "not judged"),
    }
}

fn kinds(verdict: &Verdict) -> impl Iterator<Item = (Tone, &'static str, &Findings)> {
    let kinds = [
        (Tone::Bad, "LOST", &verdict.lost),
        (Tone::Bad, "DOUBLE", &verdict.double),
        (Tone::Bad, "HALF-UNDONE", &verdict.half_undone),
        (Tone::Neutral, "parked", &verdict.parked),
    ];
    kinds
        .into_iter()
        .filter(|(_, _, findings)| findings.count > 0)
}

/// Writes the failures, with examples.
fn findings(page: &mut Markup, run: &Run) {
    if !run.failures.is_empty() {
        page.element("div", &[("class", &"finding bad")], |finding| {
            finding.leaf("h3", &[], "Failures");
            list(finding, &run.failures);
        });
    }
    for (tone, name, findings) in run.verdict.iter().flat_map(kinds) {
        let class = if tone == Tone::Bad {
            "finding bad"
        } else {
            "finding"
        };
        page.element("div", &[("class", &class)], |finding| {
            let all = findings.count;
            let shown = findings.examples.len();
            finding.element("h3", &[], |title| {
                title.text(format_args!("{name}: {}", count(all as u64)));
                if shown < all {
                    title.leaf(
                        "span",
                        &[("class", &"on")],
                        format_args!(", of which {shown}:"),
                    );
                }
            });
            finding.element("div", &[("class", &"examples")], |examples| {
                list(examples, &findings.examples);
            });
        });
    }
}

fn list(page: &mut Markup, items: &[String]) {
    if !items.is_empty() {
        page.element("ul", &[], |list| {
            for item in items {
                list.leaf("li", &[], item);
            }
        });
    }
}

/// Writes the counts.
fn figures(page: &mut Markup, run: &Run) {
    page.element("dl", &[("class", &"figures")], |figures| {
        let rate = |count, seconds| {
            per_second(count, seconds).map_or(NONE.to_owned(), |rate| {
                format!(
                    "{}/s over {} s",
                    measure(rate),
                    plain((seconds * 10.0).round() / 10.0)
                )
            })
        };
        figure(figures, "offered", count(run.offered), "");
        let accepted = rate(run.accepted, run.accepting_seconds);
        figure(figures, "accepted", count(run.accepted), accepted);
        let refused = run.refused.iter().map(|(status, times)| {
            let status = if status == "none" {
                "no answer"
            } else {
                status
            };
            format!("{status}: {}", count(*times))
        });
        let refused: Vec<String> = refused.collect();
        figure(
            figures,
            "refused",
            count(refused_of(run)),
            refused.join(", "),
        );
        for (state, times) in &run.states {
            figure(
                figures,
                state,
                count(*times),
                rate(*times, run.ending_seconds),
            );
        }
        figure(figures, "still open", count(run.open), "");
        if let Some(verdict) = &run.verdict {
            let by = "by the services' ledger";
            figure(figures, "judged", count(verdict.judged as u64), by);
        }
    });
}

fn figure(page: &mut Markup, name: impl Display, value: impl Display, note: impl Display) {
    page.element("div", &[], |figure| {
        figure.leaf("dt", &[], name);
        figure.element("dd", &[], |figures| {
            figures.leaf("b", &[], value);
            figures.leaf("span", &[], note);
        });
    });
}

/// The number of requests that were not accepted.
pub fn refused_of(run: &Run) -> u64 {
    run.refused.values().sum()
}

fn percentiles(page: &mut Markup, run: &Run) {
    let heads = ["", "p50", "p90", "p99", "p99.9", "max"].map(head);
    let rows_of = [
        ("until acceptance", run.acceptance_ms.as_ref()),
        ("end to end", run.end_to_end_ms.as_ref()),
    ];
    table(
        page,
        "Times from the intended one, in ms",
        1,
        &heads,
        |rows| {
            rows.body(|rows| {
                for (name, of) in rows_of {
                    rows.row("", |row| {
                        row.cell(name);
                        row.cell(percentile(of, |times| times.p50));
                        row.cell(percentile(of, |times| times.p90));
                        row.cell(percentile(of, |times| times.p99));
                        row.cell(percentile(of, |times| times.p999));
                        row.cell(percentile(of, |times| times.max));
                    });
                }
            });
        },
    );
}

fn phases(page: &mut Markup, phases: &[Phase]) {
    if phases.is_empty() {
        page.leaf("p", &[("class", &"none")], "The scenario has no phases.");
        return;
    }
    let heads = [
        head("phase"),
        head("from, s"),
        head("for, s"),
        head("rate, /s"),
        head("offered"),
        head("accepted"),
        Head {
            title: "until acceptance, ms",
            columns: THREE,
        },
        Head {
            title: "end to end, ms",
            columns: THREE,
        },
    ];
    table(
        page,
        "Offered requests by phase, and their results",
        1,
        &heads,
        |rows| {
            rows.body(|rows| {
                for phase in phases {
                    rows.row("", |row| {
                        row.cell(&phase.name);
                        row.cell(plain(phase.from_seconds));
                        row.cell(plain(phase.seconds));
                        row.cell(rate_of(phase));
                        row.cell(count(phase.offered));
                        row.cell(count(phase.accepted));
                        three(row, phase.acceptance_ms.as_ref());
                        three(row, phase.end_to_end_ms.as_ref());
                    });
                }
            });
        },
    );
}

fn rate_of(phase: &Phase) -> String {
    if phase.rate == phase.rate_end {
        measure(phase.rate)
    } else {
        format!("{} → {}", measure(phase.rate), measure(phase.rate_end))
    }
}

fn breaking_point(breaking: &BreakingPoint) -> String {
    let held = measure(breaking.rate);
    match (breaking.broke_at, &breaking.because) {
        (Some(at), Some(because)) => {
            format!(
                "Breaking point: {held}/s held, {}/s did not: {because}.",
                measure(at)
            )
        }
        (Some(at), None) => format!("Breaking point: {held}/s held, {}/s did not.", measure(at)),
        (None, _) => format!("No breaking point was reached: {held}/s held."),
    }
}

fn request_kinds(page: &mut Markup, kinds: &[KindOutcome]) {
    let heads = [
        head("kind"),
        head("with a required end"),
        head("ended as required"),
        head("otherwise"),
        Head {
            title: "end to end, ms",
            columns: THREE,
        },
    ];
    let caption = "Required and actual ends of requests, by kind";
    table(page, caption, 1, &heads, |rows| {
        rows.body(|rows| {
            for kind in kinds {
                rows.row("", |row| {
                    match kind.is_bad {
                        true => row.cell(format_args!("{} (bad input)", kind.name)),
                        false => row.cell(&kind.name),
                    }
                    row.cell(count(kind.held_to));
                    row.cell(count(kind.as_meant));
                    row.cell(count(kind.held_to.saturating_sub(kind.as_meant)));
                    three(row, kind.end_to_end_ms.as_ref());
                });
            }
        });
    });
}

fn tenants(page: &mut Markup, tenants: &[Tenant]) {
    let heads = [
        head("tenant"),
        head("offered"),
        head("accepted"),
        Head {
            title: "until acceptance, ms",
            columns: THREE,
        },
        Head {
            title: "end to end, ms",
            columns: THREE,
        },
    ];
    table(page, "Results by tenant", 1, &heads, |rows| {
        rows.body(|rows| {
            for tenant in tenants.iter().take(TENANTS_MAX) {
                rows.row("", |row| {
                    row.cell(&tenant.name);
                    row.cell(count(tenant.offered));
                    row.cell(count(tenant.accepted));
                    three(row, tenant.acceptance_ms.as_ref());
                    three(row, tenant.end_to_end_ms.as_ref());
                });
            }
        });
    });
    if let Some(more) = tenants
        .len()
        .checked_sub(TENANTS_MAX)
        .filter(|more| *more > 0)
    {
        let more = format_args!(
            "{} more tenants are in the report's JSON.",
            count(more as u64)
        );
        page.leaf("p", &[("class", &"none")], more);
    }
}

fn three(row: &mut Row<'_>, of: Option<&Percentiles>) {
    row.cell(percentile(of, |times| times.p50));
    row.cell(percentile(of, |times| times.p99));
    row.cell(percentile(of, |times| times.max));
}
