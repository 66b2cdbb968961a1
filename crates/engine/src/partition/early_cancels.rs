//! Remembers cancels that were admitted before their create.
//!
//! A create whose id ingestion generated is not looked up in the store, because the id is new. A
//! cancel from the topic of the other priority may be admitted first, and writes a row that the
//! create must find. The caller knows the id from the answer to the create, so the create was
//! requested earlier. Once it is no longer [fresh](super::EngineConfig::fresh_for), it is looked up
//! anyway. So it is enough to remember such cancels for a while.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::id::OperationId;
use crate::time::Timestamp;

/// How far other processes' clocks may be ahead, which makes their requests look fresh for longer.
pub(super) const CLOCKS_AHEAD_MAX: Duration = Duration::from_secs(60);

/// Maximum number of remembered cancels. Beyond it, no earlier request counts as fresh.
const KEPT_MAX: usize = 10_000;

/// Operations that were cancelled before their create was admitted, remembered while the create may
/// be fresh.
#[derive(Debug, Default)]
pub(super) struct EarlyCancels {
    ids: HashSet<OperationId>,
    order: VecDeque<(Timestamp, OperationId)>,
    /// For requests before this time, some cancels were forgotten too early.
    blind_until: Timestamp,
}

impl EarlyCancels {
    /// Remembers a cancel that arrived before its create.
    pub(super) fn remember(&mut self, id: OperationId, now: Timestamp, fresh_for: Duration) {
        let kept_for = fresh_for + CLOCKS_AHEAD_MAX;
        while let Some(&(at, oldest)) = self.order.front()
            && now.since(at) > kept_for
        {
            self.order.pop_front();
            self.ids.remove(&oldest);
        }
        if self.order.len() >= KEPT_MAX {
            self.order.clear();
            self.ids.clear();
            self.blind_until = now + CLOCKS_AHEAD_MAX;
        }
        if self.ids.insert(id) {
            self.order.push_back((now, id));
        }
    }

    /// Whether a create that was requested at this time may have a cancel before it.
    pub(super) fn may_have_cancel(&self, id: OperationId, requested_at: Timestamp) -> bool {
        requested_at < self.blind_until || self.ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(number: usize) -> OperationId {
        OperationId(Uuid::from_u128(number as u128))
    }

    #[test]
    fn an_early_cancel_is_remembered_while_its_create_counts_as_new() {
        let (fresh_for, start) = (Duration::from_secs(5), Timestamp::from_millis(1_000_000));
        let at_most = fresh_for + CLOCKS_AHEAD_MAX;
        let mut cancels = EarlyCancels::default();
        cancels.remember(id(1), start, fresh_for);
        assert!(cancels.may_have_cancel(id(1), start));
        assert!(!cancels.may_have_cancel(id(2), start));
        cancels.remember(id(2), start + at_most, fresh_for);
        assert!(cancels.may_have_cancel(id(1), start));
        cancels.remember(id(3), start + at_most + fresh_for, fresh_for);
        assert!(!cancels.may_have_cancel(id(1), start) && cancels.may_have_cancel(id(2), start));
    }

    #[test]
    fn creates_older_than_a_forgotten_cancel_do_not_count_as_new() {
        let (fresh_for, start) = (Duration::from_secs(5), Timestamp::from_millis(1_000_000));
        let mut cancels = EarlyCancels::default();
        for number in 0..=KEPT_MAX {
            cancels.remember(id(number), start, fresh_for);
        }
        assert!(
            cancels.may_have_cancel(id(0), start),
            "it was forgotten, and is looked up"
        );
        assert!(!cancels.may_have_cancel(id(0), start + 2 * CLOCKS_AHEAD_MAX));
        assert!(cancels.order.len() <= KEPT_MAX);
    }
}
