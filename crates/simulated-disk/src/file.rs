//! The content of a file: in the page cache, on the disk, and what is between them.

use std::collections::BTreeSet;

use crate::Rng;

/// A change that is not known to be on the disk.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Bytes at a position.
    Write(usize, Vec<u8>),
    /// The file was cut to this length.
    Cut(usize),
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write(position, bytes) => {
                let end = position + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*position..end].copy_from_slice(bytes);
            }
            Self::Cut(bytes) => content.truncate(*bytes),
        }
    }
}

/// A file.
#[derive(Debug, Default)]
pub(crate) struct Inode {
    /// What reads return.
    pub(crate) cached: Vec<u8>,
    /// What the disk holds.
    pub(crate) durable: Vec<u8>,
    /// What was changed since the last sync, in order, each with its number.
    pub(crate) unsynced: Vec<(u64, Change)>,
    /// Positions of flipped bits.
    pub(crate) rotten: BTreeSet<u64>,
}

impl Inode {
    pub(crate) fn change(&mut self, number: u64, change: Change) {
        change.apply(&mut self.cached);
        match &change {
            Change::Write(from, bytes) => {
                let written = *from as u64..(from + bytes.len()) as u64;
                self.rotten.retain(|at| !written.contains(at));
            }
            Change::Cut(bytes) => self.rotten.retain(|&at| at < *bytes as u64),
        }
        self.unsynced.push((number, change));
    }

    pub(crate) fn sync(&mut self) {
        for (_, change) in self.unsynced.drain(..) {
            change.apply(&mut self.durable);
        }
        // The length, too, also of pages that an earlier failed sync has lost.
        self.durable.resize(self.cached.len(), 0);
    }

    /// A sync that fails: some of the sectors reach the disk, and all count as clean.
    pub(crate) fn fail_sync(&mut self, rng: &mut Rng) {
        self.durable = self.some_sectors(rng, 512);
        self.unsynced.clear();
    }

    /// The pages are dropped from memory, and read again from the disk.
    pub(crate) fn evict(&mut self) {
        let bytes = self.cached.len();
        self.cached.clone_from(&self.durable);
        for (_, change) in &self.unsynced {
            change.apply(&mut self.cached);
        }
        self.cached.resize(bytes, 0);
    }

    /// Power is lost: `content` is on the disk.
    pub(crate) fn restart_with(&mut self, content: Vec<u8>) {
        self.rotten.retain(|&at| at < content.len() as u64);
        self.cached.clone_from(&content);
        self.durable = content;
        self.unsynced.clear();
    }

    /// The content if the changes before number `until` reached the disk, and a part of that one.
    pub(crate) fn ordered(&self, until: u64, rng: &mut Rng) -> Vec<u8> {
        let mut content = self.durable.clone();
        for (number, change) in &self.unsynced {
            if *number < until {
                change.apply(&mut content);
            } else if *number == until
                && let Change::Write(position, bytes) = change
            {
                let torn = bytes[..rng.index(bytes.len() + 1)].to_vec();
                Change::Write(*position, torn).apply(&mut content);
            }
        }
        content
    }

    /// The content if each sector is as it was at some moment since the last sync, and the length
    /// is that of some moment or of a whole number of sectors.
    pub(crate) fn some_sectors(&self, rng: &mut Rng, sector: usize) -> Vec<u8> {
        if self.unsynced.is_empty() {
            return self.durable.clone();
        }
        let mut middle = self.durable.clone();
        let until = rng.index(self.unsynced.len());
        for (_, change) in &self.unsynced[..until] {
            change.apply(&mut middle);
        }
        let versions = [&self.durable, &middle, &self.cached];
        let longest = versions.map(Vec::len).into_iter().max().unwrap_or(0);
        let mut content = vec![0; longest];
        let keeps = rng.below(101);
        for start in (0..longest).step_by(sector) {
            let version = if rng.chance(keeps) {
                versions[2]
            } else {
                versions[rng.index(2)]
            };
            let end = (start + sector).min(longest);
            let there = version.get(start..end.min(version.len()));
            if let Some(there) = there {
                content[start..start + there.len()].copy_from_slice(there);
            }
        }
        let length = match rng.below(4) {
            0 => self.durable.len(),
            1 => middle.len(),
            2 => self.cached.len(),
            _ => rng.index(longest / sector + 1) * sector,
        };
        // What was synced keeps its length, unless the file was cut since.
        let shortest = self.unsynced.iter().map(|(_, change)| match change {
            Change::Cut(bytes) => *bytes,
            Change::Write(..) => usize::MAX,
        });
        let least = shortest.fold(self.durable.len(), usize::min);
        content.truncate(length.max(least));
        content
    }
}
