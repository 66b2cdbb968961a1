//! Decompression within a bound.
//!
//! Why it exists: a compressed batch can take a thousand times its size in a reader's memory, and
//! one that cannot be decompressed stops its readers for good. So the broker decompresses it once,
//! when it is produced, within the topic's `max.message.bytes`, like Kafka with
//! `compression.type=uncompressed`. Consumers of Kafka decompress what another broker has kept
//! compressed, within a bound too.
//!
//! Codecs and their framing are those of the protocol guide's section "Record Batch": gzip, snappy
//! (bare, or in the blocks of the Java library [xerial](https://github.com/xerial/snappy-java)),
//! LZ4 frames and Zstandard.

use std::io::Read;

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use lz4_flex::frame::FrameDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

use super::{BatchError, BatchHeader, HEADER_BYTES, check_records, count};

/// The start of the Java library's blocks; two version numbers of four bytes follow.
const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\0";
const XERIAL_HEADER_BYTES: usize = 16;
/// The start of each member of gzip (RFC 1952, 2.3.1).
const GZIP_MAGIC: &[u8] = b"\x1f\x8b";
/// The largest window of Zstandard: 128 MiB, which its highest levels ask for however little they
/// compress. The decoder touches only as much of it as a batch holds.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// The codecs, with their numbers in a batch's attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// One or more gzip members.
    Gzip = 1,
    /// A bare block, or the blocks of the Java library xerial.
    Snappy = 2,
    /// One LZ4 frame.
    Lz4 = 3,
    /// Zstandard frames.
    Zstd = 4,
}

impl Codec {
    /// The codec with this number in a batch's attributes.
    fn numbered(number: i16) -> Result<Self, BatchError> {
        [Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd]
            .into_iter()
            .find(|codec| *codec as i16 == number)
            .ok_or(BatchError::Codec)
    }
}

/// The records that `compressed` holds.
///
/// # Errors
///
/// If they cannot be decompressed, take more than `bytes_max`, or are too many.
pub fn decompressed_records(
    codec: Codec,
    compressed: &[u8],
    bytes_max: usize,
) -> Result<Vec<u8>, BatchError> {
    let mut whole = Vec::with_capacity(compressed.len().saturating_mul(4).min(bytes_max));
    decompress(codec, compressed, &mut whole, bytes_max)?;
    check_records(count(&whole), whole.len())?;
    Ok(whole)
}

/// A compressed batch as it is kept.
///
/// # Errors
///
/// If its records cannot be decompressed, are not as many as the header says, or would make a batch
/// of more than `bytes_max`.
pub fn uncompressed(
    header: &BatchHeader,
    batch: &Bytes,
    bytes_max: u64,
) -> Result<(BatchHeader, Bytes), BatchError> {
    let compressed = batch.get(HEADER_BYTES..header.bytes);
    let compressed = compressed.ok_or(BatchError::Length)?;
    // A batch counts its bytes in 32 bits.
    let bytes_max = bytes_max.min(i32::MAX as u64) as usize;
    let codec = Codec::numbered(header.codec())?;
    let mut whole = Vec::with_capacity(header.bytes.saturating_mul(4).min(bytes_max));
    whole.extend_from_slice(&batch[..HEADER_BYTES]);
    decompress(codec, compressed, &mut whole, bytes_max)?;
    check_records(usize::try_from(header.records).unwrap_or(0), whole.len())?;
    let header = header.rewritten_uncompressed(&mut whole)?;
    Ok((header, whole.into()))
}

/// Appends what `compressed` holds to `whole`, which may grow to `bytes_max`.
fn decompress(
    codec: Codec,
    compressed: &[u8],
    whole: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<(), BatchError> {
    match codec {
        Codec::Gzip => gzip(compressed, whole, bytes_max),
        Codec::Snappy => snappy(compressed, whole, bytes_max),
        Codec::Lz4 => read(FrameDecoder::new(compressed), whole, bytes_max),
        Codec::Zstd => {
            let mut decoder =
                ZstdDecoder::with_buffer(compressed).map_err(|_| BatchError::Codec)?;
            let limited = decoder.window_log_max(ZSTD_WINDOW_LOG_MAX);
            limited.map_err(|_| BatchError::Codec)?;
            read(decoder, whole, bytes_max)
        }
    }
}

fn read(from: impl Read, whole: &mut Vec<u8>, bytes_max: usize) -> Result<(), BatchError> {
    let left = bytes_max.saturating_sub(whole.len()) as u64;
    let read = from.take(left + 1).read_to_end(whole);
    if whole.len() > bytes_max {
        return Err(BatchError::Expands { bytes_max });
    }
    read.map(drop).map_err(|_| BatchError::Undecodable)
}

/// What follows the last member is ignored, as clients do.
fn gzip(mut compressed: &[u8], whole: &mut Vec<u8>, bytes_max: usize) -> Result<(), BatchError> {
    loop {
        read(GzDecoder::new(&mut compressed), whole, bytes_max)?;
        if !compressed.starts_with(GZIP_MAGIC) {
            return Ok(());
        }
    }
}

fn snappy(compressed: &[u8], whole: &mut Vec<u8>, bytes_max: usize) -> Result<(), BatchError> {
    if !compressed.starts_with(XERIAL_MAGIC) {
        return snappy_block(compressed, whole, bytes_max);
    }
    let blocks = compressed.get(XERIAL_HEADER_BYTES..);
    let mut blocks = blocks.ok_or(BatchError::Undecodable)?;
    while !blocks.is_empty() {
        let (length, rest) = blocks
            .split_first_chunk::<4>()
            .ok_or(BatchError::Undecodable)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, rest) = rest
            .split_at_checked(length)
            .ok_or(BatchError::Undecodable)?;
        snappy_block(block, whole, bytes_max)?;
        blocks = rest;
    }
    Ok(())
}

/// How many bytes a bare block of snappy claims to hold; `None` if it does not begin as one.
pub fn snappy_length(block: &[u8]) -> Option<usize> {
    snap::raw::decompress_len(block).ok()
}

/// The announced length of a block is checked before it is used.
fn snappy_block(block: &[u8], whole: &mut Vec<u8>, bytes_max: usize) -> Result<(), BatchError> {
    let length = snap::raw::decompress_len(block).map_err(|_| BatchError::Undecodable)?;
    let start = whole.len();
    if length > bytes_max.saturating_sub(start) {
        return Err(BatchError::Expands { bytes_max });
    }
    whole.resize(start + length, 0);
    let decompressed = snap::raw::Decoder::new().decompress(block, &mut whole[start..]);
    match decompressed {
        Ok(written) if written == length => Ok(()),
        _ => Err(BatchError::Undecodable),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::made::{batch, compressed_with};
    use super::super::{RECORD_BYTES_MIN, RECORDS_MAX};
    use super::*;

    /// As large as a batch may be here.
    const BYTES_MAX: u64 = 100_000;

    fn gzip(records: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(records).unwrap();
        encoder.finish().unwrap()
    }

    fn lz4(records: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(records).unwrap();
        encoder.finish().unwrap()
    }

    fn xerial(records: &[u8]) -> Vec<u8> {
        let mut out = [XERIAL_MAGIC, &1_u32.to_be_bytes(), &1_u32.to_be_bytes()].concat();
        for block in records.chunks(10) {
            let block = bare_snappy(block);
            out.extend_from_slice(&(block.len() as u32).to_be_bytes());
            out.extend_from_slice(&block);
        }
        out
    }

    fn bare_snappy(records: &[u8]) -> Vec<u8> {
        snap::raw::Encoder::new().compress_vec(records).unwrap()
    }

    fn zstd(records: &[u8]) -> Vec<u8> {
        zstd::encode_all(records, 3).unwrap()
    }

    type Encode = fn(&[u8]) -> Vec<u8>;

    const CODECS: [(Codec, Encode); 5] = [
        (Codec::Gzip, gzip),
        (Codec::Snappy, bare_snappy),
        (Codec::Snappy, xerial),
        (Codec::Lz4, lz4),
        (Codec::Zstd, zstd),
    ];

    fn kept(batch: &Bytes) -> Result<(BatchHeader, Bytes), BatchError> {
        uncompressed(&BatchHeader::of_produced(batch)?, batch, BYTES_MAX)
    }

    #[test]
    fn batches_of_any_codec_are_stored_uncompressed() {
        let plain = batch(7, 1, 5, &[10, 20, 30]);
        for (number, (codec, encode)) in CODECS.into_iter().enumerate() {
            let compressed = compressed_with(&plain, codec, &encode(&plain[HEADER_BYTES..]));
            let (header, bytes) = kept(&compressed).unwrap();
            assert_eq!(bytes, plain, "codec {number}");
            assert_eq!(header, BatchHeader::of_produced(&plain).unwrap());
        }
    }

    /// The highest levels of Zstandard declare a window of 128 MiB, however small the data.
    #[test]
    fn a_large_window_and_bytes_after_the_last_member_are_accepted() {
        let plain = batch(7, 1, 5, &[10, 20, 30]);
        let records = &plain[HEADER_BYTES..];
        let mut encoder = zstd::Encoder::new(Vec::new(), 22).unwrap();
        encoder.window_log(27).unwrap();
        encoder.include_contentsize(false).unwrap();
        encoder.write_all(records).unwrap();
        let large_window = encoder.finish().unwrap();
        let two_members = [gzip(&records[..10]), gzip(&records[10..])].concat();
        let with_padding = [gzip(records), vec![0; 20]].concat();
        for (codec, compressed) in [
            (Codec::Zstd, large_window),
            (Codec::Gzip, two_members),
            (Codec::Gzip, with_padding),
        ] {
            let (_, bytes) = kept(&compressed_with(&plain, codec, &compressed)).unwrap();
            assert_eq!(bytes, plain, "{codec:?}");
        }
    }

    #[test]
    fn many_tiny_records_are_refused_and_as_many_larger_ones_are_not() {
        let timestamps = vec![10; RECORDS_MAX + 1];
        let tiny = batch(-1, -1, -1, &timestamps);
        let refused = BatchError::TooManyRecords {
            records: timestamps.len(),
        };
        assert_eq!(BatchHeader::of_produced(&tiny).unwrap_err(), refused);
        let records = &tiny[HEADER_BYTES..];
        for (codec, encode) in CODECS {
            let compressed = compressed_with(&tiny, codec, &encode(records));
            let header = BatchHeader::of_produced(&compressed).unwrap();
            let kept = uncompressed(&header, &compressed, 1 << 30);
            assert_eq!(kept.unwrap_err(), refused, "{codec:?}");
            let read = decompressed_records(codec, &encode(records), 1 << 30);
            assert_eq!(read.unwrap_err(), refused, "{codec:?}");
        }
        assert_eq!(check_records(RECORDS_MAX, 0), Ok(()));
        let many = 10 * RECORDS_MAX;
        assert_eq!(check_records(many, many * RECORD_BYTES_MIN), Ok(()));
    }

    #[test]
    fn a_batch_that_expands_beyond_the_bound_is_refused_whatever_its_codec() {
        let plain = batch(-1, -1, -1, &[10]);
        let zeroes = vec![0; 4 << 20];
        for (number, (codec, encode)) in CODECS.into_iter().enumerate() {
            let bomb = compressed_with(&plain, codec, &encode(&zeroes));
            let refused = kept(&bomb).unwrap_err();
            let bytes_max = BYTES_MAX as usize;
            assert_eq!(refused, BatchError::Expands { bytes_max }, "codec {number}");
        }
    }

    #[test]
    fn a_batch_that_no_client_could_read_is_refused() {
        let plain = batch(-1, -1, -1, &[10, 20, 30]);
        let records = &plain[HEADER_BYTES..];
        for (number, (codec, encode)) in CODECS.into_iter().enumerate() {
            let whole = encode(records);
            for cut in 1..whole.len() {
                let cut_short = compressed_with(&plain, codec, &whole[..cut]);
                // LZ4 has a mark at its end without which everything is there.
                let is_whole = kept(&cut_short).is_ok_and(|(_, kept)| kept == plain);
                let is_refused = kept(&cut_short).is_err();
                assert!(
                    is_refused || codec == Codec::Lz4 && is_whole,
                    "codec {number} cut at {cut}"
                );
            }
            let rubbish = compressed_with(&plain, codec, b"not compressed at all");
            let refused = kept(&rubbish).unwrap_err();
            assert!(
                matches!(
                    refused,
                    BatchError::Undecodable | BatchError::Expands { .. }
                ),
                "codec {number}: {refused}"
            );
            // Data that decompresses well need not be records.
            let other = compressed_with(&plain, codec, &encode(b"no records"));
            assert_eq!(
                kept(&other).unwrap_err(),
                BatchError::Records,
                "codec {number}"
            );
            let one_less = &records[..records.len() / 3];
            let fewer = compressed_with(&plain, codec, &encode(one_less));
            assert_eq!(
                kept(&fewer).unwrap_err(),
                BatchError::Records,
                "codec {number}"
            );
        }
    }

    #[test]
    fn a_snappy_block_with_a_false_length_allocates_nothing() {
        let plain = batch(-1, -1, -1, &[10]);
        // 4 GiB less one, as a variable-length number.
        let lying = compressed_with(&plain, Codec::Snappy, b"\xff\xff\xff\xff\x0f");
        assert!(matches!(kept(&lying), Err(BatchError::Expands { .. })));
    }
}
