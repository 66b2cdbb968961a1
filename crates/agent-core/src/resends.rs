//! The records that were sent and not acknowledged, until they are sent again.

use std::collections::VecDeque;
use std::time::Duration;

use waybill_engine::{BootTime, Consumed, Now, Timestamp};

/// How long a refused record waits before it is sent again.
const RESEND_PAUSE: Duration = Duration::from_secs(1);
/// With this many records kept, no more requests are read.
const KEPT_MAX: usize = 1_000;

/// What a sent record finishes once it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The consumed record.
    pub source: Consumed<usize>,
    /// What was sent for it.
    pub purpose: Purpose,
}

/// What a sent record is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The reply to a request.
    Reply {
        /// After this time no reply is awaited, and the request is done without it.
        complete_by: Timestamp,
    },
    /// The dead letter of a record that cannot be decoded.
    DeadLetter,
}

/// Why a sent record was not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The producer's queue is full. It empties soon.
    QueueFull,
    /// The broker would refuse the record again.
    Permanent,
    /// Any other failure. The record may have been appended.
    Temporary,
}

/// What became of a record that was not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// It is sent again later.
    Kept {
        /// Whether it is the only one that is kept.
        is_first: bool,
    },
    /// It is given up, and its consumed record is done: no broker would accept this dead letter,
    /// and it must not block its partition forever. The step itself is not lost: its scheduler sees
    /// it time out.
    Dropped,
}

/// The records to send again, in the order of their failures.
#[derive(Debug)]
pub(crate) struct Resends<R> {
    kept: VecDeque<Kept<R>>,
}

#[derive(Debug)]
struct Kept<R> {
    record: R,
    sent: Sent,
    /// The earliest time to send it again.
    at: BootTime,
}

/// The records whose time has come.
#[derive(Debug)]
pub(crate) struct Due<R> {
    /// To send again.
    pub(crate) again: Vec<R>,
    /// Consumed records whose replies nobody awaits any more.
    pub(crate) done: Vec<Consumed<usize>>,
}

impl<R> Default for Resends<R> {
    fn default() -> Self {
        Self {
            kept: VecDeque::new(),
        }
    }
}

impl<R> Resends<R> {
    /// Handles a record that was not acknowledged.
    pub(crate) fn failed(
        &mut self,
        record: R,
        sent: Sent,
        failure: Failure,
        now: BootTime,
    ) -> Failed {
        if sent.purpose == Purpose::DeadLetter && failure == Failure::Permanent {
            return Failed::Dropped;
        }
        let pause = match failure {
            Failure::QueueFull => Duration::ZERO,
            Failure::Permanent | Failure::Temporary => RESEND_PAUSE,
        };
        let is_first = self.kept.is_empty();
        self.kept.push_back(Kept {
            record,
            sent,
            at: now + pause,
        });
        Failed::Kept { is_first }
    }

    /// Whether nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Removes the records whose time has come.
    pub(crate) fn due(&mut self, now: Now) -> Due<R> {
        let mut due = Due {
            again: Vec::new(),
            done: Vec::new(),
        };
        if self.kept.iter().all(|kept| kept.at > now.boot) {
            return due;
        }
        for kept in std::mem::take(&mut self.kept) {
            match kept.sent.purpose {
                _ if kept.at > now.boot => self.kept.push_back(kept),
                Purpose::Reply { complete_by } if complete_by <= now.wall => {
                    due.done.push(kept.sent.source);
                }
                Purpose::Reply { .. } | Purpose::DeadLetter => due.again.push(kept.record),
            }
        }
        due
    }

    /// Whether so many records are kept that no more requests may be read.
    pub(crate) fn is_full(&self) -> bool {
        self.kept.len() >= KEPT_MAX
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::{GroupProgress, Offset, PartitionId};

    use super::*;
    use crate::requests::at;

    /// The first `count` records of a partition.
    fn sources(count: i64) -> Vec<Consumed<usize>> {
        let mut progress = GroupProgress::default();
        progress.assign(0, PartitionId(0));
        let begin = |offset| progress.begin(0, PartitionId(0), Offset(offset)).unwrap();
        (0..count).map(begin).map(|begun| begun.record).collect()
    }

    fn reply(source: Consumed<usize>, complete_by: Now) -> Sent {
        let complete_by = complete_by.wall;
        Sent {
            source,
            purpose: Purpose::Reply { complete_by },
        }
    }

    fn dead_letter(source: Consumed<usize>) -> Sent {
        Sent {
            source,
            purpose: Purpose::DeadLetter,
        }
    }

    #[test]
    fn a_record_is_sent_again_after_a_pause_or_as_soon_as_the_queue_has_room() {
        let sources = sources(3);
        let mut resends = Resends::default();
        let mut fail = |record: u8, failure| {
            let sent = reply(sources[usize::from(record)], at(60_000));
            resends.failed(record, sent, failure, at(0).boot)
        };
        assert_eq!(fail(0, Failure::Temporary), Failed::Kept { is_first: true });
        assert_eq!(
            fail(1, Failure::QueueFull),
            Failed::Kept { is_first: false }
        );
        assert_eq!(
            fail(2, Failure::Permanent),
            Failed::Kept { is_first: false }
        );
        assert_eq!(resends.due(at(0)).again, [1]);
        assert!(resends.due(at(999)).again.is_empty());
        assert_eq!(resends.due(at(1_000)).again, [0, 2]);
        assert!(resends.is_empty());
    }

    #[test]
    fn a_reply_is_not_sent_again_past_complete_by() {
        let sources = sources(2);
        let mut resends = Resends::default();
        for (record, source) in sources.iter().enumerate() {
            let sent = reply(*source, at(1_000 + record as u64));
            resends.failed(record, sent, Failure::Temporary, at(0).boot);
        }
        let due = resends.due(at(1_000));
        assert_eq!((due.again, due.done), (vec![1], vec![sources[0]]));
    }

    #[test]
    fn only_a_dead_letter_that_is_refused_for_good_is_dropped() {
        let source = sources(1)[0];
        let mut resends = Resends::default();
        let mut fail = |sent, failure| resends.failed((), sent, failure, at(0).boot);
        let dropped = fail(dead_letter(source), Failure::Permanent);
        assert_eq!(dropped, Failed::Dropped);
        let kept = fail(dead_letter(source), Failure::Temporary);
        assert_eq!(kept, Failed::Kept { is_first: true });
        // Whatever time passes.
        assert_eq!(resends.due(at(1_000_000)).again, [()]);
    }

    #[test]
    fn reading_pauses_while_many_records_are_kept() {
        let source = sources(1)[0];
        let mut resends = Resends::default();
        for _ in 1..KEPT_MAX {
            resends.failed((), dead_letter(source), Failure::Temporary, at(0).boot);
        }
        assert!(!resends.is_full());
        resends.failed((), dead_letter(source), Failure::Temporary, at(5).boot);
        assert!(resends.is_full());
        assert_eq!(resends.due(at(1_000)).again.len(), KEPT_MAX - 1);
        assert!(!resends.is_full());
    }
}
