//! The attention table: operations that linger, failed or are parked, and how they are listed.
//!
//! An entry is a hint: it names an operation and when it began to need attention. Listings read the
//! operations' rows for their current state: an operation may have progressed since, or have
//! entries at several instants.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use waybill_engine::{OperationId, Timestamp};

/// An entry of the attention table: an operation that lingers, failed or is parked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct AttentionEntry {
    /// When it began to need attention; determines the day that it is listed under.
    pub at: Timestamp,
    /// The operation.
    pub operation: OperationId,
}

/// Which entries a listing gives first. Entries of one instant follow their operations' ids.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum AttentionOrder {
    /// The oldest.
    OldestFirst,
    /// The newest.
    NewestFirst,
}

impl AttentionOrder {
    /// Which of two entries is listed first.
    #[must_use]
    pub fn compare(self, one: &AttentionEntry, other: &AttentionEntry) -> Ordering {
        match self {
            Self::OldestFirst => one.cmp(other),
            Self::NewestFirst => other.cmp(one),
        }
    }
}

/// The position of a listing: which entries it has yet to return. Holds everything that the next
/// page needs except the index shards, so a caller may encode it, hand it out and take it back.
///
/// Any content is safe: bounds that hold nothing between them list nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AttentionCursor {
    /// The order of the listing.
    pub order: AttentionOrder,
    /// The first instant that is listed.
    pub since: Timestamp,
    /// The last instant that is listed.
    pub until: Timestamp,
    /// The last entry that was returned; `None` before the first.
    pub after: Option<AttentionEntry>,
}

impl AttentionCursor {
    /// The beginning of a listing from `since` to `until`, both included.
    #[must_use]
    pub fn new(order: AttentionOrder, since: Timestamp, until: Timestamp) -> Self {
        Self {
            order,
            since,
            until,
            after: None,
        }
    }

    /// The outermost entries that may still have to be returned, the older one first. They include
    /// the entry that was returned last, which is to be left out.
    #[must_use]
    pub fn bounds(self) -> (AttentionEntry, AttentionEntry) {
        let first = AttentionEntry {
            at: self.since,
            operation: OperationId(uuid::Uuid::nil()),
        };
        let last = AttentionEntry {
            at: self.until,
            operation: OperationId(uuid::Uuid::max()),
        };
        match (self.order, self.after) {
            (_, None) => (first, last),
            (AttentionOrder::OldestFirst, Some(after)) => (first.max(after), last),
            (AttentionOrder::NewestFirst, Some(after)) => (first, last.min(after)),
        }
    }
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttentionPage {
    /// The entries, in the listing's order over all index shards.
    pub entries: Vec<AttentionEntry>,
    /// Where the next page begins; `None` at the end of the listing.
    pub next: Option<AttentionCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_cursor_continues_at_its_position() {
        let mut cursor = AttentionCursor::new(
            AttentionOrder::NewestFirst,
            Timestamp(i64::MIN),
            Timestamp(7),
        );
        for after in [None, Some(cursor.bounds().1)] {
            cursor.after = after;
            let bytes = postcard::to_allocvec(&cursor).unwrap();
            assert_eq!(postcard::from_bytes(&bytes), Ok(cursor));
        }
    }
}
