//! Whether a log of requests is the one that a checkpoint was taken on.
//!
//! Why it exists: **a checkpoint is valid for its own log only.** A topic that was deleted and
//! recreated has new requests at offsets that were done in the old one. Its schedulers refuse it
//! until an operator decides. Code that relies on a checkpoint must first verify its log: the
//! deletion of finished records, and status queries.

use std::time::{Duration, Instant};

use waybill_engine::{Offset, PartitionId};

use crate::record_reader::{AtOffset, ReadError, RecordReader};
use crate::{KafkaSettings, RecordRef, UNDECODABLE, fingerprint};

/// What identifies the log of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The fingerprint of the last record below the checkpoint, with its offset.
    Record(Offset, u64),
    /// No record was done yet; the ID of the topic begins with these bits.
    Topic(u64),
    /// Nothing identifies it.
    Missing,
}

impl Mark {
    /// The mark of a checkpoint, from the fingerprint that the lease stores with it.
    #[must_use]
    pub fn of(checkpoint: Offset, fingerprint: Option<u64>) -> Self {
        match fingerprint {
            Some(topic) if checkpoint == Offset(0) => Self::Topic(topic),
            Some(record) if record != UNDECODABLE => Self::Record(Offset(checkpoint.0 - 1), record),
            Some(_) | None => Self::Missing,
        }
    }
}

/// Whether a log is the one that a checkpoint was taken on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// It is the same log.
    Same,
    /// It is another log.
    Another,
    /// The identifying record no longer exists, or the brokers do not return the topic's ID.
    Unknown,
}

/// Checks logs, one at a time.
#[derive(Clone, Debug)]
pub struct LogCheck {
    reader: RecordReader,
    patience: Duration,
}

impl LogCheck {
    /// Creates a check whose client has this name at the brokers. One check may take `patience`.
    /// Connects on first use.
    #[must_use]
    pub fn new(kafka: KafkaSettings, client_name: &'static str, patience: Duration) -> Self {
        Self {
            reader: RecordReader::new(kafka, client_name),
            patience,
        }
    }

    /// Whether the log of a partition has this mark.
    ///
    /// # Errors
    ///
    /// If the brokers do not answer in time, or the record cannot be read.
    pub async fn identity(
        &self,
        topic: &str,
        partition: PartitionId,
        mark: Mark,
    ) -> Result<Identity, ReadError> {
        let same_if = |is_same| match is_same {
            true => Identity::Same,
            false => Identity::Another,
        };
        let permit = async || {
            let permit = self.reader.acquire().await;
            (permit, Instant::now() + self.patience)
        };
        Ok(match mark {
            Mark::Missing => Identity::Unknown,
            Mark::Topic(expected) => {
                let (permit, due) = permit().await;
                let id = permit.topic_id(topic, partition, due).await?;
                id.map_or(Identity::Unknown, |id| same_if(id.head() == expected))
            }
            Mark::Record(offset, expected) => {
                let (permit, due) = permit().await;
                let convert = |record: RecordRef<'_>| fingerprint(&record);
                match permit.read(topic, partition, offset, due, convert).await? {
                    AtOffset::Record(found) => same_if(found == expected),
                    AtOffset::Ahead => Identity::Another,
                    AtOffset::Deleted | AtOffset::Absent => Identity::Unknown,
                }
            }
        })
    }

    /// Closes the client after the check in progress. Blocks.
    pub fn close(&self) {
        self.reader.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_identified_by_its_record_or_its_topic() {
        assert_eq!(Mark::of(Offset(0), Some(7)), Mark::Topic(7));
        assert_eq!(Mark::of(Offset(3), Some(7)), Mark::Record(Offset(2), 7));
        assert_eq!(Mark::of(Offset(3), Some(UNDECODABLE)), Mark::Missing);
        assert_eq!(Mark::of(Offset(3), None), Mark::Missing);
        assert_eq!(Mark::of(Offset(0), None), Mark::Missing);
    }
}
