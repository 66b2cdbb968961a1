//! `waybill topics grow` and `shrink`: changes the number of partitions of the operation topics
//! without downtime.
//!
//! This command does the work, unless the store belongs to the process of `up` alone, which does it
//! on request over its admin port.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use reqwest::Client;
use serde_json::json;
use waybill_messages::Topics;
use waybill_node::config::Config;
use waybill_node::workflows::load_workflows;
use waybill_store::LayoutError;
use waybill_topology::PARTITIONS_MAX;
use waybill_topology::repartition::{Repartition, RepartitionError, RepartitionView};
use waybill_topology::shards::show::{LayoutView, Shards};
use waybill_units::duration_to_text;

use crate::access::AdminArgs;
use crate::admin_port::{self, Refused, Unreachable};
use crate::shards::shards;

/// The interval between two requests for the progress.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// How long to wait for a process that has stopped.
const RESTART_PATIENCE: Duration = Duration::from_secs(60);

/// The arguments of `waybill topics grow` and `shrink`.
#[derive(Clone, Debug, Args)]
pub struct GrowArgs {
    /// The new number of partitions: to grow, a multiple of the current number; to shrink, a
    /// divisor of it
    #[arg(id = "wanted", value_name = "P")]
    partitions: u32,
    #[command(flatten)]
    admin: AdminArgs,
}

/// The direction of the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    More,
    Fewer,
}

impl Direction {
    fn verb(self) -> &'static str {
        match self {
            Self::More => "grow",
            Self::Fewer => "shrink",
        }
    }

    /// Refuses an impossible number, or one in the other direction, which is probably a mistake.
    fn allows(self, wanted: u32, stored: &LayoutView) -> anyhow::Result<()> {
        let now = stored.partitions;
        let is_right = match self {
            Self::More => wanted >= now,
            Self::Fewer => wanted <= now,
        };
        // Either command continues a change that was begun.
        if stored.becomes.is_some() {
            return Ok(());
        }
        if wanted > PARTITIONS_MAX {
            return Err(RepartitionError::TooMany(wanted).into());
        }
        let is_possible = wanted > 0 && (now.is_multiple_of(wanted) || wanted.is_multiple_of(now));
        if !is_possible {
            return Err(LayoutError::Partitions { now, wanted }.into());
        }
        if is_right {
            return Ok(());
        }
        let (other, what) = match self {
            Self::More => (Self::Fewer, "fewer"),
            Self::Fewer => (Self::More, "more"),
        };
        let verb = other.verb();
        anyhow::bail!(
            "there are {now} partitions, and {wanted} are {what}: \
             run `waybill topics {verb} {wanted}`"
        )
    }
}

impl GrowArgs {
    pub(super) async fn run(&self, config: &Config, direction: Direction) -> anyhow::Result<()> {
        let progress = Progress::default();
        if config.store.is_exclusive() {
            direction.allows(self.partitions, &shards(config, &self.admin, None).await?)?;
            return self.ask(config, direction, &progress).await;
        }
        let workflows = load_workflows(&config.workflows)?;
        let store = config.store_backend().open().await?.store();
        let stored = Shards::new(store.clone(), config.partitions).show().await?;
        direction.allows(self.partitions, &stored)?;
        let topics = Topics::new(&config.kafka.topic_prefix);
        let kafka = config.kafka_settings_of_commands();
        let repartition = Repartition::new(&config.topology(), store, kafka, topics, &workflows);
        let show = |step: String| progress.show(&step);
        Ok(repartition.run(self.partitions, &show).await?)
    }

    /// Sends the request to the process that has the store and follows its progress. After a
    /// restart the request is repeated: finished work is durable, and the process continues from
    /// there.
    async fn ask(
        &self,
        config: &Config,
        direction: Direction,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let url = self.admin.url(config, "/partitions")?;
        let client = admin_port::client(&self.admin.access, admin_port::PATIENCE)?;
        self.begin(&url, &client).await?;
        loop {
            let view: RepartitionView = match admin_port::answered(&url, client.get(&url)).await {
                Ok(view) => view,
                Err(error) if is_restart(&error) => {
                    progress.show("the process no longer answers; waiting for its restart");
                    self.begin_again(&url, &client, direction).await?;
                    progress.show("the process has restarted and continues");
                    continue;
                }
                Err(error) => return Err(error),
            };
            progress.show(&view.step);
            match (view.is_under_way, view.error) {
                (true, _) => tokio::time::sleep(ASK_EVERY).await,
                (false, None) => return Ok(()),
                (false, Some(error)) => anyhow::bail!(error),
            }
        }
    }

    async fn begin(&self, url: &str, client: &Client) -> anyhow::Result<()> {
        let asked = client
            .put(url)
            .json(&json!({ "partitions": self.partitions }));
        let _: RepartitionView = admin_port::answered(url, asked).await?;
        Ok(())
    }

    /// Repeats the request to a restarted process once it answers.
    async fn begin_again(
        &self,
        url: &str,
        client: &Client,
        direction: Direction,
    ) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            match self.begin(url, client).await {
                Err(error) if is_restart(&error) && since.elapsed() >= RESTART_PATIENCE => {
                    let verb = direction.verb();
                    let partitions = self.partitions;
                    return Err(error.context(format!(
                        "the process that changes the number of partitions has not answered, or has refused, for {}. \
                         Completed steps are kept: once it runs, `waybill topics {verb} {partitions}` \
                         continues the change",
                        duration_to_text(RESTART_PATIENCE)
                    )));
                }
                Err(error) if is_restart(&error) => tokio::time::sleep(ASK_EVERY).await,
                outcome => return outcome,
            }
        }
    }
}

/// Whether the process stopped, or restarted and has not received the request.
fn is_restart(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>();
    error.is::<Unreachable>()
        || error.is::<reqwest::Error>()
        || refused.is_some_and(Refused::is_absent)
}

/// The last reported progress, to report each step once.
#[derive(Default)]
struct Progress(Mutex<String>);

impl Progress {
    fn show(&self, step: &str) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != step {
            println!("{step}");
            step.clone_into(&mut last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_number_or_direction_is_refused() {
        let stored = |becomes| LayoutView {
            generation: 0,
            partitions: 4,
            per_partition: 1,
            becomes,
            valid_topic_partitions: vec![4],
            shards: Vec::new(),
        };
        let allows = |direction: Direction, wanted, becomes| {
            direction.allows(wanted, &stored(becomes)).is_ok()
        };
        for (wanted, more, fewer) in [(8, true, false), (4, true, true), (2, false, true)] {
            assert_eq!(allows(Direction::More, wanted, None), more, "{wanted}");
            assert_eq!(allows(Direction::Fewer, wanted, None), fewer, "{wanted}");
        }
        assert!(allows(Direction::More, 2, Some(2)), "the change continues");
        for impossible in [6, 3, 0, 2048] {
            assert!(!allows(Direction::More, impossible, None), "{impossible}");
        }
        let refused = Direction::More.allows(6, &stored(None)).unwrap_err();
        assert!(refused.to_string().contains("such as 8 or 12"), "{refused}");
        let refused = Direction::More.allows(2, &stored(None)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "there are 4 partitions, and 2 are fewer: run `waybill topics shrink 2`"
        );
    }
}
