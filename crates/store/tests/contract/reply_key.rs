//! The reply key: one for a store, under contention. A store that rules share may have one already.

use std::sync::Arc;

use waybill_store::ReplyKey;

use super::{Random, Subject, reopen};

fn key(seed: u64) -> ReplyKey {
    let mut random = Random::new(seed);
    ReplyKey::new(std::array::from_fn(|_| random.next().to_le_bytes()[0]))
}

pub async fn the_first_reply_key_remains_and_survives_reopening(subject: &impl Subject) {
    let store = subject.open().await;
    let first = store.reply_key(key(1)).await.unwrap();
    assert_eq!(store.reply_key(key(2)).await.unwrap(), first);
    let store = reopen(subject, store).await;
    assert_eq!(store.reply_key(key(3)).await.unwrap(), first);
}

pub async fn all_of_eight_callers_get_the_same_reply_key(subject: &impl Subject) {
    let store = subject.open().await;
    let callers: Vec<_> = (10..18)
        .map(|seed| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.reply_key(key(seed)).await.unwrap() })
        })
        .collect();
    let mut keys = Vec::new();
    for caller in callers {
        keys.push(caller.await.unwrap());
    }
    let stored = store.reply_key(key(20)).await.unwrap();
    assert!(keys.iter().all(|key| *key == stored));
}
