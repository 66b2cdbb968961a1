//! Compares a checkpoint with its logs, and decides where a reader begins or why it is refused.
//!
//! What must hold: **nothing is skipped silently**. Requests and recoveries must be read to the end. A log of these that
//! begins behind the checkpoint, ends before it, or has another record below it is refused. A person may set
//! `scheduler.skipDeletedRequests`; the reader then begins where the log does.
//!
//! A checkpoint where the log begins has no record below it. Its fingerprint is then that of the topic: the first half of
//! the ID that the brokers gave it when it was made. So a topic that is made anew before any of its requests was done is
//! refused as well. A version that does not know this reads such a lease as any other. There is no fingerprint where the
//! brokers tell no ID, nor in a lease of such a version, before its next owner has written it.
//!
//! The lease of the first owner stores where each log began when it was taken, so that every checkpoint is one that an
//! owner has stored: a checkpoint of 0 means that offset 0 was not done.

use std::fmt;

use waybill_engine::{ByLane, Handover, Lane, Offset, Places, Source};
use waybill_kafka::TopicId;
use waybill_store::Lease;

use super::input::LogEnds;

/// The topics whose records must all be read. Replies need not: every running step of a live operation is asked for
/// again.
const READ_WHOLE: [Source; 3] = [Source::Requests, Source::Expedited, Source::Recoveries];

/// The fingerprint of what no client can decode: there is nothing to take one of, so nothing is held against it.
pub(super) const UNDECODABLE: u64 = 0;

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

/// A log that does not fit its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unfit {
    /// Its topic.
    pub source: Source,
    /// Why.
    pub why: Misfit,
}

/// Why a log does not fit its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Misfit {
    /// It begins behind the checkpoint.
    #[error(
        "records from offset {done} on are not done, but the log begins at {begins}: its retention overtook \
         the checkpoint, and the records between are gone; to go on without them, set \
         scheduler.skipDeletedRequests: true"
    )]
    Overtaken {
        /// The first record that is not done.
        done: Offset,
        /// The first one that is there.
        begins: Offset,
    },
    /// It ends before the checkpoint.
    #[error(
        "records are done up to offset {done}, but the log ends at {end}: this is another topic than the checkpoint \
         was taken on; if it was recreated and the unfinished records of the old one may be lost, set \
         scheduler.skipDeletedRequests: true"
    )]
    Shorter {
        /// Below it everything was done.
        done: Offset,
        /// Where the log ends.
        end: Offset,
    },
    /// Nothing of it was done, and it is of another topic.
    #[error(
        "nothing of it was done, but its topic was deleted and created again: the ID was {}... and is {found} now, and \
         requests that the old one held are gone; to go on without them, set scheduler.skipDeletedRequests: true",
        TopicId::shown_by_head(*.expected)
    )]
    Recreated {
        /// The fingerprint of the topic that the checkpoint was taken on.
        expected: u64,
        /// The topic that there is.
        found: TopicId,
    },
    /// A record below the checkpoint is not the one that was done.
    #[error(
        "{0}; if the topic was recreated and the unfinished records of the old one may be lost, set \
         scheduler.skipDeletedRequests: true"
    )]
    Differs(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topic = match self.source {
            Source::Requests => "requests",
            Source::Expedited => "expedited requests",
            Source::Replies => "replies",
            Source::Recoveries => "recoveries",
        };
        write!(f, "{topic}: {}", self.why)
    }
}

impl Unfit {
    /// Has a reader begin where the log does.
    pub(super) fn pass_over(&self, row: &mut Lease, first: &Places) {
        let begins = first.on(self.source);
        *row.checkpoint.at.on_mut(self.source) = begins;
        row.handover.distrust(self.source);
        let Some(lane) = self.source.lane() else {
            return;
        };
        row.checkpoint.fingerprints[lane] = None;
        row.consumed[lane] = match self.why {
            Misfit::Overtaken { .. } => row.consumed[lane].max(begins),
            // Offsets of another log say nothing of this one.
            Misfit::Shorter { .. } | Misfit::Recreated { .. } | Misfit::Differs(_) => begins,
        };
    }
}

/// Compares the checkpoint of a lease that has begun with the logs, and returns where to read from.
///
/// # Errors
///
/// [`Unfit`] names the first log that lost records which are not done, ends before the checkpoint, or is of another topic
/// than the one of which nothing was done.
pub(super) fn start_offsets(row: &Lease, ends: &LogEnds) -> Result<StartOffsets, Unfit> {
    let checkpoint = row.checkpoint;
    let mut handover = row.handover.clone();
    let mut at = Places::default();
    for source in READ_WHOLE {
        let (first, end) = (ends.first.on(source), ends.next.on(source));
        let begin = checkpoint.on(source);
        let unfit = |why| Unfit { source, why };
        if begin == Offset(0)
            && let Some(lane) = source.lane()
            && let Some(expected) = checkpoint.fingerprints[lane]
            && let Some(found) = ends.topics[lane]
            && found.head() != expected
        {
            return Err(unfit(Misfit::Recreated { expected, found }));
        }
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
    }
    at.replies = checkpoint
        .at
        .replies
        .clamp(ends.first.replies, ends.next.replies);
    if handover.furthest(Source::Replies) > ends.next.replies {
        handover.distrust(Source::Replies);
    }
    let verify = ByLane::of(|lane: Lane| {
        let source = lane.source();
        let below = Offset(at.on(source).0 - 1);
        let fingerprint = checkpoint.fingerprints[lane];
        let fingerprint = fingerprint
            .filter(|_| below >= ends.first.on(source))
            .filter(|fingerprint| *fingerprint != UNDECODABLE);
        fingerprint.map(|fingerprint| (below, fingerprint))
    });
    Ok(StartOffsets {
        at,
        verify,
        handover,
    })
}

/// Has a lease hold the fingerprint of a topic where none of a record can be known. Returns whether that changed it.
///
/// Any other version that compares it with a record does so only where the log has one below the checkpoint, where it
/// had none before: it refuses another topic, too.
pub(super) fn remember_topics(row: &mut Lease, ends: &LogEnds) -> bool {
    let mut is_changed = false;
    for lane in Lane::ALL {
        let source = lane.source();
        let is_at_the_beginning = row.checkpoint.on(source) == ends.first.on(source);
        let fingerprint = &mut row.checkpoint.fingerprints[lane];
        if is_at_the_beginning
            && fingerprint.is_none()
            && let Some(topic) = ends.topics[lane]
        {
            *fingerprint = Some(topic.head());
            is_changed = true;
        }
    }
    is_changed
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
            topics: ByLane::default(),
        }
    }

    /// The same, of topics with these IDs.
    fn logs_of(ids: (u128, u128), requests: (i64, i64)) -> LogEnds {
        LogEnds {
            topics: ByLane {
                ordinary: Some(TopicId(ids.0 << 64)),
                expedited: Some(TopicId(ids.1 << 64)),
            },
            ..logs(requests, (0, 0))
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
    fn what_no_client_can_decode_is_not_verified_and_not_read_again() {
        let mut row = held(3, 50, 200);
        row.checkpoint.fingerprints.ordinary = Some(UNDECODABLE);
        let start = start_offsets(&row, &logs((10, 60), (0, 300))).unwrap();
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
            source: Source::Requests,
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
    fn an_owner_that_has_consumed_nothing_is_refused_a_log_whose_beginning_is_gone() {
        let new = Lease {
            owner: None,
            ..held(0, 0, 0)
        };
        let of_new_logs = logs((0, 0), (0, 0));
        let idle = new.clone().beginning_at(of_new_logs.first);
        assert!(start_offsets(&idle, &of_new_logs).is_ok());
        let overtaken = start_offsets(&idle, &logs((40, 60), (5, 9))).unwrap_err();
        let (done, begins) = (Offset(0), Offset(40));
        assert_eq!(overtaken.why, Misfit::Overtaken { done, begins });

        // The same on logs that had lost their beginnings before anybody owned them.
        let of_old_logs = logs((40, 60), (5, 9));
        let idle = new.beginning_at(of_old_logs.first);
        let start = start_offsets(&idle, &of_old_logs).unwrap();
        assert_eq!(
            (start.at.requests, start.at.replies),
            (Offset(40), Offset(5))
        );
        assert!(start_offsets(&idle, &logs((41, 60), (5, 9))).is_err());
    }

    #[test]
    fn a_topic_of_which_nothing_was_done_is_known_by_its_id() {
        let mut row = held(3, 0, 0);
        assert!(remember_topics(&mut row, &logs_of((5, 6), (0, 0))));
        let remembered = row.clone();
        assert!(!remember_topics(&mut row, &logs_of((5, 6), (0, 9))));
        assert_eq!(row, remembered);
        let same = start_offsets(&row, &logs_of((5, 6), (0, 9))).unwrap();
        assert_eq!(
            (same.at.requests, same.verify.ordinary),
            (Offset(0), None),
            "there is no record to verify"
        );

        for (ids, ends, source, expected) in [
            ((7, 6), (0, 0), Source::Requests, 5),
            ((7, 6), (0, 9), Source::Requests, 5),
            // Whatever retention has taken from it since.
            ((7, 6), (4, 9), Source::Requests, 5),
            ((5, 8), (0, 0), Source::Expedited, 6),
        ] {
            let ends = logs_of(ids, ends);
            let unfit = start_offsets(&row, &ends).unwrap_err();
            let found = ends.topics[source.lane().unwrap()].unwrap();
            let why = Misfit::Recreated { expected, found };
            assert_eq!(unfit, Unfit { source, why });
        }
    }

    #[test]
    fn a_topic_that_was_made_anew_may_be_passed_over_and_is_the_one_to_remember() {
        let mut row = held(3, 0, 0);
        remember_topics(&mut row, &logs_of((5, 6), (0, 0)));
        row.consumed.ordinary = Offset(3);
        let anew = logs_of((7, 6), (2, 9));
        let unfit = start_offsets(&row, &anew).unwrap_err();
        unfit.pass_over(&mut row, &anew.first);
        let start = start_offsets(&row, &anew).unwrap();
        assert_eq!(
            (start.at.requests, row.consumed.ordinary),
            (Offset(2), Offset(2))
        );
        assert!(remember_topics(&mut row, &anew));
        assert_eq!(
            row.checkpoint.fingerprints,
            ByLane {
                ordinary: Some(7),
                expedited: Some(6)
            }
        );
    }

    #[test]
    fn a_refused_topic_is_named_with_both_ids() {
        let unfit = Unfit {
            source: Source::Requests,
            why: Misfit::Recreated {
                expected: 0x9f31_5c5c_76e5_4c6a,
                found: TopicId(0),
            },
        };
        let said = unfit.to_string();
        assert!(
            said.starts_with("requests: nothing of it was done"),
            "{said}"
        );
        assert!(
            said.contains("the ID was nzFcXHblTG... and is AAAAAAAAAAAAAAAAAAAAAA now"),
            "{said}"
        );
    }

    #[test]
    fn without_an_id_of_the_topic_then_or_now_nothing_is_refused() {
        let mut row = held(3, 0, 0);
        let told = logs_of((5, 6), (0, 9));
        let untold = logs((0, 9), (0, 0));
        assert!(!remember_topics(&mut row, &untold));
        assert!(
            start_offsets(&row, &told).is_ok(),
            "a lease of an older version"
        );
        assert!(remember_topics(&mut row, &told));
        assert!(start_offsets(&row, &untold).is_ok(), "an older broker");
    }

    #[test]
    fn a_fingerprint_of_a_record_is_neither_replaced_nor_taken_for_one_of_a_topic() {
        let mut row = held(3, 50, 0);
        row.checkpoint.fingerprints.expedited = Some(6);
        let ends = logs_of((5, 6), (50, 60));
        assert!(!remember_topics(&mut row, &ends));
        assert_eq!(row.checkpoint.fingerprints.ordinary, Some(FINGERPRINT));
        assert!(start_offsets(&row, &ends).is_ok());
        row.checkpoint.fingerprints.ordinary = None;
        let ends = logs_of((5, 6), (10, 60));
        assert!(!remember_topics(&mut row, &ends), "it is that of a record");
    }

    /// The reader of such a log has done nothing either, but not from offset 0 on.
    #[test]
    fn a_topic_that_was_read_from_a_later_offset_on_is_not_taken_for_a_fuller_one() {
        let mut row = held(3, 50, 0);
        row.checkpoint.fingerprints.ordinary = None;
        remember_topics(&mut row, &logs_of((5, 6), (50, 50)));
        let same = start_offsets(&row, &logs_of((5, 6), (50, 60))).unwrap();
        assert_eq!(same.verify.ordinary, None);
        let anew = start_offsets(&row, &logs_of((7, 6), (0, 60))).unwrap();
        assert_eq!(
            anew.verify.ordinary,
            Some((Offset(49), 5)),
            "no record has it"
        );
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
    fn recoveries_that_are_not_done_and_gone_or_not_there_are_refused_until_a_person_passes_over_them()
     {
        let recoveries_from = |checkpoint, first, end| {
            let mut row = held(3, 50, 0);
            row.checkpoint.at.recoveries = Offset(checkpoint);
            let mut ends = logs((0, 60), (0, 0));
            ends.first.recoveries = Offset(first);
            ends.next.recoveries = Offset(end);
            let unfit = match start_offsets(&row, &ends) {
                Ok(start) => return (start.at.recoveries.0, None),
                Err(unfit) => unfit,
            };
            assert_eq!(unfit.source, Source::Recoveries);
            unfit.pass_over(&mut row, &ends.first);
            let start = start_offsets(&row, &ends).unwrap();
            (start.at.recoveries.0, Some(unfit.why))
        };
        let (done, begins, end) = (Offset(7), Offset(8), Offset(5));
        assert_eq!(recoveries_from(7, 0, 9), (7, None));
        assert_eq!(
            recoveries_from(7, 7, 7),
            (7, None),
            "all that is gone was done"
        );
        let overtaken = Misfit::Overtaken { done, begins };
        assert_eq!(recoveries_from(7, 8, 9), (8, Some(overtaken)));
        let shorter = Misfit::Shorter { done, end };
        assert_eq!(recoveries_from(7, 2, 5), (2, Some(shorter)));
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
        assert_eq!(overtaken.source, Source::Expedited);
        assert!(overtaken.to_string().starts_with("expedited requests: "));
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
                    passed.push(unfit.source);
                }
            }
        };
        assert_eq!(passed, [Source::Requests, Source::Expedited]);
        assert_eq!(
            (start.at.requests, start.at.expedited),
            (Offset(52), Offset(0))
        );
        assert_eq!(row.consumed.expedited, Offset(0), "it is another log");
    }
}
