//! Whether a log of requests is the one that a checkpoint was taken on.
//!
//! Why it exists: **a checkpoint is valid for its own log only.** A topic that was deleted and created again holds new
//! requests at offsets that were done in the old one. Its schedulers refuse it until a person has decided. Code that relies
//! on a checkpoint must verify its log before that: the deletion of finished records, and status queries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use waybill_engine::{Offset, PartitionId};

use crate::{
    ClientError, ConsumerOptions, KafkaSettings, PartitionConsumer, PollError, PollLimits,
    RequestError, UNDECODABLE, fingerprint,
};

/// What tells the log of a checkpoint from another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The record at this offset, the last one below the checkpoint, has this fingerprint.
    Record(Offset, u64),
    /// Nothing of it was done, and the ID of its topic begins with this.
    Topic(u64),
    /// There is nothing to tell it by.
    Missing,
}

impl Mark {
    /// That of a checkpoint, from the fingerprint that the lease stores with it.
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
    /// It is.
    Same,
    /// It is another one.
    Another,
    /// What would tell is not there any more, or the brokers do not tell it.
    Unknown,
}

/// Why a log could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LogCheckError {
    /// No client could be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The brokers do not answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The record cannot be read.
    #[error(transparent)]
    Read(#[from] PollError),
    /// The record did not come in time.
    #[error("the record at offset {0} did not come in time")]
    Late(Offset),
    /// The thread that looked ended early.
    #[error("the log check did not finish")]
    Unfinished(#[from] tokio::task::JoinError),
}

/// Looks at logs, one at a time.
#[derive(Clone, Debug)]
pub struct LogCheck {
    kafka: KafkaSettings,
    client_name: &'static str,
    patience: Duration,
    /// Made by the first look.
    consumer: Arc<Mutex<Option<PartitionConsumer>>>,
}

impl LogCheck {
    /// One whose client has this name at the brokers, which may take as long as `patience` for a look. It connects when
    /// it is first used.
    #[must_use]
    pub fn new(kafka: KafkaSettings, client_name: &'static str, patience: Duration) -> Self {
        Self {
            kafka,
            client_name,
            patience,
            consumer: Arc::default(),
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
    ) -> Result<Identity, LogCheckError> {
        if mark == Mark::Missing {
            return Ok(Identity::Unknown);
        }
        let mut slot = Arc::clone(&self.consumer).lock_owned().await;
        let (check, topic) = (self.clone(), topic.to_owned());
        let look = move || {
            let consumer = match slot.take() {
                Some(consumer) => consumer,
                None => check.consumer()?,
            };
            let due = Instant::now() + check.patience;
            let found = look(&consumer, &topic, partition, mark, due)?;
            // One that failed is made anew.
            *slot = Some(consumer);
            Ok(found)
        };
        tokio::task::spawn_blocking(look).await?
    }

    /// Lets the client go, once a look under way has ended. Blocks.
    pub fn close(&self) {
        drop(self.consumer.blocking_lock().take());
    }

    fn consumer(&self) -> Result<PartitionConsumer, ClientError> {
        let options = ConsumerOptions::single_records(self.client_name);
        PartitionConsumer::new(&self.kafka, &options)
    }
}

fn look(
    consumer: &PartitionConsumer,
    topic: &str,
    partition: PartitionId,
    mark: Mark,
    due: Instant,
) -> Result<Identity, LogCheckError> {
    let left = || due.saturating_duration_since(Instant::now());
    let same_if = |is_same| match is_same {
        true => Identity::Same,
        false => Identity::Another,
    };
    let (offset, expected) = match mark {
        Mark::Missing => return Ok(Identity::Unknown),
        Mark::Topic(expected) => {
            let id = consumer.topic_id(topic, partition, left())?;
            return Ok(id.map_or(Identity::Unknown, |id| same_if(id.head() == expected)));
        }
        Mark::Record(offset, fingerprint) => (offset, fingerprint),
    };
    let (first, next) = consumer.watermarks(topic, partition, left())?;
    if offset >= next {
        return Ok(Identity::Another);
    }
    if offset < first {
        return Ok(Identity::Unknown);
    }
    consumer.assign(&[(topic, partition, offset)])?;
    let found = fingerprint_at(consumer, offset, due)?;
    consumer.assign(&[])?;
    Ok(found.map_or(Identity::Unknown, |found| same_if(found == expected)))
}

/// The fingerprint of the first record that comes, if that is the one at `offset`: it may have been compacted away.
fn fingerprint_at(
    consumer: &PartitionConsumer,
    offset: Offset,
    due: Instant,
) -> Result<Option<u64>, LogCheckError> {
    let one = PollLimits {
        records: 1,
        bytes: usize::MAX,
    };
    loop {
        let left = due.saturating_duration_since(Instant::now());
        let mut came = None;
        consumer.poll(one, left, &mut |record| {
            came = Some((record.offset(), fingerprint(&record)));
        })?;
        match came {
            Some((at, fingerprint)) => return Ok((at == offset).then_some(fingerprint)),
            None if left.is_zero() => return Err(LogCheckError::Late(offset)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_known_by_the_record_below_it_or_by_its_topic_where_there_is_none() {
        assert_eq!(Mark::of(Offset(0), Some(7)), Mark::Topic(7));
        assert_eq!(Mark::of(Offset(3), Some(7)), Mark::Record(Offset(2), 7));
        assert_eq!(Mark::of(Offset(3), Some(UNDECODABLE)), Mark::Missing);
        assert_eq!(Mark::of(Offset(3), None), Mark::Missing);
        assert_eq!(Mark::of(Offset(0), None), Mark::Missing);
    }
}
