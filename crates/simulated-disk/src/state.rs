//! The files and names of a disk, the faults that are planned, and what a crash leaves.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use waybill_disk::files::Open;

use crate::file::{Change, Inode};
use crate::{Loss, Op, Rng};

const ENOSPC: i32 = 28;

pub(crate) type FileId = usize;
type Names = BTreeMap<PathBuf, FileId>;

/// A change of names that is not known to be on the disk.
#[derive(Clone, Debug)]
enum NameChange {
    Create(PathBuf, FileId),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, FileId),
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Create(path, id) => {
                names.insert(path.clone(), *id);
            }
            Self::Remove(path) => {
                names.remove(path);
            }
            Self::Rename(from, to, id) => {
                names.remove(from);
                names.insert(to.clone(), *id);
            }
        }
    }

    fn is_in(&self, dir: &Path) -> bool {
        let (Self::Create(path, _) | Self::Remove(path) | Self::Rename(path, ..)) = self;
        path.parent() == Some(dir)
    }
}

#[derive(Debug)]
pub(crate) struct State {
    rng: Rng,
    /// Which run of a process uses the disk.
    pub(crate) run: u64,
    /// How many times the machine has booted.
    pub(crate) boot: u64,
    /// How many operations that change something were begun.
    pub(crate) changes_begun: u64,
    pub(crate) crash_at: Option<u64>,
    pub(crate) has_crashed: bool,
    pub(crate) faults: Vec<(Op, u64, i32)>,
    pub(crate) failures: u64,
    pub(crate) failed_syncs: u64,
    pub(crate) is_full: bool,
    pub(crate) is_short: bool,
    inodes: Vec<Inode>,
    names: Names,
    durable_names: Names,
    unsynced_names: Vec<(u64, NameChange)>,
    /// The number of the next change.
    changes: u64,
}

/// What becomes of an operation.
enum Fate {
    Done,
    /// It fails; a write may be done in part.
    Fails(io::Error),
}

impl Fate {
    /// For an operation that is done whole or not at all.
    fn whole(self) -> io::Result<()> {
        match self {
            Self::Done => Ok(()),
            Self::Fails(error) => Err(error),
        }
    }
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            run: 0,
            boot: 0,
            changes_begun: 0,
            crash_at: None,
            has_crashed: false,
            faults: Vec::new(),
            failures: 0,
            failed_syncs: 0,
            is_full: false,
            is_short: false,
            inodes: Vec::new(),
            names: Names::new(),
            durable_names: Names::new(),
            unsynced_names: Vec::new(),
            changes: 0,
        }
    }

    pub(crate) fn check_running(&self) -> io::Result<()> {
        if self.has_crashed {
            return Err(io::Error::other("the machine has stopped"));
        }
        Ok(())
    }

    /// Begins an operation that changes something, and decides whether it fails.
    fn begin_change(&mut self, op: Op) -> io::Result<Fate> {
        self.check_running()?;
        self.changes_begun += 1;
        if self.crash_at.is_some_and(|at| at <= self.changes_begun) {
            self.crash_at = None;
            self.has_crashed = true;
            return Ok(Fate::Fails(io::Error::other("the machine stops")));
        }
        self.begin(op)
    }

    /// Begins an operation, and decides whether it fails.
    fn begin(&mut self, op: Op) -> io::Result<Fate> {
        self.check_running()?;
        let mut failed = None;
        for (at, (planned, others, errno)) in self.faults.iter_mut().enumerate() {
            if *planned == op {
                if *others == 0 {
                    failed = Some((at, *errno));
                    break;
                }
                *others -= 1;
            }
        }
        Ok(match failed {
            None => Fate::Done,
            Some((at, errno)) => {
                self.faults.remove(at);
                self.failures += 1;
                Fate::Fails(io::Error::from_raw_os_error(errno))
            }
        })
    }

    fn full(&mut self) -> io::Error {
        self.failures += 1;
        io::Error::from_raw_os_error(ENOSPC)
    }

    fn number(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    fn change_names(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        let number = self.number();
        self.unsynced_names.push((number, change));
    }

    pub(crate) fn open(&mut self, path: &Path, how: Open) -> io::Result<FileId> {
        self.begin(Op::Open)?.whole()?;
        if let Some(&id) = self.names.get(path) {
            if how == Open::Empty && !self.inodes[id].cached.is_empty() {
                self.begin_change(Op::Cut)?.whole()?;
                let number = self.number();
                self.inodes[id].change(number, Change::Cut(0));
            }
            return Ok(id);
        }
        if matches!(how, Open::Read | Open::Write) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if self.is_full {
            return Err(self.full());
        }
        self.begin_change(Op::Create)?.whole()?;
        let id = self.inodes.len();
        self.inodes.push(Inode::default());
        self.change_names(NameChange::Create(path.to_owned(), id));
        Ok(id)
    }

    pub(crate) fn list(&mut self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.begin(Op::List)?.whole()?;
        let paths = self.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(paths
            .filter_map(|path| path.file_name().map(OsString::from))
            .collect())
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin_change(Op::Rename)?.whole()?;
        let Some(&id) = self.names.get(from) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        self.change_names(NameChange::Rename(from.to_owned(), to.to_owned(), id));
        Ok(())
    }

    pub(crate) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.check_running()?;
        if !self.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.begin_change(Op::Remove)?.whole()?;
        self.change_names(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    pub(crate) fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.begin_change(Op::SyncDir)?.whole()?;
        let durable = &mut self.durable_names;
        self.unsynced_names.retain(|(_, change)| {
            let is_synced = change.is_in(dir);
            if is_synced {
                change.apply(durable);
            }
            !is_synced
        });
        Ok(())
    }

    pub(crate) fn bytes(&mut self, id: FileId) -> io::Result<u64> {
        self.begin(Op::Read)?.whole()?;
        Ok(self.inodes[id].cached.len() as u64)
    }

    pub(crate) fn read_at(
        &mut self,
        id: FileId,
        buffer: &mut [u8],
        position: u64,
    ) -> io::Result<usize> {
        self.begin(Op::Read)?.whole()?;
        let content = &self.inodes[id].cached;
        let from = content.len().min(position as usize);
        let mut read = buffer.len().min(content.len() - from);
        if self.is_short && read > 1 {
            match self.rng.below(8) {
                0 => return Err(io::ErrorKind::Interrupted.into()),
                1 => read = 1 + self.rng.index(read),
                _ => {}
            }
        }
        buffer[..read].copy_from_slice(&content[from..from + read]);
        Ok(read)
    }

    /// Writes at a position, or at the end.
    pub(crate) fn write(
        &mut self,
        id: FileId,
        position: Option<u64>,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let fate = self.begin_change(Op::Write)?;
        let length = self.inodes[id].cached.len();
        let at = position.map_or(length, |position| position as usize);
        let mut written = bytes.len();
        let mut result = None;
        match fate {
            Fate::Fails(error) => {
                written = self.rng.index(written + 1);
                result = Some(error);
            }
            Fate::Done if self.is_full && at + written > length => {
                // What is left of the last block can be filled. The rest is for the next write.
                let room = length.saturating_sub(at).max(self.rng.index(written + 1));
                written = room.min(written - 1);
                if written == 0 || self.rng.chance(50) {
                    result = Some(self.full());
                }
            }
            Fate::Done if self.is_short && written > 1 => match self.rng.below(8) {
                0 => return Err(io::ErrorKind::Interrupted.into()),
                1 => written = 1 + self.rng.index(written),
                _ => {}
            },
            Fate::Done => {}
        }
        if written > 0 {
            let number = self.number();
            self.inodes[id].change(number, Change::Write(at, bytes[..written].to_vec()));
        }
        result.map_or(Ok(written), Err)
    }

    pub(crate) fn cut(&mut self, id: FileId, bytes: u64) -> io::Result<()> {
        self.begin_change(Op::Cut)?.whole()?;
        let number = self.number();
        self.inodes[id].change(number, Change::Cut(bytes as usize));
        Ok(())
    }

    pub(crate) fn sync(&mut self, id: FileId) -> io::Result<()> {
        match self.begin_change(Op::Sync)? {
            Fate::Done => {
                self.inodes[id].sync();
                Ok(())
            }
            Fate::Fails(error) => {
                // A crash leaves what is not synced to `restart`.
                if !self.has_crashed {
                    self.failed_syncs += 1;
                    self.inodes[id].fail_sync(&mut self.rng);
                }
                Err(error)
            }
        }
    }

    pub(crate) fn evict(&mut self) {
        if !self.names.is_empty() {
            let at = self.rng.index(self.names.len());
            if let Some(&id) = self.names.values().nth(at) {
                self.inodes[id].evict();
            }
        }
    }

    pub(crate) fn rot(&mut self) -> Option<(PathBuf, u64)> {
        // Not where a change would overwrite it.
        let clean = |id: FileId| {
            let inode = &self.inodes[id];
            inode.unsynced.is_empty() && !inode.durable.is_empty() && inode.durable == inode.cached
        };
        let names: Vec<_> = self.names.iter().filter(|&(_, &id)| clean(id)).collect();
        if names.is_empty() {
            return None;
        }
        let (path, &id) = names[self.rng.index(names.len())];
        let path = path.clone();
        let inode = &mut self.inodes[id];
        let at = self.rng.index(inode.durable.len());
        let bit = 1 << self.rng.below(8);
        inode.durable[at] ^= bit;
        inode.cached[at] ^= bit;
        inode.rotten.insert(at as u64);
        Some((path, at as u64))
    }

    pub(crate) fn rotten(&self, path: &Path) -> Vec<u64> {
        let id = self.names.get(path);
        id.map(|&id| self.inodes[id].rotten.iter().copied().collect())
            .unwrap_or_default()
    }

    pub(crate) fn files(&self, dir: &Path) -> Vec<(PathBuf, u64)> {
        let below = self.names.iter().filter(|(path, _)| path.starts_with(dir));
        below
            .map(|(path, &id)| (path.clone(), self.inodes[id].cached.len() as u64))
            .collect()
    }

    pub(crate) fn restart(&mut self, loss: Loss) {
        self.run += 1;
        self.has_crashed = false;
        self.is_full = false;
        self.faults.clear();
        if loss == Loss::Process {
            return;
        }
        self.boot += 1;
        let until = match loss {
            Loss::Process | Loss::Nothing => u64::MAX,
            Loss::Everything | Loss::Sectors(_) => 0,
            Loss::Tail => self.some_change(),
        };
        // A journal keeps the order of names, but not every file system has one.
        let names_are_ordered = self.rng.chance(50);
        let names_until = match loss {
            Loss::Sectors(_) => self.some_change(),
            _ => until,
        };
        for (number, change) in std::mem::take(&mut self.unsynced_names) {
            let is_kept = match loss {
                Loss::Sectors(_) if !names_are_ordered => self.rng.chance(50),
                _ => number < names_until,
            };
            if is_kept {
                change.apply(&mut self.durable_names);
            }
        }
        self.names.clone_from(&self.durable_names);
        for inode in &mut self.inodes {
            let content = match loss {
                Loss::Sectors(bytes) => inode.some_sectors(&mut self.rng, bytes),
                _ => inode.ordered(until, &mut self.rng),
            };
            inode.restart_with(content);
        }
    }

    /// The number of a change that is not synced, or a higher one.
    fn some_change(&mut self) -> u64 {
        let files = self.inodes.iter().flat_map(|inode| &inode.unsynced);
        let numbers = files.map(|(number, _)| *number);
        let names = self.unsynced_names.iter().map(|(number, _)| *number);
        let all: Vec<_> = numbers.chain(names).collect();
        match self.rng.index(all.len() + 1) {
            last if last == all.len() => u64::MAX,
            at => all[at],
        }
    }
}
