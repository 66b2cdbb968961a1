//! Layouts, one after the other.

use waybill_engine::{Offset, Source};

use super::*;

#[test]
fn a_layout_remembers_the_sharding_scheme_of_every_generation() {
    let of = |shards_per_partition| ShardingScheme {
        partitions: 4,
        shards_per_partition,
    };
    let layout = Layout::first(4).successor(of(2)).unwrap();
    let layout = layout.successor(of(1)).unwrap();
    assert_eq!(layout.generation(), LayoutGeneration(2));
    let schemes = [0, 1, 2, 3].map(|generation| layout.of(LayoutGeneration(generation)));
    assert_eq!(schemes, [Some(of(1)), Some(of(2)), Some(of(1)), None]);
    assert!(matches!(
        Layout::first(4).successor(of(2)).unwrap().successor(of(3)),
        Err(LayoutError::Sharding(ShardingError::NoMultiple { .. }))
    ));
}

fn offsets(requests: i64) -> TopicOffsets {
    TopicOffsets {
        requests: Offset(requests),
        ..TopicOffsets::default()
    }
}

/// The error of other changes during this one.
fn to(from: u32, to: u32) -> LayoutError {
    LayoutError::Changing { from, to }
}

#[test]
fn more_partitions_are_announced_to_writers_before_they_are_read() {
    let of = |partitions, shards_per_partition| ShardingScheme {
        partitions,
        shards_per_partition,
    };
    let layout = Layout::first(2);
    let begins = || vec![offsets(0); 4];
    assert_eq!(layout.announced(begins()), Err(LayoutError::Step));
    assert_eq!(layout.withdrawn(), Err(LayoutError::Step));
    let intended = layout.intended(4).unwrap().intended(6).unwrap();
    assert_eq!(
        (intended.scheme(), intended.partitions_written()),
        (of(2, 1), 2)
    );
    assert_eq!(intended.successor(of(2, 2)), Err(to(2, 6)));
    let of_more = intended.with_boundaries(vec![offsets(0); 2]);
    assert_eq!(
        of_more,
        Err(LayoutError::Step),
        "the remaining shards continue"
    );
    assert_eq!(intended.announced(Vec::new()), Err(LayoutError::Step));
    let announced = intended.announced(begins()).unwrap();
    assert_eq!(announced.scheme(), of(2, 3));
    assert_eq!(announced.partitions_written(), 6);
    assert_eq!(announced.successor(of(2, 1)), Err(to(2, 6)));
    assert_eq!(announced.intended(12), Err(to(2, 6)));
    assert_eq!(announced.withdrawn(), Err(to(2, 6)));
    assert_eq!(announced.to_begin(PartitionId(0)), None);
    assert_eq!(announced.left(PartitionId(0)), []);

    let ends = vec![offsets(10), offsets(20)];
    assert_eq!(layout.moved(ends.clone()), Err(LayoutError::Step));
    let moved = announced.moved(ends).unwrap();
    assert_eq!(moved.scheme(), of(6, 1));
    assert_eq!(moved.partitions_ever(), [6, 2]);
    assert_eq!(moved.successor(of(6, 2)), Err(to(2, 6)));
    let before = LayoutGeneration(3);
    let ends = [0, 1, 2, 3].map(|shard| moved.end_of(before, ShardId(shard)));
    assert_eq!(ends, [None, None, Some(offsets(10)), Some(offsets(20))]);
    assert_eq!(moved.end_of(LayoutGeneration(0), ShardId(2)), None);
    assert_eq!(
        moved.left(PartitionId(1)),
        [(before, ShardId(3)), (before, ShardId(5))]
    );
    assert_eq!(moved.left(PartitionId(2)), []);

    let boundary = |generation, partition| {
        let boundary = moved.boundary_of(LayoutGeneration(generation), PartitionId(partition));
        boundary.map(|boundary| (boundary.before, boundary.ends.requests.0))
    };
    assert_eq!(boundary(3, 0), None);
    assert_eq!(boundary(4, 0), Some((2, 10)));
    assert_eq!(boundary(4, 1), Some((2, 20)));
    assert_eq!(boundary(4, 2), None);
    assert_eq!(announced.settled(&[]), Err(LayoutError::Step));
    let settled = moved.settled(&[]).unwrap();
    assert_eq!(settled.becomes(), None);
    assert_eq!(settled.left(PartitionId(1)), []);
    assert_eq!(settled.first_boundary(PartitionId(1)), Some(offsets(20)));
    assert_eq!(intended.withdrawn().unwrap().becomes(), None);
    assert_eq!(
        settled.boundary_of(settled.generation(), PartitionId(0)),
        None
    );
    assert_eq!(settled.successor(of(6, 2)).unwrap().scheme(), of(6, 2));
    let again = settled.intended(12).unwrap();
    assert_eq!(
        again.first_boundary(PartitionId(1)),
        Some(offsets(20)),
        "still"
    );
    for wanted in [0, 2, 3, 5] {
        assert!(layout.intended(wanted).is_err(), "{wanted}");
    }
    let (now, wanted, shards) = (2, 2 * 65, 65);
    let too_far = LayoutError::TooFar {
        now,
        wanted,
        shards,
    };
    assert_eq!(layout.intended(wanted), Err(too_far));
}

#[test]
fn remaining_partitions_get_their_new_shards_before_writers_use_the_smaller_number() {
    let of = |partitions, shards_per_partition| ShardingScheme {
        partitions,
        shards_per_partition,
    };
    let intended = Layout::first(6).intended(2).unwrap();
    assert_eq!(intended.withdrawn().unwrap().becomes(), None);
    assert_eq!(intended.announced(Vec::new()), Err(LayoutError::Step));
    assert_eq!(
        intended.with_boundaries(vec![offsets(5)]),
        Err(LayoutError::Step)
    );
    let known = intended
        .with_boundaries(vec![offsets(5), offsets(6)])
        .unwrap();
    assert_eq!((known.scheme(), known.partitions_written()), (of(6, 1), 6));
    // Shards leave records to others from then on, which cannot be undone.
    assert_eq!(known.withdrawn(), Err(to(6, 2)));
    assert_eq!(known.intended(3), Err(to(6, 2)));
    let since = known.generation();
    let boundary = |layout: &Layout, partition| {
        let boundary = layout.boundary_of(since, PartitionId(partition));
        boundary.map(|boundary| (boundary.before, boundary.ends.requests.0))
    };
    assert_eq!(
        [0, 1, 2].map(|of| boundary(&known, of)),
        [Some((6, 5)), Some((6, 6)), None]
    );
    let boundary_recorded_in = |generation| known.boundary_recorded_in(generation, PartitionId(1));
    assert_eq!(boundary_recorded_in(since), Some(offsets(6)));
    assert_eq!(boundary_recorded_in(intended.generation()), None);
    let taken_by = |partition| known.taken_by(since, PartitionId(partition));
    assert_eq!((taken_by(1), taken_by(2)), (of(2, 3), of(6, 1)));
    let announced = known.announced(Vec::new()).unwrap();
    for layout in [&known, &announced] {
        let to_begin = [1, 2].map(|of| layout.to_begin(PartitionId(of)));
        assert_eq!(to_begin, [Some(offsets(6)), None]);
    }
    assert_eq!(
        (announced.scheme(), announced.partitions_written()),
        (of(6, 1), 2)
    );

    let ends: Vec<TopicOffsets> = (10..16).map(offsets).collect();
    let moved = announced.moved(ends).unwrap();
    assert_eq!(moved.scheme(), of(2, 3));
    let before = announced.generation();
    let ends = [1, 2, 3].map(|shard| moved.end_of(before, ShardId(shard)));
    assert_eq!(ends, [None, Some(offsets(12)), Some(offsets(13))]);
    assert_eq!(
        moved.begin_of(moved.generation(), PartitionId(1)),
        offsets(6)
    );
    assert_eq!(moved.left(PartitionId(2)), [(before, ShardId(2))]);
    assert_eq!(moved.left(PartitionId(0)), []);
    assert_eq!(moved.to_begin(PartitionId(1)), None, "they have begun");
    let settled = moved.settled(&[]).unwrap();
    assert_eq!(settled.partitions_ever(), [2, 6]);
    assert_eq!(settled.first_boundary(PartitionId(1)), Some(offsets(6)));
    let retired: Vec<_> = settled
        .retired()
        .iter()
        .map(|of| (of.partition.0, of.from))
        .collect();
    assert_eq!(
        retired,
        [2, 3, 4, 5].map(|of| (of, offsets(i64::from(of) + 10)))
    );

    // Some of them are read again, by the existing shards.
    let again = settled.intended(4).unwrap();
    let again = again.announced(vec![offsets(20), offsets(21)]).unwrap();
    let until: Vec<_> = again.retired().iter().map(|of| of.until).collect();
    assert_eq!(until, [Some(offsets(20)), Some(offsets(21)), None, None]);
    let moved = again.moved(vec![offsets(30), offsets(31)]).unwrap();
    assert_eq!(
        moved.begin_of(moved.generation(), PartitionId(3)),
        offsets(21)
    );

    // They are retired once more. The records of the first time are remembered, too.
    let once_more = moved.settled(&[]).unwrap().intended(2).unwrap();
    let once_more = once_more.with_boundaries(vec![offsets(50); 2]).unwrap();
    let once_more = once_more.announced(Vec::new()).unwrap();
    let once_more = once_more.moved((60..64).map(offsets).collect()).unwrap();
    let times = once_more.retired().iter();
    let times: Vec<_> = times
        .filter(|of| of.partition == PartitionId(2))
        .map(|of| (of.from, of.until))
        .collect();
    assert_eq!(
        times,
        [(offsets(12), Some(offsets(20))), (offsets(62), None)]
    );
    let first = once_more.retired()[0];
    let has = [11, 12, 19, 20].map(|at| first.has(Source::Requests, Offset(at)));
    assert_eq!(has, [false, true, true, false]);
    // Until those records are rerouted.
    let below = [19, 20].map(|at| first.is_over_below(&offsets(at)));
    assert_eq!(below, [false, true]);
    let forgotten = once_more.settled(&[first]).unwrap();
    assert_eq!(forgotten.retired(), &once_more.retired()[1..]);
}

#[test]
fn a_change_creates_no_more_shards_than_it_needs() {
    let of = |partitions, shards_per_partition| ShardingScheme {
        partitions,
        shards_per_partition,
    };
    for (shards, times, enough) in [(1, 8, 8), (4, 8, 8), (4, 2, 4), (6, 4, 12), (3, 2, 6)] {
        let layout = Layout::first(2).successor(of(2, shards)).unwrap();
        let partitions = 2 * times;
        let begins = vec![offsets(0); (partitions - 2) as usize];
        let intended = layout.intended(partitions).unwrap();
        let announced = intended.announced(begins).unwrap();
        assert_eq!(announced.scheme(), of(2, enough), "{shards} {times}");
        let moved = announced.moved(vec![offsets(0); 2]).unwrap();
        assert_eq!(moved.scheme(), of(partitions, enough / times));
    }
}

#[test]
fn topics_may_have_retired_or_intended_partitions_and_never_too_few() {
    let layout = Layout::first(2);
    assert_eq!(layout.valid_topic_partitions(), [2]);
    let more = layout.intended(4).unwrap();
    assert_eq!(more.valid_topic_partitions(), [2, 4]);
    let more = more.announced(vec![offsets(0); 2]).unwrap();
    let more = more.moved(vec![offsets(0); 2]).unwrap();
    assert_eq!(more.valid_topic_partitions(), [4]);
    let fewer = more.settled(&[]).unwrap().intended(1).unwrap();
    assert_eq!(fewer.valid_topic_partitions(), [4]);
    let fewer = fewer.with_boundaries(vec![offsets(0)]).unwrap();
    let fewer = fewer.announced(Vec::new()).unwrap();
    assert_eq!(fewer.valid_topic_partitions(), [1, 2, 4]);
}
