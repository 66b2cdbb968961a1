//! Which sharding scheme is in force, and the steps to another one.
//!
//! What must hold: a layout is only ever replaced by its own [`successor`](Layout::successor), by a
//! conditional write. So all processes agree on the sharding scheme of every generation, and the
//! leases of different generations are independent.
//!
//! A change of the number of partitions takes several generations:
//!
//! * The first records the [intended](Layout::intended) number, which no process uses yet.
//! * If the number falls, the next records a [boundary](Layout::with_boundaries) in each remaining
//!   partition: its shards stop there, and their successors take the records after it.
//! * The next [announces](Layout::announced) the change: producers distribute operations by the new
//!   number, and there are as many shards as will be needed.
//! * Once no process can write by the old number, the next records where the old partitions
//!   [ended](Layout::moved). A shard that moves to another partition first reads its old one up to
//!   that end, in the previous generation.
//! * Once all shards have done so, the last [forgets](Layout::settled) the change.
//!
//! Partitions that are no longer used stay on the topics. Records that are still written to them
//! are rerouted, from the offsets that the layout [keeps](Layout::retired).

mod change;
mod error;

use std::fmt;

use serde::{Deserialize, Serialize};
use waybill_engine::{
    PartitionId, RepartitionBoundary, SHARDS_PER_PARTITION_MAX, ShardId, ShardingError,
    ShardingScheme, TopicOffsets,
};

use self::change::{Begins, Change, Step};

pub use self::change::Retired;
pub use self::error::LayoutError;

/// The number of a layout, counted from 0, which is the layout before any was stored.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LayoutGeneration(pub u64);

impl LayoutGeneration {
    /// The generation before this one; `None` before the first.
    #[must_use]
    pub fn previous(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

impl fmt::Display for LayoutGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How many times a layout may be replaced. Each sharding scheme takes a few bytes, and all are
/// kept.
const GENERATIONS_MAX: usize = 10_000;
/// Maximum number of generations that a change of the number of partitions takes.
const GENERATIONS_PER_CHANGE_MAX: usize = 5;

/// The current sharding scheme and the earlier ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// The earlier schemes, oldest first, one per generation.
    past: Vec<ShardingScheme>,
    /// The one in force.
    scheme: ShardingScheme,
    /// The change of the number of partitions, if one is in progress.
    change: Option<Change>,
    /// The boundaries of partitions when their number first changed, in order.
    boundaries: Vec<TopicOffsets>,
    /// The periods in which a partition had no shard, in order.
    retired: Vec<Retired>,
}

impl Layout {
    /// The layout if none is stored: one shard for each partition.
    #[must_use]
    pub const fn first(partitions: u32) -> Self {
        Self {
            past: Vec::new(),
            scheme: ShardingScheme::one_each(partitions),
            change: None,
            boundaries: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// The next layout, with the same number of partitions.
    ///
    /// # Errors
    ///
    /// If the shards of `scheme` cannot follow those of this one, or the number of partitions is
    /// being changed.
    pub fn successor(&self, scheme: ShardingScheme) -> Result<Self, LayoutError> {
        if let Some(Change { from, to, .. }) = self.change {
            return Err(LayoutError::Changing { from, to });
        }
        if scheme.partitions != self.scheme.partitions {
            let (before, after) = (self.scheme.partitions, scheme.partitions);
            return Err(ShardingError::Partitions { before, after }.into());
        }
        self.next(scheme)
    }

    /// The next layout, which intends this number of partitions. The intention may be changed as
    /// long as no process uses it.
    ///
    /// # Errors
    ///
    /// If the number is 0, the current one, or neither a multiple nor a divisor of it; if each
    /// partition would temporarily have too many shards; if another change is in progress; or if
    /// too few generations are left.
    pub fn intended(&self, partitions: u32) -> Result<Self, LayoutError> {
        self.check_not_announced()?;
        // Leaves enough generations to complete the change.
        if self.past.len() + GENERATIONS_PER_CHANGE_MAX > GENERATIONS_MAX {
            return Err(LayoutError::Generations);
        }
        let (now, wanted) = (self.scheme.partitions, partitions);
        let is_multiple = wanted.is_multiple_of(now) || now.is_multiple_of(wanted.max(1));
        if wanted == now || wanted == 0 || !is_multiple {
            return Err(LayoutError::Partitions { now, wanted });
        }
        let shared = self.with_shards_for(wanted);
        let shards = shared.shards_per_partition;
        if shards > SHARDS_PER_PARTITION_MAX {
            return Err(LayoutError::TooFar {
                now,
                wanted,
                shards,
            });
        }
        shared.may_follow(self.scheme)?;
        among(wanted, shared.shards()).may_follow(shared)?;
        let change = Change {
            from: now,
            to: wanted,
            step: Step::Intended,
            begins: None,
        };
        Ok(Self {
            change: Some(change),
            ..self.next(self.scheme)?
        })
    }

    /// The next layout, without the intended number of partitions.
    ///
    /// # Errors
    ///
    /// If none is intended, or a process already uses it.
    pub fn withdrawn(&self) -> Result<Self, LayoutError> {
        self.check_not_announced()?;
        self.change.as_ref().ok_or(LayoutError::Step)?;
        Ok(Self {
            change: None,
            ..self.next(self.scheme)?
        })
    }

    /// The next layout, which records `begins` as boundaries of the partitions that remain of a
    /// smaller intended number.
    ///
    /// # Errors
    ///
    /// If no smaller number is intended, or `begins` does not have one offset for each of them.
    pub fn with_boundaries(&self, begins: Vec<TopicOffsets>) -> Result<Self, LayoutError> {
        let change = self.at(&Step::Intended)?;
        if !change.is_to_fewer() || begins.len() != change.begun() as usize {
            return Err(LayoutError::Step);
        }
        let mut next = self.next(self.scheme)?;
        next.keep_boundaries(&begins);
        let since = next.generation();
        next.change = Some(Change {
            step: Step::Bounded,
            begins: Some(Begins { since, at: begins }),
            ..change.clone()
        });
        Ok(next)
    }

    /// The next layout, which spreads operations over the intended number of partitions and has as
    /// many shards as will read them. Added partitions are read from `begins` on.
    ///
    /// # Errors
    ///
    /// If none is intended, or a smaller number without boundaries, or `begins` does not have one
    /// offset for each added partition.
    pub fn announced(&self, begins: Vec<TopicOffsets>) -> Result<Self, LayoutError> {
        if let Ok(change) = self.at(&Step::Bounded) {
            if !begins.is_empty() {
                return Err(LayoutError::Step);
            }
            return Ok(Self {
                change: Some(Change {
                    step: Step::Announced,
                    ..change.clone()
                }),
                ..self.next(self.with_shards_for(change.to))?
            });
        }
        let change = self.at(&Step::Intended)?;
        if change.is_to_fewer() || begins.len() != change.begun() as usize {
            return Err(LayoutError::Step);
        }
        let mut next = self.next(self.with_shards_for(change.to))?;
        let since = next.generation();
        let change = Change {
            step: Step::Announced,
            begins: Some(Begins { since, at: begins }),
            ..change.clone()
        };
        // A retired partition is in use again from its new beginning on.
        for retired in &mut next.retired {
            retired.until = retired.until.or(change.begin(retired.partition));
        }
        next.change = Some(change);
        Ok(next)
    }

    /// The current partitions, with as many shards as `partitions` will have: the least multiple of
    /// the current number of shards that gives each of `partitions` equally many.
    fn with_shards_for(&self, partitions: u32) -> ShardingScheme {
        let shards = self.scheme.shards_per_partition;
        let times = (partitions / self.scheme.partitions).max(1);
        let (mut common, mut rest) = (shards, times);
        while rest != 0 {
            (common, rest) = (rest, common % rest);
        }
        ShardingScheme {
            shards_per_partition: shards.saturating_mul(times / common),
            ..self.scheme
        }
    }

    /// The next layout, in which shards read the announced partitions, and the old ones ended at
    /// `ends`.
    ///
    /// # Errors
    ///
    /// If none are announced, or `ends` does not have one offset for each old partition.
    pub fn moved(&self, ends: Vec<TopicOffsets>) -> Result<Self, LayoutError> {
        let change = self.at(&Step::Announced)?;
        if ends.len() != change.from as usize {
            return Err(LayoutError::Step);
        }
        let mut next = self.next(among(change.to, self.scheme.shards()))?;
        let into = next.generation();
        if !change.is_to_fewer() {
            next.keep_boundaries(&ends);
        }
        let left_over = (0..).map(PartitionId).zip(&ends).skip(change.to as usize);
        next.retired
            .extend(left_over.map(|(partition, from)| Retired {
                partition,
                from: *from,
                until: None,
            }));
        next.change = Some(Change {
            step: Step::Moved { into, ends },
            ..change.clone()
        });
        Ok(next)
    }

    /// The next layout, once all shards have moved. It drops the change, and the retired periods in
    /// `through`, whose records were rerouted.
    ///
    /// # Errors
    ///
    /// If no shards are moving.
    pub fn settled(&self, through: &[Retired]) -> Result<Self, LayoutError> {
        self.moving().ok_or(LayoutError::Step)?;
        let mut next = self.next(self.scheme)?;
        next.change = None;
        next.retired.retain(|retired| !through.contains(retired));
        Ok(next)
    }

    /// Keeps the boundaries of the first partitions, unless they had boundaries before.
    fn keep_boundaries(&mut self, offsets: &[TopicOffsets]) {
        let new = offsets.iter().skip(self.boundaries.len());
        self.boundaries.extend(new);
    }

    fn next(&self, scheme: ShardingScheme) -> Result<Self, LayoutError> {
        scheme.may_follow(self.scheme)?;
        if self.past.len() >= GENERATIONS_MAX {
            return Err(LayoutError::Generations);
        }
        let mut past = self.past.clone();
        past.push(self.scheme);
        Ok(Self {
            past,
            scheme,
            ..self.clone()
        })
    }

    /// Fails if a process already uses another number.
    fn check_not_announced(&self) -> Result<(), LayoutError> {
        match &self.change {
            Some(Change { from, to, step, .. }) if *step != Step::Intended => {
                let (from, to) = (*from, *to);
                Err(LayoutError::Changing { from, to })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The change, if it is at this step.
    fn at(&self, step: &Step) -> Result<&Change, LayoutError> {
        let change = self.change.as_ref();
        let change = change.filter(|change| change.step == *step);
        change.ok_or(LayoutError::Step)
    }

    fn moving(&self) -> Option<(&Change, LayoutGeneration, &[TopicOffsets])> {
        let change = self.change.as_ref()?;
        match &change.step {
            Step::Moved { into, ends } => Some((change, *into, ends)),
            Step::Intended | Step::Bounded | Step::Announced => None,
        }
    }

    /// The number of partitions over which producers spread operations.
    #[must_use]
    pub fn partitions_written(&self) -> u32 {
        match &self.change {
            Some(change) if !matches!(change.step, Step::Intended | Step::Bounded) => change.to,
            Some(_) | None => self.scheme.partitions,
        }
    }

    /// Every number of partitions that operations were ever distributed over, the newest first.
    #[must_use]
    pub fn partitions_ever(&self) -> Vec<u32> {
        let past = self.past.iter().rev().map(|scheme| scheme.partitions);
        let mut ever: Vec<u32> = [self.partitions_written(), self.scheme.partitions].into();
        ever.extend(past);
        ever.dedup();
        ever
    }

    /// How many partitions the topics may have: as many as operations are distributed over, or more
    /// if some are retired or intended.
    #[must_use]
    pub fn valid_topic_partitions(&self) -> Vec<u32> {
        let written = self.partitions_written();
        let mut numbers = self.partitions_ever();
        numbers.extend(self.partitions_intended());
        numbers.retain(|&number| number >= written);
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The intended number of partitions, while no process uses it.
    #[must_use]
    pub fn partitions_intended(&self) -> Option<u32> {
        self.at(&Step::Intended).ok().map(|change| change.to)
    }

    /// The number of partitions at the end of the change in progress.
    #[must_use]
    pub fn becomes(&self) -> Option<u32> {
        self.change.as_ref().map(|change| change.to)
    }

    /// Whether partitions have boundaries for a smaller number that producers do not use yet.
    #[must_use]
    pub fn has_boundaries(&self) -> bool {
        self.at(&Step::Bounded).is_ok()
    }

    /// Whether a new number of partitions is announced, but no shard reads by it yet.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.at(&Step::Announced).is_ok()
    }

    /// Whether another number of partitions shards read by a new number of partitions, but not all
    /// have moved.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.moving().is_some()
    }

    /// The periods in which a partition was retired, in order. Records written to it then must be
    /// rerouted.
    #[must_use]
    pub fn retired(&self) -> &[Retired] {
        &self.retired
    }

    /// The old and the new number of partitions of the change in progress.
    #[must_use]
    pub fn numbers(&self) -> Vec<u32> {
        let change = self.change.iter();
        change.flat_map(|change| [change.from, change.to]).collect()
    }

    /// Where a shard stops reading its partition, if the next generation assigns it another one.
    #[must_use]
    pub fn end_of(&self, generation: LayoutGeneration, shard: ShardId) -> Option<TopicOffsets> {
        let (_, into, ends) = self.moving()?;
        let is_before = into.previous() == Some(generation);
        let before = self.of(generation).filter(|_| is_before)?;
        let (before, after) = (
            before.partition_of(shard),
            self.of(into)?.partition_of(shard),
        );
        let end = ends.get(before.0 as usize).copied();
        end.filter(|_| before != after)
    }

    /// Where a shard begins if this generation gives it a partition that it did not read before.
    #[must_use]
    pub fn begin_of(&self, generation: LayoutGeneration, partition: PartitionId) -> TopicOffsets {
        let change = self.moving().filter(|(_, into, _)| *into == generation);
        let begin = change.and_then(|(change, _, _)| change.begin(partition));
        begin.unwrap_or_default()
    }

    /// Where the future shards of a partition will begin. Its current shards skip the records from
    /// there on.
    #[must_use]
    pub fn to_begin(&self, partition: PartitionId) -> Option<TopicOffsets> {
        let change = self.at(&Step::Bounded).or(self.at(&Step::Announced)).ok()?;
        let begin = change.begin(partition);
        begin.filter(|_| change.is_to_fewer())
    }

    /// The boundary of a partition that shards of this generation read.
    #[must_use]
    pub fn boundary_of(
        &self,
        generation: LayoutGeneration,
        partition: PartitionId,
    ) -> Option<RepartitionBoundary> {
        let (since, boundary) = self.change.as_ref()?.boundary(partition)?;
        (since <= generation).then_some(boundary)
    }

    /// The boundary of a partition, if exactly this generation recorded it.
    #[must_use]
    pub fn boundary_recorded_in(
        &self,
        generation: LayoutGeneration,
        partition: PartitionId,
    ) -> Option<TopicOffsets> {
        let (since, boundary) = self.change.as_ref()?.boundary(partition)?;
        (since == generation).then_some(boundary.ends)
    }

    /// The boundary of a partition when the number of partitions first changed. Records beyond may
    /// belong to other partitions, and are, or were, rerouted there.
    #[must_use]
    pub fn first_boundary(&self, partition: PartitionId) -> Option<TopicOffsets> {
        self.boundaries.get(partition.0 as usize).copied()
    }

    /// The sharding scheme by which shards of a generation select the records of a partition.
    /// Partitions that remain of a larger number have their future number of shards as soon as
    /// their boundary is recorded.
    #[must_use]
    pub fn taken_by(&self, generation: LayoutGeneration, partition: PartitionId) -> ShardingScheme {
        let of = self.of(generation).unwrap_or(self.scheme);
        match &self.change {
            Some(change)
                if change.is_to_fewer() && self.boundary_of(generation, partition).is_some() =>
            {
                among(change.to, of.shards())
            }
            Some(_) | None => of,
        }
    }

    /// Shards of the generation before the change that read `partition` to its end and then got
    /// another one, each with its lease's generation.
    #[must_use]
    pub fn left(&self, partition: PartitionId) -> Vec<(LayoutGeneration, ShardId)> {
        let before = self.moving().and_then(|(_, into, _)| into.previous());
        let Some((generation, scheme)) = before.and_then(|of| Some((of, self.of(of)?))) else {
            return Vec::new();
        };
        if partition.0 >= scheme.partitions {
            return Vec::new();
        }
        let shards = scheme.of_partition(partition);
        let left = shards.filter(|&shard| self.end_of(generation, shard).is_some());
        left.map(|shard| (generation, shard)).collect()
    }

    /// The number of this layout.
    #[must_use]
    pub fn generation(&self) -> LayoutGeneration {
        LayoutGeneration(self.past.len() as u64)
    }

    /// The sharding scheme in force.
    #[must_use]
    pub fn scheme(&self) -> ShardingScheme {
        self.scheme
    }

    /// The sharding scheme of a generation; `None` for a future one.
    #[must_use]
    pub fn of(&self, generation: LayoutGeneration) -> Option<ShardingScheme> {
        let at = usize::try_from(generation.0).ok()?;
        match at == self.past.len() {
            true => Some(self.scheme),
            false => self.past.get(at).copied(),
        }
    }
}

/// A scheme with this many partitions and this many shards in total.
fn among(partitions: u32, shards: u32) -> ShardingScheme {
    ShardingScheme {
        partitions,
        shards_per_partition: shards / partitions,
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layout {}: {}", self.generation(), self.scheme)?;
        match self.becomes() {
            Some(partitions) => write!(f, ", changing to {partitions} partitions"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
