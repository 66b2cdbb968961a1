//! Reading a segment batch by batch, and looking for the next valid batch after a damaged one.

use std::io;
use std::ops::Range;

use waybill_wire::batch::{BatchHeader, HEADER_BYTES};

use super::damage::DamagedBatch;
use super::disk::LogFile;
use super::producers::Producers;
use super::segment::SegmentIndex;

/// Bytes read at a time, unless a batch is larger.
const READ_BYTES: usize = 1 << 20;
/// The position of the message format's number in a batch.
const MAGIC_AT: usize = 16;
/// How many bytes [`find`] may read for checksums per searched byte.
const CHECKS_PER_BYTE: u64 = 16;

/// Where one batch of a segment ends and the next begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Boundary {
    /// The position in bytes.
    pub(super) position: u64,
    /// The first offset after it.
    pub(super) offset: i64,
}

/// Reads a segment from its start, and stops at the first batch that is torn or damaged.
pub(super) fn scan(
    file: &LogFile,
    base: i64,
    file_bytes: u64,
    producers: &mut Producers,
    producers_max: usize,
) -> io::Result<SegmentIndex> {
    let mut index = SegmentIndex::new(base);
    let start = Boundary {
        position: 0,
        offset: base,
    };
    walk(file, start, file_bytes, |header| {
        index.push(header, header.base_offset);
        producers.record(header, header.base_offset, producers_max);
    })?;
    Ok(index)
}

/// Reads the first `bytes` of a segment, all of them whole batches. Returns the first damaged one.
pub(crate) fn verify(file: &LogFile, base: i64, bytes: u64) -> io::Result<Option<DamagedBatch>> {
    let start = Boundary {
        position: 0,
        offset: base,
    };
    let end = walk(file, start, bytes, |_| {})?;
    Ok((end.position < bytes).then(|| DamagedBatch {
        path: file.path().to_owned(),
        position: end.position,
        offset: end.offset,
    }))
}

/// Reads the batches from `start` to `end`, checks each, and passes their headers on. Returns the
/// boundary after the last valid batch that directly follows its predecessor.
pub(super) fn walk(
    file: &LogFile,
    start: Boundary,
    end: u64,
    mut each: impl FnMut(&BatchHeader),
) -> io::Result<Boundary> {
    let mut at = start;
    let mut buffer = buffer_for(start.position, end);
    // The part of `buffer` that holds the file's bytes from `at` on.
    let (mut from, mut filled) = (0, 0);
    loop {
        let header = BatchHeader::read(&buffer[from..filled]);
        let left = end.saturating_sub(at.position);
        if let Some(header) = header {
            let last_offset = header.last_offset().unwrap_or(i64::MAX);
            if !header.is_stored_at(at.offset) || header.bytes as u64 > left {
                return Ok(at);
            }
            if header.bytes <= filled - from {
                if !header.is_intact(&buffer[from..]) {
                    return Ok(at);
                }
                each(&header);
                from += header.bytes;
                at.position += header.bytes as u64;
                at.offset = last_offset + 1;
                continue;
            }
        } else if filled - from >= HEADER_BYTES {
            return Ok(at);
        }
        let wanted = header.map_or(HEADER_BYTES, |header| header.bytes);
        if wanted as u64 > left {
            return Ok(at);
        }
        buffer.copy_within(from..filled, 0);
        filled -= from;
        from = 0;
        if buffer.len() < wanted {
            buffer.resize(wanted, 0);
        }
        let take = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = file.read_at(&mut buffer[filled..take], at.position + filled as u64)?;
        if read == 0 {
            return Ok(at);
        }
        filled += read;
    }
}

/// A buffer for the bytes from `from` to `end`, or for a part of them.
fn buffer_for(from: u64, end: u64) -> Vec<u8> {
    let bytes = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX);
    vec![0; bytes.min(READ_BYTES)]
}

/// A batch that was found after damaged bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) boundary: Boundary,
    /// Whether its checksum was verified. If not, it only looks like a batch.
    pub(super) is_verified: bool,
}

/// The first valid batch that begins between `from` and `end`, with a first offset in `offsets`.
/// Tries every byte, because what leads to the batch may be damaged.
///
/// The work is bounded. If the bytes look like the fronts of very many large batches, returns the
/// first one that could not be verified within the bound.
pub(super) fn find(
    file: &LogFile,
    from: u64,
    end: u64,
    offsets: &Range<i64>,
) -> io::Result<Option<Found>> {
    let budget = end.saturating_sub(from).saturating_mul(CHECKS_PER_BYTE);
    search(file, from, end, offsets, Some(budget))
}

/// Like [`find`], but the batch is verified, however long it takes: for crafted bytes, the time
/// grows with the square of their number.
pub(super) fn find_verified(
    file: &LogFile,
    from: u64,
    end: u64,
    offsets: &Range<i64>,
) -> io::Result<Option<Boundary>> {
    let found = search(file, from, end, offsets, None)?;
    Ok(found.map(|found| found.boundary))
}

/// Searches for a batch and reads at most `budget` bytes, if that is given, for checksums.
fn search(
    file: &LogFile,
    from: u64,
    end: u64,
    offsets: &Range<i64>,
    mut budget: Option<u64>,
) -> io::Result<Option<Found>> {
    let mut buffer = buffer_for(from, end);
    let mut large = Vec::new();
    let mut start = from;
    while start + HEADER_BYTES as u64 <= end {
        let left = usize::try_from(end - start).unwrap_or(usize::MAX);
        let take = buffer.len().min(left);
        file.read_exact_at(&mut buffer[..take], start)?;
        let last = take - HEADER_BYTES;
        for at in 0..=last {
            if buffer[at + MAGIC_AT] != 2 {
                continue;
            }
            let Some(header) = BatchHeader::read(&buffer[at..take]) else {
                continue;
            };
            if !offsets.contains(&header.base_offset)
                || !header.is_stored_at(header.base_offset)
                || header.bytes > left - at
            {
                continue;
            }
            let boundary = Boundary {
                position: start + at as u64,
                offset: header.base_offset,
            };
            if let Some(left) = &mut budget {
                let Some(rest) = left.checked_sub(header.bytes as u64) else {
                    return Ok(Some(Found {
                        boundary,
                        is_verified: false,
                    }));
                };
                *left = rest;
            }
            let is_intact = if header.bytes <= take - at {
                header.is_intact(&buffer[at..take])
            } else {
                large.resize(header.bytes, 0);
                file.read_exact_at(&mut large, boundary.position)?;
                header.is_intact(&large)
            };
            if is_intact {
                return Ok(Some(Found {
                    boundary,
                    is_verified: true,
                }));
            }
        }
        start += last as u64 + 1;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use waybill_disk::files::SystemDisk;

    use super::super::segment::tests::filled_segment;
    use super::*;

    #[test]
    fn a_scan_finds_what_was_appended() {
        let dir = tempfile::tempdir().unwrap();
        let (file, index, producers) = filled_segment(dir.path(), 20_000);
        let mut found = Producers::default();
        let scanned = scan(&file, 100, index.bytes, &mut found, 10).unwrap();
        assert_eq!(scanned, index);
        assert_eq!(found, producers);
        let far = index.batch_before(100 + 2 * 19_999);
        assert!(
            far.0 > index.bytes - (20 << 10),
            "its index is sparse: {far:?}"
        );
    }

    #[test]
    fn a_scan_stops_at_the_last_whole_batch_wherever_the_file_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (file, index, _) = filled_segment(dir.path(), 3);
        let batch_bytes = index.bytes / 3;
        for end in 0..index.bytes {
            let scanned = scan(&file, 100, end, &mut Producers::default(), 10).unwrap();
            assert_eq!(
                scanned.bytes,
                end / batch_bytes * batch_bytes,
                "cut at {end}"
            );
        }
    }

    #[test]
    fn a_scan_stops_at_any_flipped_bit_and_finds_the_next_batch() {
        let dir = tempfile::tempdir().unwrap();
        let (file, index, _) = filled_segment(dir.path(), 5);
        let batch_bytes = index.bytes / 5;
        let whole = std::fs::read(file.path()).unwrap();
        for at in 2 * batch_bytes..3 * batch_bytes {
            let mut bad = whole.clone();
            bad[at as usize] ^= 0x10;
            let path = dir.path().join("bad");
            std::fs::write(&path, &bad).unwrap();
            let file = LogFile::open(&SystemDisk, path).unwrap();
            let scanned = scan(&file, 100, index.bytes, &mut Producers::default(), 10).unwrap();
            assert_eq!(scanned.bytes, 2 * batch_bytes, "byte {at}");
            let next = find(&file, scanned.bytes + 1, index.bytes, &(104..i64::MAX)).unwrap();
            let boundary = Boundary {
                position: 3 * batch_bytes,
                offset: 106,
            };
            let expected = Found {
                boundary,
                is_verified: true,
            };
            assert_eq!(next, Some(expected), "byte {at}");
        }
        let torn = find(&file, 4 * batch_bytes + 1, index.bytes, &(108..i64::MAX)).unwrap();
        assert_eq!(torn, None);
    }

    #[test]
    fn bytes_that_look_like_large_batches_are_scanned_a_bounded_number_of_times() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _, _) = filled_segment(dir.path(), 1);
        let front = std::fs::read(file.path()).unwrap()[..HEADER_BYTES].to_vec();
        let path = dir.path().join("fronts");
        // More than one read returns, so that the checksum needs several reads.
        let mut fronts = front.repeat(4 * READ_BYTES / HEADER_BYTES);
        let bytes = fronts.len();
        for (n, front) in fronts.chunks_exact_mut(HEADER_BYTES).enumerate() {
            let length = (bytes - n * HEADER_BYTES - 12) as i32;
            front[8..12].copy_from_slice(&length.to_be_bytes());
        }
        std::fs::write(&path, &fronts).unwrap();
        let file = LogFile::open(&SystemDisk, path).unwrap();
        let found = find(&file, 1, bytes as u64, &(100..i64::MAX)).unwrap();
        assert!(found.is_some_and(|found| !found.is_verified), "{found:?}");
        let read = file.read_bytes.load(std::sync::atomic::Ordering::Relaxed);
        let (least, most) = (CHECKS_PER_BYTE - 1, CHECKS_PER_BYTE + 1);
        let bytes = bytes as u64;
        assert!(
            (least * bytes..=most * bytes).contains(&read),
            "{read} of {bytes}"
        );
    }
}
