//! Batches for the tests of this crate and of the broker.

use bytes::{BufMut, Bytes, BytesMut};

use super::{CHECKED_FROM, Codec, HEADER_BYTES, LENGTH_END};

/// A batch of `timestamps.len()` small records, as an idempotent producer would send it.
#[must_use]
pub fn batch(producer: i64, epoch: i16, sequence: i32, timestamps: &[i64]) -> Bytes {
    batch_of(producer, epoch, sequence, timestamps, b"abc")
}

/// A batch of one record with this value.
#[must_use]
pub fn batch_of_one(value: &[u8]) -> Bytes {
    batch_of(-1, -1, -1, &[1], value)
}

fn batch_of(producer: i64, epoch: i16, sequence: i32, timestamps: &[i64], value: &[u8]) -> Bytes {
    let base = timestamps[0];
    let mut records = BytesMut::new();
    for (index, at) in timestamps.iter().enumerate() {
        let mut record = vec![0_u8];
        put_varint(&mut record, at - base);
        put_varint(&mut record, index as i64);
        put_varint(&mut record, -1);
        put_varint(&mut record, value.len() as i64);
        record.extend_from_slice(value);
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
#[must_use]
pub fn compressed_with(batch: &Bytes, codec: Codec, records: &[u8]) -> Bytes {
    let mut out = batch[..HEADER_BYTES].to_vec();
    out.extend_from_slice(records);
    let length = (out.len() - LENGTH_END) as i32;
    out[8..12].copy_from_slice(&length.to_be_bytes());
    out[21..23].copy_from_slice(&(codec as i16).to_be_bytes());
    let sum = crc32c::crc32c(&out[CHECKED_FROM..]);
    out[17..21].copy_from_slice(&sum.to_be_bytes());
    out.into()
}

pub(super) fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
    while zigzag >= 0x80 {
        out.push(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    out.push(zigzag as u8);
}
