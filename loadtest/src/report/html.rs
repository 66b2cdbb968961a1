//! The report as a page for people.

use super::model::Report;

/// The page, which needs nothing beside itself.
#[must_use]
pub fn page(report: &Report) -> String {
    let runs = report.runs.iter().map(ToString::to_string);
    let text = runs.collect::<Vec<_>>().join("\n");
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    format!("<!doctype html><meta charset=\"utf-8\"><title>Load test</title><pre>{escaped}</pre>")
}
