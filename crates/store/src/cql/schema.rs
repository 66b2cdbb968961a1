//! The tables, their versions, and the checks of the servers before they are used.
//!
//! ```text
//! operations       (slot), id       body, created, state, epoch, next_due, failure_count, updated_at
//! due              (shard, bucket), entry                    time windows of a day, TTL on each entry
//! due_cursors      (shard)          bucket, written at the timestamp of the bucket
//! attention        (shard, day), entry
//! attention_days   (part), day                               the days that `attention` has entries of
//! attention_shards (day), shard                              and the index shards of each such day
//! leases           (role, partition)  body, owner, epoch, renewal, datacenter    by transactions only
//! layouts          (name)           generation, body, datacenter                 by transactions only
//! secrets          (name)           value                                        inserted once, by a transaction
//! unreadable       (id), part, stamp  value, found_at                             TTL of 90 days
//! schema_versions  (name)           version                                      by transactions only
//! ```
//!
//! Migrations are numbered and never change once they are released. Several processes may migrate
//! at the same time: each statement creates only what is missing, and a lightweight transaction
//! moves the version. (On Cassandra up to 5.0, two nodes that create one table at the same moment
//! may disagree about it; begin one migration there, from one place.) Processes of the older
//! version continue during a migration, so a migration may only add. Whether they may continue
//! after it depends on the formats of the stored values (`codec`).

use std::collections::BTreeMap;
use std::time::Duration;

use scylla::client::session::Session;
use scylla::deserialize::row::DeserializeRow;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::frame::types::Consistency;
use scylla::response::query_result::QueryResult;
use scylla::statement::unprepared::Statement;
use scylla::value::{CqlValue, Row};

use super::answer::decode;
use super::clocks::clocks;
use super::config::{CqlConfig, CqlReplication};
use super::error::CqlError;
use super::link::{Failure, Link, failure};
use super::server::{CqlKeyspace, CqlProblem, CqlReport, CqlServer};
use crate::StoreError;

/// The version that this program needs.
pub(super) const VERSION: u32 = 1;

/// The action that errors name.
const MIGRATING: &str = "migrating the schema";

/// The action that errors of queries name.
const ASKING: &str = "asking the servers about themselves";

/// Maximum number of times a query is tried.
const ASKED_MAX: u32 = 5;

/// The wait after the first failed try of a query; each further wait is longer by as much.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The name of the schema in its table of versions.
const NAME: &str = "waybill";

/// The statements from each version to the next; `{ks}` is the keyspace.
const MIGRATIONS: [&[&str]; VERSION as usize] = [&[
    "CREATE TABLE IF NOT EXISTS {ks}.operations (slot bigint, id uuid, body blob, created blob, \
     state text, epoch bigint, next_due timestamp, failure_count int, updated_at timestamp, \
     PRIMARY KEY (slot, id)) \
     WITH comment = 'one row per operation; the program reads body and created, the \
     other columns are for people'",
    "CREATE TABLE IF NOT EXISTS {ks}.due (shard bigint, bucket bigint, entry blob, \
     PRIMARY KEY ((shard, bucket), entry)) \
     WITH compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', \
     'compaction_window_size': '1'} \
     AND gc_grace_seconds = 10800 \
     AND comment = 'the deadline index; entries expire by TTL'",
    "CREATE TABLE IF NOT EXISTS {ks}.due_cursors (shard bigint PRIMARY KEY, bucket bigint) \
     WITH comment = 'the first bucket of each index shard that is not completely swept'",
    "CREATE TABLE IF NOT EXISTS {ks}.attention (shard bigint, day bigint, entry blob, \
     PRIMARY KEY ((shard, day), entry)) \
     WITH gc_grace_seconds = 10800 \
     AND comment = 'index of operations that linger, failed or are parked'",
    "CREATE TABLE IF NOT EXISTS {ks}.attention_days (part int, day bigint, \
     PRIMARY KEY (part, day)) \
     WITH gc_grace_seconds = 10800 \
     AND comment = 'the days that have entries in attention'",
    "CREATE TABLE IF NOT EXISTS {ks}.attention_shards (day bigint, shard bigint, \
     PRIMARY KEY (day, shard)) \
     WITH gc_grace_seconds = 10800 \
     AND comment = 'the index shards of each day that have entries in attention'",
    "CREATE TABLE IF NOT EXISTS {ks}.leases (role text, partition bigint, body blob, owner uuid, \
     epoch bigint, renewal bigint, datacenter text, PRIMARY KEY ((role, partition))) \
     WITH comment = 'the owner of each shard; written only by lightweight transactions'",
    "CREATE TABLE IF NOT EXISTS {ks}.unreadable (id uuid, part text, stamp bigint, value blob, \
     found_at timestamp, PRIMARY KEY (id, part, stamp)) \
     WITH comment = 'copies of unreadable values, for inspection'",
    "CREATE TABLE IF NOT EXISTS {ks}.layouts (name text PRIMARY KEY, generation bigint, body blob, \
     datacenter text) WITH comment = 'the numbers of partitions and shards; written only by \
     lightweight transactions'",
    "CREATE TABLE IF NOT EXISTS {ks}.secrets (name text PRIMARY KEY, value blob) \
     WITH comment = 'the key that authenticates replies; inserted once, never changed'",
]];

/// Creates the missing parts of the keyspace and its tables.
pub(super) async fn migrate(link: &Link, config: &CqlConfig) -> Result<(), StoreError> {
    let keyspace = &config.keyspace;
    let server = server(&link.session).await?;
    if find_keyspace(&link.session, keyspace).await?.is_none() {
        refuse_too_few_nodes(link, config)?;
        let replication = config.replication.to_cql();
        let tablets = if server.must_avoid_tablets() && server.knows_tablets() {
            " AND tablets = {'enabled': false}"
        } else {
            ""
        };
        define(
            link,
            format!(
                "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}{tablets}"
            ),
        )
        .await?;
        tracing::info!(keyspace, replication, %server, "created the keyspace");
    }
    let found = report(link, config).await?;
    let problems = found.problems_of_keyspace();
    refuse_fatal(config, &found, problems)?;
    // A stored version proves that its table exists: nodes need not agree on the schema again.
    let mut version = match found.schema_version {
        Some(version) => version,
        None => {
            define(link, format!(
                "CREATE TABLE IF NOT EXISTS {keyspace}.schema_versions (name text PRIMARY KEY, version int)"
            ))
            .await?;
            begin_versions(link, keyspace).await?;
            schema_version(&link.session, keyspace).await?.unwrap_or(0)
        }
    };
    while version < VERSION {
        for statement in MIGRATIONS[version as usize] {
            define(link, statement.replace("{ks}", keyspace)).await?;
        }
        link.session
            .await_schema_agreement()
            .await
            .map_err(|error| StoreError::unavailable(MIGRATING, error))?;
        set_version(link, keyspace, version).await?;
        let now = schema_version(&link.session, keyspace).await?.unwrap_or(0);
        if now <= version {
            let what = format!(
                "{keyspace}.schema_versions still has version {now} after the migration to {}: \
                 check its row name = '{NAME}', then run the migration again",
                version + 1
            );
            return Err(StoreError::unavailable(MIGRATING, what));
        }
        tracing::info!(keyspace, version = now, "migrated the schema");
        version = now;
    }
    let found = report(link, config).await?;
    let problems = found.problems();
    refuse_fatal(config, &found, problems)
}

/// Refuses to create a keyspace with more copies of each row than there are nodes for them: nothing
/// could be read from it.
fn refuse_too_few_nodes(link: &Link, config: &CqlConfig) -> Result<(), CqlError> {
    let cluster = link.session.get_cluster_state();
    let nodes_of = |datacenter: &str| {
        let nodes = cluster.get_nodes_info().iter();
        let there = nodes.filter(|node| node.datacenter.as_deref() == Some(datacenter));
        there.count()
    };
    let factors: Vec<(&str, u8)> = match &config.replication {
        CqlReplication::Everywhere(factor) => vec![(&link.datacenter, *factor)],
        CqlReplication::Datacenters(factors) => factors
            .iter()
            .map(|(datacenter, factor)| (datacenter.as_str(), *factor))
            .collect(),
    };
    for (datacenter, factor) in factors {
        let nodes = nodes_of(datacenter);
        if usize::from(factor) > nodes {
            return Err(CqlError::FewNodes {
                factor,
                datacenter: datacenter.to_owned(),
                nodes,
            });
        }
    }
    Ok(())
}

/// Refuses unsuitable servers or keyspaces, and logs their other problems.
pub(super) async fn require(link: &Link, config: &CqlConfig) -> Result<(), StoreError> {
    let found = report(link, config).await?;
    let problems = found.problems();
    for problem in problems.iter().filter(|problem| !problem.is_fatal()) {
        tracing::warn!(keyspace = config.keyspace, "{problem}");
    }
    refuse_fatal(config, &found, problems)?;
    tracing::info!(keyspace = config.keyspace, server = %found.server, datacenter = found.datacenter, "connected to the state store");
    Ok(())
}

/// Queries the servers and the keyspace.
pub(super) async fn report(link: &Link, config: &CqlConfig) -> Result<CqlReport, StoreError> {
    let session = &link.session;
    let keyspace = find_keyspace(session, &config.keyspace).await?;
    let schema_version = match keyspace {
        Some(_) => schema_version(session, &config.keyspace).await?,
        None => None,
    };
    let server = server(session).await?;
    let commitlog_sync = match server {
        CqlServer::Cassandra(_) => commitlog_sync(session).await?,
        CqlServer::ScyllaDb(_) => None,
    };
    Ok(CqlReport {
        server,
        datacenter: link.datacenter.clone(),
        commitlog_sync,
        keyspace,
        schema_version,
        schema_version_known: VERSION,
        clocks: clocks(session).await,
    })
}

fn refuse_fatal(
    config: &CqlConfig,
    found: &CqlReport,
    problems: Vec<CqlProblem>,
) -> Result<(), StoreError> {
    match problems.into_iter().find(|problem| problem.is_fatal()) {
        None => Ok(()),
        Some(problem) => Err(CqlError::Incompatible {
            keyspace: config.keyspace.clone(),
            server: found.server.clone(),
            problem,
        }
        .into()),
    }
}

/// Whether a lightweight transaction was applied. Its other columns differ between the databases,
/// and from case to case on Cassandra.
pub(super) fn was_applied(answer: QueryResult) -> Result<bool, StoreError> {
    const ACTION: &str = "reading a transaction's answer";
    let rows = answer
        .into_rows_result()
        .map_err(|error| StoreError::unavailable(ACTION, error))?;
    let Some((column, _)) = rows.column_specs().get_by_name("[applied]") else {
        return Err(StoreError::unavailable(
            ACTION,
            "it has no column [applied]",
        ));
    };
    let row: Row = rows
        .first_row()
        .map_err(|error| StoreError::unavailable(ACTION, error))?;
    match row.columns.get(column) {
        Some(Some(CqlValue::Boolean(applied))) => Ok(*applied),
        other => Err(StoreError::unavailable(
            ACTION,
            format!("[applied] is {other:?}"),
        )),
    }
}

/// Sends a statement that changes the schema, and waits until all nodes agree on it.
async fn define(link: &Link, statement: String) -> Result<(), StoreError> {
    link.repeat(MIGRATING, || {
        link.session.query_unpaged(statement.clone(), ())
    })
    .await
    .map(|_| ())
}

/// Stores version 0 (no other table exists yet), unless a version is stored.
async fn begin_versions(link: &Link, keyspace: &str) -> Result<(), StoreError> {
    let statement = format!(
        "INSERT INTO {keyspace}.schema_versions (name, version) VALUES (?, 0) IF NOT EXISTS"
    );
    let statement = link.prepare_conditional(statement).await?;
    link.repeat(MIGRATING, || {
        link.session.execute_unpaged(&statement, (NAME,))
    })
    .await
    .map(|_| ())
}

/// Moves the version on by one, if it still is `from`.
async fn set_version(link: &Link, keyspace: &str, from: u32) -> Result<(), StoreError> {
    let statement =
        format!("UPDATE {keyspace}.schema_versions SET version = ? WHERE name = ? IF version = ?");
    let statement = link.prepare_conditional(statement).await?;
    let values = (as_int(from + 1), NAME, as_int(from));
    link.repeat(MIGRATING, || {
        link.session.execute_unpaged(&statement, values)
    })
    .await
    .map(|_| ())
}

fn as_int(version: u32) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

/// Which database it is. ScyllaDB reports its own version in a table that Cassandra does not have,
/// and a Cassandra version for compatibility in `system.local`.
async fn server(session: &Session) -> Result<CqlServer, StoreError> {
    let is_scylladb: Vec<(String,)> = rows(
        session,
        "SELECT table_name FROM system_schema.tables \
         WHERE keyspace_name = 'system_schema' AND table_name = 'scylla_tables'",
    )
    .await?;
    if is_scylladb.is_empty() {
        let local = "SELECT release_version FROM system.local WHERE key = 'local'";
        let version: Vec<(String,)> = rows(session, local).await?;
        return Ok(CqlServer::Cassandra(first(version)));
    }
    let version: Vec<(String,)> = rows(session, "SELECT version FROM system.versions").await?;
    Ok(CqlServer::ScyllaDb(first(version)))
}

fn first(version: Vec<(String,)>) -> String {
    let version = version.into_iter().next();
    version.map_or_else(|| "of unknown version".to_owned(), |(version,)| version)
}

/// Cassandra from 4.0 on reports its settings in a virtual table.
async fn commitlog_sync(session: &Session) -> Result<Option<String>, StoreError> {
    let setting = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'";
    let value: Vec<(String,)> = match ask(session, setting).await {
        Ok(answer) => decode(ASKING, answer)?,
        Err(error) if failure(&error) == Failure::Refused => return Ok(None),
        Err(error) => return Err(StoreError::unavailable(ASKING, error)),
    };
    Ok(value.into_iter().next().map(|(value,)| value))
}

async fn find_keyspace(
    session: &Session,
    keyspace: &str,
) -> Result<Option<CqlKeyspace>, StoreError> {
    let found: Vec<(BTreeMap<String, String>,)> = rows(
        session,
        format!(
            "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{keyspace}'"
        ),
    )
    .await?;
    let Some((replication,)) = found.into_iter().next() else {
        return Ok(None);
    };
    let column = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = \
                  'system_schema' AND table_name = 'scylla_keyspaces' AND column_name = \
                  'initial_tablets'";
    let knows_tablets: Vec<(String,)> = rows(session, column).await?;
    let has_tablets = if knows_tablets.is_empty() {
        false
    } else {
        let tablets = format!(
            "SELECT initial_tablets FROM system_schema.scylla_keyspaces \
             WHERE keyspace_name = '{keyspace}'"
        );
        let initial: Vec<(Option<i32>,)> = rows(session, tablets).await?;
        initial.iter().any(|(initial,)| initial.is_some())
    };
    Ok(Some(CqlKeyspace {
        replication,
        has_tablets,
    }))
}

async fn schema_version(session: &Session, keyspace: &str) -> Result<Option<u32>, StoreError> {
    let table = format!(
        "SELECT table_name FROM system_schema.tables \
         WHERE keyspace_name = '{keyspace}' AND table_name = 'schema_versions'"
    );
    let tables: Vec<(String,)> = rows(session, table).await?;
    if tables.is_empty() {
        return Ok(None);
    }
    let mut statement = Statement::new(format!(
        "SELECT version FROM {keyspace}.schema_versions WHERE name = '{NAME}'"
    ));
    statement.set_consistency(Consistency::LocalSerial);
    let answer = match ask(session, statement).await {
        Ok(answer) => answer,
        // A login without permission to read the table gets an error, not the answer that there is
        // no version.
        Err(error) if is_unauthorized(&error) => {
            return Err(StoreError::unavailable(ASKING, error));
        }
        // The schema tables may name a table that the server does not serve yet.
        Err(error) if failure(&error) == Failure::Refused => return Ok(None),
        Err(error) => return Err(StoreError::unavailable(ASKING, error)),
    };
    let versions: Vec<(i32,)> = decode(ASKING, answer)?;
    Ok(versions
        .first()
        .map(|(version,)| u32::try_from(*version).unwrap_or(0)))
}

fn is_unauthorized(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(DbError::Unauthorized, _))
    )
}

/// Queries a few rows.
async fn rows<R>(session: &Session, statement: impl Into<Statement>) -> Result<Vec<R>, StoreError>
where
    R: for<'frame> DeserializeRow<'frame, 'frame>,
{
    let answer = ask(session, statement).await;
    decode(
        ASKING,
        answer.map_err(|error| StoreError::unavailable(ASKING, error))?,
    )
}

/// Tries a query a few times, unless it is refused: a server that is changing its tables may not
/// answer immediately.
async fn ask(
    session: &Session,
    statement: impl Into<Statement>,
) -> Result<QueryResult, ExecutionError> {
    let statement = statement.into();
    let mut tries = 1;
    loop {
        match session.query_unpaged(statement.clone(), ()).await {
            Err(error) if tries < ASKED_MAX && failure(&error) != Failure::Refused => {
                tokio::time::sleep(ASK_AGAIN_AFTER * tries).await;
                tries += 1;
            }
            answer => return answer,
        }
    }
}
