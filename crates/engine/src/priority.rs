//! The topics that a scheduler reads, and the two priorities of requests.

use serde::{Deserialize, Serialize};

use crate::id::{Offset, PartitionId};

/// A topic of which a scheduler reads its partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Source {
    /// `operation-requests`: requests of callers.
    Requests,
    /// `step-replies`: replies of agents.
    Replies,
    /// `recovery`: requests of supervisors and operators to the scheduler.
    Recoveries,
    /// `high-priority-requests`: requests of callers that go ahead of the others.
    HighPriority,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Requests,
        Self::HighPriority,
        Self::Replies,
        Self::Recoveries,
    ];

    /// The priority of its requests; `None` for other topics.
    #[must_use]
    pub const fn priority(self) -> Option<Priority> {
        match self {
            Self::Requests => Some(Priority::Normal),
            Self::HighPriority => Some(Priority::High),
            Self::Replies | Self::Recoveries => None,
        }
    }
}

/// The priority of a request, which determines its topic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Priority {
    /// `operation-requests`.
    #[default]
    Normal,
    /// `high-priority-requests`: admitted ahead of normal requests, by weight.
    High,
}

impl Priority {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Normal, Self::High];

    /// The priority's name in requests, metrics and texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::High => "high",
        }
    }

    /// The topic.
    #[must_use]
    pub const fn source(self) -> Source {
        match self {
            Self::Normal => Source::Requests,
            Self::High => Source::HighPriority,
        }
    }
}

/// A value for each priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ByPriority<T> {
    /// The value for `operation-requests`.
    pub normal: T,
    /// The value for `high-priority-requests`.
    pub high: T,
}

impl<T> ByPriority<T> {
    /// Calls `of` for each priority.
    pub fn of(mut of: impl FnMut(Priority) -> T) -> Self {
        Self {
            normal: of(Priority::Normal),
            high: of(Priority::High),
        }
    }
}

impl<T> std::ops::Index<Priority> for ByPriority<T> {
    type Output = T;

    fn index(&self, priority: Priority) -> &T {
        match priority {
            Priority::Normal => &self.normal,
            Priority::High => &self.high,
        }
    }
}

impl<T> std::ops::IndexMut<Priority> for ByPriority<T> {
    fn index_mut(&mut self, priority: Priority) -> &mut T {
        match priority {
            Priority::Normal => &mut self.normal,
            Priority::High => &mut self.high,
        }
    }
}

/// The position of a request: its priority, partition and offset.
///
/// A high-priority position is serialized as an offset of at most -2. (-1 marks a request
/// without a topic.) So rows keep the format that they had when there was one priority.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(from = "SerializedPosition", into = "SerializedPosition")]
pub struct Position {
    /// The priority.
    pub priority: Priority,
    /// The partition.
    pub partition: PartitionId,
    /// The offset in it.
    pub offset: Offset,
}

/// The serialized form of the first offset of `high-priority-requests`; further ones are lower.
const HIGH_PRIORITY: i64 = -2;

/// The serialized form of a [`Position`].
#[derive(Serialize, Deserialize)]
struct SerializedPosition {
    partition: PartitionId,
    offset: Offset,
}

impl From<Position> for SerializedPosition {
    fn from(position: Position) -> Self {
        let Offset(offset) = position.offset;
        Self {
            partition: position.partition,
            offset: match position.priority {
                Priority::Normal => Offset(offset),
                Priority::High => Offset(HIGH_PRIORITY - offset),
            },
        }
    }
}

impl From<SerializedPosition> for Position {
    fn from(serialized: SerializedPosition) -> Self {
        let Offset(offset) = serialized.offset;
        let (priority, offset) = match offset {
            ..=HIGH_PRIORITY => (Priority::High, HIGH_PRIORITY - offset),
            _ => (Priority::Normal, offset),
        };
        Self {
            priority,
            partition: serialized.partition,
            offset: Offset(offset),
        }
    }
}

/// The position of a record on a topic with one log per partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LogPosition {
    /// The partition.
    pub partition: PartitionId,
    /// The offset in it.
    pub offset: Offset,
}

impl LogPosition {
    /// Whether a record is at or before this position, in the same partition.
    #[must_use]
    pub fn covers(self, record: Self) -> bool {
        self.partition == record.partition && self.offset >= record.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_round_trips() {
        for priority in Priority::ALL {
            for offset in [0, 1, i64::MAX - 1] {
                let position = Position {
                    priority,
                    partition: PartitionId(7),
                    offset: Offset(offset),
                };
                assert_eq!(Position::from(SerializedPosition::from(position)), position);
            }
        }
        let nowhere = Position {
            priority: Priority::Normal,
            partition: PartitionId(7),
            offset: Offset(-1),
        };
        assert_eq!(Position::from(SerializedPosition::from(nowhere)), nowhere);
    }
}
