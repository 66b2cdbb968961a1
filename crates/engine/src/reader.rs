//! Which reader of a partition an operation belongs to, and where readers begin that follow others.
//!
//! Several readers may share a partition: each reads all of it, takes the operations that are its
//! own, and passes over the others. The rule is the partitioner's, once more: among `P` partitions
//! with `M` readers each, reader `murmur2(id) mod (P*M)` takes an operation. It reads partition
//! `r mod P`, for `murmur2(id) mod P` is that, too.
//!
//! What must hold: at any time every operation belongs to exactly one reader, and all records of it
//! are taken by that one. Where the number of readers changes, those of the new division follow those
//! of the old one whole: one that splits follows one, one that merges follows several, which stood at
//! different offsets. It begins at the lowest, and [`Handover`] says what of the rest was done.
//!
//! Where the number of *partitions* changes, from `P` to `kP`, the readers are as many before and after: `P`
//! partitions with `kM` readers each, then `kP` with `M`. So each follows the one of its own number, and has
//! the same operations. Those that have another partition from then on first read their old one to where it
//! [ended](Places); below that, the old partition's records are still divided among all of them
//! ([`Share`]), and beyond, what lies there and belongs elsewhere is rerouted.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Offset, OperationId, PartitionId, ReaderId};
use crate::partitioner::murmur2;
use crate::priority::{ByPriority, Source};

/// How the operations are divided among readers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Division {
    /// Partitions of the operation topics; at least 1.
    pub partitions: u32,
    /// Readers that share each of them; at least 1.
    pub readers_per_partition: u32,
}

/// Why readers of one division cannot follow those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DivisionError {
    /// There would be none, or too many.
    #[error("readers per partition must be 1 to {READERS_PER_PARTITION_MAX}, not {0}")]
    Readers(u32),
    /// The number of partitions would not become a whole multiple, with as many readers in all.
    #[error(
        "{before} partitions become a whole multiple of themselves, or a whole part, shared by as many readers \
         in all, and {after} are neither"
    )]
    Partitions {
        /// How many there are.
        before: u32,
        /// How many there would be.
        after: u32,
    },
    /// Neither number of readers is a multiple of the other.
    #[error(
        "{before} readers per partition become a whole multiple of themselves, or a whole part, and \
         {after} is neither: go by way of 1"
    )]
    NoMultiple {
        /// How many there are.
        before: u32,
        /// How many there would be.
        after: u32,
    },
}

/// The most readers that a partition may have.
pub const READERS_PER_PARTITION_MAX: u32 = 64;

impl Division {
    /// One reader for each partition.
    #[must_use]
    pub const fn one_each(partitions: u32) -> Self {
        Self {
            partitions,
            readers_per_partition: 1,
        }
    }

    /// How many readers there are.
    #[must_use]
    pub const fn readers(self) -> u32 {
        self.partitions * self.readers_per_partition
    }

    /// All readers, in order.
    pub fn all(self) -> impl Iterator<Item = ReaderId> {
        (0..self.readers()).map(ReaderId)
    }

    /// The readers of a partition, in order; none of one that there is not.
    pub fn of_partition(self, partition: PartitionId) -> impl Iterator<Item = ReaderId> {
        let is_there = partition.0 < self.partitions;
        (0..self.readers_per_partition)
            .filter(move |_| is_there)
            .map(move |nth| ReaderId(partition.0 + nth * self.partitions))
    }

    /// The partition that a reader reads.
    #[must_use]
    pub const fn partition_of(self, reader: ReaderId) -> PartitionId {
        PartitionId(reader.0 % self.partitions)
    }

    /// The reader of an operation.
    #[must_use]
    pub fn reader_of(self, id: OperationId) -> ReaderId {
        ReaderId(KeyHash::of(&id.key()).0 % self.readers())
    }

    /// Who of the readers of `partition` takes a record with this key. It is the operation's own reader
    /// wherever the record lies in its own partition; any other record has one taker, too.
    #[must_use]
    pub const fn taker(self, partition: PartitionId, key: KeyHash) -> ReaderId {
        let nth = key.0 % self.readers() / self.partitions;
        ReaderId(partition.0 + nth * self.partitions)
    }

    /// Which of the partitions that a partition became, when there were `before`, has a record of it with
    /// this key. It is the operation's own wherever the record lay in its own partition.
    #[must_use]
    pub const fn child(self, before: u32, partition: PartitionId, key: KeyHash) -> PartitionId {
        PartitionId(partition.0 + key.0 % self.partitions / before * before)
    }

    /// Whether readers of this division can follow those of `before`.
    ///
    /// # Errors
    ///
    /// If they cannot.
    pub fn may_follow(self, before: Self) -> Result<(), DivisionError> {
        let (was, is) = (before.readers_per_partition, self.readers_per_partition);
        if !(1..=READERS_PER_PARTITION_MAX).contains(&is) {
            return Err(DivisionError::Readers(is));
        }
        if self.partitions != before.partitions {
            let (was, is) = (before.partitions, self.partitions);
            let is_multiple = is.is_multiple_of(was) || was.is_multiple_of(is);
            return match is_multiple && self.readers() == before.readers() {
                true => Ok(()),
                false => Err(DivisionError::Partitions {
                    before: before.partitions,
                    after: self.partitions,
                }),
            };
        }
        if !was.is_multiple_of(is) && !is.is_multiple_of(was) {
            return Err(DivisionError::NoMultiple {
                before: was,
                after: is,
            });
        }
        Ok(())
    }

    /// The readers of `before` that had operations which `reader` has in this division: the one that it
    /// splits, or those that it merges.
    #[must_use]
    pub fn follows(self, before: Self, reader: ReaderId) -> Vec<ReaderId> {
        if before.readers() <= self.readers() {
            return vec![ReaderId(reader.0 % before.readers())];
        }
        let merged = before
            .all()
            .filter(|parent| parent.0 % self.readers() == reader.0);
        merged.collect()
    }
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            partitions,
            readers_per_partition: readers,
        } = self;
        write!(f, "{partitions} partitions with {readers} readers each")
    }
}

/// The hash of a record's key that partitions and readers go by.
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
pub struct Places {
    /// On `operation-requests`.
    pub requests: Offset,
    /// On `high-priority-requests`. The store keeps these apart from the others, whose format is older than this topic.
    #[serde(skip)]
    pub high_priority: Offset,
    /// On `step-replies`.
    pub replies: Offset,
    /// On `recovery`.
    pub recoveries: Offset,
}

impl Places {
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

/// Where a reader stood when it was taken from its owner: everything of it below is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stood {
    /// The division that it was a reader of.
    pub division: Division,
    /// Which one it was.
    pub reader: ReaderId,
    /// Where on each of the topics.
    pub at: Places,
}

impl Stood {
    fn reach(&mut self, other: &Self) {
        for source in Source::ALL {
            let at = self.at.on_mut(source);
            *at = other.at.on(source).max(*at);
        }
    }
}

/// What readers that were followed had done beyond the place where their follower begins.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Handover {
    stood: Vec<Stood>,
}

impl Handover {
    /// What is left of those who are followed, and of whom they had followed, for one who begins at
    /// `begins`. A reader that was followed several times counts once, with all that it had done: so there
    /// are never more of them than there are divisions.
    pub fn new(stood: impl IntoIterator<Item = Stood>, begins: impl Fn(Source) -> Offset) -> Self {
        let mut handover = Self::default();
        for one in stood {
            let is_same =
                |known: &&mut Stood| (known.division, known.reader) == (one.division, one.reader);
            match handover.stood.iter_mut().find(is_same) {
                Some(known) => known.reach(&one),
                None => handover.stood.push(one),
            }
        }
        handover.forget_below(begins);
        handover
    }

    /// Whether nothing beyond the beginning was done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stood.is_empty()
    }

    /// Those who had done something beyond.
    #[must_use]
    pub fn stood(&self) -> &[Stood] {
        &self.stood
    }

    /// The same, for whoever stores them.
    pub fn stood_mut(&mut self) -> &mut [Stood] {
        &mut self.stood
    }

    /// Whether a record was done by whom its operation belonged to.
    #[must_use]
    pub fn had_done(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        self.stood.iter().any(|stood| {
            let partition = stood.division.partition_of(stood.reader);
            offset < stood.at.on(source) && stood.division.taker(partition, key) == stood.reader
        })
    }

    /// How far those who are followed had got on one of the topics.
    #[must_use]
    pub fn furthest(&self, source: Source) -> Offset {
        let stood = self.stood.iter().map(|stood| stood.at.on(source));
        stood.max().unwrap_or_default()
    }

    /// Counts nothing as done beyond the follower's beginning, on this topic: it is another log than those
    /// who are followed had read, or has lost its end.
    pub fn distrust(&mut self, source: Source) {
        for stood in &mut self.stood {
            *stood.at.on_mut(source) = Offset(0);
        }
    }

    /// Forgets what nobody asks for any more: the follower is done below these offsets.
    pub fn forget_below(&mut self, done: impl Fn(Source) -> Offset) {
        self.stood
            .retain(|stood| Source::ALL.into_iter().any(|of| stood.at.on(of) > done(of)));
    }
}

/// Where a partition was cut when the number of partitions changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cut {
    /// How many partitions there were.
    pub before: u32,
    /// What lies below was put there by the old number.
    pub ends: Places,
}

/// What one reader takes of the records of its partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    division: Division,
    reader: ReaderId,
    handover: Handover,
    cut: Option<Cut>,
    until: Option<Places>,
    written: u32,
}

impl Share {
    /// The share of `reader`, which goes on after `handover`.
    #[must_use]
    pub fn new(division: Division, reader: ReaderId, handover: Handover) -> Self {
        Self {
            division,
            reader,
            handover,
            cut: None,
            until: None,
            written: division.partitions,
        }
    }

    /// The same while operations are spread over so many partitions by whoever writes.
    #[must_use]
    pub fn with_written(self, written: u32) -> Self {
        Self { written, ..self }
    }

    /// The same once everything below `done` is done: what had to be taken care with there is forgotten.
    #[must_use]
    pub fn beyond(mut self, done: &Places) -> Self {
        self.handover.forget_below(|source| done.on(source));
        self.cut = self.cut.filter(|cut| !done.reach(&cut.ends));
        self
    }

    /// Over how many partitions operations are spread by whoever writes now.
    #[must_use]
    pub fn partitions_written(&self) -> u32 {
        self.written
    }

    /// The same in a partition that was cut.
    #[must_use]
    pub fn with_cut(self, cut: Option<Cut>) -> Self {
        Self { cut, ..self }
    }

    /// The same of a reader that reads its partition to here and no further.
    #[must_use]
    pub fn with_end(self, until: Option<Places>) -> Self {
        Self { until, ..self }
    }

    /// Whether every record of the partition is the reader's: then no key need be hashed.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.division.readers_per_partition == 1
            && self.handover.is_empty()
            && self.cut.is_none()
            && self.until.is_none()
    }

    /// Whether the reader looks at a record at this offset at all. Replies are read on beyond the end, for they
    /// are to what it has just asked for.
    #[must_use]
    pub fn reads(&self, source: Source, offset: Offset) -> bool {
        let is_within = |until: Places| offset < until.on(source);
        source == Source::Replies || self.until.is_none_or(is_within)
    }

    /// Whether the reader is to leave its partition.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.until.is_some()
    }

    /// To where the reader has to get, whether there are records or not, before it counts as having gone over.
    #[must_use]
    pub fn awaited_end(&self, source: Source) -> Option<Offset> {
        let cut = self.cut.map(|cut| cut.ends);
        Some(self.until.or(cut)?.on(source))
    }

    /// Over how many partitions the operations were spread by whoever put a record at this offset.
    #[must_use]
    pub fn partitions_at(&self, source: Source, offset: Offset) -> u32 {
        match self.cut {
            Some(cut) if offset < cut.ends.on(source) => cut.before,
            Some(_) | None => self.division.partitions,
        }
    }

    /// Whether a record of the reader's partition is the reader's to take, and was not done by whom it
    /// follows.
    #[must_use]
    pub fn takes(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        let partition = self.division.partition_of(self.reader);
        let before = self.partitions_at(source, offset);
        let is_own = if before > self.division.partitions {
            // Those who read it by the old number, of which some now read others' partitions.
            let by_then = Division {
                partitions: before,
                readers_per_partition: self.division.readers() / before,
            };
            by_then.taker(partition, key) == self.reader
        } else {
            self.division.child(before, partition, key) == partition
                && self.division.taker(partition, key) == self.reader
        };
        is_own && !self.had_done(source, offset, key)
    }

    /// Whether a record was done by whom the reader follows.
    #[must_use]
    pub fn had_done(&self, source: Source, offset: Offset, key: KeyHash) -> bool {
        self.handover.had_done(source, offset, key)
    }

    /// Whether an operation is the reader's.
    #[must_use]
    pub fn has(&self, id: OperationId) -> bool {
        self.division.reader_of(id) == self.reader
    }
}

#[cfg(test)]
mod tests;
