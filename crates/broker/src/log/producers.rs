//! A partition's state of its idempotent producers: enough to refuse a gap and to recognise a
//! repetition.
//!
//! What must hold: a repetition of any of a producer's last five batches is answered with the
//! offset that it got first, also after a restart. The state is rebuilt from batch headers, so
//! nothing here is written separately; a closed segment's index carries a copy of it.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use waybill_wire::batch::{BatchHeader, sequence_after};

/// Batches remembered per producer: as many as a client may have in flight.
const REMEMBERED: usize = 5;

/// The producers of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Producers {
    entries: HashMap<i64, Producer>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Producer {
    epoch: i16,
    batches: VecDeque<Remembered>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Remembered {
    first_sequence: i32,
    last_sequence: i32,
    base_offset: i64,
    last_offset: i64,
}

/// How a batch relates to its producer's earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sequence {
    /// It is the next one.
    Next,
    /// It was appended before, at these offsets.
    Duplicate {
        /// The offset of its first record.
        base_offset: i64,
        /// The offset of its last record.
        last_offset: i64,
    },
}

/// Why a producer's batch is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SequenceError {
    /// Batches before this one are missing.
    OutOfOrder,
    /// A newer producer with the same id has taken over.
    Epoch,
}

impl Producers {
    /// Checks the sequence of a batch that is about to be appended.
    pub(crate) fn check(&self, batch: &BatchHeader) -> Result<Sequence, SequenceError> {
        if !batch.is_idempotent() {
            return Ok(Sequence::Next);
        }
        // An unknown producer may begin anywhere: its earlier batches may have been deleted.
        let Some(producer) = self.entries.get(&batch.producer_id) else {
            return Ok(Sequence::Next);
        };
        match batch.producer_epoch.cmp(&producer.epoch) {
            std::cmp::Ordering::Less => return Err(SequenceError::Epoch),
            std::cmp::Ordering::Greater if batch.base_sequence == 0 => return Ok(Sequence::Next),
            std::cmp::Ordering::Greater => return Err(SequenceError::OutOfOrder),
            std::cmp::Ordering::Equal => {}
        }
        let repeated = producer.batches.iter().find(|known| {
            known.first_sequence == batch.base_sequence
                && known.last_sequence == batch.last_sequence()
        });
        if let Some(known) = repeated {
            return Ok(Sequence::Duplicate {
                base_offset: known.base_offset,
                last_offset: known.last_offset,
            });
        }
        match producer.batches.back() {
            Some(last) if sequence_after(last.last_sequence, 1) != batch.base_sequence => {
                Err(SequenceError::OutOfOrder)
            }
            _ => Ok(Sequence::Next),
        }
    }

    /// Remembers a batch that was appended at `base_offset`, and forgets the longest unused
    /// producer beyond `producers_max`.
    pub(crate) fn record(&mut self, batch: &BatchHeader, base_offset: i64, producers_max: usize) {
        if !batch.is_idempotent() {
            return;
        }
        if self.entries.len() >= producers_max.max(1)
            && !self.entries.contains_key(&batch.producer_id)
        {
            let oldest = self
                .entries
                .iter()
                .min_by_key(|(_, producer)| producer.batches.back().map(|last| last.last_offset))
                .map(|(&id, _)| id);
            if let Some(id) = oldest {
                self.entries.remove(&id);
            }
        }
        let producer = self
            .entries
            .entry(batch.producer_id)
            .or_insert_with(|| Producer {
                epoch: batch.producer_epoch,
                batches: VecDeque::with_capacity(REMEMBERED),
            });
        if producer.epoch != batch.producer_epoch {
            producer.epoch = batch.producer_epoch;
            producer.batches.clear();
        }
        if producer.batches.len() == REMEMBERED {
            producer.batches.pop_front();
        }
        producer.batches.push_back(Remembered {
            first_sequence: batch.base_sequence,
            last_sequence: batch.last_sequence(),
            base_offset,
            last_offset: base_offset + i64::from(batch.last_offset_delta),
        });
    }
}

#[cfg(test)]
mod tests {
    use waybill_wire::batch::made::batch;

    use super::*;

    fn header(producer: i64, epoch: i16, sequence: i32, records: usize) -> BatchHeader {
        BatchHeader::of_produced(&batch(producer, epoch, sequence, &vec![1; records])).unwrap()
    }

    #[test]
    fn the_last_five_batches_are_recognised_and_older_ones_are_out_of_order() {
        let mut producers = Producers::default();
        for n in 0..7 {
            let next = header(9, 0, n * 2, 2);
            assert_eq!(producers.check(&next), Ok(Sequence::Next));
            producers.record(&next, i64::from(n) * 2, 10);
        }
        for n in 2..7 {
            assert_eq!(
                producers.check(&header(9, 0, n * 2, 2)),
                Ok(Sequence::Duplicate {
                    base_offset: i64::from(n) * 2,
                    last_offset: i64::from(n) * 2 + 1
                })
            );
        }
        assert_eq!(
            producers.check(&header(9, 0, 2, 2)),
            Err(SequenceError::OutOfOrder)
        );
        assert_eq!(
            producers.check(&header(9, 0, 12, 1)),
            Err(SequenceError::OutOfOrder)
        );
        assert_eq!(
            producers.check(&header(9, 0, 15, 1)),
            Err(SequenceError::OutOfOrder)
        );
        assert_eq!(producers.check(&header(9, 0, 14, 1)), Ok(Sequence::Next));
    }

    #[test]
    fn a_newer_epoch_begins_at_zero_and_fences_the_older() {
        let mut producers = Producers::default();
        producers.record(&header(9, 0, 0, 1), 0, 10);
        assert_eq!(
            producers.check(&header(9, 1, 1, 1)),
            Err(SequenceError::OutOfOrder)
        );
        assert_eq!(producers.check(&header(9, 1, 0, 1)), Ok(Sequence::Next));
        producers.record(&header(9, 1, 0, 1), 1, 10);
        assert_eq!(
            producers.check(&header(9, 0, 1, 1)),
            Err(SequenceError::Epoch)
        );
    }

    #[test]
    fn the_longest_unused_producer_is_forgotten_first() {
        let mut producers = Producers::default();
        for id in 0..3 {
            producers.record(&header(id, 0, 0, 1), id, 3);
        }
        producers.record(&header(0, 0, 1, 1), 3, 3);
        producers.record(&header(7, 0, 0, 1), 4, 3);
        assert_eq!(
            producers.check(&header(1, 0, 5, 1)),
            Ok(Sequence::Next),
            "1 is unknown"
        );
        assert_eq!(
            producers.check(&header(0, 0, 5, 1)),
            Err(SequenceError::OutOfOrder)
        );
    }

    #[test]
    fn batches_without_a_producer_id_have_no_sequence() {
        let mut producers = Producers::default();
        let plain = header(-1, -1, -1, 1);
        producers.record(&plain, 0, 10);
        assert_eq!(producers.check(&plain), Ok(Sequence::Next));
    }
}
