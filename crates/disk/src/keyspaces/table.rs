//! The files that hold entries: verifies all of a small file, and everything but the data blocks of a
//! larger one; restores what a copy covers.
//!
//! A file is an archive: data blocks first, then the sections that are needed to find them. A block
//! in those is
//! `"LSM\x03" · kind u8 · XXH3 of the rest u128 · length of the rest u32 · length unpacked u32 · the low 32 bits of the XXH3 of all of this u32`,
//! and the rest.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use super::archive::{Archive, Bytes};
use super::manifest::TableFile;
use super::{Depth, Table, damaged, read, replace, restored};
use crate::{CheckError, at};

/// Files of up to this length are copied whole, and verified whole.
const SMALL_BYTES: u64 = 256 << 10;
/// On this level, opening a file also reads its filter.
const FIRST_LEVEL: u8 = 0;
const BLOCK_MAGIC: &[u8] = b"LSM\x03";
const HEADER_BYTES: usize = 4 + 1 + 16 + 4 + 4 + 4;

impl Table {
    /// Verifies a file, and restores it if a copy helps.
    pub(super) fn check_file(&self, named: &TableFile, depth: Depth) -> Result<(), CheckError> {
        let path = self.dir.join("tables").join(named.number.to_string());
        let copy = Copy::read(&self.copies.join(named.copy_name()))?;
        let flaw = match verify(&path, named, depth)? {
            Ok(()) => {
                // A file of another store may have the same number.
                return match copy {
                    Some(copy) if !copy.is_of(&path)? && copy.is_intact(named) => {
                        Err(damaged(&path, "it is another file, although intact"))
                    }
                    _ => Ok(()),
                };
            }
            Err(flaw) => flaw,
        };
        // A copy of the end alone would not fit the entries of another file.
        let fits = |copy: &Copy| matches!(flaw, Flaw::Damage(_)) || copy.start() == Some(0);
        if let Some(copy) = copy.filter(fits) {
            copy.restore(&path, named, &self.copies)?;
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
            true => Copy::read(&copy)?.is_some_and(|copy| copy.is_intact(named)),
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
    /// It is a table file with another number.
    #[error("it is table file {found}, not {expected}")]
    Another { found: u64, expected: u64 },
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

/// Verifies what follows the data blocks: all but the filter, and on the first level the filter, too.
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
        }) if number != named.number => Err(Flaw::Another {
            found: number,
            expected: named.number,
        }),
        Ok(_) => Ok(()),
    })
}

/// What follows the data blocks of a file.
struct End {
    /// Where it begins.
    start: u64,
    /// The number of the file, if it was found.
    number: Option<u64>,
}

impl End {
    fn is_of(&self, named: &TableFile) -> bool {
        self.number.is_none_or(|number| number == named.number)
    }
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
            }
        }
    }
    Ok(end)
}

/// The number of a file in its section `meta`, which holds the key verbatim, the length of the value
/// and the value. Keys of users precede it.
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
/// the data blocks on. The length of the file precedes it.
struct Copy {
    len: u64,
    end: Vec<u8>,
}

impl Copy {
    /// Makes the copy of an intact file; `None` if it is damaged.
    fn of(path: &Path, named: &TableFile) -> io::Result<Option<Vec<u8>>> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let start = match len <= SMALL_BYTES {
            true => 0,
            false => match verify_sections(len, FIRST_LEVEL, |range| read_at(&file, range)) {
                Ok(end) if end.is_of(named) => end.start,
                Ok(_) | Err(_) => return Ok(None),
            },
        };
        let end = read_at(&file, start..len)?;
        let is_intact = start > 0 || xxh3_128(&end) == named.checksum;
        Ok(is_intact.then(|| [&len.to_le_bytes()[..], &end].concat()))
    }

    fn read(path: &Path) -> Result<Option<Self>, CheckError> {
        let Some(bytes) = read(path)? else {
            return Ok(None);
        };
        let mut rest = Bytes(&bytes);
        Ok(rest.u64().map(|len| Self {
            len,
            end: rest.0.to_vec(),
        }))
    }

    /// Where in the file the copy begins; `None` if the copy is longer than the file.
    fn start(&self) -> Option<u64> {
        self.len.checked_sub(self.end.len() as u64)
    }

    /// Whether a file ends with this copy.
    fn is_of(&self, path: &Path) -> Result<bool, CheckError> {
        let Some(start) = self.start() else {
            return Ok(false);
        };
        let file = File::open(path).map_err(at(path))?;
        if file.metadata().map_err(at(path))?.len() != self.len {
            return Ok(false);
        }
        let end = read_at(&file, start..self.len).map_err(at(path))?;
        Ok(end == self.end)
    }

    fn is_intact(&self, named: &TableFile) -> bool {
        let Some(start) = self.start() else {
            return false;
        };
        if start == 0 {
            return xxh3_128(&self.end) == named.checksum;
        }
        let found = verify_sections(self.len, FIRST_LEVEL, |range| {
            let from = range.start.checked_sub(start);
            let bytes = from
                .zip(range.end.checked_sub(start))
                .and_then(|(from, end)| {
                    let (from, end) = (usize::try_from(from).ok()?, usize::try_from(end).ok()?);
                    self.end.get(from..end)
                });
            let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok(bytes.to_vec())
        });
        found.is_ok_and(|end| end.is_of(named))
    }

    /// Restores the part of the file that this copy covers, if the copy is intact.
    fn restore(&self, path: &Path, named: &TableFile, beside: &Path) -> Result<(), CheckError> {
        let Some(start) = self.start().filter(|_| self.is_intact(named)) else {
            return Ok(());
        };
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

fn read_at(file: &File, range: Range<u64>) -> io::Result<Vec<u8>> {
    let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}
