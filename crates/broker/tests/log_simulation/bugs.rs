//! Bugs that can be planted, one at a time, to test whether the judge detects them. Each is a disk
//! that does not do what it says, or a thread that drives the log wrongly; the log has no switch.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};

use waybill_disk::files::{Disk, DiskFile, Open};
use waybill_simulated_disk::SimulatedDisk;

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bug {
    SkipSync,
    SkipSyncOfClosed,
    SkipDirSync,
    SkipRewrite,
    SkipRewriteSync,
    SkipCut,
    TakeShortWriteForWhole,
    RetrySync,
    OneEndsFile,
    EndBeforeSync,
    AckBeforeEnd,
    AckLaterAppends,
    IgnoreFailedSync,
    ForgetEnds,
    MissReboot,
    TakeRestartForReboot,
    StoreBootEarly,
}

impl Bug {
    pub(super) const ALL: [Self; 17] = [
        Self::SkipSync,
        Self::SkipSyncOfClosed,
        Self::SkipDirSync,
        Self::SkipRewrite,
        Self::SkipRewriteSync,
        Self::SkipCut,
        Self::TakeShortWriteForWhole,
        Self::RetrySync,
        Self::OneEndsFile,
        Self::EndBeforeSync,
        Self::AckBeforeEnd,
        Self::AckLaterAppends,
        Self::IgnoreFailedSync,
        Self::ForgetEnds,
        Self::MissReboot,
        Self::TakeRestartForReboot,
        Self::StoreBootEarly,
    ];

    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::SkipSync => "A segment is not synced",
            Self::SkipSyncOfClosed => "A segment that was closed since the last sync is not synced",
            Self::SkipDirSync => "The directory is not synced",
            Self::SkipRewrite => "Unsynced batches are not rewritten at a start",
            Self::SkipRewriteSync => "Rewritten batches are not synced",
            Self::SkipCut => "A partly written batch is not cut off",
            Self::TakeShortWriteForWhole => "A short write counts as a whole one",
            Self::RetrySync => "A failed sync is retried",
            Self::OneEndsFile => "The synced ends are overwritten in place",
            Self::EndBeforeSync => "The synced end is recorded before the sync",
            Self::AckBeforeEnd => "A sync is acknowledged before its end is stored",
            Self::AckLaterAppends => "A sync covers what was appended after it had begun",
            Self::IgnoreFailedSync => "A failed sync counts as a successful one",
            Self::ForgetEnds => "The synced ends are not read at a start",
            Self::MissReboot => "A reboot is not noticed",
            Self::TakeRestartForReboot => "Every restart counts as a reboot",
            Self::StoreBootEarly => "The boot id is stored before the log is open",
        }
    }
}

/// The simulated disk, with a bug.
#[derive(Clone, Debug)]
pub(super) struct BuggyDisk {
    pub(super) disk: SimulatedDisk,
    pub(super) bug: Option<Bug>,
}

impl BuggyDisk {
    /// The path in the place of `path`.
    fn path(&self, path: &Path) -> PathBuf {
        if self.bug == Some(Bug::OneEndsFile) && path.ends_with("synced-1") {
            return path.with_file_name("synced-0");
        }
        path.to_owned()
    }
}

impl Disk for BuggyDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let is_ends = path.to_string_lossy().contains("synced-");
        if self.bug == Some(Bug::ForgetEnds) && how == Open::Read && is_ends {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = self.path(path);
        Ok(Box::new(BuggyFile {
            file: self.disk.open(&path, how)?,
            disk: self.clone(),
            path,
            how,
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.disk.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        match self.bug {
            Some(Bug::SkipDirSync) => Ok(()),
            _ => self.disk.sync_dir(dir),
        }
    }
}

#[derive(Debug)]
struct BuggyFile {
    file: Box<dyn DiskFile>,
    disk: BuggyDisk,
    path: PathBuf,
    how: Open,
}

impl BuggyFile {
    fn has(&self, bug: Bug) -> bool {
        let is_segment = self
            .path
            .extension()
            .is_some_and(|extension| extension == "log");
        self.disk.bug == Some(bug) && is_segment
    }

    fn is_closed(&self) -> bool {
        let dir = self.path.parent().unwrap_or(&self.path);
        let files = self.disk.disk.files(dir);
        let is_later =
            |path: &PathBuf| path.extension() == self.path.extension() && *path > self.path;
        files.iter().any(|(path, _)| is_later(path))
    }
}

impl DiskFile for BuggyFile {
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.file.append(slices)?;
        if self.has(Bug::TakeShortWriteForWhole) {
            return Ok(slices.iter().map(|slice| slice.len()).sum());
        }
        Ok(written)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        if self.has(Bug::SkipRewrite) {
            return Ok(bytes.len());
        }
        self.file.write_at(bytes, position)
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        if self.has(Bug::SkipCut) {
            return Ok(());
        }
        self.file.cut(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let is_skipped = self.has(Bug::SkipSync) && self.how == Open::Append
            || self.has(Bug::SkipRewriteSync) && self.how == Open::Write
            || self.has(Bug::SkipSyncOfClosed) && self.is_closed();
        if is_skipped {
            return Ok(());
        }
        let synced = self.file.sync();
        if synced.is_err() && self.has(Bug::RetrySync) {
            return self.file.sync();
        }
        synced
    }

    fn begin_write_back(&self, bytes: &Range<u64>) {
        self.file.begin_write_back(bytes);
    }
}
