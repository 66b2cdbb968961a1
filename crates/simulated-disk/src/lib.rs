//! A disk in memory for deterministic tests of what is stored on one: the operations of
//! [`waybill_disk::files`], with a seed.
//!
//! * [`SimulatedDisk::crash_after`] stops everything at any operation; [`SimulatedDisk::restart`]
//!   says what the disk holds then: all that was written, if only the process died, or whatever a
//!   power loss leaves ([`Loss`]).
//! * [`SimulatedDisk::fail`] makes one later operation fail, [`SimulatedDisk::set_full`] fills the
//!   disk, [`SimulatedDisk::set_short`] makes reads and writes short, [`SimulatedDisk::rot`] flips
//!   a bit, [`SimulatedDisk::evict`] drops clean pages.
//!
//! What must hold: **what was synced survives**, names only if their directory was synced, and
//! nothing but [`SimulatedDisk::rot`] changes it. A failed sync is worse than none: its pages count
//! as clean, and the disk has some of their sectors or none.
//!
//! Deliberately absent: concurrency (one operation happens at a time), hard links, nested renames,
//! and names of directories, which are durable at once.

mod file;
mod rng;
mod state;

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use waybill_disk::files::{Disk, DiskFile, Open};

pub use self::rng::Rng;
use self::state::{FileId, State};

/// An operation that can fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Op {
    /// Opening a file.
    Open,
    /// Creating a file.
    Create,
    /// Listing a directory.
    List,
    /// A read.
    Read,
    /// A write, at the end or elsewhere. A part of it may be done.
    Write,
    /// A cut.
    Cut,
    /// A sync of a file.
    Sync,
    /// A sync of a directory.
    SyncDir,
    /// A rename.
    Rename,
    /// A removal.
    Remove,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Open,
        Self::Create,
        Self::List,
        Self::Read,
        Self::Write,
        Self::Cut,
        Self::Sync,
        Self::SyncDir,
        Self::Rename,
        Self::Remove,
    ];
}

/// What is left of changes that were not synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Only the process died: everything stays, and what was not synced remains so.
    Process,
    /// All changes reached the disk.
    Nothing,
    /// None did.
    Everything,
    /// Those before some moment did, and a part of the next one, torn at any byte.
    Tail,
    /// Any subset of sectors of this many bytes, and any subset of the changes of names.
    Sectors(usize),
}

/// A disk in memory. A clone is the same disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

impl SimulatedDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State::new(seed))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    /// How many operations were begun that change something: files or names are created, written,
    /// cut, synced, renamed or removed. A crash at any other one leaves the same.
    #[must_use]
    pub fn changes_begun(&self) -> u64 {
        self.state().changes_begun
    }

    /// Stops everything at the operation after `changes` further ones that change something. A
    /// write is then done in part.
    pub fn crash_after(&self, changes: u64) {
        let mut state = self.state();
        state.crash_at = Some(state.changes_begun + changes + 1);
    }

    /// Takes a planned crash back. Returns whether it has not happened.
    pub fn cancel_crash(&self) -> bool {
        self.state().crash_at.take().is_some()
    }

    /// Whether everything has stopped.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.state().has_crashed
    }

    /// Begins again after a crash, or after the process was killed. Files that are open can no
    /// longer be used.
    pub fn restart(&self, loss: Loss) {
        self.state().restart(loss);
    }

    /// The id of the machine's present start, as [`waybill_disk::boot_id`] has it: another one
    /// after a restart with any [`Loss`] but that of the process.
    #[must_use]
    pub fn boot_id(&self) -> Option<String> {
        Some(self.state().boot.to_string())
    }

    /// The operation of this kind after `others` more of them fails once, with the system's error
    /// `errno`.
    pub fn fail(&self, op: Op, others: u64, errno: i32) {
        self.state().faults.push((op, others, errno));
    }

    /// Takes back the failures that have not happened.
    pub fn fail_no_more(&self) {
        self.state().faults.clear();
    }

    /// How many operations have failed because of [`fail`](Self::fail) or a full disk.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// How many syncs of files have failed.
    #[must_use]
    pub fn failed_syncs(&self) -> u64 {
        self.state().failed_syncs
    }

    /// Whether files can grow and be created.
    pub fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// Whether some reads and writes are short, or interrupted.
    pub fn set_short(&self, is_short: bool) {
        self.state().is_short = is_short;
    }

    /// Drops the pages of some file from memory, if they are clean, so that reads see the disk.
    pub fn evict(&self) {
        self.state().evict();
    }

    /// Flips a bit of some synced byte. Returns where.
    pub fn rot(&self) -> Option<(PathBuf, u64)> {
        self.state().rot()
    }

    /// The positions of flipped bits in a file that nothing has overwritten since.
    #[must_use]
    pub fn rotten(&self, path: &Path) -> Vec<u64> {
        self.state().rotten(path)
    }

    /// The files below `dir`, with their lengths.
    #[must_use]
    pub fn files(&self, dir: &Path) -> Vec<(PathBuf, u64)> {
        self.state().files(dir)
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        let id = state.open(path, how)?;
        Ok(Box::new(SimulatedFile {
            id,
            run: state.run,
            state: Arc::clone(&self.0),
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.state().list(dir)
    }

    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        self.state().check_running()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.state().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.state().remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.state().sync_dir(dir)
    }
}

/// An open file of one run of a process.
#[derive(Debug)]
struct SimulatedFile {
    id: FileId,
    run: u64,
    state: Arc<Mutex<State>>,
}

impl SimulatedFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = locked(&self.state);
        if state.run != self.run {
            return Err(io::Error::other("the process that opened this file died"));
        }
        Ok(state)
    }
}

impl DiskFile for SimulatedFile {
    fn bytes(&self) -> io::Result<u64> {
        self.state()?.bytes(self.id)
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.state()?.read_at(self.id, buffer, position)
    }

    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut bytes = Vec::new();
        for slice in slices {
            bytes.extend_from_slice(slice);
        }
        self.state()?.write(self.id, None, &bytes)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        self.state()?.write(self.id, Some(position), bytes)
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.state()?.cut(self.id, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.state()?.sync(self.id)
    }

    fn begin_write_back(&self, _bytes: &Range<u64>) {}
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
