//! Operations with unreadable rows, and the replies that arrived for them while the rows were
//! unreadable.
//!
//! What must hold until the owner changes: a reply is applied once the row can be read, before its
//! absence leads to any decision. (Operators were alerted about the row, and the checkpoint of
//! replies may have passed the record: a later owner does not read it again.)

use std::collections::HashMap;

use crate::advance::pair_bytes;
use crate::id::{Offset, OperationId, OwnerId};
use crate::partition::hasher::IdHash;
use crate::record::{Outcome, StepReply};
use crate::time::Timestamp;

/// Maximum number of remembered rows. Above the limit, some rows cause a second alert.
const ROWS_MAX: usize = 10_000;

/// Maximum size of the replies kept for all unreadable rows, in bytes. Above the limit, replies are
/// dropped: their attempts time out and are repeated with the same idempotency key.
const REPLIES_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Approximate size of a reply excluding its outputs, in bytes.
const REPLY_BYTES: usize = 256;

/// A reply, with its offset on `step-replies` if it has one.
pub(super) type KeptReply = (Option<Offset>, StepReply);

/// The rows of one partition that could not be read.
#[derive(Debug)]
pub(super) struct UnreadableRows {
    rows: HashMap<OperationId, UnreadableRow, IdHash>,
    /// Approximate size of the kept replies, in bytes.
    bytes: usize,
}

#[derive(Debug)]
struct UnreadableRow {
    /// When the deadline index wakes the operation again.
    again_at: Timestamp,
    /// In order of arrival.
    replies: Vec<KeptReply>,
}

impl UnreadableRows {
    pub(super) fn new(owner: OwnerId) -> Self {
        Self {
            rows: HashMap::with_hasher(IdHash::new(owner)),
            bytes: 0,
        }
    }

    /// When the deadline index wakes the operation again, if its row is known to be unreadable.
    pub(super) fn again_at(&self, id: OperationId) -> Option<Timestamp> {
        self.rows.get(&id).map(|row| row.again_at)
    }

    /// Moves the next attempt to load all rows to another time, and returns their ids.
    pub(super) fn retry_at(&mut self, again_at: Timestamp) -> impl Iterator<Item = OperationId> {
        self.rows.iter_mut().map(move |(&id, row)| {
            row.again_at = again_at;
            id
        })
    }

    /// Remembers a row and the time at which it is loaded again.
    pub(super) fn remember(&mut self, id: OperationId, again_at: Timestamp) {
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&id) {
            self.rows.clear();
            self.bytes = 0;
        }
        let row = self.rows.entry(id).or_insert(UnreadableRow {
            again_at,
            replies: Vec::new(),
        });
        row.again_at = again_at;
    }

    /// Keeps a reply until the row can be read, if there is room. The row must be remembered.
    pub(super) fn keep(&mut self, id: OperationId, reply: KeptReply) {
        let bytes = reply_bytes(&reply);
        if self.bytes + bytes > REPLIES_BYTES_MAX {
            return;
        }
        if let Some(row) = self.rows.get_mut(&id) {
            self.bytes += bytes;
            row.replies.push(reply);
        }
    }

    /// Forgets a row that could be read, and hands over the replies that were kept for it.
    pub(super) fn restored(&mut self, id: OperationId) -> Vec<KeptReply> {
        let replies = self.rows.remove(&id).map(|row| row.replies);
        let replies = replies.unwrap_or_default();
        self.bytes -= replies.iter().map(reply_bytes).sum::<usize>();
        replies
    }
}

fn reply_bytes((_, reply): &KeptReply) -> usize {
    let outputs = match &reply.outcome {
        Outcome::Success { outputs } => pair_bytes(outputs),
        Outcome::Transient { error }
        | Outcome::Permanent { error }
        | Outcome::Unknown { error }
        | Outcome::NotAttempted { error, .. } => error.code.len() + error.message.len(),
        Outcome::NotPerformed => 0,
    };
    REPLY_BYTES + outputs
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::action::Action;
    use crate::id::{Attempt, Epoch};

    fn id(number: u128) -> OperationId {
        OperationId(Uuid::from_u128(number))
    }

    fn reply(number: u128, bytes: usize) -> KeptReply {
        let reply = StepReply {
            operation: id(number),
            step: "a".to_owned(),
            attempt: Attempt(1),
            epoch: Epoch(1),
            action: Action::Run,
            nonce: None,
            outcome: Outcome::Success {
                outputs: vec![("made".to_owned(), "x".repeat(bytes))],
            },
        };
        (None, reply)
    }

    #[test]
    fn kept_replies_are_bounded_by_bytes() {
        let mut rows = UnreadableRows::new(OwnerId(Uuid::from_u128(1)));
        for number in 0..10 {
            rows.remember(id(number), Timestamp::default());
            rows.keep(id(number), reply(number, 1024 * 1024));
        }
        let kept: Vec<_> = (0..10)
            .map(|number| rows.restored(id(number)).len())
            .collect();
        assert_eq!(kept, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(rows.bytes, 0);
    }

    #[test]
    fn the_number_of_unreadable_rows_is_bounded() {
        let mut rows = UnreadableRows::new(OwnerId(Uuid::from_u128(1)));
        for number in 0..=ROWS_MAX as u128 {
            rows.remember(id(number), Timestamp::default());
            rows.keep(id(number), reply(number, 1));
        }
        assert_eq!(rows.rows.len(), 1);
        assert_eq!(rows.restored(id(ROWS_MAX as u128)).len(), 1);
        assert_eq!(rows.bytes, 0);
    }
}
