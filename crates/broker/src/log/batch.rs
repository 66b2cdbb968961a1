//! The header of a record batch of message format 2, and what can be read without decoding its
//! records.
//!
//! The layout is that of the protocol guide's section "Record Batch". The broker keeps uncompressed batches as
//! they were sent: it reads the header, checks the checksum and rewrites two fields.

use bytes::{Buf, Bytes};

/// Bytes of a batch's header, which is also the smallest batch.
pub(crate) const HEADER_BYTES: usize = 61;
/// Bytes before the part that the batch's own length counts.
const LENGTH_END: usize = 12;
/// Bytes at the front that the broker rewrites: base offset, length (kept), leader epoch.
pub(crate) const REWRITTEN_BYTES: usize = 16;
/// The first byte that the checksum covers.
const CHECKED_FROM: usize = 21;
/// There is one leader, and it never changes.
pub(crate) const LEADER_EPOCH: i32 = 0;

const ATTRIBUTE_CODEC: i16 = 0x07;
const ATTRIBUTE_TRANSACTIONAL: i16 = 0x10;
const ATTRIBUTE_CONTROL: i16 = 0x20;
const CODEC_MAX: i16 = 4;

/// The fields of a batch's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchHeader {
    pub(crate) base_offset: i64,
    /// The whole batch, header included.
    pub(crate) bytes: usize,
    pub(crate) leader_epoch: i32,
    pub(crate) magic: i8,
    pub(crate) crc: u32,
    pub(crate) attributes: i16,
    pub(crate) last_offset_delta: i32,
    pub(crate) base_timestamp: i64,
    pub(crate) max_timestamp: i64,
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) base_sequence: i32,
    pub(crate) records: i32,
}

/// Why a batch is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BatchError {
    #[error("the batch is cut short or its length is wrong")]
    Length,
    #[error("more than one record batch per partition")]
    Several,
    #[error("message format {0} is not supported; 2 is")]
    Magic(i8),
    #[error("the checksum does not match")]
    Checksum,
    #[error("the number of records does not match the offsets")]
    Count,
    #[error("the records do not match their number")]
    Records,
    #[error("the compression codec is unknown")]
    Codec,
    #[error("the records cannot be decompressed")]
    Undecodable,
    #[error(
        "decompressed, the batch has more than {bytes_max} bytes, the topic's max.message.bytes"
    )]
    Expands { bytes_max: usize },
    #[error("transactions are not supported")]
    Transactional,
    #[error("clients may not write control batches")]
    Control,
    #[error("the producer id, epoch or sequence is invalid")]
    Sequence,
}

impl BatchHeader {
    /// Reads the header at the front of `bytes`; `None` if they are no header of format 2 (the
    /// rest of the batch need not be there).
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
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

    /// Reads and checks what a producer sent for one partition: exactly one whole batch.
    pub(crate) fn of_produced(bytes: &[u8]) -> Result<Self, BatchError> {
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
        if !header.is_compressed() && !header.counts_records(bytes) {
            return Err(BatchError::Records);
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
    pub(crate) fn is_intact(&self, bytes: &[u8]) -> bool {
        bytes
            .get(CHECKED_FROM..self.bytes)
            .is_some_and(|checked| crc32c::crc32c(checked) == self.crc)
    }

    /// Whether this is the header of a batch that the broker stored at `base_offset`, judged by the
    /// fields outside the checksum.
    pub(crate) fn is_stored_at(&self, base_offset: i64) -> bool {
        self.magic == 2
            && self.leader_epoch == LEADER_EPOCH
            && self.base_offset == base_offset
            && self.last_offset().is_some_and(|last| last < i64::MAX)
    }

    /// Whether the records of the uncompressed batch `bytes` are as many as the header says, with offsets that rise
    /// by one, and end where the batch does; and whether their keys, values and headers fill each of them exactly, so
    /// that every client can read them.
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
    pub(crate) fn last_offset(&self) -> Option<i64> {
        if self.last_offset_delta < 0 || self.base_offset < 0 {
            return None;
        }
        self.base_offset
            .checked_add(i64::from(self.last_offset_delta))
    }

    /// Whether the batch carries a producer's sequence.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.producer_id >= 0
    }

    /// The sequence of the batch's last record.
    pub(crate) fn last_sequence(&self) -> i32 {
        sequence_after(self.base_sequence, self.last_offset_delta)
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.codec() != 0
    }

    /// The number of the codec; 0 for none.
    pub(crate) fn codec(&self) -> i16 {
        self.attributes & ATTRIBUTE_CODEC
    }

    /// Updates the header in front of the decompressed records in `batch`, and returns it.
    pub(crate) fn rewritten_uncompressed(&self, batch: &mut [u8]) -> Result<Self, BatchError> {
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

/// The offset of a record within its batch; `None` if its parts do not fill it exactly. (The protocol guide's section
/// "Record": attributes, timestamp, offset, key, value, and headers, of which only keys have to be there.)
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
pub(crate) fn sequence_after(sequence: i32, count: i32) -> i32 {
    (sequence.wrapping_add(count)) & i32::MAX
}

/// The front of a batch as it is stored at `base_offset`.
pub(crate) fn rewritten(batch: &[u8], base_offset: i64) -> [u8; REWRITTEN_BYTES] {
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
pub(crate) fn first_at(batch: &Bytes, timestamp: i64) -> Option<(i64, i64)> {
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
/// readers continue behind it.
///
/// `last - first` must be no more than `i32::MAX`.
pub(crate) fn filler(first: i64, last: i64) -> [u8; HEADER_BYTES] {
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
pub(crate) mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;

    /// A batch of `timestamps.len()` small records, as an idempotent producer would send it.
    pub(crate) fn batch(producer: i64, epoch: i16, sequence: i32, timestamps: &[i64]) -> Bytes {
        let base = timestamps[0];
        let mut records = BytesMut::new();
        for (index, at) in timestamps.iter().enumerate() {
            let mut record = vec![0_u8];
            put_varint(&mut record, at - base);
            put_varint(&mut record, index as i64);
            put_varint(&mut record, -1);
            put_varint(&mut record, 3);
            record.extend_from_slice(b"abc");
            put_varint(&mut record, 0);
            let mut length = Vec::new();
            put_varint(&mut length, record.len() as i64);
            records.put_slice(&length);
            records.put_slice(&record);
        }
        let mut checked = BytesMut::new();
        checked.put_i16(0);
        checked.put_i32(timestamps.len() as i32 - 1);
        checked.put_i64(base);
        checked.put_i64(*timestamps.iter().max().unwrap());
        checked.put_i64(producer);
        checked.put_i16(epoch);
        checked.put_i32(sequence);
        checked.put_i32(timestamps.len() as i32);
        checked.put_slice(&records);
        let mut batch = BytesMut::new();
        batch.put_i64(0);
        batch.put_i32((checked.len() + 9) as i32);
        batch.put_i32(-1);
        batch.put_i8(2);
        batch.put_u32(crc32c::crc32c(&checked));
        batch.put_slice(&checked);
        batch.freeze()
    }

    /// `batch` with these bytes in the place of its records, as if they were compressed by `codec`.
    pub(crate) fn compressed_with(batch: &Bytes, codec: i16, records: &[u8]) -> Bytes {
        let mut out = batch[..HEADER_BYTES].to_vec();
        out.extend_from_slice(records);
        let length = (out.len() - LENGTH_END) as i32;
        out[8..12].copy_from_slice(&length.to_be_bytes());
        out[21..23].copy_from_slice(&codec.to_be_bytes());
        let sum = crc32c::crc32c(&out[CHECKED_FROM..]);
        out[17..21].copy_from_slice(&sum.to_be_bytes());
        out.into()
    }

    fn put_varint(out: &mut Vec<u8>, value: i64) {
        let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
        while zigzag >= 0x80 {
            out.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        out.push(zigzag as u8);
    }

    #[test]
    fn only_whole_intact_batches_are_accepted() {
        let good = batch(-1, -1, -1, &[10, 20]);
        let header = BatchHeader::of_produced(&good).unwrap();
        assert_eq!(
            (header.records, header.max_timestamp, header.bytes),
            (2, 20, good.len())
        );
        for cut in 0..good.len() {
            assert!(
                BatchHeader::of_produced(&good[..cut]).is_err(),
                "cut at {cut}"
            );
        }
        for at in 8..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 0x40;
            let kept_outside_checksum = (12..16).contains(&at);
            assert_eq!(
                BatchHeader::of_produced(&bad).is_ok(),
                kept_outside_checksum,
                "byte {at}"
            );
        }
        let twice = [&good[..], &good[..]].concat();
        assert_eq!(BatchHeader::of_produced(&twice), Err(BatchError::Several));
    }

    #[test]
    fn the_first_record_at_a_time_is_found() {
        let batch = batch(-1, -1, -1, &[10, 20, 30]);
        assert_eq!(first_at(&batch, 0), Some((0, 10)));
        assert_eq!(first_at(&batch, 11), Some((1, 20)));
        assert_eq!(first_at(&batch, 30), Some((2, 30)));
        assert_eq!(first_at(&batch, 31), None);
        for cut in 0..batch.len() {
            let _ = first_at(&batch.slice(..cut), 30);
        }
    }

    #[test]
    fn a_filler_is_a_whole_batch_that_spans_its_offsets() {
        let bytes = filler(100, 299);
        let header = BatchHeader::read(&bytes).unwrap();
        assert!(header.is_stored_at(100) && header.is_intact(&bytes));
        assert_eq!((header.bytes, header.records), (bytes.len(), 0));
        assert_eq!(header.last_offset(), Some(299));
        assert_eq!(first_at(&Bytes::copy_from_slice(&bytes), 0), None);
    }

    #[test]
    fn records_that_do_not_match_their_number_are_refused() {
        let good = batch(-1, -1, -1, &[10, 20_000_000_000, 30]);
        assert!(BatchHeader::of_produced(&good).is_ok());
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bad = good.to_vec();
            change(&mut bad);
            let length = (bad.len() - LENGTH_END) as i32;
            bad[8..12].copy_from_slice(&length.to_be_bytes());
            let sum = crc32c::crc32c(&bad[CHECKED_FROM..]);
            bad[17..21].copy_from_slice(&sum.to_be_bytes());
            BatchHeader::of_produced(&bad)
        };
        assert!(with(&|_| {}).is_ok());
        for records in [1_i32, 2, 4] {
            let counted = with(&|bad| {
                bad[23..27].copy_from_slice(&(records - 1).to_be_bytes());
                bad[57..61].copy_from_slice(&records.to_be_bytes());
            });
            assert_eq!(counted, Err(BatchError::Records), "{records}");
        }
        let last = good.len() - 1;
        assert_eq!(with(&|bad| bad.truncate(last)), Err(BatchError::Records));
        assert_eq!(with(&|bad| bad.push(0)), Err(BatchError::Records));
        // The lengths of the first record's key and value, and the number of its headers: too long, and not there.
        let parts = [65, 66, 70];
        assert_eq!(parts.map(|at| good[at]), [1, 6, 0]);
        for (at, wrong) in parts.into_iter().flat_map(|at| [(at, 40), (at, 9)]) {
            assert_eq!(
                with(&|bad| bad[at] = wrong),
                Err(BatchError::Records),
                "{at}"
            );
        }
        // The first record's length and offset.
        assert_eq!(with(&|bad| bad[61] += 2), Err(BatchError::Records));
        assert_eq!(with(&|bad| bad[64] = 2), Err(BatchError::Records));
    }

    #[test]
    fn numbers_of_any_length_are_read_as_they_were_written() {
        for value in [
            0,
            -1,
            1,
            63,
            -64,
            64,
            -65,
            8_191,
            -8_192,
            8_192,
            i64::MAX,
            i64::MIN,
        ] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            for cut in 0..bytes.len() {
                assert_eq!(varint(&mut &bytes[..cut]), None, "{value} cut at {cut}");
            }
            bytes.push(7);
            let mut left = &bytes[..];
            assert_eq!(varint(&mut left), Some(value));
            assert_eq!(left, [7]);
        }
    }

    #[test]
    fn sequences_begin_again_after_the_largest() {
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        assert_eq!(sequence_after(i32::MAX - 1, 3), 1);
    }
}
