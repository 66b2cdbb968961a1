//! The index of the ledger in memory: the state of every key, the counts, and the parts of the file
//! in which an operation may occur.
//!
//! It is small, because it grows with the number of operations and never shrinks. An operation
//! takes 38 to 44 bytes: 16 for its ID, 8 for the offset of its first line, 8 for its effects, and
//! 5 for each slot of a hash table that is 7/16 to 7/8 full. A line takes at most 2 bytes. The
//! number of combinations of service and step is bounded.

mod known;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use uuid::Uuid;

use super::filter::Filter;
use super::operations::Listed;
use super::states::{EffectState, SLOTS_MAX, SlotSet, States};
use super::summary::{StepCounts, Summary};
use super::{Action, Entry};
use crate::services::Service;
use known::{KnownOperations, OperationDigest};

/// The number of lines per filter.
const CHUNK_LINES: u64 = 1_024;

#[derive(Default)]
pub(super) struct Index {
    operations: KnownOperations,
    /// Effects that were made twice, by the operation's place. Empty unless a rule was broken.
    doubles: HashMap<usize, SlotSet>,
    slots: Vec<Slot>,
    counts: OperationCounts,
    hashers: (RandomState, RandomState),
    chunks: Vec<Chunk>,
    lines: u64,
}

/// One combination of service and step.
struct Slot {
    service: Service,
    step: Box<str>,
    counts: StepCounts,
}

/// Some consecutive lines, with a filter of their operations.
struct Chunk {
    start: u64,
    filter: Filter,
}

impl Index {
    pub(super) fn state(&self, service: Service, operation: &str, step: &str) -> EffectState {
        match (self.slot(service, step), self.place(operation)) {
            (Some(slot), Some(place)) => self.operations[place].states.get(slot),
            _ => EffectState::None,
        }
    }

    /// Whether the index can apply an entry with this service and step.
    pub(super) fn has_room_for(&self, service: Service, step: &str) -> bool {
        self.slots.len() < SLOTS_MAX || self.slot(service, step).is_some()
    }

    /// Applies an entry whose line begins at `offset`. The caller checked [`Self::has_room_for`].
    pub(super) fn apply(&mut self, entry: &Entry<'_>, offset: u64) {
        let digest = self.digest(entry.operation);
        self.note_line(digest, offset);
        let slot = self.slot_or_new(entry.service, entry.step);
        let place = match self.operations.place(digest) {
            Some(place) => {
                let states = self.operations[place].states;
                *self.counts.of_mut(outcome(states, &self.slots)) -= 1;
                place
            }
            None => self.operations.add(digest, offset),
        };
        self.apply_to(place, slot, entry);
        let states = self.operations[place].states;
        *self.counts.of_mut(outcome(states, &self.slots)) += 1;
    }

    fn apply_to(&mut self, place: usize, slot: usize, entry: &Entry<'_>) {
        let before = self.operations[place].states;
        let state = match entry {
            Entry { refused: true, .. } => {
                self.slots[slot].counts.refused += 1;
                return;
            }
            Entry { repeat: true, .. } => {
                self.slots[slot].counts.repeats += 1;
                return;
            }
            Entry {
                tombstone: true, ..
            } => {
                self.slots[slot].counts.tombstones += 1;
                EffectState::Barred
            }
            Entry {
                action: Action::Run,
                ..
            } => {
                if before.made().intersects(self.slots_of_step(entry.step)) {
                    self.slots[slot].counts.double += 1;
                    self.doubles.entry(place).or_default().insert(slot);
                }
                self.slots[slot].counts.run += 1;
                EffectState::Made
            }
            Entry {
                action: Action::Compensate,
                ..
            } => {
                self.slots[slot].counts.compensate += 1;
                EffectState::Undone
            }
        };
        let counts = &mut self.slots[slot].counts;
        counts.standing -= u64::from(before.get(slot) == EffectState::Made);
        counts.standing += u64::from(state == EffectState::Made);
        self.operations[place].states.set(slot, state);
    }

    /// Records that the line at `offset` belongs to the operation.
    fn note_line(&mut self, digest: OperationDigest, offset: u64) {
        if self.lines.is_multiple_of(CHUNK_LINES) {
            self.chunks.push(Chunk {
                start: offset,
                filter: Filter::default(),
            });
        }
        self.lines += 1;
        let filter_hash = self.filter_hash(digest);
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.filter.insert(filter_hash);
        }
    }

    pub(super) fn summary(&self) -> Summary {
        let mut summary = Summary {
            operations: self.operations.len() as u64,
            complete: self.counts.complete,
            partial: self.counts.partial,
            half_undone: self.counts.half_undone,
            undone: self.counts.undone,
            ..Summary::default()
        };
        for slot in &self.slots {
            summary.add(&slot.step, slot.counts);
        }
        summary
    }

    /// The ranges of bytes, each of whole lines, in which `operation` may occur. `end` is the end
    /// of the ledger.
    pub(super) fn ranges_of(&self, operation: &str, end: u64) -> Vec<Range<u64>> {
        let digest = self.digest(operation);
        if self.operations.place(digest).is_none() {
            return Vec::new();
        }
        let filter_hash = self.filter_hash(digest);
        let ends = self.chunks.iter().skip(1).map(|chunk| chunk.start);
        self.chunks
            .iter()
            .zip(ends.chain([end]))
            .filter(|(chunk, _)| chunk.filter.may_contain(filter_hash))
            .map(|(chunk, end)| chunk.start..end)
            .collect()
    }

    /// Up to `limit` operations after `after`, or from the first one; `None` if `after` is unknown.
    pub(super) fn operations(&self, after: Option<&str>, limit: usize) -> Option<Vec<Listed>> {
        let start = match after {
            Some(operation) => self.place(operation)? + 1,
            None => 0,
        };
        let end = self.operations.len().min(start.saturating_add(limit));
        let listed = (start..end).map(|place| Listed {
            first_line: self.operations[place].first_line,
            states: self.operations[place].states,
            double: self.doubles.get(&place).copied().unwrap_or_default(),
        });
        Some(listed.collect())
    }

    /// The step of each slot.
    pub(super) fn steps(&self) -> Vec<Box<str>> {
        self.slots.iter().map(|slot| slot.step.clone()).collect()
    }

    /// The place of an operation in `operations`.
    fn place(&self, operation: &str) -> Option<usize> {
        self.operations.place(self.digest(operation))
    }

    fn slot(&self, service: Service, step: &str) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.service == service && *slot.step == *step)
    }

    fn slot_or_new(&mut self, service: Service, step: &str) -> usize {
        self.slot(service, step).unwrap_or_else(|| {
            self.slots.push(Slot {
                service,
                step: step.into(),
                counts: StepCounts::default(),
            });
            self.slots.len() - 1
        })
    }

    fn slots_of_step(&self, step: &str) -> SlotSet {
        slots_where(&self.slots, |slot| *slot.step == *step)
    }

    /// The bytes of a UUID in canonical form, or else a 128-bit hash.
    fn digest(&self, operation: &str) -> OperationDigest {
        let mut canonical = Uuid::encode_buffer();
        match Uuid::try_parse(operation) {
            Ok(id) if id.hyphenated().encode_lower(&mut canonical) == operation => {
                OperationDigest(*id.as_bytes())
            }
            _ => {
                let high = self.hashers.0.hash_one(operation);
                let low = self.hashers.1.hash_one(operation);
                OperationDigest(((u128::from(high) << 64) | u128::from(low)).to_le_bytes())
            }
        }
    }

    fn filter_hash(&self, digest: OperationDigest) -> u64 {
        self.hashers.0.hash_one(digest)
    }
}

/// The state of an operation, judged by its effects.
#[derive(Clone, Copy)]
enum OperationOutcome {
    Complete,
    Partial,
    HalfUndone,
    Undone,
}

/// The number of operations by state.
#[derive(Default)]
struct OperationCounts {
    complete: u64,
    partial: u64,
    half_undone: u64,
    undone: u64,
}

impl OperationCounts {
    fn of_mut(&mut self, outcome: OperationOutcome) -> &mut u64 {
        match outcome {
            OperationOutcome::Complete => &mut self.complete,
            OperationOutcome::Partial => &mut self.partial,
            OperationOutcome::HalfUndone => &mut self.half_undone,
            OperationOutcome::Undone => &mut self.undone,
        }
    }
}

/// A complete delivery has a package, a delivery, and either a drone or a third-party booking. A
/// tombstone next to an existing effect counts as half undone: an undo has begun and has not
/// reached every step.
fn outcome(states: States, slots: &[Slot]) -> OperationOutcome {
    let made = states.made();
    let has_effect = |service| made.intersects(slots_where(slots, |slot| slot.service == service));
    if made.is_empty() {
        OperationOutcome::Undone
    } else if !states.undone().is_empty() || !states.barred().is_empty() {
        OperationOutcome::HalfUndone
    } else if has_effect(Service::Package)
        && has_effect(Service::Delivery)
        && has_effect(Service::Drone) != has_effect(Service::ThirdParty)
    {
        OperationOutcome::Complete
    } else {
        OperationOutcome::Partial
    }
}

fn slots_where(slots: &[Slot], is_wanted: impl Fn(&Slot) -> bool) -> SlotSet {
    let mut wanted = SlotSet::default();
    for (number, slot) in slots.iter().enumerate() {
        if is_wanted(slot) {
            wanted.insert(number);
        }
    }
    wanted
}
