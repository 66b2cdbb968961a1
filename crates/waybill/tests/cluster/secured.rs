//! The roles on a Kafka and a database with TLS and logins, with the configuration in
//! `docs/cluster.md`; only addresses and paths are replaced. `WAYBILL_TEST_SECURED_BROKERS` and
//! `WAYBILL_TEST_SECURED_SCYLLA` name the servers, and `WAYBILL_TEST_SECRETS` the directory with
//! their credentials.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use openssl::ssl::{SslConnector, SslFiletype, SslMethod};
use scylla::client::session::{OpenSsl010Config, Session};
use scylla::client::session_builder::SessionBuilder;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::SemaphorePermit;
use uuid::Uuid;
use waybill_config::{Environment, load};
use waybill_kafka::{Admin, KafkaSettings};
use waybill_node::config::Config;
use waybill_test_support::process::without_variables;
use waybill_test_support::setup::{PATIENCE, Setup};

use crate::PARTITIONS;
use crate::cluster::{deliver, slot};
use crate::is_remote;
use crate::member::Member;

const BROKERS: &str = "WAYBILL_TEST_SECURED_BROKERS";
const SCYLLA: &str = "WAYBILL_TEST_SECURED_SCYLLA";
const SECRETS: &str = "WAYBILL_TEST_SECRETS";

/// Paths in the documentation, and the corresponding files of the servers' secrets.
const FILES: [(&str, &str); 6] = [
    ("/kafka/properties/ssl.ca.location", "ca.pem"),
    ("/kafka/propertyFiles/sasl.password", "kafka-password"),
    ("/store/scylla/caFile", "ca.pem"),
    ("/store/scylla/certFile", "client-cert.pem"),
    ("/store/scylla/keyFile", "client-key.pem"),
    ("/store/scylla/passwordFile", "cql-password"),
];

/// The configuration in the documentation.
fn documented() -> Value {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cluster.md");
    let page = std::fs::read_to_string(page).expect("the page exists");
    let (_, behind) = page
        .split_once("```yaml\n# secured.yaml\n")
        .expect("the page shows the configuration");
    let (yaml, _) = behind.split_once("\n```").expect("the program ends");
    serde_saphyr::from_str(yaml).expect("it is YAML")
}

/// The documented configuration with paths in `dir`.
fn with_files_in(dir: &Path) -> Value {
    let mut config = documented();
    for (key, file) in FILES {
        *at(&mut config, key) = json!(dir.join(file));
    }
    config
}

/// The value of an existing key.
fn at<'a>(config: &'a mut Value, key: &str) -> &'a mut Value {
    let found = config.pointer_mut(key);
    found.unwrap_or_else(|| panic!("the documentation does not show {key}"))
}

#[test]
fn the_documented_configuration_is_valid_and_shows_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    for (_, file) in FILES {
        std::fs::write(dir.path().join(file), "hunter2\n").unwrap();
    }
    let file = dir.path().join("waybill.yaml");
    std::fs::write(&file, with_files_in(dir.path()).to_string()).unwrap();
    let config = load::<Config>(Some(&file), &Environment::default()).unwrap();
    let config = config.finish().unwrap();
    assert!(
        config
            .kafka
            .properties
            .iter()
            .any(|property| property == ("sasl.password", "hunter2"))
    );
    let login = config.store.scylla.cql().unwrap().login.unwrap();
    assert_eq!(login.password, "hunter2");
    let shown = format!("{config:?}{}", config.to_yaml().unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
}

/// The servers, with one test's own topics, keyspace and user.
struct Site {
    brokers: String,
    scylla: String,
    name: String,
    /// The servers' secrets, and the password of the user.
    secrets: TempDir,
    behind: Session,
    _slot: SemaphorePermit<'static>,
}

impl Site {
    async fn new_or_skip() -> Option<Self> {
        let found = [BROKERS, SCYLLA, SECRETS].map(std::env::var);
        let [Ok(brokers), Ok(scylla), Ok(of_servers)] = found else {
            println!(
                "SKIPPED: roles over TLS with logins: {BROKERS}, {SCYLLA} and {SECRETS} do not all name one"
            );
            return None;
        };
        let secrets = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(of_servers).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), secrets.path().join(file.file_name())).unwrap();
        }
        let behind = first_user(&scylla, secrets.path()).await;
        let name = format!("test_{}", Uuid::new_v4().simple());
        let password = format!("secret-{}", Uuid::new_v4().simple());
        std::fs::write(secrets.path().join("cql-password"), &password).unwrap();
        let role = format!("CREATE ROLE {name} WITH LOGIN = true AND PASSWORD = '{password}'");
        behind.query_unpaged(role, ()).await.unwrap();
        let right = format!("GRANT CREATE ON ALL KEYSPACES TO {name}");
        behind.query_unpaged(right, ()).await.unwrap();
        Some(Self {
            brokers,
            scylla,
            name,
            secrets,
            behind,
            _slot: slot().await,
        })
    }

    fn secret(&self, file: &str) -> PathBuf {
        self.secrets.path().join(file)
    }

    /// The configuration of every process.
    fn config(&self) -> Value {
        let mut config = with_files_in(self.secrets.path());
        *at(&mut config, "/kafka/brokers") = json!([self.brokers]);
        *at(&mut config, "/kafka/replicationFactor") = json!(1);
        *at(&mut config, "/store/scylla/nodes") = json!([self.scylla]);
        *at(&mut config, "/store/scylla/user") = json!(self.name);
        config["partitions"] = json!(PARTITIONS);
        config["kafka"]["topicPrefix"] = json!(self.name);
        // Makes librdkafka log as much about its logins as it can.
        config["kafka"]["properties"]["debug"] = json!("security,broker");
        config["telemetry"] = json!({"logFilter": "info,librdkafka=debug,scylla=debug"});
        let scylla = &mut config["store"]["scylla"];
        scylla["keyspace"] = json!(self.name);
        scylla["replicationFactor"] = json!(1);
        scylla["requestTimeout"] = json!("2s");
        config["scheduler"] = json!({"partitions": "all", "lease": "4s", "leaseMargin": "500ms"});
        config["supervisor"] = json!({"lease": "4s"});
        config
    }

    fn start(&self, role: &'static str, extra: &[&str], listens: Option<&'static str>) -> Member {
        let setup = Setup::new(&self.config().to_string());
        Member::start(role, setup, extra, listens)
    }

    /// Runs the program to its end.
    fn run(&self, config: &Value, arguments: &[&str]) -> Output {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("waybill.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
        without_variables(&mut command);
        command.args(arguments).arg("--config").arg(file);
        command.arg("--data-dir").arg(dir.path().join("data"));
        command.args(["--admin", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        command.output().expect("the program was built")
    }

    /// Asserts that a text contains none of the credentials.
    fn assert_no_secret(&self, text: &str) {
        for file in ["kafka-password", "guest-password", "cql-password"] {
            let secret = std::fs::read_to_string(self.secret(file)).unwrap();
            assert!(!text.contains(secret.trim()), "{file} is in {text}");
        }
        let key = std::fs::read_to_string(self.secret("client-key.pem")).unwrap();
        let line = key.lines().nth(1).expect("a key has lines");
        assert!(!text.contains(line), "the key is in {text}");
        assert!(!text.contains("hunter2"), "a password is in {text}");
    }

    /// Removes topics, keyspace and user. Drop all processes first.
    async fn remove(self) {
        let mut settings = KafkaSettings::new(self.brokers.clone());
        let password = std::fs::read_to_string(self.secret("kafka-password")).unwrap();
        settings.properties = [
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.username", "waybill"),
            ("sasl.password", password.trim()),
            ("ssl.ca.location", self.secret("ca.pem").to_str().unwrap()),
        ]
        .into_iter()
        .map(|(property, value)| (property.to_owned(), value.to_owned()))
        .collect();
        let admin = Admin::new(&settings, "test").unwrap();
        let topics = admin.topics().await.unwrap();
        for topic in topics.keys().filter(|topic| topic.contains(&self.name)) {
            admin.delete_topic(topic).await.unwrap();
        }
        for statement in ["DROP KEYSPACE IF EXISTS", "DROP ROLE"] {
            let statement = format!("{statement} {}", self.name);
            self.behind.query_unpaged(statement, ()).await.unwrap();
        }
    }
}

/// A session of Cassandra's default superuser.
async fn first_user(scylla: &str, secrets: &Path) -> Session {
    let mut tls = SslConnector::builder(SslMethod::tls()).unwrap();
    tls.set_ca_file(secrets.join("ca.pem")).unwrap();
    tls.set_certificate_chain_file(secrets.join("client-cert.pem"))
        .unwrap();
    tls.set_private_key_file(secrets.join("client-key.pem"), SslFiletype::PEM)
        .unwrap();
    SessionBuilder::new()
        .known_node(scylla)
        .user("cassandra", "cassandra")
        .tls_context(Some(OpenSsl010Config::new(tls)))
        .build()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_complete_over_tls_with_logins_and_no_log_shows_a_secret() {
    let Some(site) = Site::new_or_skip().await else {
        return;
    };
    let config = site.config();
    for arguments in [
        &["store", "migrate"][..],
        &["topics", "create"],
        &["topics", "verify"],
    ] {
        let ran = site.run(&config, arguments);
        let message = text(&ran);
        assert!(ran.status.success(), "{arguments:?}: {message}");
        site.assert_no_secret(&message);
    }
    let services = site.start("services", &[], Some("services"));
    let address = services.setup.address("services").to_string();
    let agents = site.start("agents", &["--services", &address], None);
    let scheduler = site.start("scheduler", &[], None);
    let supervisor = site.start("supervisor", &[], None);
    let mut setup = Setup::new(&config.to_string());
    let of_services = services.setup.address("services");
    setup.addresses.insert("services".to_owned(), of_services);
    let ingestion = Member::start("ingestion", setup, &[], Some("http"));
    for member in [&agents, &scheduler, &supervisor, &ingestion] {
        member.setup.ready().await;
    }
    let ids = deliver(&ingestion, "secured", 25).await;
    ingestion.setup.all_reach(&ids, "Processed").await;
    ingestion
        .setup
        .assert_one_effect_per_step(&ids, is_remote)
        .await;
    for mut member in [ingestion, supervisor, scheduler, agents, services] {
        member.terminate();
        let log = std::fs::read_to_string(member.setup.path("log.txt")).unwrap();
        site.assert_no_secret(&log);
    }
    site.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_whose_login_is_refused_ends_with_the_reason_and_without_a_secret() {
    let Some(site) = Site::new_or_skip().await else {
        return;
    };
    let good = site.config();
    let migrated = site.run(&good, &["store", "migrate"]);
    assert!(migrated.status.success(), "{}", text(&migrated));
    let wrong = site.secret("wrong-password");
    std::fs::write(&wrong, "hunter2").unwrap();
    let (wrong, other) = (json!(wrong), json!(site.secret("other-ca.pem")));
    let no_tls = json!({
        "nodes": [site.scylla], "keyspace": site.name, "user": site.name,
        "passwordFile": site.secret("cql-password"), "requestTimeout": "2s",
    });
    type Case<'a> = (
        &'static [&'static str],
        &'static str,
        &'a Value,
        &'static str,
    );
    let cases: [Case<'_>; 6] = [
        (
            &["ingestion"],
            "/kafka/propertyFiles/sasl.password",
            &wrong,
            "invalid credentials",
        ),
        (
            &["agents"],
            "/kafka/propertyFiles/sasl.password",
            &wrong,
            "uthentication",
        ),
        (
            &["scheduler"],
            "/kafka/properties/ssl.ca.location",
            &other,
            "certificate verify failed",
        ),
        (
            &["ingestion"],
            "/store/scylla/passwordFile",
            &wrong,
            "credentials",
        ),
        (
            &["scheduler"],
            "/store/scylla/caFile",
            &other,
            "certificate verify failed",
        ),
        (
            &["supervisor"],
            "/store/scylla",
            &no_tls,
            "store.scylla.tls",
        ),
    ];
    let assert_refused = &|(arguments, key, value, why): Case<'_>| {
        let mut config = good.clone();
        *at(&mut config, key) = value.clone();
        let started = Instant::now();
        let refused = site.run(&config, arguments);
        let message = text(&refused);
        println!(
            "measured: {arguments:?} with another {key} ended after {:?}",
            started.elapsed()
        );
        assert_eq!(
            refused.status.code(),
            Some(1),
            "{arguments:?} {key}: {message}"
        );
        assert!(started.elapsed() < PATIENCE, "{arguments:?} {key}");
        // Reported by the program, and not only logged by librdkafka.
        let own = |line: &&str| !line.contains("librdkafka:");
        let own: Vec<&str> = message.lines().filter(own).collect();
        assert!(
            own.iter().any(|line| line.contains(why)),
            "{arguments:?} {key}: {own:?}"
        );
        site.assert_no_secret(&message);
    };
    // In parallel, because each case waits for the brokers' time-out.
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || assert_refused(case));
        }
    });
    site.remove().await;
}

/// The whole output of a process.
fn text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    both.concat()
}
