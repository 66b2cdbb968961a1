//! A consumer with one task per partition.

use std::collections::HashMap;
use std::sync::Arc;

use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::message::OwnedMessage;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, block_in_place};

/// The number of records that wait for a task.
const QUEUED: usize = 100;

/// Passes records to `handle`, one after the other in each partition (of all topics), and commits
/// each one afterwards.
pub fn start<F, Fut>(
    consumer: Arc<StreamConsumer>,
    handle: F,
    parts: &mut JoinSet<anyhow::Result<()>>,
) where
    F: Fn(OwnedMessage) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    parts.spawn(async move {
        let mut of_partition: HashMap<i32, mpsc::Sender<OwnedMessage>> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let message = tokio::select! {
                message = consumer.recv() => message?.detach(),
                Some(ended) = tasks.join_next() => return ended?,
            };
            let queue = of_partition.entry(message.partition()).or_insert_with(|| {
                let (queue, messages) = mpsc::channel(QUEUED);
                let consumer = Arc::clone(&consumer);
                tasks.spawn(work(consumer, messages, handle.clone()));
                queue
            });
            // Fails only if the task has ended, which is detected next.
            let _ = queue.send(message).await;
        }
    });
}

async fn work<F, Fut>(
    consumer: Arc<StreamConsumer>,
    mut messages: mpsc::Receiver<OwnedMessage>,
    handle: F,
) -> anyhow::Result<()>
where
    F: Fn(OwnedMessage) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    while let Some(message) = messages.recv().await {
        let mut done = TopicPartitionList::new();
        let next = Offset::Offset(message.offset() + 1);
        done.add_partition_offset(message.topic(), message.partition(), next)?;
        handle(message).await?;
        block_in_place(|| consumer.commit(&done, CommitMode::Sync))?;
    }
    Ok(())
}
