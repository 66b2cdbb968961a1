//! `waybill shards`: shows the shards of each partition and their progress, and changes their
//! number.
//!
//! The command uses the store itself, unless the store belongs to the process of `up` alone, which
//! answers on its admin port.

use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::json;
use waybill_node::config::Config;
use waybill_terminal::OutputArgs;
use waybill_topology::shards::show::{LayoutView, Shards};
use waybill_units::{duration_from_text, duration_to_text};

use crate::access::AdminArgs;
use crate::admin_port;
use crate::runtime::runtime;

/// The maximum time to show the shards. A repartition may take longer.
const SHOW_PATIENCE: Duration = Duration::from_secs(3);

/// The interval between two requests for the shards' state.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// What to do with shards.
#[derive(Clone, Debug, Subcommand)]
pub enum ShardsCommand {
    /// Show the layout, and the owner and the progress of each shard, and what it waits for
    Show {
        /// The output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Change the number of shards per partition without a stop, to a multiple of the current
    /// number, or to a divisor of it
    Set {
        /// The new number of shards per partition
        #[arg(value_name = "M")]
        per_partition: u32,
        /// Wait until every shard of the new layout has an owner, for at most this long
        #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_from_text)]
        wait: Duration,
        /// The output format.
        #[command(flatten)]
        output: OutputArgs,
    },
}

impl ShardsCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// If the process or the store is unavailable, or this number of shards is not possible.
    pub fn run(&self, config: &Config, admin: &AdminArgs) -> anyhow::Result<String> {
        let (wanted, wait, output) = match *self {
            Self::Show { output } => (None, Duration::ZERO, output),
            Self::Set {
                per_partition,
                wait,
                output,
            } => (Some(per_partition), wait, output),
        };
        let until = Instant::now() + wait;
        let view = runtime()?.block_on(async {
            let mut view = shards(config, admin, wanted).await?;
            while !wait.is_zero() && view.has_unowned() {
                anyhow::ensure!(
                    Instant::now() < until,
                    "the number of shards has changed, and not every shard has an owner after {}; `waybill shards show` \
                     says what they wait for",
                    duration_to_text(wait)
                );
                tokio::time::sleep(ASK_EVERY).await;
                view = shards(config, admin, None).await?;
            }
            Ok(view)
        })?;
        Ok(output.text(&view)?.trim_end().to_owned())
    }
}

/// Returns the current shards, or repartitions to `wanted` shards per partition.
///
/// # Errors
///
/// As [`ShardsCommand::run`].
pub(crate) async fn shards(
    config: &Config,
    admin: &AdminArgs,
    wanted: Option<u32>,
) -> anyhow::Result<LayoutView> {
    if config.store.is_exclusive() {
        return ask(config, admin, wanted).await;
    }
    let opened = config.store_backend().open().await?;
    let shards = Shards::new(opened.store(), config.partitions);
    match wanted {
        Some(per_partition) => Ok(shards.set(per_partition).await?),
        None => Ok(shards.show().await?),
    }
}

/// Sends the request to the process that has the store.
async fn ask(
    config: &Config,
    admin: &AdminArgs,
    wanted: Option<u32>,
) -> anyhow::Result<LayoutView> {
    let url = admin.url(config, "/shards")?;
    let client = admin_port::client(&admin.access, admin_port::PATIENCE)?;
    let request = match wanted {
        Some(per_partition) => client
            .put(&url)
            .json(&json!({ "perPartition": per_partition })),
        None => client.get(&url).timeout(SHOW_PATIENCE),
    };
    let answer = admin_port::answered(&url, request).await;
    answer.map_err(admin_port::or_of_a_cluster)
}
