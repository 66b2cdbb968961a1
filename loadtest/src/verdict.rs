//! The judge's findings.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The judge's findings.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verdict {
    /// The number of judged deliveries.
    pub judged: usize,
    /// Deliveries that neither ended nor are parked after the wait.
    pub lost: Findings,
    /// Deliveries with an effect that was made twice.
    pub double: Findings,
    /// Deliveries with effects that do not match their state.
    pub half_undone: Findings,
    /// Parked deliveries. Not a fault.
    pub parked: Findings,
}

/// Findings of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// The number of findings.
    pub count: usize,
    /// Some of the findings.
    pub examples: Vec<String>,
}

impl Verdict {
    /// Whether nothing is wrong.
    pub fn is_balanced(&self) -> bool {
        self.lost.count == 0 && self.double.count == 0 && self.half_undone.count == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("LOST", &self.lost),
            ("DOUBLE", &self.double),
            ("HALF-UNDONE", &self.half_undone),
            ("parked", &self.parked),
        ];
        for (name, findings) in kinds.iter().filter(|(_, findings)| findings.count > 0) {
            writeln!(f, "{name:<11} {}", findings.count)?;
            if *name == "LOST" {
                writeln!(
                    f,
                    "  no final state arrived within --wait: lost, or still in progress"
                )?;
            }
            for example in &findings.examples {
                writeln!(f, "  {example}")?;
            }
        }
        if self.is_balanced() {
            writeln!(f, "BALANCED    {} deliveries", self.judged)?;
        }
        Ok(())
    }
}
