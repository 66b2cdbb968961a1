//! Determines the shard of an operation, and where the shards of a new sharding scheme begin.
//!
//! A shard is the part of a partition that one scheduler owns: all of it, or one of several parts.
//! The owner reads the whole partition, takes the shard's operations and skips the others. With `P`
//! partitions of `M` shards each, an operation belongs to shard `s = murmur2(id) mod (P*M)` in
//! partition `s mod P`, which is `murmur2(id) mod P`, as the partitioner computes it.
//!
//! What must hold: at any time every operation belongs to exactly one shard, which takes all of its
//! records. When the number of shards changes, every new shard follows whole old ones. Each part of
//! a split shard follows one. A merged shard follows several, which were done up to different
//! offsets: it begins at the lowest, and [`ShardHandover`] knows which later records are done.
//!
//! When the number of *partitions* changes from `P` to `kP`, the number of shards stays the same:
//! `P` partitions with `kM` shards each become `kP` with `M`. So each shard follows the one with
//! its own number, and has the same operations. A shard that moves to another partition first reads
//! its old one to the offsets at which it [ended](RepartitionBoundary). Below these, the old
//! partition's records are divided among all of its shards ([`ShardFilter`]). Beyond them, records
//! of other partitions are rerouted.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Offset, OperationId, PartitionId, ShardId};
use crate::partitioner::murmur2;
use crate::priority::{ByPriority, Source};

/// How operations are divided among shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ShardingScheme {
    /// Partitions of the operation topics; at least 1.
    pub partitions: u32,
    /// Shards of each partition; at least 1.
    pub shards_per_partition: u32,
}

/// Why the shards of one sharding scheme cannot follow those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShardingError {
    /// There would be no shards, or too many.
    #[error("shards per partition must be 1 to {SHARDS_PER_PARTITION_MAX}, not {0}")]
    Shards(u32),
    /// One number of partitions must be a multiple of the other, with the same number of shards.
    #[error(
        "cannot change {before} partitions to {after}: the new number must be a multiple or a \
         divisor of the current one, with the same number of shards in total"
    )]
    Partitions {
        /// The current number.
        before: u32,
        /// The new number.
        after: u32,
    },
    /// One number of shards must be a multiple of the other.
    #[error(
        "cannot change {before} shards per partition to {after}: the new number must be a multiple \
         or a divisor of the current one; change to 1 first"
    )]
    NoMultiple {
        /// The current number.
        before: u32,
        /// The new number.
        after: u32,
    },
}

/// Maximum number of shards per partition.
pub const SHARDS_PER_PARTITION_MAX: u32 = 64;

impl ShardingScheme {
    /// One shard for each partition.
    #[must_use]
    pub const fn one_each(partitions: u32) -> Self {
        Self {
            partitions,
            shards_per_partition: 1,
        }
    }

    /// The number of shards.
    #[must_use]
    pub const fn shards(self) -> u32 {
        self.partitions * self.shards_per_partition
    }

    /// All shards, in order.
    pub fn all(self) -> impl Iterator<Item = ShardId> {
        (0..self.shards()).map(ShardId)
    }

    /// The shards of a partition, in order; none if the partition does not exist.
    pub fn of_partition(self, partition: PartitionId) -> impl Iterator<Item = ShardId> {
        let is_there = partition.0 < self.partitions;
        (0..self.shards_per_partition)
            .filter(move |_| is_there)
            .map(move |nth| ShardId(partition.0 + nth * self.partitions))
    }

    /// The partition that a shard reads.
    #[must_use]
    pub const fn partition_of(self, shard: ShardId) -> PartitionId {
        PartitionId(shard.0 % self.partitions)
    }

    /// The shard of an operation.
    #[must_use]
    pub fn shard_of(self, id: OperationId) -> ShardId {
        ShardId(KeyHash::of(&id.key()).0 % self.shards())
    }

    /// The shard of `partition` that takes a record with this key. For a record in the right
    /// partition it is the operation's own shard; a misrouted record has exactly one taker, too.
    #[must_use]
    pub const fn taker(self, partition: PartitionId, key: KeyHash) -> ShardId {
        let nth = key.0 % self.shards() / self.partitions;
        ShardId(partition.0 + nth * self.partitions)
    }

    /// The new partition that receives a record with this key when `partition`, one of `before`, is
    /// split. For a record in the right partition it is the operation's own.
    #[must_use]
    pub const fn child(self, before: u32, partition: PartitionId, key: KeyHash) -> PartitionId {
        PartitionId(partition.0 + key.0 % self.partitions / before * before)
    }

    /// Checks whether shards of this sharding scheme can follow those of `before`.
    ///
    /// # Errors
    ///
    /// If they cannot.
    pub fn may_follow(self, before: Self) -> Result<(), ShardingError> {
        let (was, is) = (before.shards_per_partition, self.shards_per_partition);
        if !(1..=SHARDS_PER_PARTITION_MAX).contains(&is) {
            return Err(ShardingError::Shards(is));
        }
        if self.partitions != before.partitions {
            let (was, is) = (before.partitions, self.partitions);
            let is_multiple = is.is_multiple_of(was) || was.is_multiple_of(is);
            return match is_multiple && self.shards() == before.shards() {
                true => Ok(()),
                false => Err(ShardingError::Partitions {
                    before: before.partitions,
                    after: self.partitions,
                }),
            };
        }
        if !was.is_multiple_of(is) && !is.is_multiple_of(was) {
            return Err(ShardingError::NoMultiple {
                before: was,
                after: is,
            });
        }
        Ok(())
    }

    /// The shards of `before` that `shard` follows: the one that it is a part of, or those that it
    /// merges.
    #[must_use]
    pub fn follows(self, before: Self, shard: ShardId) -> Vec<ShardId> {
        if before.shards() <= self.shards() {
            return vec![ShardId(shard.0 % before.shards())];
        }
        let merged = before
            .all()
            .filter(|parent| parent.0 % self.shards() == shard.0);
        merged.collect()
    }
}

impl fmt::Display for ShardingScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            partitions,
            shards_per_partition: shards,
        } = self;
        write!(f, "{partitions} partitions with {shards} shards each")
    }
}

/// The hash of a record's key that partitions and shards go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyHash(u32);

impl KeyHash {
    /// Hashes the bytes of a key.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self(murmur2(key) & 0x7fff_ffff)
    }

    /// The partition of records with this key, among `partitions`.
    #[must_use]
    pub const fn partition(self, partitions: u32) -> PartitionId {
        PartitionId(self.0 % partitions)
    }
}

/// An offset on each of a partition's topics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TopicOffsets {
    /// On `operation-requests`.
    pub requests: Offset,
    /// On `high-priority-requests`.
    pub high_priority: Offset,
    /// On `step-replies`.
    pub replies: Offset,
    /// On `recovery`.
    pub recoveries: Offset,
}

impl TopicOffsets {
    /// The offset on one of the topics.
    #[must_use]
    pub const fn on(&self, source: Source) -> Offset {
        match source {
            Source::Requests => self.requests,
            Source::HighPriority => self.high_priority,
            Source::Replies => self.replies,
            Source::Recoveries => self.recoveries,
        }
    }

    /// The offsets on the two request topics.
    #[must_use]
    pub fn on_requests(&self) -> ByPriority<Offset> {
        ByPriority::of(|priority| self.on(priority.source()))
    }

    /// The offset on one of the topics, mutable.
    pub fn on_mut(&mut self, source: Source) -> &mut Offset {
        match source {
            Source::Requests => &mut self.requests,
            Source::HighPriority => &mut self.high_priority,
            Source::Replies => &mut self.replies,
            Source::Recoveries => &mut self.recoveries,
        }
    }

    /// Whether each offset is at or beyond that of `others`.
    #[must_use]
    pub fn reach(&self, others: &Self) -> bool {
        Source::ALL
            .into_iter()
            .all(|source| self.on(source) >= others.on(source))
    }
}

/// The offsets up to which a shard was done when its lease was ended for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResumeOffsets {
    /// The sharding scheme of the shard.
    pub scheme: ShardingScheme,
    /// The shard.
    pub shard: ShardId,
    /// Its offset on each of the topics.
    pub at: TopicOffsets,
}

impl ResumeOffsets {
    fn reach(&mut self, other: &Self) {
        for source in Source::ALL {
            let at = self.at.on_mut(source);
            *at = other.at.on(source).max(*at);
        }
    }
}

/// The records beyond a shard's beginning that the shards it follows have done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ShardHandover {
    resume: Vec<ResumeOffsets>,
}

impl ShardHandover {
    /// The handover to a shard that begins at `begins`, from the shards that it follows, directly
    /// or indirectly. A shard that occurs several times counts once, with its highest offsets. So
    /// there are never more entries than sharding schemes.
    pub fn new(
        resume: impl IntoIterator<Item = ResumeOffsets>,
        begins: impl Fn(Source) -> Offset,
    ) -> Self {
        let mut handover = Self::default();
        for one in resume {
            let is_same =
                |known: &&mut ResumeOffsets| (known.scheme, known.shard) == (one.scheme, one.shard);
            match handover.resume.iter_mut().find(is_same) {
                Some(known) => known.reach(&one),
                None => handover.resume.push(one),
            }
        }
        handover.forget_below(begins);
        handover
    }

    /// Whether no record beyond the beginning was done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.resume.is_empty()
    }

    /// The followed shards that were done beyond the beginning.
    #[must_use]
    pub fn resume_offsets(&self) -> &[ResumeOffsets] {
        &self.resume
    }

    /// Whether the shard that the record belonged to has done it.
    #[must_use]
    pub fn had_done(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        self.resume.iter().any(|resume| {
            let partition = resume.scheme.partition_of(resume.shard);
            offset < resume.at.on(source) && resume.scheme.taker(partition, key) == resume.shard
        })
    }

    /// The highest offset up to which a followed shard was done.
    #[must_use]
    pub fn furthest(&self, source: Source) -> Offset {
        let resume = self.resume.iter().map(|resume| resume.at.on(source));
        resume.max().unwrap_or_default()
    }

    /// Treats no record of this topic beyond the beginning as done: the followed shards have read
    /// another log, or the log has lost its end.
    pub fn distrust(&mut self, source: Source) {
        for resume in &mut self.resume {
            *resume.at.on_mut(source) = Offset(0);
        }
    }

    /// Drops entries that are no longer needed: the shard itself is done below these offsets.
    pub fn forget_below(&mut self, done: impl Fn(Source) -> Offset) {
        self.resume.retain(|resume| {
            Source::ALL
                .into_iter()
                .any(|of| resume.at.on(of) > done(of))
        });
    }
}

/// The offsets of a partition at which the number of partitions changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RepartitionBoundary {
    /// The number of partitions before.
    pub before: u32,
    /// Records below these offsets were written with the old number.
    pub ends: TopicOffsets,
}

/// Which records of its partition a shard takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardFilter {
    scheme: ShardingScheme,
    shard: ShardId,
    handover: ShardHandover,
    boundary: Option<RepartitionBoundary>,
    until: Option<TopicOffsets>,
    written: u32,
}

impl ShardFilter {
    /// The filter of `shard`, which continues from `handover`.
    #[must_use]
    pub fn new(scheme: ShardingScheme, shard: ShardId, handover: ShardHandover) -> Self {
        Self {
            scheme,
            shard,
            handover,
            boundary: None,
            until: None,
            written: scheme.partitions,
        }
    }

    /// The same filter while writers use `written` partitions.
    #[must_use]
    pub fn with_written(self, written: u32) -> Self {
        Self { written, ..self }
    }

    /// The same filter once everything below `done` is done: handovers and boundaries below it are
    /// dropped.
    #[must_use]
    pub fn beyond(mut self, done: &TopicOffsets) -> Self {
        self.handover.forget_below(|source| done.on(source));
        self.boundary = self.boundary.filter(|boundary| !done.reach(&boundary.ends));
        self
    }

    /// The number of partitions that writers use now.
    #[must_use]
    pub fn partitions_written(&self) -> u32 {
        self.written
    }

    /// The same filter for a partition with a boundary.
    #[must_use]
    pub fn with_boundary(self, boundary: Option<RepartitionBoundary>) -> Self {
        Self { boundary, ..self }
    }

    /// The same filter for a shard that reads its partition only up to these offsets.
    #[must_use]
    pub fn with_end(self, until: Option<TopicOffsets>) -> Self {
        Self { until, ..self }
    }

    /// Whether the shard takes every record of the partition, so that no key need be hashed.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.scheme.shards_per_partition == 1
            && self.handover.is_empty()
            && self.boundary.is_none()
            && self.until.is_none()
    }

    /// Whether the shard reads the record at this offset at all. Replies are also read beyond its
    /// end, because they answer its latest requests.
    #[must_use]
    pub fn reads(&self, source: Source, offset: Offset) -> bool {
        let is_within = |until: TopicOffsets| offset < until.on(source);
        source == Source::Replies || self.until.is_none_or(is_within)
    }

    /// Whether the shard will leave its partition.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.until.is_some()
    }

    /// The offset that the shard must reach, with or without records, to complete a change of the
    /// partitions.
    #[must_use]
    pub fn awaited_end(&self, source: Source) -> Option<Offset> {
        let boundary = self.boundary.map(|boundary| boundary.ends);
        Some(self.until.or(boundary)?.on(source))
    }

    /// The number of partitions when the record at this offset was written.
    #[must_use]
    pub fn partitions_at(&self, source: Source, offset: Offset) -> u32 {
        match self.boundary {
            Some(boundary) if offset < boundary.ends.on(source) => boundary.before,
            Some(_) | None => self.scheme.partitions,
        }
    }

    /// Whether the shard takes a record of its partition: the record belongs to it, and no shard
    /// that it follows has done it.
    #[must_use]
    pub fn takes(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        let partition = self.scheme.partition_of(self.shard);
        let before = self.partitions_at(source, offset);
        let is_own = if before > self.scheme.partitions {
            // The shards by the old number, some of which now read other partitions.
            let by_then = ShardingScheme {
                partitions: before,
                shards_per_partition: self.scheme.shards() / before,
            };
            by_then.taker(partition, key) == self.shard
        } else {
            self.scheme.child(before, partition, key) == partition
                && self.scheme.taker(partition, key) == self.shard
        };
        is_own && !self.had_done(source, offset, key)
    }

    /// Whether a shard that this one follows has done a record.
    #[must_use]
    pub fn had_done(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        self.handover.had_done(source, offset, key)
    }

    /// Whether an operation belongs to the shard.
    #[must_use]
    pub fn has(&self, id: OperationId) -> bool {
        self.scheme.shard_of(id) == self.shard
    }
}

#[cfg(test)]
mod tests;
