//! The attention table: listings over days and index shards, in either order, page by page.

use waybill_engine::{PartitionId, Timestamp};
use waybill_store::{
    AttentionCursor, AttentionEntry, AttentionOrder, AttentionPage, Store, WriteBatch,
};

use super::{Random, Subject, fresh_id, fresh_partition, reopen};

const DAY: i64 = 86_400_000_000;

fn at(instant: i64) -> AttentionEntry {
    AttentionEntry {
        at: Timestamp(instant),
        operation: fresh_id(),
    }
}

async fn write(store: &dyn Store, entries: &[(PartitionId, AttentionEntry)]) {
    let batch = WriteBatch {
        attention: entries.to_vec(),
        ..WriteBatch::default()
    };
    store.write(batch).await.unwrap();
}

fn newest_first(since: i64, until: i64) -> AttentionCursor {
    AttentionCursor::new(
        AttentionOrder::NewestFirst,
        Timestamp(since),
        Timestamp(until),
    )
}

fn oldest_first(since: i64, until: i64) -> AttentionCursor {
    AttentionCursor {
        order: AttentionOrder::OldestFirst,
        ..newest_first(since, until)
    }
}

/// Reads a listing to its end, in pages of `limit`.
async fn list(
    store: &dyn Store,
    index_shards: &[PartitionId],
    cursor: AttentionCursor,
    limit: usize,
) -> Vec<AttentionEntry> {
    let mut listed = Vec::new();
    let mut next = Some(cursor);
    let mut pages = 0;
    while let Some(cursor) = next {
        let page = store
            .attention_page(index_shards.to_vec(), cursor, limit)
            .await;
        let page = page.unwrap();
        assert!(page.entries.len() <= limit);
        pages += 1;
        assert!(pages < 10_000, "the listing does not end");
        listed.extend(page.entries);
        next = page.next;
    }
    listed
}

pub async fn attention_is_listed_over_days_and_index_shards_in_either_order(
    subject: &impl Subject,
) {
    let store = subject.open().await;
    let index_shards: Vec<_> = (0..4).map(|_| fresh_partition()).collect();
    let mut entries: Vec<_> = (0..200)
        .map(|n| {
            (
                index_shards[n % 3],
                at(100 * DAY + i64::try_from(n / 2).unwrap() * DAY / 30),
            )
        })
        .collect();
    Random::new(5).shuffle(&mut entries);
    for batch in entries.chunks(60) {
        write(&*store, batch).await;
        write(&*store, batch).await;
    }
    let mut wanted: Vec<_> = entries.iter().map(|(_, entry)| *entry).collect();
    wanted.sort();

    let store = reopen(subject, store).await;
    let (since, until) = (90 * DAY, 110 * DAY);
    for limit in [1, 7, 50, 1_000] {
        let listed = list(&*store, &index_shards, oldest_first(since, until), limit).await;
        assert_eq!(listed, wanted, "oldest first, {limit} a page");
    }
    wanted.reverse();
    for limit in [1, 7, 50, 1_000] {
        let listed = list(&*store, &index_shards, newest_first(since, until), limit).await;
        assert_eq!(listed, wanted, "newest first, {limit} a page");
    }
}

pub async fn a_listing_keeps_to_its_instants_and_to_its_index_shards(subject: &impl Subject) {
    let store = subject.open().await;
    let (index_shard, other) = (fresh_partition(), fresh_partition());
    let entries = [99, 100, 101, 102, 103].map(|day| at(day * DAY));
    write(&*store, &entries.map(|entry| (index_shard, entry))).await;
    write(&*store, &[(other, at(101 * DAY))]).await;

    let index_shards = [index_shard, index_shard];
    let listed = list(
        &*store,
        &index_shards,
        oldest_first(100 * DAY, 102 * DAY),
        10,
    )
    .await;
    assert_eq!(listed, entries[1..4]);
    let listed = list(
        &*store,
        &index_shards,
        newest_first(100 * DAY, 102 * DAY),
        10,
    )
    .await;
    assert_eq!(listed, [entries[3], entries[2], entries[1]]);
    let listed = list(
        &*store,
        &index_shards,
        newest_first(100 * DAY, 102 * DAY - 1),
        10,
    )
    .await;
    assert_eq!(listed, [entries[2], entries[1]]);
    for order in [oldest_first, newest_first] {
        let bounds = order(102 * DAY, 100 * DAY);
        assert_eq!(list(&*store, &index_shards, bounds, 10).await, []);
        let bounds = order(100 * DAY, 102 * DAY);
        assert_eq!(list(&*store, &[], bounds, 10).await, []);
        assert_eq!(list(&*store, &[fresh_partition()], bounds, 10).await, []);
    }
}

pub async fn a_cursor_that_was_made_up_lists_nothing_outside_its_instants(subject: &impl Subject) {
    let store = subject.open().await;
    let index_shard = fresh_partition();
    let entries = [99, 100, 101].map(|day| at(day * DAY));
    write(&*store, &entries.map(|entry| (index_shard, entry))).await;
    for (order, at_day, wanted) in [
        (AttentionOrder::OldestFirst, 98, &entries[1..2]),
        (AttentionOrder::OldestFirst, 102, &[]),
        (AttentionOrder::NewestFirst, 102, &entries[1..2]),
        (AttentionOrder::NewestFirst, 98, &[]),
    ] {
        let cursor = AttentionCursor {
            order,
            after: Some(at(at_day * DAY)),
            ..oldest_first(100 * DAY, 100 * DAY)
        };
        let listed = list(&*store, &[index_shard], cursor, 10).await;
        assert_eq!(listed, wanted, "{cursor:?}");
    }
}

pub async fn a_page_of_no_entries_stays_where_it_is(subject: &impl Subject) {
    let store = subject.open().await;
    let index_shard = fresh_partition();
    write(
        &*store,
        &[(index_shard, at(DAY)), (index_shard, at(2 * DAY))],
    )
    .await;
    let cursor = oldest_first(DAY, 2 * DAY);
    let page = store
        .attention_page(vec![index_shard], cursor, 0)
        .await
        .unwrap();
    let wanted = AttentionPage {
        entries: Vec::new(),
        next: Some(cursor),
    };
    assert_eq!(page, wanted);
}

pub async fn entries_written_during_a_listing_appear_only_ahead_of_it(subject: &impl Subject) {
    let store = subject.open().await;
    let index_shard = fresh_partition();
    let [one, three, five] = [1, 3, 5].map(|day| at(day * DAY));
    write(
        &*store,
        &[one, three, five].map(|entry| (index_shard, entry)),
    )
    .await;
    let first = store
        .attention_page(vec![index_shard], newest_first(0, 9 * DAY), 2)
        .await
        .unwrap();
    assert_eq!(first.entries, [five, three]);

    let [two, four, six] = [2, 4, 6].map(|day| at(day * DAY));
    write(&*store, &[two, four, six].map(|entry| (index_shard, entry))).await;
    let rest = list(&*store, &[index_shard], first.next.unwrap(), 1).await;
    assert_eq!(rest, [two, one]);
}
