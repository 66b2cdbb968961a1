//! The comparison as a page, with the plots of both runs overlaid.

use serde::Serialize;

use super::{Comparison, Pair};
use crate::model::Machine;
use crate::report::page;

#[derive(Serialize)]
struct Data<'a> {
    comparison: Shown<'a>,
}

#[derive(Serialize)]
struct Shown<'a> {
    reports: Vec<Source<'a>>,
    warnings: Vec<String>,
    pairs: &'a [Pair<'a>],
}

/// A report of the comparison, without its runs.
#[derive(Serialize)]
struct Source<'a> {
    name: &'a str,
    begun: &'a str,
    machine: &'a Machine,
}

/// The page, with the names of the two files.
///
/// # Errors
///
/// If the comparison cannot be written as JSON.
pub fn page(comparison: &Comparison<'_>, names: &[String; 2]) -> serde_json::Result<String> {
    let reports = names.iter().zip([comparison.a, comparison.b]);
    let reports = reports.map(|(name, report)| Source {
        name,
        begun: &report.begun,
        machine: &report.machine,
    });
    let comparison = Shown {
        reports: reports.collect(),
        warnings: comparison.all_warnings(),
        pairs: &comparison.pairs,
    };
    page::page("Comparison of load tests", &Data { comparison })
}
