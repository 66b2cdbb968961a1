//! Sharding schemes, their succession, and handovers.

use uuid::Uuid;

use super::*;
use crate::partitioner::partition_for;

fn scheme(partitions: u32, shards_per_partition: u32) -> ShardingScheme {
    ShardingScheme {
        partitions,
        shards_per_partition,
    }
}

fn ids() -> impl Iterator<Item = OperationId> {
    (0..500_u128).map(|n| OperationId(Uuid::from_u128(n * 0x9e37_79b9_7f4a_7c15)))
}

fn key(id: OperationId) -> KeyHash {
    KeyHash::of(&id.key())
}

#[test]
fn each_operation_belongs_to_one_shard_of_its_partition() {
    for (partitions, shards) in [(1, 1), (4, 1), (4, 2), (3, 5)] {
        let scheme = scheme(partitions, shards);
        let mut met = std::collections::BTreeSet::new();
        for id in ids() {
            let shard = scheme.shard_of(id);
            let home = partition_for(id, partitions);
            assert_eq!(scheme.partition_of(shard), home);
            assert_eq!(scheme.taker(home, key(id)), shard);
            let takers = scheme.all().filter(|&shard| {
                let filter = ShardFilter::new(scheme, shard, ShardHandover::default());
                scheme.partition_of(shard) == home
                    && filter.takes(Source::Requests, Offset(0), key(id))
            });
            assert_eq!(takers.collect::<Vec<_>>(), [shard]);
            met.insert(shard);
        }
        assert_eq!(met.len(), scheme.shards() as usize, "{scheme}");
    }
}

#[test]
fn a_misrouted_record_belongs_to_one_shard_of_its_partition() {
    let scheme = scheme(4, 3);
    for id in ids() {
        let elsewhere = PartitionId((partition_for(id, 4).0 + 1) % 4);
        let taker = scheme.taker(elsewhere, key(id));
        assert!(scheme.of_partition(elsewhere).any(|shard| shard == taker));
    }
}

#[test]
fn a_shard_follows_its_parents() {
    for (before, after) in [(1, 2), (2, 1), (2, 6), (6, 2), (1, 1), (5, 1)] {
        let (before, after) = (scheme(4, before), scheme(4, after));
        after.may_follow(before).unwrap();
        for id in ids() {
            let parents = after.follows(before, after.shard_of(id));
            assert!(parents.contains(&before.shard_of(id)));
        }
        let mut followed: Vec<_> = after
            .all()
            .flat_map(|shard| after.follows(before, shard))
            .collect();
        followed.sort();
        followed.dedup();
        assert_eq!(
            followed,
            before.all().collect::<Vec<_>>(),
            "no shard is left out"
        );
    }
    assert_eq!(
        scheme(2, 1).follows(scheme(2, 2), ShardId(1)),
        [ShardId(1), ShardId(3)]
    );
    assert_eq!(scheme(2, 2).follows(scheme(2, 1), ShardId(3)), [ShardId(1)]);
}

#[test]
fn a_number_that_is_neither_a_multiple_nor_a_divisor_is_refused() {
    let refused = |after: ShardingScheme| after.may_follow(scheme(4, 2)).unwrap_err().to_string();
    assert!(refused(scheme(4, 3)).contains("change to 1 first"));
    assert!(refused(scheme(4, 0)).contains("1 to 64, not 0"));
    assert!(refused(scheme(4, 128)).contains("not 128"));
    assert!(refused(scheme(8, 2)).contains("cannot change 4 partitions to"));
    assert_eq!(scheme(4, 64).may_follow(scheme(4, 2)), Ok(()));
}

#[test]
fn a_merged_shard_skips_only_records_that_its_parents_finished() {
    let before = scheme(1, 2);
    let resume = |shard, requests, replies, recoveries| ResumeOffsets {
        scheme: before,
        shard: ShardId(shard),
        at: TopicOffsets {
            requests: Offset(requests),
            high_priority: Offset(requests),
            replies: Offset(replies),
            recoveries: Offset(recoveries),
        },
    };
    let begins = |source| Offset(if source == Source::Replies { 5 } else { 10 });
    let handover = ShardHandover::new([resume(0, 20, 5, 10), resume(1, 10, 9, 10)], begins);
    let filter = ShardFilter::new(scheme(1, 1), ShardId(0), handover.clone());
    assert!(!filter.is_whole());
    let of = |shard| {
        ids()
            .find(|&id| before.shard_of(id) == ShardId(shard))
            .unwrap()
    };
    for (shard, source, done_below) in [
        (0, Source::Requests, 20),
        (1, Source::Requests, 10),
        (0, Source::Replies, 0),
        (1, Source::Replies, 9),
        (0, Source::Recoveries, 10),
        (1, Source::Recoveries, 10),
    ] {
        for offset in 5..25 {
            let takes = filter.takes(source, Offset(offset), key(of(shard)));
            assert_eq!(takes, offset >= done_below, "{source:?} {shard} {offset}");
        }
    }
    let mut left = handover;
    left.forget_below(|_| Offset(10));
    assert_eq!(
        left.resume_offsets().len(),
        1,
        "the replies of the second are behind"
    );
    left.forget_below(|_| Offset(20));
    assert!(left.is_empty());
    assert!(ShardFilter::new(scheme(1, 1), ShardId(0), left).is_whole());
}

#[test]
fn a_split_shard_has_nothing_to_skip() {
    let resume = ResumeOffsets {
        scheme: scheme(1, 1),
        shard: ShardId(0),
        at: TopicOffsets {
            requests: Offset(7),
            high_priority: Offset(7),
            replies: Offset(8),
            recoveries: Offset(9),
        },
    };
    let handover = ShardHandover::new([resume], |source| resume.at.on(source));
    assert!(handover.is_empty());
    for source in Source::ALL {
        assert!(!handover.had_done(source, Offset(0), KeyHash::of(b"any")));
    }
}

#[test]
fn repeated_resume_offsets_of_a_shard_count_once() {
    let resume = |requests, replies| ResumeOffsets {
        scheme: scheme(1, 2),
        shard: ShardId(1),
        at: TopicOffsets {
            requests: Offset(requests),
            high_priority: Offset(requests),
            replies: Offset(replies),
            recoveries: Offset(0),
        },
    };
    let handover = ShardHandover::new([resume(50, 9), resume(40, 12), resume(50, 9)], |_| {
        Offset(5)
    });
    assert_eq!(handover.resume_offsets(), [resume(50, 12)]);
    assert_eq!(handover.furthest(Source::Requests), Offset(50));
}

#[test]
fn no_record_of_a_distrusted_log_counts_as_done() {
    let resume = ResumeOffsets {
        scheme: scheme(1, 1),
        shard: ShardId(0),
        at: TopicOffsets {
            requests: Offset(50),
            high_priority: Offset(50),
            replies: Offset(50),
            recoveries: Offset(50),
        },
    };
    let mut handover = ShardHandover::new([resume], |_| Offset(5));
    handover.distrust(Source::Recoveries);
    let any = KeyHash::of(b"any");
    let had_done = Source::ALL.map(|source| handover.had_done(source, Offset(7), any));
    assert_eq!(had_done, [true, true, true, false]);
}

#[test]
fn new_shards_follow_the_old_shards_of_their_operations() {
    let (before, after) = (scheme(3, 4), scheme(6, 2));
    after.may_follow(before).unwrap();
    for id in ids() {
        assert_eq!(before.shard_of(id), after.shard_of(id));
    }
    for shard in after.all() {
        assert_eq!(after.follows(before, shard), [shard]);
    }
    assert_eq!(before.may_follow(after), Ok(()), "and back");
    for (before, after) in [((3, 4), (6, 4)), ((3, 4), (4, 3)), ((6, 2), (4, 3))] {
        let [before, after] = [before, after].map(|(of, each)| scheme(of, each));
        assert!(after.may_follow(before).is_err(), "{before} to {after}");
    }
}

/// With fewer partitions, the shards of this partition continue, and others join.
#[test]
fn each_record_belongs_to_one_shard_after_partitions_are_added() {
    let begins = TopicOffsets {
        requests: Offset(10),
        high_priority: Offset(10),
        replies: Offset(20),
        recoveries: Offset(0),
    };
    for (from, to, shards) in [(8, 4, 1), (12, 3, 1), (4, 2, 3), (8, 1, 1)] {
        let (before, after) = (scheme(from, shards), scheme(to, from / to * shards));
        let boundary = RepartitionBoundary {
            before: from,
            ends: begins,
        };
        for partition in (0..to).map(PartitionId) {
            let filters = after.of_partition(partition).map(|shard| {
                let filter = ShardFilter::new(after, shard, ShardHandover::default());
                (shard, filter.with_boundary(Some(boundary)))
            });
            let filters: Vec<(ShardId, ShardFilter)> = filters.collect();
            for (source, id) in Source::ALL
                .into_iter()
                .flat_map(|of| ids().map(move |id| (of, id)))
            {
                for offset in [Offset(0), Offset(9), Offset(10), Offset(20), Offset(99)] {
                    let is_old = offset < begins.on(source);
                    let takers = filters.iter().filter(|(shard, filter)| {
                        // A joining shard begins at the boundary.
                        let reads = !is_old || before.partition_of(*shard) == partition;
                        reads && filter.takes(source, offset, key(id))
                    });
                    let takers: Vec<ShardId> = takers.map(|(shard, _)| *shard).collect();
                    assert_eq!(takers.len(), 1, "{source:?} {offset} {takers:?}");
                    let home = partition_for(id, if is_old { from } else { to });
                    if home == partition {
                        assert_eq!(takers, [after.shard_of(id)]);
                    }
                }
            }
        }
    }
}

/// The takers of a record in a split partition: shards that stay, and shards that read it to its
/// end before they move.
#[test]
fn each_record_belongs_to_one_shard_after_partitions_are_removed() {
    let end = TopicOffsets {
        requests: Offset(10),
        high_priority: Offset(10),
        replies: Offset(20),
        recoveries: Offset(0),
    };
    for (partitions, times, shards) in [(4, 2, 1), (3, 4, 1), (2, 2, 3), (1, 8, 1)] {
        let before = scheme(partitions, times * shards);
        let after = scheme(partitions * times, shards);
        let boundary = RepartitionBoundary {
            before: partitions,
            ends: end,
        };
        for partition in (0..partitions).map(PartitionId) {
            let stay = after.of_partition(partition);
            let stay = stay.map(|shard| {
                let filter = ShardFilter::new(after, shard, ShardHandover::default());
                (shard, filter.with_boundary(Some(boundary)))
            });
            let leave = before.of_partition(partition);
            let leave = leave.filter(|&shard| after.partition_of(shard) != partition);
            let leave = leave.map(|shard| {
                let filter = ShardFilter::new(before, shard, ShardHandover::default());
                (shard, filter.with_end(Some(end)))
            });
            let filters: Vec<(ShardId, ShardFilter)> = stay.chain(leave).collect();
            assert_eq!(filters.len(), before.shards_per_partition as usize);
            for (source, id) in Source::ALL
                .into_iter()
                .flat_map(|of| ids().map(move |id| (of, id)))
            {
                for offset in [Offset(0), Offset(9), Offset(10), Offset(20), Offset(99)] {
                    let takers = filters.iter().filter(|(_, filter)| {
                        filter.reads(source, offset) && filter.takes(source, offset, key(id))
                    });
                    let mut takers: Vec<ShardId> = takers.map(|(shard, _)| *shard).collect();
                    // Late replies are taken by shards that may have sent the request, and rerouted
                    // to those that will own it.
                    if source == Source::Replies && offset >= end.on(source) {
                        takers.retain(|&shard| after.partition_of(shard) == partition);
                    }
                    assert_eq!(takers.len(), 1, "{source:?} {offset} {takers:?}");
                    let is_at_home = partition_for(id, partitions) == partition;
                    if is_at_home && offset < end.on(source) {
                        assert_eq!(takers, [after.shard_of(id)]);
                    }
                }
            }
        }
    }
}

#[test]
fn a_record_belongs_to_the_partition_of_the_partition_count_it_was_written_with() {
    let ends = TopicOffsets {
        requests: Offset(10),
        high_priority: Offset(10),
        ..TopicOffsets::default()
    };
    let filter = ShardFilter::new(scheme(8, 1), ShardId(1), ShardHandover::default());
    assert!(filter.is_whole());
    let filter = filter.with_boundary(Some(RepartitionBoundary { before: 4, ends }));
    assert!(!filter.is_whole());
    let at = |source, offset| filter.partitions_at(source, Offset(offset));
    assert_eq!(at(Source::Requests, 9), 4);
    assert_eq!(at(Source::Requests, 10), 8);
    assert_eq!(at(Source::Replies, 0), 8);
}
