use super::made::{batch, put_varint};
use super::*;

#[test]
fn a_batch_is_taken_whole_and_intact_only() {
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
    // The lengths of the first record's key and value, and the number of its headers: too long, and
    // not there.
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
