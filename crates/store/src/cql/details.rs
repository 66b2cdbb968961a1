//! What `waybill store check` shows about the servers.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::server::{CqlProblem, CqlReport};
use crate::{ProblemArea, StoreProblem, StoreReport};

/// The part of a [`StoreReport`] that only this kind of store has.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CqlDetails {
    server: String,
    datacenter: String,
    /// `None` if the server does not report it.
    commitlog_sync: Option<String>,
    keyspace: String,
    /// The options; `None` if the keyspace does not exist.
    replication: Option<BTreeMap<String, String>>,
    /// `None` if there is no schema.
    schema_version: Option<u32>,
    schema_version_needed: u32,
}

impl CqlReport {
    /// The report about the store in `keyspace`.
    pub(crate) fn into_report(self, keyspace: String) -> StoreReport {
        let problems = self.problems();
        let Self {
            server,
            datacenter,
            commitlog_sync,
            keyspace: found,
            schema_version,
            schema_version_known,
            clocks,
        } = self;
        let version = schema_version.unwrap_or(0);
        StoreReport {
            summary: format!("{server}, keyspace {keyspace}, schema {version}"),
            details: CqlDetails {
                server: server.to_string(),
                datacenter,
                commitlog_sync,
                keyspace,
                replication: found.map(|found| found.replication),
                schema_version,
                schema_version_needed: schema_version_known,
            },
            clocks,
            problems: problems.iter().map(StoreProblem::from).collect(),
        }
    }
}

impl From<&CqlProblem> for StoreProblem {
    fn from(problem: &CqlProblem) -> Self {
        Self {
            is_fatal: problem.is_fatal(),
            text: problem.to_string(),
            area: match problem {
                CqlProblem::ClocksApart(_) => ProblemArea::Clocks,
                _ => ProblemArea::Store,
            },
        }
    }
}

/// Several lines of text.
impl fmt::Display for CqlDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "server: {}", self.server)?;
        writeln!(f, "datacentre: {}", self.datacenter)?;
        let sync = self.commitlog_sync.as_deref().unwrap_or("unknown");
        writeln!(f, "commit log: synced {sync}")?;
        let keyspace = &self.keyspace;
        match &self.replication {
            Some(options) => {
                let options = options.iter().map(|(key, value)| format!("{key} {value}"));
                let options = options.collect::<Vec<_>>().join(", ");
                writeln!(f, "keyspace: {keyspace} ({options})")?;
            }
            None => writeln!(f, "keyspace: {keyspace} (does not exist)")?,
        }
        let needed = self.schema_version_needed;
        match self.schema_version {
            Some(version) => write!(f, "schema: {version}; this program needs {needed}"),
            None => write!(f, "schema: none; this program needs {needed}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerClock;
    use crate::cql::{CqlKeyspace, CqlServer};

    fn report() -> CqlReport {
        let replication = [("class", "NetworkTopologyStrategy"), ("east", "3")];
        let replication = replication.map(|(name, value)| (name.to_owned(), value.to_owned()));
        CqlReport {
            server: CqlServer::Cassandra("5.0.8".to_owned()),
            datacenter: "east".to_owned(),
            commitlog_sync: Some("batch".to_owned()),
            keyspace: Some(CqlKeyspace {
                replication: replication.into(),
                has_tablets: false,
            }),
            schema_version: Some(1),
            schema_version_known: 1,
            clocks: vec![ServerClock {
                node: "10.0.0.1:9042".to_owned(),
                ahead_ms: 1_500,
            }],
        }
    }

    #[test]
    fn a_report_is_shown_as_lines_and_serialized_as_one_object() {
        let report = report().into_report("orders".to_owned());
        assert_eq!(
            report.summary,
            "Apache Cassandra 5.0.8, keyspace orders, schema 1"
        );
        let apart = "the clock of 10.0.0.1:9042 is 1500 ms ahead of this machine's clock: the \
                     difference must stay well below what leases and supervisor.clockSkew allow";
        assert_eq!(
            report.to_string(),
            format!(
                "server: Apache Cassandra 5.0.8\n\
                 datacentre: east\n\
                 commit log: synced batch\n\
                 keyspace: orders (class NetworkTopologyStrategy, east 3)\n\
                 schema: 1; this program needs 1\n\
                 clock: 10.0.0.1:9042 is 1500 ms ahead of this machine\n\
                 warning: {apart}"
            )
        );
        assert_eq!(
            serde_saphyr::to_string(&report).unwrap(),
            format!(
                "server: Apache Cassandra 5.0.8\n\
                 datacenter: east\n\
                 commitlogSync: batch\n\
                 keyspace: orders\n\
                 replication:\n  class: NetworkTopologyStrategy\n  east: \"3\"\n\
                 schemaVersion: 1\n\
                 schemaVersionNeeded: 1\n\
                 clocks:\n- node: 10.0.0.1:9042\n  aheadMs: 1500\n\
                 problems:\n- fatal: false\n  problem: \"{apart}\"\n"
            )
        );
    }

    #[test]
    fn a_missing_schema_is_fatal_and_not_a_problem_of_the_clocks() {
        let missing = CqlReport {
            keyspace: None,
            schema_version: None,
            ..report()
        };
        let report = missing.into_report("orders".to_owned());
        let problems = report
            .problems
            .iter()
            .map(|problem| (problem.area, problem.is_fatal));
        assert_eq!(
            problems.collect::<Vec<_>>(),
            [(ProblemArea::Store, true), (ProblemArea::Clocks, false)]
        );
        let text = report.to_string();
        assert!(text.contains("keyspace: orders (does not exist)"), "{text}");
        assert!(
            text.contains("cannot be used: the keyspace has no"),
            "{text}"
        );
    }
}
