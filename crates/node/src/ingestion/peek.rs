//! Reading one request back from its topic, so that a status can show it before a scheduler has.
//!
//! Why it exists. Until there is a row, a request lies nowhere but in the log, at the place that
//! its `Location` names. Keeping requests in memory as well would cost as much as the backlog. It is also how a place
//! that somebody made up is told from one that a `Location` named.
//!
//! What must hold: it is a convenience. A few questions may wait for it, one is answered at a time,
//! each within a short time; tenants share the room. A question without room, or without an
//! answer in time, does without.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;
use waybill_engine::{
    AmendRequest, CreateRequest, Offset, OperationRequest, PartitionId, Position,
};
use waybill_kafka::{
    ConsumerOptions, ErrorCode, KafkaSettings, PartitionConsumer, PollError, PollLimits,
    RequestError,
};
use waybill_messages::Topics;

use super::measure::{PENDING_READS, PENDING_READS_MAX};
use super::shares::Places;
use crate::auth::Tenants;

/// What lies at a place of a topic of requests.
#[derive(Debug)]
pub enum Peeked {
    /// The request that makes an operation.
    Create(Box<CreateRequest>),
    /// A request about an operation, such as to cancel it.
    Amend(Box<AmendRequest>),
    /// No record, or none that is a request.
    Nothing,
}

/// Reads single requests.
pub struct Peek {
    settings: KafkaSettings,
    topics: Topics,
    timeout: Duration,
    /// One for each that may wait.
    places: Places,
    /// Made by the first that needs it.
    consumer: Arc<Mutex<Option<PartitionConsumer>>>,
}

impl Peek {
    /// A reader of the requests that lets `waiting_max` wait for up to `timeout`.
    pub fn new(
        settings: KafkaSettings,
        topics: Topics,
        waiting_max: usize,
        timeout: Duration,
    ) -> Self {
        Self {
            settings,
            topics,
            timeout,
            places: Places::new(waiting_max, PENDING_READS.of([]), &PENDING_READS_MAX.of([])),
            consumer: Arc::default(),
        }
    }

    /// What lies at `position`, if that can be found out soon. It is asked for one of these tenants.
    pub async fn read(&self, position: Position, tenants: &Tenants) -> Option<Peeked> {
        let _place = self.places.share(tenants, 1)?;
        let due = Instant::now() + self.timeout;
        let turn = Arc::clone(&self.consumer).lock_owned();
        let consumer = tokio::time::timeout_at(due, turn).await.ok()?;
        let (settings, topics) = (self.settings.clone(), self.topics.clone());
        let read = move || read_within(consumer, &settings, &topics, position, due);
        tokio::task::spawn_blocking(read).await.ok()?
    }

    /// Lets the consumer go, once a read under way has ended. Blocks.
    pub fn close(&self) {
        drop(self.consumer.blocking_lock().take());
    }
}

impl fmt::Debug for Peek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peek")
            .field("topics", &self.topics.prefix())
            .finish_non_exhaustive()
    }
}

fn read_within(
    mut slot: OwnedMutexGuard<Option<PartitionConsumer>>,
    settings: &KafkaSettings,
    topics: &Topics,
    position: Position,
    due: Instant,
) -> Option<Peeked> {
    let Position {
        lane,
        partition,
        offset,
    } = position;
    let consumer = match slot.take() {
        Some(consumer) => consumer,
        None => PartitionConsumer::new(
            settings,
            &ConsumerOptions::single_records("waybill-ingestion-peek"),
        )
        .inspect_err(|error| tracing::warn!(%error, "pending requests cannot be read"))
        .ok()?,
    };
    let topic = topics.of_lane(lane);
    let left = || due.saturating_duration_since(Instant::now());
    // Asked first: a place behind the end of the log would be waited for.
    let found = match consumer.watermarks(topic, partition, left()) {
        Ok((_, end)) if offset >= end => Ok(Some(Peeked::Nothing)),
        Err(error) if is_unknown_partition(&error) => Ok(Some(Peeked::Nothing)),
        _ => {
            consumer.assign(&[(topic, partition, offset)]).ok()?;
            first(&consumer, topics, partition, offset, due)
        }
    };
    // Nothing is fetched between two reads. A consumer that cannot go on is made anew.
    if !matches!(found, Err(PollError::Fatal { .. })) && consumer.assign(&[]).is_ok() {
        *slot = Some(consumer);
    }
    found
        .inspect_err(
            |error| tracing::debug!(%error, %partition, %offset, "a pending request cannot be read"),
        )
        .ok()
        .flatten()
}

/// What lies at `offset`, where the consumer was assigned; `None` if nothing was read in time.
fn first(
    consumer: &PartitionConsumer,
    topics: &Topics,
    partition: PartitionId,
    offset: Offset,
    due: Instant,
) -> Result<Option<Peeked>, PollError> {
    let one = PollLimits {
        records: 1,
        bytes: usize::MAX,
    };
    let mut found = None;
    let left = due.saturating_duration_since(Instant::now());
    consumer.poll(one, left, &mut |record| {
        if (record.partition(), record.offset()) == (partition, offset) {
            let request = record
                .value()
                .and_then(|value| topics.framing().decode(value).ok());
            found = Some(match request {
                Some(OperationRequest::Create(create)) => Peeked::Create(Box::new(create)),
                Some(OperationRequest::Amend(amend)) => Peeked::Amend(Box::new(amend)),
                None => Peeked::Nothing,
            });
        } else {
            found = Some(Peeked::Nothing);
        }
    })?;
    Ok(found)
}

fn is_unknown_partition(error: &RequestError) -> bool {
    matches!(
        error.code(),
        Some(ErrorCode::UnknownPartition | ErrorCode::UnknownTopicOrPartition)
    )
}
