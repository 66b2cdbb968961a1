//! `waybill ready`: asks the admin port whether a process is ready. For scripts, and for health
//! checks in containers without curl.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use reqwest::{Client, StatusCode};
use serde::Serialize;
use waybill_http::problem::ProblemDetails;
use waybill_node::config::Config;
use waybill_telemetry::visible::to_json;
use waybill_terminal::Output;
use waybill_units::duration_from_text;

use crate::access::{AdminArgs, Silence};
use crate::admin_port;
use crate::connection::until_reader_leaves;
use crate::runtime::runtime;

/// The prefix of a line about a fault of a ready process.
const WARNING: &str = "warning: ";
/// The interval between two requests.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// The maximum time for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The arguments of `waybill ready`.
#[derive(Clone, Debug, Args)]
pub struct ReadyArgs {
    /// The maximum time to wait until the process is ready
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_from_text)]
    wait: Duration,
    /// The output format; the table is empty if the process is ready
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    admin: AdminArgs,
}

impl ReadyArgs {
    /// Asks until the process is ready or the time is up.
    ///
    /// # Errors
    ///
    /// If the process is not ready by then; the error says what it waits for.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        let url = self.admin.url(config, "/readyz")?;
        let runtime = runtime()?;
        let client = admin_port::client(&self.admin.access.without_token(), PATIENCE)?;
        let until = Instant::now() + self.wait;
        let found = runtime.block_on(async {
            loop {
                match asked(&client, &url).await {
                    ready @ Readiness::Ready(_) => return ready,
                    other if Instant::now() + ASK_EVERY > until => return other,
                    _ => tokio::time::sleep(ASK_EVERY).await,
                }
            }
        });
        if self.output == Output::Json {
            let view = ReadyView::of(&found, &url);
            let printed = writeln!(io::stdout(), "{}", to_json(&view)?);
            until_reader_leaves(printed.map_err(Into::into))?;
        }
        match found.fault(&url) {
            Some(fault) => anyhow::bail!(fault),
            None => Ok(()),
        }
    }
}

/// The output for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadyView<'a> {
    ready: bool,
    /// Faults of a ready process.
    warnings: &'a [String],
    /// What the process waits for.
    waits_for: &'a [String],
    /// Why it is not ready; `null` if it is.
    why: Option<String>,
}

impl<'a> ReadyView<'a> {
    fn of(found: &'a Readiness, url: &str) -> Self {
        Self {
            ready: matches!(found, Readiness::Ready(_)),
            warnings: match found {
                Readiness::Ready(warnings) => warnings,
                _ => &[],
            },
            waits_for: match found {
                Readiness::Waits(what) => what,
                _ => &[],
            },
            why: found.fault(url),
        }
    }
}

/// The state of a process.
pub(crate) enum Readiness {
    /// Ready, with these warnings.
    Ready(Vec<String>),
    /// Not ready; what it waits for.
    Waits(Vec<String>),
    /// It accepts connections and does not answer.
    Silent,
    /// Unreachable, and why.
    Unreachable(String),
    /// Its certificate is not trusted, and why.
    Distrusted(String),
    /// It refuses to report its state, and why.
    Refuses(String),
}

impl Readiness {
    /// Why the process at `url` is not known to be ready.
    fn fault(&self, url: &str) -> Option<String> {
        Some(match self {
            Self::Ready(_) => return None,
            Self::Waits(what) => format!("not ready: {}", what.join("; ")),
            Self::Silent => format!("{url} accepts connections but does not answer"),
            Self::Unreachable(why) => format!("{url} does not answer: {why}"),
            Self::Distrusted(why) => format!("{url} answers, but {why}"),
            Self::Refuses(why) => format!("{url} refuses the request: {why}"),
        })
    }
}

/// Requests the state of a process.
pub(crate) async fn asked(client: &Client, url: &str) -> Readiness {
    let answer = match client.get(url).send().await {
        Ok(answer) => answer,
        Err(error) if error.is_timeout() && !error.is_connect() => {
            return Readiness::Silent;
        }
        Err(error) => {
            return match Silence::of(&error) {
                Silence::Unreachable(why) => Readiness::Unreachable(why),
                Silence::Distrusted(why) => Readiness::Distrusted(why),
            };
        }
    };
    let status = answer.status();
    let (is_ready, is_verdict) = (
        status.is_success(),
        status == StatusCode::SERVICE_UNAVAILABLE,
    );
    let body = answer.text().await.unwrap_or_default();
    if !is_ready && !is_verdict {
        let problem = ProblemDetails::read(body.as_bytes());
        let detail = problem.explanation().unwrap_or("no detail");
        return Readiness::Refuses(format!("{status}: {detail}"));
    }
    let lines = body.lines().map(str::to_owned);
    if is_ready {
        let warnings = lines.filter_map(|line| line.strip_prefix(WARNING).map(str::to_owned));
        return Readiness::Ready(warnings.collect());
    }
    Readiness::Waits(lines.collect())
}
