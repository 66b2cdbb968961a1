//! Holding a checkpoint against its log: where a reader begins, and why it may not.
//!
//! What must hold: **nothing is skipped silently**. A log that begins behind the checkpoint, ends before it, or
//! has another record below it, is refused; whoever says so in the configuration begins where the log does.

use std::fmt;

use waybill_engine::{ByLane, Handover, Lane, Offset, Places, Source};
use waybill_store::Lease;

use super::input::LogEnds;

/// Where the consumers begin.
#[derive(Clone, Debug)]
pub(super) struct StartOffsets {
    /// The first record of each topic to apply.
    pub at: Places,
    /// The record below the first request of each lane, which must have this fingerprint.
    pub verify: ByLane<Option<(Offset, u64)>>,
    /// What of all that was done by those whom the reader follows.
    pub handover: Handover,
}

/// Why a log of requests does not fit its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unfit {
    /// Which one.
    pub lane: Lane,
    /// Why.
    pub why: Misfit,
}

/// Why a log does not fit its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Misfit {
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

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lane {
            Lane::Ordinary => write!(f, "{}", self.why),
            Lane::Expedited => write!(f, "expedited requests: {}", self.why),
        }
    }
}

impl Unfit {
    /// Has a reader begin where the log does.
    pub(super) fn pass_over(&self, row: &mut Lease, first: &Places) {
        let source = self.lane.source();
        let begins = first.on(source);
        *row.checkpoint.at.on_mut(source) = begins;
        row.checkpoint.fingerprints[self.lane] = None;
        row.handover.distrust(source);
        row.consumed[self.lane] = match self.why {
            Misfit::Overtaken { .. } => row.consumed[self.lane].max(begins),
            // Offsets of another log say nothing of this one.
            Misfit::Shorter { .. } | Misfit::Differs(_) => begins,
        };
    }
}

/// Holds the checkpoint against the logs. A log that lost requests which are not done, or that ends
/// before the checkpoint, is refused: skipping silently would lose operations.
pub(super) fn start_offsets(row: &Lease, ends: &LogEnds) -> Result<StartOffsets, Unfit> {
    let checkpoint = row.checkpoint;
    let mut handover = row.handover.clone();
    // An owner that never got to a first renewal has done nothing that another must not do again.
    let has_done_none = Lane::ALL
        .into_iter()
        .all(|lane| checkpoint.on(lane.source()) == Offset(0) && row.consumed[lane] == Offset(0));
    let mut at = Places::default();
    let mut verify = ByLane::default();
    for lane in Lane::ALL {
        let source = lane.source();
        let (first, end) = (ends.first.on(source), ends.next.on(source));
        let begin = match has_done_none {
            true => checkpoint.on(source).max(first),
            false => checkpoint.on(source),
        };
        let unfit = |why| Unfit { lane, why };
        if begin < first {
            return Err(unfit(Misfit::Overtaken {
                done: begin,
                begins: first,
            }));
        }
        let done = begin.max(handover.furthest(source));
        if done > end {
            return Err(unfit(Misfit::Shorter { done, end }));
        }
        *at.on_mut(source) = begin;
        let below = Offset(begin.0 - 1);
        verify[lane] = checkpoint.fingerprints[lane]
            .filter(|_| below >= first)
            .map(|fingerprint| (below, fingerprint));
    }
    // Replies can be derived again, for every running step of a live operation is asked for anew.
    at.replies = checkpoint
        .at
        .replies
        .clamp(ends.first.replies, ends.next.replies);
    // Recoveries cannot: whoever asked for one counts on it. A log that ends before the checkpoint
    // is another one, and all of it is new. (Of what is not, nothing applies twice.)
    at.recoveries = match checkpoint.at.recoveries {
        beyond if beyond > ends.next.recoveries => ends.first.recoveries,
        next => next.max(ends.first.recoveries),
    };
    for source in [Source::Replies, Source::Recoveries] {
        if handover.furthest(source) > ends.next.on(source) {
            handover.distrust(source);
        }
    }
    Ok(StartOffsets {
        at,
        verify,
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
            at: Places {
                requests: Offset(requests),
                replies: Offset(replies),
                ..Places::default()
            },
            fingerprints: ByLane {
                ordinary: (requests > 0).then_some(FINGERPRINT),
                expedited: None,
            },
        };
        Lease {
            owner: Some(OwnerId(uuid::Uuid::nil())),
            epoch: Epoch(epoch),
            duration: Duration::from_secs(10),
            checkpoint,
            consumed: ByLane {
                ordinary: Offset(requests),
                expedited: Offset(0),
            },
            ..Lease::new(
                LeaseKey::scheduler(LayoutGeneration(0), ReaderId(0)),
                PartitionId(0),
            )
        }
    }

    fn logs(requests: (i64, i64), replies: (i64, i64)) -> LogEnds {
        let places = |requests, replies| Places {
            requests: Offset(requests),
            replies: Offset(replies),
            ..Places::default()
        };
        LogEnds {
            first: places(requests.0, replies.0),
            next: places(requests.1, replies.1),
        }
    }

    #[test]
    fn reading_begins_at_the_checkpoint_and_the_record_below_it_is_verified() {
        let start = start_offsets(&held(3, 50, 200), &logs((10, 60), (0, 300))).unwrap();
        assert_eq!(
            (start.at.requests, start.at.replies),
            (Offset(50), Offset(200))
        );
        assert_eq!(start.verify.ordinary, Some((Offset(49), FINGERPRINT)));
    }

    #[test]
    fn a_record_below_the_checkpoint_that_was_deleted_is_not_verified() {
        let start = start_offsets(&held(3, 50, 200), &logs((50, 60), (0, 300))).unwrap();
        assert_eq!(
            (start.at.requests, start.verify.ordinary),
            (Offset(50), None)
        );
    }

    #[test]
    fn requests_that_are_not_done_and_gone_or_not_there_are_refused() {
        let overtaken = start_offsets(&held(3, 50, 0), &logs((51, 60), (0, 0))).unwrap_err();
        assert!(
            matches!(overtaken.why, Misfit::Overtaken { .. }),
            "{overtaken}"
        );
        let another = start_offsets(&held(3, 50, 0), &logs((0, 49), (0, 0))).unwrap_err();
        assert!(matches!(another.why, Misfit::Shorter { .. }), "{another}");
    }

    #[test]
    fn what_is_gone_may_be_passed_over_and_the_rest_of_the_log_is_read() {
        let passed = |checkpoint: i64, consumed: i64, ends: LogEnds| {
            let mut row = held(3, checkpoint, 0);
            row.consumed.ordinary = Offset(consumed);
            let unfit = start_offsets(&row, &ends).unwrap_err();
            unfit.pass_over(&mut row, &ends.first);
            let start = start_offsets(&row, &ends).unwrap();
            (
                start.at.requests.0,
                start.verify.ordinary,
                row.consumed.ordinary.0,
            )
        };
        assert_eq!(passed(50, 55, logs((52, 60), (0, 0))), (52, None, 55));
        assert_eq!(passed(50, 50, logs((58, 60), (0, 0))), (58, None, 58));
        assert_eq!(passed(50, 55, logs((0, 10), (0, 0))), (0, None, 0));

        let mut row = held(3, 50, 0);
        let ends = logs((0, 60), (0, 0));
        let unfit = Unfit {
            lane: Lane::Ordinary,
            why: Misfit::Differs(String::new()),
        };
        unfit.pass_over(&mut row, &ends.first);
        let start = start_offsets(&row, &ends).unwrap();
        assert_eq!(
            (start.at.requests, start.verify.ordinary),
            (Offset(0), None)
        );
    }

    #[test]
    fn the_first_owner_of_all_begins_where_the_log_does() {
        let start = start_offsets(&held(1, 0, 0), &logs((40, 60), (5, 9))).unwrap();
        assert_eq!(
            (start.at.requests, start.at.replies),
            (Offset(40), Offset(5))
        );
        // Its predecessor never got to a first renewal.
        let mut second = held(2, 0, 0);
        assert!(start_offsets(&second, &logs((40, 60), (5, 9))).is_ok());
        second.consumed.ordinary = Offset(1);
        assert!(start_offsets(&second, &logs((40, 60), (5, 9))).is_err());
    }

    #[test]
    fn replies_that_were_lost_with_the_machine_do_not_stop_a_partition() {
        let start = start_offsets(&held(3, 50, 900), &logs((0, 60), (100, 300))).unwrap();
        assert_eq!(start.at.replies, Offset(300));
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
                    ..Places::default()
                },
            };
            held.handover = Handover::new([stood], |_| Offset(0));
            start_offsets(&held, &ends)
        };
        let start = merged(58, logs((0, 60), (0, 300))).unwrap();
        assert_eq!(start.handover.furthest(Source::Replies), Offset(280));
        let lost_replies = merged(58, logs((0, 60), (0, 270))).unwrap();
        assert_eq!(lost_replies.at.replies, Offset(200));
        assert_eq!(lost_replies.handover.furthest(Source::Replies), Offset(0));
        assert_eq!(lost_replies.handover.furthest(Source::Requests), Offset(58));
        let lost_requests = merged(58, logs((0, 55), (0, 300))).unwrap_err();
        let done = Offset(58);
        let end = Offset(55);
        assert_eq!(lost_requests.why, Misfit::Shorter { done, end });
    }

    #[test]
    fn recoveries_of_a_log_that_was_made_anew_are_all_read() {
        let recoveries_from = |checkpoint, first, end| {
            let mut held = held(3, 50, 0);
            held.checkpoint.at.recoveries = Offset(checkpoint);
            let mut ends = logs((0, 60), (0, 0));
            ends.first.recoveries = Offset(first);
            ends.next.recoveries = Offset(end);
            start_offsets(&held, &ends).unwrap().at.recoveries.0
        };
        assert_eq!(recoveries_from(7, 0, 9), 7);
        assert_eq!(recoveries_from(7, 8, 9), 8, "retention took what was done");
        assert_eq!(recoveries_from(7, 0, 5), 0);
    }

    #[test]
    fn each_topic_of_requests_is_held_against_its_own_checkpoint() {
        let of = |checkpoint: i64, first: i64, end: i64| {
            let mut row = held(3, 50, 0);
            row.checkpoint.at.expedited = Offset(checkpoint);
            row.consumed.expedited = Offset(checkpoint);
            row.checkpoint.fingerprints.expedited = Some(FINGERPRINT + 1);
            let mut ends = logs((0, 60), (0, 0));
            ends.first.expedited = Offset(first);
            ends.next.expedited = Offset(end);
            start_offsets(&row, &ends)
        };
        let start = of(8, 0, 9).unwrap();
        assert_eq!(
            (start.at.requests, start.at.expedited),
            (Offset(50), Offset(8))
        );
        assert_eq!(start.verify.expedited, Some((Offset(7), FINGERPRINT + 1)));
        let overtaken = of(8, 9, 9).unwrap_err();
        assert_eq!(overtaken.lane, Lane::Expedited);
        assert!(overtaken.to_string().starts_with("expedited requests: "));
        // The other lane was run, so what is gone here was not done.
        assert!(of(0, 1, 9).is_err());
        assert!(of(0, 0, 9).is_ok());
    }

    #[test]
    fn both_topics_may_be_passed_over_one_after_the_other() {
        let mut row = held(3, 50, 0);
        row.checkpoint.at.expedited = Offset(8);
        row.consumed.expedited = Offset(9);
        let mut ends = logs((52, 60), (0, 0));
        ends.next.expedited = Offset(3);
        let mut passed = Vec::new();
        let start = loop {
            match start_offsets(&row, &ends) {
                Ok(start) => break start,
                Err(unfit) => {
                    unfit.pass_over(&mut row, &ends.first);
                    passed.push(unfit.lane);
                }
            }
        };
        assert_eq!(passed, Lane::ALL);
        assert_eq!(
            (start.at.requests, start.at.expedited),
            (Offset(52), Offset(0))
        );
        assert_eq!(row.consumed.expedited, Offset(0), "it is another log");
    }
}
