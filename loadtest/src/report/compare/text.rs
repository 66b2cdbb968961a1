//! The comparison as text.

use std::fmt::Write as _;

use super::{Comparison, Pair};
use crate::report::html::{machine, moment};

/// The text, with the names of the two files.
pub fn write(comparison: &Comparison<'_>, names: &[String; 2]) -> String {
    let mut text = String::new();
    let reports = [comparison.a, comparison.b];
    for ((side, name), report) in ["A", "B"].iter().zip(names).zip(reports) {
        let name = printable(name);
        let on = printable(&machine(&report.machine));
        let begun = printable(&moment(&report.begun));
        line(&mut text, &format!("{side}  {name}: {begun}, {on}"));
    }
    for warning in comparison.all_warnings() {
        line(&mut text, &format!("WARNING: {}", printable(&warning)));
    }
    if comparison.pairs.is_empty() {
        line(
            &mut text,
            "\nNo run of A has the same scenario and system as a run of B.",
        );
    }
    for pair in &comparison.pairs {
        self::pair(&mut text, pair);
    }
    text
}

fn pair(text: &mut String, pair: &Pair<'_>) {
    line(text, &format!("\n{}", printable(&pair.name())));
    for warning in &pair.warnings {
        line(text, &format!("  WARNING: {}", printable(warning)));
    }
    let figures = || pair.groups.iter().flat_map(|group| &group.figures);
    let names = figures().map(|figure| printable(&figure.name).chars().count());
    let width = names.max().unwrap_or(0).max(20);
    for group in &pair.groups {
        let name = group.name;
        line(
            text,
            &format!("  {name:<width$}  {:>10}  {:>10}  {:>8}", "A", "B", "B/A"),
        );
        for figure in &group.figures {
            let name = printable(&figure.name);
            let [a, b] = figure.texts();
            let (ratio, word) = (figure.ratio_text(), figure.outcome().word());
            let row = format!("    {name:<width$}{a:>10}  {b:>10}  {ratio:>8}  {word}");
            line(text, row.trim_end());
        }
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string takes everything");
}

/// Replaces characters that a terminal would interpret as commands.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
