//! Record batches of message format 2: the header, the data that can be read without decoding the
//! records, and decompression.
//!
//! The layout is that of the protocol guide's section "Record Batch". The broker keeps uncompressed
//! batches as they were sent: it reads the header, checks the checksum and rewrites two fields.

mod compression;
#[doc(hidden)]
pub mod made;

use bytes::{Buf, Bytes};

pub use compression::{Codec, decompressed_records, snappy_length, uncompressed};

/// Bytes of a batch's header, which is also the smallest batch.
pub const HEADER_BYTES: usize = 61;
/// Bytes before the part that the batch's own length counts.
const LENGTH_END: usize = 12;
/// Bytes at the front that the broker rewrites: base offset, length (kept), leader epoch.
pub const REWRITTEN_BYTES: usize = 16;
/// The first byte that the checksum covers.
const CHECKED_FROM: usize = 21;
/// There is one leader, and it never changes.
pub const LEADER_EPOCH: i32 = 0;

const ATTRIBUTE_CODEC: i16 = 0x07;
const ATTRIBUTE_TRANSACTIONAL: i16 = 0x10;
const ATTRIBUTE_CONTROL: i16 = 0x20;
const CODEC_MAX: i16 = 4;

/// The fields of a batch's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// The offset of the first record.
    pub base_offset: i64,
    /// The whole batch, header included.
    pub bytes: usize,
    /// The leader epoch; outside the checksum.
    pub leader_epoch: i32,
    /// The message format.
    pub magic: i8,
    /// The checksum of everything after it.
    pub crc: u32,
    /// The codec and flags.
    pub attributes: i16,
    /// The offset of the last record, from the first.
    pub last_offset_delta: i32,
    /// The timestamp of the first record.
    pub base_timestamp: i64,
    /// The highest timestamp.
    pub max_timestamp: i64,
    /// The idempotent producer; negative for others.
    pub producer_id: i64,
    /// The producer's epoch.
    pub producer_epoch: i16,
    /// The sequence of the first record.
    pub base_sequence: i32,
    /// The number of records.
    pub records: i32,
}

/// How many records a batch may have, however small. librdkafka sends up to so many by default.
pub const RECORDS_MAX: usize = 10_000;
/// The average size that more records must have. Each takes some 500 bytes of a reader's memory,
/// and any of Waybill's is larger than this.
pub const RECORD_BYTES_MIN: usize = 32;

/// The smallest record: a byte for its length, attributes, timestamp, offset, absent key, absent
/// value and number of headers each.
const SMALLEST_RECORD_BYTES: usize = 7;

/// Refuses a batch whose records take many times its size in a reader's memory.
///
/// # Errors
///
/// If the batch has more than [`RECORDS_MAX`] records, of less than [`RECORD_BYTES_MIN`] on
/// average.
pub fn check_records(records: usize, bytes: usize) -> Result<(), BatchError> {
    match records > RECORDS_MAX && bytes / records < RECORD_BYTES_MIN {
        true => Err(BatchError::TooManyRecords { records }),
        false => Ok(()),
    }
}

/// Refuses the records of an uncompressed batch, as [`check_records`] does. `covered` are the bytes
/// that the batch's checksum covers. Bytes that are no such batch are accepted.
///
/// # Errors
///
/// Those of [`check_records`].
pub fn check_checksummed_records(covered: &[u8]) -> Result<(), BatchError> {
    match covered.split_at_checked(HEADER_BYTES - CHECKED_FROM) {
        // Most batches are too short for so many records, which need not be counted then.
        Some(([first, second, ..], records))
            if records.len() / SMALLEST_RECORD_BYTES > RECORDS_MAX
                && i16::from_be_bytes([*first, *second]) & ATTRIBUTE_CODEC == 0 =>
        {
            check_records(count(records), records.len())
        }
        Some(_) | None => Ok(()),
    }
}

/// How many records these bytes hold, by their lengths.
fn count(mut records: &[u8]) -> usize {
    let mut count = 0;
    while let Some(length) = varint(&mut records)
        && let Some((_, rest)) = usize::try_from(length)
            .ok()
            .and_then(|length| records.split_at_checked(length))
    {
        records = rest;
        count += 1;
    }
    count
}

/// Why a batch is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// The batch is shorter than its header says.
    #[error("the batch is cut short or its length is wrong")]
    Length,
    /// More than one batch.
    #[error("more than one record batch per partition")]
    Several,
    /// Another message format.
    #[error("message format {0} is not supported; 2 is")]
    Magic(i8),
    /// The checksum does not match.
    #[error("the checksum does not match")]
    Checksum,
    /// The number of records and the offsets differ.
    #[error("the number of records does not match the offsets")]
    Count,
    /// There are more or fewer records, or they do not fill their lengths.
    #[error("the records do not match their number")]
    Records,
    /// An unknown codec.
    #[error("the compression codec is unknown")]
    Codec,
    /// The compressed bytes are damaged.
    #[error("the records cannot be decompressed")]
    Undecodable,
    /// The decompressed batch is too large.
    #[error("decompressed, the batch has more than {bytes_max} bytes")]
    Expands {
        /// The largest size.
        bytes_max: usize,
    },
    /// Too many tiny records.
    #[error(
        "the batch has {records} records, and more than {RECORDS_MAX} must have {RECORD_BYTES_MIN} bytes on average"
    )]
    TooManyRecords {
        /// Their number.
        records: usize,
    },
    /// A batch of a transaction.
    #[error("transactions are not supported")]
    Transactional,
    /// A control batch.
    #[error("clients may not write control batches")]
    Control,
    /// An invalid producer id, epoch or sequence.
    #[error("the producer id, epoch or sequence is invalid")]
    Sequence,
}

impl BatchHeader {
    /// Reads the header at the front of `bytes`; `None` if they are no header of format 2 (the
    /// rest of the batch need not be there).
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut header = bytes.get(..HEADER_BYTES)?;
        let base_offset = header.get_i64();
        let length = header.get_i32();
        let leader_epoch = header.get_i32();
        let header = Self {
            base_offset,
            bytes: usize::try_from(length).ok()?.checked_add(LENGTH_END)?,
            leader_epoch,
            magic: header.get_i8(),
            crc: header.get_u32(),
            attributes: header.get_i16(),
            last_offset_delta: header.get_i32(),
            base_timestamp: header.get_i64(),
            max_timestamp: header.get_i64(),
            producer_id: header.get_i64(),
            producer_epoch: header.get_i16(),
            base_sequence: header.get_i32(),
            records: header.get_i32(),
        };
        (header.bytes >= HEADER_BYTES).then_some(header)
    }

    /// Reads and checks the data that a producer sent for one partition: exactly one whole batch.
    ///
    /// # Errors
    ///
    /// If it is anything else, or is a batch that the broker does not keep.
    pub fn of_produced(bytes: &[u8]) -> Result<Self, BatchError> {
        // All formats have their number in the same place.
        if let Some(&magic) = bytes.get(REWRITTEN_BYTES)
            && magic != 2
        {
            return Err(BatchError::Magic(i8::from_be_bytes([magic])));
        }
        let header = Self::read(bytes).ok_or(BatchError::Length)?;
        match header.bytes.cmp(&bytes.len()) {
            std::cmp::Ordering::Greater => return Err(BatchError::Length),
            std::cmp::Ordering::Less => return Err(BatchError::Several),
            std::cmp::Ordering::Equal => {}
        }
        if !header.is_intact(bytes) {
            return Err(BatchError::Checksum);
        }
        if header.records < 1 || header.last_offset_delta != header.records - 1 {
            return Err(BatchError::Count);
        }
        if header.attributes & ATTRIBUTE_CODEC > CODEC_MAX {
            return Err(BatchError::Codec);
        }
        if !header.is_compressed() {
            if !header.counts_records(bytes) {
                return Err(BatchError::Records);
            }
            check_records(header.records as usize, bytes.len())?;
        }
        if header.attributes & ATTRIBUTE_CONTROL != 0 {
            return Err(BatchError::Control);
        }
        if header.attributes & ATTRIBUTE_TRANSACTIONAL != 0 {
            return Err(BatchError::Transactional);
        }
        if header.is_idempotent() && (header.producer_epoch < 0 || header.base_sequence < 0) {
            return Err(BatchError::Sequence);
        }
        Ok(header)
    }

    /// Whether the checksum of the whole batch `bytes` matches.
    pub fn is_intact(&self, bytes: &[u8]) -> bool {
        bytes
            .get(CHECKED_FROM..self.bytes)
            .is_some_and(|checked| crc32c::crc32c(checked) == self.crc)
    }

    /// Whether this is the header of a batch that the broker stored at `base_offset`, judged by the
    /// fields outside the checksum.
    pub fn is_stored_at(&self, base_offset: i64) -> bool {
        self.magic == 2
            && self.leader_epoch == LEADER_EPOCH
            && self.base_offset == base_offset
            && self.last_offset().is_some_and(|last| last < i64::MAX)
    }

    /// Whether the records of the uncompressed batch `bytes` are as many as the header says, with
    /// offsets that rise by one, and end where the batch does; and whether their keys, values and
    /// headers fill each of them exactly, so that every client can read them.
    fn counts_records(&self, bytes: &[u8]) -> bool {
        let Some(mut left) = bytes.get(HEADER_BYTES..self.bytes) else {
            return false;
        };
        for number in 0..self.records {
            let Some(length) = varint(&mut left) else {
                return false;
            };
            let Some((record, rest)) = usize::try_from(length)
                .ok()
                .and_then(|length| left.split_at_checked(length))
            else {
                return false;
            };
            if whole_record(record) != Some(i64::from(number)) {
                return false;
            }
            left = rest;
        }
        left.is_empty()
    }

    /// The offset of the batch's last record; `None` if the header makes no sense.
    pub fn last_offset(&self) -> Option<i64> {
        if self.last_offset_delta < 0 || self.base_offset < 0 {
            return None;
        }
        self.base_offset
            .checked_add(i64::from(self.last_offset_delta))
    }

    /// Whether the batch carries a producer's sequence.
    pub fn is_idempotent(&self) -> bool {
        self.producer_id >= 0
    }

    /// The sequence of the batch's last record.
    pub fn last_sequence(&self) -> i32 {
        sequence_after(self.base_sequence, self.last_offset_delta)
    }

    /// Whether the records are compressed.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.codec() != 0
    }

    /// The number of the codec; 0 for none.
    pub fn codec(&self) -> i16 {
        self.attributes & ATTRIBUTE_CODEC
    }

    /// Updates the header in front of the decompressed records in `batch`, and returns it.
    fn rewritten_uncompressed(&self, batch: &mut [u8]) -> Result<Self, BatchError> {
        let length = i32::try_from(batch.len() - LENGTH_END).map_err(|_| BatchError::Length)?;
        let attributes = self.attributes & !ATTRIBUTE_CODEC;
        batch[8..LENGTH_END].copy_from_slice(&length.to_be_bytes());
        batch[CHECKED_FROM..CHECKED_FROM + 2].copy_from_slice(&attributes.to_be_bytes());
        let crc = crc32c::crc32c(&batch[CHECKED_FROM..]);
        batch[CHECKED_FROM - 4..CHECKED_FROM].copy_from_slice(&crc.to_be_bytes());
        let header = Self {
            bytes: batch.len(),
            attributes,
            crc,
            ..*self
        };
        match header.counts_records(batch) {
            true => Ok(header),
            false => Err(BatchError::Records),
        }
    }
}

/// The offset of a record within its batch; `None` if its parts do not fill it exactly. (The
/// protocol guide's section "Record": attributes, timestamp, offset, key, value, and headers, of
/// which only keys must be there.)
fn whole_record(record: &[u8]) -> Option<i64> {
    let mut left = record.get(1..)?;
    let _timestamp = varint(&mut left)?;
    let offset = varint(&mut left)?;
    let (_key, _value) = (skip_optional(&mut left)?, skip_optional(&mut left)?);
    let headers = varint(&mut left)?;
    if headers < 0 {
        return None;
    }
    for _ in 0..headers {
        let has_key = skip_optional(&mut left)?;
        let _value = has_key.then(|| skip_optional(&mut left))??;
    }
    left.is_empty().then_some(offset)
}

/// Skips bytes that follow their length, or are absent (-1). Returns whether they are there.
fn skip_optional(left: &mut &[u8]) -> Option<bool> {
    let length = varint(left)?;
    if length == -1 {
        return Some(false);
    }
    *left = left.get(usize::try_from(length).ok()?..)?;
    Some(true)
}

/// Sequences count from 0 to `i32::MAX` and begin again.
pub fn sequence_after(sequence: i32, count: i32) -> i32 {
    (sequence.wrapping_add(count)) & i32::MAX
}

/// The front of a batch as it is stored at `base_offset`.
pub fn rewritten(batch: &[u8], base_offset: i64) -> [u8; REWRITTEN_BYTES] {
    let mut front = [0; REWRITTEN_BYTES];
    front[..8].copy_from_slice(&base_offset.to_be_bytes());
    front[8..12].copy_from_slice(&batch[8..12]);
    front[12..].copy_from_slice(&LEADER_EPOCH.to_be_bytes());
    front
}

/// The offset and timestamp of the first record of `batch` at or after `timestamp`.
///
/// The records of a compressed batch are not decoded: the whole batch counts as its first record,
/// which is never later than the right answer.
pub fn first_at(batch: &Bytes, timestamp: i64) -> Option<(i64, i64)> {
    let header = BatchHeader::read(batch)?;
    if header.max_timestamp < timestamp {
        return None;
    }
    if header.is_compressed() {
        return Some((header.base_offset, header.base_timestamp));
    }
    let mut records = batch.get(HEADER_BYTES..header.bytes)?;
    for _ in 0..header.records {
        let length = usize::try_from(varint(&mut records)?).ok()?;
        let mut record = records.get(..length)?;
        records = &records[length..];
        record = record.get(1..)?;
        let at = header.base_timestamp.checked_add(varint(&mut record)?)?;
        let delta = varint(&mut record)?;
        if at >= timestamp {
            return Some((header.base_offset.checked_add(delta)?, at));
        }
    }
    None
}

/// A batch without records that replaces those from `first` to `last`, as in a compacted log:
/// readers continue after it.
///
/// `last - first` must be no more than `i32::MAX`.
pub fn filler(first: i64, last: i64) -> [u8; HEADER_BYTES] {
    let mut batch = [0; HEADER_BYTES];
    let mut put = |at: usize, bytes: &[u8]| batch[at..at + bytes.len()].copy_from_slice(bytes);
    let length = (HEADER_BYTES - LENGTH_END) as i32;
    let delta = i32::try_from(last - first).unwrap_or(i32::MAX);
    put(0, &first.to_be_bytes());
    put(8, &length.to_be_bytes());
    put(12, &LEADER_EPOCH.to_be_bytes());
    put(16, &[2]);
    put(23, &delta.to_be_bytes());
    // No timestamps, no producer.
    put(27, &(-1_i64).to_be_bytes());
    put(35, &(-1_i64).to_be_bytes());
    put(43, &(-1_i64).to_be_bytes());
    put(51, &(-1_i16).to_be_bytes());
    put(53, &(-1_i32).to_be_bytes());
    let sum = crc32c::crc32c(&batch[CHECKED_FROM..]);
    batch[17..CHECKED_FROM].copy_from_slice(&sum.to_be_bytes());
    batch
}

/// A zigzag variable-length number, at most 10 bytes. Most have one byte or two.
fn varint(bytes: &mut &[u8]) -> Option<i64> {
    let (value, rest) = match **bytes {
        [first @ ..0x80, ref rest @ ..] => (u16::from(first), rest),
        [first, second @ ..0x80, ref rest @ ..] => {
            (u16::from(first & 0x7f) | u16::from(second) << 7, rest)
        }
        _ => return long_varint(bytes),
    };
    *bytes = rest;
    Some(i64::from(value >> 1) ^ -i64::from(value & 1))
}

fn long_varint(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}

#[cfg(test)]
mod tests;
