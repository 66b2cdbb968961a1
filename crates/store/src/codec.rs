//! The byte format of the stores' values.
//!
//! Every value begins with the number of its format, so that a newer program can read values that
//! an older one wrote, and an older one refuses a format that it does not know. Stamp and expiry
//! precede the body, big-endian. Bodies are postcard.
//!
//! A value counts as unreadable as a whole if any part of it is. The stamp of a broken body is not
//! trusted, since a stamp that is wrong and too high would block every later write.
//!
//! ```text
//! state    format u8 = 1 · stamp i64 · expires at i64 (i64::MAX: never) · OperationState · CRC-32C u32
//! created  format u8 = 1 · stamp i64 · Created · CRC-32C u32
//! lease    format u8 = 1 · Lease · CRC-32C u32
//! layout   format u8 = 1 · Layout · CRC-32C u32
//! cursor   format u8 = 1 · bucket i64
//! secret   format u8 = 1 · ReplyKey (32 bytes) · CRC-32C u32
//! ```
//!
//! If the database itself keeps stamp and expiry of a value (CQL), the value is written bare:
//!
//! ```text
//! state, created    format u8 = 1 · OperationState, Created · CRC-32C u32
//! lease, layout, secret  as above
//! ```
//!
//! The checksum covers all bytes before it, is big-endian, and is verified at every read. A changed
//! byte makes a value unreadable, and never turns it into another one.
//!
//! What must hold: reading never panics, whatever the bytes, and neither does later use of the
//! result: a sharding scheme without shards, or with too many to count, is refused here. The golden
//! bytes in the tests change only together with the format's number.

use serde::Serialize;
use serde::de::DeserializeOwned;
use waybill_engine::{Created, OperationState, ShardingScheme, Stamp, Timestamp};

use crate::reply_key::ReplyKey;
use crate::{DueBucket, Layout, LayoutGeneration, Lease};

/// The format that this program writes, and the only one that it reads.
const FORMAT: u8 = 1;

/// The value of a row's part that was in a damaged block when the store was rebuilt.
pub(crate) const LOST: [u8; 1] = [0];

/// How long the checksum at the end of a value is.
const CHECKSUM_BYTES: usize = 4;

/// The expiry of a row that is kept for good.
const NEVER: Timestamp = Timestamp(i64::MAX);

/// Why a stored value cannot be read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("it is empty")]
    Empty,
    #[error("it has format {0}, which this program does not support")]
    UnknownFormat(u8),
    #[error("it was in a damaged block when the store was rebuilt")]
    Lost,
    #[error("it ends early, after {0} bytes")]
    Short(usize),
    #[error(
        "its checksum is {found:08x}, but {written:08x} was stored with it: the value has changed"
    )]
    Checksum { written: u32, found: u32 },
    #[error("its body cannot be decoded: {0}")]
    Body(postcard::Error),
    #[error("{0} bytes follow its end")]
    Trailing(usize),
    #[error("its sharding scheme is invalid: {0}")]
    ShardingScheme(ShardingScheme),
}

/// The fields in front of a state's body.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct StateHeader {
    /// The stamp of the write.
    pub(crate) stamp: Stamp,
    /// When the row's retention ends; `None` if it is kept for good.
    pub(crate) expires_at: Option<Timestamp>,
}

impl StateHeader {
    /// Whether the row's retention has passed.
    pub(crate) fn has_expired(self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// Turns values into bytes, in a buffer that is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    buffer: Vec<u8>,
}

impl Encoder {
    /// The value of the `state` keyspace.
    pub(crate) fn state(&mut self, header: StateHeader, state: &OperationState) -> &[u8] {
        self.start();
        self.number(header.stamp.0);
        self.number(header.expires_at.unwrap_or(NEVER).0);
        self.body(state);
        self.checksum()
    }

    /// The value of the `created` keyspace.
    pub(crate) fn created(&mut self, stamp: Stamp, created: &Created) -> &[u8] {
        self.start();
        self.number(stamp.0);
        self.body(created);
        self.checksum()
    }

    /// A lease.
    pub(crate) fn lease(&mut self, lease: &Lease) -> &[u8] {
        self.bare(lease)
    }

    /// A layout.
    pub(crate) fn layout(&mut self, layout: &Layout) -> &[u8] {
        self.bare(layout)
    }

    /// The value of the `cursors` keyspace.
    pub(crate) fn cursor(&mut self, cursor: DueBucket) -> &[u8] {
        self.start();
        self.number(cursor.0);
        &self.buffer
    }

    /// The time of retention, in the `leases` keyspace.
    pub(crate) fn retention(&mut self, now: Timestamp) -> &[u8] {
        self.start();
        self.number(now.0);
        &self.buffer
    }

    /// The reply key.
    pub(crate) fn reply_key(&mut self, key: &ReplyKey) -> &[u8] {
        self.start();
        self.buffer.extend_from_slice(key.reveal());
        self.checksum()
    }

    /// Writes a value without stamp and expiry: the database keeps those of rows itself.
    pub(crate) fn bare(&mut self, value: &impl Serialize) -> &[u8] {
        self.start();
        self.body(value);
        self.checksum()
    }

    fn checksum(&mut self) -> &[u8] {
        let checksum = crc32c::crc32c(&self.buffer);
        self.buffer.extend_from_slice(&checksum.to_be_bytes());
        &self.buffer
    }

    fn start(&mut self) {
        self.buffer.clear();
        self.buffer.push(FORMAT);
    }

    fn number(&mut self, number: i64) {
        self.buffer.extend_from_slice(&number.to_be_bytes());
    }

    fn body(&mut self, value: &impl Serialize) -> &[u8] {
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = postcard::to_extend(value, buffer)
            .expect("every length in these types is known, and a vector takes any number of bytes");
        &self.buffer
    }
}

/// Reads a state with its header.
pub(crate) fn state(bytes: &[u8]) -> Result<(StateHeader, OperationState), Malformed> {
    let mut reader = Reader::with_checksum(bytes)?;
    Ok((reader.state_header()?, reader.body()?))
}

/// Reads an immutable part with its stamp.
pub(crate) fn created(bytes: &[u8]) -> Result<(Stamp, Created), Malformed> {
    let mut reader = Reader::with_checksum(bytes)?;
    Ok((Stamp(reader.number()?), reader.body()?))
}

/// Reads a lease.
pub(crate) fn lease(bytes: &[u8]) -> Result<Lease, Malformed> {
    let lease: Lease = bare(bytes)?;
    for resume in lease.handover.resume_offsets() {
        check_scheme(resume.scheme)?;
    }
    Ok(lease)
}

/// Reads a layout.
pub(crate) fn layout(bytes: &[u8]) -> Result<Layout, Malformed> {
    let layout: Layout = bare(bytes)?;
    let generations = (0..=layout.generation().0).map(LayoutGeneration);
    for scheme in generations.filter_map(|generation| layout.of(generation)) {
        check_scheme(scheme)?;
    }
    for partitions in layout.numbers() {
        check_scheme(ShardingScheme::one_each(partitions))?;
    }
    Ok(layout)
}

/// Refuses a sharding scheme whose number of shards is zero or overflows.
fn check_scheme(scheme: ShardingScheme) -> Result<(), Malformed> {
    let shards = scheme.partitions.checked_mul(scheme.shards_per_partition);
    match shards {
        None | Some(0) => Err(Malformed::ShardingScheme(scheme)),
        Some(_) => Ok(()),
    }
}

/// Reads a value without stamp and expiry.
pub(crate) fn bare<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    Reader::with_checksum(bytes)?.body()
}

/// Reads a sweep cursor.
pub(crate) fn cursor(bytes: &[u8]) -> Result<DueBucket, Malformed> {
    let mut reader = Reader::new(bytes)?;
    let cursor = DueBucket(reader.number()?);
    reader.end()?;
    Ok(cursor)
}

pub(crate) fn retention(bytes: &[u8]) -> Result<Timestamp, Malformed> {
    let mut reader = Reader::new(bytes)?;
    let now = Timestamp(reader.number()?);
    reader.end()?;
    Ok(now)
}

/// Reads the reply key.
pub(crate) fn reply_key(bytes: &[u8]) -> Result<ReplyKey, Malformed> {
    let mut reader = Reader::with_checksum(bytes)?;
    let (key, rest) = reader
        .rest
        .split_first_chunk()
        .ok_or(Malformed::Short(reader.len))?;
    reader.rest = rest;
    reader.end()?;
    Ok(ReplyKey::new(*key))
}

/// The unread rest of a value whose format is known.
struct Reader<'a> {
    len: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes {
            [] => Err(Malformed::Empty),
            lost if lost == LOST => Err(Malformed::Lost),
            [FORMAT, rest @ ..] => Ok(Self {
                len: bytes.len(),
                rest,
            }),
            [format, ..] => Err(Malformed::UnknownFormat(*format)),
        }
    }

    /// Verifies the checksum of a value, and reads the rest.
    fn with_checksum(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Self::new(bytes)?;
        let (rest, written) = reader
            .rest
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or(Malformed::Short(reader.len))?;
        let written = u32::from_be_bytes(*written);
        let found = crc32c::crc32c(&bytes[..bytes.len() - CHECKSUM_BYTES]);
        if found != written {
            return Err(Malformed::Checksum { written, found });
        }
        reader.rest = rest;
        Ok(reader)
    }

    fn state_header(&mut self) -> Result<StateHeader, Malformed> {
        let stamp = Stamp(self.number()?);
        let expires_at = Timestamp(self.number()?);
        Ok(StateHeader {
            stamp,
            expires_at: (expires_at != NEVER).then_some(expires_at),
        })
    }

    fn number(&mut self) -> Result<i64, Malformed> {
        let (number, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(Malformed::Short(self.len))?;
        self.rest = rest;
        Ok(i64::from_be_bytes(*number))
    }

    fn body<T: DeserializeOwned>(mut self) -> Result<T, Malformed> {
        let (value, rest) = postcard::take_from_bytes(self.rest).map_err(Malformed::Body)?;
        self.rest = rest;
        self.end()?;
        Ok(value)
    }

    fn end(&self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            trailing => Err(Malformed::Trailing(trailing)),
        }
    }
}

#[cfg(test)]
mod tests;
