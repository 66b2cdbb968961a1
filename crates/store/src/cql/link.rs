//! The connection to the servers: one driver session, a bound on concurrent requests, and retries
//! while the servers do not answer.
//!
//! * **Which node.** Requests go to a replica of their partition in the local datacentre (on
//!   ScyllaDB to the owning shard), and never to another datacentre.
//! * **Retries.** Every plain statement here is idempotent: a write carries its own timestamp, or
//!   inserts the same key again. So a statement that failed without a refusal is sent again, for
//!   [`CqlConfig::patience`](super::CqlConfig); the driver's own policy tries the next node
//!   immediately if that may help. Lightweight transactions are not repeated blindly, see
//!   `leases.rs`.
//! * **No speculative execution.** It would send a group commit twice exactly when the servers are
//!   slow.
//! * **Unknown outcomes are reported as such.** A write that timed out, or whose connection broke,
//!   may have been applied. Once patience has run out this is [`StoreError::Unknown`], never
//!   "failed".

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslConnector, SslMethod};
use openssl::x509::X509;
use openssl::x509::store::{X509Store, X509StoreBuilder};
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::{OpenSsl010Config, Session};
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, ExecutionError,
    MetadataError, NewSessionError, RequestAttemptError,
};
use scylla::frame::types::{Consistency, SerialConsistency};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::Semaphore;
use waybill_units::backoff;

use super::config::{CqlCertificate, CqlConfig, CqlTls};
use super::error::CqlError;
use crate::StoreError;

/// The first wait before a repeat; each further one is twice as long.
const BACKOFF_MIN: Duration = Duration::from_millis(20);

/// The longest wait before a repeat.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How long no request must have failed until the trouble counts as over.
const QUIET: Duration = Duration::from_secs(5);

/// How often each connection is probed, and how long the answer may take. With the driver's own
/// half a minute each, connecting would wait a minute for a node that accepts connections but does
/// not answer.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A session with its servers.
pub(super) struct Link {
    pub(super) session: Session,
    /// The datacentre whose replicas are used.
    pub(super) datacenter: String,
    pub(super) in_flight_max: usize,
    room: Semaphore,
    patience: Duration,
    trouble: Trouble,
}

/// What an error implies for the request that met it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// The servers refused it, and would refuse it again.
    Refused,
    /// It was not carried out.
    NotDone,
    /// It may have been carried out, or may be yet.
    Unknown,
}

impl Link {
    /// Connects, or reports that the servers did not answer in time.
    pub(super) async fn new(config: &CqlConfig) -> Result<Self, StoreError> {
        const ACTION: &str = "connecting";
        config.validate()?;
        let mut policy = DefaultPolicy::builder().token_aware(true);
        if let Some(datacenter) = &config.local_datacenter {
            policy = policy
                .prefer_datacenter(datacenter.clone())
                .permit_dc_failover(false);
        }
        let profile = ExecutionProfile::builder()
            .consistency(Consistency::LocalQuorum)
            .serial_consistency(Some(SerialConsistency::LocalSerial))
            .request_timeout(Some(config.request_timeout))
            .retry_policy(Arc::new(DefaultRetryPolicy::new()))
            .load_balancing_policy(policy.build())
            .build();
        let mut builder = SessionBuilder::new()
            .known_nodes(&config.contact_points)
            .connection_timeout(config.request_timeout)
            .keepalive_interval(KEEPALIVE)
            .keepalive_timeout(KEEPALIVE)
            .pool_size(PoolSize::PerShard(config.connections_per_shard))
            .keyspaces_to_fetch([&config.keyspace])
            .default_execution_profile_handle(profile.into_handle());
        if let Some(login) = &config.login {
            builder = builder.user(&login.user, &login.password);
        }
        if let Some(tls) = tls(config)? {
            builder = builder.tls_context(Some(tls));
        }
        let session = tokio::time::timeout(config.connect_timeout, builder.build()).await;
        let session = session.map_err(|_| {
            let late = NoAnswer {
                contact_points: config.contact_points.join(", "),
                waited: config.connect_timeout,
            };
            StoreError::unavailable(ACTION, late)
        })?;
        let session = session.map_err(|error| match hint(config, &error) {
            Some(hint) => StoreError::unavailable(ACTION, HungUp { hint, error }),
            None => StoreError::unavailable(ACTION, error),
        })?;
        let datacenter = local_datacenter(&session, config.local_datacenter.as_deref())?;
        Ok(Self {
            session,
            datacenter,
            in_flight_max: config.in_flight_max.get(),
            room: Semaphore::new(config.in_flight_max.get()),
            patience: config.patience,
            trouble: Trouble::default(),
        })
    }

    /// Prepares a statement that may be repeated as it is.
    pub(super) async fn prepare(&self, statement: String) -> Result<PreparedStatement, StoreError> {
        let prepared = self.session.prepare(statement).await;
        let mut prepared = prepared.map_err(|error| StoreError::unavailable("preparing", error))?;
        prepared.set_is_idempotent(true);
        Ok(prepared)
    }

    /// Prepares a lightweight transaction. The driver never repeats it.
    pub(super) async fn prepare_conditional(
        &self,
        statement: String,
    ) -> Result<PreparedStatement, StoreError> {
        let mut prepared = self.prepare(statement).await?;
        prepared.set_is_idempotent(false);
        prepared.set_retry_policy(Some(Arc::new(FallthroughRetryPolicy::new())));
        Ok(prepared)
    }

    /// Prepares a read that sees every lightweight transaction before it.
    pub(super) async fn prepare_serial_read(
        &self,
        statement: String,
    ) -> Result<PreparedStatement, StoreError> {
        let mut prepared = self.prepare(statement).await?;
        prepared.set_consistency(Consistency::LocalSerial);
        Ok(prepared)
    }

    /// Sends a request that may be repeated, until it is carried out, is refused, or patience has
    /// run out.
    pub(super) async fn repeat<T, F>(
        &self,
        action: &'static str,
        request: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, ExecutionError>>,
    {
        let mut retries = self.retries(action);
        loop {
            match self.attempt(request()).await {
                Ok(done) => return Ok(done),
                Err(error) => retries.after(error).await?,
            }
        }
    }

    /// Sends a request once there is room for it.
    pub(super) async fn attempt<T>(
        &self,
        request: impl Future<Output = Result<T, ExecutionError>>,
    ) -> Result<T, ExecutionError> {
        // The semaphore is never closed, so that this always gets its permit.
        let _permit = self.room.acquire().await.ok();
        let answer = request.await;
        match &answer {
            Err(error) if failure(error) != Failure::Refused => self.trouble.report(error),
            Err(_) | Ok(_) => self.trouble.note_answer(),
        }
        answer
    }

    /// The retries of a request that has not been sent yet.
    pub(super) fn retries(&self, action: &'static str) -> Retries {
        Retries {
            action,
            until: Instant::now() + self.patience,
            retry: 0,
            classify: failure,
            may_be_done: false,
        }
    }

    /// The retries of a lightweight transaction that has not been sent yet.
    pub(super) fn retries_of_transaction(&self, action: &'static str) -> Retries {
        Retries {
            classify: failure_of_transaction,
            ..self.retries(action)
        }
    }

    /// Runs futures, a bounded number at a time, to the first error.
    pub(super) async fn all<F>(&self, futures: Vec<F>) -> Result<(), StoreError>
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let mut running = FuturesUnordered::new();
        for future in futures {
            if running.len() == self.in_flight_max
                && let Some(done) = running.next().await
            {
                done?;
            }
            running.push(future);
        }
        while let Some(done) = running.next().await {
            done?;
        }
        Ok(())
    }
}

/// Servers that accept connections, or seem to, but do not answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer from {contact_points} within {} s", .waited.as_secs_f64())]
struct NoAnswer {
    contact_points: String,
    waited: Duration,
}

/// Whether requests fail; logged once when it begins and once when it is over.
#[derive(Default)]
struct Trouble {
    is_there: AtomicBool,
    last_met: Mutex<Option<Instant>>,
}

impl Trouble {
    fn report(&self, error: &ExecutionError) {
        *self.last_met.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if !self.is_there.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "requests to the state store fail; retrying");
        }
    }

    fn note_answer(&self) {
        if !self.is_there.load(Ordering::Relaxed) {
            return;
        }
        let last_met = *self.last_met.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = last_met.is_none_or(|last_met| last_met.elapsed() > QUIET);
        if is_over && self.is_there.swap(false, Ordering::Relaxed) {
            tracing::info!("requests to the state store succeed again");
        }
    }
}

/// How long a request is still repeated, and what is known about it.
pub(super) struct Retries {
    action: &'static str,
    until: Instant,
    /// The number of the next retry.
    retry: u32,
    /// What an error implies for the kind of request that is repeated.
    classify: fn(&ExecutionError) -> Failure,
    /// Whether an attempt ended with an unknown outcome.
    pub(super) may_be_done: bool,
}

impl Retries {
    /// Waits for the next attempt.
    ///
    /// # Errors
    ///
    /// If there is no next attempt.
    pub(super) async fn after(&mut self, error: ExecutionError) -> Result<(), StoreError> {
        let failure = (self.classify)(&error);
        self.may_be_done |= failure == Failure::Unknown;
        // Random, so that contenders that failed together do not collide again.
        let spread = f64::from(uuid::Uuid::new_v4().as_u128() as u8) / 255.0;
        let wait = backoff(BACKOFF_MIN, BACKOFF_MAX, self.retry, spread);
        if failure != Failure::Refused && Instant::now() + wait < self.until {
            tokio::time::sleep(wait).await;
            self.retry += 1;
            return Ok(());
        }
        let (action, source) = (self.action, Box::new(error));
        Err(if self.may_be_done {
            StoreError::Unknown { action, source }
        } else {
            StoreError::Unavailable { action, source }
        })
    }
}

/// What an error implies for the request that met it. An error that is not known to be harmless
/// means that the outcome is unknown.
pub(super) fn failure(error: &ExecutionError) -> Failure {
    use scylla::errors::DbError;
    match error {
        ExecutionError::BadQuery(_) | ExecutionError::UseKeyspaceError(_) => Failure::Refused,
        ExecutionError::EmptyPlan
        | ExecutionError::PrepareError(_)
        | ExecutionError::ConnectionPoolError(_) => Failure::NotDone,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, _)) => match error {
            DbError::SyntaxError
            | DbError::Invalid
            | DbError::AlreadyExists { .. }
            | DbError::FunctionFailure { .. }
            | DbError::AuthenticationError
            | DbError::Unauthorized
            | DbError::ConfigError
            | DbError::ProtocolError => Failure::Refused,
            DbError::Unavailable { .. }
            | DbError::IsBootstrapping
            | DbError::RateLimitReached { .. }
            | DbError::Unprepared { .. }
            | DbError::ReadTimeout { .. }
            | DbError::ReadFailure { .. } => Failure::NotDone,
            DbError::Overloaded
            | DbError::TruncateError
            | DbError::WriteTimeout { .. }
            | DbError::WriteFailure { .. }
            | DbError::ServerError
            | DbError::Other(_) => Failure::Unknown,
            // The driver may report errors that this program does not know.
            _ => Failure::Unknown,
        },
        ExecutionError::LastAttemptError(error) => match error {
            RequestAttemptError::SerializationError(_)
            | RequestAttemptError::CqlRequestSerialization(_) => Failure::Refused,
            RequestAttemptError::UnableToAllocStreamId => Failure::NotDone,
            _ => Failure::Unknown,
        },
        _ => Failure::Unknown,
    }
}

/// What an error implies for a lightweight transaction. A coordinator checks at each phase whether
/// enough replicas are alive, so `Unavailable` may follow after they accepted the proposal: the
/// next access to the partition then completes the transaction. (Cassandra 5.0: `commitPaxos` in
/// `StorageProxy` plans an ordinary write, and `ReplicaPlans.forWrite` refuses without live
/// replicas. Error 0x1000 of the protocol does not distinguish the phases, and neither do the
/// errors of reads.)
fn failure_of_transaction(error: &ExecutionError) -> Failure {
    use scylla::errors::DbError;
    if let ExecutionError::LastAttemptError(RequestAttemptError::DbError(
        DbError::Unavailable { .. } | DbError::ReadTimeout { .. } | DbError::ReadFailure { .. },
        _,
    )) = error
    {
        return Failure::Unknown;
    }
    failure(error)
}

/// A server closed the connection before it could be used. Servers that require TLS, or a
/// certificate, give no other sign.
#[derive(Debug, thiserror::Error)]
#[error("a server closed the connection; {hint}")]
struct HungUp {
    hint: &'static str,
    #[source]
    error: NewSessionError,
}

/// What a server that closed the connection may have required.
fn hint(config: &CqlConfig, error: &NewSessionError) -> Option<&'static str> {
    let NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
        ConnectionPoolError::Broken {
            last_connection_error,
        },
    )) = error
    else {
        return None;
    };
    let hung_up = match last_connection_error {
        ConnectionError::BrokenConnection(_) => true,
        ConnectionError::ConnectionSetupRequestError(request) => matches!(
            request.error,
            ConnectionSetupRequestErrorKind::BrokenConnection(_)
        ),
        _ => false,
    };
    match (hung_up, &config.tls, &config.client_certificate) {
        (true, CqlTls::Off, _) => Some("does it require TLS (store.scylla.tls)?"),
        (true, _, None) => Some("does it require a client certificate (store.scylla.certFile)?"),
        (true, _, Some(_)) | (false, _, _) => None,
    }
}

fn tls(config: &CqlConfig) -> Result<Option<OpenSsl010Config>, StoreError> {
    let mut connector = SslConnector::builder(SslMethod::tls()).map_err(tls_failed)?;
    match &config.tls {
        CqlTls::Off => return Ok(None),
        CqlTls::SystemRoots => {}
        CqlTls::CaFile(path) => {
            let trusted = authorities(path).map_err(|error| unusable_file(path, error))?;
            connector.set_cert_store(trusted);
        }
    }
    if let Some(CqlCertificate {
        cert_file,
        key_file,
    }) = &config.client_certificate
    {
        connector
            .set_certificate_chain_file(cert_file)
            .map_err(|error| unusable_file(cert_file, error))?;
        let key = key(key_file).map_err(|error| unusable_file(key_file, error))?;
        connector
            .set_private_key(&key)
            .and_then(|()| connector.check_private_key())
            .map_err(|error| unusable_file(key_file, error))?;
    }
    Ok(Some(OpenSsl010Config::new(connector)))
}

/// The certificates in a file; no others are trusted.
fn authorities(path: &Path) -> Result<X509Store, Cause> {
    let certificates = X509::stack_from_pem(&std::fs::read(path)?)?;
    if certificates.is_empty() {
        return Err("the file contains no certificate (PEM)".into());
    }
    let mut trusted = X509StoreBuilder::new()?;
    for certificate in certificates {
        trusted.add_cert(certificate)?;
    }
    Ok(trusted.build())
}

/// A key without a passphrase. One with a passphrase is refused; the terminal shows no prompt.
fn key(path: &Path) -> Result<PKey<Private>, Cause> {
    let pem = std::fs::read(path)?;
    Ok(PKey::private_key_from_pem_callback(&pem, |_| Ok(0))?)
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

fn tls_failed(error: impl Into<Cause>) -> StoreError {
    StoreError::unavailable("loading the certificates", error)
}

/// A file for TLS is missing or invalid.
fn unusable_file(path: &Path, cause: impl Into<Cause>) -> StoreError {
    tls_failed(format!("{}: {}", path.display(), cause.into()))
}

/// The datacentre to use: the one that is named, or the only one.
fn local_datacenter(session: &Session, named: Option<&str>) -> Result<String, CqlError> {
    let state = session.get_cluster_state();
    let datacenters = state.get_nodes_info().iter();
    let mut known: Vec<String> = datacenters
        .filter_map(|node| node.datacenter.clone())
        .collect();
    known.sort();
    known.dedup();
    match (named, &known[..]) {
        (None, [only]) => Ok(only.clone()),
        (Some(named), _) if known.iter().any(|known| known == named) => Ok(named.to_owned()),
        (None | Some(_), _) => Err(CqlError::Datacenter { known }),
    }
}

#[cfg(test)]
mod tests {
    use scylla::errors::{DbError, WriteType};

    use super::*;

    #[tokio::test]
    async fn servers_that_accept_connections_without_answering_count_as_unreachable() {
        // The system completes connections to a listener that never accepts them.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let config = CqlConfig {
            connect_timeout: Duration::from_millis(100),
            ..CqlConfig::new([silent.local_addr().unwrap().to_string()])
        };
        let error = Link::new(&config).await.err().unwrap();
        let StoreError::Unavailable { source, .. } = error else {
            panic!("{error:?}")
        };
        let expected = format!("no answer from {} within 0.1 s", config.contact_points[0]);
        assert_eq!(source.to_string(), expected);
    }

    #[tokio::test]
    async fn silent_servers_time_out_before_the_drivers_minute() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let config = CqlConfig {
            connect_timeout: Duration::from_secs(45),
            ..CqlConfig::new([silent.local_addr().unwrap().to_string()])
        };
        let error = Link::new(&config).await.err().unwrap();
        let StoreError::Unavailable { source, .. } = error else {
            panic!("{error:?}")
        };
        // The driver gives up before connecting takes too long.
        assert!(!source.is::<NoAnswer>(), "{source}");
    }

    fn failed(error: DbError) -> ExecutionError {
        RequestAttemptError::DbError(error, String::new()).into()
    }

    #[test]
    fn only_certain_failures_count_as_not_applied() {
        let consistency = Consistency::LocalQuorum;
        let timed_out = DbError::WriteTimeout {
            consistency,
            received: 1,
            required: 2,
            write_type: WriteType::Simple,
        };
        let unavailable = DbError::Unavailable {
            consistency,
            required: 2,
            alive: 1,
        };
        for (error, wanted) in [
            (failed(DbError::Invalid), Failure::Refused),
            (failed(DbError::Unauthorized), Failure::Refused),
            (failed(unavailable), Failure::NotDone),
            (ExecutionError::EmptyPlan, Failure::NotDone),
            (failed(timed_out), Failure::Unknown),
            (failed(DbError::ServerError), Failure::Unknown),
            (failed(DbError::Other(0x1700)), Failure::Unknown),
            (
                ExecutionError::RequestTimeout(Duration::ZERO),
                Failure::Unknown,
            ),
        ] {
            assert_eq!(failure(&error), wanted, "{error}");
        }
    }

    #[tokio::test]
    async fn a_transaction_with_too_few_replicas_may_still_have_been_applied() {
        let unavailable = || {
            failed(DbError::Unavailable {
                consistency: Consistency::LocalSerial,
                required: 2,
                alive: 1,
            })
        };
        let refused = failed(DbError::Invalid);
        assert_eq!(failure_of_transaction(&unavailable()), Failure::Unknown);
        assert_eq!(failure_of_transaction(&refused), Failure::Refused);
        let not_sent = ExecutionError::EmptyPlan;
        assert_eq!(failure_of_transaction(&not_sent), Failure::NotDone);

        for (classify, may_be_done) in [
            (failure as fn(&ExecutionError) -> Failure, false),
            (failure_of_transaction, true),
        ] {
            let mut retries = Retries {
                action: "renewing a lease",
                until: Instant::now() + Duration::from_secs(3_600),
                retry: 0,
                classify,
                may_be_done: false,
            };
            retries.after(unavailable()).await.unwrap();
            assert_eq!(retries.may_be_done, may_be_done);
        }
    }

    #[tokio::test]
    async fn a_request_that_may_have_been_applied_stays_unknown() {
        let retries = |patience| Retries {
            action: "writing rows",
            until: Instant::now() + patience,
            retry: 0,
            classify: failure,
            may_be_done: false,
        };
        let mut only_not_done = retries(Duration::ZERO);
        let error = only_not_done.after(ExecutionError::EmptyPlan).await;
        assert!(
            matches!(error, Err(StoreError::Unavailable { .. })),
            "{error:?}"
        );

        let mut unknown = retries(Duration::from_secs(3_600));
        let timed_out = ExecutionError::RequestTimeout(Duration::ZERO);
        unknown.after(timed_out).await.unwrap();
        unknown.until = Instant::now();
        let error = unknown.after(ExecutionError::EmptyPlan).await;
        assert!(
            matches!(error, Err(StoreError::Unknown { .. })),
            "{error:?}"
        );

        let mut refused = retries(Duration::from_secs(3_600));
        let error = refused.after(failed(DbError::Invalid)).await;
        assert!(
            matches!(error, Err(StoreError::Unavailable { .. })),
            "{error:?}"
        );
    }
}
