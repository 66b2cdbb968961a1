//! Where logs begin and end.

use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{PartitionId, Source};
use waybill_kafka::PartitionConsumer;

use crate::chain::chain;
use crate::scheduler::input::{AcquireError, LogEnds};

/// How long a broker may take to tell where a log ends.
const ENDS_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the broker where the logs of a partition begin and end.
#[derive(Clone)]
pub(in crate::scheduler) struct EndsReader {
    pub(super) consumer: Arc<PartitionConsumer>,
    pub(super) topics: Vec<(Source, Arc<str>)>,
}

impl EndsReader {
    /// Asks the broker.
    pub(in crate::scheduler) async fn read(
        &self,
        partition: PartitionId,
    ) -> Result<LogEnds, AcquireError> {
        let reader = self.clone();
        let read = move || -> Result<LogEnds, String> {
            let mut ends = LogEnds::default();
            for (source, topic) in &reader.topics {
                let found = reader
                    .consumer
                    .watermarks(topic, partition, ENDS_TIMEOUT)
                    .map_err(|error| chain(&error))?;
                *ends.of(*source) = found;
            }
            Ok(ends)
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(ends) => ends.map_err(AcquireError::Broker),
            Err(panicked) => Err(AcquireError::Broker(panicked.to_string())),
        }
    }
}
