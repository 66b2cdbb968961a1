//! The file of a backup.
//!
//! ```text
//! WAYBILLB  version (u32)  instant (i64, microseconds since the Unix epoch)
//! pieces    kind (u8)  length (u32)  content
//!           1  a table of the store: its name       3  an entry: length of the key (u32), key, value
//!           2  a table of the broker: its name      3  likewise
//!           4  a segment of a log: partition (i32), first offset (i64), topic
//!           5  bytes of the segment, after the previous ones
//! end       0 (u8)  operations (u64)  records (u64)  SHA-256 of everything before
//! ```
//!
//! Numbers are little-endian. Store and broker define the meaning of their entries; a segment
//! contains record batches as Kafka stores them. The hash reveals a truncated or damaged file. It
//! does not prove who made the file.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write};
use std::ops::RangeInclusive;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use waybill_engine::Timestamp;

const MAGIC: &[u8; 8] = b"WAYBILLB";
const VERSION: u32 = 1;
const HEAD_BYTES: u64 = 8 + 4 + 8;
const HASH_BYTES: u64 = 32;
/// The size of the end, after the last piece.
const END_BYTES: u64 = 1 + 8 + 8 + HASH_BYTES;
const READ_BYTES: usize = 256 << 10;
/// The largest piece: the largest rows are far smaller.
const PIECE_BYTES_MAX: u32 = 64 << 20;
/// The length of keys in both databases.
const KEY_BYTES: RangeInclusive<usize> = 1..=65_535;

const END: u8 = 0;
const STORE_TABLE: u8 = 1;
const BROKER_TABLE: u8 = 2;
const ENTRY: u8 = 3;
const SEGMENT: u8 = 4;
const LOG_BYTES: u8 = 5;

/// The contents of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contents {
    /// Operations of the store.
    pub operations: u64,
    /// Records of the logs.
    pub records: u64,
    /// The instant of the backup.
    pub at: Timestamp,
}

/// Why a file is no usable backup.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read the backup")]
    Io(#[from] io::Error),
    /// It is not a backup.
    #[error("not a Waybill backup")]
    NoBackup,
    /// Its version is not supported.
    #[error("unsupported backup version {0}: this program reads version {VERSION}")]
    Version(u32),
    /// Its hash does not match.
    #[error("the backup is truncated or altered")]
    Altered,
    /// Its hash matches, but a piece is invalid.
    #[error("invalid piece at byte {at}")]
    Piece {
        /// The offset of the piece in the file.
        at: u64,
    },
}

/// The table of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Table {
    Store(String),
    Broker(String),
}

/// A piece of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// An entry of a table.
    Entry {
        table: Table,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// The start of a segment.
    Segment {
        topic: String,
        partition: i32,
        base: i64,
    },
    /// More bytes of the current segment.
    LogBytes(Vec<u8>),
}

/// Writes a backup.
pub(super) struct Writer<W> {
    out: W,
    hash: Sha256,
    table: Option<Table>,
}

impl<W: Write> Writer<W> {
    pub(super) fn begin(out: W, at: Timestamp) -> io::Result<Self> {
        let mut writer = Self {
            out,
            hash: Sha256::new(),
            table: None,
        };
        writer.put(MAGIC)?;
        writer.put(&VERSION.to_le_bytes())?;
        writer.put(&at.0.to_le_bytes())?;
        Ok(writer)
    }

    /// Writes an entry of the store.
    pub(super) fn store_entry(&mut self, table: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.entry(Table::Store(table.to_owned()), key, value)
    }

    /// Writes an entry of the broker's metadata.
    pub(super) fn broker_entry(&mut self, table: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.entry(Table::Broker(table.to_owned()), key, value)
    }

    fn entry(&mut self, table: Table, key: &[u8], value: &[u8]) -> io::Result<()> {
        if self.table.as_ref() != Some(&table) {
            match &table {
                Table::Store(name) => self.piece(STORE_TABLE, &[name.as_bytes()])?,
                Table::Broker(name) => self.piece(BROKER_TABLE, &[name.as_bytes()])?,
            }
            self.table = Some(table);
        }
        self.piece(ENTRY, &[&length(&[key])?, key, value])
    }

    /// Begins a segment.
    pub(super) fn segment(&mut self, topic: &str, partition: i32, base: i64) -> io::Result<()> {
        let (partition, base) = (partition.to_le_bytes(), base.to_le_bytes());
        self.piece(SEGMENT, &[&partition, &base, topic.as_bytes()])
    }

    /// Adds bytes to the segment.
    pub(super) fn log_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.piece(LOG_BYTES, &[bytes])
    }

    pub(super) fn finish(mut self, contents: Contents) -> io::Result<()> {
        self.put(&[END])?;
        self.put(&contents.operations.to_le_bytes())?;
        self.put(&contents.records.to_le_bytes())?;
        let hash = self.hash.finalize();
        self.out.write_all(&hash)?;
        self.out.flush()
    }

    fn piece(&mut self, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
        self.put(&[kind])?;
        self.put(&length(parts)?)?;
        parts.iter().try_for_each(|part| self.put(part))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }
}

fn length(parts: &[&[u8]]) -> io::Result<[u8; 4]> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(length.to_le_bytes())
}

/// Reads a whole file and returns its contents.
///
/// # Errors
///
/// [`FileError`] if it is not a complete, unaltered backup.
pub fn check(path: &Path) -> Result<Contents, FileError> {
    Reader::open(path).map(|reader| reader.contents)
}

/// Reads a complete backup.
pub(super) struct Reader {
    file: BufReader<File>,
    /// The offset of the next piece.
    at: u64,
    /// The offset of the end.
    end: u64,
    contents: Contents,
    table: Option<Table>,
}

impl Reader {
    /// Opens a file after checking all of it against its hash.
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        let mut head = [0; HEAD_BYTES as usize];
        if bytes < HEAD_BYTES {
            return Err(FileError::NoBackup);
        }
        file.read_exact(&mut head)?;
        let at = match head_of(&head) {
            Some((VERSION, at)) => at,
            Some((version, _)) => return Err(FileError::Version(version)),
            None => return Err(FileError::NoBackup),
        };
        let end = bytes
            .checked_sub(END_BYTES)
            .filter(|&end| end >= HEAD_BYTES);
        let end = end.ok_or(FileError::Altered)?;
        file.rewind()?;
        let mut hash = Sha256::new();
        let mut left = file.by_ref().take(bytes - HASH_BYTES);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match left.read(&mut buffer)? {
                0 => break,
                read => hash.update(&buffer[..read]),
            }
        }
        let mut written = [0; HASH_BYTES as usize];
        file.read_exact(&mut written)?;
        if hash.finalize()[..] != written {
            return Err(FileError::Altered);
        }
        file.seek(SeekFrom::Start(end))?;
        let mut reader = Self {
            file,
            at: end,
            end,
            contents: Contents {
                operations: 0,
                records: 0,
                at,
            },
            table: None,
        };
        if reader.number::<1>()? != [END] {
            return Err(FileError::Piece { at: end });
        }
        reader.contents.operations = u64::from_le_bytes(reader.number()?);
        reader.contents.records = u64::from_le_bytes(reader.number()?);
        reader.file.seek(SeekFrom::Start(HEAD_BYTES))?;
        reader.at = HEAD_BYTES;
        Ok(reader)
    }

    /// The contents of the backup.
    pub(super) fn contents(&self) -> Contents {
        self.contents
    }

    /// The next piece; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, FileError> {
        while self.at < self.end {
            let wrong = FileError::Piece { at: self.at };
            let [kind] = self.number()?;
            let length = u32::from_le_bytes(self.number()?);
            if length > PIECE_BYTES_MAX || u64::from(length) > self.end.saturating_sub(self.at) {
                return Err(wrong);
            }
            let mut content = vec![0; length as usize];
            self.file.read_exact(&mut content)?;
            self.at += u64::from(length);
            match kind {
                STORE_TABLE => self.table = Some(Table::Store(text(content).ok_or(wrong)?)),
                BROKER_TABLE => self.table = Some(Table::Broker(text(content).ok_or(wrong)?)),
                ENTRY => return self.entry(&content).ok_or(wrong).map(Some),
                SEGMENT => return segment(&content).ok_or(wrong).map(Some),
                LOG_BYTES => return Ok(Some(Piece::LogBytes(content))),
                _ => return Err(wrong),
            }
        }
        Ok(None)
    }

    fn entry(&self, content: &[u8]) -> Option<Piece> {
        let (length, rest) = content.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        if !KEY_BYTES.contains(&length) {
            return None;
        }
        let (key, value) = rest.split_at_checked(length)?;
        Some(Piece::Entry {
            table: self.table.clone()?,
            key: key.to_vec(),
            value: value.to_vec(),
        })
    }

    fn number<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }
}

fn head_of(head: &[u8]) -> Option<(u32, Timestamp)> {
    let (version, at) = head.strip_prefix(MAGIC)?.split_first_chunk()?;
    let at = i64::from_le_bytes(at.try_into().ok()?);
    Some((u32::from_le_bytes(*version), Timestamp(at)))
}

fn segment(content: &[u8]) -> Option<Piece> {
    let (partition, rest) = content.split_first_chunk()?;
    let (base, topic) = rest.split_first_chunk()?;
    Some(Piece::Segment {
        topic: text(topic.to_vec())?,
        partition: i32::from_le_bytes(*partition),
        base: i64::from_le_bytes(*base),
    })
}

fn text(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENTS: Contents = Contents {
        operations: 2,
        records: 7,
        at: Timestamp(1_234_567),
    };

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut file = Writer::begin(&mut bytes, CONTENTS.at).unwrap();
        file.store_entry("state", b"a", b"one").unwrap();
        file.store_entry("state", b"b", b"").unwrap();
        file.store_entry("due", b"b", b"").unwrap();
        file.broker_entry("due", b"b", b"").unwrap();
        file.segment("topic", 3, 1_000).unwrap();
        file.log_bytes(b"batches").unwrap();
        file.segment("topic", 4, 0).unwrap();
        file.finish(CONTENTS).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Result<(Contents, Vec<Piece>), FileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut reader = Reader::open(file.path())?;
        let mut pieces = Vec::new();
        while let Some(piece) = reader.next()? {
            pieces.push(piece);
        }
        Ok((reader.contents(), pieces))
    }

    #[test]
    fn a_backup_is_read_in_the_order_of_writing() {
        let entry = |table: Table, key: &[u8], value: &[u8]| Piece::Entry {
            table,
            key: key.to_vec(),
            value: value.to_vec(),
        };
        let store = |name: &str| Table::Store(name.to_owned());
        let segment = |partition, base| Piece::Segment {
            topic: "topic".to_owned(),
            partition,
            base,
        };
        let expected = vec![
            entry(store("state"), b"a", b"one"),
            entry(store("state"), b"b", b""),
            entry(store("due"), b"b", b""),
            entry(Table::Broker("due".to_owned()), b"b", b""),
            segment(3, 1_000),
            Piece::LogBytes(b"batches".to_vec()),
            segment(4, 0),
        ];
        assert_eq!(read(&written()).unwrap(), (CONTENTS, expected));
    }

    #[test]
    fn a_truncated_file_is_refused() {
        let whole = written();
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
        let longer = [whole, b"x".to_vec()].concat();
        assert!(matches!(read(&longer), Err(FileError::Altered)));
    }

    #[test]
    fn any_flipped_bit_is_detected() {
        let whole = written();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut altered = whole.clone();
                altered[at] ^= 1 << bit;
                assert!(read(&altered).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_file_of_another_kind_or_version_is_refused_with_the_reason() {
        assert!(matches!(read(b"{}"), Err(FileError::NoBackup)));
        assert!(matches!(read(&[b'x'; 200]), Err(FileError::NoBackup)));
        let mut newer = written();
        newer[8] = 9;
        assert!(matches!(read(&newer), Err(FileError::Version(9))));
    }

    #[test]
    fn invalid_pieces_with_a_valid_hash_are_refused() {
        for (kind, length, content) in [
            (ENTRY, 4, &b"\x00\x00\x00\x00"[..]),
            (LOG_BYTES, PIECE_BYTES_MAX + 1, b""),
            (STORE_TABLE, 1, b"\xff"),
            (SEGMENT, 3, b"abc"),
            (LOG_BYTES, 1_000, b"short"),
            (9, 0, b""),
        ] {
            let mut bytes = Vec::new();
            let mut file = Writer::begin(&mut bytes, CONTENTS.at).unwrap();
            file.put(&[kind]).unwrap();
            file.put(&u32::to_le_bytes(length)).unwrap();
            file.put(content).unwrap();
            file.finish(CONTENTS).unwrap();
            let refused = read(&bytes).unwrap_err();
            assert!(matches!(refused, FileError::Piece { at: 20 }), "{refused}");
        }
    }
}
