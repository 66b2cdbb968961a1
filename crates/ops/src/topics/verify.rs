//! `waybill topics verify`: reports topics whose settings differ from the required ones.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use waybill_node::config::Config;
use waybill_telemetry::chain;
use waybill_telemetry::visible::{counted, to_json};
use waybill_terminal::Output;
use waybill_topology::topics::{Finding, Weight};

use super::Site;
use crate::access::AdminArgs;
use crate::same_configuration;
use crate::shards::shards;

/// The arguments of `waybill topics verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyArgs {
    /// The format of the findings
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    admin: AdminArgs,
}

impl VerifyArgs {
    pub(super) async fn run(&self, config: &Config) -> anyhow::Result<()> {
        let config = &self.admin.broker_login(config)?;
        if config.kafka.brokers.is_none() || self.admin.is_named(config) {
            let process = same_configuration::process(config, &self.admin).await;
            let mismatch =
                process.and_then(|it| same_configuration::mismatch(config, &self.admin, &it));
            anyhow::ensure!(mismatch.is_none(), mismatch.unwrap_or_default());
        }
        let site = Site::open(config).await?;
        let mut findings = site.findings(config).await?;
        if findings
            .iter()
            .any(|finding| site.is_about_a_number(finding))
        {
            match shards(config, &self.admin, None).await {
                Ok(stored) => {
                    site.drop_stored_numbers(&mut findings, &stored);
                    let becomes = stored.becomes.map(|to| format!(", changing to {to}"));
                    eprintln!(
                        "operation topics: {} partitions in use{}, according to the state store",
                        stored.partitions,
                        becomes.unwrap_or_default()
                    );
                }
                Err(error) => eprintln!(
                    "cannot read the number of partitions from the state store: {}; using the configured one",
                    chain(error.as_ref())
                ),
            }
        }
        let mut out = io::stdout().lock();
        for finding in &findings {
            match self.output {
                Output::Json => writeln!(out, "{}", to_json(&Row::new(finding))?)?,
                Output::Table => writeln!(out, "{}", for_people(finding))?,
            }
        }
        match (findings.len(), self.output) {
            (0, Output::Json) => Ok(()),
            (0, Output::Table) => {
                let topics = counted(site.topics(), "topic");
                Ok(writeln!(out, "ok: {topics} as configured")?)
            }
            (count, _) => anyhow::bail!(counted(count, "finding")),
        }
    }
}

/// One line for the fault and one for its fix.
fn for_people(finding: &Finding) -> String {
    let Finding {
        topic,
        key,
        found,
        expected,
        fix,
        weight,
    } = finding;
    let harm = match weight {
        Weight::Harm => " (roles refuse to start)",
        Weight::Warning => "",
    };
    match finding.is_missing() {
        true => format!("{topic}: does not exist; expected {expected}{harm}\n  {fix}"),
        false => format!("{topic}: {key} is {found}, and must be {expected}{harm}\n  {fix}"),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    topic: &'a str,
    key: &'a str,
    found: &'a str,
    expected: &'a str,
    fix: &'a str,
    /// Whether roles refuse to start because of it.
    harm: bool,
}

impl<'a> Row<'a> {
    fn new(finding: &'a Finding) -> Self {
        let Finding {
            topic,
            key,
            found,
            expected,
            fix,
            weight,
        } = finding;
        Self {
            topic,
            key,
            found,
            expected,
            fix,
            harm: *weight == Weight::Harm,
        }
    }
}
