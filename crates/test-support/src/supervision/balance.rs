//! Compares the final states of operations with the effects in the services' ledger.

use std::collections::HashMap;

use serde_json::Value;

use super::ends::Ends;

/// For each operation, its effects as (step, action), with the number of times each was made.
pub type Ledger = HashMap<String, HashMap<(String, String), u32>>;

/// The violations, with examples.
pub struct Unbalanced(pub(super) String);

/// The maximum number of examples.
const EXAMPLES_MAX: usize = 5;

/// Checks that every effect was made once and undone at most once. A processed delivery must have
/// exactly its effects, and an undone or cancelled one none. A parked one must have a reason.
pub fn check(
    ends: &[Value],
    ledger: &Ledger,
    remote: impl Fn(usize) -> bool,
) -> Result<Ends, Unbalanced> {
    let mut counts = Ends::default();
    let mut findings = Vec::new();
    for (index, operation) in ends.iter().enumerate() {
        let nothing = HashMap::new();
        let id = operation["id"].as_str().unwrap_or_default();
        let effects = ledger.get(id).unwrap_or(&nothing);
        let mut standing: Vec<&str> = Vec::new();
        for ((step, action), times) in effects {
            if *times != 1 {
                findings.push(format!(
                    "{step} {action} was done {times} times: {operation:#}"
                ));
            }
            let is_undone = effects.contains_key(&(step.clone(), "compensate".to_owned()));
            if action == "run" && !is_undone {
                standing.push(step);
            }
            if action == "compensate" && !effects.contains_key(&(step.clone(), "run".to_owned())) {
                findings.push(format!("{step} was undone and never done: {operation:#}"));
            }
        }
        standing.sort_unstable();
        let carrier = if remote(index) {
            "third-party"
        } else {
            "drone"
        };
        let mut whole = ["package", carrier, "delivery"];
        whole.sort_unstable();
        let count = match operation["state"].as_str() {
            Some("Processed") => {
                if standing != whole || effects.len() != whole.len() {
                    findings.push(format!("{effects:?} of a processed one: {operation:#}"));
                }
                &mut counts.processed
            }
            Some(state @ ("Compensated" | "Cancelled")) => {
                if !standing.is_empty() {
                    findings.push(format!("{standing:?} remains: {operation:#}"));
                }
                if state == "Cancelled" {
                    &mut counts.cancelled
                } else {
                    &mut counts.compensated
                }
            }
            Some(state) => {
                if operation["error"]["code"]
                    .as_str()
                    .is_none_or(str::is_empty)
                {
                    findings.push(format!("it is parked and does not say why: {operation:#}"));
                }
                if state == "Error" {
                    &mut counts.error
                } else {
                    &mut counts.compensation_failed
                }
            }
            None => unreachable!("an operation that ended has a state"),
        };
        *count += 1;
    }
    if findings.is_empty() {
        Ok(counts)
    } else {
        let count = findings.len();
        findings.truncate(EXAMPLES_MAX);
        Err(Unbalanced(format!(
            "{count} findings:\n{}",
            findings.join("\n")
        )))
    }
}
