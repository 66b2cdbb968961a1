//! Which poison records were replayed.
//!
//! Once a replayed record is acknowledged, a receipt is written to the dead-letter partition: a
//! record without key and value whose one header lists the replayed offsets. Any reader of the
//! partition therefore knows what was replayed, from whichever machine. A receipt is newer than its
//! records and outlives them.
//!
//! If a replay ends between acknowledgement and receipt, the record is replayed once more. That is
//! safe: consumers of the source expect repeats.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::ops::Range;

use anyhow::ensure;
use waybill_engine::PartitionId;
use waybill_kafka::{Headers, RecordRef};

use crate::connection::Connection;

/// The header of a receipt: offsets and ranges of them, as in `3,7-9`.
pub(super) const REPLAYED: &str = "waybill-replayed";

/// The maximum number of separate ranges in memory for a partition. Replays in order make few.
const RANGES_MAX: usize = 100_000;

/// The offsets of a partition's dead letters that were replayed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Receipts {
    /// First and last offset of each range. Ranges do not touch.
    ranges: BTreeMap<i64, i64>,
}

impl Receipts {
    /// Reads the receipts in a range of a partition's offsets.
    pub(super) fn read(
        connection: &Connection,
        topic: &str,
        partition: PartitionId,
        range: Range<i64>,
    ) -> anyhow::Result<Self> {
        let mut receipts = Self::default();
        let whole = connection.read(topic, partition, range, &mut |record| {
            if let Some(text) = receipt(&record) {
                let offset = record.offset();
                match ranges_from_text(text) {
                    Some(ranges) => ranges.into_iter().for_each(|range| receipts.insert(range)),
                    None => tracing::warn!(
                        topic,
                        partition = partition.0,
                        offset = offset.0,
                        "could not read a replay receipt; its dead letters count as not replayed"
                    ),
                }
            }
            ensure!(
                receipts.ranges.len() <= RANGES_MAX,
                "{topic} partition {partition} has receipts of more than {RANGES_MAX} separate \
                 ranges of dead letters: replay by offset with --again"
            );
            Ok(ControlFlow::Continue(()))
        })?;
        debug_assert!(whole.is_continue(), "nothing here stops early");
        Ok(receipts)
    }

    /// Whether the dead letter at this offset was replayed.
    pub(super) fn contains(&self, offset: i64) -> bool {
        let range = self.ranges.range(..=offset).next_back();
        range.is_some_and(|(_, last)| offset <= *last)
    }

    /// Adds an offset.
    pub(super) fn add(&mut self, offset: i64) {
        self.insert((offset, offset));
    }

    /// Whether there are no offsets.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The value of a receipt's header.
    pub(super) fn to_text(&self) -> String {
        let ranges = self.ranges.iter().map(|(first, last)| match last - first {
            0 => first.to_string(),
            _ => format!("{first}-{last}"),
        });
        ranges.collect::<Vec<_>>().join(",")
    }

    fn insert(&mut self, (mut first, mut last): (i64, i64)) {
        // Ranges that overlap or touch are merged.
        while let Some((&other_first, &other_last)) =
            self.ranges.range(..=last.saturating_add(1)).next_back()
            && other_last.saturating_add(1) >= first
        {
            self.ranges.remove(&other_first);
            first = first.min(other_first);
            last = last.max(other_last);
        }
        self.ranges.insert(first, last);
    }
}

/// Whether a record on a dead-letter topic is a receipt.
pub(super) fn is_receipt(record: &RecordRef<'_>) -> bool {
    receipt(record).is_some()
}

/// The offsets in a receipt; `None` for a dead letter, which has more headers.
fn receipt<'a>(record: &RecordRef<'a>) -> Option<&'a [u8]> {
    if record.key().is_some() || record.value().is_some() {
        return None;
    }
    let mut headers: Headers<'a> = record.headers();
    let header = headers.next().filter(|header| header.key == REPLAYED)?;
    match headers.next() {
        None => header.value,
        Some(_) => None,
    }
}

fn ranges_from_text(text: &[u8]) -> Option<Vec<(i64, i64)>> {
    let text = std::str::from_utf8(text).ok()?;
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (0 <= first && first <= last).then_some((first, last))
    };
    text.split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipts(offsets: &[i64]) -> Receipts {
        let mut receipts = Receipts::default();
        offsets.iter().for_each(|offset| receipts.add(*offset));
        receipts
    }

    #[test]
    fn offsets_in_any_order_become_disjoint_ranges() {
        for offsets in [[3, 7, 8, 9], [9, 3, 8, 7], [8, 7, 9, 3]] {
            assert_eq!(receipts(&offsets).to_text(), "3,7-9");
        }
        let mut all = receipts(&[1, 3, 5, 7]);
        all.insert((2, 6));
        assert_eq!(all.to_text(), "1-7");
        all.insert((0, i64::MAX));
        assert_eq!(all.ranges, BTreeMap::from([(0, i64::MAX)]));
    }

    #[test]
    fn receipts_read_back_what_was_written() {
        let mut read = Receipts::default();
        for range in ranges_from_text(b"3,7-9").unwrap() {
            read.insert(range);
        }
        let contained: Vec<i64> = (0..12).filter(|offset| read.contains(*offset)).collect();
        assert_eq!(contained, [3, 7, 8, 9]);
        assert!(!read.is_empty() && Receipts::default().is_empty());
    }

    #[test]
    fn text_without_ranges_is_refused() {
        let bad: [&[u8]; 8] = [b"", b"x", b"-1", b"3-2", b"1,", b"1-", b"1-2-3", b"\xff"];
        for text in bad {
            assert_eq!(ranges_from_text(text), None, "{text:?}");
        }
    }
}
