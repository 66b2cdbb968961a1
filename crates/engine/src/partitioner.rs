//! Which partition an operation belongs to.
//!
//! `murmur2(key) mod P` as Java's default Kafka partitioner computes it
//! (`org.apache.kafka.common.utils.Utils.murmur2`, the sign bit cleared before the modulus), so
//! that any Kafka client with that partitioner agrees. librdkafka's own default (CRC32) does not.

use crate::id::{OperationId, PartitionId};

/// The partition of an operation among `partitions`.
///
/// # Panics
///
/// If `partitions` is zero.
#[must_use]
pub fn partition_for(id: OperationId, partitions: u32) -> PartitionId {
    PartitionId((murmur2(&id.key()) & 0x7fff_ffff) % partitions)
}

/// The 32-bit MurmurHash2 of `data` with Kafka's seed.
#[must_use]
pub fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;

    let mut hash = SEED ^ (data.len() as u32);
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        for (i, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that Kafka's own `UtilsTest.testMurmur2` expects of its Java implementation.
    #[test]
    fn murmur2_agrees_with_kafkas_java_client() {
        let cases: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ];
        for (data, expected) in cases {
            assert_eq!(
                murmur2(data) as i32,
                expected,
                "{}",
                String::from_utf8_lossy(data)
            );
        }
    }
}
