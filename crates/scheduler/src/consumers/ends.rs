//! Reads where logs begin and end. An error is text: it names its causes, and nothing depends on
//! it.

use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{Offset, PartitionId, Source};
use waybill_kafka::{ErrorCode, PartitionConsumer};
use waybill_scheduler_core::LogEnds;
use waybill_telemetry::chain;

/// Broker timeout for reading the end of a log and the ID of its topic.
const ENDS_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads from the broker where the logs of a partition begin and end.
#[derive(Clone)]
pub(crate) struct EndsReader {
    pub(super) consumer: Arc<PartitionConsumer>,
    pub(super) topics: Vec<(Source, Arc<str>)>,
}

impl EndsReader {
    /// Asks the broker.
    pub(crate) async fn read(&self, partition: PartitionId) -> Result<LogEnds, String> {
        let reader = self.clone();
        let read = move || -> Result<LogEnds, String> {
            let mut ends = LogEnds::default();
            for (source, topic) in &reader.topics {
                let (first, next) = reader
                    .consumer
                    .watermarks(topic, partition, ENDS_TIMEOUT)
                    .map_err(|error| chain(&error))?;
                *ends.first.on_mut(*source) = first;
                *ends.next.on_mut(*source) = next;
                // Read last, so that a topic that is recreated in the meantime is noticed.
                if let Some(priority) = source.priority() {
                    let id = reader.consumer.topic_id(topic, partition, ENDS_TIMEOUT);
                    ends.topics[priority] = id.map_err(|error| chain(&error))?;
                }
            }
            Ok(ends)
        };
        blocking(read).await
    }

    /// Reads the copy of the checkpoint for lag tools from the broker; `None` if there is none, or
    /// if this process is not authorized to read it. The scheduler never resumes from it.
    pub(crate) async fn committed(
        &self,
        source: Source,
        partition: PartitionId,
    ) -> Result<Option<Offset>, String> {
        let reader = self.clone();
        let read = move || -> Result<Option<Offset>, String> {
            let topics = reader.topics.iter().filter(|(of, _)| *of == source);
            let asked: Vec<(&str, PartitionId)> =
                topics.map(|(_, topic)| (&**topic, partition)).collect();
            match reader.consumer.committed(&asked, ENDS_TIMEOUT) {
                Ok(committed) => Ok(committed.into_iter().flatten().next()),
                Err(error) if error.code() == Some(ErrorCode::GroupAuthorizationFailed) => {
                    tracing::warn!(
                        %partition,
                        error = %chain(&error),
                        "could not read committed offsets; skipping the check whether the \
                         partition ran before"
                    );
                    Ok(None)
                }
                Err(error) => Err(chain(&error)),
            }
        };
        blocking(read).await
    }
}

/// Runs a request to the broker on a thread that may block.
async fn blocking<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let answer = tokio::task::spawn_blocking(ask).await;
    answer.unwrap_or_else(|panicked| Err(panicked.to_string()))
}
