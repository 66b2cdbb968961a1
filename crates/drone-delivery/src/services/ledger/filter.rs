//! Filters that speed up the search for an operation in a long file. Each covers some consecutive
//! lines.

/// A Bloom filter of 2 KiB. With 1,024 entries, about 1 in 400 answers is wrongly "maybe".
#[derive(Default)]
pub(super) struct Filter(Box<[[u64; 16]; 16]>);

impl Filter {
    pub(super) fn insert(&mut self, hash: u64) {
        for (row, word, bit) in probes(hash) {
            self.0[row][word] |= bit;
        }
    }

    pub(super) fn may_contain(&self, hash: u64) -> bool {
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
