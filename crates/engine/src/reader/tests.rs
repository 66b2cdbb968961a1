//! Division, following and handover.

use uuid::Uuid;

use super::*;
use crate::partitioner::partition_for;

fn division(partitions: u32, readers_per_partition: u32) -> Division {
    Division {
        partitions,
        readers_per_partition,
    }
}

fn ids() -> impl Iterator<Item = OperationId> {
    (0..500_u128).map(|n| OperationId(Uuid::from_u128(n * 0x9e37_79b9_7f4a_7c15)))
}

fn key(id: OperationId) -> KeyHash {
    KeyHash::of(&id.key())
}

#[test]
fn an_operation_has_one_reader_which_reads_its_partition_and_takes_its_records() {
    for (partitions, readers) in [(1, 1), (4, 1), (4, 2), (3, 5)] {
        let division = division(partitions, readers);
        let mut met = std::collections::BTreeSet::new();
        for id in ids() {
            let reader = division.reader_of(id);
            let home = partition_for(id, partitions);
            assert_eq!(division.partition_of(reader), home);
            assert_eq!(division.taker(home, key(id)), reader);
            let takers = division.all().filter(|&reader| {
                let share = Share::new(division, reader, Handover::default());
                division.partition_of(reader) == home
                    && share.takes(Source::Requests, Offset(0), key(id))
            });
            assert_eq!(takers.collect::<Vec<_>>(), [reader]);
            met.insert(reader);
        }
        assert_eq!(met.len(), division.readers() as usize, "{division}");
    }
}

#[test]
fn a_record_in_a_partition_that_is_not_its_own_has_one_taker_there() {
    let division = division(4, 3);
    for id in ids() {
        let elsewhere = PartitionId((partition_for(id, 4).0 + 1) % 4);
        let taker = division.taker(elsewhere, key(id));
        assert!(
            division
                .of_partition(elsewhere)
                .any(|reader| reader == taker)
        );
    }
}

#[test]
fn a_reader_follows_those_who_had_its_operations() {
    for (before, after) in [(1, 2), (2, 1), (2, 6), (6, 2), (1, 1), (5, 1)] {
        let (before, after) = (division(4, before), division(4, after));
        after.may_follow(before).unwrap();
        for id in ids() {
            let parents = after.follows(before, after.reader_of(id));
            assert!(parents.contains(&before.reader_of(id)));
        }
        let mut followed: Vec<_> = after
            .all()
            .flat_map(|reader| after.follows(before, reader))
            .collect();
        followed.sort();
        followed.dedup();
        assert_eq!(
            followed,
            before.all().collect::<Vec<_>>(),
            "nobody is left out"
        );
    }
    assert_eq!(
        division(2, 1).follows(division(2, 2), ReaderId(1)),
        [ReaderId(1), ReaderId(3)]
    );
    assert_eq!(
        division(2, 2).follows(division(2, 1), ReaderId(3)),
        [ReaderId(1)]
    );
}

#[test]
fn what_is_no_whole_multiple_is_refused() {
    let refused = |after: Division| after.may_follow(division(4, 2)).unwrap_err().to_string();
    assert!(refused(division(4, 3)).contains("go by way of 1"));
    assert!(refused(division(4, 0)).contains("1 to 64, not 0"));
    assert!(refused(division(4, 128)).contains("not 128"));
    assert!(refused(division(8, 2)).contains("4 partitions become a whole multiple"));
    assert_eq!(division(4, 64).may_follow(division(4, 2)), Ok(()));
}

#[test]
fn a_merging_reader_passes_what_those_it_follows_had_done_and_nothing_else() {
    let before = division(1, 2);
    let stood = |reader, requests, replies, recoveries| Stood {
        division: before,
        reader: ReaderId(reader),
        at: Places {
            requests: Offset(requests),
            high_priority: Offset(requests),
            replies: Offset(replies),
            recoveries: Offset(recoveries),
        },
    };
    let begins = |source| Offset(if source == Source::Replies { 5 } else { 10 });
    let handover = Handover::new([stood(0, 20, 5, 10), stood(1, 10, 9, 10)], begins);
    let share = Share::new(division(1, 1), ReaderId(0), handover.clone());
    assert!(!share.is_whole());
    let of = |reader| {
        ids()
            .find(|&id| before.reader_of(id) == ReaderId(reader))
            .unwrap()
    };
    for (reader, source, done_below) in [
        (0, Source::Requests, 20),
        (1, Source::Requests, 10),
        (0, Source::Replies, 0),
        (1, Source::Replies, 9),
        (0, Source::Recoveries, 10),
        (1, Source::Recoveries, 10),
    ] {
        for offset in 5..25 {
            let takes = share.takes(source, Offset(offset), key(of(reader)));
            assert_eq!(takes, offset >= done_below, "{source:?} {reader} {offset}");
        }
    }
    let mut left = handover;
    left.forget_below(|_| Offset(10));
    assert_eq!(
        left.stood().len(),
        1,
        "the replies of the second are behind"
    );
    left.forget_below(|_| Offset(20));
    assert!(left.is_empty());
    assert!(Share::new(division(1, 1), ReaderId(0), left).is_whole());
}

#[test]
fn one_who_splits_has_nothing_to_pass_over() {
    let stood = Stood {
        division: division(1, 1),
        reader: ReaderId(0),
        at: Places {
            requests: Offset(7),
            high_priority: Offset(7),
            replies: Offset(8),
            recoveries: Offset(9),
        },
    };
    let handover = Handover::new([stood], |source| stood.at.on(source));
    assert!(handover.is_empty());
    for source in Source::ALL {
        assert!(!handover.had_done(source, Offset(0), KeyHash::of(b"any")));
    }
}

#[test]
fn a_reader_that_was_followed_again_and_again_counts_once() {
    let stood = |requests, replies| Stood {
        division: division(1, 2),
        reader: ReaderId(1),
        at: Places {
            requests: Offset(requests),
            high_priority: Offset(requests),
            replies: Offset(replies),
            recoveries: Offset(0),
        },
    };
    let handover = Handover::new([stood(50, 9), stood(40, 12), stood(50, 9)], |_| Offset(5));
    assert_eq!(handover.stood(), [stood(50, 12)]);
    assert_eq!(handover.furthest(Source::Requests), Offset(50));
}

#[test]
fn nothing_counts_as_done_on_a_log_that_is_not_trusted() {
    let stood = Stood {
        division: division(1, 1),
        reader: ReaderId(0),
        at: Places {
            requests: Offset(50),
            high_priority: Offset(50),
            replies: Offset(50),
            recoveries: Offset(50),
        },
    };
    let mut handover = Handover::new([stood], |_| Offset(5));
    handover.distrust(Source::Recoveries);
    let any = KeyHash::of(b"any");
    let had_done = Source::ALL.map(|source| handover.had_done(source, Offset(7), any));
    assert_eq!(had_done, [true, true, true, false]);
}

#[test]
fn readers_of_more_partitions_follow_those_of_their_number_who_had_the_same_operations() {
    let (before, after) = (division(3, 4), division(6, 2));
    after.may_follow(before).unwrap();
    for id in ids() {
        assert_eq!(before.reader_of(id), after.reader_of(id));
    }
    for reader in after.all() {
        assert_eq!(after.follows(before, reader), [reader]);
    }
    assert_eq!(before.may_follow(after), Ok(()), "and back");
    for (before, after) in [((3, 4), (6, 4)), ((3, 4), (4, 3)), ((6, 2), (4, 3))] {
        let [before, after] = [before, after].map(|(of, each)| division(of, each));
        assert!(after.may_follow(before).is_err(), "{before} to {after}");
    }
}

/// Of fewer partitions: those who stay read on, and others come to them.
#[test]
fn every_record_of_a_partition_that_others_come_to_is_taken_once_also_where_it_does_not_belong() {
    let begins = Places {
        requests: Offset(10),
        high_priority: Offset(10),
        replies: Offset(20),
        recoveries: Offset(0),
    };
    for (from, to, readers) in [(8, 4, 1), (12, 3, 1), (4, 2, 3), (8, 1, 1)] {
        let (before, after) = (division(from, readers), division(to, from / to * readers));
        let cut = Cut {
            before: from,
            ends: begins,
        };
        for partition in (0..to).map(PartitionId) {
            let shares = after.of_partition(partition).map(|reader| {
                let share = Share::new(after, reader, Handover::default());
                (reader, share.with_cut(Some(cut)))
            });
            let shares: Vec<(ReaderId, Share)> = shares.collect();
            for (source, id) in Source::ALL
                .into_iter()
                .flat_map(|of| ids().map(move |id| (of, id)))
            {
                for offset in [Offset(0), Offset(9), Offset(10), Offset(20), Offset(99)] {
                    let is_old = offset < begins.on(source);
                    let takers = shares.iter().filter(|(reader, share)| {
                        // Who comes begins where the cut is.
                        let reads = !is_old || before.partition_of(*reader) == partition;
                        reads && share.takes(source, offset, key(id))
                    });
                    let takers: Vec<ReaderId> = takers.map(|(reader, _)| *reader).collect();
                    assert_eq!(takers.len(), 1, "{source:?} {offset} {takers:?}");
                    let home = partition_for(id, if is_old { from } else { to });
                    if home == partition {
                        assert_eq!(takers, [after.reader_of(id)]);
                    }
                }
            }
        }
    }
}

/// Who takes a record of a partition that was cut, of those who stay there and of those who read it to its
/// end before they go.
#[test]
fn every_record_of_a_partition_that_was_cut_is_taken_once_also_where_it_does_not_belong() {
    let end = Places {
        requests: Offset(10),
        high_priority: Offset(10),
        replies: Offset(20),
        recoveries: Offset(0),
    };
    for (partitions, times, readers) in [(4, 2, 1), (3, 4, 1), (2, 2, 3), (1, 8, 1)] {
        let before = division(partitions, times * readers);
        let after = division(partitions * times, readers);
        let cut = Cut {
            before: partitions,
            ends: end,
        };
        for partition in (0..partitions).map(PartitionId) {
            let stay = after.of_partition(partition);
            let stay = stay.map(|reader| {
                let share = Share::new(after, reader, Handover::default());
                (reader, share.with_cut(Some(cut)))
            });
            let leave = before.of_partition(partition);
            let leave = leave.filter(|&reader| after.partition_of(reader) != partition);
            let leave = leave.map(|reader| {
                let share = Share::new(before, reader, Handover::default());
                (reader, share.with_end(Some(end)))
            });
            let shares: Vec<(ReaderId, Share)> = stay.chain(leave).collect();
            assert_eq!(shares.len(), before.readers_per_partition as usize);
            for (source, id) in Source::ALL
                .into_iter()
                .flat_map(|of| ids().map(move |id| (of, id)))
            {
                for offset in [Offset(0), Offset(9), Offset(10), Offset(20), Offset(99)] {
                    let takers = shares.iter().filter(|(_, share)| {
                        share.reads(source, offset) && share.takes(source, offset, key(id))
                    });
                    let mut takers: Vec<ReaderId> = takers.map(|(reader, _)| *reader).collect();
                    // Replies that come late are taken by who may have asked, and sent on for who will have.
                    if source == Source::Replies && offset >= end.on(source) {
                        takers.retain(|&reader| after.partition_of(reader) == partition);
                    }
                    assert_eq!(takers.len(), 1, "{source:?} {offset} {takers:?}");
                    let is_at_home = partition_for(id, partitions) == partition;
                    if is_at_home && offset < end.on(source) {
                        assert_eq!(takers, [after.reader_of(id)]);
                    }
                }
            }
        }
    }
}

#[test]
fn a_record_is_judged_by_the_number_of_partitions_that_it_was_put_there_by() {
    let ends = Places {
        requests: Offset(10),
        high_priority: Offset(10),
        ..Places::default()
    };
    let share = Share::new(division(8, 1), ReaderId(1), Handover::default());
    assert!(share.is_whole());
    let share = share.with_cut(Some(Cut { before: 4, ends }));
    assert!(!share.is_whole());
    let at = |source, offset| share.partitions_at(source, Offset(offset));
    assert_eq!(at(Source::Requests, 9), 4);
    assert_eq!(at(Source::Requests, 10), 8);
    assert_eq!(at(Source::Replies, 0), 8);
}
