//! Apache Kafka and a CQL database instead of the embedded ones. Each test has its own topics and
//! keyspace, which are dropped when it ends.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::unprepared::Statement;
use uuid::Uuid;
use waybill_store::{CqlConfig, CqlReplication};

/// The variable that selects where tests run: `servers` for these servers.
const BACKEND: &str = "WAYBILL_TEST_BACKEND";
/// The maximum time for an answer of the servers.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum time to drop a keyspace.
const DROP_TIMEOUT: Duration = Duration::from_secs(120);

/// The names of one test on the servers.
#[derive(Debug)]
pub struct Servers {
    pub brokers: String,
    scylla: String,
    pub name: String,
}

impl Servers {
    /// The servers from the environment, if tests are to run on them.
    ///
    /// # Panics
    ///
    /// If the environment selects servers and names none, because nothing would be tested.
    pub fn wanted() -> Option<Self> {
        (std::env::var(BACKEND).ok()? == "servers").then(|| {
            let named = |name: &str| std::env::var(name).expect("both servers are named");
            Self {
                brokers: named("WAYBILL_TEST_BROKERS"),
                scylla: named("WAYBILL_TEST_SCYLLA"),
                name: format!("test_{}", Uuid::new_v4().simple()),
            }
        })
    }

    /// The environment that makes a process use these servers. Leases are short, so that those of a
    /// killed process expire soon.
    pub fn env(&self) -> Vec<(String, String)> {
        let Self {
            brokers,
            scylla,
            name,
        } = self;
        [
            ("KAFKA__BROKERS", brokers.as_str()),
            ("KAFKA__TOPIC_PREFIX", name),
            ("STORE__SCYLLA__NODES", scylla),
            ("STORE__SCYLLA__KEYSPACE", name),
            ("STORE__SCYLLA__REPLICATION_FACTOR", "1"),
            ("STORE__SCYLLA__REQUEST_TIMEOUT", "2s"),
            ("SCHEDULER__LEASE", "4s"),
            ("SCHEDULER__LEASE_MARGIN", "500ms"),
            ("SUPERVISOR__LEASE", "4s"),
            ("SUPERVISOR__CLOCK_SKEW", "500ms"),
        ]
        .map(|(key, value)| (format!("WAYBILL_{key}"), value.to_owned()))
        .into()
    }

    /// The settings that open the state store.
    pub fn cql(&self) -> CqlConfig {
        let mut config = CqlConfig::new([&self.scylla]);
        config.keyspace.clone_from(&self.name);
        config.replication = CqlReplication::Everywhere(1);
        config
    }

    async fn remove(brokers: &str, scylla: &str, name: &str) -> anyhow::Result<()> {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", brokers);
        let consumer: BaseConsumer = client.create()?;
        let metadata = consumer.fetch_metadata(None, PATIENCE)?;
        let own = metadata.topics().iter().map(|topic| topic.name());
        let own: Vec<&str> = own.filter(|topic| topic.contains(name)).collect();
        if !own.is_empty() {
            let admin: AdminClient<DefaultClientContext> = client.create()?;
            admin.delete_topics(&own, &AdminOptions::new()).await?;
        }
        drop_keyspace(scylla, name).await
    }
}

/// Drops a test's keyspace. While other tests change the schema, that takes a while.
///
/// # Errors
///
/// If the server does not answer or refuses.
pub async fn drop_keyspace(scylla: &str, keyspace: &str) -> anyhow::Result<()> {
    let session = SessionBuilder::new().known_node(scylla).build().await?;
    let mut statement = Statement::new(format!("DROP KEYSPACE IF EXISTS {keyspace}"));
    statement.set_request_timeout(Some(DROP_TIMEOUT));
    session.query_unpaged(statement, ()).await?;
    Ok(())
}

/// The test's processes have ended by then, or no longer matter.
impl Drop for Servers {
    fn drop(&mut self) {
        let Self {
            brokers,
            scylla,
            name,
        } = self;
        let (brokers, scylla, name) = (brokers.clone(), scylla.clone(), name.clone());
        // A test may end within a runtime, which must not be blocked.
        let removing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build()?;
            runtime.block_on(Self::remove(&brokers, &scylla, &name))
        });
        match removing.join() {
            Ok(Ok(())) => {}
            failed => eprintln!("{} stays on the servers: {failed:?}", self.name),
        }
    }
}
