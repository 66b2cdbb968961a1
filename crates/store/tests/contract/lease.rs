//! Leases: one owner under contention, in every role; the checkpoint travels with them.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    ByPriority, Epoch, Offset, OwnerId, PartitionId, Priority, ResumeOffsets, ShardHandover,
    ShardId, ShardingScheme, Source, Stamp, TopicOffsets,
};
use waybill_store::{LayoutGeneration, Lease, LeaseKey};

use super::{Subject, fresh_partition, reopen};

/// A key of each role that no other rule uses.
fn fresh_keys() -> [LeaseKey; 2] {
    [scheduler, |_, index_shard| {
        LeaseKey::supervisor(index_shard)
    }]
    .map(|key| key(0, fresh_partition()))
}

/// The lease of a shard with the number of a partition, in some layout.
fn scheduler(generation: u64, partition: PartitionId) -> LeaseKey {
    LeaseKey::scheduler(LayoutGeneration(generation), ShardId(partition.0))
}

fn lease(key: LeaseKey, owner: u128, epoch: u64) -> Lease {
    Lease {
        owner: Some(OwnerId(Uuid::from_u128(owner))),
        epoch: Epoch(epoch),
        duration: Duration::from_millis(12_345),
        stamp_limit: Stamp(1_000),
        ..Lease::new(key, PartitionId(7))
    }
}

/// The renewal after `lease`, with everything moved on that a renewal moves.
fn renewal(lease: &Lease) -> Lease {
    let mut renewed = lease.clone();
    renewed.renewal += 1;
    renewed.stamp_limit.0 += 500;
    for priority in Priority::ALL {
        renewed.consumed[priority].0 += 20;
        renewed.checkpoint.fingerprints[priority] = Some(0xdead_beef_dead_beef);
    }
    for (source, further) in Source::ALL.into_iter().zip(1..) {
        renewed.checkpoint.at.on_mut(source).0 += 10 * further;
    }
    renewed
}

pub async fn a_lease_that_was_never_taken_is_none(subject: &impl Subject) {
    for key in fresh_keys() {
        let store = subject.open().await;
        assert_eq!(store.lease(key).await.unwrap(), None);
    }
}

pub async fn a_lease_is_taken_renewed_and_read_back_with_its_checkpoint(subject: &impl Subject) {
    for key in fresh_keys() {
        let store = subject.open().await;
        let first = lease(key, 1, 1);
        assert!(store.take_lease(None, first.clone()).await.unwrap());
        assert_eq!(store.lease(key).await.unwrap(), Some(first.clone()));

        let renewed = renewal(&first);
        assert!(store.renew_lease(renewed.clone()).await.unwrap());
        assert_eq!(store.lease(key).await.unwrap(), Some(renewed.clone()));

        let store = reopen(subject, store).await;
        assert_eq!(store.lease(key).await.unwrap(), Some(renewed));
    }
}

pub async fn a_lease_is_taken_only_from_exactly_what_was_seen(subject: &impl Subject) {
    for key in fresh_keys() {
        let store = subject.open().await;
        let first = lease(key, 1, 1);
        let second = lease(key, 2, 2);
        assert!(
            !store
                .take_lease(Some(first.clone()), second.clone())
                .await
                .unwrap()
        );
        assert_eq!(store.lease(key).await.unwrap(), None);

        assert!(store.take_lease(None, first.clone()).await.unwrap());
        assert!(!store.take_lease(None, second.clone()).await.unwrap());

        let renewed = renewal(&first);
        assert!(store.renew_lease(renewed.clone()).await.unwrap());
        assert!(
            !store.take_lease(Some(first), second.clone()).await.unwrap(),
            "it was renewed since it was seen"
        );
        assert_eq!(store.lease(key).await.unwrap(), Some(renewed.clone()));

        assert!(
            store
                .take_lease(Some(renewed), second.clone())
                .await
                .unwrap()
        );
        assert_eq!(store.lease(key).await.unwrap(), Some(second));
    }
}

pub async fn a_lease_is_released_by_taking_it_without_an_owner(subject: &impl Subject) {
    for key in fresh_keys() {
        let store = subject.open().await;
        let held = lease(key, 1, 1);
        assert!(store.take_lease(None, held.clone()).await.unwrap());
        let released = Lease {
            owner: None,
            ..renewal(&held)
        };
        assert!(
            store
                .take_lease(Some(held.clone()), released.clone())
                .await
                .unwrap()
        );
        assert_eq!(store.lease(key).await.unwrap(), Some(released.clone()));
        assert!(!store.renew_lease(renewal(&renewal(&held))).await.unwrap());

        let next = Lease {
            checkpoint: released.checkpoint,
            ..lease(key, 2, 2)
        };
        assert!(
            store
                .take_lease(Some(released), next.clone())
                .await
                .unwrap()
        );
        assert_eq!(store.lease(key).await.unwrap(), Some(next));
    }
}

pub async fn a_stale_owners_renewal_is_refused(subject: &impl Subject) {
    for key in fresh_keys() {
        let store = subject.open().await;
        let old = lease(key, 1, 1);
        let new = lease(key, 2, 2);
        assert!(
            !store.renew_lease(old.clone()).await.unwrap(),
            "it has no owner yet"
        );
        assert!(store.take_lease(None, old.clone()).await.unwrap());
        assert!(
            store
                .take_lease(Some(old.clone()), new.clone())
                .await
                .unwrap()
        );

        assert!(
            !store.renew_lease(renewal(&old)).await.unwrap(),
            "owner and epoch differ"
        );
        let same_epoch = Lease {
            epoch: new.epoch,
            ..renewal(&old)
        };
        assert!(
            !store.renew_lease(same_epoch).await.unwrap(),
            "the owner differs"
        );
        let same_owner = Lease {
            epoch: old.epoch,
            ..renewal(&new)
        };
        assert!(
            !store.renew_lease(same_owner).await.unwrap(),
            "the epoch differs"
        );
        assert_eq!(store.lease(key).await.unwrap(), Some(new));
    }
}

pub async fn a_renewal_never_goes_back_and_its_repeat_is_accepted(subject: &impl Subject) {
    for key in fresh_keys() {
        let store = subject.open().await;
        let first = lease(key, 1, 1);
        assert!(store.take_lease(None, first.clone()).await.unwrap());
        let second = renewal(&first);
        let third = renewal(&second);
        assert!(store.renew_lease(third.clone()).await.unwrap());
        assert!(
            store.renew_lease(third.clone()).await.unwrap(),
            "exactly the stored lease"
        );
        assert!(!store.renew_lease(second).await.unwrap(), "it is older");
        let other = Lease {
            consumed: ByPriority {
                normal: Offset(999),
                ..third.consumed
            },
            ..third.clone()
        };
        assert!(
            !store.renew_lease(other).await.unwrap(),
            "its number is used"
        );
        assert_eq!(store.lease(key).await.unwrap(), Some(third));
    }
}

pub async fn of_sixteen_contenders_exactly_one_takes_a_lease(subject: &impl Subject) {
    for key in fresh_keys() {
        let store = subject.open().await;
        let mut seen = None;
        for epoch in 1..=20 {
            let contenders: Vec<_> = (1..=16)
                .map(|owner| {
                    let store = Arc::clone(&store);
                    let seen = seen.clone();
                    tokio::spawn(async move {
                        let lease = lease(key, owner, epoch);
                        let taken = store.take_lease(seen, lease.clone()).await.unwrap();
                        taken.then_some(lease)
                    })
                })
                .collect();
            let mut winners = Vec::new();
            for contender in contenders {
                winners.extend(contender.await.unwrap());
            }
            assert_eq!(winners.len(), 1, "epoch {epoch}: {winners:?}");
            seen = store.lease(key).await.unwrap();
            assert_eq!(seen, winners.pop());
        }
    }
}

pub async fn an_owner_that_renews_and_a_contender_never_both_win(subject: &impl Subject) {
    for key in fresh_keys() {
        let store = subject.open().await;
        let mut held = lease(key, 1, 1);
        assert!(store.take_lease(None, held.clone()).await.unwrap());
        for round in 0..50 {
            let renewed = renewal(&held);
            let taken = lease(key, 2 + round, held.epoch.0 + 1);
            let (renews, takes) = tokio::join!(
                store.renew_lease(renewed.clone()),
                store.take_lease(Some(held.clone()), taken.clone()),
            );
            let (renews, takes) = (renews.unwrap(), takes.unwrap());
            assert!(
                renews != takes,
                "round {round}: renews {renews}, takes {takes}"
            );
            held = if takes { taken } else { renewed };
            assert_eq!(store.lease(key).await.unwrap(), Some(held.clone()));
        }
    }
}

pub async fn leases_of_shards_of_layouts_and_of_roles_do_not_mix(subject: &impl Subject) {
    let store = subject.open().await;
    let (one, other) = (fresh_partition(), fresh_partition());
    let keys = [
        scheduler(0, one),
        scheduler(1, one),
        scheduler(2, one),
        LeaseKey::supervisor(one),
        scheduler(0, other),
        scheduler(1, other),
        LeaseKey::supervisor(other),
    ];
    for (taken, key) in keys.into_iter().enumerate() {
        let owner = 1 + u128::try_from(taken).unwrap();
        assert_eq!(store.lease(key).await.unwrap(), None);
        assert!(store.take_lease(None, lease(key, owner, 1)).await.unwrap());
        assert!(
            store
                .renew_lease(renewal(&lease(key, owner, 1)))
                .await
                .unwrap()
        );
    }
    for (owner, key) in (1..).zip(keys) {
        let wanted = renewal(&lease(key, owner, 1));
        assert_eq!(store.lease(key).await.unwrap(), Some(wanted));
    }
}

pub async fn an_ended_lease_is_kept_with_its_handover_and_cannot_be_renewed(
    subject: &impl Subject,
) {
    let key = scheduler(3, fresh_partition());
    let store = subject.open().await;
    let resume = ResumeOffsets {
        scheme: ShardingScheme {
            partitions: 4,
            shards_per_partition: 2,
        },
        shard: ShardId(5),
        at: TopicOffsets {
            requests: Offset(100),
            high_priority: Offset(80),
            replies: Offset(0),
            recoveries: Offset(7),
        },
    };
    let held = Lease {
        handover: ShardHandover::new([resume], |_: Source| Offset(50)),
        ..lease(key, 1, 1)
    };
    assert!(store.take_lease(None, held.clone()).await.unwrap());
    let ended = held.ended();
    assert!(
        store
            .take_lease(Some(held.clone()), ended.clone())
            .await
            .unwrap()
    );
    assert!(!store.renew_lease(renewal(&held)).await.unwrap());
    let store = reopen(subject, store).await;
    assert_eq!(store.lease(key).await.unwrap(), Some(ended.clone()));
    assert!(!ended.handover.is_empty());
}
