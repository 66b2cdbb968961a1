//! Amounts of records, for limits.

/// A number of records and of bytes (of keys and values).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Records.
    pub records: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Amount {
    /// Whether there is room for a record.
    #[must_use]
    pub fn is_open(self) -> bool {
        self.records > 0 && self.bytes > 0
    }

    /// This amount without another; zero where the other is larger.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            records: self.records.saturating_sub(other.records),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// Both amounts together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            bytes: self.bytes + other.bytes,
        }
    }

    /// The smaller number of each.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        Self {
            records: self.records.min(other.records),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

/// How many more requests of a priority may be read: `most` may wait and `waiting` do;
/// `tracked_requests_max` may be tracked and `known` are.
pub(crate) fn room_beside(
    most: Amount,
    waiting: Amount,
    tracked_requests_max: usize,
    known: usize,
) -> Amount {
    let room = most.less(waiting);
    Amount {
        records: room.records.min(tracked_requests_max.saturating_sub(known)),
        ..room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(records: usize, bytes: usize) -> Amount {
        Amount { records, bytes }
    }

    #[test]
    fn credit_is_bounded_by_waiting_and_tracked_requests() {
        let most = amount(50_000, 1_000);
        let room = |waiting, known| room_beside(most, waiting, 250_000, known);
        assert_eq!(room(amount(0, 0), 0), most);
        let waiting = amount(49_000, 400);
        assert_eq!(room(waiting, 60_000), amount(1_000, 600));
        // The other tracked requests are done, after one that is not.
        assert_eq!(room(waiting, 249_990), amount(10, 600));
        assert_eq!(room(waiting, 250_001), amount(0, 600));
    }
}
