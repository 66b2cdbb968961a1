//! Which division of the work is in force, and what leads to it.
//!
//! What must hold: a layout is only ever replaced by its own [`successor`](Layout::successor), by a
//! conditional write. So all processes agree on the division of every generation, and the leases of
//! different generations have nothing to do with each other.
//!
//! To more partitions it goes in four generations. The first says that the topics [are to get](Layout::intended)
//! them. The second [announces](Layout::announced) them: whoever writes spreads the operations over all of them from
//! then on, and as many readers as will be needed share the old ones. When nobody can still write by the old
//! number, the third says where the old ones [ended](Layout::moved): readers that have another partition from then on
//! read their old one to there, in the generation before, and then begin. When all have, the fourth
//! [forgets](Layout::settled) how it came.

use std::fmt;

use serde::{Deserialize, Serialize};
use waybill_engine::{Cut, Division, DivisionError, PartitionId, Places, ReaderId};

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
    /// More partitions were announced, and are not read yet.
    #[error(
        "the topics are becoming {0} partitions: `waybill topics grow --partitions {0}` ends that"
    )]
    Growing(u32),
    /// There are not so many more.
    #[error("{now} partitions become a whole multiple of themselves, and {wanted} is none")]
    Partitions {
        /// How many there are.
        now: u32,
        /// How many were asked for.
        wanted: u32,
    },
    /// No partitions were intended.
    #[error("no more partitions are intended")]
    NotIntended,
    /// No partitions were announced.
    #[error("no more partitions were announced")]
    NotAnnounced,
    /// No reader is going over to more partitions.
    #[error("no reader is going over to more partitions")]
    NotMoving,
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
    /// Over how many partitions operations are spread by whoever writes.
    written: u32,
    /// How many partitions the topics are to get.
    intended: Option<u32>,
    /// How the number of partitions was changed last.
    moved: Option<Moved>,
}

/// A change of the number of partitions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Moved {
    /// The first generation of the new number.
    into: LayoutGeneration,
    /// Where each of the old partitions ended, in order.
    ends: Vec<Places>,
    /// Every reader has gone over.
    is_settled: bool,
}

impl Layout {
    /// What holds where no layout is stored: one reader for each partition.
    #[must_use]
    pub const fn first(partitions: u32) -> Self {
        Self {
            past: Vec::new(),
            division: Division::one_each(partitions),
            written: partitions,
            intended: None,
            moved: None,
        }
    }

    /// A layout of before the number of partitions could change.
    pub(crate) fn of_one_number(past: Vec<Division>, division: Division) -> Self {
        Self {
            past,
            division,
            written: division.partitions,
            intended: None,
            moved: None,
        }
    }

    /// The layout after this one, of as many partitions.
    ///
    /// # Errors
    ///
    /// If the readers of `division` cannot follow those of this one, or the partitions are becoming more.
    pub fn successor(&self, division: Division) -> Result<Self, LayoutError> {
        if let Some(partitions) = self.becomes() {
            return Err(LayoutError::Growing(partitions));
        }
        if division.partitions != self.division.partitions {
            let (before, after) = (self.division.partitions, division.partitions);
            return Err(DivisionError::Partitions { before, after }.into());
        }
        self.next(division)
    }

    /// The layout after this one, by which the topics are to get so many partitions. Another number may be
    /// intended as long as it was not announced.
    ///
    /// # Errors
    ///
    /// If that is no multiple of what there is, each partition would have too many readers meanwhile, or others are
    /// on their way.
    pub fn intended(&self, partitions: u32) -> Result<Self, LayoutError> {
        if self.is_announced() || self.is_moving() {
            return Err(LayoutError::Growing(self.written));
        }
        let now = self.division.partitions;
        if partitions <= now || !partitions.is_multiple_of(now) {
            let wanted = partitions;
            return Err(LayoutError::Partitions { now, wanted });
        }
        self.shared_by_as_many_as(partitions)
            .may_follow(self.division)?;
        Ok(Self {
            intended: Some(partitions),
            ..self.next(self.division)?
        })
    }

    /// The layout after this one, by which operations are spread over the partitions that were intended, and which
    /// has as many readers as will read them.
    ///
    /// # Errors
    ///
    /// If none were intended.
    pub fn announced(&self) -> Result<Self, LayoutError> {
        let written = self.intended.ok_or(LayoutError::NotIntended)?;
        let next = self.next(self.shared_by_as_many_as(written))?;
        Ok(Self {
            written,
            intended: None,
            ..next
        })
    }

    /// The partitions that there are, with as many readers as there will be of so many.
    fn shared_by_as_many_as(&self, partitions: u32) -> Division {
        let readers = self.division.readers_per_partition;
        Division {
            readers_per_partition: readers.saturating_mul(partitions / self.division.partitions),
            ..self.division
        }
    }

    /// The layout after this one, in which the partitions that were announced are read, and the old ones
    /// ended at `ends`.
    ///
    /// # Errors
    ///
    /// If none were announced, or these are not the ends of all.
    pub fn moved(&self, ends: Vec<Places>) -> Result<Self, LayoutError> {
        if !self.is_announced() || ends.len() != self.division.partitions as usize {
            return Err(LayoutError::NotAnnounced);
        }
        let next = self.next(Division {
            partitions: self.written,
            readers_per_partition: self.division.readers() / self.written,
        })?;
        let into = next.generation();
        Ok(Self {
            moved: Some(Moved {
                into,
                ends,
                is_settled: false,
            }),
            ..next
        })
    }

    /// The layout after this one, once all readers have gone over: they need not know any more how they came there.
    ///
    /// # Errors
    ///
    /// If they are not going over.
    pub fn settled(&self) -> Result<Self, LayoutError> {
        let moved = self.going_over().ok_or(LayoutError::NotMoving)?;
        Ok(Self {
            moved: Some(Moved {
                is_settled: true,
                ..moved.clone()
            }),
            ..self.next(self.division)?
        })
    }

    /// The layout after this one, in which no more partitions are intended than there are.
    ///
    /// # Errors
    ///
    /// If none are.
    pub fn withdrawn(&self) -> Result<Self, LayoutError> {
        self.intended.ok_or(LayoutError::NotIntended)?;
        Ok(Self {
            intended: None,
            ..self.next(self.division)?
        })
    }

    fn going_over(&self) -> Option<&Moved> {
        self.moved.as_ref().filter(|moved| !moved.is_settled)
    }

    fn next(&self, division: Division) -> Result<Self, LayoutError> {
        division.may_follow(self.division)?;
        if self.past.len() >= GENERATIONS_MAX {
            return Err(LayoutError::Generations);
        }
        let mut past = self.past.clone();
        past.push(self.division);
        Ok(Self {
            past,
            division,
            ..self.clone()
        })
    }

    /// Over how many partitions operations are spread by whoever writes.
    #[must_use]
    pub fn partitions_written(&self) -> u32 {
        self.written
    }

    /// Every number of partitions that operations were ever spread over, the newest first.
    #[must_use]
    pub fn partitions_ever(&self) -> Vec<u32> {
        let past = self.past.iter().rev().map(|division| division.partitions);
        let mut ever: Vec<u32> = [self.written, self.division.partitions].into();
        ever.extend(past);
        ever.dedup();
        ever
    }

    /// How many partitions the topics may have, beside those that are written.
    #[must_use]
    pub fn partitions_intended(&self) -> Option<u32> {
        self.intended
    }

    /// How many partitions there will be, while there are becoming more.
    #[must_use]
    pub fn becomes(&self) -> Option<u32> {
        let is_on_its_way = self.is_announced() || self.is_moving();
        self.intended.or(is_on_its_way.then_some(self.written))
    }

    /// Whether more partitions were announced, and are not read yet.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.written != self.division.partitions
    }

    /// Whether more partitions are read, and not all readers have gone over.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.going_over().is_some()
    }

    /// To where a reader of a generation reads its partition, if the next one gives it another.
    #[must_use]
    pub fn end_of(&self, generation: LayoutGeneration, reader: ReaderId) -> Option<Places> {
        let moved = self.going_over()?;
        let is_before = moved.into.previous() == Some(generation);
        let before = self
            .of(generation)
            .filter(|_| is_before)?
            .partition_of(reader);
        let after = self.of(moved.into)?.partition_of(reader);
        let end = moved.ends.get(before.0 as usize).copied();
        end.filter(|_| before != after)
    }

    /// Where a partition was cut that readers of this generation read.
    #[must_use]
    pub fn cut_of(&self, generation: LayoutGeneration, partition: PartitionId) -> Option<Cut> {
        let moved = self.going_over().filter(|moved| moved.into <= generation)?;
        let ends = *moved.ends.get(partition.0 as usize)?;
        let before = u32::try_from(moved.ends.len()).unwrap_or(u32::MAX);
        Some(Cut { before, ends })
    }

    /// Where a partition was cut, for those who begin to read it in the first generation after that.
    #[must_use]
    pub fn cut_into(&self, generation: LayoutGeneration, partition: PartitionId) -> Option<Places> {
        let moved = self
            .moved
            .as_ref()
            .filter(|moved| moved.into == generation)?;
        moved.ends.get(partition.0 as usize).copied()
    }

    /// Where a partition was cut when the number of partitions was changed last, also when that is long over.
    #[must_use]
    pub fn last_cut(&self, partition: PartitionId) -> Option<Places> {
        let ends = &self.moved.as_ref()?.ends;
        ends.get(partition.0 as usize).copied()
    }

    /// Readers of the generation before the partitions became more which read `partition` to its end, and
    /// then had another: each with its lease's generation.
    #[must_use]
    pub fn left(&self, partition: PartitionId) -> Vec<(LayoutGeneration, ReaderId)> {
        let before = self.going_over().and_then(|moved| moved.into.previous());
        let Some((generation, division)) = before.and_then(|of| Some((of, self.of(of)?))) else {
            return Vec::new();
        };
        if partition.0 >= division.partitions {
            return Vec::new();
        }
        let readers = division.of_partition(partition);
        let left = readers.filter(|&reader| self.end_of(generation, reader).is_some());
        left.map(|reader| (generation, reader)).collect()
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
        write!(f, "layout {}: {}", self.generation(), self.division)?;
        match self.becomes() {
            Some(partitions) => write!(f, ", becoming {partitions} partitions"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::Offset;

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

    fn places(requests: i64) -> Places {
        Places {
            requests: Offset(requests),
            ..Places::default()
        }
    }

    #[test]
    fn more_partitions_are_announced_to_writers_before_they_are_read() {
        let of = |partitions, readers_per_partition| Division {
            partitions,
            readers_per_partition,
        };
        let layout = Layout::first(2);
        assert_eq!(layout.announced(), Err(LayoutError::NotIntended));
        let intended = layout.intended(4).unwrap().intended(6).unwrap();
        assert_eq!(
            (intended.division(), intended.partitions_written()),
            (of(2, 1), 2)
        );
        assert_eq!(intended.successor(of(2, 2)), Err(LayoutError::Growing(6)));
        assert_eq!(layout.withdrawn(), Err(LayoutError::NotIntended));
        assert_eq!(intended.withdrawn().unwrap().becomes(), None);
        let announced = intended.announced().unwrap();
        assert_eq!(announced.division(), of(2, 3));
        assert_eq!(announced.partitions_written(), 6);
        assert_eq!(announced.successor(of(2, 1)), Err(LayoutError::Growing(6)));
        assert_eq!(announced.intended(12), Err(LayoutError::Growing(6)));
        assert_eq!(announced.left(PartitionId(0)), []);

        let ends = vec![places(10), places(20)];
        assert_eq!(layout.moved(ends.clone()), Err(LayoutError::NotAnnounced));
        let moved = announced.moved(ends).unwrap();
        assert_eq!(moved.division(), of(6, 1));
        assert_eq!(moved.partitions_ever(), [6, 2]);
        assert_eq!(moved.successor(of(6, 2)), Err(LayoutError::Growing(6)));
        let before = LayoutGeneration(3);
        let ends = [0, 1, 2, 3].map(|reader| moved.end_of(before, ReaderId(reader)));
        assert_eq!(ends, [None, None, Some(places(10)), Some(places(20))]);
        assert_eq!(moved.end_of(LayoutGeneration(0), ReaderId(2)), None);
        assert_eq!(
            moved.left(PartitionId(1)),
            [(before, ReaderId(3)), (before, ReaderId(5))]
        );
        assert_eq!(moved.left(PartitionId(2)), []);

        let cut = |generation, partition| {
            let cut = moved.cut_of(LayoutGeneration(generation), PartitionId(partition));
            cut.map(|cut| (cut.before, cut.ends.requests.0))
        };
        assert_eq!(cut(3, 0), None);
        assert_eq!(cut(4, 0), Some((2, 10)));
        assert_eq!(cut(4, 1), Some((2, 20)));
        assert_eq!(cut(4, 2), None);
        assert_eq!(announced.settled(), Err(LayoutError::NotMoving));
        let settled = moved.settled().unwrap();
        assert_eq!(settled.becomes(), None);
        assert_eq!(settled.left(PartitionId(1)), []);
        assert_eq!(settled.last_cut(PartitionId(1)), Some(places(20)));
        assert_eq!(settled.cut_of(settled.generation(), PartitionId(0)), None);
        assert_eq!(settled.successor(of(6, 2)).unwrap().division(), of(6, 2));
        for wanted in [0, 1, 2, 3, 5] {
            assert!(layout.intended(wanted).is_err(), "{wanted}");
        }
        assert!(layout.intended(2 * 65).is_err(), "too many readers each");
    }
}
