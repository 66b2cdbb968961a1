//! The topics that a scheduler reads, and the two priorities that requests have.

use serde::{Deserialize, Serialize};

use crate::id::{Offset, PartitionId};

/// A topic that a scheduler reads its partition of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Source {
    /// `operation-requests`: what callers ask for.
    Requests,
    /// `step-replies`: what agents answer.
    Replies,
    /// `recovery`: what the supervisor and operators ask of the scheduler.
    Recoveries,
    /// `expedited-requests`: what callers ask for, and is not to wait behind the rest.
    Expedited,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Requests,
        Self::Expedited,
        Self::Replies,
        Self::Recoveries,
    ];

    /// Which requests lie there; `None` where none do.
    #[must_use]
    pub const fn priority(self) -> Option<Priority> {
        match self {
            Self::Requests => Some(Priority::Ordinary),
            Self::Expedited => Some(Priority::Expedited),
            Self::Replies | Self::Recoveries => None,
        }
    }
}

/// Which of the two topics of requests a request comes by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Priority {
    /// `operation-requests`: each in its turn.
    #[default]
    Ordinary,
    /// `expedited-requests`: ahead of the ordinary ones, but for their share.
    Expedited,
}

impl Priority {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ordinary, Self::Expedited];

    /// The topic.
    #[must_use]
    pub const fn source(self) -> Source {
        match self {
            Self::Ordinary => Source::Requests,
            Self::Expedited => Source::Expedited,
        }
    }
}

/// A value for each priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByPriority<T> {
    /// Of `operation-requests`.
    pub ordinary: T,
    /// Of `expedited-requests`.
    pub expedited: T,
}

impl<T> ByPriority<T> {
    /// What `of` says of each priority.
    pub fn of(mut of: impl FnMut(Priority) -> T) -> Self {
        Self {
            ordinary: of(Priority::Ordinary),
            expedited: of(Priority::Expedited),
        }
    }
}

impl<T> std::ops::Index<Priority> for ByPriority<T> {
    type Output = T;

    fn index(&self, priority: Priority) -> &T {
        match priority {
            Priority::Ordinary => &self.ordinary,
            Priority::Expedited => &self.expedited,
        }
    }
}

impl<T> std::ops::IndexMut<Priority> for ByPriority<T> {
    fn index_mut(&mut self, priority: Priority) -> &mut T {
        match priority {
            Priority::Ordinary => &mut self.ordinary,
            Priority::Expedited => &mut self.expedited,
        }
    }
}

/// Where a request lies: its priority, partition and offset.
///
/// Serialized, that of an expedited one is a number below the least that any other has: -1 has what lies in no topic.
/// So rows have the form that they had when there was one priority.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(from = "Place", into = "Place")]
pub struct Position {
    /// The topic.
    pub priority: Priority,
    /// The partition.
    pub partition: PartitionId,
    /// The offset in it.
    pub offset: Offset,
}

/// What the first offset of `expedited-requests` is serialized as; others lie below.
const EXPEDITED: i64 = -2;

/// A [`Position`] as it is serialized.
#[derive(Serialize, Deserialize)]
struct Place {
    partition: PartitionId,
    offset: Offset,
}

impl From<Position> for Place {
    fn from(position: Position) -> Self {
        let Offset(offset) = position.offset;
        Self {
            partition: position.partition,
            offset: match position.priority {
                Priority::Ordinary => Offset(offset),
                Priority::Expedited => Offset(EXPEDITED - offset),
            },
        }
    }
}

impl From<Place> for Position {
    fn from(place: Place) -> Self {
        let Offset(offset) = place.offset;
        let (priority, offset) = match offset {
            ..=EXPEDITED => (Priority::Expedited, EXPEDITED - offset),
            _ => (Priority::Ordinary, offset),
        };
        Self {
            priority,
            partition: place.partition,
            offset: Offset(offset),
        }
    }
}

/// Where a record lies on a topic of which each partition has one log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LogPosition {
    /// The partition.
    pub partition: PartitionId,
    /// The offset in it.
    pub offset: Offset,
}

impl LogPosition {
    /// Whether a record lies at or before this one. One of another partition does not.
    #[must_use]
    pub fn covers(self, record: Self) -> bool {
        self.partition == record.partition && self.offset >= record.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_as_it_was_written_and_what_lies_nowhere_is_no_expedited_request() {
        for priority in Priority::ALL {
            for offset in [0, 1, i64::MAX - 1] {
                let position = Position {
                    priority,
                    partition: PartitionId(7),
                    offset: Offset(offset),
                };
                assert_eq!(Position::from(Place::from(position)), position);
            }
        }
        let nowhere = Position {
            priority: Priority::Ordinary,
            partition: PartitionId(7),
            offset: Offset(-1),
        };
        assert_eq!(Position::from(Place::from(nowhere)), nowhere);
    }
}
