//! The attention table: a partition for each day of each index shard, and tables that list these.
//!
//! * **No empty day is read.** `attention_days` names the days, `attention_shards` the index shards
//!   of each. Both are written before the first entry of their partition. So the cost of a listing
//!   over years depends only on its entries.
//! * **Entries have no TTL.** An operation may linger, or wait for a person, for longer than any
//!   TTL. The walk in `walk.rs` removes entries that lead to nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;
use waybill_clock::wall_clock;
use waybill_engine::{OperationId, PartitionId, Timestamp};

use super::due::{read_entries, write_batch};
use super::link::Link;
use crate::{AttentionCursor, AttentionEntry, AttentionOrder, AttentionPage, StoreError, keys};

/// The action that errors name.
const ACTION: &str = "reading the attention table";

/// The action that errors of writes name.
const WRITING: &str = "writing the attention table";

/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;

/// The only partition of the table of days.
pub(super) const ALL: i32 = 0;

/// How many entries one batch holds at most.
const BATCH_ENTRIES_MAX: usize = 100;

/// How many entries one page holds at most.
const PAGE_MAX: usize = 1_000;

/// How often one page looks for more entries, in the same day or in the next.
const STEPS_MAX: usize = 64;

/// How many days of index shards are remembered as written.
const REMEMBERED_MAX: usize = 10_000;

/// The day that holds an instant: days since the epoch.
pub(super) fn day_of(at: Timestamp) -> i64 {
    at.0.div_euclid(DAY_US)
}

/// Reads and writes the attention table.
pub(super) struct Attention {
    insert: PreparedStatement,
    insert_day: PreparedStatement,
    insert_index_shard: PreparedStatement,
    oldest_first: Listing,
    newest_first: Listing,
    select_index_shards: PreparedStatement,
    /// Days and index shards that are known to be listed.
    named: Mutex<HashSet<(i64, i64)>>,
}

/// The statements of one order.
struct Listing {
    days: PreparedStatement,
    entries: PreparedStatement,
}

/// The result of one step of a listing.
struct Step {
    entries: Vec<AttentionEntry>,
    /// Everything up to here, in the listing's order, was found.
    until: AttentionEntry,
}

impl Attention {
    pub(super) async fn new(link: &Link, keyspace: &str) -> Result<Self, StoreError> {
        Ok(Self {
            insert: link
                .prepare(format!(
                    "INSERT INTO {keyspace}.attention (shard, day, entry) VALUES (?, ?, ?)"
                ))
                .await?,
            insert_day: link
                .prepare(format!(
                    "INSERT INTO {keyspace}.attention_days (part, day) VALUES (?, ?)"
                ))
                .await?,
            insert_index_shard: link
                .prepare(format!(
                    "INSERT INTO {keyspace}.attention_shards (day, shard) VALUES (?, ?)"
                ))
                .await?,
            oldest_first: Listing::new(link, keyspace, "ASC").await?,
            newest_first: Listing::new(link, keyspace, "DESC").await?,
            select_index_shards: link
                .prepare(format!(
                    "SELECT shard FROM {keyspace}.attention_shards WHERE day = ?"
                ))
                .await?,
            named: Mutex::default(),
        })
    }

    /// Writes entries, after the rows that list their partitions.
    pub(super) async fn write(
        &self,
        link: &Link,
        entries: &[(PartitionId, AttentionEntry)],
    ) -> Result<(), StoreError> {
        let mut partitions: BTreeMap<(i64, i64), Vec<_>> = BTreeMap::new();
        for (index_shard, entry) in entries {
            let (index_shard, day) = (i64::from(index_shard.0), day_of(entry.at));
            let values = (index_shard, day, keys::entry(entry.at, entry.operation));
            partitions
                .entry((index_shard, day))
                .or_default()
                .push(values);
        }
        let unnamed: Vec<_> = partitions
            .keys()
            .copied()
            .filter(|partition| !self.is_named(*partition))
            .collect();
        let names = unnamed
            .iter()
            .map(|&(index_shard, day)| self.name(link, index_shard, day));
        link.all(names.collect()).await?;
        self.were_named(&unnamed);
        let batches = partitions
            .values()
            .flat_map(|entries| entries.chunks(BATCH_ENTRIES_MAX));
        let writes = batches.map(|entries| write_batch(link, WRITING, &self.insert, entries));
        link.all(writes.collect()).await
    }

    async fn name(&self, link: &Link, index_shard: i64, day: i64) -> Result<(), StoreError> {
        let insert = || {
            link.session
                .execute_unpaged(&self.insert_index_shard, (day, index_shard))
        };
        link.repeat(WRITING, insert).await?;
        let insert = || link.session.execute_unpaged(&self.insert_day, (ALL, day));
        link.repeat(WRITING, insert).await?;
        Ok(())
    }

    fn is_named(&self, partition: (i64, i64)) -> bool {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        partition.1 >= day_of(wall_clock()) && named.contains(&partition)
    }

    /// Remembers listed partitions until their day is over: a walk may remove their names
    /// afterwards.
    fn were_named(&self, partitions: &[(i64, i64)]) {
        let today = day_of(wall_clock());
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|&(_, day)| day >= today);
        for partition in partitions.iter().filter(|&&(_, day)| day >= today) {
            if named.len() < REMEMBERED_MAX {
                named.insert(*partition);
            }
        }
    }

    /// Reads a page of a listing, day by day.
    pub(super) async fn page(
        &self,
        link: &Link,
        index_shards: &[PartitionId],
        mut cursor: AttentionCursor,
        limit: usize,
    ) -> Result<AttentionPage, StoreError> {
        let index_shards: BTreeSet<_> = index_shards
            .iter()
            .map(|index_shard| i64::from(index_shard.0))
            .collect();
        let limit = limit.min(PAGE_MAX);
        let mut entries = Vec::new();
        for _ in 0..STEPS_MAX {
            if entries.len() == limit {
                break;
            }
            let room = limit - entries.len();
            let Some(step) = self.step(link, &index_shards, cursor, room).await? else {
                let next = None;
                return Ok(AttentionPage { entries, next });
            };
            entries.extend(step.entries);
            cursor.after = Some(step.until);
        }
        let next = Some(cursor);
        Ok(AttentionPage { entries, next })
    }

    /// Reads the next entries of the next day that has any; `None` if there is none.
    async fn step(
        &self,
        link: &Link,
        index_shards: &BTreeSet<i64>,
        cursor: AttentionCursor,
        room: usize,
    ) -> Result<Option<Step>, StoreError> {
        let (first, last) = cursor.bounds();
        if first > last {
            return Ok(None);
        }
        let listing = match cursor.order {
            AttentionOrder::OldestFirst => &self.oldest_first,
            AttentionOrder::NewestFirst => &self.newest_first,
        };
        // A day that was read to its end is skipped.
        let (begin, end) = (day_of(first.at), day_of(last.at));
        let begin = begin.saturating_add(i64::from(first == outermost_of(begin)[1]));
        let end = end.saturating_sub(i64::from(last == outermost_of(end)[0]));
        let days = (ALL, begin, end, 1);
        let Some(day) = numbers(link, &listing.days, days).await?.pop() else {
            return Ok(None);
        };
        let [day_begin, day_end] = outermost_of(day);
        let until = match cursor.order {
            AttentionOrder::OldestFirst => day_end,
            AttentionOrder::NewestFirst => day_begin,
        };
        let mut partitions = numbers(link, &self.select_index_shards, (day,)).await?;
        partitions.retain(|index_shard| index_shards.contains(index_shard));
        let share = room.min((2 * room / partitions.len().max(1)).max(16)) + 1;
        let range = [first, last].map(|entry| keys::entry(entry.at, entry.operation));
        let mut reads = vec![Vec::new(); partitions.len()];
        let places = partitions.iter().zip(reads.iter_mut());
        let parts = places.map(|(&index_shard, read)| async move {
            *read = self
                .part(link, listing, (index_shard, day), range, share)
                .await?;
            Ok(())
        });
        link.all(parts.collect()).await?;
        // Further entries of an index shard that was not read to its end follow its last entry.
        let order = cursor.order;
        let cut_off = reads
            .iter()
            .filter(|read| read.len() == share)
            .filter_map(|read| read.last().copied())
            .min_by(|one, other| order.compare(one, other));
        let until = cut_off.unwrap_or(until);
        let mut entries: Vec<_> = reads
            .into_iter()
            .flatten()
            .filter(|entry| Some(*entry) != cursor.after)
            .filter(|entry| order.compare(entry, &until).is_le())
            .collect();
        entries.sort_unstable_by(|one, other| order.compare(one, other));
        // An operation appears once in a listing, however many index shards name it at one instant.
        entries.dedup();
        let until = match entries.get(room) {
            Some(_) => entries[room - 1],
            None => until,
        };
        entries.truncate(room);
        Ok(Some(Step { entries, until }))
    }

    /// Reads entries of one day and index shard between two keys, both included.
    async fn part(
        &self,
        link: &Link,
        listing: &Listing,
        (index_shard, day): (i64, i64),
        [first, last]: [[u8; keys::ENTRY_KEY_LEN]; 2],
        limit: usize,
    ) -> Result<Vec<AttentionEntry>, StoreError> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let values = (index_shard, day, &first[..], &last[..], limit);
        let read = read_entries(link, ACTION, &listing.entries, values).await?;
        let entries = read
            .into_iter()
            .map(|(at, operation)| AttentionEntry { at, operation });
        Ok(entries.collect())
    }
}

impl Listing {
    async fn new(link: &Link, keyspace: &str, order: &str) -> Result<Self, StoreError> {
        Ok(Self {
            days: link
                .prepare(format!(
                    "SELECT day FROM {keyspace}.attention_days \
                     WHERE part = ? AND day >= ? AND day <= ? ORDER BY day {order} LIMIT ?"
                ))
                .await?,
            entries: link
                .prepare(format!(
                    "SELECT entry FROM {keyspace}.attention WHERE shard = ? AND day = ? \
                     AND entry >= ? AND entry <= ? ORDER BY entry {order} LIMIT ?"
                ))
                .await?,
        })
    }
}

/// Reads rows of one number each.
pub(super) async fn numbers(
    link: &Link,
    select: &PreparedStatement,
    values: impl SerializeRow,
) -> Result<Vec<i64>, StoreError> {
    let rows: Vec<(i64,)> = link.rows(ACTION, select, values).await?;
    Ok(rows.into_iter().map(|(number,)| number).collect())
}

/// The first possible entry of a day, or the last.
fn outermost_of(day: i64) -> [AttentionEntry; 2] {
    let first = day.saturating_mul(DAY_US);
    let last = first.saturating_add(DAY_US - 1);
    [(first, Uuid::nil()), (last, Uuid::max())].map(|(at, id)| AttentionEntry {
        at: Timestamp(at),
        operation: OperationId(id),
    })
}
