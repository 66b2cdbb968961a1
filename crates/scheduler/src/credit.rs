//! How much a consumer may still hand to the loop: limits the records that were read and not yet
//! processed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use waybill_scheduler_core::Amount;

/// The allowance of one consumer. The loop offers room, and the consumer's thread takes from it
/// what it may read. Records being read, or queued in the channel, count against the room until the
/// loop has received them. One record may exceed the bytes, since its size is known only after it
/// was read.
#[derive(Debug, Default)]
pub(super) struct Credit {
    state: Mutex<State>,
    offered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    left: Amount,
    reading: Amount,
    queued: Amount,
}

impl Credit {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers this much room, which includes records that are being read or queued.
    pub(super) fn offer(&self, room: Amount) {
        let mut state = self.state();
        let was_open = state.left.is_open();
        state.left = room.less(state.reading).less(state.queued);
        let opened = !was_open && state.left.is_open();
        drop(state);
        if opened {
            self.offered.notify_one();
        }
    }

    /// The loop has received this amount from the channel.
    pub(super) fn received(&self, amount: Amount) {
        let mut state = self.state();
        state.queued = state.queued.less(amount);
    }

    /// Takes up to `limit` of the remaining room; waits up to `patience` for some to be free. Must
    /// be followed by [`Credit::read`].
    pub(super) fn take(&self, limit: Amount, patience: Duration) -> Option<Amount> {
        let state = self.state();
        let (mut state, _) = self
            .offered
            .wait_timeout_while(state, patience, |state| !state.left.is_open())
            .unwrap_or_else(PoisonError::into_inner);
        if !state.left.is_open() {
            return None;
        }
        let taken = state.left.at_most(limit);
        state.reading = taken;
        state.left = state.left.less(taken);
        Some(taken)
    }

    /// This amount was read; the rest of the taken room is free again.
    pub(super) fn read(&self, amount: Amount) {
        let mut state = self.state();
        let unused = state.reading.less(amount);
        state.left = state.left.and(unused);
        state.reading = Amount::default();
        state.queued = state.queued.and(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Amount = Amount {
        records: 10,
        bytes: 1_000,
    };

    fn amount(records: usize, bytes: usize) -> Amount {
        Amount { records, bytes }
    }

    #[test]
    fn queued_records_count_against_the_credit() {
        let credit = Credit::default();
        assert_eq!(credit.take(LIMIT, Duration::ZERO), None);
        credit.offer(amount(5, 500));
        assert_eq!(credit.take(LIMIT, Duration::ZERO), Some(amount(5, 500)));
        // The loop offers again while the consumer reads: no capacity is offered twice.
        credit.offer(amount(5, 500));
        credit.read(amount(2, 200));
        credit.offer(amount(5, 500));
        assert_eq!(credit.take(LIMIT, Duration::ZERO), Some(amount(3, 300)));
        credit.read(amount(0, 0));
        credit.received(amount(2, 200));
        credit.offer(amount(4, 400));
        assert_eq!(credit.take(LIMIT, Duration::ZERO), Some(amount(4, 400)));
    }

    #[test]
    fn a_record_larger_than_the_credit_uses_it_up() {
        let credit = Credit::default();
        credit.offer(amount(5, 10));
        credit.take(LIMIT, Duration::ZERO).expect("there is room");
        credit.read(amount(1, 1_000));
        credit.offer(amount(5, 10));
        assert_eq!(credit.take(LIMIT, Duration::ZERO), None);
    }
}
