//! The container that manifests and table files are written in (`sfa`): sections, a directory of
//! them, a trailer.
//!
//! The directory is `"TOC!" · entries u32 · entries`, an entry
//! `position u64 · length u64 · name length u16 · name`. The trailer is
//! `"SFA!" · 1 · 0 · XXH3 of the directory u128 · its position u64 · its length u64`. Numbers are
//! little-endian.

use std::io;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_128;

const TRAILER_BYTES: u64 = 4 + 1 + 1 + 16 + 8 + 8;
const TRAILER_MAGIC: &[u8] = b"SFA!\x01\x00";
const DIRECTORY_MAGIC: &[u8] = b"TOC!";
/// About ten sections take a few hundred bytes.
const DIRECTORY_BYTES_MAX: u64 = 64 << 10;

/// Where the sections of an archive are.
pub(super) struct Archive {
    pub(super) sections: Vec<(Vec<u8>, Range<u64>)>,
}

impl Archive {
    /// Reads the directory of an archive of `len` bytes. `read` gives the bytes at a position.
    ///
    /// # Errors
    ///
    /// A description of the damage.
    pub(super) fn read(
        len: u64,
        read: impl Fn(Range<u64>) -> io::Result<Vec<u8>>,
    ) -> Result<Self, String> {
        let end = len
            .checked_sub(TRAILER_BYTES)
            .ok_or_else(|| format!("it has {len} bytes and no trailer"))?;
        let trailer = read(end..len).map_err(|error| error.to_string())?;
        let (magic, rest) = trailer.split_at(TRAILER_MAGIC.len());
        if magic != TRAILER_MAGIC {
            return Err("its trailer is invalid".to_owned());
        }
        let mut rest = Bytes(rest);
        let (checksum, position) = (rest.u128(), rest.u64());
        let (checksum, position) = checksum.zip(position).ok_or("its trailer is invalid")?;
        if position > end || end - position > DIRECTORY_BYTES_MAX {
            return Err("its trailer is invalid".to_owned());
        }
        let directory = read(position..end).map_err(|error| error.to_string())?;
        if xxh3_128(&directory) != checksum {
            return Err("the checksum of its directory does not match".to_owned());
        }
        let sections = Self::parse(&directory).ok_or("its directory is invalid")?;
        let is_inside = |(_, range): &(Vec<u8>, Range<u64>)| range.end <= position;
        if !sections.iter().all(is_inside) {
            return Err("its directory is invalid".to_owned());
        }
        Ok(Self { sections })
    }

    fn parse(directory: &[u8]) -> Option<Vec<(Vec<u8>, Range<u64>)>> {
        let mut rest = Bytes(directory.strip_prefix(DIRECTORY_MAGIC)?);
        let entries = rest.u32()?;
        let mut sections = Vec::new();
        for _ in 0..entries {
            let (position, len, name) = (rest.u64()?, rest.u64()?, rest.u16()?);
            let name = rest.take(usize::from(name))?.to_owned();
            sections.push((name, position..position.checked_add(len)?));
        }
        Some(sections)
    }

    /// The byte range of a section.
    pub(super) fn section(&self, name: &[u8]) -> Option<Range<u64>> {
        let found = self.sections.iter().find(|(of, _)| of == name);
        found.map(|(_, range)| range.clone())
    }
}

/// Bytes that are read from the front.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        self.take(LEN)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }
}
