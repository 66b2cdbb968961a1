//! Whether a log is the one that a checkpoint was taken on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{ClientError, ConsumerOptions, KafkaSettings, PartitionConsumer, PollLimits};
use waybill_node::scheduler::{UNDECODABLE, fingerprint};

/// How long a broker may take to answer, and to hand over a record.
const PATIENCE: Duration = Duration::from_secs(5);

/// What tells the log of a checkpoint from another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// The record at this offset, the last one below the checkpoint, has this fingerprint.
    Record(Offset, u64),
    /// The checkpoint has no fingerprint of a record.
    Missing,
    /// Nobody reads there any more, or nothing is lost by deleting too much.
    NotNeeded,
}

impl Mark {
    pub(super) fn of(last: Offset, fingerprint: Option<u64>) -> Self {
        match fingerprint {
            Some(fingerprint) if fingerprint != UNDECODABLE => Self::Record(last, fingerprint),
            Some(_) | None => Self::Missing,
        }
    }
}

/// What a look at a log came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// It is the one that the checkpoint was taken on.
    Same,
    /// It is another one.
    Another,
    /// The record is not there to compare.
    Unknown,
}

/// Reads single records.
#[derive(Clone)]
pub(super) struct Log(Arc<PartitionConsumer>);

impl Log {
    pub(super) fn new(kafka: &KafkaSettings) -> Result<Self, ClientError> {
        let options = ConsumerOptions {
            queue_records_max: 1,
            ..ConsumerOptions::new("waybill-trim-log")
        };
        Ok(Self(Arc::new(PartitionConsumer::new(kafka, &options)?)))
    }

    /// Whether the log of a partition has this mark.
    ///
    /// # Errors
    ///
    /// If the broker does not answer, or the record cannot be read.
    pub(super) async fn fits(
        &self,
        topic: &str,
        partition: PartitionId,
        mark: Mark,
    ) -> anyhow::Result<Fit> {
        let (offset, expected) = match mark {
            Mark::NotNeeded => return Ok(Fit::Same),
            Mark::Missing => return Ok(Fit::Unknown),
            Mark::Record(offset, fingerprint) => (offset, fingerprint),
        };
        let (log, topic) = (self.clone(), topic.to_owned());
        let look = move || log.look(&topic, partition, offset, expected);
        tokio::task::spawn_blocking(look).await?
    }

    fn look(
        &self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        expected: u64,
    ) -> anyhow::Result<Fit> {
        let (first, next) = self.0.watermarks(topic, partition, PATIENCE)?;
        if offset >= next {
            return Ok(Fit::Another);
        }
        if offset < first {
            return Ok(Fit::Unknown);
        }
        self.0.assign(&[(topic, partition, offset)])?;
        let found = self.fingerprint_at(offset);
        self.0.assign(&[])?;
        Ok(match found? {
            Some(found) if found == expected => Fit::Same,
            Some(_) => Fit::Another,
            None => Fit::Unknown,
        })
    }

    /// The fingerprint of the first record that comes, if that is the one at `offset`.
    fn fingerprint_at(&self, offset: Offset) -> anyhow::Result<Option<u64>> {
        let one = PollLimits {
            records: 1,
            bytes: usize::MAX,
        };
        let due = Instant::now() + PATIENCE;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            let mut came = None;
            self.0.poll(one, left, &mut |record| {
                came = Some((record.offset(), fingerprint(&record)));
            })?;
            match came {
                Some((at, fingerprint)) => return Ok((at == offset).then_some(fingerprint)),
                None if left.is_zero() => return Ok(None),
                None => {}
            }
        }
    }
}
