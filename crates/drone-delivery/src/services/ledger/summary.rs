//! The totals of the ledger, for tests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The totals of the ledger. Every operation counts as one of `complete`, `partial`, `half_undone`
/// and `undone`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The number of operations, including those with only a tombstone.
    pub operations: u64,
    /// Operations with a complete delivery and nothing undone: a package, a delivery, and a drone
    /// or third-party transport.
    pub complete: u64,
    /// Operations with other existing effects and nothing undone. They include unfinished ones.
    pub partial: u64,
    /// Operations with an existing effect and another one that was undone or has a tombstone. They
    /// include operations in compensation. Once all have ended, each of them is suspicious.
    pub half_undone: u64,
    /// Operations without existing effects.
    pub undone: u64,
    /// The counts of each step.
    pub effects: BTreeMap<String, StepCounts>,
    /// Repeated requests, forward and undo together.
    pub repeats: u64,
    /// Undos that arrived before their forward action.
    pub tombstones: u64,
    /// Forward actions that were refused after their undo.
    pub refused: u64,
    /// Effects that were made again under the same key while they existed. Anything but 0 violates
    /// the rule that a step has one effect.
    pub double: u64,
}

/// The totals of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepCounts {
    /// Effects that were made, without repeats.
    pub run: u64,
    /// Effects that were undone, without repeats.
    pub compensate: u64,
    /// Existing effects.
    pub standing: u64,
    /// Undos that arrived before their forward action.
    pub tombstones: u64,
    /// Forward actions that were refused after their undo.
    pub refused: u64,
    /// Repeated requests, forward and undo together.
    pub repeats: u64,
    /// Effects that were made again under the same key while they existed.
    pub double: u64,
}

impl Summary {
    /// Adds the counts of one service to a step.
    pub(super) fn add(&mut self, step: &str, counts: StepCounts) {
        let sum = self.effects.entry(step.to_owned()).or_default();
        sum.run += counts.run;
        sum.compensate += counts.compensate;
        sum.standing += counts.standing;
        sum.tombstones += counts.tombstones;
        sum.refused += counts.refused;
        sum.repeats += counts.repeats;
        sum.double += counts.double;
        self.repeats += counts.repeats;
        self.tombstones += counts.tombstones;
        self.refused += counts.refused;
        self.double += counts.double;
    }
}
