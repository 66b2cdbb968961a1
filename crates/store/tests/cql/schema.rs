//! Migrations, and what is refused before the store is used.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;
use waybill_engine::{Epoch, OwnerId, PartitionId, ShardId};
use waybill_store::{
    CqlError, CqlProblem, CqlServer, CqlStore, Layout, LayoutGeneration, Lease, LeaseKey,
    Store as _, StoreError,
};

use super::Cql;
use super::contract::{Subject, fresh_id, row, rows, write};

/// Why the servers cannot hold the store.
fn cause(error: &StoreError) -> &CqlError {
    match error {
        StoreError::Unusable { source, .. } => source.downcast_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The problem that an error reports.
fn problem(error: StoreError) -> CqlProblem {
    match cause(&error) {
        CqlError::Incompatible { problem, .. } => problem.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_concurrent_migrations_create_one_schema() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let racers = [(); 8].map(|()| {
        let config = subject.config();
        tokio::spawn(async move { CqlStore::migrate(&config).await })
    });
    for racer in racers {
        racer.await.unwrap().unwrap();
    }
    CqlStore::migrate(&subject.config()).await.unwrap();
    let report = CqlStore::check(&subject.config()).await.unwrap();
    assert_eq!(report.schema_version, Some(report.schema_version_known));
    assert!(CqlStore::connect(subject.config()).await.is_ok());
    subject.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_schema_is_not_created_again() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    for (is_made, wanted) in [(false, true), (true, false)] {
        let proxy = RecordingProxy::line_to(subject.server.as_ref().unwrap()).await;
        let mut config = subject.config();
        config.contact_points = vec![proxy.address.to_string()];
        CqlStore::migrate(&config).await.unwrap();
        let defined = proxy.received("CREATE TABLE");
        assert_eq!(defined, wanted, "the schema was there: {is_made}");
        assert!(proxy.received("schema_versions"), "it was requested");
    }
    subject.clean_up().await;
}

/// What clients send to a server.
struct RecordingProxy {
    address: SocketAddr,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl RecordingProxy {
    async fn line_to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (server, received) = (server.to_owned(), bytes.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(
                    async move { tokio::io::copy(&mut from_server, &mut to_client).await },
                );
                let received = received.clone();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 16 * 1024];
                    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                        received.lock().unwrap().extend_from_slice(&buffer[..read]);
                        if to_server.write_all(&buffer[..read]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { address, bytes }
    }

    fn received(&self, text: &str) -> bool {
        let bytes = self.bytes.lock().unwrap();
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    }
}

#[tokio::test]
async fn a_report_lists_the_servers_the_schema_and_their_problems() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let report = CqlStore::check(&subject.config()).await.unwrap();
    assert_eq!((&report.keyspace, report.schema_version), (&None, None));
    assert_eq!(report.problems(), [CqlProblem::NoSchema]);

    CqlStore::migrate(&subject.config()).await.unwrap();
    let report = CqlStore::check(&subject.config()).await.unwrap();
    let (CqlServer::Cassandra(version) | CqlServer::ScyllaDb(version)) = &report.server;
    assert!(version.contains('.'), "{version}");
    let keyspace = report.keyspace.as_ref().unwrap();
    assert_eq!(keyspace.replication[&report.datacenter], "1");
    let fatal = report.problems();
    assert!(!fatal.iter().any(CqlProblem::is_fatal), "{fatal:?}");
    let datacenter = report.datacenter.clone();
    let few = CqlProblem::FewReplicas {
        datacenter,
        factor: 1,
    };
    assert!(fatal.contains(&few), "{fatal:?}");
    subject.clean_up().await;
}

#[tokio::test]
async fn a_missing_schema_is_refused_with_the_command_that_makes_it() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let error = CqlStore::connect(subject.config()).await.unwrap_err();
    let problem = problem(error);
    assert_eq!(problem, CqlProblem::NoSchema);
    assert!(problem.to_string().contains("`waybill store migrate`"));
}

#[tokio::test]
async fn a_schema_that_is_newer_than_the_program_is_refused_and_left_alone() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    CqlStore::migrate(&subject.config()).await.unwrap();
    let known = CqlStore::check(&subject.config()).await.unwrap();
    let (known, newer) = (known.schema_version_known, known.schema_version_known + 1);
    let update = format!(
        "UPDATE {{ks}}.schema_versions SET version = {newer} WHERE name = 'waybill' IF EXISTS"
    );
    subject.run(&update, ()).await;
    let wanted = CqlProblem::NewSchema {
        found: newer,
        known,
    };
    let refused = CqlStore::connect(subject.config()).await.unwrap_err();
    assert_eq!(problem(refused), wanted);
    let refused = CqlStore::migrate(&subject.config()).await.unwrap_err();
    assert_eq!(problem(refused), wanted);
    let report = CqlStore::check(&subject.config()).await.unwrap();
    assert_eq!(report.schema_version, Some(newer));
    subject.clean_up().await;
}

/// The state after a migration that was killed.
#[tokio::test]
async fn an_older_schema_is_refused_and_migrated_with_its_rows() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let (id, key) = (
        fresh_id(),
        LeaseKey::scheduler(LayoutGeneration(0), ShardId(3)),
    );
    let lease = Lease {
        owner: Some(OwnerId(Uuid::from_u128(5))),
        epoch: Epoch(6),
        renewal: 7,
        duration: Duration::from_secs(10),
        is_begun: true,
        ..Lease::new(key, PartitionId(3))
    };
    let store = subject.store().await;
    store.write(rows([write(id, 5, true)])).await.unwrap();
    assert!(store.take_lease(None, lease.clone()).await.unwrap());
    drop(store);
    for table in ["layouts", "secrets"] {
        let drop = format!("DROP TABLE {{ks}}.{table}");
        subject.run(&drop, ()).await;
    }
    let version = "UPDATE {ks}.schema_versions SET version = 0 WHERE name = 'waybill' IF EXISTS";
    subject.run(version, ()).await;

    let refused = CqlStore::connect(subject.config()).await.unwrap_err();
    let refused = problem(refused);
    assert!(matches!(refused, CqlProblem::OldSchema { .. }), "{refused}");
    let store = subject.store().await;
    let found = store.get_many(vec![id]).await.unwrap();
    assert_eq!(found, [Ok(Some(row(id, 5, 5)))]);
    assert_eq!(store.lease(key).await.unwrap(), Some(lease));
    assert_eq!(store.layout().await.unwrap(), None);
    let layout = Layout::first(4).intended(8).unwrap();
    assert!(store.set_layout(None, layout.clone()).await.unwrap());
    assert_eq!(store.layout().await.unwrap(), Some(layout));
    subject.clean_up().await;
}

#[tokio::test]
async fn a_version_that_no_migration_can_move_ends_the_migration() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    CqlStore::migrate(&subject.config()).await.unwrap();
    let negative = "UPDATE {ks}.schema_versions SET version = -1 WHERE name = 'waybill' IF EXISTS";
    subject.run(negative, ()).await;
    let error = CqlStore::migrate(&subject.config()).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        cause.contains("schema_versions still has version 0"),
        "{cause}"
    );
    subject.clean_up().await;
}

/// If others create the keyspaces, the program need not.
#[tokio::test]
async fn a_keyspace_that_exists_is_used_as_it_is() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    subject
        .run(
            "CREATE KEYSPACE {ks} WITH replication = \
             {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}",
            (),
        )
        .await;
    let mut config = subject.config();
    config.replication = waybill_store::CqlReplication::Everywhere(3);
    CqlStore::migrate(&config).await.unwrap();
    let report = CqlStore::check(&config).await.unwrap();
    let keyspace = report.keyspace.unwrap();
    assert_eq!(keyspace.replication[&report.datacenter], "1");
    subject.clean_up().await;
}

#[tokio::test]
async fn a_missing_datacentre_is_refused_with_the_existing_ones() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let known = CqlStore::check(&subject.config()).await.unwrap().datacenter;
    let mut config = subject.config();
    config.local_datacenter = Some("nowhere".to_owned());
    let error = CqlStore::connect(config).await.unwrap_err();
    let wanted = CqlError::Datacenter { known: vec![known] };
    assert_eq!(*cause(&error), wanted);
}
