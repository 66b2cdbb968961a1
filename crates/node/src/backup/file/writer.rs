//! Writes the file of a backup.

use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};
use waybill_engine::Timestamp;

use super::{Contents, Database, HEAD, Head, Listed, MANIFEST, MEMBERS_MAX, Manifest, VERSION};

/// The level of compression. Higher levels need several times as long for little.
const LEVEL: i32 = 3;
/// A member of a table ends with the entry that makes it this large.
const TABLE_MEMBER_BYTES: usize = 4 << 20;

/// Writes a backup. A file that is not [finished](Self::finish) has no manifest.
pub(in super::super) struct Writer<W: Write> {
    archive: tar::Builder<zstd::Encoder<'static, W>>,
    at: Timestamp,
    members: Vec<Listed>,
    /// The table of the last entries, and how many members it has.
    table: Option<(Database, String, u32)>,
    /// The entries of its next member.
    entries: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub(in super::super) fn begin(out: W, at: Timestamp) -> io::Result<Self> {
        let mut compressed = zstd::Encoder::new(out, LEVEL)?;
        compressed.include_checksum(true)?;
        let mut writer = Self {
            archive: tar::Builder::new(compressed),
            at,
            members: Vec::new(),
            table: None,
            entries: Vec::new(),
        };
        let head = serde_json::to_vec(&Head {
            version: VERSION,
            at_micros: at.as_micros(),
        })?;
        writer.member(HEAD.to_owned(), head.len() as u64, &head[..])?;
        Ok(writer)
    }

    /// Writes an entry. Those of a table follow each other.
    pub(in super::super) fn entry(
        &mut self,
        database: Database,
        table: &str,
        key: &[u8],
        value: &[u8],
    ) -> io::Result<()> {
        if !matches!(&self.table, Some((of, name, _)) if *of == database && name == table) {
            self.end_member()?;
            self.table = Some((database, table.to_owned(), 0));
        }
        self.entries.extend_from_slice(&length(key)?);
        self.entries.extend_from_slice(&length(value)?);
        self.entries.extend_from_slice(key);
        self.entries.extend_from_slice(value);
        match self.entries.len() >= TABLE_MEMBER_BYTES {
            true => self.end_member(),
            false => Ok(()),
        }
    }

    /// Writes a segment, whose content has this many bytes.
    pub(in super::super) fn segment(
        &mut self,
        (topic, partition, base): (&str, i32, i64),
        bytes: u64,
        content: impl Read,
    ) -> io::Result<()> {
        self.end_member()?;
        let name = format!("logs/{topic}/{partition}/{base:020}.log");
        self.member(name, bytes, content)
    }

    pub(in super::super) fn finish(mut self, contents: Contents) -> io::Result<()> {
        self.end_member()?;
        let manifest = serde_json::to_vec(&Manifest {
            operations: contents.operations,
            records: contents.records,
            members: std::mem::take(&mut self.members),
        })?;
        self.member(MANIFEST.to_owned(), manifest.len() as u64, &manifest[..])?;
        let compressed = self.archive.into_inner()?;
        compressed.finish()?.flush()
    }

    /// Writes the gathered entries.
    fn end_member(&mut self) -> io::Result<()> {
        let Some((database, table, written)) = &mut self.table else {
            return Ok(());
        };
        if self.entries.is_empty() {
            return Ok(());
        }
        let name = format!("{}/{table}/{written:08}", database.directory());
        *written += 1;
        let mut entries = std::mem::take(&mut self.entries);
        self.member(name, entries.len() as u64, &entries[..])?;
        entries.clear();
        self.entries = entries;
        Ok(())
    }

    fn member(&mut self, name: String, bytes: u64, content: impl Read) -> io::Result<()> {
        if self.members.len() >= MEMBERS_MAX {
            let many = "too many members: raise segment.bytes of topics with many segments";
            return Err(io::Error::other(many));
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.at.as_micros() / 1_000_000).unwrap_or(0));
        let mut content = Hashed {
            content: content.take(bytes),
            hash: Sha256::new(),
        };
        self.archive.append_data(&mut header, &name, &mut content)?;
        let sha256 = hex(content.hash);
        self.members.push(Listed {
            name,
            bytes,
            sha256,
        });
        Ok(())
    }
}

fn length(bytes: &[u8]) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(length.to_le_bytes())
}

/// The hash as text.
pub(super) fn hex(hash: Sha256) -> String {
    let bytes = hash.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes what is read.
pub(super) struct Hashed<R> {
    pub(super) content: R,
    pub(super) hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}
