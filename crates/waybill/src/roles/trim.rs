//! Giving back the disk that finished requests take on the embedded broker.
//!
//! The requests topic has a bound on disk, past which ingestion answers 503. What is done must not
//! count against it: records below the checkpoint are deleted, all but the last, whose fingerprint
//! the next owner of the partition checks. On Kafka retention does this.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{Admin, KafkaSettings};
use waybill_store::Store;

use crate::readers;

/// How often the checkpoints are looked at.
const INTERVAL: Duration = Duration::from_secs(10);

/// Deletes finished requests until it is stopped.
pub(super) async fn run(
    kafka: KafkaSettings,
    requests: String,
    partitions: u32,
    store: Arc<dyn Store>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let admin = Admin::new(&kafka, "waybill-trim")?;
    let mut trimmed: Vec<Offset> = vec![Offset(0); partitions as usize];
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let layout = readers::layout(&*store, partitions).await?;
        let mut below = Vec::new();
        for (partition, trimmed) in (0..).map(PartitionId).zip(&mut trimmed) {
            let done = readers::requests_done(&*store, &layout, partition).await?;
            let keep_from = Offset(done.0 - 1);
            if keep_from > *trimmed {
                *trimmed = keep_from;
                below.push((partition, keep_from));
            }
        }
        if below.is_empty() {
            continue;
        }
        if let Err(error) = admin.delete_records(&requests, &below).await {
            tracing::warn!(%error, "finished requests could not be deleted; trying again later");
            trimmed.fill(Offset(0));
        }
    }
}
