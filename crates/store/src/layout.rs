//! Which division of the work is in force, and what leads to it.
//!
//! What must hold: a layout is only ever replaced by its own [`successor`](Layout::successor), by a
//! conditional write. So all processes agree on the division of every generation, and the leases of
//! different generations have nothing to do with each other.

use std::fmt;

use serde::{Deserialize, Serialize};
use waybill_engine::{Division, DivisionError};

/// The number of a layout, counted from 0: of the one that holds until another was ever chosen.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LayoutGeneration(pub u64);

impl LayoutGeneration {
    /// The generation before this one; `None` before the first.
    #[must_use]
    pub fn previous(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

impl fmt::Display for LayoutGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How often a layout may be replaced. Each division takes a few bytes, and all are kept.
const GENERATIONS_MAX: usize = 10_000;

/// Why a layout has no such successor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// Its readers could not follow.
    #[error(transparent)]
    Division(#[from] DivisionError),
    /// It was replaced too often.
    #[error("the layout was changed {GENERATIONS_MAX} times, and cannot be changed again")]
    Generations,
}

/// The division that is in force, and those that were before it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Those before, the oldest first: one for each generation.
    past: Vec<Division>,
    /// The one in force.
    division: Division,
}

impl Layout {
    /// What holds where no layout is stored: one reader for each partition.
    #[must_use]
    pub const fn first(partitions: u32) -> Self {
        Self {
            past: Vec::new(),
            division: Division::one_each(partitions),
        }
    }

    /// The layout after this one.
    ///
    /// # Errors
    ///
    /// If the readers of `division` cannot follow those of this one.
    pub fn successor(&self, division: Division) -> Result<Self, LayoutError> {
        division.may_follow(self.division)?;
        if self.past.len() >= GENERATIONS_MAX {
            return Err(LayoutError::Generations);
        }
        let mut past = self.past.clone();
        past.push(self.division);
        Ok(Self { past, division })
    }

    /// Its number.
    #[must_use]
    pub fn generation(&self) -> LayoutGeneration {
        LayoutGeneration(self.past.len() as u64)
    }

    /// The division in force.
    #[must_use]
    pub fn division(&self) -> Division {
        self.division
    }

    /// The division of a generation; `None` of one that is yet to come.
    #[must_use]
    pub fn of(&self, generation: LayoutGeneration) -> Option<Division> {
        let at = usize::try_from(generation.0).ok()?;
        match at == self.past.len() {
            true => Some(self.division),
            false => self.past.get(at).copied(),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layout {}: {}", self.generation(), self.division)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_remembers_the_division_of_every_generation() {
        let of = |readers_per_partition| Division {
            partitions: 4,
            readers_per_partition,
        };
        let layout = Layout::first(4).successor(of(2)).unwrap();
        let layout = layout.successor(of(1)).unwrap();
        assert_eq!(layout.generation(), LayoutGeneration(2));
        let divisions = [0, 1, 2, 3].map(|generation| layout.of(LayoutGeneration(generation)));
        assert_eq!(divisions, [Some(of(1)), Some(of(2)), Some(of(1)), None]);
        assert!(matches!(
            Layout::first(4).successor(of(2)).unwrap().successor(of(3)),
            Err(LayoutError::Division(DivisionError::NoMultiple { .. }))
        ));
    }
}
