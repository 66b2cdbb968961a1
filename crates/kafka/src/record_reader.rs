//! Reads single records by their offsets: the last one below a checkpoint, or a request that a
//! client asks about.
//!
//! What must hold: one record is read at a time, and nothing is fetched between two reads.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Mutex, OwnedMutexGuard};
use waybill_engine::{Offset, PartitionId};

use crate::{
    ClientError, ConsumerOptions, KafkaSettings, PartitionConsumer, PollError, PollLimits,
    RecordRef, RequestError, TopicId,
};

/// What was found at an offset of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AtOffset<T> {
    /// A record.
    Record(T),
    /// The log ends before it.
    Ahead,
    /// Retention has deleted it.
    Deleted,
    /// No record, though others follow: compaction removed it, or it is not an application's
    /// record.
    Absent,
}

/// Why an offset could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No client could be created.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The brokers do not answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The record cannot be read.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// The record did not arrive in time.
    #[error("the record at offset {0} did not arrive in time")]
    Late(Offset),
    /// The reading thread ended early.
    #[error("the read did not finish")]
    Unfinished(#[from] tokio::task::JoinError),
}

/// Reads single records. Connects on first use, and keeps the connection between reads.
#[derive(Clone, Debug)]
pub struct RecordReader {
    kafka: KafkaSettings,
    client_name: &'static str,
    consumer: Arc<Mutex<Option<PartitionConsumer>>>,
}

impl RecordReader {
    /// Creates a reader whose client has this name at the brokers.
    #[must_use]
    pub fn new(kafka: KafkaSettings, client_name: &'static str) -> Self {
        Self {
            kafka,
            client_name,
            consumer: Arc::default(),
        }
    }

    /// Waits until no other read is in progress.
    pub async fn acquire(&self) -> ReadPermit {
        ReadPermit {
            slot: Arc::clone(&self.consumer).lock_owned().await,
            reader: self.clone(),
        }
    }

    /// Closes the connection after the read in progress. Blocks.
    pub fn close(&self) {
        drop(self.consumer.blocking_lock().take());
    }

    fn consumer(&self) -> Result<PartitionConsumer, ClientError> {
        let options = ConsumerOptions::single_records(self.client_name);
        PartitionConsumer::new(&self.kafka, &options)
    }
}

/// The right to the next read of a [`RecordReader`].
#[derive(Debug)]
pub struct ReadPermit {
    slot: OwnedMutexGuard<Option<PartitionConsumer>>,
    reader: RecordReader,
}

impl ReadPermit {
    /// Reads `offset`, until `due`; `convert` maps the record to the result.
    ///
    /// # Errors
    ///
    /// If the brokers do not answer in time, or the record cannot be read.
    pub async fn read<T: Send + 'static>(
        self,
        topic: &str,
        partition: PartitionId,
        offset: Offset,
        due: Instant,
        convert: impl Fn(RecordRef<'_>) -> T + Send + 'static,
    ) -> Result<AtOffset<T>, ReadError> {
        let topic = topic.to_owned();
        self.run(move |consumer| {
            let left = due.saturating_duration_since(Instant::now());
            // Checked first: otherwise the read would wait for a record that does not exist yet.
            let (first, next) = consumer.watermarks(&topic, partition, left)?;
            if offset >= next {
                return Ok(AtOffset::Ahead);
            }
            if offset < first {
                return Ok(AtOffset::Deleted);
            }
            consumer.assign(&[(&topic, partition, offset)])?;
            first_record(consumer, (&topic, partition, offset), due, convert)
        })
        .await
    }

    /// The ID of a topic; `None` if the brokers give none.
    pub(crate) async fn topic_id(
        self,
        topic: &str,
        partition: PartitionId,
        due: Instant,
    ) -> Result<Option<TopicId>, ReadError> {
        let topic = topic.to_owned();
        self.run(move |consumer| {
            let left = due.saturating_duration_since(Instant::now());
            Ok(consumer.topic_id(&topic, partition, left)?)
        })
        .await
    }

    async fn run<T: Send + 'static>(
        mut self,
        ask: impl FnOnce(&PartitionConsumer) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let run = move || {
            let consumer = match self.slot.take() {
                Some(consumer) => consumer,
                None => self.reader.consumer()?,
            };
            let found = ask(&consumer);
            // A consumer that cannot continue is recreated.
            let is_fatal = matches!(found, Err(ReadError::Poll(PollError::Fatal { .. })));
            if !is_fatal && consumer.assign(&[]).is_ok() {
                *self.slot = Some(consumer);
            }
            found
        };
        tokio::task::spawn_blocking(run).await?
    }
}

/// The first record of the topic and partition, if it is the one at the offset.
fn first_record<T>(
    consumer: &PartitionConsumer,
    wanted: (&str, PartitionId, Offset),
    due: Instant,
    convert: impl Fn(RecordRef<'_>) -> T,
) -> Result<AtOffset<T>, ReadError> {
    let one = PollLimits {
        records: 1,
        bytes: usize::MAX,
    };
    loop {
        let left = due.saturating_duration_since(Instant::now());
        let mut came = None;
        consumer.poll(one, left, &mut |record| {
            // Skips a record of an earlier read.
            if (record.topic(), record.partition()) == (wanted.0, wanted.1) {
                came = Some(match record.offset() == wanted.2 {
                    true => AtOffset::Record(convert(record)),
                    false => AtOffset::Absent,
                });
            }
        })?;
        match came {
            Some(found) => return Ok(found),
            None if left.is_zero() => return Err(ReadError::Late(wanted.2)),
            None => {}
        }
    }
}
