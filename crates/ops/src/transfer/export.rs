//! Writing all operations of a store.

use std::io::{self, Write};

use anyhow::Context as _;
use futures_util::TryStreamExt as _;
use waybill_clock::time_text;
use waybill_clock::wall_clock;
use waybill_engine::{Offset, PartitionId, Priority};
use waybill_kafka::Admin;
use waybill_messages::Topics;
use waybill_node::config::Config;
use waybill_node::data_dir;
use waybill_store::{EveryRow, Layout, Store, StoreError};
use waybill_telemetry::chain;
use waybill_topology::shards;

use super::line::{End, FORMAT, Header, Line, Operation};
use super::open;

/// The totals of an export, and its warnings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Exported {
    /// Written operations.
    pub(super) operations: u64,
    /// Unreadable rows, which were not written.
    pub(super) unreadable: u64,
    /// Damaged parts of the store that were found, which may hold further operations.
    pub(super) damaged: u64,
    /// Requests on the topic that no scheduler has consumed, so that they have no row; `None` if
    /// unknown.
    pub(super) waiting: Option<u64>,
    /// Shards with a running scheduler, if other processes may have the store open. Their later
    /// changes are not in the file.
    pub(super) owned: usize,
}

/// Writes every operation of the configured store to `out`.
///
/// # Errors
///
/// If the store cannot be read, or `out` cannot be written. The output then lacks its end line.
pub(super) async fn export(config: &Config, out: &mut dyn Write) -> anyhow::Result<Exported> {
    let is_exclusive = config.store.is_exclusive();
    let dir = data_dir::of_store(&config.data_dir);
    anyhow::ensure!(
        !is_exclusive || dir.exists(),
        "{} does not exist: name the directory of an embedded store with --data-dir, or a cluster with --scylla",
        dir.display()
    );
    let opened = open(config).await?;
    let store = &*opened.store();
    let rows = opened.rows().await?;
    let layout = shards::layout(store, config.partitions).await?;
    let waiting = waiting(config, store, &layout).await?;
    let owned = match is_exclusive {
        true => 0,
        false => owned(store, &layout).await?,
    };
    let (operations, unreadable) = write(&layout, rows, out).await?;
    let damage = store.damage();
    let damaged = damage.parts.iter().filter(|part| part.table.is_some());
    Ok(Exported {
        operations,
        unreadable,
        damaged: damaged.count() as u64 + damage.more,
        waiting,
        owned,
    })
}

async fn write(
    layout: &Layout,
    mut rows: EveryRow<'_>,
    out: &mut dyn Write,
) -> anyhow::Result<(u64, u64)> {
    let mut put = |line: &Line| -> anyhow::Result<()> {
        // A failure of the output stays recognizable, such as a pipe whose reader has left.
        serde_json::to_writer(&mut *out, line).map_err(io::Error::from)?;
        Ok(out.write_all(b"\n")?)
    };
    put(&Line::Export(Header {
        format: FORMAT,
        partitions: layout.partitions_written(),
        at: time_text(wall_clock()),
    }))?;
    let (mut operations, mut unreadable) = (0, 0);
    while let Some(row) = rows.try_next().await? {
        match row {
            Ok(kept) => match Operation::of(&kept) {
                Ok(operation) => {
                    put(&Line::Operation(Box::new(operation)))?;
                    operations += 1;
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "left out a row");
                    unreadable += 1;
                }
            },
            Err(corrupt) => {
                tracing::warn!(%corrupt, "left out a row");
                unreadable += 1;
            }
        }
    }
    put(&Line::End(End { operations }))?;
    out.flush()?;
    Ok((operations, unreadable))
}

/// The number of requests on the topic that no scheduler has consumed.
async fn waiting(
    config: &Config,
    store: &dyn Store,
    layout: &Layout,
) -> anyhow::Result<Option<u64>> {
    let topics = Topics::new(&config.kafka.topic_prefix);
    let partitions: Vec<_> = (0..layout.partitions_written()).map(PartitionId).collect();
    let broker = data_dir::of_broker(&config.data_dir);
    let mut waiting = 0;
    for priority in Priority::ALL {
        let topic = topics.of_priority(priority);
        let ends: Vec<Offset> = if config.kafka.brokers.is_some() {
            let admin = Admin::new(&config.kafka_settings(None), "waybill-export")?;
            let offsets = admin.offsets(topic, &partitions).await;
            let offsets = offsets.context("cannot read the end offsets of the request topics")?;
            offsets.into_iter().map(|(_, end)| end).collect()
        } else if config.store.is_exclusive() && broker.exists() {
            let ends = waybill_broker::log_ends(&broker, topic);
            let ends = ends.context("cannot read the end offsets of the request topics")?;
            ends.into_iter().map(Offset).collect()
        } else {
            return Ok(None);
        };
        for (&partition, end) in partitions.iter().zip(ends) {
            let consumed = shards::consumed(store, layout, priority, partition).await?;
            waiting += u64::try_from(end.0.saturating_sub(consumed.0)).unwrap_or(0);
        }
    }
    Ok(Some(waiting))
}

/// The number of shards that have an owner.
async fn owned(store: &dyn Store, layout: &Layout) -> Result<usize, StoreError> {
    let mut owned = 0;
    for shard in layout.scheme().all() {
        let lease = shards::current_lease(store, layout, layout.generation(), shard).await?;
        owned += usize::from(lease.owner.is_some());
    }
    Ok(owned)
}
