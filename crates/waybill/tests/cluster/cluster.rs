//! Topics and a keyspace on the servers, and the processes that share them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use futures_util::{StreamExt as _, stream};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;
use waybill_test_support::drop_keyspace;
use waybill_test_support::process::without_variables;
use waybill_test_support::setup::{PATIENCE, Setup, delivery};
use waybill_test_support::supervision::ends::Ends;

use crate::member::Member;
use crate::servers::{Kind, Server};
use crate::{PARTITIONS, is_remote};

const BROKERS: &str = "WAYBILL_TEST_BROKERS";
const SCYLLA: &str = "WAYBILL_TEST_SCYLLA";

/// The number of concurrent requests.
const CLIENTS: usize = 16;

/// The number of concurrent tests. Each waits for about half of its time.
static SLOTS: Semaphore = Semaphore::const_new(2);

/// Waits for one of the slots. The permit holds it until it is dropped.
pub async fn slot() -> SemaphorePermit<'static> {
    SLOTS
        .acquire()
        .await
        .expect("the semaphore is never closed")
}

/// The shared settings of one test's processes.
pub struct Cluster {
    pub brokers: String,
    pub scylla: String,
    pub name: String,
    /// How long processes that start from now on retry database requests.
    pub patience: &'static str,
    /// How many copies each topic has.
    pub copies: u16,
    /// The environment of processes that start from now on.
    pub env: Vec<(String, String)>,
    /// The program of processes that start from now on.
    pub program: PathBuf,
    dir: TempDir,
    _slot: SemaphorePermit<'static>,
}

impl Cluster {
    /// Unique names on the servers. Without servers, prints a line and returns `None`.
    pub async fn new_or_skip() -> Option<Self> {
        let (Ok(brokers), Ok(scylla)) = (std::env::var(BROKERS), std::env::var(SCYLLA)) else {
            println!("SKIPPED: roles on real servers: {BROKERS} and {SCYLLA} do not both name one");
            return None;
        };
        Some(Self {
            brokers,
            scylla,
            name: format!("test_{}", Uuid::new_v4().simple()),
            patience: "30s",
            copies: 1,
            env: Vec::new(),
            program: env!("CARGO_BIN_EXE_waybill").into(),
            dir: tempfile::tempdir().expect("a temporary directory can be made"),
            _slot: slot().await,
        })
    }

    /// The same, with a migrated keyspace.
    pub async fn migrated_or_skip() -> Option<Self> {
        let cluster = Self::new_or_skip().await?;
        cluster.migrate();
        Some(cluster)
    }

    /// The same on the test's own servers. Their data is removed when they are dropped. A machine
    /// with other servers has the jars and a Java to start these.
    pub async fn with_servers_or_skip() -> Option<(Self, Server, Server)> {
        let mut cluster = Self::new_or_skip().await?;
        let kafka = Server::start(Kind::KAFKA, cluster.dir());
        let cassandra = Server::start(Kind::Cassandra, cluster.dir());
        cluster.brokers.clone_from(&kafka.address);
        cluster.scylla.clone_from(&cassandra.address);
        cluster.migrate();
        Some((cluster, kafka, cassandra))
    }

    /// Shortens the waits of a repartition for processes that start from now on.
    pub fn grows_soon(&mut self) {
        let short = [
            ("WAYBILL_KAFKA__REPARTITION_SETTLE", "2s"),
            ("WAYBILL_HTTP__ACCEPT_TIMEOUT", "1900ms"),
        ];
        let short = short.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.env.extend(short);
    }

    /// Gives processes that start from now on long leases, which even a busy machine renews in
    /// time. A test can then assert owners exactly.
    pub fn uses_long_leases(&mut self) {
        let lease = ("WAYBILL_SCHEDULER__LEASE".to_owned(), "15s".to_owned());
        self.env.push(lease);
    }

    pub fn migrate(&self) {
        let output = self.run(&["store", "migrate"]);
        assert!(output.status.success(), "{output:?}");
    }

    /// The directory of shared files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The configuration of a process that drives `partitions`, if it is a scheduler. Leases are
    /// short, to shorten waits.
    fn yaml(&self, partitions: &str, more: &str) -> String {
        self.yaml_with(partitions, "", more)
    }

    /// The same, with additional settings of the scheduler.
    fn yaml_with(&self, partitions: &str, scheduler: &str, more: &str) -> String {
        let Self {
            brokers,
            scylla,
            name,
            patience,
            copies,
            ..
        } = self;
        let brokers = brokers.replace(',', "', '");
        format!(
            "partitions: {PARTITIONS}\n\
             kafka: {{ brokers: ['{brokers}'], topicPrefix: {name}, replicationFactor: {copies}, properties: {{ topic.metadata.refresh.interval.ms: '1000' }} }}\n\
             store: {{ scylla: {{ nodes: ['{scylla}'], keyspace: {name}, replicationFactor: 1, requestTimeout: 2s, patience: {patience} }} }}\n\
             scheduler: {{ partitions: {partitions}, lease: 4s, leaseMargin: 500ms, handOffAfter: 1s, timeoutGrace: 200ms, {scheduler} }}\n\
             supervisor: {{ lease: 4s, clockSkew: 500ms }}\n\
             {more}"
        )
    }

    /// The program with the cluster's configuration, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let config = self.write_config();
        let mut command = Command::new(&self.program);
        without_variables(&mut command);
        command.envs(self.env.iter().cloned());
        command.args(arguments).arg("--config").arg(config);
        command.args(["--admin", "127.0.0.1:0"]);
        command
    }

    fn write_config(&self) -> PathBuf {
        let path = self.dir().join("waybill.yaml");
        // Renamed into place, because a running command may read the file.
        let new = tempfile::NamedTempFile::new_in(self.dir()).expect("the directory is writable");
        std::fs::write(new.path(), self.yaml("all", "")).expect("the directory is writable");
        new.persist(&path).expect("the file can be renamed");
        path
    }

    /// Runs the program to its end, within the general time limit.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = command.spawn().expect("the program was built");
        let (process, (tell, ended)) = (running.id(), mpsc::channel());
        std::thread::spawn(move || tell.send(running.wait_with_output()));
        let output = ended.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            Command::new("kill")
                .args(["-KILL", &process.to_string()])
                .status()
                .expect("a process can be killed");
            let output = ended.recv().expect("the thread ends with the process");
            panic!("{arguments:?} did not end: {output:?}");
        });
        output.expect("the program's output can be read")
    }

    fn setup(&self, yaml: &str) -> Setup {
        let mut setup = Setup::new(yaml);
        setup.env.clone_from(&self.env);
        setup.set_program(&self.program);
        setup
    }

    /// The simulated services. `more` is additional configuration.
    pub fn services(&self, more: &str) -> Member {
        let setup = self.setup(&self.yaml("auto", more));
        Member::start("services", setup, &[], Some("services"))
    }

    /// A process of agents.
    pub fn agents(&self, services: &Member, more: &str) -> Member {
        let setup = self.setup(&self.yaml("auto", more));
        let address = services.setup.address("services").to_string();
        Member::start("agents", setup, &["--services", &address], None)
    }

    /// A scheduler of `partitions`.
    pub fn scheduler(&self, partitions: &str, more: &str) -> Member {
        let setup = self.setup(&self.yaml(partitions, more));
        Member::start("scheduler", setup, &[], None)
    }

    /// A scheduler of `partitions` with additional settings in its section.
    pub fn scheduler_with(&self, partitions: &str, more: &str) -> Member {
        let setup = self.setup(&self.yaml_with(partitions, more, ""));
        Member::start("scheduler", setup, &[], None)
    }

    pub fn supervisor(&self, more: &str) -> Member {
        Member::start(
            "supervisor",
            self.setup(&self.yaml("auto", more)),
            &[],
            None,
        )
    }

    /// Ingestion. Its setup also has the services' address.
    pub fn ingestion(&self, services: &Member, more: &str) -> Member {
        let mut setup = self.setup(&self.yaml("auto", more));
        let address = services.setup.address("services");
        setup.addresses.insert("services".to_owned(), address);
        Member::start("ingestion", setup, &[], Some("http"))
    }

    /// Removes topics and keyspace. Drop all processes first.
    pub async fn remove(self) {
        let consumer: BaseConsumer = self.kafka_client();
        let metadata = consumer
            .fetch_metadata(None, PATIENCE)
            .expect("the broker answers");
        let own = metadata.topics().iter().map(|topic| topic.name());
        let own: Vec<&str> = own.filter(|name| name.contains(&self.name)).collect();
        if !own.is_empty() {
            let admin: AdminClient<DefaultClientContext> = self.kafka_client();
            let deleted = admin.delete_topics(&own, &AdminOptions::new()).await;
            for result in deleted.expect("topics can be deleted") {
                result.expect("its topic can be deleted");
            }
        }
        let dropped = drop_keyspace(&self.scylla, &self.name).await;
        dropped.expect("the keyspace can be dropped");
    }

    /// A read-only client of the broker.
    pub fn kafka_client<C: rdkafka::config::FromClientConfig>(&self) -> C {
        ClientConfig::new()
            .set("bootstrap.servers", &self.brokers)
            // A consumer needs a group ID, even if it joins no group.
            .set("group.id", &self.name)
            .set("enable.auto.commit", "false")
            .create()
            .expect("a client can be made")
    }
}

/// Sends deliveries through all ingestions in turn, until each is accepted. Calls `meanwhile` when
/// a third is accepted. Returns the operations' IDs in order.
pub async fn deliver_while(
    ingestions: &[Arc<Setup>],
    prefix: &str,
    count: usize,
    meanwhile: impl FnOnce(),
) -> Vec<String> {
    let accepted = Arc::new(AtomicUsize::new(0));
    let sending = {
        let (ingestions, prefix) = (ingestions.to_vec(), prefix.to_owned());
        let accepted = accepted.clone();
        tokio::spawn(async move {
            let sent = (0..count).map(|index| {
                let setup = ingestions[index % ingestions.len()].clone();
                let body = delivery(&format!("{prefix}-{index}"), is_remote(index));
                let accepted = accepted.clone();
                async move {
                    let id = setup.deliver(&body).await;
                    accepted.fetch_add(1, Ordering::Relaxed);
                    id
                }
            });
            stream::iter(sent).buffered(CLIENTS).collect().await
        })
    };
    let setup = &ingestions[0];
    setup
        .eventually("a third of the deliveries is accepted", async || {
            accepted.load(Ordering::Relaxed) * 3 >= count
        })
        .await;
    meanwhile();
    sending.await.expect("the clients do not fail")
}

/// Sends `count` deliveries.
pub async fn deliver(ingestion: &Member, prefix: &str, count: usize) -> Vec<String> {
    deliver_while(std::slice::from_ref(&ingestion.setup), prefix, count, || ()).await
}

/// Waits until all deliveries have ended, compares them with the ledger, and asserts that none is
/// parked.
pub async fn all_end_without_a_person(setup: &Setup, ids: &[String]) -> Ends {
    let ends = setup.all_end_in_balance(ids, is_remote).await;
    println!("measured: {ends:?}");
    assert_eq!(ends.processed + ends.compensated, ids.len(), "{ends:?}");
    ends
}

/// Waits until a member is ready, and prints how long that took.
pub async fn ready_after(member: &Member, what: &str, since: Instant) {
    member.setup.ready().await;
    println!(
        "measured: {what} after {:.1} s",
        since.elapsed().as_secs_f64()
    );
}
