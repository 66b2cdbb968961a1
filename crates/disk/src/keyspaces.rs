//! Verifies the files of a key-value store before it is opened, and keeps copies of those that
//! opening needs.
//!
//! The key-value store `fjall` keeps a directory for each of its tables (`keyspaces/N`) with a
//! manifest (`vM`), the number and checksum of the current manifest (`current`), and the table's
//! files (`tables/T`). It does not compare a manifest with its checksum, deletes files that the
//! manifest does not name, deletes a table that has no `current`, and panics or allocates without a
//! bound on some damaged files. So everything that it reads to open is verified here first.
//!
//! What must hold:
//!
//! * **Opening loses nothing.** A store with a damaged file is opened only if the file was
//!   restored, or if `fjall` can read past the damage.
//! * **Nothing is restored without proof.** The content that replaces a damaged file has the
//!   checksum that an intact file names. An older version never replaces a newer one.
//!
//! [`copy`] keeps copies in `copies`: manifests, small table files, and the end of larger ones,
//! which holds the index. Copies are not synced. A missing, old, damaged or unreadable copy does no
//! harm and is created again at the next start.
//!
//! Deliberately absent: repair by guessing, such as a manifest rebuilt from the files on disk.
//! Files that a compaction has replaced may still exist and would bring back older entries.

mod archive;
mod manifest;
mod table;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_128;

use self::manifest::{Current, Manifest};
use crate::journal;
use crate::{CheckError, DamagedFile, at, record};

/// Where the copies are, below the store's directory.
const COPIES: &str = "copies";
/// The file that names the format of the store.
const FORMAT_FILE: &str = "version";
/// The file that is locked while the store is open.
const LOCK_FILE: &str = "lock";
const FORMAT: &[u8] = b"FJL\x03";
/// The table that registers the names and settings of the others.
const REGISTRY: u64 = 0;
/// Held while files are restored or copied: both may happen in two threads while a store is opened
/// again.
static FILES: Mutex<()> = Mutex::new(());
/// `EIO`: what the operating system reports for a sector that it cannot read.
const EIO: i32 = 5;

/// How much of the table files is verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// All but the data blocks of larger files. Damaged entries are left to their readers.
    Opening,
    /// All of it.
    Whole,
}

/// Whether there is a store in `dir` whose creation was finished. A kill or a full disk may leave
/// an unfinished one, to which nothing was ever written.
pub fn is_created(dir: &Path) -> bool {
    read(&dir.join(FORMAT_FILE)).is_ok_and(|format| format.as_deref() == Some(FORMAT))
}

/// Removes an unfinished store, which a kill or a full disk may leave: `fjall` neither completes
/// nor opens it, and nothing was ever written to it. Creates a missing lock file, which `fjall`
/// does not do.
///
/// # Errors
///
/// If the disk fails.
pub(crate) fn remove_unfinished(dir: &Path) -> Result<(), CheckError> {
    let format = dir.join(FORMAT_FILE);
    if read(&format)?.as_deref() == Some(FORMAT) {
        let lock = dir.join(LOCK_FILE);
        let mut open = File::options();
        return match open.append(true).create(true).open(&lock) {
            Ok(_) => Ok(()),
            Err(error) => Err(at(&lock)(error)),
        };
    }
    if !all(dir)?.is_empty() || record::path(dir).exists() {
        return Ok(());
    }
    let numbers = journal::numbers(dir).map_err(at(dir))?.into_iter();
    let mut files: Vec<PathBuf> = numbers.map(|number| journal::path(dir, number)).collect();
    for journal in &files {
        let holds_anything = |bytes: Vec<u8>| bytes.iter().any(|&byte| byte != 0);
        if read(journal)?.is_some_and(holds_anything) {
            return Ok(());
        }
    }
    files.push(format);
    for file in files.iter().filter(|file| file.exists()) {
        fs::remove_file(file).map_err(at(file))?;
    }
    Ok(())
}

/// Verifies the files of the store in `dir` that opening reads. Restores a damaged or missing file
/// if a copy is proven right. Does nothing if there is no store yet.
///
/// The caller has locked the store or owns its directory, and the store is not open. `manifest_min`
/// is the number of a table's manifest in the record `synced`, 0 if that is unknown. The current
/// manifest has this number or a higher one.
///
/// # Errors
///
/// [`CheckError::Damaged`] names a damaged file that cannot be restored: the store must not be
/// opened.
pub(crate) fn check(
    dir: &Path,
    depth: Depth,
    manifest_min: impl Fn(u64) -> u64,
) -> Result<(), CheckError> {
    let _files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = all(dir)?;
    let registry = Table::new(dir, REGISTRY);
    let mut manifests = 0;
    for table in &tables {
        let Some(manifest) = table.manifest(manifest_min(table.number))? else {
            // All entries of the table may still be in a journal.
            if registry.registers(table.number)? {
                return Err(damaged(&table.current(), "it is missing"));
            }
            continue;
        };
        manifests += 1;
        // `fjall` deletes a table that it does not find in the registry.
        let depth = match table.number {
            REGISTRY => Depth::Whole,
            _ => depth,
        };
        for file in &manifest.files {
            table.check_file(file, depth)?;
        }
    }
    if tables.iter().any(|table| table.number != REGISTRY) && !registry.current().exists() {
        return Err(damaged(&registry.current(), "it is missing"));
    }
    let format = dir.join(FORMAT_FILE);
    if manifests > 0 && read(&format)?.as_deref() != Some(FORMAT) {
        // All manifests are of this format.
        let copies = dir.join(COPIES);
        fs::create_dir_all(&copies).map_err(at(&copies))?;
        replace(&format, FORMAT, &copies)?;
    }
    Ok(())
}

/// Refuses a store without the directory of a table that it had.
pub(crate) fn check_exists(store: &Path, table: u64) -> Result<(), CheckError> {
    let Table { dir, .. } = Table::new(store, table);
    match fs::metadata(&dir) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(damaged(&dir, "it is not a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(damaged(&dir, "the directory is missing"))
        }
        Err(error) => Err(at(&dir)(error)),
    }
}

/// The number of a table's current manifest; `None` if it cannot be read.
pub(crate) fn manifest_number(dir: &Path, table: u64) -> Option<u64> {
    let current = fs::read(Table::new(dir, table).current()).ok()?;
    Current::parse(&current).map(|current| current.number)
}

fn copy_changed(dir: &Path, verify: bool) -> Result<(), CheckError> {
    let _files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = all(dir)?;
    for table in &tables {
        table.copy(verify)?;
    }
    let copies = dir.join(COPIES);
    for number in names(&copies)?.iter().filter_map(|name| name.parse().ok()) {
        if !tables.iter().any(|table| table.number == number) {
            let path = Table::new(dir, number).copies;
            fs::remove_dir_all(&path).map_err(at(&path))?;
        }
    }
    Ok(())
}

/// Copies the files that damaged ones are restored from, if they have changed since the last copy.
/// The store may be open. A failure is logged; earlier copies may remain.
pub fn copy(dir: &Path) {
    copy_logged(dir, false);
}

/// The directory of a store's keyspaces.
pub(crate) fn dir_of(store: &Path) -> PathBuf {
    store.join("keyspaces")
}

/// Like [`copy`], and also replaces damaged copies, such as a power loss leaves.
pub(crate) fn copy_and_verify(dir: &Path) {
    copy_logged(dir, true);
}

fn copy_logged(dir: &Path, verify: bool) {
    if let Err(error) = copy_changed(dir, verify) {
        tracing::warn!(
            path = %dir.display(),
            error = &error as &dyn std::error::Error,
            "could not copy the small files of the key-value store"
        );
    }
}

/// The directory of a table.
struct Table {
    number: u64,
    dir: PathBuf,
    copies: PathBuf,
}

/// The tables of a store, in the order of their numbers.
fn all(store: &Path) -> Result<Vec<Table>, CheckError> {
    let names = names(&dir_of(store))?;
    let numbers = names.iter().filter_map(|name| name.parse().ok());
    let mut tables: Vec<Table> = numbers.map(|number| Table::new(store, number)).collect();
    tables.sort_by_key(|table| table.number);
    Ok(tables)
}

impl Table {
    fn new(store: &Path, number: u64) -> Self {
        let name = number.to_string();
        Self {
            number,
            dir: dir_of(store).join(&name),
            copies: store.join(COPIES).join(&name),
        }
    }

    fn current(&self) -> PathBuf {
        self.dir.join("current")
    }

    /// The current manifest, restored if it must be; `None` if the table was never complete.
    fn manifest(&self, min: u64) -> Result<Option<Manifest>, CheckError> {
        let named = read(&self.current())?;
        let copied = fs::read(self.copies.join("current")).ok();
        if named.is_none() && copied.is_none() && !self.holds_anything()? {
            return Ok(None);
        }
        let bytes = match self.intact_manifest(named.as_deref())? {
            Some(bytes) => {
                let current = named.as_deref().and_then(Current::parse);
                if let Some(Current { number, .. }) = current.filter(|current| current.number < min)
                {
                    let problem =
                        format!("it names manifest {number}, but manifest {min} was current");
                    return Err(damaged(&self.current(), problem));
                }
                bytes
            }
            None => self.restored_manifest(named.as_deref(), copied.as_deref(), min)?,
        };
        let manifest = Manifest::parse(&bytes);
        let unknown = |problem| {
            let current = read(&self.current()).ok().flatten();
            let current = current.as_deref().and_then(Current::parse);
            let path =
                current.map_or_else(|| self.current(), |current| self.dir.join(current.file()));
            damaged(&path, problem)
        };
        manifest.map(Some).map_err(unknown)
    }

    /// The manifest that a `current` names, if it has the checksum that is named with it.
    fn intact_manifest(&self, current: Option<&[u8]>) -> Result<Option<Vec<u8>>, CheckError> {
        let Some(current) = current.and_then(Current::parse) else {
            return Ok(None);
        };
        let bytes = read(&self.dir.join(current.file()))?;
        Ok(bytes.filter(|bytes| xxh3_128(bytes) == current.checksum))
    }

    fn restored_manifest(
        &self,
        named: Option<&[u8]>,
        copied: Option<&[u8]>,
        min: u64,
    ) -> Result<Vec<u8>, CheckError> {
        let named = named.and_then(Current::parse);
        if let Some(current) = &named {
            let path = self.dir.join(current.file());
            let copy = fs::read(self.copies.join(current.file())).ok();
            if let Some(bytes) = copy.filter(|bytes| xxh3_128(bytes) == current.checksum) {
                replace(&path, &bytes, &self.copies)?;
                return Ok(bytes);
            }
        }
        let numbers: Vec<u64> = names(&self.dir)?
            .iter()
            .filter_map(|name| name.strip_prefix('v')?.parse().ok())
            .collect();
        // If another manifest has the checksum, the number in `current` is damaged.
        for &number in &numbers {
            let Some(checksum) = named.as_ref().map(|current| current.checksum) else {
                break;
            };
            let current = Current { number, checksum };
            let encoded = current.encode();
            if let Some(bytes) = self.intact_manifest(Some(&encoded))? {
                self.make_copies_dir()?;
                replace(&self.current(), &encoded, &self.copies)?;
                return Ok(bytes);
            }
        }
        // `current` may be damaged as a whole. Its copy still counts if nothing is newer.
        if let Some(encoded) = copied
            && let Some(current) = Current::parse(encoded)
            // The number of the current manifest never falls.
            && named.as_ref().is_none_or(|named| named.number <= current.number)
            && current.number >= min
            && numbers.iter().all(|&number| number <= current.number)
            && let Some(bytes) = self.intact_manifest(Some(encoded))?
            && self.names_all_files(&bytes)?
        {
            replace(&self.current(), encoded, &self.copies)?;
            return Ok(bytes);
        }
        let current = self.current();
        Err(match named {
            None if current.exists() => damaged(&current, "it does not name a manifest"),
            None => damaged(&current, "it is missing"),
            Some(named) => {
                let path = self.dir.join(named.file());
                match path.exists() {
                    true => damaged(
                        &path,
                        format!("its checksum is not the one in {}", current.display()),
                    ),
                    false => damaged(
                        &current,
                        format!("it names {}, which does not exist", path.display()),
                    ),
                }
            }
        })
    }

    /// Whether a manifest names every table file on disk. An unnamed file may belong to a newer
    /// manifest.
    fn names_all_files(&self, manifest: &[u8]) -> Result<bool, CheckError> {
        let Ok(manifest) = Manifest::parse(manifest) else {
            return Ok(false);
        };
        let mut names = names(&self.dir.join("tables"))?.into_iter();
        let is_named = |name: String| {
            let mut files = manifest.files.iter();
            files.any(|file| file.number.to_string() == name)
        };
        Ok(names.all(is_named))
    }

    /// Whether this table, the registry, names another table. Its files are not compressed and hold
    /// each key verbatim.
    fn registers(&self, number: u64) -> Result<bool, CheckError> {
        let key = [&b"n"[..], &number.to_be_bytes()].concat();
        let files = self.dir.join("tables");
        for name in names(&files)? {
            let bytes = read(&files.join(name))?.unwrap_or_default();
            if bytes.windows(key.len()).any(|bytes| bytes == key) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether anything was written after the first, empty manifest.
    fn holds_anything(&self) -> Result<bool, CheckError> {
        let is_newer = |name: &String| name.starts_with('v') && name != "v0";
        Ok(!names(&self.dir.join("tables"))?.is_empty() || names(&self.dir)?.iter().any(is_newer))
    }

    /// Copies the files that have changed since the last copy. With `verify`, also replaces damaged
    /// copies.
    fn copy(&self, verify: bool) -> Result<(), CheckError> {
        // A mismatch means that the file is being changed, or is damaged.
        let Some(named) = read(&self.current())? else {
            return Ok(());
        };
        let copied = self.copies.join("current");
        if !verify && read(&copied)?.as_ref() == Some(&named) {
            return Ok(());
        }
        let Some(bytes) = self.intact_manifest(Some(&named))? else {
            return Ok(());
        };
        let (Some(current), Ok(manifest)) = (Current::parse(&named), Manifest::parse(&bytes))
        else {
            return Ok(());
        };
        self.make_copies_dir()?;
        let mut kept = vec!["current".to_owned(), current.file()];
        replace(&self.copies.join(current.file()), &bytes, &self.copies)?;
        for file in &manifest.files {
            self.copy_file(file, verify)?;
            kept.push(file.copy_name());
        }
        replace(&copied, &named, &self.copies)?;
        for name in names(&self.copies)? {
            if !kept.contains(&name) {
                let path = self.copies.join(name);
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        Ok(())
    }

    fn make_copies_dir(&self) -> Result<(), CheckError> {
        fs::create_dir_all(&self.copies).map_err(at(&self.copies))
    }
}

/// The names in a directory; empty if the directory does not exist.
fn names(dir: &Path) -> Result<Vec<String>, CheckError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(at(dir))?,
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name());
    let names: io::Result<Vec<_>> = entries.map(name).collect();
    let names = names.map_err(at(dir))?.into_iter();
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// The content of a file; `None` if there is none. A sector that cannot be read counts as damage.
fn read(path: &Path) -> Result<Option<Vec<u8>>, CheckError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(EIO) => Ok(Some(Vec::new())),
        Err(error) => Err(at(path)(error)),
    }
}

/// Replaces a file atomically, through a file in `beside`. Durable when it returns, unless it is a
/// copy.
fn replace(path: &Path, bytes: &[u8], beside: &Path) -> Result<(), CheckError> {
    let is_copy = path.parent() == Some(beside);
    let new = beside.join("new");
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        if is_copy {
            return fs::rename(&new, path);
        }
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(at(path))?;
    if !is_copy {
        restored(path);
    }
    Ok(())
}

fn damaged(file: &Path, problem: impl Into<String>) -> CheckError {
    CheckError::Damaged(DamagedFile {
        file: file.to_owned(),
        problem: problem.into(),
        give_up: None,
    })
}

/// Logs that a damaged file was restored.
fn restored(path: &Path) {
    tracing::error!(
        file = %path.display(),
        "restored a damaged file of the key-value store; check the disk"
    );
}
