//! The state of shards on a store: how far they are, and where those begin that have not.

use std::sync::Arc;
use std::time::Duration;

use waybill_clock::wall_clock;
use waybill_engine::{ByPriority, Epoch, Priority, Stamp};
use waybill_store::{Checkpoint, EmbeddedConfig, EmbeddedStore};

use super::show::{LayoutView, SetError, Shards};
use super::*;

struct Site {
    _dir: tempfile::TempDir,
    store: Arc<dyn Store>,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(dir.path())).unwrap();
        Self {
            _dir: dir,
            store: Arc::new(store),
        }
    }

    /// A lease of a shard of the first partition.
    async fn lease(&self, generation: u64, shard: u32, requests: i64) {
        self.lease_in(generation, shard, requests, PartitionId(0))
            .await;
    }

    async fn lease_in(&self, generation: u64, shard: u32, requests: i64, partition: PartitionId) {
        let key = LeaseKey::scheduler(LayoutGeneration(generation), ShardId(shard));
        let lease = Lease {
            epoch: Epoch(4 + u64::from(shard)),
            stamp_limit: Stamp(100 + i64::from(shard)),
            consumed: ByPriority {
                normal: Offset(requests + 1),
                high: Offset(0),
            },
            checkpoint: Checkpoint::at(TopicOffsets {
                requests: Offset(requests),
                ..TopicOffsets::default()
            }),
            ..Lease::new(key, partition)
        };
        assert!(self.store.take_lease(None, lease).await.unwrap());
    }

    /// A shard begins that follows the one with its number: its candidate ends that one for good.
    async fn begin(&self, layout: &Layout, shard: u32) -> Lease {
        let (generation, shard) = (layout.generation(), ShardId(shard));
        let begun = current_lease(&*self.store, layout, generation, shard).await;
        let begun = begun.unwrap();
        let before = LeaseKey::scheduler(generation.previous().unwrap(), shard);
        let before = self.store.lease(before).await.unwrap().unwrap();
        let ended = before.ended();
        assert!(self.store.take_lease(Some(before), ended).await.unwrap());
        assert!(self.store.take_lease(None, begun.clone()).await.unwrap());
        begun
    }
}

/// Successive layouts of one partition.
fn layout_of(numbers: &[u32]) -> Layout {
    numbers.iter().fold(Layout::first(1), |layout, &number| {
        let scheme = ShardingScheme {
            shards_per_partition: number,
            ..layout.scheme()
        };
        layout.successor(scheme).unwrap()
    })
}

#[tokio::test]
async fn an_unbegun_shard_would_begin_at_the_lowest_checkpoint_of_its_predecessors() {
    let site = Site::new();
    site.lease(1, 0, 40).await;
    site.lease(1, 1, 30).await;
    let layout = layout_of(&[2, 1]);
    let lease = current_lease(&*site.store, &layout, LayoutGeneration(2), ShardId(0)).await;
    let lease = lease.unwrap();
    assert_eq!(lease.checkpoint.at.requests, Offset(30));
    assert_eq!((lease.stamp_limit, lease.epoch), (Stamp(101), Epoch(5)));
    assert_eq!(lease.handover.resume_offsets().len(), 1);
    for predecessor in 0..2 {
        let key = LeaseKey::scheduler(LayoutGeneration(1), ShardId(predecessor));
        let lease = site.store.lease(key).await.unwrap().unwrap();
        assert!(!lease.is_ended, "it changes nothing");
    }
}

#[tokio::test]
async fn a_layout_without_owners_is_skipped() {
    let site = Site::new();
    site.lease(0, 0, 25).await;
    let layout = layout_of(&[2, 4, 1]);
    let consumed = consumed(&*site.store, &layout, Priority::Normal, PartitionId(0)).await;
    assert_eq!(consumed.unwrap(), Offset(26));
}

#[tokio::test]
async fn many_layouts_without_owners_are_skipped_immediately() {
    let site = Site::new();
    site.lease(0, 0, 25).await;
    let numbers: Vec<u32> = (0..40)
        .map(|nth| if nth % 2 == 0 { 64 } else { 1 })
        .collect();
    let layout = layout_of(&numbers);
    let seen = consumed(&*site.store, &layout, Priority::Normal, PartitionId(0)).await;
    assert_eq!(seen.unwrap(), Offset(26));
}

#[tokio::test]
async fn the_number_of_shards_is_set_only_after_a_scheduler_has_begun() {
    let site = Site::new();
    let asked_with_others = Shards::new(site.store.clone(), 9);
    let refused = asked_with_others.set(2).await.unwrap_err();
    assert!(matches!(refused, SetError::NotBegun), "{refused}");

    let mut wanted = ShardingScheme {
        partitions: 3,
        shards_per_partition: 1,
    };
    layout_at_start(&*site.store, wanted).await.unwrap();
    let view = asked_with_others.set(2).await.unwrap();
    assert_eq!((view.partitions, view.per_partition), (3, 2));

    wanted.partitions = 9;
    let layout = layout_at_start(&*site.store, wanted).await.unwrap();
    assert_eq!(layout.scheme().partitions, 3, "the store says how many");
}

#[tokio::test]
async fn a_shard_of_a_new_layout_is_expected_until_the_leases_before_it_have_expired() {
    let scheme = ShardingScheme {
        partitions: 1,
        shards_per_partition: 1,
    };
    for (renewed_for, is_expected) in [(Duration::from_secs(20), true), (Duration::ZERO, false)] {
        let site = Site::new();
        let shards = Shards::new(site.store.clone(), 1);
        layout_at_start(&*site.store, scheme).await.unwrap();
        let expected = |view: LayoutView| -> Vec<bool> {
            let shards = view.shards.iter();
            shards.map(|shard| shard.starts_by.is_some()).collect()
        };
        assert_eq!(expected(shards.show().await.unwrap()), [false]);
        let key = LeaseKey::scheduler(LayoutGeneration(0), ShardId(0));
        let limit = match renewed_for {
            Duration::ZERO => Stamp(100),
            ahead => Stamp((wall_clock() + ahead).as_micros()),
        };
        let lease = Lease {
            stamp_limit: limit,
            ..Lease::new(key, PartitionId(0))
        };
        assert!(site.store.take_lease(None, lease).await.unwrap());
        let changed = shards.set(2).await.unwrap();
        assert_eq!(expected(changed), [is_expected; 2]);
    }
}

/// One partition that becomes two and ended at request 40.
fn growing() -> Layout {
    let end = TopicOffsets {
        requests: Offset(40),
        ..TopicOffsets::default()
    };
    Layout::first(1)
        .intended(2)
        .unwrap()
        .announced(vec![TopicOffsets::default()])
        .unwrap()
        .moved(vec![end])
        .unwrap()
}

#[tokio::test]
async fn a_partition_is_done_up_to_the_slowest_leaving_shard() {
    let site = Site::new();
    let layout = growing();
    site.lease(2, 0, 60).await;
    site.lease(2, 1, 35).await;
    let done = async || {
        let done = done(&*site.store, &layout, Source::Requests, PartitionId(0)).await;
        done.unwrap().0
    };
    let unmoved = async || {
        let unmoved = unmoved(&*site.store, &layout).await.unwrap();
        unmoved.map(|(shard, partition, _)| (shard.0, partition.0))
    };
    assert_eq!((done().await, unmoved().await), (35, Some((0, 0))));
    // The remaining shard had skipped the other's records beyond the cut, and reads them again.
    let stays = site.begin(&layout, 0).await;
    assert_eq!(stays.checkpoint.at.requests, Offset(40));
    assert_eq!(
        stays.handover.resume_offsets().len(),
        1,
        "its own it had done"
    );
    assert_eq!((done().await, unmoved().await), (35, Some((1, 0))));
    site.begin(&layout, 1).await;
    assert_eq!((done().await, unmoved().await), (40, None));
}

#[tokio::test]
async fn records_in_partitions_without_readers_count_as_unconsumed() {
    let site = Site::new();
    site.lease(0, 0, 90).await;
    let layout = Layout::first(1).intended(2).unwrap();
    let layout = layout.announced(vec![TopicOffsets::default()]).unwrap();
    for (partition, until) in [(0, 91), (1, 0)] {
        let consumed = consumed(
            &*site.store,
            &layout,
            Priority::Normal,
            PartitionId(partition),
        )
        .await;
        assert_eq!(consumed.unwrap(), Offset(until), "{partition}");
    }
}

fn at(requests: i64) -> TopicOffsets {
    TopicOffsets {
        requests: Offset(requests),
        ..TopicOffsets::default()
    }
}

/// Two partitions that become one, with the remaining one cut at this request.
fn layout_with_boundary(requests: i64) -> Layout {
    let intended = Layout::first(2).intended(1).unwrap();
    intended.with_boundaries(vec![at(requests)]).unwrap()
}

#[tokio::test]
async fn a_shard_that_has_not_begun_under_a_layout_is_named() {
    let site = Site::new();
    let layout = layout_with_boundary(0);
    site.lease(2, 0, 0).await;
    let named = unbegun(&*site.store, &layout).await;
    assert_eq!(named.unwrap(), Some(ShardId(1)));
    site.lease_in(2, 1, 0, PartitionId(1)).await;
    assert_eq!(unbegun(&*site.store, &layout).await.unwrap(), None);
}

/// Shards under the cut skip records that other shards will read.
#[tokio::test]
async fn records_beyond_a_boundary_count_as_unconsumed_until_other_shards_begin() {
    let site = Site::new();
    let layout = layout_with_boundary(20);
    site.lease(2, 0, 29).await;
    for layout in [layout.clone(), layout.announced(Vec::new()).unwrap()] {
        let consumed = consumed(&*site.store, &layout, Priority::Normal, PartitionId(0)).await;
        assert_eq!(consumed.unwrap(), Offset(20));
    }
}
