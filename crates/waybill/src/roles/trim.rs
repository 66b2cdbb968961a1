//! Giving back the disk that finished requests take on the embedded broker.
//!
//! The requests topic has a bound on disk, past which ingestion answers 503. What is done must not
//! count against it: records below the checkpoint are deleted, all but the last, whose fingerprint
//! the next owner of the partition checks. On Kafka retention does this.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::{Admin, KafkaSettings};
use waybill_store::Store;

use crate::readers;
use crate::spread::Spread;

/// How often the checkpoints are looked at.
const INTERVAL: Duration = Duration::from_secs(10);

/// Deletes finished requests until it is stopped.
pub(super) async fn run(
    kafka: KafkaSettings,
    requests: String,
    spread: Spread,
    store: Arc<dyn Store>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let admin = Admin::new(&kafka, "waybill-trim")?;
    let mut trimmed: BTreeMap<PartitionId, Offset> = BTreeMap::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let layout = readers::layout(&*store, spread.partitions()).await?;
        // Readers may have to begin again further back than those stand whom they follow.
        if layout.becomes().is_some() {
            continue;
        }
        let mut below = Vec::new();
        for partition in (0..layout.division().partitions).map(PartitionId) {
            let trimmed = trimmed.entry(partition).or_default();
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
        let stands = readers::layout(&*store, spread.partitions()).await?;
        if stands.generation() != layout.generation() {
            trimmed.clear();
            continue;
        }
        if let Err(error) = admin.delete_records(&requests, &below).await {
            tracing::warn!(%error, "finished requests could not be deleted; trying again later");
            trimmed.clear();
        }
    }
}
