//! `waybill store`: prepares the state store on a cluster, and looks at it.

use clap::Subcommand;
use waybill_store::{CqlClock, CqlProblem, CqlReport, CqlStore};

use super::refused;
use crate::config::Config;

/// What to do with the state store.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum StoreCommand {
    /// Make the keyspace and its tables, or what is missing of them; safe to repeat
    Migrate,
    /// Say what the servers are and whether the store on them can be used; changes nothing
    Check,
}

impl StoreCommand {
    /// Does it.
    ///
    /// # Errors
    ///
    /// If no cluster is configured, it cannot be reached, or the store on it cannot be used.
    pub fn run(self, config: &Config) -> anyhow::Result<String> {
        let cql = config.store.scylla.cql().ok_or_else(|| {
            refused(
                "--scylla",
                "is needed: the embedded store takes no preparing",
            )
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            match self {
                Self::Migrate => {
                    CqlStore::migrate(&cql).await?;
                    Ok(format!("ok: keyspace {} can be used", cql.keyspace))
                }
                Self::Check => {
                    let report = CqlStore::check(&cql).await?;
                    let mut text = told(&cql.keyspace, &report);
                    let problems = report.problems();
                    for problem in &problems {
                        let weight = match problem.is_fatal() {
                            true => "cannot be used",
                            false => "warning",
                        };
                        text.push_str(&format!("\n{weight}: {problem}"));
                    }
                    anyhow::ensure!(!problems.iter().any(CqlProblem::is_fatal), text);
                    Ok(text)
                }
            }
        })
    }
}

/// A report, line by line.
fn told(keyspace: &str, report: &CqlReport) -> String {
    let CqlReport {
        server,
        datacenter,
        commitlog_sync,
        keyspace: found,
        schema_version,
        schema_version_known,
        clocks,
    } = report;
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_owned());
    let replication = found.as_ref().map(|found| {
        let options = found.replication.iter();
        let options: Vec<String> = options
            .map(|(key, value)| format!("{key} {value}"))
            .collect();
        options.join(", ")
    });
    let version = schema_version.map_or_else(|| "none".to_owned(), |version| version.to_string());
    let mut lines = vec![
        format!("server: {server}"),
        format!("datacentre: {datacenter}"),
        format!("commit log: synced {}", or_unknown(commitlog_sync.clone())),
        match replication {
            Some(replication) => format!("keyspace: {keyspace} ({replication})"),
            None => format!("keyspace: {keyspace}, which does not exist"),
        },
        format!("schema: {version}; this program needs {schema_version_known}"),
    ];
    lines.extend(clocks.iter().map(|CqlClock { node, ahead_ms }| {
        format!("clock: that of {node} is {ahead_ms} ms ahead of this machine's")
    }));
    lines.join("\n")
}
