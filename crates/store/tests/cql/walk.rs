//! The walk over old attention entries: removes those that lead to nothing, and no others.

use std::time::{Duration, Instant, SystemTime};

use waybill_engine::{OperationId, PartitionId, ProcessState, Timestamp};
use waybill_store::{
    AttentionCursor, AttentionEntry, AttentionOrder, CqlConfig, CqlStore, RowWrite, Store,
    WriteBatch,
};

use super::Cql;
use super::contract::{Subject, fresh_id, fresh_partition, write};

const DAY_US: i64 = 86_400_000_000;

/// Microseconds since the epoch.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_micros().try_into().unwrap()
}

async fn listed(store: &CqlStore, index_shard: PartitionId) -> Vec<OperationId> {
    let mut listed = Vec::new();
    let all = AttentionCursor::new(
        AttentionOrder::OldestFirst,
        Timestamp(0),
        Timestamp(i64::MAX),
    );
    let mut next = Some(all);
    while let Some(cursor) = next {
        let page = store
            .attention_page(vec![index_shard], cursor, 100)
            .await
            .unwrap();
        listed.extend(page.entries.iter().map(|entry| entry.operation));
        next = page.next;
    }
    listed
}

/// Rewrites entries with timestamps that a walk may delete.
async fn age(subject: &Cql, index_shard: PartitionId, entries: &[AttentionEntry]) {
    let stamp = now_us() - 3_600_000_000;
    let index_shard = i64::from(index_shard.0);
    for entry in entries {
        let day = entry.at.0.div_euclid(DAY_US);
        let mut key = (entry.at.0.cast_unsigned() ^ (1 << 63))
            .to_be_bytes()
            .to_vec();
        key.extend_from_slice(entry.operation.0.as_bytes());
        let insert = "INSERT INTO {ks}.attention (shard, day, entry) VALUES (?, ?, ?) \
                      USING TIMESTAMP ?";
        subject.run(insert, (index_shard, day, key, stamp)).await;
        let insert = "INSERT INTO {ks}.attention_shards (day, shard) VALUES (?, ?) \
                      USING TIMESTAMP ?";
        subject.run(insert, (day, index_shard, stamp)).await;
        let insert = "INSERT INTO {ks}.attention_days (part, day) VALUES (0, ?) USING TIMESTAMP ?";
        subject.run(insert, (day, stamp)).await;
    }
}

async fn days(subject: &Cql) -> Vec<i64> {
    let select = format!(
        "SELECT day FROM {}.attention_days WHERE part = 0",
        subject.keyspace
    );
    let read = subject.session().await.query_unpaged(select, ()).await;
    let read = read.unwrap().into_rows_result().unwrap();
    let days = read.rows::<(i64,)>().unwrap();
    days.map(|row| row.unwrap().0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_removes_only_obsolete_attention_entries() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    CqlStore::migrate(&subject.config()).await.unwrap();
    let config = CqlConfig {
        attention_walk_interval: Some(Duration::from_millis(20)),
        ..subject.config()
    };
    let store = CqlStore::connect(subject.config()).await.unwrap();
    let index_shard = fresh_partition();
    let today = now_us().div_euclid(DAY_US);
    let of = |day: i64, n: i64| AttentionEntry {
        at: Timestamp(day * DAY_US + n),
        operation: fresh_id(),
    };
    let row = |entry: &AttentionEntry, process_state| {
        let mut row = write(entry.operation, 1, true);
        row.state.state = process_state;
        row
    };
    // Ten days ago: gone, processed, parked, live, gone, unreadable. Twenty days ago: gone only.
    let mixed: Vec<_> = (0..6).map(|n| of(today - 10, n)).collect();
    let gone: Vec<_> = (0..300).map(|n| of(today - 20, n)).collect();
    let fresh = of(today, 0);
    let late = of(today - 10, 7);
    let rows = vec![
        RowWrite {
            keep_for: Some(Duration::from_secs(3_600)),
            ..row(&mixed[1], ProcessState::Processed)
        },
        row(&mixed[2], ProcessState::CompensationFailed),
        row(&mixed[3], ProcessState::Processing),
        row(&mixed[5], ProcessState::Processed),
    ];
    let batch = WriteBatch {
        rows,
        // Written a moment ago, of an instant long past: no walk of this hour may touch it.
        attention: vec![(index_shard, fresh), (index_shard, late)],
        ..WriteBatch::default()
    };
    store.write(batch).await.unwrap();
    subject.spoil(mixed[5].operation).await;
    age(&subject, index_shard, &mixed).await;
    age(&subject, index_shard, &gone).await;
    assert_eq!(listed(&store, index_shard).await.len(), 300 + 6 + 2);

    let walking = CqlStore::connect(config).await.unwrap();
    let wanted = [mixed[2], mixed[3], mixed[5], late, fresh].map(|entry| entry.operation);
    let began = Instant::now();
    while listed(&store, index_shard).await != wanted || days(&subject).await.len() != 2 {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "left: {:?}",
            listed(&store, index_shard).await
        );
        tokio::task::yield_now().await;
    }
    assert_eq!(days(&subject).await, [today - 10, today]);
    drop((walking, store));
    subject.clean_up().await;
}
