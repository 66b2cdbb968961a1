//! Shards that follow others: which wait for which, and where they begin.

use super::*;

#[test]
fn a_merged_shard_begins_at_the_lowest_checkpoint_and_its_predecessors_cannot_be_renewed() {
    let mut site = Site::default();
    site.lease(1, 0, None, 40);
    site.lease(1, 1, None, 30);
    let (held, _) = site.acquire(&layout_of(&[2, 1]), 0).unwrap();
    let calls = [
        // Whether it has begun.
        "read 2.0", "read 1.0", "read 1.1", "read 2.0", "layout", "read 1.0", "end 1.0", "read 1.1",
        "end 1.1", "take 2.0",
    ];
    assert_eq!(site.calls[..10], calls);
    assert_eq!(held.row.checkpoint.at.requests, Offset(30));
    assert_eq!((held.stamp_floor, held.row.epoch), (Stamp(101), Epoch(7)));
    assert_eq!(held.row.handover.resume_offsets().len(), 1);
    for predecessor in 0..2 {
        let lease = &site.leases[&key(1, predecessor)];
        assert!(lease.is_ended && lease.owner.is_none());
        assert_eq!(lease.epoch, Epoch(5 + u64::from(predecessor)));
    }
}

#[test]
fn an_acquisition_that_failed_may_be_repeated() {
    let mut site = Site::default();
    site.lease(1, 0, None, 40);
    site.lease(1, 1, None, 30);
    let layout = layout_of(&[2, 1]);
    let failed = site.acquire_with(&layout, 0, |_, call| {
        let failed = AcquisitionAnswer::Failed("it timed out".to_owned());
        (name(call) == "take 2.0").then_some(failed)
    });
    failed.unwrap_err();
    site.calls.clear();
    let (held, _) = site.acquire(&layout, 0).unwrap();
    assert_eq!(held.row.checkpoint.at.requests, Offset(30));
    let ends = site.calls.iter().any(|call| call.starts_with("end "));
    assert!(!ends, "{:?}", site.calls);
}

#[test]
fn the_waits_for_two_silent_predecessors_do_not_add_up() {
    let mut site = Site::default();
    site.lease(1, 0, Some(OTHER), 40);
    site.lease(1, 1, Some(OTHER), 30);
    let (held, _) = site.acquire(&layout_of(&[2, 1]), 0).unwrap();
    assert_eq!(held.row.checkpoint.at.requests, Offset(30));
    let seven = Duration::from_secs(7);
    assert!((seven..seven + LeaseWatch::INTERVAL).contains(&site.waited));
    // Both are read in each round.
    let round = ["wait", "read 1.0", "read 1.1", "wait"];
    assert!(site.calls.windows(4).any(|calls| calls == round));
}

#[test]
fn a_free_predecessor_is_ended_while_another_is_waited_for() {
    let mut site = Site::default();
    site.lease(1, 0, Some(OTHER), 40);
    site.lease(1, 1, None, 30);
    let acquired = site.acquire_with(&layout_of(&[2, 1]), 0, |site, call| {
        if matches!(call, AcquisitionCall::Wait(_)) {
            assert!(site.leases[&key(1, 1)].is_ended);
            assert!(!site.leases[&key(1, 0)].is_ended);
        }
        None
    });
    acquired.unwrap();
    let reads = site.calls.iter().filter(|call| *call == "read 1.1");
    assert_eq!(reads.count(), 2, "it is not read in every round");
}

#[test]
fn a_predecessor_that_never_began_follows_its_own() {
    let mut site = Site::default();
    site.lease(0, 0, None, 25);
    let (held, _) = site.acquire(&layout_of(&[2, 4, 1]), 0).unwrap();
    assert_eq!(held.row.checkpoint.at.requests, Offset(25));
    assert!(held.row.handover.is_empty());
    // Nobody can take those between any more.
    for (generation, shards) in [(0, 1), (1, 2), (2, 4)] {
        for shard in 0..shards {
            assert!(site.leases[&key(generation, shard)].is_ended);
        }
    }
}

#[test]
fn many_layouts_without_owners_wait_for_the_last_owner_together() {
    let mut site = Site::default();
    site.lease(0, 0, Some(OTHER), 25);
    let numbers: Vec<u32> = (0..20)
        .map(|nth| if nth % 2 == 0 { 16 } else { 1 })
        .collect();
    let (held, _) = site.acquire(&layout_of(&numbers), 0).unwrap();
    assert_eq!(held.row.checkpoint.at.requests, Offset(25));
    // The reads of the others take a part of the seven seconds.
    let six = Duration::from_secs(6);
    assert!((six..six + 2 * LeaseWatch::INTERVAL).contains(&site.waited));
    let reads = site.calls.iter().filter(|call| call.starts_with("read 19"));
    assert_eq!(
        reads.count(),
        2 * 16,
        "once before the candidate waits, and once after"
    );
}

#[test]
fn a_predecessor_of_this_process_has_a_living_owner_also_in_an_exclusive_store() {
    let layout = layout_of(&[2]);
    let mut site = Site {
        is_exclusive: true,
        ..Site::default()
    };
    site.lease(0, 0, Some(OTHER), 10);
    let (held, _) = site.acquire(&layout, 1).unwrap();
    assert_eq!(held.row.checkpoint.at.requests, Offset(10));
    assert_eq!(site.waited, Duration::ZERO, "its owner is dead");

    let mut site = Site {
        is_exclusive: true,
        ..Site::default()
    };
    site.lease(0, 0, Some(ME), 10);
    let acquired = site.acquire_with(&layout, 0, |site, call| {
        if matches!(call, AcquisitionCall::Wait(_)) {
            let lease = site.leases.get_mut(&key(0, 0)).unwrap();
            assert!(!lease.is_ended);
            lease.renewal += 1;
            if site.time > Duration::from_secs(20) {
                lease.owner = None;
                lease.checkpoint = Checkpoint::at(at(15));
            }
        }
        None
    });
    let (held, _) = acquired.unwrap();
    assert!(site.waited > Duration::from_secs(19), "{:?}", site.waited);
    assert_eq!(held.row.checkpoint.at.requests, Offset(15));
}

#[test]
fn a_predecessor_that_changes_before_it_is_ended_is_read_again() {
    let mut site = Site::default();
    site.lease(0, 0, None, 10);
    let mut is_lost = false;
    let acquired = site.acquire_with(&layout_of(&[2]), 0, |site, call| {
        if name(call) == "end 0.0" && !is_lost {
            is_lost = true;
            site.lease(0, 0, Some(OTHER), 15);
        }
        None
    });
    let (held, _) = acquired.unwrap();
    assert_eq!(held.row.checkpoint.at.requests, Offset(15));
    assert!(site.waited >= Duration::from_secs(7), "{:?}", site.waited);
}

/// One partition that becomes two and ended at request 40.
fn growing() -> Layout {
    let intended = Layout::first(1).intended(2).unwrap();
    let announced = intended.announced(vec![TopicOffsets::default()]).unwrap();
    announced.moved(vec![at(40)]).unwrap()
}

#[test]
fn a_shard_that_gets_another_partition_reads_the_old_one_to_its_end_first() {
    let layout = growing();
    let (stays, leaves) = (0, 1);
    let generation = |leases: &[(u64, u32, i64)], shard| {
        let mut site = Site::default();
        for &(generation, shard, requests) in leases {
            site.lease(generation, shard, None, requests);
        }
        let (held, _) = site.acquire(&layout, shard).unwrap();
        held.row.key.generation.0
    };
    assert_eq!(generation(&[(0, 0, 30)], stays), 3);
    assert_eq!(generation(&[(0, 0, 30)], leaves), 2);
    let both = [(2, 0, 30), (2, 1, 39)];
    assert_eq!(generation(&both, stays), 3);
    assert_eq!(generation(&both, leaves), 2);
    assert_eq!(generation(&[(2, 0, 30), (2, 1, 40)], leaves), 3);
    // A shard that has begun in its new partition stays there.
    assert_eq!(generation(&[(2, 1, 39), (3, 1, 0)], leaves), 3);
}

#[test]
fn a_shard_with_a_new_partition_begins_where_the_layout_says() {
    let layout = growing();
    let mut site = Site::default();
    site.lease(2, 0, None, 30);
    site.lease(2, 1, None, 40);
    let (moved, _) = site.acquire(&layout, 1).unwrap();
    assert_eq!(moved.row.partition, PartitionId(1));
    assert_eq!(moved.row.checkpoint, Checkpoint::default());
    assert_eq!((moved.row.epoch, moved.stamp_floor), (Epoch(7), Stamp(101)));
    assert!(site.leases[&key(2, 1)].is_ended);
    let (stays, _) = site.acquire(&layout, 0).unwrap();
    let reached = stays.row.checkpoint.at.requests;
    assert_eq!(reached, Offset(30), "it continues at its offset");
}

#[test]
fn a_shard_that_gets_a_remaining_partition_begins_at_its_boundary() {
    let intended = Layout::first(2).intended(1).unwrap();
    let bounded = intended.with_boundaries(vec![at(20)]).unwrap();
    let announced = bounded.announced(Vec::new()).unwrap();
    let layout = announced.moved(vec![at(30), at(40)]).unwrap();
    let mut site = Site::default();
    site.lease(3, 0, None, 29);
    site.lease(3, 1, None, 39);
    site.leases.get_mut(&key(3, 1)).unwrap().partition = PartitionId(1);
    let (comes, _) = site.acquire(&layout, 1).unwrap();
    assert_eq!(comes.row.key, key(3, 1), "it has one record to read");

    let lease = site.leases.get_mut(&key(3, 1)).unwrap();
    lease.checkpoint.at = at(40);
    lease.owner = None;
    let (comes, _) = site.acquire(&layout, 1).unwrap();
    assert_eq!(
        (comes.row.key, comes.row.partition),
        (key(4, 1), PartitionId(0))
    );
    let (checkpoint, consumed) = (comes.row.checkpoint.at, comes.row.consumed.normal);
    assert_eq!((checkpoint, consumed), (at(20), Offset(20)));
    let (stays, _) = site.acquire(&layout, 0).unwrap();
    assert_eq!(stays.row.key, key(4, 0));
    assert_eq!(stays.row.checkpoint.at.requests, Offset(29));
}
