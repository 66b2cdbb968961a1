//! The few operations on files that logs need, so that a simulation can stand in for the disk.
//!
//! Every operation is one system call, or waits for a few. So these traits are called through
//! pointers (`Arc<dyn Disk>`, `Box<dyn DiskFile>`): an indirect call costs nothing beside a system
//! call, and the types of a log stay free of a parameter.
//!
//! What must hold, for every implementation:
//!
//! * **Written bytes are durable after [`DiskFile::sync`]**, and the length with them; a name in a
//!   directory only after [`Disk::sync_dir`]. Until then a power loss may undo either, in part and
//!   in any order.
//! * **Reads and writes may be short.** Callers continue.
//! * **A failed sync must not be retried**: see [`DiskFile::sync`].

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::{sync_dir, write_back};

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// For reading. It must be there.
    Read,
    /// For reading, and for writing at its end. Created if there is none.
    Append,
    /// For reading, and for writing at any position. It must be there.
    Write,
    /// For reading, and for writing at any position. Created if there is none.
    Create,
    /// For writing at any position, as an empty file, whether there is one or not.
    Empty,
}

/// A disk: directories with files.
pub trait Disk: Debug + Send + Sync {
    /// Opens the file at `path`.
    ///
    /// # Errors
    ///
    /// If there is no such file, or the disk fails.
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>>;

    /// The names in a directory, in any order.
    ///
    /// # Errors
    ///
    /// If there is no such directory, or the disk fails.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;

    /// Makes a directory and those that lead to it, unless they are there.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Gives a file another name in its directory, and replaces the file that had it.
    ///
    /// # Errors
    ///
    /// If there is no such file, or the disk fails.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// If there is no such file, or the disk fails.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads bytes from `position` on. Returns how many were read: 0 only at the file's end.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes at the end of a file that was opened with [`Open::Append`]. Returns how many bytes
    /// were written.
    ///
    /// # Errors
    ///
    /// If the disk fails or is full.
    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Writes at a position of a file that was opened for that.
    /// Returns how many bytes were written.
    ///
    /// # Errors
    ///
    /// If the disk fails or is full.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize>;

    /// Cuts the file to this many bytes.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    fn cut(&self, bytes: u64) -> io::Result<()>;

    /// Makes written bytes and the length durable.
    ///
    /// # Errors
    ///
    /// If the disk fails. The kernel reports that once, and then takes the pages for clean: a later
    /// sync succeeds without having written them.
    fn sync(&self) -> io::Result<()>;

    /// Starts to write these bytes to the disk, and does not wait for it.
    fn begin_write_back(&self, bytes: &Range<u64>);
}

impl dyn DiskFile + '_ {
    /// Reads as many bytes as `buffer` takes, from `position` on.
    ///
    /// # Errors
    ///
    /// If the file ends before, or the disk fails.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut position: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, position) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    position += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `position`. After an error a part of them may be written.
    ///
    /// # Errors
    ///
    /// If the disk fails or is full.
    pub fn write_all_at(&self, mut bytes: &[u8], mut position: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    position += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `slices` at the end of the file. After an error a part of them may be written.
    ///
    /// # Errors
    ///
    /// If the disk fails or is full.
    pub fn append_all(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        while !slices.is_empty() {
            match self.append(slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut slices, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl dyn Disk + '_ {
    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// If there is no such file, or the disk fails.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, Open::Read)?;
        let bytes = usize::try_from(file.bytes()?).map_err(io::Error::other)?;
        let mut content = vec![0; bytes];
        file.read_exact_at(&mut content, 0)?;
        Ok(content)
    }
}

/// The disk of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        match how {
            Open::Read => options.read(true),
            Open::Append => options.read(true).append(true).create(true),
            Open::Write => options.read(true).write(true),
            Open::Create => options.read(true).write(true).create(true).truncate(false),
            Open::Empty => options.write(true).create(true).truncate(true),
        };
        Ok(Box::new(SystemFile(options.open(path)?)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let names = fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name()));
        names.collect()
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sync_dir(dir)
    }
}

#[derive(Debug)]
struct SystemFile(File);

impl DiskFile for SystemFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.read_at(buffer, position)
    }

    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.0).write_vectored(slices)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<usize> {
        self.0.write_at(bytes, position)
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn begin_write_back(&self, bytes: &Range<u64>) {
        write_back::begin(&self.0, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_disk_keeps_what_is_written_and_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let disk: &dyn Disk = &SystemDisk;
        let below = dir.path().join("a").join("b");
        disk.create_dir_all(&below).unwrap();
        let path = below.join("log");
        assert_eq!(
            disk.open(&path, Open::Read).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let log = disk.open(&path, Open::Append).unwrap();
        log.append_all(&mut [IoSlice::new(b"one"), IoSlice::new(b"two")])
            .unwrap();
        log.cut(5).unwrap();
        log.append_all(&mut [IoSlice::new(b"!")]).unwrap();
        disk.open(&path, Open::Write)
            .unwrap()
            .write_all_at(b"O", 0)
            .unwrap();
        log.sync().unwrap();
        assert_eq!(log.bytes().unwrap(), 6);
        assert_eq!(disk.read(&path).unwrap(), b"Onetw!");
        let mut beyond = [0; 2];
        let error = log.read_exact_at(&mut beyond, 5).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);

        let other = below.join("other");
        disk.open(&other, Open::Empty).unwrap();
        disk.rename(&path, &other).unwrap();
        disk.sync_dir(&below).unwrap();
        assert_eq!(disk.list(&below).unwrap(), ["other"]);
        assert_eq!(disk.read(&other).unwrap(), b"Onetw!");
        disk.remove(&other).unwrap();
        assert!(disk.list(&below).unwrap().is_empty());
    }
}
