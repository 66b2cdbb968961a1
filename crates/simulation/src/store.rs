//! The state store and the logs, which survive every process.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use waybill_engine::{
    ByPriority, FailedOperation, KeyHash, OperationId, OperationRow, PartitionId, Priority,
    Recovery, Source, Stamp, StepReply, Timestamp, TopicOffsets,
};
use waybill_messages::TopicId;
use waybill_state::{
    AttentionCursor, AttentionEntry, AttentionPage, Checkpoint, DUE_BUCKETS_REREAD, DueBucket,
    DueEntry, Layout, Lease, LeaseKey, RowWrite,
};

use crate::replicas::Divergence;
use crate::supervisor_calls::Assignment;
use crate::workload::Record;

/// The difference between a record's fingerprint and its offset.
pub const FINGERPRINT_BASE: u64 = 1_000;

/// The offset of a checkpoint in one of the logs, as a position.
pub fn position(at: &TopicOffsets, source: Source) -> usize {
    usize::try_from(at.on(source).0).unwrap()
}

/// The ID of a topic of requests.
pub fn topic_of(source: Source) -> TopicId {
    match source {
        Source::HighPriority => TopicId(9 << 64),
        Source::Requests | Source::Replies | Source::Recoveries => TopicId(7 << 64),
    }
}

/// A row that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spoilt;

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    Stands,
    /// The stored row has a higher stamp.
    Fenced,
    /// There is no row yet, and the write lacks the immutable columns.
    Incomplete,
    /// The stored row is of the same write.
    Again,
    /// The stored row has the same stamp, and another content.
    Clash,
}

/// The logs of one partition, and its part of the deadline index.
#[derive(Debug, Default)]
pub struct PartitionLogs {
    pub requests: ByPriority<Vec<Record>>,
    /// `None` at the position of a transaction's marker.
    pub replies: Vec<Option<Rc<StepReply>>>,
    pub recoveries: Vec<Rc<Recovery>>,
    pub failed: Vec<Rc<FailedOperation>>,
    /// The first record of each log that retention has not deleted. (The judge sees all of them.)
    pub first: [usize; 4],
    /// The offset up to which supervisors have consumed `failed`, as far as is known.
    pub failed_next: usize,
    /// The member of the consumer group that `failed` belongs to.
    pub failed_reader: Assignment,
    /// The deadline index: its entries, and whether a sweep is certain to find each, because its
    /// bucket was not behind the cursor when it was written.
    index: BTreeMap<DueEntry, bool>,
    /// Buckets before this were swept; `None` before the first owner has started.
    pub cursor: Option<DueBucket>,
    /// The lease of the supervisor that sweeps them.
    pub sweeper: Option<Lease>,
    /// The checkpoint as lag tools see it.
    pub copied: Option<Checkpoint>,
}

#[derive(Debug)]
pub struct Store {
    pub logs: Vec<PartitionLogs>,
    pub layout: Layout,
    pub leases: BTreeMap<LeaseKey, Lease>,
    rows: Vec<Row>,
    /// The attention table, by index shard.
    pub attention: BTreeSet<(PartitionId, AttentionEntry)>,
    /// Rows that cannot be read until this time, or until they are written.
    pub spoilt: BTreeMap<OperationId, Timestamp>,
    /// The data that one replica has and the others lack.
    pub divergence: Divergence,
}

#[derive(Debug)]
struct Row {
    row: OperationRow,
    /// The immutable columns have their own stamp.
    created: Stamp,
}

impl PartitionLogs {
    /// The number of records in a log.
    pub fn len(&self, source: Source) -> usize {
        match source {
            Source::Requests => self.requests[Priority::Normal].len(),
            Source::HighPriority => self.requests[Priority::High].len(),
            Source::Replies => self.replies.len(),
            Source::Recoveries => self.recoveries.len(),
        }
    }

    /// Adds an entry to the deadline index.
    pub fn add_entry(&mut self, entry: DueEntry) {
        let is_certain = !self.is_behind(&entry);
        *self.index.entry(entry).or_default() |= is_certain;
    }

    /// Whether the sweep has passed an entry's bucket.
    pub fn is_behind(&self, entry: &DueEntry) -> bool {
        self.cursor
            .is_some_and(|cursor| DueBucket::of(entry.due) < cursor)
    }

    /// The entries of a bucket, in order.
    pub fn entries(&self, bucket: DueBucket) -> impl Iterator<Item = DueEntry> {
        let first = DueEntry {
            due: bucket.start(),
            operation: OperationId(uuid::Uuid::nil()),
        };
        let entries = self.index.range(first..).map(|(entry, _)| *entry);
        entries.take_while(move |entry| entry.due < bucket.end())
    }

    /// The entries of the buckets before `before` that were written in time to be found.
    pub fn certain_entries_before(&self, before: DueBucket) -> impl Iterator<Item = DueEntry> {
        let entries = self.index.iter();
        let before = entries.take_while(move |(entry, _)| DueBucket::of(entry.due) < before);
        before.filter_map(|(entry, is_certain)| is_certain.then_some(*entry))
    }

    /// All entries of the index, in order.
    pub fn all_entries(&self) -> impl Iterator<Item = DueEntry> {
        self.index.keys().copied()
    }

    pub fn remove_entry(&mut self, entry: &DueEntry) {
        self.index.remove(entry);
    }

    /// Removes the entries that no sweep reads again.
    pub fn forget_entries(&mut self) {
        let Some(cursor) = self.cursor else {
            return;
        };
        let kept = DueBucket(cursor.0 - DUE_BUCKETS_REREAD);
        self.index
            .retain(|entry, _| DueBucket::of(entry.due) >= kept);
    }

    /// Whether a sweep is certain to find an entry of an operation.
    pub fn will_find(&self, id: OperationId) -> bool {
        let mut entries = self.index.iter();
        entries.any(|(entry, is_certain)| *is_certain && entry.operation == id)
    }

    /// Whether a sweep has not passed an entry of an operation.
    pub fn will_wake(&self, id: OperationId) -> bool {
        let mut entries = self.index.keys();
        entries.any(|entry| entry.operation == id && !self.is_behind(entry))
    }
}

impl Store {
    pub fn new(partitions: u32) -> Self {
        let mut logs = Vec::new();
        logs.resize_with(partitions as usize, PartitionLogs::default);
        Self {
            logs,
            layout: Layout::first(partitions),
            leases: BTreeMap::new(),
            rows: Vec::new(),
            attention: BTreeSet::new(),
            spoilt: BTreeMap::new(),
            divergence: Divergence::default(),
        }
    }

    pub fn row(&self, id: OperationId) -> Option<&OperationRow> {
        let mut rows = self.rows.iter();
        rows.find(|stored| stored.row.id == id)
            .map(|stored| &stored.row)
    }

    /// The offsets up to which the records with a key are done on a partition's logs, by any shard.
    pub fn reached(&self, partition: usize, key: KeyHash) -> TopicOffsets {
        let partition = PartitionId(u32::try_from(partition).unwrap());
        let mut generation = Some(self.layout.generation());
        let newest = std::iter::from_fn(|| {
            let of = generation?;
            generation = of.previous();
            Some(of)
        });
        let mut newest = newest.filter_map(|generation| {
            let shard = self.layout.of(generation)?.taker(partition, key);
            self.leases.get(&LeaseKey::scheduler(generation, shard))
        });
        let Some(lease) = newest.next() else {
            return TopicOffsets::default();
        };
        let mut reached = lease.checkpoint.at;
        for source in Source::ALL {
            let at = reached.on_mut(source);
            while lease.handover.had_done(source, *at, key) {
                *at = at.next();
            }
        }
        reached
    }

    /// The same offsets for an operation.
    pub fn reached_of(&self, partition: usize, id: OperationId) -> TopicOffsets {
        self.reached(partition, KeyHash::of(&id.key()))
    }

    /// Reads a row as the processes do.
    pub fn read(&self, id: OperationId, now: Timestamp) -> Result<Option<&OperationRow>, Spoilt> {
        match self.spoilt.get(&id) {
            Some(until) if *until > now => Err(Spoilt),
            Some(_) | None => Ok(self.row(id)),
        }
    }

    pub fn rows(&self) -> impl Iterator<Item = &OperationRow> {
        self.rows.iter().map(|stored| &stored.row)
    }

    /// Up to `limit` entries of the attention table of an index shard, the oldest first.
    pub fn attention_page(
        &self,
        index_shard: usize,
        cursor: AttentionCursor,
        limit: usize,
    ) -> AttentionPage {
        let of = PartitionId(u32::try_from(index_shard).unwrap());
        let (first, last) = cursor.bounds();
        let rest = self.attention.range((of, first)..=(of, last));
        let rest = rest.map(|(_, entry)| *entry);
        let rest = rest.filter(|entry| Some(*entry) != cursor.after);
        let entries: Vec<AttentionEntry> = rest.take(limit).collect();
        let is_full = entries.len() == limit;
        let after = entries.last().copied().filter(|_| is_full);
        AttentionPage {
            next: after.map(|after| AttentionCursor {
                after: Some(after),
                ..cursor
            }),
            entries,
        }
    }

    /// Writes a row, unless the stored one has a higher stamp.
    pub fn write(&mut self, change: RowWrite, ignore_stamps: bool) -> Written {
        let Some(stored) = self
            .rows
            .iter_mut()
            .find(|stored| stored.row.id == change.id)
        else {
            let Some(created) = change.created else {
                return Written::Incomplete;
            };
            self.rows.push(Row {
                created: change.stamp,
                row: OperationRow {
                    id: change.id,
                    created,
                    state: change.state,
                    stamp: change.stamp,
                },
            });
            return Written::Stands;
        };
        if let Some(created) = change.created
            && stored.created < change.stamp
        {
            stored.created = change.stamp;
            stored.row.created = created;
        }
        if stored.row.stamp == change.stamp {
            return match stored.row.state == change.state {
                true => Written::Again,
                false => Written::Clash,
            };
        }
        if stored.row.stamp > change.stamp && !ignore_stamps {
            return Written::Fenced;
        }
        stored.row.stamp = change.stamp;
        stored.row.state = change.state;
        self.spoilt.remove(&change.id);
        Written::Stands
    }
}
