//! Holding a checkpoint against its log: where a reader begins, and why it may not.
//!
//! What must hold: **nothing is skipped silently**. A log that begins behind the checkpoint, ends before it, or
//! has another record below it, is refused; whoever says so in the configuration begins where the log does.

use waybill_engine::{Handover, Offset, Source};
use waybill_store::Lease;

use super::input::LogEnds;

/// Where the consumers begin.
#[derive(Clone, Debug)]
pub(super) struct StartOffsets {
    /// The first request to apply.
    pub requests: Offset,
    /// The record below it, which must have this fingerprint.
    pub verify: Option<(Offset, u64)>,
    /// The first reply to apply.
    pub replies: Offset,
    /// The first recovery to apply.
    pub recoveries: Offset,
    /// What of all that was done by those whom the reader follows.
    pub handover: Handover,
}

/// Why a log does not fit its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Unfit {
    /// It begins behind the checkpoint.
    #[error(
        "requests from offset {done} are not done, but the log begins at {begins}: its retention overtook \
         the checkpoint, and what lay between is gone; to go on all the same, set \
         scheduler.skipDeletedRequests: true"
    )]
    Overtaken {
        /// The first request that is not done.
        done: Offset,
        /// The first one that is there.
        begins: Offset,
    },
    /// It ends before the checkpoint.
    #[error(
        "requests are done up to {done}, but the log ends at {end}: this is another topic than the checkpoint \
         was taken on; if it was made anew, and what was not done of the old one is to be lost, set \
         scheduler.skipDeletedRequests: true"
    )]
    Shorter {
        /// Below it everything was done.
        done: Offset,
        /// Where the log ends.
        end: Offset,
    },
    /// A record below the checkpoint is not the one that was done.
    #[error(
        "{0}; if it was made anew, and what was not done of the old one is to be lost, set \
         scheduler.skipDeletedRequests: true"
    )]
    Differs(String),
}

impl Unfit {
    /// Has a reader begin where the log does.
    pub(super) fn pass_over(&self, row: &mut Lease, begins: Offset) {
        row.checkpoint.requests = begins;
        row.checkpoint.requests_fingerprint = None;
        row.handover.distrust(Source::Requests);
        row.consumed = match self {
            Self::Overtaken { .. } => row.consumed.max(begins),
            // Offsets of another log say nothing of this one.
            Self::Shorter { .. } | Self::Differs(_) => begins,
        };
    }
}

/// Holds the checkpoint against the log. A log that lost requests which are not done, or that ends
/// before the checkpoint, is refused: skipping silently would lose operations.
pub(super) fn start_offsets(row: &Lease, ends: LogEnds) -> Result<StartOffsets, Unfit> {
    let checkpoint = row.checkpoint;
    let (first, end) = ends.requests;
    // An owner that never got to a first renewal has done nothing that another must not do again.
    let has_done_none = row.checkpoint.requests == Offset(0) && row.consumed == Offset(0);
    let requests = if has_done_none {
        checkpoint.requests.max(first)
    } else {
        checkpoint.requests
    };
    if requests < first {
        return Err(Unfit::Overtaken {
            done: requests,
            begins: first,
        });
    }
    let mut handover = row.handover.clone();
    let done = requests.max(handover.furthest(Source::Requests));
    if done > end {
        return Err(Unfit::Shorter { done, end });
    }
    // Replies can be derived again, for every running step of a live operation is asked for anew.
    let replies = checkpoint.replies.clamp(ends.replies.0, ends.replies.1);
    // Recoveries cannot: whoever asked for one counts on it. A log that ends before the checkpoint
    // is another one, and all of it is new. (Of what is not, nothing applies twice.)
    let (first_recovery, recoveries_end) = ends.recoveries;
    let recoveries = match checkpoint.recoveries {
        beyond if beyond > recoveries_end => first_recovery,
        next => next.max(first_recovery),
    };
    for (source, end) in [
        (Source::Replies, ends.replies.1),
        (Source::Recoveries, recoveries_end),
    ] {
        if handover.furthest(source) > end {
            handover.distrust(source);
        }
    }
    let below = Offset(requests.0 - 1);
    let verify = checkpoint
        .requests_fingerprint
        .filter(|_| below >= first)
        .map(|fingerprint| (below, fingerprint));
    Ok(StartOffsets {
        requests,
        verify,
        replies,
        recoveries,
        handover,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use waybill_engine::{Division, Epoch, OwnerId, PartitionId, Places, ReaderId, Stood};
    use waybill_store::{Checkpoint, LayoutGeneration, LeaseKey};

    use super::*;

    const FINGERPRINT: u64 = 7;

    fn held(epoch: u64, requests: i64, replies: i64) -> Lease {
        let checkpoint = Checkpoint {
            requests: Offset(requests),
            replies: Offset(replies),
            requests_fingerprint: (requests > 0).then_some(FINGERPRINT),
            ..Checkpoint::default()
        };
        Lease {
            owner: Some(OwnerId(uuid::Uuid::nil())),
            epoch: Epoch(epoch),
            duration: Duration::from_secs(10),
            checkpoint,
            consumed: Offset(requests),
            ..Lease::new(
                LeaseKey::scheduler(LayoutGeneration(0), ReaderId(0)),
                PartitionId(0),
            )
        }
    }

    fn logs(requests: (i64, i64), replies: (i64, i64)) -> LogEnds {
        let ends = |(first, end)| (Offset(first), Offset(end));
        LogEnds {
            requests: ends(requests),
            replies: ends(replies),
            recoveries: ends((0, 0)),
        }
    }

    #[test]
    fn reading_begins_at_the_checkpoint_and_the_record_below_it_is_verified() {
        let start = start_offsets(&held(3, 50, 200), logs((10, 60), (0, 300))).unwrap();
        assert_eq!((start.requests, start.replies), (Offset(50), Offset(200)));
        assert_eq!(start.verify, Some((Offset(49), FINGERPRINT)));
    }

    #[test]
    fn a_record_below_the_checkpoint_that_was_deleted_is_not_verified() {
        let start = start_offsets(&held(3, 50, 200), logs((50, 60), (0, 300))).unwrap();
        assert_eq!((start.requests, start.verify), (Offset(50), None));
    }

    #[test]
    fn requests_that_are_not_done_and_gone_or_not_there_are_refused() {
        let overtaken = start_offsets(&held(3, 50, 0), logs((51, 60), (0, 0))).unwrap_err();
        assert!(matches!(overtaken, Unfit::Overtaken { .. }), "{overtaken}");
        let another = start_offsets(&held(3, 50, 0), logs((0, 49), (0, 0))).unwrap_err();
        assert!(matches!(another, Unfit::Shorter { .. }), "{another}");
    }

    #[test]
    fn what_is_gone_may_be_passed_over_and_the_rest_of_the_log_is_read() {
        let passed = |checkpoint: i64, consumed: i64, ends: LogEnds| {
            let mut row = held(3, checkpoint, 0);
            row.consumed = Offset(consumed);
            let unfit = start_offsets(&row, ends).unwrap_err();
            unfit.pass_over(&mut row, ends.requests.0);
            let start = start_offsets(&row, ends).unwrap();
            (start.requests.0, start.verify, row.consumed.0)
        };
        assert_eq!(passed(50, 55, logs((52, 60), (0, 0))), (52, None, 55));
        assert_eq!(passed(50, 50, logs((58, 60), (0, 0))), (58, None, 58));
        assert_eq!(passed(50, 55, logs((0, 10), (0, 0))), (0, None, 0));

        let mut row = held(3, 50, 0);
        let ends = logs((0, 60), (0, 0));
        Unfit::Differs(String::new()).pass_over(&mut row, ends.requests.0);
        let start = start_offsets(&row, ends).unwrap();
        assert_eq!((start.requests, start.verify), (Offset(0), None));
    }

    #[test]
    fn the_first_owner_of_all_begins_where_the_log_does() {
        let start = start_offsets(&held(1, 0, 0), logs((40, 60), (5, 9))).unwrap();
        assert_eq!((start.requests, start.replies), (Offset(40), Offset(5)));
        // Its predecessor never got to a first renewal.
        let mut second = held(2, 0, 0);
        assert!(start_offsets(&second, logs((40, 60), (5, 9))).is_ok());
        second.consumed = Offset(1);
        assert!(start_offsets(&second, logs((40, 60), (5, 9))).is_err());
    }

    #[test]
    fn replies_that_were_lost_with_the_machine_do_not_stop_a_partition() {
        let start = start_offsets(&held(3, 50, 900), logs((0, 60), (100, 300))).unwrap();
        assert_eq!(start.replies, Offset(300));
    }

    #[test]
    fn what_those_who_are_followed_had_done_is_held_against_the_logs_as_well() {
        let merged = |stood: i64, ends: LogEnds| {
            let mut held = held(3, 50, 200);
            let stood = Stood {
                division: Division {
                    partitions: 1,
                    readers_per_partition: 2,
                },
                reader: ReaderId(1),
                at: Places {
                    requests: Offset(stood),
                    replies: Offset(280),
                    recoveries: Offset(0),
                },
            };
            held.handover = Handover::new([stood], |_| Offset(0));
            start_offsets(&held, ends)
        };
        let start = merged(58, logs((0, 60), (0, 300))).unwrap();
        assert_eq!(start.handover.furthest(Source::Replies), Offset(280));
        let lost_replies = merged(58, logs((0, 60), (0, 270))).unwrap();
        assert_eq!(lost_replies.replies, Offset(200));
        assert_eq!(lost_replies.handover.furthest(Source::Replies), Offset(0));
        assert_eq!(lost_replies.handover.furthest(Source::Requests), Offset(58));
        let lost_requests = merged(58, logs((0, 55), (0, 300))).unwrap_err();
        let done = Offset(58);
        let end = Offset(55);
        assert_eq!(lost_requests, Unfit::Shorter { done, end });
    }

    #[test]
    fn recoveries_of_a_log_that_was_made_anew_are_all_read() {
        let recoveries_from = |checkpoint, first, end| {
            let mut held = held(3, 50, 0);
            held.checkpoint.recoveries = Offset(checkpoint);
            let mut ends = logs((0, 60), (0, 0));
            ends.recoveries = (Offset(first), Offset(end));
            start_offsets(&held, ends).unwrap().recoveries.0
        };
        assert_eq!(recoveries_from(7, 0, 9), 7);
        assert_eq!(recoveries_from(7, 8, 9), 8, "retention took what was done");
        assert_eq!(recoveries_from(7, 0, 5), 0);
    }
}
