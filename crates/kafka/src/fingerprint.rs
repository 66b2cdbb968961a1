//! Fingerprints that identify a record of a request topic among all records that could have its
//! offset.

use crate::RecordRef;

/// Identifies a record among all that could have its offset: FNV-1a over its timestamp, its key and
/// the length of its value. It detects another topic; it does not protect against an attacker.
#[must_use]
pub fn fingerprint(record: &RecordRef<'_>) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let timestamp = record.timestamp_ms().unwrap_or(-1).to_le_bytes();
    let length = (record.value().map_or(0, <[u8]>::len) as u64).to_le_bytes();
    let key = record.key().unwrap_or_default();
    timestamp
        .iter()
        .chain(&length)
        .chain(key)
        .fold(OFFSET_BASIS, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
        })
}
