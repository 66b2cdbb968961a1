//! The operations in the ledger, ordered by their first line, and a hash table of their places.

use std::hash::{BuildHasher, RandomState};
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

use super::States;

/// The number of operations in one piece. A single growing list would be copied, and would need
/// twice the memory in the meantime.
const PIECE: usize = 8_192;

/// A digest of an operation's ID.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct OperationDigest(pub(super) [u8; 16]);

/// The index entry of an operation.
pub(super) struct Operation {
    digest: OperationDigest,
    /// The offset of its first line in the file.
    pub(super) first_line: u64,
    pub(super) states: States,
}

#[derive(Default)]
pub(super) struct KnownOperations {
    /// All pieces but the last have the same length.
    pieces: Vec<Vec<Operation>>,
    /// `u32` is enough: 2^32 operations would need 170 GB of memory.
    places: HashTable<u32>,
    hasher: RandomState,
}

impl KnownOperations {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn place(&self, digest: OperationDigest) -> Option<usize> {
        let place = self.places.find(self.hasher.hash_one(digest), |place| {
            self[*place as usize].digest == digest
        });
        place.map(|place| *place as usize)
    }

    /// Adds an unknown operation and returns its place.
    pub(super) fn add(&mut self, digest: OperationDigest, first_line: u64) -> usize {
        let place = self.len();
        if place.is_multiple_of(PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        self.pieces[place / PIECE].push(Operation {
            digest,
            first_line,
            states: States::default(),
        });
        let Self {
            pieces,
            places,
            hasher,
        } = self;
        let number = u32::try_from(place).expect("memory ends before");
        places.insert_unique(hasher.hash_one(digest), number, |place| {
            hasher.hash_one(operation(pieces, *place as usize).digest)
        });
        place
    }
}

impl Index<usize> for KnownOperations {
    type Output = Operation;

    fn index(&self, place: usize) -> &Operation {
        operation(&self.pieces, place)
    }
}

impl IndexMut<usize> for KnownOperations {
    fn index_mut(&mut self, place: usize) -> &mut Operation {
        &mut self.pieces[place / PIECE][place % PIECE]
    }
}

fn operation(pieces: &[Vec<Operation>], place: usize) -> &Operation {
    &pieces[place / PIECE][place % PIECE]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_where_it_was_added() {
        let digest = |number: usize| OperationDigest((number as u128).to_be_bytes());
        let mut operations = KnownOperations::default();
        let many = 3 * PIECE + 1;
        for number in 0..many {
            assert_eq!(operations.place(digest(number)), None);
            assert_eq!(operations.add(digest(number), number as u64), number);
        }
        assert_eq!(operations.len(), many);
        for number in 0..many {
            assert_eq!(operations.place(digest(number)), Some(number));
            assert_eq!(operations[number].first_line, number as u64);
        }
    }
}
