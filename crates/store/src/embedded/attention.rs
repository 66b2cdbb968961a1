//! Reads the attention table: pages of a listing over index shards, and entries that are spent.

use fjall::Snapshot;
use waybill_engine::{PartitionId, Timestamp};

use super::damage::Order;
use super::tables::{Tables, bad_key};
use crate::keys::{self, INDEX_KEY_LEN};
use crate::{AttentionCursor, AttentionEntry, AttentionOrder, AttentionPage, StoreError};

impl Tables {
    /// Reads a page of a listing: merges the index shards' entries. Reads as many entries as it
    /// returns, plus one per index shard.
    pub(super) fn attention_page(
        &self,
        mut index_shards: Vec<PartitionId>,
        cursor: AttentionCursor,
        limit: usize,
    ) -> Result<AttentionPage, StoreError> {
        index_shards.sort_unstable();
        index_shards.dedup();
        let snapshot = self.db.snapshot();
        let mut heads = Vec::with_capacity(index_shards.len());
        for index_shard in index_shards {
            let mut entries = self.listed(&snapshot, index_shard, cursor);
            if let Some(head) = entries.next().transpose()? {
                heads.push((head, entries));
            }
        }
        let mut page = AttentionPage {
            entries: Vec::new(),
            next: None,
        };
        loop {
            let first = heads
                .iter_mut()
                .enumerate()
                .min_by(|(_, (one, _)), (_, (other, _))| cursor.order.compare(one, other));
            let Some((index_shard, (head, entries))) = first else {
                return Ok(page);
            };
            if page.entries.len() == limit {
                page.next = Some(AttentionCursor {
                    after: page.entries.last().copied().or(cursor.after),
                    ..cursor
                });
                return Ok(page);
            }
            page.entries.push(*head);
            match entries.next().transpose()? {
                Some(next) => *head = next,
                None => drop(heads.swap_remove(index_shard)),
            }
        }
    }

    /// The entries of one index shard that a listing has yet to return, in its order.
    fn listed(
        &self,
        snapshot: &Snapshot,
        index_shard: PartitionId,
        cursor: AttentionCursor,
    ) -> Box<dyn Iterator<Item = Result<AttentionEntry, StoreError>>> {
        let (first, last) = cursor.bounds();
        if first > last {
            return Box::new(std::iter::empty());
        }
        let key = |entry: AttentionEntry| keys::index(index_shard, entry.at, entry.operation);
        let order = match cursor.order {
            AttentionOrder::OldestFirst => Order::Ascending,
            AttentionOrder::NewestFirst => Order::Descending,
        };
        let (first, last) = (key(first), key(last));
        let span = &first[..]..=&last[..];
        let entries = self
            .walk(snapshot, &self.attention, span, order)
            .map(|key| {
                let key = key?;
                let (at, operation) =
                    keys::read_index(&key).ok_or_else(|| bad_key("attention", &key))?;
                Ok(AttentionEntry { at, operation })
            });
        Box::new(entries.filter(move |entry| {
            !matches!((entry, cursor.after), (Ok(entry), Some(after)) if *entry == after)
        }))
    }

    /// Looks at up to `limit` entries from the key `from` on and finds the spent ones: those that
    /// are not younger than `until`, and whose row no longer exists or is final without being
    /// parked. A row that cannot be read needs attention.
    pub(super) fn spent_attention(
        &self,
        from: IndexKey,
        until: Timestamp,
        now: Timestamp,
        limit: usize,
    ) -> Result<Spent, StoreError> {
        let snapshot = self.db.snapshot();
        let mut spent = Spent {
            keys: Vec::new(),
            looked_at: 0,
            next: None,
        };
        let span = &from[..]..=&[u8::MAX; INDEX_KEY_LEN][..];
        for key in self.walk(&snapshot, &self.attention, span, Order::Ascending) {
            let key = key?;
            let bad_key = || bad_key("attention", &key);
            let (at, operation) = keys::read_index(&key).ok_or_else(bad_key)?;
            let key: IndexKey = (*key).try_into().map_err(|_| bad_key())?;
            if at > until {
                // All that follow in this index shard are younger still.
                spent.next = keys::next_index_shard(&key);
                break;
            }
            if spent.looked_at == limit {
                spent.next = Some(key);
                break;
            }
            spent.looked_at += 1;
            let leads_to_nothing = match self.state_of(&snapshot, operation)? {
                None => true,
                Some(Ok((header, state))) => {
                    header.has_expired(now) || (state.state.is_final() && !state.state.is_parked())
                }
                Some(Err(_)) => false,
            };
            if leads_to_nothing {
                spent.keys.push(key);
            }
        }
        Ok(spent)
    }
}

/// The key of an entry.
pub(super) type IndexKey = [u8; INDEX_KEY_LEN];

/// The result of one look at old entries.
pub(super) struct Spent {
    /// The entries to remove.
    pub(super) keys: Vec<IndexKey>,
    /// How many were looked at.
    pub(super) looked_at: usize,
    /// Where to continue; `None` at the end of the table.
    pub(super) next: Option<IndexKey>,
}
