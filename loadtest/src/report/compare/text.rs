//! The comparison as text.

use std::fmt::Write as _;

use super::{Comparison, Pair};
use crate::model::Machine;
use crate::report::number::count;

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

/// The machine of a report, in one line.
fn machine(machine: &Machine) -> String {
    let Machine {
        cpu,
        cores,
        memory_mib,
        system,
    } = machine;
    let cores_word = if *cores == 1 { "core" } else { "cores" };
    let memory = count(*memory_mib);
    format!("{cpu}, {cores} {cores_word}, {memory} MiB of memory, {system}")
}

/// A time for people, if it is RFC 3339 in UTC.
fn moment(moment: &str) -> String {
    match moment
        .strip_suffix('Z')
        .and_then(|moment| moment.split_once('T'))
    {
        Some((day, time)) => format!("{day} {} UTC", time.split('.').next().unwrap_or(time)),
        None => moment.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_in_utc_are_written_for_people_and_others_as_they_are() {
        assert_eq!(
            moment("2026-03-01T08:30:12.345Z"),
            "2026-03-01 08:30:12 UTC"
        );
        assert_eq!(
            moment("2026-03-01T08:30:12+01:00"),
            "2026-03-01T08:30:12+01:00"
        );
    }
}
