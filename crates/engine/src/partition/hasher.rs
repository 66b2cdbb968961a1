//! The hasher of the operations in memory.
//!
//! Ids are 16 mostly random bytes, so one multiplication per half is enough. But callers choose
//! their own ids. A seed that they cannot know, the owner's nonce, prevents deliberate collisions.
//! Nothing depends on the order of the map.

use std::hash::{BuildHasher, Hasher};

use crate::id::OwnerId;

/// Makes hashers with one seed.
#[derive(Clone, Debug)]
pub(super) struct IdHash {
    seed: u64,
}

impl IdHash {
    pub(super) fn new(owner: OwnerId) -> Self {
        let (high, low) = owner.0.as_u64_pair();
        Self {
            seed: fold(high, low),
        }
    }
}

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { state: self.seed }
    }
}

/// Hashes one id.
#[derive(Debug)]
pub(super) struct IdHasher {
    state: u64,
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.state = fold(self.state, u64::from_le_bytes(word));
        }
    }

    /// All ids have the same length, so it adds nothing to the hash.
    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.state
    }
}

/// Multiplies to 128 bits and folds them, so that every bit of both halves counts.
fn fold(state: u64, word: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(state ^ word) * u128::from(ODD);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;

    use super::*;
    use crate::id::OperationId;

    #[test]
    fn ids_that_differ_in_one_bit_or_count_up_do_not_collide() {
        let hash = IdHash::new(OwnerId(Uuid::from_u128(7)));
        let base = 0x0198_0000_0000_7000_8000_0000_0000_0000_u128;
        let ids: BTreeSet<_> = (0..128)
            .map(|bit| base ^ (1 << bit))
            .chain((0..100_000).map(|count| base + count))
            .collect();
        let hashes = || {
            ids.iter()
                .map(|id| hash.hash_one(OperationId(Uuid::from_u128(*id))))
        };
        let seen: BTreeSet<_> = hashes().collect();
        let low_bits: BTreeSet<_> = hashes().map(|value| value & 0xfff).collect();
        assert_eq!(seen.len(), ids.len());
        assert_eq!(low_bits.len(), 4096, "all low bits are used");
    }
}
