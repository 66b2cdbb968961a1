//! `waybill ready`: whether a process is ready, asked on its admin port. For health checks of containers,
//! which have no curl, and for scripts that wait.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use reqwest::Client;
use reqwest::redirect::Policy;
use serde::Serialize;

use super::access::{AccessArgs, AdminArgs, Silence};
use super::connection::until_reader_leaves;
use super::shown::Output;
use crate::config::{Config, duration_from_text};

/// How often it is asked anew.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The arguments of `waybill ready`.
#[derive(Clone, Debug, Args)]
pub struct ReadyArgs {
    /// For how long it may become ready
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_from_text)]
    wait: Duration,
    /// How it is written; as a table, nothing where it is ready
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    admin: AdminArgs,
}

impl ReadyArgs {
    /// Asks until it is ready or time is up.
    ///
    /// # Errors
    ///
    /// If it is not ready then; the error says what it waits for.
    pub fn run(&self, config: &Config) -> anyhow::Result<()> {
        let url = self.admin.url(config, "/readyz")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let found = runtime.block_on(async {
            let client = client(&self.admin.access.without_token())?;
            let until = Instant::now() + self.wait;
            loop {
                match once(&client, &url).await {
                    Ok(()) => return Ok(()),
                    Err(error) if Instant::now() + ASK_EVERY > until => return Err(error),
                    Err(_) => tokio::time::sleep(ASK_EVERY).await,
                }
            }
        });
        if self.output == Output::Json {
            let view = ReadyView {
                ready: found.is_ok(),
                why: found.as_ref().err().map(ToString::to_string),
            };
            let printed = writeln!(io::stdout(), "{}", serde_json::to_string(&view)?);
            until_reader_leaves(printed.map_err(Into::into))?;
        }
        found
    }
}

/// Whether a process is ready, for programs.
#[derive(Serialize)]
struct ReadyView {
    ready: bool,
    /// What it waits for, or why it does not say; `null` where it is ready.
    why: Option<String>,
}

/// How a process is.
pub(super) enum Readiness {
    Ready,
    /// What it waits for.
    Waits(String),
    /// It takes connections and does not answer.
    Silent,
    /// Nobody is there, and why.
    Away(String),
    /// Somebody is there who is not believed, and why.
    Distrusted(String),
}

/// Asks a process.
pub(super) async fn asked(client: &Client, url: &str) -> Readiness {
    let answer = match client.get(url).send().await {
        Ok(answer) => answer,
        Err(error) if error.is_timeout() && !error.is_connect() => {
            return Readiness::Silent;
        }
        Err(error) => {
            return match Silence::of(&error) {
                Silence::Away(why) => Readiness::Away(why),
                Silence::Distrusted(why) => Readiness::Distrusted(why),
            };
        }
    };
    if answer.status().is_success() {
        return Readiness::Ready;
    }
    let body = answer.text().await.unwrap_or_default();
    let waits: Vec<&str> = body.lines().collect();
    Readiness::Waits(waits.join("; "))
}

async fn once(client: &Client, url: &str) -> anyhow::Result<()> {
    match asked(client, url).await {
        Readiness::Ready => Ok(()),
        Readiness::Waits(what) => anyhow::bail!("not ready: {what}"),
        Readiness::Silent => anyhow::bail!("{url} takes connections and does not answer"),
        Readiness::Away(why) => anyhow::bail!("nobody answers at {url}: {why}"),
        Readiness::Distrusted(why) => anyhow::bail!("{url} answers, but {why}"),
    }
}

/// A client that does not wait for long.
pub(super) fn client(access: &AccessArgs) -> anyhow::Result<Client> {
    let client = Client::builder()
        .timeout(PATIENCE)
        .redirect(Policy::none())
        .no_proxy();
    Ok(access.apply(client)?.build()?)
}
