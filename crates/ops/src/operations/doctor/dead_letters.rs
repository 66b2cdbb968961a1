//! How many records the dead-letter topics hold, and which of these topics the login has no
//! permission to read.

use std::collections::BTreeMap;

use waybill_telemetry::visible::counted;

use super::Finding;
use crate::topics::Site;

/// The subject of the findings.
pub(super) const DEAD_LETTERS: &str = "dead letters";
/// The maximum number of topics that a finding names.
const TOPICS_NAMED_MAX: usize = 5;

pub(super) async fn dead_letters(site: &Site) -> Vec<Finding> {
    match site.dead_letters().await {
        Ok((records, forbidden)) => found(&records, &forbidden),
        Err(error) => vec![Finding::failed(DEAD_LETTERS, &error)],
    }
}

/// The findings about topics with this many records each, and about those that the user has no
/// permission to describe.
pub(super) fn found(records: &BTreeMap<String, u64>, forbidden: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !records.is_empty() || forbidden.is_empty() {
        findings.push(held(records));
    }
    if !forbidden.is_empty() {
        let message = format!(
            "unknown for topics that this login has no permission to describe: {}",
            forbidden.join(", ")
        );
        findings.push(Finding::note(DEAD_LETTERS, message));
    }
    findings
}

fn held(records: &BTreeMap<String, u64>) -> Finding {
    let mut most_first: Vec<_> = records
        .iter()
        .filter(|(_, records)| **records > 0)
        .collect();
    most_first.sort_by_key(|(_, records)| std::cmp::Reverse(**records));
    let (topics, holding) = (records.len(), most_first.len());
    if holding == 0 {
        let topics = counted(topics, "dead-letter topic");
        let message = format!("none: no records on {topics}");
        return Finding::ok(DEAD_LETTERS, message);
    }
    let total: u64 = records.values().sum();
    let named = most_first.iter().take(TOPICS_NAMED_MAX);
    let named: Vec<String> = named
        .map(|(topic, records)| format!("{topic} ({records})"))
        .collect();
    let more = match holding - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "{}, receipts of replays included, on {holding} of {}: {}{more}; `waybill dlq list --open` lists dead letters \
         that were not replayed",
        counted(total, "record"),
        counted(topics, "dead-letter topic"),
        named.join(", ")
    );
    Finding::note(DEAD_LETTERS, message)
}
