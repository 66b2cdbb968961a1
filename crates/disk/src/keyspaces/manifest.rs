//! Which files a table consists of: `current`, and the manifest that it names.
//!
//! `current` is `number u64 · XXH3 of the manifest u128 · 0`. The section `tables` of a manifest is
//! `levels u8`, each level `runs u8`, each run `files u32`, each file
//! `number u64 · 0 · XXH3 of the file u128 · number of its oldest entry u64`.

use super::archive::{Archive, Bytes};

const CURRENT_BYTES: usize = 8 + 16 + 1;

/// The number and the checksum of the current manifest.
pub(super) struct Current {
    pub(super) number: u64,
    pub(super) checksum: u128,
}

impl Current {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != CURRENT_BYTES {
            return None;
        }
        let mut bytes = Bytes(bytes);
        Some(Self {
            number: bytes.u64()?,
            checksum: bytes.u128()?,
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (number, checksum) = (self.number.to_le_bytes(), self.checksum.to_le_bytes());
        [&number[..], &checksum, &[0]].concat()
    }

    /// The name of the manifest's file.
    pub(super) fn file(&self) -> String {
        format!("v{}", self.number)
    }
}

/// The files that hold a table's entries.
pub(super) struct Manifest {
    pub(super) files: Vec<TableFile>,
}

/// A file of a table.
pub(super) struct TableFile {
    pub(super) number: u64,
    pub(super) checksum: u128,
    pub(super) level: u8,
}

impl Manifest {
    /// Reads a manifest whose checksum matches.
    ///
    /// # Errors
    ///
    /// Why the bytes are no manifest.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let slice = |range: std::ops::Range<u64>| {
            let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
            let range = start.unwrap_or(usize::MAX)..end.unwrap_or(usize::MAX);
            bytes.get(range).map(<[u8]>::to_vec)
        };
        let archive = Archive::read(bytes.len() as u64, |range| {
            slice(range).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
        })?;
        let tables = archive.section(b"tables").and_then(slice);
        let files = tables.and_then(|tables| Self::files(&tables));
        let files = files.ok_or("the manifest has an unknown format")?;
        Ok(Self { files })
    }

    fn files(tables: &[u8]) -> Option<Vec<TableFile>> {
        let mut bytes = Bytes(tables);
        let mut files = Vec::new();
        for level in 0..bytes.u8()? {
            for _ in 0..bytes.u8()? {
                for _ in 0..bytes.u32()? {
                    let (number, kind, checksum) = (bytes.u64()?, bytes.u8()?, bytes.u128()?);
                    bytes.u64()?;
                    if kind != 0 {
                        return None;
                    }
                    files.push(TableFile {
                        number,
                        checksum,
                        level,
                    });
                }
            }
        }
        Some(files)
    }
}

impl TableFile {
    /// The name of the copy. Numbers are reused after a restart, so the name includes the checksum.
    pub(super) fn copy_name(&self) -> String {
        format!("{}-{:032x}.end", self.number, self.checksum)
    }
}
