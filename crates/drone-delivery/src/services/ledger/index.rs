//! What the services keep in memory of their ledger: the state of every key, the counts, and where
//! to look for an operation.
//!
//! It is small, because it grows with the number of operations and never shrinks: 25 bytes an
//! operation (16 for its id, 2 bits for each combination of service and step, and the table's own
//! byte) and at most 2 bytes a line. Bounded are the combinations of service and step.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use uuid::Uuid;

use super::{Action, Entry, StepCounts, Summary};
use crate::services::Service;

/// How many combinations of service and step the ledger tells apart. A workflow has one for each
/// step that calls a service of these.
pub const SLOTS_MAX: usize = 32;

/// How many lines share one filter.
const CHUNK_LINES: u64 = 1_024;

/// What is known of the effect of one key at one service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EffectState {
    /// Nothing.
    None,
    /// It was made and stands.
    Made,
    /// It was made and undone.
    Undone,
    /// It was undone before it was made, and must not be made any more.
    Barred,
}

#[derive(Default)]
pub(super) struct Index {
    operations: HashMap<OperationDigest, States>,
    slots: Vec<Slot>,
    hashers: (RandomState, RandomState),
    chunks: Vec<Chunk>,
    lines: u64,
    repeats: u64,
    tombstones: u64,
    double: u64,
}

/// One combination of service and step.
struct Slot {
    service: Service,
    step: Box<str>,
    effects: StepCounts,
}

impl Index {
    pub(super) fn state(&self, service: Service, operation: &str, step: &str) -> EffectState {
        match (
            self.slot(service, step),
            self.operations.get(&self.digest(operation)),
        ) {
            (Some(slot), Some(states)) => states.get(slot),
            _ => EffectState::None,
        }
    }

    /// Whether an entry with this combination can be applied.
    pub(super) fn has_room_for(&self, service: Service, step: &str) -> bool {
        self.slots.len() < SLOTS_MAX || self.slot(service, step).is_some()
    }

    /// Takes account of an entry whose line begins at `offset`. There is room for it.
    pub(super) fn apply(&mut self, entry: &Entry<'_>, offset: u64) {
        let digest = self.digest(entry.operation);
        if self.lines.is_multiple_of(CHUNK_LINES) {
            self.chunks.push(Chunk::beginning_at(offset));
        }
        self.lines += 1;
        let filter_hash = self.filter_hash(digest);
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.filter.insert(filter_hash);
        }

        let slot = self.slot(entry.service, entry.step).unwrap_or_else(|| {
            self.slots.push(Slot {
                service: entry.service,
                step: entry.step.into(),
                effects: StepCounts::default(),
            });
            self.slots.len() - 1
        });
        let states = self.operations.entry(digest).or_default();
        match (entry.repeat, entry.tombstone, entry.action) {
            (true, _, _) => self.repeats += 1,
            (false, true, _) => {
                self.tombstones += 1;
                states.set(slot, EffectState::Barred);
            }
            (false, false, Action::Run) => {
                let stands = self.slots.iter().enumerate().any(|(other, candidate)| {
                    *candidate.step == *entry.step && states.get(other) == EffectState::Made
                });
                self.double += u64::from(stands);
                self.slots[slot].effects.run += 1;
                states.set(slot, EffectState::Made);
            }
            (false, false, Action::Compensate) => {
                self.slots[slot].effects.compensate += 1;
                states.set(slot, EffectState::Undone);
            }
        }
    }

    pub(super) fn summary(&self) -> Summary {
        let mut summary = Summary {
            operations: self.operations.len() as u64,
            repeats: self.repeats,
            tombstones: self.tombstones,
            double: self.double,
            ..Summary::default()
        };
        for slot in &self.slots {
            let counts = summary.effects.entry(slot.step.to_string()).or_default();
            counts.run += slot.effects.run;
            counts.compensate += slot.effects.compensate;
        }
        summary
    }

    /// The byte ranges, each of whole lines, in which `operation` may occur. `end` is the
    /// ledger's.
    pub(super) fn ranges_of(&self, operation: &str, end: u64) -> Vec<Range<u64>> {
        let digest = self.digest(operation);
        if !self.operations.contains_key(&digest) {
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

    fn slot(&self, service: Service, step: &str) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.service == service && *slot.step == *step)
    }

    /// A UUID in its usual form stands for itself; of anything else, a 128-bit hash.
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

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct OperationDigest([u8; 16]);

/// The states of all slots of one operation, 2 bits each.
#[derive(Clone, Copy, Default)]
struct States([u8; SLOTS_MAX / 4]);

impl States {
    fn get(self, slot: usize) -> EffectState {
        match (self.0[slot / 4] >> (slot % 4 * 2)) & 0b11 {
            0 => EffectState::None,
            1 => EffectState::Made,
            2 => EffectState::Undone,
            _ => EffectState::Barred,
        }
    }

    fn set(&mut self, slot: usize, state: EffectState) {
        let bits = match state {
            EffectState::None => 0,
            EffectState::Made => 1,
            EffectState::Undone => 2,
            EffectState::Barred => 3,
        };
        let byte = &mut self.0[slot / 4];
        let shift = slot % 4 * 2;
        *byte = (*byte & !(0b11 << shift)) | (bits << shift);
    }
}

/// Some consecutive lines, and which operations occur in them.
struct Chunk {
    start: u64,
    filter: Filter,
}

impl Chunk {
    fn beginning_at(start: u64) -> Self {
        Self {
            start,
            filter: Filter(Box::default()),
        }
    }
}

/// A Bloom filter with 16 bits an entry and 4 probes: about 1 in 400 answers is wrongly "maybe".
struct Filter(Box<[[u64; 16]; 16]>);

impl Filter {
    fn insert(&mut self, hash: u64) {
        for (row, word, bit) in probes(hash) {
            self.0[row][word] |= bit;
        }
    }

    fn may_contain(&self, hash: u64) -> bool {
        probes(hash).all(|(row, word, bit)| self.0[row][word] & bit != 0)
    }
}

/// Four of the 16,384 bits, each from 14 bits of the hash.
fn probes(hash: u64) -> impl Iterator<Item = (usize, usize, u64)> {
    (0..4).map(move |probe| {
        let bits = (hash >> (probe * 16)) & 0x3fff;
        let row = usize::from((bits >> 10) as u8);
        let word = usize::from((bits >> 6) as u8 & 15);
        (row, word, 1 << (bits & 63))
    })
}
