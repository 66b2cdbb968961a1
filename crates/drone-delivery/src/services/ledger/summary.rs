//! The ledger in numbers, for judges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the ledger holds, in numbers. Every operation is counted as one of `complete`, `partial`,
/// `half_undone` and `undone`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// How many operations it knows, those with nothing but a tombstone included.
    pub operations: u64,
    /// Operations of which a whole delivery stands, and nothing was undone: a package, a delivery,
    /// and a drone or third-party transport.
    pub complete: u64,
    /// Operations of which something else than a whole delivery stands, and nothing was undone.
    /// Those that are under way are among them.
    pub partial: u64,
    /// Operations of which something stands although something else was undone or has a tombstone.
    /// Those that are being undone are among them; once nothing moves, each is a suspect.
    pub half_undone: u64,
    /// Operations of which nothing stands.
    pub undone: u64,
    /// The counts of each step.
    pub effects: BTreeMap<String, StepCounts>,
    /// Requests that were repeats, forward and undo together.
    pub repeats: u64,
    /// Undos that came before their forward action.
    pub tombstones: u64,
    /// Forward actions that were refused because their undo had come.
    pub refused: u64,
    /// Effects that were made although one of the same key stood already. Anything but 0 is a
    /// breach of the rule that a step has one effect.
    pub double: u64,
}

/// One step, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepCounts {
    /// How many effects were made, repeats apart.
    pub run: u64,
    /// How many were undone, repeats apart.
    pub compensate: u64,
    /// How many stand.
    pub standing: u64,
    /// How many undos came before their forward action.
    pub tombstones: u64,
    /// How many forward actions were refused because their undo had come.
    pub refused: u64,
    /// How many requests were repeats, forward and undo together.
    pub repeats: u64,
    /// How many effects were made although one of the same key stood already.
    pub double: u64,
}

impl Summary {
    /// Adds the counts of one service's part in a step.
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
