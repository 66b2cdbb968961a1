//! The store on a CQL server that wants TLS, a login and a certificate:
//! `WAYBILL_TEST_SECURED_SCYLLA` names it (`HOST:PORT`), and `WAYBILL_TEST_SECRETS` the directory
//! with the certificates. The server's first user is Cassandra's own, `cassandra`; each test makes
//! one for itself.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use openssl::ssl::{SslConnector, SslFiletype, SslMethod};
use scylla::client::session::{OpenSsl010Config, Session};
use scylla::client::session_builder::SessionBuilder;
use uuid::Uuid;
use waybill_store::{
    CqlCertificate, CqlConfig, CqlLogin, CqlReplication, CqlStore, CqlTls, StoreError,
};

const SERVER: &str = "WAYBILL_TEST_SECURED_SCYLLA";
const SECRETS: &str = "WAYBILL_TEST_SECRETS";

/// The server, with a user and a keyspace of one test's own.
struct Site {
    server: String,
    secrets: PathBuf,
    name: String,
    password: String,
    behind: Session,
}

impl Site {
    async fn new_or_skip() -> Option<Self> {
        let (Ok(server), Ok(secrets)) = (std::env::var(SERVER), std::env::var(SECRETS)) else {
            println!("SKIPPED: TLS and logins of CQL: {SERVER} and {SECRETS} do not both name one");
            return None;
        };
        let secrets = PathBuf::from(secrets);
        let mut tls = SslConnector::builder(SslMethod::tls()).unwrap();
        tls.set_ca_file(secrets.join("ca.pem")).unwrap();
        tls.set_certificate_chain_file(secrets.join("client-cert.pem"))
            .unwrap();
        tls.set_private_key_file(secrets.join("client-key.pem"), SslFiletype::PEM)
            .unwrap();
        let behind = SessionBuilder::new()
            .known_node(&server)
            .user("cassandra", "cassandra")
            .tls_context(Some(OpenSsl010Config::new(tls)))
            .build()
            .await
            .unwrap();
        let [name, password] =
            ["waybill", "secret"].map(|what| format!("{what}_{}", Uuid::new_v4().simple()));
        let role = format!("CREATE ROLE {name} WITH LOGIN = true AND PASSWORD = '{password}'");
        behind.query_unpaged(role, ()).await.unwrap();
        Some(Self {
            server,
            secrets,
            name,
            password,
            behind,
        })
    }

    /// A configuration with everything that the server requires.
    fn config(&self) -> CqlConfig {
        let mut config = CqlConfig::new([&self.server]);
        config.keyspace.clone_from(&self.name);
        config.replication = CqlReplication::Everywhere(1);
        config.attention_walk_interval = None;
        config.tls = CqlTls::CaFile(self.secrets.join("ca.pem"));
        config.login = Some(CqlLogin {
            user: self.name.clone(),
            password: self.password.clone(),
        });
        config.client_certificate = Some(CqlCertificate {
            cert_file: self.secrets.join("client-cert.pem"),
            key_file: self.secrets.join("client-key.pem"),
        });
        // Only what fails waits for it.
        config.request_timeout = Duration::from_secs(3);
        config
    }

    /// Runs a statement as the first user.
    async fn run(&self, statement: &str) {
        self.behind.query_unpaged(statement, ()).await.unwrap();
    }

    async fn remove(self) {
        for statement in ["DROP KEYSPACE IF EXISTS", "DROP ROLE"] {
            self.run(&format!("{statement} {}", self.name)).await;
        }
    }

    /// The error of a connection with this configuration.
    async fn refusal(&self, config: &CqlConfig) -> String {
        let error = CqlStore::check(config).await.unwrap_err();
        let message = error_chain(&error);
        for secret in [&self.password, "hunter2"] {
            assert!(!message.contains(secret), "a password is in {message:?}");
        }
        message
    }
}

#[tokio::test]
async fn the_store_is_reached_over_tls_with_a_certificate_and_a_login() {
    let Some(site) = Site::new_or_skip().await else {
        return;
    };
    let config = site.config();
    // The user that prepares the store needs more rights than the one that uses it.
    let statement = format!(
        "CREATE ROLE {}_migrator WITH LOGIN = true AND PASSWORD = '{}'",
        site.name, site.password
    );
    site.run(&statement).await;
    site.run(&format!(
        "GRANT CREATE ON ALL KEYSPACES TO {}_migrator",
        site.name
    ))
    .await;
    let mut migrator = config.clone();
    migrator.login.as_mut().unwrap().user.push_str("_migrator");
    CqlStore::migrate(&migrator).await.unwrap();
    let refused = site.refusal(&config).await;
    assert!(refused.contains("permission"), "{refused}");
    for right in ["SELECT", "MODIFY"] {
        site.run(&format!("GRANT {right} ON KEYSPACE {0} TO {0}", site.name))
            .await;
    }
    CqlStore::connect(config).await.unwrap();
    site.run(&format!("DROP ROLE {}_migrator", site.name)).await;
    site.remove().await;
}

#[tokio::test]
async fn a_refused_client_gets_the_reason() {
    let Some(site) = Site::new_or_skip().await else {
        return;
    };
    let login = |password: &str| {
        Some(CqlLogin {
            user: site.name.clone(),
            password: password.to_owned(),
        })
    };
    let changed = |change: &dyn Fn(&mut CqlConfig)| {
        let mut config = site.config();
        change(&mut config);
        config
    };
    for (config, reason) in [
        (
            changed(&|config| config.login = login("hunter2")),
            "credentials",
        ),
        (changed(&|config| config.login = None), "uthentication"),
        (
            changed(&|config| config.tls = CqlTls::CaFile(site.secrets.join("other-ca.pem"))),
            "certificate verify failed",
        ),
        // The system's authorities have not signed it either.
        (
            changed(&|config| config.tls = CqlTls::SystemRoots),
            "certificate verify failed",
        ),
        (
            changed(&|config| config.client_certificate = None),
            "store.scylla.certFile",
        ),
    ] {
        let message = site.refusal(&config).await;
        assert!(message.contains(reason), "{reason}: {message}");
    }
    let mut plain = site.config();
    (plain.tls, plain.client_certificate) = (CqlTls::Off, None);
    let message = site.refusal(&plain).await;
    assert!(message.contains("store.scylla.tls"), "{message}");
    site.remove().await;
}

#[tokio::test]
async fn an_invalid_tls_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [missing, empty] = ["missing.pem", "empty.pem"].map(|name| dir.path().join(name));
    std::fs::write(&empty, "").unwrap();
    for path in [&missing, &empty] {
        let mut config = CqlConfig::new(["127.0.0.1:1"]);
        config.tls = CqlTls::CaFile(path.clone());
        let error = CqlStore::check(&config).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
        let message = error_chain(&error);
        assert!(message.contains(path.to_str().unwrap()), "{message}");

        config.tls = CqlTls::SystemRoots;
        config.client_certificate = Some(CqlCertificate {
            cert_file: path.clone(),
            key_file: path.clone(),
        });
        let message = error_chain(&CqlStore::check(&config).await.unwrap_err());
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
}

#[tokio::test]
async fn a_certificate_without_tls_is_refused() {
    let mut config = CqlConfig::new(["127.0.0.1:1"]);
    config.client_certificate = Some(CqlCertificate {
        cert_file: "/cert.pem".into(),
        key_file: "/key.pem".into(),
    });
    let message = error_chain(&CqlStore::check(&config).await.unwrap_err());
    assert!(message.contains("requires TLS"), "{message}");
}

/// An error in its debug form, and with its causes.
fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut message = format!("{error:?}\n{error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    message
}
