//! Rows: the higher stamp wins, in any order; reads are in order; retention ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waybill_engine::{OperationId, OperationRow};
use waybill_store::{RowWrite, Store};

use super::{Random, Subject, fresh_id, reopen, row, rows, write};

async fn read_one(store: &dyn Store, id: OperationId) -> Option<OperationRow> {
    store.get_many(vec![id]).await.unwrap().remove(0).unwrap()
}

/// The expected row after `writes`, in any order.
fn expected(id: OperationId, writes: &[RowWrite]) -> OperationRow {
    let highest = |with_created: bool| {
        writes
            .iter()
            .filter(|write| write.created.is_some() || !with_created)
            .map(|write| write.stamp.0)
            .max()
            .unwrap()
    };
    row(id, highest(false), highest(true))
}

pub async fn a_row_reads_back_whole(subject: &impl Subject) {
    let store = subject.open().await;
    let id = fresh_id();
    store.write(rows([write(id, 10, true)])).await.unwrap();
    assert_eq!(read_one(&*store, id).await, Some(row(id, 10, 10)));
}

pub async fn rows_are_read_in_the_order_asked_for_and_missing_ones_are_none(
    subject: &impl Subject,
) {
    let store = subject.open().await;
    let ids: Vec<_> = (0..20).map(|_| fresh_id()).collect();
    store
        .write(rows(ids.iter().map(|&id| write(id, 1, true))))
        .await
        .unwrap();

    let mut asked = ids.clone();
    asked.extend([fresh_id(), ids[3], fresh_id()]);
    Random::new(1).shuffle(&mut asked);
    let read = store.get_many(asked.clone()).await.unwrap();
    let wanted: Vec<_> = asked
        .iter()
        .map(|&id| Ok(ids.contains(&id).then(|| row(id, 1, 1))))
        .collect();
    assert_eq!(read, wanted);
    assert_eq!(store.get_many(Vec::new()).await.unwrap(), []);
}

pub async fn an_empty_batch_is_written(subject: &impl Subject) {
    let store = subject.open().await;
    store.write(rows([])).await.unwrap();
}

pub async fn the_immutable_part_stays_when_a_write_does_not_give_it(subject: &impl Subject) {
    let store = subject.open().await;
    let id = fresh_id();
    store.write(rows([write(id, 1, true)])).await.unwrap();
    store.write(rows([write(id, 2, false)])).await.unwrap();
    assert_eq!(read_one(&*store, id).await, Some(row(id, 2, 1)));
}

pub async fn a_lower_stamp_changes_nothing(subject: &impl Subject) {
    let store = subject.open().await;
    let id = fresh_id();
    store.write(rows([write(id, 10, true)])).await.unwrap();
    store.write(rows([write(id, 9, true)])).await.unwrap();
    assert_eq!(read_one(&*store, id).await, Some(row(id, 10, 10)));

    let store = reopen(subject, store).await;
    store.write(rows([write(id, 8, true)])).await.unwrap();
    assert_eq!(read_one(&*store, id).await, Some(row(id, 10, 10)));
}

pub async fn an_equal_stamp_changes_nothing(subject: &impl Subject) {
    let store = subject.open().await;
    let id = fresh_id();
    store.write(rows([write(id, 10, true)])).await.unwrap();
    // A repeat carries the same content; a store that resolves equal stamps by comparing content
    // need not agree on any other.
    store.write(rows([write(id, 10, true)])).await.unwrap();
    store
        .write(rows([write(id, 10, true), write(id, 10, true)]))
        .await
        .unwrap();
    assert_eq!(read_one(&*store, id).await, Some(row(id, 10, 10)));
}

pub async fn a_late_create_brings_the_immutable_part_and_not_the_state(subject: &impl Subject) {
    let store = subject.open().await;
    let id = fresh_id();
    store.write(rows([write(id, 20, false)])).await.unwrap();
    store.write(rows([write(id, 5, true)])).await.unwrap();
    assert_eq!(read_one(&*store, id).await, Some(row(id, 20, 5)));
    store.write(rows([write(id, 10, true)])).await.unwrap();
    assert_eq!(read_one(&*store, id).await, Some(row(id, 20, 10)));
    store.write(rows([write(id, 7, true)])).await.unwrap();
    assert_eq!(read_one(&*store, id).await, Some(row(id, 20, 10)));
}

pub async fn the_highest_stamp_wins_in_every_order(subject: &impl Subject) {
    let mut store = subject.open().await;
    let mut random = Random::new(7);
    for round in 0..30 {
        let mut wanted = HashMap::new();
        let mut writes = Vec::new();
        for _ in 0..8 {
            let id = fresh_id();
            let stamps = 1 + i64::try_from(random.below(8)).unwrap();
            let of_id: Vec<_> = (1..=stamps)
                .map(|stamp| write(id, stamp, stamp == 1 || random.below(3) == 0))
                .collect();
            wanted.insert(id, expected(id, &of_id));
            writes.extend(of_id);
        }
        random.shuffle(&mut writes);
        while !writes.is_empty() {
            let len = 1 + random.below(writes.len().min(12));
            let batch = writes.split_off(writes.len() - len);
            store.write(rows(batch)).await.unwrap();
            if random.below(20) == 0 {
                store = reopen(subject, store).await;
            }
        }
        for (id, row) in wanted {
            assert_eq!(read_one(&*store, id).await, Some(row), "round {round}");
        }
    }
}

pub async fn the_highest_stamp_wins_among_concurrent_writers(subject: &impl Subject) {
    const WRITERS: usize = 8;
    let store = subject.open().await;
    let mut random = Random::new(11);
    let ids: Vec<_> = (0..25).map(|_| fresh_id()).collect();
    let mut writes: Vec<_> = ids
        .iter()
        .flat_map(|&id| (1..=32).map(move |stamp| write(id, stamp, stamp % 5 == 1)))
        .collect();
    random.shuffle(&mut writes);
    let share = writes.len().div_ceil(WRITERS);
    let tasks: Vec<_> = writes
        .chunks(share)
        .map(|share| {
            let store = Arc::clone(&store);
            let share = share.to_vec();
            tokio::spawn(async move {
                for batch in share.chunks(5) {
                    store.write(rows(batch.to_vec())).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let read = store.get_many(ids.clone()).await.unwrap();
    let wanted: Vec<_> = ids.iter().map(|&id| Ok(Some(row(id, 32, 31)))).collect();
    assert_eq!(read, wanted);

    let store = reopen(subject, store).await;
    assert_eq!(
        store.get_many(ids).await.unwrap(),
        wanted,
        "after reopening"
    );
}

pub async fn a_row_whose_retention_has_passed_reads_as_none(subject: &impl Subject) {
    let store = subject.open().await;
    let (kept, short, long) = (fresh_id(), fresh_id(), fresh_id());
    let keep_for = |id, keep_for| RowWrite {
        keep_for: Some(keep_for),
        ..write(id, 1, true)
    };
    let batch = rows([
        write(kept, 1, true),
        keep_for(short, Duration::from_secs(1)),
        keep_for(long, Duration::from_secs(3_600)),
    ]);
    store.write(batch).await.unwrap();

    let start = Instant::now();
    while read_one(&*store, short).await.is_some() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it never expires"
        );
        tokio::task::yield_now().await;
    }
    let read = store.get_many(vec![kept, short, long]).await.unwrap();
    let wanted = [Some(row(kept, 1, 1)), None, Some(row(long, 1, 1))];
    assert_eq!(read, wanted.map(Ok));

    let store = reopen(subject, store).await;
    assert_eq!(read_one(&*store, short).await, None);
}

pub async fn a_final_row_that_is_reopened_is_kept_for_good_again(subject: &impl Subject) {
    let store = subject.open().await;
    let (reopened, twice, final_again, left) = (fresh_id(), fresh_id(), fresh_id(), fresh_id());
    let all = [reopened, twice, final_again, left];
    let soon = Some(Duration::from_secs(2));
    let of = |id, stamp, keep_for| RowWrite {
        keep_for,
        ..write(id, stamp, true)
    };
    let finals = rows(all.map(|id| of(id, 10, soon)));
    store.write(finals).await.unwrap();
    let batch = rows([
        of(reopened, 11, None),
        of(twice, 11, None),
        of(final_again, 11, None),
    ]);
    store.write(batch).await.unwrap();
    let batch = rows([of(twice, 12, soon), of(final_again, 12, soon)]);
    store.write(batch).await.unwrap();
    let batch = rows([of(twice, 13, None)]);
    store.write(batch).await.unwrap();
    // A late write with a lower stamp reopens nothing.
    store.write(rows([of(left, 9, None)])).await.unwrap();

    let start = Instant::now();
    while read_one(&*store, left).await.is_some() || read_one(&*store, final_again).await.is_some()
    {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "what was not reopened never expires"
        );
        tokio::task::yield_now().await;
    }
    let wanted = [
        Some(row(reopened, 11, 11)),
        Some(row(twice, 13, 13)),
        None,
        None,
    ]
    .map(Ok);
    assert_eq!(store.get_many(all.to_vec()).await.unwrap(), wanted);
    let store = reopen(subject, store).await;
    assert_eq!(store.get_many(all.to_vec()).await.unwrap(), wanted);
}

pub async fn a_batch_of_two_thousand_rows_is_written_whole(subject: &impl Subject) {
    let store = subject.open().await;
    let ids: Vec<_> = (0..2_000).map(|_| fresh_id()).collect();
    store
        .write(rows(ids.iter().map(|&id| write(id, 1, true))))
        .await
        .unwrap();
    let read = store.get_many(ids.clone()).await.unwrap();
    let wanted: Vec<_> = ids.iter().map(|&id| Ok(Some(row(id, 1, 1)))).collect();
    assert!(read == wanted, "a row is missing or differs");
}

pub async fn rows_survive_reopening(subject: &impl Subject) {
    let store = subject.open().await;
    let ids: Vec<_> = (0..100).map(|_| fresh_id()).collect();
    for &id in &ids {
        store.write(rows([write(id, 1, true)])).await.unwrap();
    }
    store
        .write(rows(ids.iter().map(|&id| write(id, 2, false))))
        .await
        .unwrap();
    let store = reopen(subject, store).await;
    let wanted: Vec<_> = ids.iter().map(|&id| Ok(Some(row(id, 2, 1)))).collect();
    assert_eq!(store.get_many(ids).await.unwrap(), wanted);
}
