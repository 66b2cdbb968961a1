//! Reads the file of a backup.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::ops::RangeInclusive;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use tar::{Archive, Entries, Entry, EntryType};
use waybill_engine::Timestamp;

use super::writer::{Hashed, hex};
use super::{
    Contents, Database, FileError, HEAD, Head, Listed, MAGIC, MANIFEST, MANIFEST_BYTES_MAX,
    MEMBERS_MAX, Manifest, Piece, VERSION,
};

const READ_BYTES: usize = 256 << 10;
/// Tar's unit.
const BLOCK_BYTES: usize = 512;
/// The largest window of the compression, as a power of two. The writer's has 2 MiB.
const WINDOW_LOG_MAX: u32 = 23;
/// The size of the first member.
const HEAD_BYTES_MAX: u64 = 4 << 10;
/// The length of names: a topic's has up to 249 bytes.
const NAME_BYTES_MAX: u64 = 512;
/// The length of values: the largest rows are far smaller.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// The length of keys in both databases.
const KEY_BYTES: RangeInclusive<usize> = 1..=65_535;

/// Reads a whole file and returns its contents.
///
/// # Errors
///
/// [`FileError`] if it is not a complete, unaltered backup.
pub fn check(path: &Path) -> Result<Contents, FileError> {
    Reader::open(path).map(|reader| reader.contents)
}

/// Reads a complete backup.
pub(in super::super) struct Reader {
    file: File,
    contents: Contents,
}

impl Reader {
    /// Opens a file after checking all of it against its manifest.
    pub(in super::super) fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path)?;
        let contents = verify(&file)?;
        Ok(Self { file, contents })
    }

    /// The contents of the backup.
    pub(in super::super) fn contents(&self) -> Contents {
        self.contents
    }

    /// Calls `visit` with each piece, in order. Returns its first error.
    pub(in super::super) fn read<E: From<FileError>>(
        &self,
        mut visit: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut archive = open_archive(&self.file)?;
        let mut members = Members::of(&mut archive)?;
        while let Some(mut member) = members.next()? {
            let name = member.name.clone();
            let parts: Vec<&str> = name.split('/').collect();
            match parts[..] {
                [HEAD | MANIFEST] => {}
                ["store", table, _] => member.entries(Database::Store, table, &mut visit)?,
                ["broker", table, _] => member.entries(Database::Broker, table, &mut visit)?,
                ["logs", topic, partition, file] => {
                    let base = file.strip_suffix(".log").and_then(|base| base.parse().ok());
                    let (Ok(partition), Some(base)) = (partition.parse(), base) else {
                        return Err(member.invalid("has no valid name").into());
                    };
                    visit(Piece::Segment {
                        topic,
                        partition,
                        base,
                    })?;
                    member.log_bytes(&mut visit)?;
                }
                _ => return Err(member.invalid("has no valid name").into()),
            }
        }
        Ok(())
    }
}

/// Reads the whole file, and compares it with its manifest.
fn verify(file: &File) -> Result<Contents, FileError> {
    let mut start = [0; MAGIC.len()];
    let read = read_fully(&mut &*file, &mut start)?;
    if read < start.len() || start != MAGIC {
        return Err(FileError::NoBackup);
    }
    let mut archive = open_archive(file)?;
    let mut members = Members::of(&mut archive)?;
    let head = members.next()?.filter(|member| member.name == HEAD);
    let (head, listed) = head.ok_or(FileError::NoBackup)?.json(HEAD_BYTES_MAX)?;
    let Head { version, at_micros } = head;
    if version != VERSION {
        return Err(FileError::Version(version));
    }
    let mut found = vec![listed];
    let manifest: Manifest = loop {
        let Some(member) = members.next()? else {
            return Err(members.altered(None));
        };
        if member.name == MANIFEST {
            break member.json(MANIFEST_BYTES_MAX)?.0;
        }
        found.push(member.hash()?);
    };
    let mut expected = manifest.members.iter();
    for found in &found {
        match expected.next() {
            Some(expected) if expected == found => {}
            Some(Listed { name, .. }) => return Err(altered(format!("in {name}"), None)),
            None => return Err(altered(format!("in {}", found.name), None)),
        }
    }
    if let Some(Listed { name, .. }) = expected.next() {
        return Err(altered(format!("in {name}"), None));
    }
    // Tar ends with two empty blocks, of which the library reads one. The checksum of the
    // compression is at the very end.
    let nothing = members.next()?.is_none();
    let mut rest = [0; 2 * BLOCK_BYTES];
    let place = format!("after {MANIFEST}");
    match read_fully(&mut archive.into_inner(), &mut rest) {
        Ok(BLOCK_BYTES) if nothing && rest.iter().all(|byte| *byte == 0) => Ok(Contents {
            operations: manifest.operations,
            records: manifest.records,
            at: Timestamp(at_micros),
        }),
        Ok(_) => Err(altered(place, None)),
        Err(error) => Err(unreadable(place, error)),
    }
}

type Decoder<'a> = zstd::Decoder<'static, BufReader<&'a File>>;

/// The archive from its start.
fn open_archive(mut file: &File) -> Result<Archive<Decoder<'_>>, FileError> {
    file.rewind()?;
    let buffered = BufReader::with_capacity(READ_BYTES, file);
    let mut decoder = zstd::Decoder::with_buffer(buffered)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    Ok(Archive::new(decoder))
}

/// The members of an archive.
struct Members<'a, 'f> {
    entries: Entries<'a, Decoder<'f>>,
    /// The member before the next one.
    last: String,
    count: usize,
}

impl<'a, 'f> Members<'a, 'f> {
    fn of(archive: &'a mut Archive<Decoder<'f>>) -> Result<Self, FileError> {
        // Otherwise the library reads extensions of any size into memory.
        let entries = archive.entries()?.raw(true);
        Ok(Self {
            entries,
            last: String::new(),
            count: 0,
        })
    }

    fn next(&mut self) -> Result<Option<Member<'a, 'f>>, FileError> {
        let mut entry = match self.entries.next() {
            None => return Ok(None),
            Some(entry) => entry.map_err(|error| self.altered(Some(error)))?,
        };
        let mut name = entry.header().path_bytes().into_owned();
        if entry.header().entry_type() == EntryType::GNULongName {
            if entry.size() > NAME_BYTES_MAX {
                return Err(self.altered(None));
            }
            name.clear();
            let read = entry.read_to_end(&mut name);
            read.map_err(|error| self.altered(Some(error)))?;
            // It ends in a zero.
            name.pop();
            entry = match self.entries.next() {
                None => return Err(self.altered(None)),
                Some(entry) => entry.map_err(|error| self.altered(Some(error)))?,
            };
        }
        let name = String::from_utf8(name).map_err(|_| self.altered(None))?;
        self.count += 1;
        if entry.header().entry_type() != EntryType::Regular {
            let problem = "is not a regular file";
            return Err(FileError::Member { name, problem });
        }
        if self.count > MEMBERS_MAX + 1 {
            let problem = "is one too many";
            return Err(FileError::Member { name, problem });
        }
        self.last.clone_from(&name);
        Ok(Some(Member { name, entry }))
    }

    /// The error after the last member.
    fn altered(&self, source: Option<io::Error>) -> FileError {
        let place = match self.last.as_str() {
            "" => "at its start".to_owned(),
            last => format!("after {last}"),
        };
        match source {
            Some(error) => unreadable(place, error),
            None => altered(place, None),
        }
    }
}

/// A member, of which nothing is read yet.
struct Member<'a, 'f> {
    name: String,
    entry: Entry<'a, Decoder<'f>>,
}

impl Member<'_, '_> {
    /// Reads all of it.
    fn hash(mut self) -> Result<Listed, FileError> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match self.entry.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => hash.update(&buffer[..read]),
                Err(error) => return Err(self.unreadable(error)),
            }
        }
        Ok(Listed {
            bytes: self.entry.size(),
            name: self.name,
            sha256: hex(hash),
        })
    }

    /// Reads all of it as JSON.
    fn json<T: serde::de::DeserializeOwned>(
        self,
        bytes_max: u64,
    ) -> Result<(T, Listed), FileError> {
        let (name, bytes) = (self.name, self.entry.size());
        let mut content = Hashed {
            content: self.entry.take(bytes_max),
            hash: Sha256::new(),
        };
        let value = serde_json::from_reader(BufReader::new(&mut content))
            .map_err(|error| unreadable(format!("in {name}"), error.into()))?;
        let sha256 = hex(content.hash);
        Ok((
            value,
            Listed {
                name,
                bytes,
                sha256,
            },
        ))
    }

    /// Calls `visit` with each entry of a table.
    fn entries<E: From<FileError>>(
        &mut self,
        database: Database,
        table: &str,
        visit: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut content = Vec::new();
        let mut left = self.entry.size();
        while left > 0 {
            let mut lengths = [[0; 4]; 2];
            self.fill(lengths.as_flattened_mut())?;
            let [key, value] = lengths.map(|length| u32::from_le_bytes(length) as usize);
            let entry = (8 + key + value) as u64;
            if !KEY_BYTES.contains(&key) || value > VALUE_BYTES_MAX || entry > left {
                return Err(self.invalid("has an entry of an impossible size").into());
            }
            left -= entry;
            content.resize(key + value, 0);
            self.fill(&mut content)?;
            let (key, value) = content.split_at(key);
            visit(Piece::Entry {
                database,
                table,
                key,
                value,
            })?;
        }
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), FileError> {
        let read = self.entry.read_exact(buffer);
        read.map_err(|error| self.unreadable(error))
    }

    /// Calls `visit` with the bytes of a segment.
    fn log_bytes<E: From<FileError>>(
        &mut self,
        visit: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let read = read_fully(&mut self.entry, &mut buffer);
            match read.map_err(|error| self.unreadable(error))? {
                0 => return Ok(()),
                read => visit(Piece::LogBytes(&buffer[..read]))?,
            }
        }
    }

    fn unreadable(&self, error: io::Error) -> FileError {
        unreadable(format!("in {}", self.name), error)
    }

    fn invalid(&self, problem: &'static str) -> FileError {
        FileError::Member {
            name: self.name.clone(),
            problem,
        }
    }
}

/// Fills `buffer` as far as there is content, and returns how far.
fn read_fully(content: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match content.read(&mut buffer[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// The disk's error, or otherwise one of the content.
fn unreadable(place: String, error: io::Error) -> FileError {
    match error.raw_os_error() {
        Some(_) => FileError::Io(error),
        None => altered(place, Some(error)),
    }
}

fn altered(place: String, source: Option<io::Error>) -> FileError {
    FileError::Altered { place, source }
}
