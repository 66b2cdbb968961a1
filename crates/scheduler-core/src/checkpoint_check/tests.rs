use std::time::Duration;

use waybill_engine::{
    Epoch, OwnerId, PartitionId, ResumeOffsets, ShardHandover, ShardId, ShardingScheme,
    TopicOffsets,
};
use waybill_state::{Checkpoint, LayoutGeneration, LeaseKey};

use super::*;

const FINGERPRINT: u64 = 7;

fn held(epoch: u64, requests: i64, replies: i64) -> Lease {
    let checkpoint = Checkpoint {
        at: TopicOffsets {
            requests: Offset(requests),
            replies: Offset(replies),
            ..TopicOffsets::default()
        },
        fingerprints: ByPriority {
            normal: (requests > 0).then_some(FINGERPRINT),
            high: None,
        },
    };
    Lease {
        owner: Some(OwnerId(uuid::Uuid::nil())),
        epoch: Epoch(epoch),
        duration: Duration::from_secs(10),
        checkpoint,
        consumed: ByPriority {
            normal: Offset(requests),
            high: Offset(0),
        },
        ..Lease::new(
            LeaseKey::scheduler(LayoutGeneration(0), ShardId(0)),
            PartitionId(0),
        )
    }
}

fn logs(requests: (i64, i64), replies: (i64, i64)) -> LogEnds {
    let offsets = |requests, replies| TopicOffsets {
        requests: Offset(requests),
        replies: Offset(replies),
        ..TopicOffsets::default()
    };
    LogEnds {
        first: offsets(requests.0, replies.0),
        next: offsets(requests.1, replies.1),
        topics: ByPriority::default(),
    }
}

/// The logs of topics with these IDs.
fn logs_of(ids: (u128, u128), requests: (i64, i64)) -> LogEnds {
    LogEnds {
        topics: ByPriority {
            normal: Some(TopicId(ids.0 << 64)),
            high: Some(TopicId(ids.1 << 64)),
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
    assert_eq!(start.verify.normal, Some((Offset(49), FINGERPRINT)));
}

#[test]
fn a_record_below_the_checkpoint_that_was_deleted_is_not_verified() {
    let start = start_offsets(&held(3, 50, 200), &logs((50, 60), (0, 300))).unwrap();
    assert_eq!((start.at.requests, start.verify.normal), (Offset(50), None));
}

#[test]
fn an_undecodable_record_is_neither_verified_nor_read_again() {
    let mut row = held(3, 50, 200);
    row.checkpoint.fingerprints.normal = Some(UNDECODABLE);
    let start = start_offsets(&row, &logs((10, 60), (0, 300))).unwrap();
    assert_eq!((start.at.requests, start.verify.normal), (Offset(50), None));
}

#[test]
fn a_log_that_lacks_unfinished_requests_is_refused() {
    let overtaken = start_offsets(&held(3, 50, 0), &logs((51, 60), (0, 0))).unwrap_err();
    assert!(
        matches!(overtaken.why, MismatchCause::Overtaken { .. }),
        "{overtaken}"
    );
    let another = start_offsets(&held(3, 50, 0), &logs((0, 49), (0, 0))).unwrap_err();
    assert!(
        matches!(another.why, MismatchCause::Shorter { .. }),
        "{another}"
    );
}

#[test]
fn deleted_requests_may_be_skipped_and_the_rest_of_the_log_is_read() {
    let passed = |checkpoint: i64, consumed: i64, ends: LogEnds| {
        let mut row = held(3, checkpoint, 0);
        row.consumed.normal = Offset(consumed);
        let mismatch = start_offsets(&row, &ends).unwrap_err();
        mismatch.pass_over(&mut row, &ends.first);
        let start = start_offsets(&row, &ends).unwrap();
        (
            start.at.requests.0,
            start.verify.normal,
            row.consumed.normal.0,
        )
    };
    assert_eq!(passed(50, 55, logs((52, 60), (0, 0))), (52, None, 55));
    assert_eq!(passed(50, 50, logs((58, 60), (0, 0))), (58, None, 58));
    assert_eq!(passed(50, 55, logs((0, 10), (0, 0))), (0, None, 0));

    let mut row = held(3, 50, 0);
    let ends = logs((0, 60), (0, 0));
    let mismatch = CheckpointMismatch {
        source: Source::Requests,
        why: MismatchCause::Differs(String::new()),
    };
    mismatch.pass_over(&mut row, &ends.first);
    let start = start_offsets(&row, &ends).unwrap();
    assert_eq!((start.at.requests, start.verify.normal), (Offset(0), None));
}

#[test]
fn a_log_without_its_beginning_is_refused_to_a_new_owner() {
    let new = Lease {
        owner: None,
        ..held(0, 0, 0)
    };
    let of_new_logs = logs((0, 0), (0, 0));
    let idle = new.clone().beginning_at(of_new_logs.first);
    assert!(start_offsets(&idle, &of_new_logs).is_ok());
    let overtaken = start_offsets(&idle, &logs((40, 60), (5, 9))).unwrap_err();
    let (done, begins) = (Offset(0), Offset(40));
    assert_eq!(overtaken.why, MismatchCause::Overtaken { done, begins });

    // The same, for logs that had lost their beginnings before they had an owner.
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
fn a_topic_without_finished_requests_is_identified_by_its_id() {
    let mut row = held(3, 0, 0);
    assert!(remember_topics(&mut row, &logs_of((5, 6), (0, 0))));
    let remembered = row.clone();
    assert!(!remember_topics(&mut row, &logs_of((5, 6), (0, 9))));
    assert_eq!(row, remembered);
    let same = start_offsets(&row, &logs_of((5, 6), (0, 9))).unwrap();
    assert_eq!(
        (same.at.requests, same.verify.normal),
        (Offset(0), None),
        "there is no record to verify"
    );

    for (ids, ends, source, expected) in [
        ((7, 6), (0, 0), Source::Requests, 5),
        ((7, 6), (0, 9), Source::Requests, 5),
        // Whatever retention has deleted since.
        ((7, 6), (4, 9), Source::Requests, 5),
        ((5, 8), (0, 0), Source::HighPriority, 6),
    ] {
        let ends = logs_of(ids, ends);
        let mismatch = start_offsets(&row, &ends).unwrap_err();
        let found = ends.topics[source.priority().unwrap()].unwrap();
        let why = MismatchCause::Recreated { expected, found };
        assert_eq!(mismatch, CheckpointMismatch { source, why });
    }
}

#[test]
fn a_recreated_topic_may_be_accepted_and_is_then_remembered() {
    let mut row = held(3, 0, 0);
    remember_topics(&mut row, &logs_of((5, 6), (0, 0)));
    row.consumed.normal = Offset(3);
    let anew = logs_of((7, 6), (2, 9));
    let mismatch = start_offsets(&row, &anew).unwrap_err();
    mismatch.pass_over(&mut row, &anew.first);
    let start = start_offsets(&row, &anew).unwrap();
    assert_eq!(
        (start.at.requests, row.consumed.normal),
        (Offset(2), Offset(2))
    );
    assert!(remember_topics(&mut row, &anew));
    assert_eq!(
        row.checkpoint.fingerprints,
        ByPriority {
            normal: Some(7),
            high: Some(6)
        }
    );
}

#[test]
fn a_refused_topic_is_named_with_both_ids() {
    let mismatch = CheckpointMismatch {
        source: Source::Requests,
        why: MismatchCause::Recreated {
            expected: 0x9f31_5c5c_76e5_4c6a,
            found: TopicId(0),
        },
    };
    let message = mismatch.to_string();
    assert!(
        message.starts_with("requests: no record is done"),
        "{message}"
    );
    assert!(
        message.contains("its id was nzFcXHblTG... and is now AAAAAAAAAAAAAAAAAAAAAA"),
        "{message}"
    );
}

#[test]
fn without_an_old_or_a_new_topic_id_nothing_is_refused() {
    let mut row = held(3, 0, 0);
    let with_ids = logs_of((5, 6), (0, 9));
    let without_ids = logs((0, 9), (0, 0));
    assert!(!remember_topics(&mut row, &without_ids));
    assert!(
        start_offsets(&row, &with_ids).is_ok(),
        "a lease of an older version"
    );
    assert!(remember_topics(&mut row, &with_ids));
    assert!(start_offsets(&row, &without_ids).is_ok(), "an older broker");
}

#[test]
fn a_record_fingerprint_is_neither_replaced_nor_taken_for_a_topic_fingerprint() {
    let mut row = held(3, 50, 0);
    row.checkpoint.fingerprints.high = Some(6);
    let ends = logs_of((5, 6), (50, 60));
    assert!(!remember_topics(&mut row, &ends));
    assert_eq!(row.checkpoint.fingerprints.normal, Some(FINGERPRINT));
    assert!(start_offsets(&row, &ends).is_ok());
    row.checkpoint.fingerprints.normal = None;
    let ends = logs_of((5, 6), (10, 60));
    assert!(!remember_topics(&mut row, &ends), "it is that of a record");
}

/// The shard of such a log has not done any record either, but does not begin at offset 0.
#[test]
fn a_topic_read_from_a_later_offset_is_not_confused_with_a_fuller_one() {
    let mut row = held(3, 50, 0);
    row.checkpoint.fingerprints.normal = None;
    remember_topics(&mut row, &logs_of((5, 6), (50, 50)));
    let same = start_offsets(&row, &logs_of((5, 6), (50, 60))).unwrap();
    assert_eq!(same.verify.normal, None);
    let anew = start_offsets(&row, &logs_of((7, 6), (0, 60))).unwrap();
    assert_eq!(
        anew.verify.normal,
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
fn the_checkpoints_of_predecessors_are_also_compared_with_the_logs() {
    let merged = |resume: i64, ends: LogEnds| {
        let mut held = held(3, 50, 200);
        let resume = ResumeOffsets {
            scheme: ShardingScheme {
                partitions: 1,
                shards_per_partition: 2,
            },
            shard: ShardId(1),
            at: TopicOffsets {
                requests: Offset(resume),
                replies: Offset(280),
                ..TopicOffsets::default()
            },
        };
        held.handover = ShardHandover::new([resume], |_| Offset(0));
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
    assert_eq!(lost_requests.why, MismatchCause::Shorter { done, end });
}

#[test]
fn a_log_that_lacks_unfinished_recoveries_is_refused_until_skipping_is_allowed() {
    let recoveries_from = |checkpoint, first, end| {
        let mut row = held(3, 50, 0);
        row.checkpoint.at.recoveries = Offset(checkpoint);
        let mut ends = logs((0, 60), (0, 0));
        ends.first.recoveries = Offset(first);
        ends.next.recoveries = Offset(end);
        let mismatch = match start_offsets(&row, &ends) {
            Ok(start) => return (start.at.recoveries.0, None),
            Err(mismatch) => mismatch,
        };
        assert_eq!(mismatch.source, Source::Recoveries);
        mismatch.pass_over(&mut row, &ends.first);
        let start = start_offsets(&row, &ends).unwrap();
        (start.at.recoveries.0, Some(mismatch.why))
    };
    let (done, begins, end) = (Offset(7), Offset(8), Offset(5));
    assert_eq!(recoveries_from(7, 0, 9), (7, None));
    assert_eq!(
        recoveries_from(7, 7, 7),
        (7, None),
        "all deleted requests were finished"
    );
    let overtaken = MismatchCause::Overtaken { done, begins };
    assert_eq!(recoveries_from(7, 8, 9), (8, Some(overtaken)));
    let shorter = MismatchCause::Shorter { done, end };
    assert_eq!(recoveries_from(7, 2, 5), (2, Some(shorter)));
}

#[test]
fn each_topic_of_requests_is_compared_with_its_own_checkpoint() {
    let of = |checkpoint: i64, first: i64, end: i64| {
        let mut row = held(3, 50, 0);
        row.checkpoint.at.high_priority = Offset(checkpoint);
        row.consumed.high = Offset(checkpoint);
        row.checkpoint.fingerprints.high = Some(FINGERPRINT + 1);
        let mut ends = logs((0, 60), (0, 0));
        ends.first.high_priority = Offset(first);
        ends.next.high_priority = Offset(end);
        start_offsets(&row, &ends)
    };
    let start = of(8, 0, 9).unwrap();
    assert_eq!(
        (start.at.requests, start.at.high_priority),
        (Offset(50), Offset(8))
    );
    assert_eq!(start.verify.high, Some((Offset(7), FINGERPRINT + 1)));
    let overtaken = of(8, 9, 9).unwrap_err();
    assert_eq!(overtaken.source, Source::HighPriority);
    assert!(
        overtaken
            .to_string()
            .starts_with("high-priority requests: ")
    );
    assert!(of(0, 1, 9).is_err());
    assert!(of(0, 0, 9).is_ok());
}

#[test]
fn both_topics_may_be_skipped_one_after_the_other() {
    let mut row = held(3, 50, 0);
    row.checkpoint.at.high_priority = Offset(8);
    row.consumed.high = Offset(9);
    let mut ends = logs((52, 60), (0, 0));
    ends.next.high_priority = Offset(3);
    let mut passed = Vec::new();
    let start = loop {
        match start_offsets(&row, &ends) {
            Ok(start) => break start,
            Err(mismatch) => {
                mismatch.pass_over(&mut row, &ends.first);
                passed.push(mismatch.source);
            }
        }
    };
    assert_eq!(passed, [Source::Requests, Source::HighPriority]);
    assert_eq!(
        (start.at.requests, start.at.high_priority),
        (Offset(52), Offset(0))
    );
    assert_eq!(row.consumed.high, Offset(0), "it is another log");
}
