//! `waybill agent-check`: acts as the scheduler for an agent in any language, and reports which
//! rules of the topic contract it keeps.
//!
//! What must hold: the check affects no installation. Its topics have their own prefix, with which
//! the agent must have been started; the installation's prefix is refused.

mod ledger;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use waybill_agent_check::{CheckError, CheckSettings, Finding, Ledger, Report, Rule, check};
use waybill_messages::Topics;
use waybill_node::config::Config;
use waybill_telemetry::visible::{counted, escaped};
use waybill_units::duration_from_text;

use self::ledger::HttpLedger;
use crate::broker_login::BrokerLogin;
use crate::connection::until_reader_leaves;
use waybill_terminal::Output;

/// The end of the name of an agent's topic, after the agent's name.
const TOPIC_END: &str = ".requests.v1";
/// The maximum number of requests in a burst.
const BURST_MAX: usize = 5_000;

/// The arguments of `waybill agent-check`.
#[derive(Clone, Debug, Args)]
pub struct AgentCheckArgs {
    /// The name of the agent, which reads {PREFIX}.{NAME}.requests.v1
    #[arg(long, value_name = "NAME", required_unless_present = "topic")]
    agent: Option<String>,
    /// The full topic of the agent's requests: {PREFIX}.{NAME}.requests.v1
    #[arg(long, value_name = "TOPIC", conflicts_with_all = ["agent", "prefix"], value_parser = topic_parts)]
    topic: Option<TopicParts>,
    /// The topic prefix with which the agent was started for the check; never an installation's
    #[arg(long, value_name = "PREFIX", default_value = "agent-check")]
    prefix: String,
    /// The step to request
    #[arg(long, value_name = "NAME")]
    step: String,
    /// A file with an input for which the step succeeds, a JSON object; {{operation}} in it
    /// becomes the operation's id [default: {}]
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// A file with an input for which the step takes longer than a second
    #[arg(long, value_name = "FILE")]
    slow_input: Option<PathBuf>,
    /// A result of an earlier step; may be repeated
    #[arg(long = "result", value_name = "STEP.NAME=VALUE", value_parser = result_parts)]
    results: Vec<(String, String)>,
    /// The workflow that the requests name
    #[arg(long, value_name = "NAME", default_value = "agent-check")]
    workflow: String,
    /// The tenant that the requests name
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// The agent's consumer group [default: {PREFIX}-agents, if it has committed offsets]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// The maximum time until the agent's first answer
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration_from_text)]
    wait: Duration,
    /// The time until the complete-by of each further request
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration_from_text)]
    complete_by: Duration,
    /// The maximum clock skew of the agent
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration_from_text)]
    clock_tolerance: Duration,
    /// The number of requests in a burst
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = burst)]
    burst: usize,
    /// Require undo support: an agent that refuses every undo fails
    #[arg(long)]
    must_undo: bool,
    /// Require probe support: an agent that refuses every probe fails
    #[arg(long)]
    must_probe: bool,
    /// A rule to leave out; may be repeated
    #[arg(long, value_name = "RULE")]
    without: Vec<Rule>,
    /// The address of the simulated services, whose ledger records the effects
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
    /// The format of the verdicts
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    login: BrokerLogin,
}

/// The parts of a topic's name.
#[derive(Clone, PartialEq, Eq, Debug)]
struct TopicParts {
    prefix: String,
    agent: String,
}

impl AgentCheckArgs {
    /// Tests the rules and prints the verdicts. Returns whether no rule was broken.
    ///
    /// # Errors
    ///
    /// If the check could not run: the prefix belongs to an installation, a file cannot be read, or
    /// the brokers are unavailable.
    pub fn run(&self, config: &Config) -> anyhow::Result<bool> {
        let settings = self.settings(&self.login.on(config)?)?;
        let ledger = self.ledger.as_deref().map(HttpLedger::new).transpose()?;
        let ledger = ledger.as_ref().map(|ledger| ledger as &dyn Ledger);
        let report = check(&settings, ledger).map_err(explained)?;
        until_reader_leaves(self.print(&report, &mut io::stdout().lock()))?;
        eprintln!("{}", tidied(&report));
        Ok(report.is_passed())
    }

    fn settings(&self, config: &Config) -> anyhow::Result<CheckSettings> {
        let (prefix, agent) = match (&self.topic, &self.agent) {
            (Some(TopicParts { prefix, agent }), _) => (prefix, agent),
            (None, Some(agent)) => (&self.prefix, agent),
            (None, None) => anyhow::bail!("--agent or --topic is needed"),
        };
        // If the installation is created later, topics of the check would collide with its own.
        anyhow::ensure!(
            *prefix != config.kafka.topic_prefix,
            "the check is refused: {prefix} is the prefix of the installation itself \
             (kafka.topicPrefix); start the agent under another one, and check it there"
        );
        let kafka = config.kafka_settings_of_commands();
        let defaults = CheckSettings::new(kafka, Topics::new(prefix), agent, &self.step);
        let input = self.input.as_deref().map(read_input).transpose()?;
        Ok(CheckSettings {
            replication: config.kafka.replication_factor,
            group: self.group.clone(),
            workflow: self.workflow.clone(),
            tenant: self.tenant.clone(),
            input: input.unwrap_or_else(|| defaults.input.clone()),
            slow_input: self.slow_input.as_deref().map(read_input).transpose()?,
            results: self.results.clone(),
            patience: self.wait,
            complete_within: self.complete_by,
            clock_tolerance: self.clock_tolerance,
            burst: self.burst,
            must_undo: self.must_undo,
            must_probe: self.must_probe,
            without: self.without.iter().copied().collect(),
            ..defaults
        })
    }

    fn print(&self, report: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
        if self.output == Output::Table {
            writeln!(out, "{}", Row::HEADING)?;
        }
        for finding in &report.findings {
            let row = Row::from(finding);
            writeln!(out, "{}", self.output.text(&row)?)?;
        }
        Ok(())
    }
}

/// A verdict as it is printed.
#[derive(Serialize)]
struct Row<'a> {
    rule: &'a str,
    verdict: &'a str,
    demand: &'a str,
    seen: &'a str,
}

impl Row<'_> {
    const HEADING: &'static str = "RULE            VERDICT    SEEN";
}

impl<'a> From<&'a Finding> for Row<'a> {
    fn from(finding: &'a Finding) -> Self {
        Self {
            rule: finding.rule.name(),
            verdict: finding.verdict.name(),
            demand: finding.rule.demand(),
            seen: &finding.seen,
        }
    }
}

/// A line of the table. A broken rule also states its demand.
impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            verdict,
            demand,
            seen,
        } = self;
        write!(f, "{rule:<14}  {verdict:<9}  ")?;
        if *verdict == "fail" {
            write!(f, "{demand}, but: ")?;
        }
        f.write_str(&escaped(seen))
    }
}

/// The number of operations, and how many of them may have left an effect.
fn tidied(report: &Report) -> String {
    let Report {
        operations, left, ..
    } = report;
    match left {
        0 => format!("{}; none left an effect", counted(*operations, "operation")),
        _ => format!(
            "{}; {left} may have left an effect",
            counted(*operations, "operation")
        ),
    }
}

/// Adds to a refused prefix that the check did not run.
fn explained(error: CheckError) -> anyhow::Error {
    match error {
        error @ CheckError::Installation { .. } => {
            anyhow::Error::new(error).context("the check is refused")
        }
        error => error.into(),
    }
}

fn read_input(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).with_context(|| format!("{shown} is not a JSON object"))?;
    Ok(serde_json::Value::Object(object).to_string())
}

fn topic_parts(topic: &str) -> Result<TopicParts, String> {
    let expected = || format!("expected a prefix, the agent's name, and {TOPIC_END}");
    // Names of agents contain no dots, but prefixes may.
    let names = topic.strip_suffix(TOPIC_END).ok_or_else(expected)?;
    match names.rsplit_once('.') {
        Some((prefix, agent)) if !prefix.is_empty() && !agent.is_empty() => Ok(TopicParts {
            prefix: prefix.to_owned(),
            agent: agent.to_owned(),
        }),
        _ => Err(expected()),
    }
}

fn result_parts(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if name.contains('.') => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected step.name=value".to_owned()),
    }
}

fn burst(text: &str) -> Result<usize, String> {
    let count = text.parse().ok();
    count
        .filter(|count| (1..=BURST_MAX).contains(count))
        .ok_or_else(|| format!("expected 1 to {BURST_MAX}"))
}

#[cfg(test)]
mod tests {
    use waybill_agent_check::Verdict;

    use super::*;

    #[test]
    fn a_topic_names_prefix_and_agent() {
        let parts = |topic| topic_parts(topic).map(|parts| (parts.prefix, parts.agent));
        let expected = |prefix: &str, agent: &str| Ok((prefix.to_owned(), agent.to_owned()));
        assert_eq!(parts("trial.stock.requests.v1"), expected("trial", "stock"));
        assert_eq!(parts("a.b.stock.requests.v1"), expected("a.b", "stock"));
        for bad in ["stock.requests.v1", "trial.stock", ".stock.requests.v1"] {
            assert!(parts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_broken_rule_is_reported_with_its_text() {
        let row = |verdict| {
            let finding = Finding {
                rule: Rule::Echo,
                verdict,
                seen: "a\nb".to_owned(),
            };
            Row::from(&finding).to_string()
        };
        assert_eq!(row(Verdict::Pass), "echo            pass       a\\nb");
        let failed = row(Verdict::Fail);
        assert!(failed.contains("repeats operation"), "{failed}");
        for cell in ["VERDICT", "SEEN"] {
            let at = Row::HEADING.find(cell).unwrap();
            assert_ne!(&row(Verdict::Pass)[at..=at], " ", "{cell}");
        }
    }
}
