//! An open-loop load generator for Waybill.
//!
//! Requests leave at their intended times whatever the answers do, and every latency counts from
//! the intended time, so that a server that stalls cannot hide it. Acceptance (the answer 202) and
//! end to end (the final state, from the status topic) are measured apart. A judge may hold what was
//! accepted against the services' ledger afterwards.

mod client;
mod completion;
mod cpu;
mod delivery;
mod judge;
mod report;
mod run;
mod topic;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use waybill_messages::{Framing, Topics};
use waybill_registry::{Registry, RegistrySettings, SchemaCache, schema_ids, subjects};

use crate::completion::{Completions, Finished};
use crate::cpu::Usage;
use crate::report::Report;

/// Sends deliveries to a running Waybill at a fixed rate and measures what becomes of them.
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    /// The API.
    #[arg(long, default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// A Kafka-protocol broker, for the status topic.
    #[arg(long, default_value = "127.0.0.1:9092")]
    brokers: String,
    /// The prefix of Waybill's topics.
    #[arg(long, default_value = "waybill")]
    topic_prefix: String,
    /// The schema registry, where Waybill has one.
    #[arg(long, value_name = "URL")]
    schema_registry: Option<String>,
    /// Deliveries a second.
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    /// Deliveries in all.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// How requests travel.
    #[arg(long, value_enum, default_value_t = Transport::Single)]
    transport: Transport,
    /// Connections. With `single`, the number of requests that can be under way; with `http2`, a hundred times as
    /// many can.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Requests in one batch, with `batch`.
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// How long completions are waited for after the last request, in seconds. 0 only accepts.
    #[arg(long, default_value_t = 60)]
    wait_seconds: u64,
    /// How every accepted delivery has to end, or the exit code is 1.
    #[arg(long, value_enum, default_value_t = Expect::Processed)]
    expect: Expect,
    /// The services. Their ledger is held against what was accepted: nothing lost, no effect made
    /// twice, nothing half undone. What does not balance is looked at again until the wait is over.
    #[arg(long, value_name = "SERVICES")]
    judge: Option<SocketAddr>,
    /// Processes whose CPU and memory are reported, together and by thread.
    #[arg(long, value_delimiter = ',')]
    pid: Vec<u32>,
    /// Writes the report as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// How requests travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Transport {
    /// One HTTP/1.1 request a delivery.
    Single,
    /// One HTTP/2 request a delivery, many at a time on each connection.
    Http2,
    /// NDJSON batches.
    Batch,
    /// Straight to the topic of requests, as any Kafka client can; accepted is what the broker has acknowledged.
    Topic,
}

/// How deliveries have to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Expect {
    /// All of them `Processed`.
    Processed,
    /// In any final state, or parked.
    Final,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("waybill-loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    anyhow::ensure!(arguments.rate > 0.0, "--rate must be above 0");
    anyhow::ensure!(
        arguments.connections > 0 && arguments.batch > 0,
        "nothing can be sent"
    );
    anyhow::ensure!(
        arguments.judge.is_none() || arguments.wait_seconds > 0,
        "--judge needs final states: --wait-seconds must be above 0"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let topics = runtime.block_on(topics(arguments))?;
    let completions = runtime
        .block_on(Completions::follow(&arguments.brokers, &topics))
        .context("the status topic cannot be followed")?;
    let before = Usage::of(&arguments.pid)?;
    let run = runtime.block_on(run::run(arguments, &topics, &completions))?;
    let deadline = Instant::now() + Duration::from_secs(arguments.wait_seconds);
    completions.wait_until(deadline);
    let after = Usage::of(&arguments.pid)?;
    let usage = before
        .zip(after)
        .map(|(before, after)| after.since(&before));
    let judge = |services| runtime.block_on(judge::judge(&completions, services, deadline));
    let judged = arguments.judge.map(judge).transpose();
    let followed = completions.stop();
    let finished = completions.finished();
    // What was measured is told even if something could not be found out.
    let (verdict, unjudged) = match judged {
        Ok(verdict) => (verdict, None),
        Err(error) => (None, Some(error)),
    };
    let report = Report::new(arguments, &run, &finished, usage.as_ref(), verdict);
    print!("{report}");
    if let Some(path) = &arguments.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json)
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    followed?;
    unjudged.map_or(Ok(()), Err)?;
    anyhow::ensure!(run.accepted > 0, "no delivery was accepted");
    if arguments.wait_seconds > 0 {
        arguments.expect.check(run.accepted, &finished)?;
    }
    anyhow::ensure!(
        report.verdict().is_none_or(judge::Verdict::is_balanced),
        "the ledger does not balance"
    );
    Ok(())
}

/// Waybill's topics. Their schemas are those of this version, so that none has to be fetched later.
async fn topics(arguments: &Arguments) -> anyhow::Result<Topics> {
    let topics = Topics::new(&arguments.topic_prefix);
    let Some(url) = &arguments.schema_registry else {
        return Ok(topics);
    };
    let registry = Registry::new(&RegistrySettings {
        url: url.clone(),
        login: None,
        ca_pem: None,
        timeout: Duration::from_secs(5),
    })?;
    let agents: [&str; 0] = [];
    let ids = schema_ids(&registry, &subjects(&topics, &agents), false).await?;
    let schemas = Arc::new(SchemaCache::new(registry));
    Ok(topics.framed(Framing::confluent(ids, schemas)))
}

impl Expect {
    fn check(self, accepted: usize, finished: &Finished) -> anyhow::Result<()> {
        let open = accepted - finished.ended();
        anyhow::ensure!(
            open == 0,
            "{open} of {accepted} accepted deliveries did not end in time"
        );
        let otherwise = accepted - finished.processed();
        anyhow::ensure!(
            self == Self::Final || otherwise == 0,
            "{otherwise} of {accepted} accepted deliveries were undone or parked; --expect final takes that, too"
        );
        Ok(())
    }
}
