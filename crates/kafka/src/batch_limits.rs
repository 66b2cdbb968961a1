//! Limits on the memory that one batch takes.
//!
//! librdkafka allocates whatever a batch holds: half a megabyte of gzip takes hundreds of
//! megabytes, and so do some uncompressed megabytes of empty records. The process is killed again
//! at each start, because it reads the batch again. librdkafka has no property for a limit, other
//! than for zstd. So the linker replaces its functions with those of this module (`--wrap`, see
//! `build.rs`), which refuse
//!
//! * batches that expand beyond [`KafkaSettings::decompressed_bytes_max`],
//! * batches that expand beyond [`RATIO_MAX`] times their size: librdkafka decompresses everything
//!   that it has fetched before it hands over one record, and a fetch may hold hundreds of small
//!   batches,
//! * batches with many tiny records, each of which takes some 500 bytes of memory.
//!
//! librdkafka reports such a batch as one that cannot be decompressed, and [`crate::damage`] finds
//! it. The size of a fetch bounds the sum of what its batches hold. A log line has the reason.
//!
//! Of an uncompressed batch, only the function that verifies its checksum gets all bytes. If the
//! batch is refused, that function sets a codec in the received bytes, which are librdkafka's own
//! copy. The records are not of that codec, so they cannot be decompressed.
//!
//! Programs other than `waybill` need the same linker arguments: see `crates/waybill/build.rs`.
//! Without them librdkafka decompresses without a limit, and the first consumer logs a warning.
//!
//! The signatures are those of librdkafka 2.12.
//!
//! [`KafkaSettings::decompressed_bytes_max`]: crate::KafkaSettings::decompressed_bytes_max
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::hint::black_box;
use std::panic::catch_unwind;
use std::ptr;
use std::slice;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdkafka::types::RDKafkaRespErr;
use waybill_wire::batch::{
    BatchError, Codec, check_checksummed_records, decompressed_records, snappy_length,
};

/// How many bytes a batch may hold. librdkafka's functions do not say for which client they
/// decompress, so the limit is one of the process.
static BYTES_MAX: AtomicUsize = AtomicUsize::new(DECOMPRESSED_BYTES_MAX);

/// The default limit: 16 MiB, of which Kafka's default `max.message.bytes` is a sixteenth.
pub(crate) const DECOMPRESSED_BYTES_MAX: usize = 16 << 20;

/// How many times its size a batch may hold. Requests in JSON have a random id each, and reach a
/// fourth of this.
const RATIO_MAX: usize = 100;
/// What a batch may hold at any ratio.
const SMALL_BYTES: usize = 64 << 10;

/// How many bytes a batch of this compressed size may hold.
fn bytes_max(compressed: usize) -> usize {
    let of_ratio = compressed.saturating_mul(RATIO_MAX).max(SMALL_BYTES);
    of_ratio.min(BYTES_MAX.load(Ordering::Relaxed))
}

/// The byte of the attributes that has the codec, in the bytes that the checksum covers.
const CODEC_AT: usize = 1;

/// The start of xerial's blocks, which librdkafka has removed.
const XERIAL_HEADER: &[u8] = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";

/// Sets the limit of the process. Warns once if the program is linked without the replacements.
pub(crate) fn limit(bytes_max: usize) {
    static WARNED: Once = Once::new();
    BYTES_MAX.store(bytes_max, Ordering::Relaxed);
    if !is_limited() {
        WARNED.call_once(|| {
            tracing::warn!(
                "compressed batches can use up all memory: this program is linked without Waybill's \
                 limit on decompression (crates/waybill/build.rs has the linker arguments)"
            );
        });
    }
}

/// Whether the linker has replaced librdkafka's functions.
fn is_limited() -> bool {
    unsafe extern "C" {
        fn rd_gz_decompress(compressed: *const c_void, bytes: c_int, held: *mut u64)
        -> *mut c_void;
    }
    // With `--wrap`, the name means the replacement. Without `black_box`, the compiler takes
    // different names for different functions.
    black_box(rd_gz_decompress as *const ()) == black_box(__wrap_rd_gz_decompress as *const ())
        && black_box(OTHERS).iter().all(|function| !function.is_null())
}

/// References to the other functions, so that the linker keeps them.
const OTHERS: [*const (); 6] = [
    __wrap_rd_crc32c as *const (),
    __wrap_rd_kafka_lz4_decompress as *const (),
    __wrap_rd_kafka_snappy_java_uncompress as *const (),
    __wrap_rd_kafka_snappy_uncompress as *const (),
    __wrap_rd_kafka_snappy_uncompressed_length as *const (),
    __wrap_rd_kafka_zstd_decompress as *const (),
];

/// `rd_crc32c` of `crc32c.c`: the checksum of these bytes and of those before them, which have the
/// checksum `before`; 0 if there are none.
///
/// librdkafka passes what the checksum of a received batch covers in one piece, from the two bytes
/// of the attributes on. Batches that it sends come in pieces, and have at most
/// [`waybill_wire::batch::RECORDS_MAX`] records.
///
/// # Safety
///
/// `bytes` has `len` readable bytes. If they are a batch, the caller owns them, and reads its
/// attributes later.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_rd_crc32c(before: u32, bytes: *mut u8, len: usize) -> u32 {
    // SAFETY: as the caller promises.
    let covered = unsafe { slice::from_raw_parts(bytes, len) };
    let checksum = crc32c::crc32c_append(before, covered);
    if before == 0
        && let Err(error) = check_checksummed_records(covered)
    {
        warn(&error, len);
        // SAFETY: such a batch has its attributes, and no reference to its bytes is left.
        unsafe { *bytes.add(CODEC_AT) |= Codec::Gzip as u8 };
    }
    checksum
}

/// `rd_gz_decompress` of `rdgz.c`.
///
/// # Safety
///
/// `compressed` has `bytes` readable bytes, and `held` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_rd_gz_decompress(
    compressed: *const c_void,
    bytes: c_int,
    held: *mut u64,
) -> *mut c_void {
    let bytes = usize::try_from(bytes).unwrap_or_default();
    // SAFETY: as the caller promises.
    let compressed = unsafe { slice::from_raw_parts(compressed.cast::<u8>(), bytes) };
    let Some((out, len)) = allocated(Codec::Gzip, compressed) else {
        return ptr::null_mut();
    };
    // SAFETY: as the caller promises.
    unsafe { *held = len as u64 };
    out
}

/// `rd_kafka_lz4_decompress` of `rdkafka_lz4.c`. `is_standard` is 0 for the frames with a wrong
/// checksum in their header that Kafka wrote before version 0.10; those are refused.
///
/// # Safety
///
/// `compressed` has `bytes` readable bytes, and `out` and `held` are valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_rd_kafka_lz4_decompress(
    _broker: *mut c_void,
    _is_standard: c_int,
    _offset: i64,
    compressed: *const c_char,
    bytes: usize,
    out: *mut *mut c_void,
    held: *mut usize,
) -> RDKafkaRespErr {
    // SAFETY: as the caller promises.
    unsafe { decompress_to(Codec::Lz4, compressed, bytes, out, held) }
}

/// `rd_kafka_zstd_decompress` of `rdkafka_zstd.c`.
///
/// # Safety
///
/// `compressed` has `bytes` readable bytes, and `out` and `held` are valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_rd_kafka_zstd_decompress(
    _broker: *mut c_void,
    compressed: *const c_char,
    bytes: usize,
    out: *mut *mut c_void,
    held: *mut usize,
) -> RDKafkaRespErr {
    // SAFETY: as the caller promises.
    unsafe { decompress_to(Codec::Zstd, compressed, bytes, out, held) }
}

/// `rd_kafka_snappy_uncompressed_length` of `snappy.c`: how many bytes a bare block claims to hold.
/// The caller allocates these.
///
/// # Safety
///
/// `compressed` has `bytes` readable bytes, and `held` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_rd_kafka_snappy_uncompressed_length(
    compressed: *const c_char,
    bytes: usize,
    held: *mut usize,
) -> bool {
    // SAFETY: as the caller promises.
    let compressed = unsafe { slice::from_raw_parts(compressed.cast::<u8>(), bytes) };
    let Some(claimed) = snappy_length(compressed) else {
        return false;
    };
    // SAFETY: as the caller promises.
    unsafe { *held = claimed };
    claimed <= bytes_max(bytes)
}

/// `rd_kafka_snappy_uncompress` of `snappy.c`: decompresses a bare block. Returns 0, or a negative
/// number.
///
/// # Safety
///
/// `compressed` has `bytes` readable bytes, and `out` as many writable ones as
/// [`__wrap_rd_kafka_snappy_uncompressed_length`] found in them.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_rd_kafka_snappy_uncompress(
    compressed: *const c_char,
    bytes: usize,
    out: *mut c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    let compressed = unsafe { slice::from_raw_parts(compressed.cast::<u8>(), bytes) };
    let Some(held) = records(Codec::Snappy, compressed) else {
        return -1;
    };
    // A block holds exactly as much as it claims.
    debug_assert_eq!(Some(held.len()), snappy_length(compressed));
    // SAFETY: as the caller promises.
    unsafe { ptr::copy_nonoverlapping(held.as_ptr(), out.cast::<u8>(), held.len()) };
    0
}

/// `rd_kafka_snappy_java_uncompress` of `snappy.c`: what xerial's blocks hold, or null and a
/// message.
///
/// # Safety
///
/// `blocks` has `bytes` readable bytes, `held` is valid, and `message` has `message_bytes` writable
/// bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_rd_kafka_snappy_java_uncompress(
    blocks: *const c_char,
    bytes: usize,
    held: *mut usize,
    message: *mut c_char,
    message_bytes: usize,
) -> *mut c_char {
    // SAFETY: as the caller promises.
    let blocks = unsafe { slice::from_raw_parts(blocks.cast::<u8>(), bytes) };
    if let Some((out, len)) = allocated(Codec::Snappy, &[XERIAL_HEADER, blocks].concat()) {
        // SAFETY: as the caller promises.
        unsafe { *held = len };
        return out.cast();
    }
    let reason = b"the blocks are invalid or hold too much";
    let shown = reason.len().min(message_bytes.saturating_sub(1));
    if message_bytes > 0 {
        // SAFETY: `shown` and the byte after it are within the buffer.
        unsafe {
            ptr::copy_nonoverlapping(reason.as_ptr(), message.cast::<u8>(), shown);
            *message.add(shown) = 0;
        }
    }
    ptr::null_mut()
}

/// Decompresses for a caller that gets an error code.
///
/// # Safety
///
/// `compressed` has `bytes` readable bytes, and `out` and `held` are valid.
unsafe fn decompress_to(
    codec: Codec,
    compressed: *const c_char,
    bytes: usize,
    out: *mut *mut c_void,
    held: *mut usize,
) -> RDKafkaRespErr {
    // SAFETY: as the caller promises.
    let compressed = unsafe { slice::from_raw_parts(compressed.cast::<u8>(), bytes) };
    let Some((to, len)) = allocated(codec, compressed) else {
        return RDKafkaRespErr::RD_KAFKA_RESP_ERR__BAD_COMPRESSION;
    };
    // SAFETY: as the caller promises.
    unsafe {
        *out = to;
        *held = len;
    }
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
}

/// The records that `compressed` holds, if they are within the limits.
fn records(codec: Codec, compressed: &[u8]) -> Option<Vec<u8>> {
    let bytes_max = bytes_max(compressed.len());
    let held = catch_unwind(|| decompressed_records(codec, compressed, bytes_max));
    held.ok()?
        .inspect_err(|error| warn(error, compressed.len()))
        .ok()
}

/// Logs that a batch is beyond a limit: librdkafka reports only that it cannot be decompressed.
fn warn(error: &BatchError, bytes: usize) {
    if matches!(
        error,
        BatchError::Expands { .. } | BatchError::TooManyRecords { .. }
    ) {
        tracing::warn!(bytes, %error, "refused a batch that would take too much memory");
    }
}

/// The records that `compressed` holds, in memory that `free` releases, and their length.
fn allocated(codec: Codec, compressed: &[u8]) -> Option<(*mut c_void, usize)> {
    let held = records(codec, compressed)?;
    // SAFETY: at least one byte is allocated, and `out` is checked before it is written to.
    unsafe {
        let out = libc::malloc(held.len().max(1));
        if out.is_null() {
            return None;
        }
        ptr::copy_nonoverlapping(held.as_ptr(), out.cast::<u8>(), held.len());
        Some((out, held.len()))
    }
}
