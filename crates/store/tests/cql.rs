//! The store on a CQL server: the contract of every store, and the faults of a cluster.
//!
//! The server is named by `WAYBILL_TEST_SCYLLA=HOST:PORT`. Each test has its own keyspace, and
//! drops it at its end.

mod contract;
#[path = "cql/schema.rs"]
mod schema;
#[path = "cql/walk.rs"]
mod walk;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::{Subject, created, fresh_id, fresh_partition, row, rows, state, write};
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::serialize::row::SerializeRow;
use uuid::Uuid;
use waybill_engine::{Epoch, OperationId, OwnerId, PartitionId, ShardId, ShardingScheme, Stamp};
use waybill_store::{
    CqlConfig, CqlError, CqlReplication, CqlStore, Layout, LayoutGeneration, Lease, LeaseKey,
    RowWrite, Store, StoreError,
};

/// The environment variable that names the server.
const SERVER: &str = "WAYBILL_TEST_SCYLLA";

/// A separate keyspace on the server, if there is one.
struct Cql {
    keyspace: String,
    server: Option<String>,
}

impl Cql {
    fn new() -> Self {
        Self {
            keyspace: format!("waybill_{}", Uuid::new_v4().simple()),
            server: std::env::var(SERVER).ok(),
        }
    }

    /// The keyspace for one test; `None`, with a message, if there is no server.
    fn new_or_skip() -> Option<Self> {
        let subject = Self::new();
        if let Some(why) = subject.why_skipped() {
            println!("SKIPPED: {why}");
            return None;
        }
        Some(subject)
    }

    fn config(&self) -> CqlConfig {
        CqlConfig {
            keyspace: self.keyspace.clone(),
            replication: CqlReplication::Everywhere(1),
            attention_walk_interval: None,
            ..CqlConfig::new(self.server.clone())
        }
    }

    async fn store(&self) -> CqlStore {
        CqlStore::migrate(&self.config()).await.unwrap();
        CqlStore::connect(self.config()).await.unwrap()
    }

    /// A session that bypasses the store.
    async fn session(&self) -> Session {
        let server = self.server.as_ref().unwrap();
        // Dropping a keyspace takes a server long that shares the machine with a build.
        let patient = ExecutionProfile::builder().request_timeout(Some(Duration::from_secs(180)));
        let session = SessionBuilder::new()
            .known_node(server)
            .default_execution_profile_handle(patient.build().into_handle());
        session.build().await.unwrap()
    }

    /// Runs a statement that bypasses the store; `{ks}` is the keyspace.
    async fn run(&self, statement: &str, values: impl SerializeRow) {
        let statement = statement.replace("{ks}", &self.keyspace);
        let session = self.session().await;
        session.query_unpaged(statement, values).await.unwrap();
    }
}

impl Subject for Cql {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.store().await)
    }

    /// At an equal stamp, the greater of two values is kept.
    async fn spoil(&self, id: OperationId) {
        let session = self.session().await;
        let table = format!("{}.operations", self.keyspace);
        let select =
            format!("SELECT slot, WRITETIME(body) FROM {table} WHERE id = ? ALLOW FILTERING");
        let found = session.query_unpaged(select, (id.0,)).await.unwrap();
        let found = found.into_rows_result().unwrap();
        let (slot, stamp): (i64, i64) = found.single_row().unwrap();
        let update =
            format!("UPDATE {table} USING TIMESTAMP ? SET body = ? WHERE slot = ? AND id = ?");
        let unreadable = [77_u8, 1, 2];
        session
            .query_unpaged(update, (stamp, &unreadable[..], slot, id.0))
            .await
            .unwrap();
    }

    fn why_skipped(&self) -> Option<String> {
        self.server
            .is_none()
            .then(|| format!("{SERVER} names no CQL server (HOST:PORT)"))
    }

    async fn clean_up(&self) {
        self.run("DROP KEYSPACE IF EXISTS {ks}", ()).await;
    }
}

contract_tests!(Cql::new());

#[tokio::test]
async fn a_cql_store_allows_several_processes() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    assert!(!subject.store().await.is_exclusive());
    subject.clean_up().await;
}

/// Two processes, each with its own stamps, write the same rows at the same time, some of them in
/// batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_racing_writer_with_the_higher_stamps_wins() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let (one, other) = (Arc::new(subject.store().await), subject.store().await);
    let other = Arc::new(other);
    let ids: Vec<_> = (0..100).map(|_| OperationId(Uuid::now_v7())).collect();
    for round in 0..10 {
        let racers = [(&one, 0), (&other, 1)].map(|(store, lead)| {
            let stamp = round * 10 + 1 + lead;
            let batch = rows(ids.iter().map(|&id| write(id, stamp, true)));
            let store = Arc::clone(store);
            tokio::spawn(async move { store.write(batch).await.unwrap() })
        });
        for racer in racers {
            racer.await.unwrap();
        }
        let stamp = round * 10 + 2;
        let read = one.get_many(ids.clone()).await.unwrap();
        for (id, read) in ids.iter().zip(read) {
            assert_eq!(read, Ok(Some(row(*id, stamp, stamp))));
        }
    }
    drop((one, other));
    subject.clean_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_of_eight_processes_for_a_lease_has_one_winner() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    subject.store().await;
    let key = LeaseKey::scheduler(LayoutGeneration(0), ShardId(fresh_partition().0));
    let mut racers = Vec::new();
    for owner in 1..=8 {
        let store = CqlStore::connect(subject.config()).await.unwrap();
        let lease = lease(key, owner, 1);
        racers.push(tokio::spawn(async move {
            let is_taken = store.take_lease(None, lease.clone()).await.unwrap();
            let seen = store.lease(key).await.unwrap().unwrap();
            assert_eq!(seen == lease, is_taken);
            is_taken
        }));
    }
    let mut winners = 0;
    for racer in racers {
        winners += usize::from(racer.await.unwrap());
    }
    assert_eq!(winners, 1);
    subject.clean_up().await;
}

fn lease(key: LeaseKey, owner: u128, epoch: u64) -> Lease {
    Lease {
        owner: Some(OwnerId(Uuid::from_u128(owner))),
        epoch: Epoch(epoch),
        duration: Duration::from_secs(10),
        stamp_limit: Stamp(1_000),
        ..Lease::new(key, PartitionId(0))
    }
}

#[tokio::test]
async fn a_layout_is_replaced_only_in_the_datacentre_that_has_it() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let store = subject.store().await;
    let first = Layout::first(4);
    assert!(store.set_layout(None, first.clone()).await.unwrap());
    let move_away = "UPDATE {ks}.layouts SET datacenter = 'elsewhere' \
                     WHERE name = 'schedulers' IF EXISTS";
    subject.run(move_away, ()).await;
    let scheme = ShardingScheme {
        shards_per_partition: 2,
        ..first.scheme()
    };
    let next = first.successor(scheme).unwrap();
    let refused = store.set_layout(Some(first.clone()), next).await;
    let refused = refused.unwrap_err();
    assert!(is_held_elsewhere(&refused), "{refused:?}");
    assert_eq!(store.layout().await.unwrap(), Some(first));
    subject.clean_up().await;
}

/// Whether the error says that the datacentre `elsewhere` holds the lease or the layout.
fn is_held_elsewhere(error: &StoreError) -> bool {
    let StoreError::OutOfReach(cause) = error else {
        return false;
    };
    matches!(cause.downcast_ref(), Some(CqlError::ElsewhereHeld { holder, .. }) if holder == "elsewhere")
}

/// Serial consistency is that of one datacentre.
#[tokio::test]
async fn a_lease_that_is_held_in_another_datacentre_is_refused_until_it_is_released() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let store = subject.store().await;
    let key = LeaseKey::supervisor(fresh_partition());
    let (held, next) = (lease(key, 1, 1), lease(key, 2, 2));
    let released = Lease {
        owner: None,
        renewal: 1,
        ..held.clone()
    };
    let move_away = "UPDATE {ks}.leases SET datacenter = 'elsewhere' \
                     WHERE role = 'supervisor' AND partition = ? IF EXISTS";
    let partition = i64::from(key.number);

    assert!(store.take_lease(None, held.clone()).await.unwrap());
    subject.run(move_away, (partition,)).await;
    let refused = store.take_lease(Some(held.clone()), next.clone()).await;
    let refused = refused.unwrap_err();
    assert!(is_held_elsewhere(&refused), "{refused:?}");
    assert_eq!(store.lease(key).await.unwrap(), Some(held.clone()));

    let key = LeaseKey::supervisor(fresh_partition());
    let (held, released, next) = (
        Lease { key, ..held },
        Lease { key, ..released },
        Lease { key, ..next },
    );
    assert!(store.take_lease(None, held.clone()).await.unwrap());
    assert!(
        store
            .take_lease(Some(held), released.clone())
            .await
            .unwrap()
    );
    subject.run(move_away, (i64::from(key.number),)).await;
    assert!(store.take_lease(Some(released), next).await.unwrap());
    drop(store);
    subject.clean_up().await;
}

/// Each cell of a row with the rest of its TTL.
async fn ttls(subject: &Cql, id: OperationId) -> Vec<(&'static str, Option<i32>)> {
    const CELLS: [&str; 7] = [
        "body",
        "created",
        "state",
        "epoch",
        "next_due",
        "failure_count",
        "updated_at",
    ];
    let session = subject.session().await;
    let mut found = Vec::new();
    for cell in CELLS {
        let select = format!(
            "SELECT TTL({cell}) FROM {}.operations WHERE id = ? ALLOW FILTERING",
            subject.keyspace
        );
        let read = session.query_unpaged(select, (id.0,)).await.unwrap();
        let read = read.into_rows_result().unwrap();
        let (ttl,): (Option<i32>,) = read.single_row().unwrap();
        found.push((cell, ttl));
    }
    found
}

#[tokio::test]
async fn retention_is_on_every_cell_of_a_final_row_and_on_none_once_it_is_reopened() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let store = subject.store().await;
    let id = fresh_id();
    store.write(rows([write(id, 1, true)])).await.unwrap();
    for (cell, ttl) in ttls(&subject, id).await {
        assert_eq!(ttl, None, "{cell} of a live row");
    }
    let final_row = RowWrite {
        keep_for: Some(Duration::from_secs(3_600)),
        ..write(id, 2, true)
    };
    store.write(rows([final_row])).await.unwrap();
    for (cell, ttl) in ttls(&subject, id).await {
        assert!(
            ttl.is_some_and(|ttl| (3_000..=3_600).contains(&ttl)),
            "{cell}: {ttl:?}"
        );
    }
    store.write(rows([write(id, 3, true)])).await.unwrap();
    for (cell, ttl) in ttls(&subject, id).await {
        assert_eq!(ttl, None, "{cell} of a reopened row");
    }
    drop(store);
    subject.clean_up().await;
}

#[tokio::test]
async fn a_row_of_a_mebibyte_is_written_and_one_that_is_too_long_fails_its_batch_before_it() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let config = CqlConfig {
        row_bytes_max: 2 << 20,
        ..subject.config()
    };
    CqlStore::migrate(&config).await.unwrap();
    let store = CqlStore::connect(config).await.unwrap();
    let of = |id, bytes| {
        let mut write = write(id, 1, true);
        write.state.steps[0].outputs = vec![("note".to_owned(), "x".repeat(bytes))];
        write
    };
    let long = [OperationId(Uuid::now_v7()), OperationId(Uuid::now_v7())];
    let batch = rows(long.map(|id| of(id, 1 << 20)));
    store.write(batch).await.unwrap();
    for read in store.get_many(long.to_vec()).await.unwrap() {
        let read = read.unwrap().unwrap();
        assert_eq!(read.state.steps[0].outputs[0].1.len(), 1 << 20);
    }
    let (short, too_long) = (fresh_id(), fresh_id());
    let batch = rows([write(short, 1, true), of(too_long, 2 << 20)]);
    let error = store.write(batch).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::RowTooLong { id, bytes_max, .. }
            if *id == too_long && *bytes_max == 2 << 20),
        "{error}"
    );
    let read = store.get_many(vec![short, too_long]).await.unwrap();
    assert_eq!(read, [Ok(None), Ok(None)]);
    drop(store);
    subject.clean_up().await;
}

#[tokio::test]
async fn an_unreadable_row_that_was_read_is_kept_aside_and_named_by_the_write_that_replaces_it() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    let store = subject.store().await;
    let id = fresh_id();
    store.write(rows([write(id, 5, true)])).await.unwrap();
    subject.spoil(id).await;
    for _ in 0..2 {
        let read = store.get_many(vec![id]).await.unwrap();
        assert!(read[0].is_err(), "{read:?}");
    }
    let lower = store.write(rows([write(id, 4, true)])).await.unwrap();
    assert_eq!(lower.replaced, []);
    let higher = store.write(rows([write(id, 6, false)])).await.unwrap();
    assert_eq!(higher.replaced.len(), 1);
    assert_eq!(higher.replaced[0].id, id);
    let read = store.get_many(vec![id]).await.unwrap();
    assert_eq!(read, [Ok(Some(row(id, 6, 5)))]);
    let again = store.write(rows([write(id, 7, false)])).await.unwrap();
    assert_eq!(again.replaced, []);

    let session = subject.session().await;
    let select = format!(
        "SELECT part, stamp, value, TTL(value) FROM {}.unreadable WHERE id = ?",
        subject.keyspace
    );
    let aside = session.query_unpaged(select, (id.0,)).await.unwrap();
    let aside = aside.into_rows_result().unwrap();
    let aside: Vec<(String, i64, Vec<u8>, Option<i32>)> =
        aside.rows().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(aside.len(), 2, "state and immutable part: {aside:?}");
    let of = |part: &str| aside.iter().find(|(found, ..)| found == part).unwrap();
    let (_, stamp, value, _) = of("state");
    assert_eq!((*stamp, value.as_slice()), (5, &[77, 1, 2][..]));
    assert_eq!(of("immutable part").1, 5);
    assert!(of("immutable part").2.len() > 10);
    assert!(aside.iter().all(|(.., ttl)| ttl.is_some()), "{aside:?}");
    drop((store, session));
    subject.clean_up().await;
}

/// A server that does not answer is distinguished from one that refuses, within the patience.
#[tokio::test]
async fn an_unreachable_server_is_reported_within_the_timeout() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unused.local_addr().unwrap();
    drop(unused);
    let config = CqlConfig {
        request_timeout: Duration::from_secs(1),
        ..CqlConfig::new([address.to_string()])
    };
    let began = Instant::now();
    let error = CqlStore::connect(config).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable { .. }),
        "{error:?}"
    );
    assert!(std::error::Error::source(&error).is_some());
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// With room for one request at a time, everything still makes progress.
#[tokio::test]
async fn a_store_with_room_for_one_request_writes_and_reads_batches() {
    let Some(subject) = Cql::new_or_skip() else {
        return;
    };
    CqlStore::migrate(&subject.config()).await.unwrap();
    let config = CqlConfig {
        in_flight_max: NonZeroUsize::MIN,
        ..subject.config()
    };
    let store = CqlStore::connect(config).await.unwrap();
    let ids: Vec<_> = (0..50).map(|_| fresh_id()).collect();
    store
        .write(rows(ids.iter().map(|&id| write(id, 1, true))))
        .await
        .unwrap();
    let read = store.get_many(ids.clone()).await.unwrap();
    for (id, read) in ids.iter().zip(read) {
        let read = read.unwrap().unwrap();
        assert_eq!(
            (read.id, read.created, read.state),
            (*id, created(1), state(1))
        );
    }
    drop(store);
    subject.clean_up().await;
}
