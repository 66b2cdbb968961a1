//! Which shard an operation belongs to, and where the shards of a new sharding scheme begin.
//!
//! A shard is the part of a partition that one scheduler owns: all of it, or one of several. The owner of a shard reads the
//! whole partition, takes the shard's operations and skips the others. Among `P` partitions with `M` shards each,
//! an operation belongs to shard `s = murmur2(id) mod (P*M)`, which lies in partition `s mod P`: that is `murmur2(id) mod P`,
//! as the partitioner computes it.
//!
//! What must hold: at any time every operation belongs to exactly one shard, which takes all of its records. When the
//! number of shards changes, those of the new scheme follow those of the old one whole: a part of a split shard follows
//! one, a merged shard follows several, which were done up to different offsets. It begins at the lowest of them, and
//! [`ShardHandover`] says what of the rest was done.
//!
//! When the number of *partitions* changes, from `P` to `kP`, there are as many shards before and after: `P` partitions with
//! `kM` shards each, then `kP` with `M`. So each follows the one of its own number, and has the same operations. Shards that
//! move to another partition first read their old one to the offsets at which it [ended](RepartitionBoundary). Below
//! those, the old partition's records are still divided among all of them ([`ShardFilter`]); beyond them, records that
//! belong elsewhere are rerouted.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Offset, OperationId, PartitionId, ShardId};
use crate::partitioner::murmur2;
use crate::priority::{ByPriority, Source};

/// How the operations are divided among shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ShardingScheme {
    /// Partitions of the operation topics; at least 1.
    pub partitions: u32,
    /// Shards of each partition; at least 1.
    pub shards_per_partition: u32,
}

/// Why shards of one sharding scheme cannot follow those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShardingError {
    /// There would be none, or too many.
    #[error("shards per partition must be 1 to {SHARDS_PER_PARTITION_MAX}, not {0}")]
    Shards(u32),
    /// The number of partitions would not become a whole multiple, with as many shards in all.
    #[error(
        "{before} partitions become a whole multiple of themselves, or a whole part, with as many shards \
         in all, and {after} are neither"
    )]
    Partitions {
        /// How many there are.
        before: u32,
        /// How many there would be.
        after: u32,
    },
    /// Neither number of shards is a multiple of the other.
    #[error(
        "{before} shards per partition become a whole multiple of themselves, or a whole part, and \
         {after} is neither: go by way of 1"
    )]
    NoMultiple {
        /// How many there are.
        before: u32,
        /// How many there would be.
        after: u32,
    },
}

/// The most shards that a partition may have.
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

    /// How many shards there are.
    #[must_use]
    pub const fn shards(self) -> u32 {
        self.partitions * self.shards_per_partition
    }

    /// All shards, in order.
    pub fn all(self) -> impl Iterator<Item = ShardId> {
        (0..self.shards()).map(ShardId)
    }

    /// The shards of a partition, in order; none of one that there is not.
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

    /// Which shard of `partition` takes a record with this key. It is the operation's own shard
    /// wherever the record lies in its own partition; any other record has one taker, too.
    #[must_use]
    pub const fn taker(self, partition: PartitionId, key: KeyHash) -> ShardId {
        let nth = key.0 % self.shards() / self.partitions;
        ShardId(partition.0 + nth * self.partitions)
    }

    /// Which of the partitions that a partition became, when there were `before`, has a record of it with
    /// this key. It is the operation's own wherever the record lay in its own partition.
    #[must_use]
    pub const fn child(self, before: u32, partition: PartitionId, key: KeyHash) -> PartitionId {
        PartitionId(partition.0 + key.0 % self.partitions / before * before)
    }

    /// Whether shards of this sharding scheme can follow those of `before`.
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

    /// The shards of `before` that had operations which `shard` has in this sharding scheme: the one that it
    /// splits, or those that it merges.
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
    /// Of a key's bytes.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self(murmur2(key) & 0x7fff_ffff)
    }

    /// The partition of records with this key, of so many.
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

    /// Those on the topics of requests.
    #[must_use]
    pub fn on_requests(&self) -> ByPriority<Offset> {
        ByPriority::of(|priority| self.on(priority.source()))
    }

    /// The offset on one of the topics, to be changed.
    pub fn on_mut(&mut self, source: Source) -> &mut Offset {
        match source {
            Source::Requests => &mut self.requests,
            Source::HighPriority => &mut self.high_priority,
            Source::Replies => &mut self.replies,
            Source::Recoveries => &mut self.recoveries,
        }
    }

    /// Whether these lie nowhere before `others`.
    #[must_use]
    pub fn reach(&self, others: &Self) -> bool {
        Source::ALL
            .into_iter()
            .all(|source| self.on(source) >= others.on(source))
    }
}

/// Up to where a shard was done when its lease was taken for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResumeOffsets {
    /// The sharding scheme that it was a shard of.
    pub scheme: ShardingScheme,
    /// Which one it was.
    pub shard: ShardId,
    /// Where on each of the topics.
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

/// What shards that were followed had done beyond the place where their follower begins.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ShardHandover {
    resume: Vec<ResumeOffsets>,
}

impl ShardHandover {
    /// What a shard that begins at `begins` takes over from those that it follows, and from those that they had followed. A
    /// shard that was followed several times counts once, with all that it had done: so there are never more of
    /// them than there are sharding schemes.
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

    /// Whether nothing beyond the beginning was done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.resume.is_empty()
    }

    /// The followed shards that had done more than the follower's beginning.
    #[must_use]
    pub fn resume_offsets(&self) -> &[ResumeOffsets] {
        &self.resume
    }

    /// Whether a record was done by the shard that its operation belonged to.
    #[must_use]
    pub fn had_done(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        self.resume.iter().any(|resume| {
            let partition = resume.scheme.partition_of(resume.shard);
            offset < resume.at.on(source) && resume.scheme.taker(partition, key) == resume.shard
        })
    }

    /// The furthest offset up to which one of the followed shards was done.
    #[must_use]
    pub fn furthest(&self, source: Source) -> Offset {
        let resume = self.resume.iter().map(|resume| resume.at.on(source));
        resume.max().unwrap_or_default()
    }

    /// Counts nothing as done beyond the follower's beginning, on this topic: it is another log than the followed shards
    /// had read, or has lost its end.
    pub fn distrust(&mut self, source: Source) {
        for resume in &mut self.resume {
            *resume.at.on_mut(source) = Offset(0);
        }
    }

    /// Forgets what nobody asks for any more: the follower is done below these offsets.
    pub fn forget_below(&mut self, done: impl Fn(Source) -> Offset) {
        self.resume.retain(|resume| {
            Source::ALL
                .into_iter()
                .any(|of| resume.at.on(of) > done(of))
        });
    }
}

/// The offsets at which a partition changed hands when the number of partitions changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RepartitionBoundary {
    /// How many partitions there were.
    pub before: u32,
    /// What lies below was put there by the old number.
    pub ends: TopicOffsets,
}

/// What one shard takes of the records of its partition.
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
    /// The filter of `shard`, which goes on after `handover`.
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

    /// The same while writers spread operations over so many partitions.
    #[must_use]
    pub fn with_written(self, written: u32) -> Self {
        Self { written, ..self }
    }

    /// The same once everything below `done` is done: what had to be taken care with there is forgotten.
    #[must_use]
    pub fn beyond(mut self, done: &TopicOffsets) -> Self {
        self.handover.forget_below(|source| done.on(source));
        self.boundary = self.boundary.filter(|boundary| !done.reach(&boundary.ends));
        self
    }

    /// Over how many partitions writers spread operations now.
    #[must_use]
    pub fn partitions_written(&self) -> u32 {
        self.written
    }

    /// The same in a partition that was cut.
    #[must_use]
    pub fn with_boundary(self, boundary: Option<RepartitionBoundary>) -> Self {
        Self { boundary, ..self }
    }

    /// The same of a shard that reads its partition to here and no further.
    #[must_use]
    pub fn with_end(self, until: Option<TopicOffsets>) -> Self {
        Self { until, ..self }
    }

    /// Whether every record of the partition is the shard's: then no key need be hashed.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.scheme.shards_per_partition == 1
            && self.handover.is_empty()
            && self.boundary.is_none()
            && self.until.is_none()
    }

    /// Whether the shard looks at a record at this offset at all. Replies are read on beyond the end, for they
    /// are to what it has just asked for.
    #[must_use]
    pub fn reads(&self, source: Source, offset: Offset) -> bool {
        let is_within = |until: TopicOffsets| offset < until.on(source);
        source == Source::Replies || self.until.is_none_or(is_within)
    }

    /// Whether the shard is to leave its partition.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.until.is_some()
    }

    /// To where the shard has to get, whether there are records or not, before it counts as having gone over.
    #[must_use]
    pub fn awaited_end(&self, source: Source) -> Option<Offset> {
        let boundary = self.boundary.map(|boundary| boundary.ends);
        Some(self.until.or(boundary)?.on(source))
    }

    /// Over how many partitions operations were spread when the record at this offset was written.
    #[must_use]
    pub fn partitions_at(&self, source: Source, offset: Offset) -> u32 {
        match self.boundary {
            Some(boundary) if offset < boundary.ends.on(source) => boundary.before,
            Some(_) | None => self.scheme.partitions,
        }
    }

    /// Whether a record of the shard's partition is the shard's to take, and was not done by those that it
    /// follows.
    #[must_use]
    pub fn takes(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        let partition = self.scheme.partition_of(self.shard);
        let before = self.partitions_at(source, offset);
        let is_own = if before > self.scheme.partitions {
            // Those that read it by the old number, of which some now read others' partitions.
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

    /// Whether a record was done by the one that the shard follows.
    #[must_use]
    pub fn had_done(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        self.handover.had_done(source, offset, key)
    }

    /// Whether an operation is the shard's.
    #[must_use]
    pub fn has(&self, id: OperationId) -> bool {
        self.scheme.shard_of(id) == self.shard
    }
}

#[cfg(test)]
mod tests;
