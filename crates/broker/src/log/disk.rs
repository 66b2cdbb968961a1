//! The files of a log: what its segments need beyond the operations of a [`Disk`].
//!
//! What must hold: **a file whose sync failed once never syncs again.** The kernel reports a failed
//! write-back once and then takes the pages for clean, so a later sync of the same file would
//! succeed without having written them.
//!
//! The modules of the log reach files through a [`Disk`] alone (`.ci/structure` checks it), so that
//! a simulated disk sees every operation. In unit tests, `faults` is between the log and the disk
//! of the system.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use waybill_disk::files::{Disk, DiskFile, Open};
use waybill_disk::is_full;
use waybill_wire::batch::BatchHeader;

use crate::locked;

#[cfg(test)]
pub(crate) mod faults;

/// Bytes that [`LogFile::rewrite`] takes at a time, unless a batch is larger.
const REWRITE_BYTES: usize = 1 << 20;

/// How much room there must be before a retry after a full disk: more than a memtable of the
/// metadata, which fails first.
const ROOM_BYTES: usize = 4 << 20;

/// The disk of the system.
pub(crate) fn system_disk() -> Arc<dyn Disk> {
    #[cfg(test)]
    let disk = faults::FaultyDisk;
    #[cfg(not(test))]
    let disk = waybill_disk::files::SystemDisk;
    Arc::new(disk)
}

/// Whether the file system of `dir` has room, tested with a file next to it. Blocks.
pub(crate) fn has_room(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    let path = dir.with_extension("probe");
    let written = disk.open(&path, Open::Empty).and_then(|file| {
        file.write_all_at(&vec![0; ROOM_BYTES], 0)?;
        file.sync()
    });
    let removed = disk.remove(&path);
    match written {
        Err(error) if is_full(&error) => Ok(false),
        written => written.and(removed).map(|()| true),
    }
}

/// A segment's file.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    sync_failed: AtomicBool,
    /// Bytes of whole batches that an earlier process wrote and may not have synced.
    unwritten: Mutex<Option<Range<u64>>>,
    /// How many bytes have been read of it.
    #[cfg(test)]
    pub(super) read_bytes: std::sync::atomic::AtomicU64,
}

impl LogFile {
    /// Opens `path` for appending and reading, and creates it if there is none.
    pub(crate) fn open_or_create(disk: &dyn Disk, path: PathBuf) -> io::Result<Self> {
        Ok(Self::of(disk.open(&path, Open::Append)?, path))
    }

    /// Opens `path` for reading.
    pub(crate) fn open(disk: &dyn Disk, path: PathBuf) -> io::Result<Self> {
        Ok(Self::of(disk.open(&path, Open::Read)?, path))
    }

    fn of(file: Box<dyn DiskFile>, path: PathBuf) -> Self {
        Self {
            file,
            path,
            sync_failed: AtomicBool::new(false),
            unwritten: Mutex::new(None),
            #[cfg(test)]
            read_bytes: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    /// Reads bytes from `position` on, perhaps fewer than `buffer` takes: none at the file's end.
    pub(crate) fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        loop {
            match self.file.read_at(buffer, position) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        #[cfg(test)]
        self.read_bytes
            .fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(buffer, position)
    }

    /// Appends `front` and `rest` as one piece. After an error a part of them may be written.
    pub(crate) fn append(&self, front: &[u8], rest: &[u8]) -> io::Result<()> {
        self.file
            .append_all(&mut [IoSlice::new(front), IoSlice::new(rest)])
    }

    /// Cuts the file to this many bytes.
    pub(crate) fn cut(&self, bytes: u64) -> io::Result<()> {
        self.file.cut(bytes)
    }

    /// Starts write-back of these bytes, and does not wait for it.
    pub(super) fn begin_write_back(&self, bytes: &Range<u64>) {
        self.file.begin_write_back(bytes);
    }

    /// The first sync writes these bytes again: they are whole batches that an earlier process may
    /// have tried to sync in vain.
    pub(super) fn rewrite_at_sync(&self, bytes: Range<u64>) {
        *locked(&self.unwritten) = Some(bytes);
    }

    /// Makes all written bytes durable. After the first error every later call fails as well.
    pub(crate) fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(io::Error::other(format!(
                "an earlier sync of {} failed",
                self.path.display()
            )));
        }
        self.write_unwritten(disk)
            .and_then(|()| self.file.sync())
            .inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }

    fn write_unwritten(&self, disk: &dyn Disk) -> io::Result<()> {
        let Some(bytes) = locked(&self.unwritten).take() else {
            return Ok(());
        };
        match self.rewrite(disk, bytes.start, bytes.end) {
            // The segment was deleted in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            rewritten => rewritten,
        }
    }

    /// Writes the whole batches from `from` to `to` again, byte for byte, and syncs them.
    ///
    /// After a failed sync the kernel may keep pages that it considers clean although the disk
    /// never received them. The next sync writes only the pages that are written again.
    pub(crate) fn rewrite(&self, disk: &dyn Disk, from: u64, to: u64) -> io::Result<()> {
        // A file that is open for appending ignores positions.
        let writer = disk.open(&self.path, Open::Write)?;
        let bytes = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut buffer = vec![0; bytes.min(REWRITE_BYTES)];
        let mut position = from;
        while position < to {
            let left = usize::try_from(to - position).unwrap_or(usize::MAX);
            let take = buffer.len().min(left);
            self.file.read_exact_at(&mut buffer[..take], position)?;
            let mut whole = 0;
            while let Some(header) = BatchHeader::read(&buffer[whole..take])
                && header.bytes <= take - whole
            {
                // Read again since the check, perhaps from the disk itself.
                if !header.is_intact(&buffer[whole..take]) {
                    return Err(changed(&self.path));
                }
                whole += header.bytes;
            }
            if whole == 0 {
                let header = BatchHeader::read(&buffer[..take]);
                match header {
                    Some(header) if header.bytes <= left => buffer.resize(header.bytes, 0),
                    _ => return Err(changed(&self.path)),
                }
                continue;
            }
            writer.write_all_at(&buffer[..whole], position)?;
            position += whole as u64;
        }
        writer.sync()
    }
}

fn changed(path: &Path) -> io::Error {
    let text = format!("{} changed while it was read", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Writes a file that readers see whole or not at all. It is not synced.
pub(crate) fn replace(
    disk: &dyn Disk,
    path: &Path,
    unfinished: &Path,
    content: &[u8],
) -> io::Result<()> {
    let written = disk
        .open(unfinished, Open::Empty)
        .and_then(|file| file.write_all_at(content, 0));
    let replaced = written.and_then(|()| disk.rename(unfinished, path));
    replaced.inspect_err(|_| {
        // Half a file takes room and is of no use.
        let _ = disk.remove(unfinished);
    })
}
