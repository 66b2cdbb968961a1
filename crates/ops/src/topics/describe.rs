//! `waybill topics describe`: shows partitions, copies, offsets and settings.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use waybill_engine::{Offset, PartitionId};
use waybill_kafka::PartitionState;
use waybill_node::config::Config;
use waybill_telemetry::visible::to_json;
use waybill_terminal::{NOTHING, Output};
use waybill_topology::topics::{Found, SETTINGS_THAT_MATTER, describe, explained};

use super::Site;
use crate::broker_login::BrokerLogin;
use crate::connection::{names_of, topic_from_text};

/// The arguments of `waybill topics describe`.
#[derive(Clone, Debug, Args)]
pub struct DescribeArgs {
    /// Full or short names of topics, such as step-replies [default: all that Waybill needs]
    #[arg(value_name = "TOPIC", value_parser = topic_from_text)]
    topics: Vec<String>,
    /// The format of the topics
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    login: BrokerLogin,
}

impl DescribeArgs {
    pub(super) async fn run(&self, config: &Config) -> anyhow::Result<()> {
        let config = &self.login.on(config)?;
        let mut site = Site::open(config).await?;
        self.choose(&mut site, config)?;
        let mut found = describe(&site.admin, &site.needed)
            .await
            .map_err(|error| explained(error, &config.topology()))?;
        let mut out = io::stdout().lock();
        for topic in &site.needed {
            let name = topic.spec.name.as_str();
            let shown = match found.remove(name) {
                Some(found) => Shown::new(&site, name, found).await?,
                None => Shown::missing(name),
            };
            match self.output {
                Output::Json => writeln!(out, "{}", to_json(&shown)?)?,
                Output::Table => write!(out, "{}", for_people(&shown))?,
            }
        }
        Ok(())
    }

    /// Drops all topics but the requested ones.
    fn choose(&self, site: &mut Site, config: &Config) -> anyhow::Result<()> {
        if self.topics.is_empty() {
            return Ok(());
        }
        let prefix = &config.kafka.topic_prefix;
        let mut chosen = Vec::new();
        for given in &self.topics {
            let names = names_of(prefix, given);
            let topic = site
                .needed
                .iter()
                .find(|topic| names.contains(&topic.spec.name));
            match topic {
                Some(topic) => chosen.push(topic.clone()),
                None => anyhow::bail!("{given} is not a topic of Waybill"),
            }
        }
        site.needed = chosen;
        Ok(())
    }
}

/// The output for a topic.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    topic: &'a str,
    exists: bool,
    partitions: Vec<ShownPartition>,
    /// The relevant settings; empty if the user has no permission to read them.
    settings: BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownPartition {
    partition: u32,
    leader: Option<i32>,
    replicas: Vec<i32>,
    in_sync: Vec<i32>,
    /// The first offset; `None` while the partition has no leader.
    low: Option<i64>,
    /// The offset of the next record.
    high: Option<i64>,
}

impl<'a> Shown<'a> {
    fn missing(topic: &'a str) -> Self {
        Self {
            topic,
            exists: false,
            partitions: Vec::new(),
            settings: BTreeMap::new(),
        }
    }

    async fn new(site: &Site, topic: &'a str, found: Found) -> anyhow::Result<Self> {
        let led = found
            .partitions
            .iter()
            .filter(|state| state.leader.is_some());
        let led: Vec<PartitionId> = led.map(|state| state.partition).collect();
        let offsets = site.offsets(topic, &led).await?;
        let offsets: BTreeMap<_, _> = led.into_iter().zip(offsets).collect();
        let partitions = found.partitions.into_iter().map(|state| {
            let offsets = offsets.get(&state.partition);
            ShownPartition::new(state, offsets)
        });
        let settings = found.settings.unwrap_or_default();
        Ok(Self {
            topic,
            exists: true,
            partitions: partitions.collect(),
            settings: SETTINGS_THAT_MATTER
                .into_iter()
                .filter_map(|key| Some((key, settings.get(key)?.clone())))
                .collect(),
        })
    }
}

impl ShownPartition {
    fn new(state: PartitionState, offsets: Option<&(Offset, Offset)>) -> Self {
        Self {
            partition: state.partition.0,
            leader: state.leader,
            replicas: state.replicas,
            in_sync: state.in_sync,
            low: offsets.map(|(low, _)| low.0),
            high: offsets.map(|(_, high)| high.0),
        }
    }
}

/// A topic, its settings, and a line for each partition.
fn for_people(shown: &Shown<'_>) -> String {
    if !shown.exists {
        return format!("{}\n  missing\n", shown.topic);
    }
    let mut text = format!("{}\n", shown.topic);
    for (key, value) in &shown.settings {
        text.push_str(&format!("  {key}={value}\n"));
    }
    text.push_str("  PARTITION  LEADER          LOW         HIGH  REPLICAS (IN SYNC)\n");
    for partition in &shown.partitions {
        let ShownPartition {
            partition,
            leader,
            replicas,
            in_sync,
            low,
            high,
        } = partition;
        let [low, high] = [low, high].map(|offset| or_nothing(*offset));
        text.push_str(&format!(
            "  {partition:>9}  {:>6}  {low:>11}  {high:>11}  {} ({})\n",
            or_nothing(*leader),
            listed(replicas),
            listed(in_sync),
        ));
    }
    text
}

fn or_nothing(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| value.to_string())
}

fn listed(brokers: &[i32]) -> String {
    let brokers: Vec<String> = brokers.iter().map(ToString::to_string).collect();
    brokers.join(" ")
}
