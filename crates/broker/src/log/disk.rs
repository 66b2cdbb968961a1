//! The file operations of a log, in one place, so that tests can make each of them fail.
//!
//! What must hold: **a file whose sync failed once never syncs again.** The kernel reports a failed
//! write-back once and then takes the pages for clean, so a later sync of the same file would
//! succeed without having written them.
//!
//! In tests, [`faults`] makes the next operations in a directory fail. Other builds have no checks.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use waybill_disk::{is_full, write_back};
use waybill_wire::batch::BatchHeader;

/// Bytes that [`LogFile::rewrite`] takes at a time, unless a batch is larger.
const REWRITE_BYTES: usize = 1 << 20;

/// How much room there must be before a retry after a full disk: more than a memtable of the
/// metadata, which fails first.
const ROOM_BYTES: usize = 4 << 20;

/// Whether the file system of `dir` has room, tested with a file next to it. Blocks.
pub(crate) fn has_room(dir: &Path) -> io::Result<bool> {
    let path = dir.with_extension("probe");
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&vec![0; ROOM_BYTES])?;
        file.sync_data()
    });
    let removed = std::fs::remove_file(&path);
    match written {
        Err(error) if is_full(&error) => Ok(false),
        written => written.and(removed).map(|()| true),
    }
}

/// A segment's file.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    path: PathBuf,
    sync_failed: AtomicBool,
    /// How many bytes have been read of it.
    #[cfg(test)]
    pub(super) read_bytes: std::sync::atomic::AtomicU64,
}

impl LogFile {
    /// Opens `path` for appending and reading, and creates it if there is none.
    pub(crate) fn open_or_create(path: PathBuf) -> io::Result<Self> {
        faults::check(faults::Op::Create, &path)?;
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).read(true).open(&path)?;
        Ok(Self::of(file, path))
    }

    /// Opens `path` for reading.
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self::of(File::open(&path)?, path))
    }

    fn of(file: File, path: PathBuf) -> Self {
        Self {
            file,
            path,
            sync_failed: AtomicBool::new(false),
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
        Ok(self.file.metadata()?.len())
    }

    pub(crate) fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        #[cfg(test)]
        self.read_bytes
            .fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(buffer, position)
    }

    /// Appends `front` and `rest` as one piece. After an error a part of them may be written.
    pub(crate) fn append(&self, front: &[u8], rest: &[u8]) -> io::Result<()> {
        if let Err(error) = faults::check(faults::Op::Append, &self.path) {
            // Like a disk that fills up in the middle.
            (&self.file).write_all(front)?;
            return Err(error);
        }
        let mut slices = [io::IoSlice::new(front), io::IoSlice::new(rest)];
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            match (&self.file).write_vectored(slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => io::IoSlice::advance_slices(&mut slices, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Cuts the file to this many bytes.
    pub(crate) fn cut(&self, bytes: u64) -> io::Result<()> {
        faults::check(faults::Op::Cut, &self.path)?;
        self.file.set_len(bytes)
    }

    /// Starts write-back of these bytes, and does not wait for it.
    pub(super) fn begin_write_back(&self, bytes: &Range<u64>) {
        if faults::check(faults::Op::WriteBack, &self.path).is_ok() {
            write_back::begin(&self.file, bytes);
        }
    }

    /// Makes all written bytes durable. After the first error every later call fails as well.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(io::Error::other(format!(
                "an earlier sync of {} failed",
                self.path.display()
            )));
        }
        faults::check(faults::Op::Sync, &self.path)
            .and_then(|()| self.file.sync_data())
            .inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }

    /// Writes the whole batches from `from` to `to` again, byte for byte, and syncs them.
    ///
    /// After a failed sync the kernel may keep pages that it considers clean although the disk
    /// never received them. The next sync writes only the pages that are written again.
    pub(crate) fn rewrite(&self, from: u64, to: u64) -> io::Result<()> {
        // A file that is open for appending ignores positions.
        let writer = OpenOptions::new().write(true).open(&self.path)?;
        let mut buffer = vec![0; REWRITE_BYTES];
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
            faults::check(faults::Op::Rewrite, &self.path)?;
            writer.write_all_at(&buffer[..whole], position)?;
            position += whole as u64;
        }
        faults::check(faults::Op::Sync, &self.path)?;
        writer.sync_data()
    }
}

fn changed(path: &Path) -> io::Error {
    let text = format!("{} changed while it was read", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Makes the names in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    faults::check(faults::Op::SyncDir, dir)?;
    File::open(dir)?.sync_all()
}

/// Writes a file that readers see whole or not at all. It is not synced.
pub(crate) fn replace(path: &Path, unfinished: &Path, content: &[u8]) -> io::Result<()> {
    faults::check(faults::Op::Replace, path)?;
    let replaced =
        std::fs::write(unfinished, content).and_then(|()| std::fs::rename(unfinished, path));
    replaced.inspect_err(|_| {
        // Half a file takes room and is of no use.
        let _ = std::fs::remove_file(unfinished);
    })
}

/// Outside of tests no fault is planned.
#[cfg(not(test))]
mod faults {
    use std::io;
    use std::path::Path;

    #[derive(Clone, Copy)]
    pub(super) enum Op {
        Create,
        Append,
        Cut,
        Sync,
        WriteBack,
        SyncDir,
        Rewrite,
        Replace,
    }

    #[inline(always)]
    pub(super) fn check(_op: Op, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Faults that a test plans for the files below a directory.
#[cfg(test)]
pub(crate) mod faults {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;

    use crate::locked;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Op {
        Create,
        Append,
        Cut,
        Sync,
        WriteBack,
        SyncDir,
        Rewrite,
        Replace,
    }

    struct Fault {
        below: PathBuf,
        op: Op,
        errno: i32,
        times: usize,
    }

    /// An operation, on what, and by which thread.
    pub(crate) type Recorded = (Op, PathBuf, String);

    static PLANNED: Mutex<Vec<Fault>> = Mutex::new(Vec::new());
    static RECORDED: Mutex<Vec<(PathBuf, Vec<Recorded>)>> = Mutex::new(Vec::new());

    /// The next `times` operations of this kind below `dir` fail with the system's error `errno`.
    pub(crate) fn plan(dir: &Path, op: Op, errno: i32, times: usize) {
        locked(&PLANNED).push(Fault {
            below: dir.to_owned(),
            op,
            errno,
            times,
        });
    }

    /// Begins to record the operations below `dir`.
    pub(crate) fn record(dir: &Path) {
        let mut recorded = locked(&RECORDED);
        recorded.retain(|(below, _)| below != dir);
        recorded.push((dir.to_owned(), Vec::new()));
    }

    /// The operations below `dir` since then.
    pub(crate) fn recorded(dir: &Path) -> Vec<Recorded> {
        let recorded = locked(&RECORDED);
        let found = recorded.iter().find(|(below, _)| below == dir);
        found.map(|(_, ops)| ops.clone()).unwrap_or_default()
    }

    pub(super) fn check(op: Op, path: &Path) -> io::Result<()> {
        for (below, ops) in locked(&RECORDED).iter_mut() {
            if path.starts_with(&*below) {
                let thread = std::thread::current();
                let name = thread.name().unwrap_or_default().to_owned();
                ops.push((op, path.to_owned(), name));
            }
        }
        let mut planned = locked(&PLANNED);
        let fault = planned
            .iter_mut()
            .find(|fault| fault.op == op && fault.times > 0 && path.starts_with(&fault.below));
        match fault {
            None => Ok(()),
            Some(fault) => {
                fault.times -= 1;
                Err(io::Error::from_raw_os_error(fault.errno))
            }
        }
    }
}
