//! The files that hold entries: verifies all of a small file, and everything but the data blocks of
//! a larger one; restores what a copy covers.
//!
//! A file is an archive: data blocks first, then the sections that are needed to find them. A block
//! in those is
//! `"LSM\x03" · kind u8 · XXH3 of the rest u128 · length of the rest u32 · length unpacked u32 ·
//! the low 32 bits of the XXH3 of all of this u32`, and the rest.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::archive::{Archive, Bytes};
use super::manifest::TableFile;
use super::{Depth, Table, damaged, read, replace, restored};
use crate::{CheckError, at};

/// Files of up to this length are copied whole, and verified whole.
const SMALL_BYTES: u64 = 256 << 10;
/// How many bytes of a file are read at a time.
const PIECE_BYTES: usize = 1 << 20;
/// On this level, opening a file also reads its filter.
const FIRST_LEVEL: u8 = 0;
const BLOCK_MAGIC: &[u8] = b"LSM\x03";
const HEADER_BYTES: usize = 4 + 1 + 16 + 4 + 4 + 4;

impl Table {
    /// Verifies a file, and restores it if a copy helps.
    pub(super) fn check_file(&self, named: &TableFile, depth: Depth) -> Result<(), CheckError> {
        let path = self.dir.join("tables").join(named.number.to_string());
        let copy = Copy::read(&self.copies.join(named.copy_name()));
        let verified = match (verify(&path, named, depth)?, &copy) {
            (Ok(()), Some(copy)) => copy.verify_end_of(&path)?,
            (verified, _) => verified,
        };
        let Err(flaw) = verified else {
            return Ok(());
        };
        // A copy of the end alone would not fit the entries of another file.
        let fits = |copy: &Copy| matches!(flaw, Flaw::Damage(_)) || copy.start() == 0;
        match (copy.filter(fits), &flaw) {
            (Some(copy), _) => copy.restore(&path, &self.copies)?,
            (None, Flaw::Another(problem)) => return Err(damaged(&path, problem.as_str())),
            (None, Flaw::Damage(_)) => {}
        }
        // Damaged entries alone do not prevent opening, nor does a filter that is read later: it
        // makes entries unreadable.
        let opens = match depth {
            Depth::Opening => verify_end(&path, named, named.level)?,
            Depth::Whole => verify(&path, named, depth)?,
        };
        if opens.is_err() {
            return Err(damaged(&path, flaw.to_string()));
        }
        if let Err(flaw) = verify(&path, named, depth)? {
            tracing::error!(
                file = %path.display(),
                problem = %flaw,
                "a damaged file of the key-value store has no usable copy: some of its entries cannot be read"
            );
        }
        Ok(())
    }

    pub(super) fn copy_file(&self, named: &TableFile, verify: bool) -> Result<(), CheckError> {
        let copy = self.copies.join(named.copy_name());
        let is_copied = match verify {
            true => Copy::read(&copy).is_some(),
            false => copy.exists(),
        };
        if is_copied {
            return Ok(());
        }
        if verify && copy.exists() {
            tracing::error!(
                file = %copy.display(),
                "replacing a damaged copy of a file of the key-value store; check the disk"
            );
        }
        let path = self.dir.join("tables").join(named.number.to_string());
        match Copy::of(&path, named) {
            Ok(Some(bytes)) => replace(&copy, &bytes, &self.copies),
            Ok(None) => Ok(()),
            // A compaction has just replaced the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(at(&path)(error)),
        }
    }
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
enum Flaw {
    /// A description of the damage.
    #[error("{0}")]
    Damage(String),
    /// Why it is another file.
    #[error("{0}")]
    Another(String),
}

type Verified = Result<(), Flaw>;

fn damage<T>(problem: impl Into<String>) -> Result<T, Flaw> {
    Err(Flaw::Damage(problem.into()))
}

/// Verifies small files completely, and larger ones to the given `depth`: at least their end.
fn verify(path: &Path, named: &TableFile, depth: Depth) -> Result<Verified, CheckError> {
    let len = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(damage("it is missing"));
        }
        metadata => metadata.map_err(at(path))?.len(),
    };
    if len > SMALL_BYTES && depth == Depth::Opening {
        return verify_end(path, named, FIRST_LEVEL);
    }
    let is_intact = read(path)?.is_some_and(|bytes| xxh3_128(&bytes) == named.checksum);
    // Prefer the more specific problem.
    Ok(match is_intact {
        true => Ok(()),
        false => verify_end(path, named, FIRST_LEVEL)?
            .and_then(|()| damage("its checksum is not the one in its manifest")),
    })
}

/// Verifies what follows the data blocks: all but the filter, and on the first level the filter,
/// too.
fn verify_end(path: &Path, named: &TableFile, level: u8) -> Result<Verified, CheckError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(damage("it is missing"));
        }
        file => file.map_err(at(path))?,
    };
    let len = file.metadata().map_err(at(path))?.len();
    let verified = verify_sections(len, level, |range| read_at(&file, range));
    Ok(match verified {
        Err(problem) => damage(problem),
        Ok(End {
            number: Some(number),
            ..
        }) if number != named.number => {
            let problem = format!("it is table file {number}, not {}", named.number);
            Err(Flaw::Another(problem))
        }
        Ok(_) => Ok(()),
    })
}

/// What follows the data blocks of a file.
struct End {
    /// Where it begins.
    start: u64,
    /// The number of the file, if it was found.
    number: Option<u64>,
    /// The section `meta`: among others, when the file was made and how many entries it has.
    meta: Vec<u8>,
}

/// As [`verify_end`], of a file with any number.
fn verify_sections(
    len: u64,
    level: u8,
    read: impl Fn(Range<u64>) -> io::Result<Vec<u8>>,
) -> Result<End, String> {
    let archive = Archive::read(len, &read)?;
    for needed in [&b"meta"[..], b"tli"] {
        if archive.section(needed).is_none() {
            return Err("a section is missing".to_owned());
        }
    }
    let mut end = End {
        start: len,
        number: None,
        meta: Vec::new(),
    };
    for (name, range) in &archive.sections {
        if name != b"data" {
            end.start = end.start.min(range.start);
        }
        let is_read = match &name[..] {
            b"meta" | b"tli" | b"index" | b"filter_tli" => true,
            b"filter" => level == FIRST_LEVEL,
            _ => false,
        };
        if is_read {
            let bytes = read(range.clone()).map_err(|error| error.to_string())?;
            if !are_blocks(&bytes) {
                let name = String::from_utf8_lossy(name);
                return Err(format!("the checksum of its section {name} does not match"));
            }
            if name == b"meta" {
                end.number = number_in(&bytes);
                end.meta = bytes;
            }
        }
    }
    Ok(end)
}

/// The number of a file in its section `meta`, which holds the key verbatim, the length of the
/// value and the value. Keys of users precede it.
fn number_in(meta: &[u8]) -> Option<u64> {
    let key = b"table_id\x08";
    let at = meta.windows(key.len()).rposition(|bytes| bytes == key)?;
    Bytes(&meta[at + key.len()..]).u64()
}

/// Whether bytes are intact blocks.
fn are_blocks(bytes: &[u8]) -> bool {
    let mut rest = Bytes(bytes);
    while !rest.0.is_empty() {
        let Some(header) = rest.take(HEADER_BYTES) else {
            return false;
        };
        let (fields, checksum) = header.split_at(HEADER_BYTES - 4);
        let whole = xxh3_128(fields).to_le_bytes();
        if !fields.starts_with(BLOCK_MAGIC) || checksum != &whole[..4] {
            return false;
        }
        let mut fields = Bytes(&fields[BLOCK_MAGIC.len() + 1..]);
        let (Some(checksum), Some(len)) = (fields.u128(), fields.u32()) else {
            return false;
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if rest.take(len).is_none_or(|data| xxh3_128(data) != checksum) {
            return false;
        }
    }
    true
}

/// What a damaged file is restored from: the whole file, or its end from the first section after
/// the data blocks on. It is made from a file that has the checksum in its manifest.
///
/// On disk it is `XXH3 of the rest u128 · length of the file u64 · end`.
struct Copy {
    len: u64,
    end: Vec<u8>,
}

impl Copy {
    /// Makes the copy of an intact file; `None` if it is damaged.
    fn of(path: &Path, named: &TableFile) -> io::Result<Option<Vec<u8>>> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        if checksum_of(&file, len)? != named.checksum {
            return Ok(None);
        }
        let start = match len <= SMALL_BYTES {
            true => 0,
            false => match verify_sections(len, FIRST_LEVEL, |range| read_at(&file, range)) {
                Ok(end) => end.start,
                Err(_) => return Ok(None),
            },
        };
        let end = read_at(&file, start..len)?;
        let rest = [&len.to_le_bytes()[..], &end].concat();
        Ok(Some([&xxh3_128(&rest).to_le_bytes()[..], &rest].concat()))
    }

    /// Reads a copy; `None` if it is missing, damaged or unreadable.
    fn read(path: &Path) -> Option<Self> {
        let bytes = fs::read(path).ok()?;
        let mut rest = Bytes(&bytes);
        let checksum = rest.u128()?;
        if xxh3_128(rest.0) != checksum {
            return None;
        }
        let len = rest.u64()?;
        let end = rest.0.to_vec();
        (end.len() as u64 <= len).then_some(Self { len, end })
    }

    /// Where in the file the copy begins.
    fn start(&self) -> u64 {
        self.len - self.end.len() as u64
    }

    /// Verifies that a file ends with this copy. A file of another store may have the same number,
    /// and some bytes have no checksum of their own.
    fn verify_end_of(&self, path: &Path) -> Result<Verified, CheckError> {
        let file = File::open(path).map_err(at(path))?;
        let len = file.metadata().map_err(at(path))?.len();
        let end = read_at(&file, self.start()..self.len);
        if len == self.len && end.is_ok_and(|end| end == self.end) {
            return Ok(Ok(()));
        }
        let found = verify_sections(len, FIRST_LEVEL, |range| read_at(&file, range));
        let copied = verify_sections(self.len, FIRST_LEVEL, |range| self.bytes(range));
        Ok(match (found, copied) {
            (Ok(found), Ok(copied)) if found.meta != copied.meta => Err(Flaw::Another(
                "it is another file, although intact".to_owned(),
            )),
            _ => damage("its end is not the one that was copied"),
        })
    }

    /// The bytes of the file in this range, which the copy has.
    fn bytes(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let within = |at: u64| usize::try_from(at.checked_sub(self.start())?).ok();
        let bytes = within(range.start).zip(within(range.end));
        let bytes = bytes.and_then(|(from, end)| self.end.get(from..end));
        bytes
            .map(<[u8]>::to_vec)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Restores the part of the file that this copy covers.
    fn restore(&self, path: &Path, beside: &Path) -> Result<(), CheckError> {
        let start = self.start();
        if start == 0 {
            return replace(path, &self.end, beside);
        }
        // A file that is missing has no entries.
        if !path.exists() {
            return Ok(());
        }
        let write = || {
            let file = File::options().write(true).open(path)?;
            file.set_len(self.len)?;
            file.write_all_at(&self.end, start)?;
            file.sync_all()
        };
        write().map_err(at(path))?;
        restored(path);
        Ok(())
    }
}

/// The XXH3 of a file.
fn checksum_of(file: &File, len: u64) -> io::Result<u128> {
    let mut hash = Xxh3::new();
    for start in (0..len).step_by(PIECE_BYTES) {
        hash.update(&read_at(file, start..len.min(start + PIECE_BYTES as u64))?);
    }
    Ok(hash.digest128())
}

fn read_at(file: &File, range: Range<u64>) -> io::Result<Vec<u8>> {
    let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}
