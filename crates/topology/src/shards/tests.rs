//! The succession of shards on a store: which shards wait for which, and where they begin.

use std::sync::Arc;

use uuid::Uuid;
use waybill_engine::{ByPriority, Epoch, Priority, Stamp};
use waybill_store::{Checkpoint, EmbeddedConfig, EmbeddedStore};

use super::show::{SetError, Shards};
use super::*;

const MARGIN: Duration = Duration::from_millis(1);
const ME: OwnerId = OwnerId(Uuid::from_u128(7));
const OTHER: OwnerId = OwnerId(Uuid::from_u128(8));

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
    async fn lease(&self, generation: u64, shard: u32, owner: Option<OwnerId>, requests: i64) {
        let first = PartitionId(0);
        self.lease_in(generation, shard, owner, requests, first)
            .await;
    }

    async fn lease_in(
        &self,
        generation: u64,
        shard: u32,
        owner: Option<OwnerId>,
        requests: i64,
        partition: PartitionId,
    ) {
        let key = LeaseKey::scheduler(LayoutGeneration(generation), ShardId(shard));
        let lease = Lease {
            owner,
            epoch: Epoch(4 + u64::from(shard)),
            duration: Duration::from_millis(50),
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

    async fn begin(&self, layout: &Layout, shard: u32) -> Lease {
        let (generation, shard) = (layout.generation(), ShardId(shard));
        let begun = beginning(&*self.store, layout, generation, shard, ME, MARGIN).await;
        begun.unwrap()
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
async fn a_merged_shard_begins_at_the_lowest_checkpoint_and_its_parents_cannot_be_renewed() {
    let site = Site::new();
    site.lease(1, 0, None, 40).await;
    site.lease(1, 1, None, 30).await;
    let layout = layout_of(&[2, 1]);
    let before = current_lease(&*site.store, &layout, LayoutGeneration(2), ShardId(0)).await;
    let begun = site.begin(&layout, 0).await;
    assert_eq!(begun.checkpoint.at.requests, Offset(30));
    assert_eq!((begun.stamp_limit, begun.epoch), (Stamp(101), Epoch(6)));
    assert_eq!(before.unwrap().checkpoint, begun.checkpoint);
    assert_eq!(begun.handover.resume_offsets().len(), 1);
    for parent in 0..2 {
        let key = LeaseKey::scheduler(LayoutGeneration(1), ShardId(parent));
        let lease = site.store.lease(key).await.unwrap().unwrap();
        assert!(lease.is_ended && lease.owner.is_none());
    }
    assert_eq!(
        site.begin(&layout, 0).await,
        begun,
        "it may be started again"
    );
}

#[tokio::test]
async fn only_shards_of_live_owners_are_waited_for() {
    let site = Site::new();
    site.lease(0, 0, Some(OTHER), 10).await;
    // No other process can open this store, so the owner is dead.
    let layout = layout_of(&[2]);
    assert_eq!(
        site.begin(&layout, 1).await.checkpoint.at.requests,
        Offset(10)
    );

    let site = Site::new();
    site.lease(0, 0, Some(ME), 10).await;
    let waiting = site.begin(&layout, 0);
    let waited = tokio::time::timeout(Duration::from_millis(20), waiting).await;
    assert!(waited.is_err(), "it was taken from a living owner");
    let key = LeaseKey::scheduler(LayoutGeneration(0), ShardId(0));
    let held = site.store.lease(key).await.unwrap().unwrap();
    assert!(!held.is_ended);
    let free = Lease {
        owner: None,
        renewal: 1,
        ..held.clone()
    };
    assert!(site.store.take_lease(Some(held), free).await.unwrap());
    assert_eq!(
        site.begin(&layout, 0).await.checkpoint.at.requests,
        Offset(10)
    );
}

#[tokio::test]
async fn a_layout_without_owners_is_skipped() {
    let site = Site::new();
    site.lease(0, 0, None, 25).await;
    let layout = layout_of(&[2, 4, 1]);
    let begun = site.begin(&layout, 0).await;
    assert_eq!(begun.checkpoint.at.requests, Offset(25));
    assert!(begun.handover.is_empty());
    let consumed = consumed(&*site.store, &layout, Priority::Normal, PartitionId(0)).await;
    assert_eq!(consumed.unwrap(), Offset(26));
}

#[tokio::test]
async fn many_layouts_without_owners_are_skipped_immediately() {
    let site = Site::new();
    site.lease(0, 0, None, 25).await;
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
async fn a_shard_that_gets_another_partition_reads_the_old_one_to_its_end_first() {
    let site = Site::new();
    let layout = growing();
    let (stays, leaves) = (ShardId(0), ShardId(1));
    let to_run = async |shard| {
        let generation = generation_to_run(&*site.store, &layout, shard).await;
        generation.unwrap().0
    };
    site.lease(0, 0, None, 30).await;
    assert_eq!((to_run(stays).await, to_run(leaves).await), (3, 2));
    site.lease(2, 0, None, 30).await;
    site.lease(2, 1, None, 39).await;
    assert_eq!((to_run(stays).await, to_run(leaves).await), (3, 2));

    let key = LeaseKey::scheduler(LayoutGeneration(2), leaves);
    let held = site.store.lease(key).await.unwrap().unwrap();
    let mut read = held.clone();
    read.checkpoint.at.requests = Offset(40);
    assert!(site.store.take_lease(Some(held), read).await.unwrap());
    assert_eq!(to_run(leaves).await, 3);
    let begun = site.begin(&layout, 1).await;
    assert_eq!(begun.partition, PartitionId(1));
    assert_eq!(begun.checkpoint, Checkpoint::default());
    assert_eq!((begun.epoch, begun.stamp_limit), (Epoch(6), Stamp(101)));
    let stays = site.begin(&layout, 0).await;
    assert_eq!(
        stays.checkpoint.at.requests,
        Offset(30),
        "it continues at its offset"
    );
}

#[tokio::test]
async fn a_partition_is_done_up_to_the_slowest_leaving_shard() {
    let site = Site::new();
    let layout = growing();
    site.lease(2, 0, None, 60).await;
    site.lease(2, 1, None, 35).await;
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
    assert!(site.store.take_lease(None, stays).await.unwrap());
    assert_eq!((done().await, unmoved().await), (35, Some((1, 0))));
    let key = LeaseKey::scheduler(LayoutGeneration(2), ShardId(1));
    let begun = site.begin(&layout, 1).await;
    assert!(site.store.take_lease(None, begun).await.unwrap());
    let ended = site.store.lease(key).await.unwrap().unwrap();
    assert!(ended.is_ended, "{ended:?}");
    assert_eq!((done().await, unmoved().await), (40, None));
}

#[tokio::test]
async fn records_in_partitions_without_readers_count_as_unconsumed() {
    let site = Site::new();
    site.lease(0, 0, None, 90).await;
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
async fn a_shard_that_gets_a_remaining_partition_begins_at_its_boundary() {
    let site = Site::new();
    let announced = layout_with_boundary(20).announced(Vec::new()).unwrap();
    let layout = announced.moved(vec![at(30), at(40)]).unwrap();
    let (stays, comes) = (ShardId(0), ShardId(1));
    site.lease(3, 0, None, 29).await;
    site.lease_in(3, 1, None, 39, PartitionId(1)).await;
    let to_run = generation_to_run(&*site.store, &layout, comes).await;
    assert_eq!(to_run.unwrap(), LayoutGeneration(3), "it has one to read");
    let to_run = generation_to_run(&*site.store, &layout, stays).await;
    assert_eq!(to_run.unwrap(), layout.generation());

    let begun = site.begin(&layout, 1).await;
    assert_eq!(begun.partition, PartitionId(0));
    assert_eq!(
        (begun.checkpoint.at.requests, begun.consumed.normal),
        (Offset(20), Offset(20))
    );
    assert_eq!((begun.epoch, begun.stamp_limit), (Epoch(6), Stamp(101)));
    let stays = site.begin(&layout, 0).await;
    assert_eq!(stays.checkpoint.at.requests, Offset(29));
    // No shard waits for records in the retired partition once its last shard has left.
    let done = done(&*site.store, &layout, Source::Requests, PartitionId(1)).await;
    assert_eq!(done.unwrap(), Offset(i64::MAX));
}

#[tokio::test]
async fn a_shard_that_has_not_begun_under_a_layout_is_named() {
    let site = Site::new();
    let layout = layout_with_boundary(0);
    site.lease(2, 0, None, 0).await;
    let named = unbegun(&*site.store, &layout).await;
    assert_eq!(named.unwrap(), Some(ShardId(1)));
    site.lease_in(2, 1, None, 0, PartitionId(1)).await;
    assert_eq!(unbegun(&*site.store, &layout).await.unwrap(), None);
}

/// Shards under the cut skip records that other shards will read.
#[tokio::test]
async fn records_beyond_a_boundary_count_as_unconsumed_until_other_shards_begin() {
    let site = Site::new();
    let layout = layout_with_boundary(20);
    site.lease(2, 0, None, 29).await;
    for layout in [layout.clone(), layout.announced(Vec::new()).unwrap()] {
        let consumed = consumed(&*site.store, &layout, Priority::Normal, PartitionId(0)).await;
        assert_eq!(consumed.unwrap(), Offset(20));
    }
}
