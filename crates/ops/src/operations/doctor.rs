//! `waybill doctor`: checks the health of an installation or, with an operation's ID, says what it
//! waits for, which scheduler owns it, and what happens next.
//!
//! It checks everything once, from where it runs, and changes nothing. It reports what it cannot
//! reach from there.

mod dead_letters;
mod installation;
mod operation;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use waybill_node::config::Config;
use waybill_telemetry::chain;
use waybill_telemetry::visible::{escaped, to_json};
use waybill_terminal::{ColorArgs, Output, Tone};

use super::api::Api;
use crate::access::AdminArgs;
use crate::address::ApiAddress;
use crate::connection::until_reader_leaves;
use crate::runtime::runtime;
use crate::same_configuration;
use crate::shards::shards;

/// The subject of findings about the configuration.
const CONFIGURATION: &str = "configuration";

/// The arguments of `waybill doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// An operation's id, or the id that its caller chose; without it, the command checks the
    /// installation
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// The tenant whose caller chose the id
    #[arg(long, value_name = "NAME", requires = "id")]
    tenant: Option<String>,
    /// The URL of the API, if it is not at --http
    #[arg(long, value_name = "URL")]
    api: Option<ApiAddress>,
    /// The output format; JSON has a line for each finding
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    color: ColorArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

/// The verdict on one finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// Healthy.
    Ok,
    /// Worth knowing.
    Note,
    /// Needs attention now.
    Bad,
}

/// One result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    message: String,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            what,
            verdict,
            message,
        }
    }

    fn ok(what: &'static str, message: impl Into<String>) -> Self {
        Self::new(what, Verdict::Ok, message)
    }

    fn note(what: &'static str, message: impl Into<String>) -> Self {
        Self::new(what, Verdict::Note, message)
    }

    fn bad(what: &'static str, message: impl Into<String>) -> Self {
        Self::new(what, Verdict::Bad, message)
    }

    fn failed(what: &'static str, error: &anyhow::Error) -> Self {
        Self::bad(what, chain(error.as_ref()))
    }

    fn is_bad(&self) -> bool {
        self.verdict == Verdict::Bad
    }
}

/// With `{:#}`, the verdict has a color.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            verdict,
            message,
        } = self;
        let (verdict, tone) = match verdict {
            Verdict::Ok => ("ok", Tone::Good),
            Verdict::Note => ("note", Tone::Warning),
            Verdict::Bad => ("BAD", Tone::Bad),
        };
        let mut verdict = format!("{verdict:<5}");
        if f.alternate() {
            verdict = tone.paint(&verdict);
        }
        write!(f, "{verdict} {what:<14} {}", escaped(message))
    }
}

/// Checks the workflows and agents of a configuration. Returns the agents that no file defines and
/// that are not built in.
pub type FileCheck = fn(&Config) -> anyhow::Result<Vec<String>>;

/// The end of a line that names agents without a definition in a file. Empty if there are none.
#[must_use]
pub fn named_elsewhere(agents: &[String]) -> String {
    match agents {
        [] => String::new(),
        agents => format!("; agents not in any file: {}", agents.join(", ")),
    }
}

impl DoctorArgs {
    /// Checks the installation or the operation, and prints the findings. `check` checks workflows
    /// and agents.
    ///
    /// # Errors
    ///
    /// If a check failed.
    pub fn run(&self, config: &Config, check: FileCheck) -> anyhow::Result<()> {
        let runtime = runtime()?;
        let mut bad = 0;
        let mut out = io::stdout().lock();
        let printed = runtime.block_on(self.examine(config, check, &mut |findings| {
            bad += findings.iter().filter(|finding| finding.is_bad()).count();
            self.write(findings, &mut out)
        }));
        until_reader_leaves(printed)?;
        match bad {
            0 => Ok(()),
            1 => anyhow::bail!("1 check failed"),
            count => anyhow::bail!("{count} checks failed"),
        }
    }

    /// Checks the operation, if one is named, and all parts of the installation concurrently.
    /// Reports them in the order of their dependencies.
    async fn examine(
        &self,
        config: &Config,
        check: FileCheck,
        report: &mut dyn FnMut(&[Finding]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { admin, .. } = self;
        let (layout, process) = tokio::join!(
            shards(config, admin, None),
            same_configuration::process(config, admin)
        );
        let process = process.as_ref();
        let mismatch = process.and_then(|it| same_configuration::mismatch(config, admin, it));
        let is_same = mismatch.is_none();
        let its_dir = process.map(|it| PathBuf::from(&it.data_dir));
        let data_dir = is_same.then(|| its_dir.unwrap_or_else(|| config.data_dir.clone()));
        let address = ApiAddress::of_configuration(self.api.as_ref(), config);
        let api = address.and_then(|address| {
            Api::asked_once(address, &admin.access).map_err(|error| error.to_string())
        });
        if let Some(id) = &self.id {
            let tenant = self.tenant.as_deref();
            report(&operation::of_id(&api, id, tenant, &layout).await)?;
        }
        let mut report_part = |mut part: Vec<Finding>| {
            if self.id.is_some() {
                // For one operation, report only the faults that affect it.
                part.retain(Finding::is_bad);
            }
            report(&part)
        };
        let answers = async {
            match self.id {
                Some(_) => Vec::new(),
                None => installation::api(&api, self.names_api(config)).await,
            }
        };
        let (brokers, store, registry, process, answers) = tokio::join!(
            installation::brokers(
                self.admin.broker_login(config),
                layout.as_ref().ok(),
                is_same
            ),
            installation::store(config),
            installation::registry(config, is_same),
            installation::process(config, admin, data_dir.as_deref()),
            answers
        );
        let configuration = match mismatch {
            // The operation does not depend on it.
            Some(_) if self.id.is_some() => Vec::new(),
            Some(mismatch) => vec![Finding::bad(CONFIGURATION, mismatch)],
            None => vec![installation::configuration(config, check)],
        };
        for part in [
            configuration,
            brokers,
            store,
            registry,
            installation::leases(&layout, admin.is_named(config)),
            process,
            answers,
        ] {
            report_part(part)?;
        }
        Ok(())
    }

    /// Whether a flag or the configuration names the API.
    fn names_api(&self, config: &Config) -> bool {
        self.api.is_some() || config.http.listen != Config::default().http.listen
    }

    fn write(&self, findings: &[Finding], out: &mut dyn Write) -> anyhow::Result<()> {
        let is_colored = self.color.is_colored();
        for finding in findings {
            match self.output {
                Output::Json => writeln!(out, "{}", to_json(finding)?)?,
                Output::Table if is_colored => writeln!(out, "{finding:#}")?,
                Output::Table => writeln!(out, "{finding}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
