//! The layout: one successor under contention. A store has one layout, so each rule begins with the
//! result of the one before.

use std::sync::Arc;

use waybill_engine::ShardingScheme;
use waybill_store::{Layout, Store};

use super::{Subject, reopen};

const PARTITIONS: u32 = 4;

/// The current layout, and the next one with this many shards.
async fn next(store: &dyn Store, shards_per_partition: u32) -> (Option<Layout>, Layout) {
    let seen = store.layout().await.unwrap();
    let scheme = ShardingScheme {
        partitions: PARTITIONS,
        shards_per_partition,
    };
    let before = seen.clone().unwrap_or(Layout::first(PARTITIONS));
    let next = before.successor(scheme).unwrap();
    (seen, next)
}

pub async fn a_layout_is_replaced_only_from_what_was_seen_and_read_back(subject: &impl Subject) {
    let store = subject.open().await;
    let (seen, one) = next(&*store, 1).await;
    assert!(store.set_layout(seen.clone(), one.clone()).await.unwrap());
    assert!(
        store.set_layout(seen.clone(), one.clone()).await.unwrap(),
        "it equals the stored layout"
    );
    assert_eq!(store.layout().await.unwrap(), Some(one.clone()));
    let (_, two) = next(&*store, 2).await;
    assert!(!store.set_layout(seen, two.clone()).await.unwrap());
    assert_eq!(store.layout().await.unwrap(), Some(one.clone()));
    assert!(
        store
            .set_layout(Some(one.clone()), two.clone())
            .await
            .unwrap()
    );
    let (_, three) = next(&*store, 2).await;
    assert!(!store.set_layout(Some(one), three.clone()).await.unwrap());
    assert!(!store.set_layout(None, three).await.unwrap());
    let store = reopen(subject, store).await;
    assert_eq!(store.layout().await.unwrap(), Some(two.clone()));
    // For the next rule.
    let (seen, one) = next(&*store, 1).await;
    assert_eq!(seen, Some(two));
    assert!(store.set_layout(seen, one).await.unwrap());
}

pub async fn of_eight_contenders_exactly_one_replaces_the_layout(subject: &impl Subject) {
    let store = subject.open().await;
    // All successors differ, and all are of the one layout that is seen before any contender
    // begins.
    let (seen, _) = next(&*store, 1).await;
    let mut layouts = Vec::new();
    for shards in 1..=8 {
        layouts.push(next(&*store, 4 * shards).await.1);
    }
    let contenders = layouts.into_iter().map(|layout| {
        let (store, seen) = (Arc::clone(&store), seen.clone());
        tokio::spawn(async move {
            let is_set = store.set_layout(seen, layout.clone()).await.unwrap();
            is_set.then_some(layout)
        })
    });
    let contenders = contenders.collect::<Vec<_>>();
    let mut winners = Vec::new();
    for contender in contenders {
        winners.extend(contender.await.unwrap());
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    let stored = store.layout().await.unwrap();
    assert_eq!(stored.as_ref(), winners.first());
    assert_ne!(stored, seen);
    let (seen, one) = next(&*store, 1).await;
    assert!(store.set_layout(seen, one).await.unwrap());
}
