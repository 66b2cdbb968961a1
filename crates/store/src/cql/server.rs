//! What the servers report about themselves, and whether they can hold the store. Pure: the queries
//! are in `schema.rs`.

use std::collections::BTreeMap;
use std::fmt;

use crate::ServerClock;

/// Which database it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CqlServer {
    /// Apache Cassandra of this version.
    Cassandra(String),
    /// ScyllaDB of this version.
    ScyllaDb(String),
}

impl fmt::Display for CqlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cassandra(version) => write!(f, "Apache Cassandra {version}"),
            Self::ScyllaDb(version) => write!(f, "ScyllaDB {version}"),
        }
    }
}

impl CqlServer {
    /// The oldest Cassandra: the first whose `NetworkTopologyStrategy` takes one factor for all
    /// datacentres.
    const CASSANDRA_MIN: (u32, u32) = (4, 0);

    /// The first ScyllaDB whose keyspaces with tablets take lightweight transactions; its manual
    /// up to 2025.3 says that they do not.
    const SCYLLADB_TABLETS_MIN: (u32, u32) = (2025, 4);

    /// Whether a keyspace with tablets would have no lightweight transactions here. An unreadable
    /// version counts as one that has them: if it does not, the first lease fails.
    pub(super) fn must_avoid_tablets(&self) -> bool {
        match self {
            Self::Cassandra(_) => false,
            Self::ScyllaDb(version) => {
                numbers(version).is_some_and(|version| version < Self::SCYLLADB_TABLETS_MIN)
            }
        }
    }

    /// Whether the version has tablets at all, so that a keyspace can opt out of them.
    pub(super) fn knows_tablets(&self) -> bool {
        match self {
            Self::Cassandra(_) => false,
            Self::ScyllaDb(version) => numbers(version).is_some_and(|version| version >= (6, 0)),
        }
    }
}

/// Major and minor number of a version such as `5.0.8` or `2025.4.0~rc1-0.2025`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A keyspace as the servers report it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CqlKeyspace {
    /// The replication options as the servers have them.
    pub replication: BTreeMap<String, String>,
    /// Whether it is kept in tablets (ScyllaDB).
    pub has_tablets: bool,
}

impl CqlKeyspace {
    /// How many times a row is stored in a datacentre; `None` if the options do not say.
    fn factor(&self, datacenter: &str) -> Option<u32> {
        let class = self.replication.get("class")?;
        let option = if class.ends_with("SimpleStrategy") {
            "replication_factor"
        } else {
            datacenter
        };
        self.replication.get(option)?.parse().ok()
    }
}

/// How far a server's clock may be ahead of this machine's before that is reported.
const CLOCK_AHEAD_MS_MAX: i64 = 1_000;

/// What the servers report about themselves and about the store's keyspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CqlReport {
    /// The database.
    pub server: CqlServer,
    /// The datacentre whose replicas are used.
    pub datacenter: String,
    /// How the server that answered syncs its commit log; `None` if it does not report this.
    pub commitlog_sync: Option<String>,
    /// The keyspace, if there is one.
    pub keyspace: Option<CqlKeyspace>,
    /// The version of the schema, if there is one.
    pub schema_version: Option<u32>,
    /// The version of the schema that this program needs.
    pub schema_version_known: u32,
    /// The clocks of the nodes that answered.
    pub clocks: Vec<ServerClock>,
}

/// A problem of the servers or the keyspace that a person must know.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CqlProblem {
    /// The version is too old.
    #[error("{0} is too old: version 4.0 or later is required")]
    TooOld(CqlServer),
    /// The keyspace's tablets take no lightweight transactions in this version.
    #[error(
        "{0} does not support lightweight transactions in a keyspace with tablets, which leases \
         require: update to 2025.4 or later, or create the keyspace WITH tablets = {{'enabled': \
         false}}"
    )]
    TabletsWithoutTransactions(CqlServer),
    /// There is no keyspace, or it has no schema.
    #[error("the keyspace has no Waybill schema: run `waybill store migrate`")]
    NoSchema,
    /// The schema is older than this program needs.
    #[error(
        "the schema has version {found}, but this program requires {known}: run `waybill store \
         migrate`"
    )]
    OldSchema {
        /// The version found.
        found: u32,
        /// The version needed.
        known: u32,
    },
    /// The schema is newer than this program knows.
    #[error(
        "the schema has version {found}, but this program supports only {known}: use a newer \
         program"
    )]
    NewSchema {
        /// The version found.
        found: u32,
        /// The newest version known.
        known: u32,
    },
    /// No row is stored where the program reads and writes.
    #[error("the keyspace has no replica in datacentre {datacenter}")]
    NoReplica {
        /// The datacentre.
        datacenter: String,
    },
    /// One lost machine loses rows (with one replica) or the quorum (with two).
    #[error(
        "each row is stored {factor} times in {datacenter}: the loss of one machine stops the \
         store or loses rows"
    )]
    FewReplicas {
        /// The datacentre.
        datacenter: String,
        /// How many times a row is stored there.
        factor: u32,
    },
    /// Leases and deadlines depend on the clocks of all machines.
    #[error(
        "the clock of {} is {} ms ahead of this machine's clock: the difference must stay well \
         below what leases and supervisor.clockSkew allow", .0.node, .0.ahead_ms
    )]
    ClocksApart(ServerClock),
    /// A power loss would lose acknowledged writes that are on no other machine.
    #[error(
        "the commit log is synced {how}: a power loss deletes acknowledged rows that are on no \
         other machine"
    )]
    UnsyncedCommitLog {
        /// The server's setting.
        how: String,
    },
}

impl CqlProblem {
    /// Whether it prevents the use of the store, rather than making it unreliable.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::TooOld(_)
            | Self::TabletsWithoutTransactions(_)
            | Self::NoSchema
            | Self::OldSchema { .. }
            | Self::NewSchema { .. }
            | Self::NoReplica { .. } => true,
            Self::FewReplicas { .. } | Self::ClocksApart(_) | Self::UnsyncedCommitLog { .. } => {
                false
            }
        }
    }
}

impl CqlReport {
    /// The problems, the most serious first.
    #[must_use]
    pub fn problems(&self) -> Vec<CqlProblem> {
        let mut problems = self.problems_of_keyspace();
        problems.extend(self.problem_of_schema());
        let apart = self
            .clocks
            .iter()
            .filter(|clock| clock.ahead_ms.abs() > CLOCK_AHEAD_MS_MAX);
        problems.extend(apart.cloned().map(CqlProblem::ClocksApart));
        problems
    }

    /// The problems of the servers and the keyspace, apart from its schema.
    pub(super) fn problems_of_keyspace(&self) -> Vec<CqlProblem> {
        let mut problems = Vec::new();
        if let CqlServer::Cassandra(version) = &self.server
            && numbers(version).is_some_and(|version| version < CqlServer::CASSANDRA_MIN)
        {
            problems.push(CqlProblem::TooOld(self.server.clone()));
        }
        let Some(keyspace) = &self.keyspace else {
            return problems;
        };
        if keyspace.has_tablets && self.server.must_avoid_tablets() {
            problems.push(CqlProblem::TabletsWithoutTransactions(self.server.clone()));
        }
        let datacenter = self.datacenter.clone();
        match keyspace.factor(&datacenter) {
            None | Some(0) => problems.push(CqlProblem::NoReplica { datacenter }),
            Some(factor @ 1..=2) => {
                problems.push(CqlProblem::FewReplicas { datacenter, factor });
                problems.extend(self.unsynced_commit_log());
            }
            Some(3..) => {}
        }
        problems
    }

    /// With three replicas a write is on two machines before it is acknowledged; with fewer only
    /// the commit log protects it. (ScyllaDB does not report how it syncs.)
    fn unsynced_commit_log(&self) -> Option<CqlProblem> {
        let how = self.commitlog_sync.clone()?;
        (how == "periodic").then_some(CqlProblem::UnsyncedCommitLog { how })
    }

    fn problem_of_schema(&self) -> Option<CqlProblem> {
        let known = self.schema_version_known;
        match self.schema_version {
            None => Some(CqlProblem::NoSchema),
            Some(found) if found < known => Some(CqlProblem::OldSchema { found, known }),
            Some(found) if found > known => Some(CqlProblem::NewSchema { found, known }),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scylladb(version: &str) -> CqlServer {
        CqlServer::ScyllaDb(version.to_owned())
    }

    fn report(server: CqlServer, replication: &[(&str, &str)], has_tablets: bool) -> CqlReport {
        let replication = replication
            .iter()
            .map(|(option, value)| ((*option).to_owned(), (*value).to_owned()));
        CqlReport {
            server,
            datacenter: "east".to_owned(),
            commitlog_sync: None,
            keyspace: Some(CqlKeyspace {
                replication: replication.collect(),
                has_tablets,
            }),
            schema_version: Some(3),
            schema_version_known: 3,
            clocks: Vec::new(),
        }
    }

    const THREE: [(&str, &str); 2] = [
        (
            "class",
            "org.apache.cassandra.locator.NetworkTopologyStrategy",
        ),
        ("east", "3"),
    ];

    #[test]
    fn clocks_more_than_a_second_apart_are_reported_and_not_fatal() {
        let clocks = [0, -1_000, 1_001, -5_000].map(|ahead_ms| ServerClock {
            node: format!("{ahead_ms}"),
            ahead_ms,
        });
        let report = CqlReport {
            clocks: clocks.to_vec(),
            ..report(scylladb("2026.1.0"), &THREE, true)
        };
        let [_, _, ahead, behind] = clocks.map(CqlProblem::ClocksApart);
        assert!(!ahead.is_fatal());
        assert_eq!(report.problems(), [ahead, behind]);
    }

    #[test]
    fn tablets_are_refused_before_scylladb_2025_4() {
        for (version, will_do) in [
            ("6.2.3-0.20250119.59cabadb38fa", false),
            ("2024.2.5", false),
            ("2025.3.9", false),
            ("2025.4.0~rc1-0.20251020", true),
            ("2025.4.1", true),
            ("2026.1.0", true),
            ("unknown", true),
        ] {
            let problems = report(scylladb(version), &THREE, true).problems();
            let wanted = [CqlProblem::TabletsWithoutTransactions(scylladb(version))];
            let wanted = if will_do { &[][..] } else { &wanted[..] };
            assert_eq!(problems, wanted, "{version}");
            assert_eq!(report(scylladb(version), &THREE, false).problems(), []);
        }
    }

    #[test]
    fn tablets_are_disabled_only_if_that_is_required_and_supported() {
        for (server, avoids) in [
            (scylladb("5.4.9"), false),
            (scylladb("6.0.0"), true),
            (scylladb("2025.3.0"), true),
            (scylladb("2025.4.0"), false),
            (CqlServer::Cassandra("5.0.8".to_owned()), false),
        ] {
            let found = server.must_avoid_tablets() && server.knows_tablets();
            assert_eq!(found, avoids, "{server}");
        }
    }

    #[test]
    fn an_old_cassandra_is_refused() {
        for (version, is_refused) in [("3.11.17", true), ("4.0.0", false), ("5.0.8", false)] {
            let server = CqlServer::Cassandra(version.to_owned());
            let problems = report(server, &THREE, false).problems();
            let is_too_old = matches!(problems[..], [CqlProblem::TooOld(_)]);
            assert_eq!(is_too_old, is_refused, "{version}: {problems:?}");
        }
    }

    #[test]
    fn few_replicas_are_reported_and_a_keyspace_without_any_is_refused() {
        let of = |factors: &[(&str, &str)]| {
            let replication = [&THREE[..1], factors].concat();
            report(scylladb("2026.1.0"), &replication, true).problems()
        };
        let east = || "east".to_owned();
        assert_eq!(of(&[("east", "3")]), []);
        let few = |factor| CqlProblem::FewReplicas {
            datacenter: east(),
            factor,
        };
        assert_eq!(of(&[("east", "2")]), [few(2)]);
        assert!(!few(2).is_fatal());
        let none = CqlProblem::NoReplica { datacenter: east() };
        assert!(none.is_fatal());
        assert_eq!(of(&[("west", "3")]), [none]);
        let simple = [
            ("class", "org.apache.cassandra.locator.SimpleStrategy"),
            ("replication_factor", "1"),
        ];
        let mut single = report(scylladb("2026.1.0"), &simple, false);
        assert_eq!(single.problems(), [few(1)]);
        single.commitlog_sync = Some("group".to_owned());
        assert_eq!(single.problems(), [few(1)]);
        single.commitlog_sync = Some("periodic".to_owned());
        assert!(matches!(
            single.problems()[..],
            [_, CqlProblem::UnsyncedCommitLog { .. }]
        ));
    }

    #[test]
    fn a_missing_older_or_newer_schema_is_refused_with_its_fix() {
        let mut found = report(scylladb("2026.1.0"), &THREE, true);
        for (version, words) in [
            (None, "`waybill store migrate`"),
            (
                Some(2),
                "version 2, but this program requires 3: run `waybill store migrate`",
            ),
            (
                Some(4),
                "version 4, but this program supports only 3: use a newer program",
            ),
        ] {
            found.schema_version = version;
            let problems = found.problems();
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].is_fatal());
            let text = problems[0].to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
