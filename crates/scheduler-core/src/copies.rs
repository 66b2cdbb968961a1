//! The copy of the checkpoint of a whole partition, for lag tools.

use waybill_state::{Checkpoint, Layout, Lease, LeaseKey};

/// The leases of the other shards of a partition, whose checkpoints count like that of `written`.
/// `None` if `written` is of a shard that will leave the partition.
pub(crate) fn others(layout: &Layout, written: &Lease) -> Option<Vec<LeaseKey>> {
    let (generation, partition) = (written.key.generation, written.partition);
    if layout.generation() != generation {
        return None;
    }
    let own = layout.scheme().of_partition(partition);
    let own = own.map(|shard| (generation, shard));
    let all = own.chain(layout.left(partition));
    let keys = all.map(|(generation, shard)| LeaseKey::scheduler(generation, shard));
    Some(keys.filter(|key| *key != written.key).collect())
}

/// The checkpoint of a whole partition, from the lease that was just written and those of
/// [`others`]; `None` while one of them has not begun, or if the layout has changed since.
pub(crate) fn of_partition(
    layout: &Layout,
    written: &Lease,
    others: &[Option<Lease>],
) -> Option<Checkpoint> {
    if layout.generation() != written.key.generation {
        return None;
    }
    let mut lowest = written.checkpoint;
    if let Some(begin) = layout.to_begin(written.partition) {
        lowest = lowest.lowest(Checkpoint::at(begin));
    }
    for lease in others {
        let lease = lease.as_ref()?;
        if !(lease.is_ended && lease.key.generation != written.key.generation) {
            lowest = lowest.lowest(lease.checkpoint);
        }
    }
    Some(lowest)
}

#[cfg(test)]
mod tests {
    use waybill_engine::{Offset, PartitionId, ShardId, ShardingScheme, TopicOffsets};
    use waybill_state::LayoutGeneration;

    use super::*;

    fn lease(generation: u64, shard: u32, requests: i64) -> Lease {
        let key = LeaseKey::scheduler(LayoutGeneration(generation), ShardId(shard));
        Lease {
            checkpoint: Checkpoint::at(TopicOffsets {
                requests: Offset(requests),
                ..TopicOffsets::default()
            }),
            ..Lease::new(key, PartitionId(0))
        }
    }

    #[test]
    fn the_copy_is_the_lowest_checkpoint_of_all_shards_of_the_partition() {
        let first = Layout::first(1);
        assert_eq!(others(&first, &lease(0, 0, 7)), Some(Vec::new()));
        let two = ShardingScheme {
            shards_per_partition: 2,
            ..first.scheme()
        };
        let layout = first.successor(two).unwrap();
        let written = lease(1, 0, 7);
        let other = lease(1, 1, 5);
        assert_eq!(others(&layout, &written), Some(vec![other.key]));
        let copied = |others: &[Option<Lease>]| {
            let checkpoint = of_partition(&layout, &written, others);
            checkpoint.map(|checkpoint| checkpoint.at.requests)
        };
        assert_eq!(copied(&[Some(other)]), Some(Offset(5)));
        assert_eq!(copied(&[Some(lease(1, 1, 9))]), Some(Offset(7)));
        assert_eq!(copied(&[None]), None, "it has not begun");
        assert_eq!(others(&layout, &lease(0, 0, 7)), None, "it leaves");
        let later = layout.successor(first.scheme()).unwrap();
        let since = of_partition(&later, &written, &[Some(lease(1, 1, 5))]);
        assert_eq!(since, None, "the layout has changed");
    }
}
