//! The system's disk with faults that a test plans for the segments and indexes below a directory.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use waybill_disk::files::{Disk, DiskFile, Open, SystemDisk};

use crate::locked;

/// An operation of a log.
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

fn check(op: Op, path: &Path) -> io::Result<()> {
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

/// The system's disk with these faults.
#[derive(Debug)]
pub(crate) struct FaultyDisk;

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let extension = path.extension().unwrap_or_default();
        let is_segment = extension == "log";
        match how {
            Open::Append if is_segment => check(Op::Create, path)?,
            Open::Empty if extension == "new" => check(Op::Replace, &path.with_extension(""))?,
            _ => {}
        }
        let file = SystemDisk.open(path, how)?;
        let path = path.to_owned();
        Ok(match is_segment {
            true => Box::new(FaultyFile { file, path }),
            false => file,
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        SystemDisk.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        SystemDisk.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        check(Op::SyncDir, dir)?;
        SystemDisk.sync_dir(dir)
    }
}

#[derive(Debug)]
struct FaultyFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
}

impl DiskFile for FaultyFile {
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Err(error) = check(Op::Append, &self.path) {
            // Like a disk that fills up in the middle.
            self.file.append_all(&mut slices[..1].to_vec())?;
            return Err(error);
        }
        self.file.append(slices)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        check(Op::Rewrite, &self.path)?;
        self.file.write_at(bytes, position)
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        check(Op::Cut, &self.path)?;
        self.file.cut(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        check(Op::Sync, &self.path)?;
        self.file.sync()
    }

    fn begin_write_back(&self, bytes: &Range<u64>) {
        if check(Op::WriteBack, &self.path).is_ok() {
            self.file.begin_write_back(bytes);
        }
    }
}
