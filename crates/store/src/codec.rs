//! How the stores' values look as bytes.
//!
//! Every value begins with the number of its format, so that a newer program can read what an
//! older one wrote, and an older one refuses what it does not know. Stamp and expiry stand in front
//! of the body, big-endian. Bodies are postcard.
//!
//! A value of which any part cannot be read counts as unreadable as a whole: a stamp in front of a
//! broken body is not trusted, since a wrong one that is too high would keep every later write out.
//!
//! ```text
//! state    format u8 = 8 · stamp i64 · expires at i64 (i64::MAX: never) · OperationState · CRC-32C u32
//! created  format u8 = 8 · stamp i64 · Created · CRC-32C u32
//! lease    format u8 = 4 · Lease              or 3, of before there were layouts;
//!                    = 5 · Lease · HighPriority  once the topic of high-priority requests was read, or its ID is known
//!                    = 8 · Lease · HighPriority  of a shard that nobody has run yet
//! layout   format u8 = 6 · Layout             or 4, of one number of partitions;
//!                    = 7 · Layout · offsets   of high-priority requests, once it holds any
//! cursor   format u8 = 8 · bucket i64
//! secret   format u8 = 8 · ReplyKey (32 bytes) · CRC-32C u32
//! ```
//!
//! Where the database itself keeps stamp and expiry of a value (CQL), it is written bare:
//!
//! ```text
//! state, created    format u8 = 8 · OperationState, Created · CRC-32C u32
//! lease, layout, secret  as above
//! ```
//!
//! The checksum of a row's values is over all bytes before it, big-endian, and is verified whenever a value is
//! read: a byte that changed makes a row that cannot be read, and never another row.
//!
//! What is known of high-priority requests stands behind the rest, and only where there is any: before the first of
//! them a version that does not know of them reads what this one has written, and from then on it refuses to run
//! what it would lose half of.
//!
//! What must hold: reading never panics, whatever the bytes, nor does what is read later on: a
//! sharding scheme without shards, or with too many to count, is refused here. The golden bytes in the tests
//! change only together with the format's number.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use waybill_engine::{
    ByPriority, Created, Epoch, Offset, OperationState, OwnerId, PartitionId, ShardId,
    ShardingScheme, Stamp, Timestamp,
};

use crate::due::DueBucket;
use crate::layout::{Layout, LayoutGeneration};
use crate::lease::{Checkpoint, Lease, LeaseKey, LeaseRole};
use crate::reply_key::ReplyKey;

/// The format that this program writes, and the only one that it reads, but for leases and layouts.
const FORMAT: u8 = 8;

/// The format of leases of before there were layouts.
const LEASE_FORMAT_3: u8 = 3;

/// The value of a part of a row that lay in a damaged block when the store was made anew.
pub(crate) const LOST: [u8; 1] = [0];

/// How long the checksum at the end of a row's value is.
const CHECKSUM_BYTES: usize = 4;

/// The format of leases of shards that have read no high-priority requests.
const LEASE_FORMAT: u8 = 4;

/// The format of all others.
const LEASE_FORMAT_WITH_HIGH_PRIORITY: u8 = 5;

/// The format of leases of shards that nobody has run: their checkpoint says nothing.
const LEASE_FORMAT_UNBEGUN: u8 = 8;

/// The format of layouts of before the number of partitions could change: those before, and the sharding scheme in
/// force.
const FORMAT_4: u8 = 4;

/// The format of layouts whose offsets all lie at the beginning of the high-priority requests.
const LAYOUT_FORMAT: u8 = 6;

/// The format of all others.
const LAYOUT_FORMAT_WITH_HIGH_PRIORITY: u8 = 7;

/// The expiry of a row that is kept for good.
const NEVER: Timestamp = Timestamp(i64::MAX);

/// Why a stored value cannot be read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("it is empty")]
    Empty,
    #[error("it has format {0}, which this program does not know here")]
    UnknownFormat(u8),
    #[error("it was in a damaged block when the store was rebuilt")]
    Lost,
    #[error("it ends early, after {0} bytes")]
    Short(usize),
    #[error(
        "its checksum is {found:08x}, and {written:08x} was written with it: bytes of it have changed"
    )]
    Checksum { written: u32, found: u32 },
    #[error("its body does not decode: {0}")]
    Body(postcard::Error),
    #[error("{0} bytes follow its end")]
    Trailing(usize),
    #[error("the sharding scheme is impossible: {0}")]
    ShardingScheme(ShardingScheme),
    #[error("it has {0} places of high-priority requests, and another number of others")]
    OffsetCount(usize),
}

/// What stands in front of a state's body.
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
        let high = HighPriority::of(lease);
        if lease.key.role == LeaseRole::Scheduler && !lease.is_begun {
            self.start_as(LEASE_FORMAT_UNBEGUN);
            return self.body(&(lease, high));
        }
        if high.is_at_the_beginning() {
            self.start_as(LEASE_FORMAT);
            return self.body(lease);
        }
        self.start_as(LEASE_FORMAT_WITH_HIGH_PRIORITY);
        self.body(&(lease, high))
    }

    /// A layout.
    pub(crate) fn layout(&mut self, layout: &Layout) -> &[u8] {
        let high: Vec<Offset> = layout.offsets().map(|at| at.high_priority).collect();
        if high.iter().all(|at| *at == Offset(0)) {
            self.start_as(LAYOUT_FORMAT);
            return self.body(layout);
        }
        self.start_as(LAYOUT_FORMAT_WITH_HIGH_PRIORITY);
        self.body(&(layout, high))
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

    /// A value of a row of which the database itself keeps stamp and expiry.
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
        self.start_as(FORMAT);
    }

    fn start_as(&mut self, format: u8) {
        self.buffer.clear();
        self.buffer.push(format);
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
    let mut reader = Reader::of_row(bytes)?;
    Ok((reader.state_header()?, reader.body()?))
}

/// Reads an immutable part with its stamp.
pub(crate) fn created(bytes: &[u8]) -> Result<(Stamp, Created), Malformed> {
    let mut reader = Reader::of_row(bytes)?;
    Ok((Stamp(reader.number()?), reader.body()?))
}

/// Reads a lease, also one that was written before there were layouts: it is of the first one.
pub(crate) fn lease(bytes: &[u8]) -> Result<Lease, Malformed> {
    if bytes.first() == Some(&LEASE_FORMAT_3) {
        return Reader::of(LEASE_FORMAT_3, bytes)?
            .body()
            .map(Format3Lease::read);
    }
    let mut lease: Lease = match bytes.first() {
        Some(&format @ (LEASE_FORMAT_WITH_HIGH_PRIORITY | LEASE_FORMAT_UNBEGUN)) => {
            let (lease, high): (Lease, HighPriority) = Reader::of(format, bytes)?.body()?;
            high.put_into(lease)?
        }
        _ => Reader::of(LEASE_FORMAT, bytes)?.body()?,
    };
    lease.is_begun =
        lease.key.role == LeaseRole::Scheduler && bytes.first() != Some(&LEASE_FORMAT_UNBEGUN);
    for resume in lease.handover.resume_offsets() {
        check_scheme(resume.scheme)?;
    }
    Ok(lease)
}

/// Reads a layout, also one that was written when the number of partitions could not change.
pub(crate) fn layout(bytes: &[u8]) -> Result<Layout, Malformed> {
    let layout: Layout = match bytes.first() {
        Some(&FORMAT_4) => {
            let (past, scheme) = Reader::of(FORMAT_4, bytes)?.body()?;
            Layout::of_one_number(past, scheme)
        }
        Some(&LAYOUT_FORMAT_WITH_HIGH_PRIORITY) => {
            let (mut layout, high): (Layout, Vec<Offset>) =
                Reader::of(LAYOUT_FORMAT_WITH_HIGH_PRIORITY, bytes)?.body()?;
            if high.len() != layout.offsets().count() {
                return Err(Malformed::OffsetCount(high.len()));
            }
            for (at, high) in layout.offsets_mut().zip(high) {
                at.high_priority = high;
            }
            layout
        }
        _ => Reader::of(LAYOUT_FORMAT, bytes)?.body()?,
    };
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

/// What a lease says of high-priority requests.
#[derive(Serialize, serde::Deserialize)]
struct HighPriority {
    checkpoint: Offset,
    fingerprint: Option<u64>,
    consumed: Offset,
    /// Of each of those in its handover, in order.
    resume: Vec<Offset>,
}

impl HighPriority {
    fn of(lease: &Lease) -> Self {
        let resume = lease.handover.resume_offsets().iter();
        Self {
            checkpoint: lease.checkpoint.at.high_priority,
            fingerprint: lease.checkpoint.fingerprints.high,
            consumed: lease.consumed.high,
            resume: resume.map(|resume| resume.at.high_priority).collect(),
        }
    }

    /// Whether nobody has read any.
    fn is_at_the_beginning(&self) -> bool {
        let nowhere = Offset(0);
        self.checkpoint == nowhere
            && self.fingerprint.is_none()
            && self.consumed == nowhere
            && self.resume.iter().all(|at| *at == nowhere)
    }

    fn put_into(self, mut lease: Lease) -> Result<Lease, Malformed> {
        if self.resume.len() != lease.handover.resume_offsets().len() {
            return Err(Malformed::OffsetCount(self.resume.len()));
        }
        lease.checkpoint.at.high_priority = self.checkpoint;
        lease.checkpoint.fingerprints.high = self.fingerprint;
        lease.consumed.high = self.consumed;
        for (resume, at) in lease
            .handover
            .resume_offsets_mut()
            .iter_mut()
            .zip(self.resume)
        {
            resume.at.high_priority = at;
        }
        Ok(lease)
    }
}

/// A lease of format 3.
#[derive(serde::Deserialize)]
struct Format3Lease {
    role: LeaseRole,
    partition: PartitionId,
    owner: Option<OwnerId>,
    epoch: Epoch,
    renewal: u64,
    duration: Duration,
    stamp_limit: Stamp,
    checkpoint: Checkpoint,
    consumed: Offset,
}

impl Format3Lease {
    fn read(self) -> Lease {
        let key = match self.role {
            LeaseRole::Scheduler => {
                LeaseKey::scheduler(LayoutGeneration(0), ShardId(self.partition.0))
            }
            LeaseRole::Supervisor => LeaseKey::supervisor(self.partition),
        };
        Lease {
            owner: self.owner,
            epoch: self.epoch,
            renewal: self.renewal,
            duration: self.duration,
            stamp_limit: self.stamp_limit,
            checkpoint: self.checkpoint,
            consumed: ByPriority {
                normal: self.consumed,
                high: Offset(0),
            },
            is_begun: self.role == LeaseRole::Scheduler,
            ..Lease::new(key, self.partition)
        }
    }
}

/// Reads a value of a row of which the database itself keeps stamp and expiry.
pub(crate) fn bare<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    Reader::of_row(bytes)?.body()
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
    let mut reader = Reader::of_row(bytes)?;
    let (key, rest) = reader
        .rest
        .split_first_chunk()
        .ok_or(Malformed::Short(reader.len))?;
    reader.rest = rest;
    reader.end()?;
    Ok(ReplyKey::new(*key))
}

/// What is left to read of a value whose format is known.
struct Reader<'a> {
    len: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::of(FORMAT, bytes)
    }

    /// Of a row's value, whose checksum is right.
    fn of_row(bytes: &'a [u8]) -> Result<Self, Malformed> {
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

    fn of(known: u8, bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes {
            [] => Err(Malformed::Empty),
            lost if lost == LOST => Err(Malformed::Lost),
            [format, rest @ ..] if *format == known => Ok(Self {
                len: bytes.len(),
                rest,
            }),
            [format, ..] => Err(Malformed::UnknownFormat(*format)),
        }
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
