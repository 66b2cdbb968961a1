//! Ingestion: HTTP in, durable records out.
//!
//! It checks requests, answers 202 once the broker has acknowledged their record, and serves their
//! status. It levels load: a spike goes into the topic at the pace of the broker, and pressure
//! returns to clients as 503.
//!
//! The path of a request: a server of `waybill_http` accepts its connection and checks its head.
//! `service` finds the `route` and checks that the caller may use it. `waybill_http::json` and
//! `waybill_api::request` check the body and make the record. `intake` looks for the operation that
//! it repeats, and passes it to the producer. Each line of a `batch` takes the same path. `status`
//! answers status requests, and `request_lookup` reads requests back for it. The other handlers are
//! below `service`: `events` streams an operation's events, and `ops` passes on the verbs of
//! callers and operators, and lists operations that need a person. `view` has the JSON of all
//! answers.
//!
//! What must hold: no 202 for a record that is not durable; no part of a refused request reaches a
//! topic; every queue is bounded; and memory does not grow with offered load.
//!
//! Deliberately absent: decisions about operations, and state that a caller would miss after a
//! restart.

mod batch;
mod claims;
mod config;
mod docs;
mod intake;
mod logs;
mod measure;
mod openapi;
mod refusals;
mod reply_topics;
mod request_lookup;
mod route;
mod service;
mod settings;
mod spans;
mod status;
mod store_reads;
mod tenant_semaphore;
mod token;
mod view;
mod what_next;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use waybill_api::form::Forms;
use waybill_api::request::Rules;
use waybill_api::tenant_limits::TenantLimits;
use waybill_engine::Workflows;
use waybill_http::auth::Auth;
use waybill_http::payload::Patience;
use waybill_http::{Cors, Hosts, Server, Tls};
use waybill_kafka::{ClientError, KafkaSettings};
use waybill_messages::Topics;
use waybill_store::Store;
use waybill_telemetry::health::LowDisk;
use waybill_topology::partition_map::PartitionMap;

pub use config::{HttpConfig, TenantLimit, TenantLimitsConfig};
pub use measure::METRICS;
pub use settings::IngestionSettings;

use self::batch::BatchLimits;
use self::docs::Docs;
use self::intake::Intake;
use self::measure::{BODY_BYTES, BODY_BYTES_MAX, Measures};
use self::service::{Api, Events, ListAdmission};
use self::store_reads::StoreReads;
use self::tenant_semaphore::TenantSemaphore;

/// The listener's name in metrics.
const LISTENER: &str = "api";

/// Why ingestion could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is in use, or does not belong to this machine.
    #[error("cannot listen for HTTP on {address} (--http)")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The Kafka client could not be created.
    #[error("cannot create the producer for operation requests")]
    Producer(#[from] ClientError),
}

/// The checks before the API.
#[derive(Clone, Debug, Default)]
pub struct Guards {
    /// Authenticates callers.
    pub auth: Auth,
    /// The hosts that the listener answers for.
    pub hosts: Hosts,
    /// The web pages of other origins that may use the API.
    pub cors: Cors,
    /// The certificate of the listener.
    pub tls: Tls,
    /// Refuses new requests while disk space is low.
    pub low_disk: LowDisk,
}

/// What ingestion depends on.
pub struct IngestionParts {
    /// The state store.
    pub store: Arc<dyn Store>,
    /// How to reach the brokers.
    pub kafka: KafkaSettings,
    /// The names of the topics.
    pub topics: Topics,
    /// The partitions of the operation topics.
    pub partition_map: PartitionMap,
    /// The workflows that can be requested.
    pub workflows: Arc<Workflows>,
    /// The forms that the program has, including those of workflows that cannot be requested.
    pub forms: Forms,
    /// The checks before the API.
    pub guards: Guards,
}

/// A running ingestion server.
#[derive(Debug)]
pub struct Ingestion {
    address: SocketAddr,
    accepting: CancellationToken,
    batches_stop: CancellationToken,
    batches: TaskTracker,
    server: JoinHandle<()>,
    /// Follows operations for the event streams.
    following: JoinHandle<()>,
    intake: Arc<Intake>,
    drain_timeout: Duration,
}

impl Ingestion {
    /// Listens and serves from now on. Neither the broker nor a scheduler need be available yet.
    ///
    /// The future is boxed, so that this crate compiles it and everything it spawns, rather than
    /// the crate that awaits it.
    ///
    /// # Errors
    ///
    /// If the address cannot be listened on, or the Kafka client cannot be created.
    pub fn start(
        config: IngestionSettings,
        parts: IngestionParts,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::started(config, parts))
    }

    async fn started(config: IngestionSettings, parts: IngestionParts) -> Result<Self, StartError> {
        let IngestionParts {
            store,
            kafka,
            topics,
            partition_map,
            workflows,
            forms,
            guards,
        } = parts;
        let listen = |source| StartError::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let reads = Arc::new(StoreReads::new(
            store,
            partition_map.clone(),
            config.accept_timeout,
        ));
        let events = Arc::new(Events::new(
            Arc::clone(&reads),
            config.event_streams_max,
            config.heartbeat(),
        ));
        let intake = Arc::new(Intake::new(
            &config,
            reads,
            kafka,
            topics,
            partition_map,
            guards.low_disk,
        )?);
        let batches = TaskTracker::new();
        let batches_stop = CancellationToken::new();
        let following = batches.spawn(Arc::clone(&events).run(batches_stop.clone()));
        // A workflow that is not configured has no routes, and no part of the description.
        let served = forms.configured(&workflows);
        let is_guarded = guards.auth.authenticator().is_some();
        let docs = Docs::new(openapi::document(is_guarded, &served));
        let api = Arc::new(Api {
            auth: guards.auth,
            hosts: guards.hosts.with_origins(&guards.cors),
            cors: guards.cors,
            intake: Arc::clone(&intake),
            events,
            lists: ListAdmission::new(config.lists_max),
            rules: Arc::new(Rules {
                workflows,
                forms,
                json_depth_max: config.depth_max(),
                reply_to_prefixes: config.reply_to_prefixes.clone(),
                contacts: config.contacts.clone(),
                tenant_limits: TenantLimits::new(&config.tenant_rates),
                has_high_priority_topic: config.has_high_priority_topic,
            }),
            measures: Arc::new(Measures::new(&served)),
            forms: served,
            docs,
            request_bytes_max: config.request_bytes_max,
            patience: Patience {
                pause_max: config.body_read_timeout,
                whole_max: config.body_timeout,
            },
            wait_max: config.wait_max(),
            batch: BatchLimits {
                line_bytes_max: config.batch_line_bytes_max,
                lines_max: config.batch_lines_max.max(1),
                accept_timeout: config.accept_timeout,
                pause_max: config.body_read_timeout,
                line_max: config.body_timeout,
            },
            budget: TenantSemaphore::new(
                config.body_bytes_max,
                BODY_BYTES.of([]),
                &BODY_BYTES_MAX.of([]),
            ),
            batches: batches.clone(),
            stop: batches_stop.clone(),
        });
        let server = Server::new(LISTENER, listener, guards.tls, api, config.server_limits());
        let accepting = CancellationToken::new();
        Ok(Self {
            address,
            server: tokio::spawn(server.run(accepting.clone())),
            following,
            accepting,
            batches_stop,
            batches,
            intake,
            drain_timeout: config.drain_timeout,
        })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the API can no longer serve, although nothing stopped it. It is to be dropped
    /// then.
    ///
    /// # Errors
    ///
    /// If its listener, or the task that follows operations for event streams, panicked.
    pub async fn ended(&mut self) -> Result<(), JoinError> {
        tokio::select! {
            ended = &mut self.server => ended,
            ended = &mut self.following => ended,
        }
    }

    /// Stops accepting, and answers the requests in progress. Ends batches after the lines that
    /// were read, and event streams immediately. Waits for the outcome of all records. Cuts off
    /// everything that has not ended within the drain time-out.
    pub async fn shutdown(mut self) {
        self.accepting.cancel();
        self.batches_stop.cancel();
        self.batches.close();
        let ended = async {
            let served = (&mut self.server).await;
            self.batches.wait().await;
            served
        };
        match tokio::time::timeout(self.drain_timeout, ended).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the HTTP server failed"),
            Err(_) => {
                tracing::warn!("requests are still in progress; closing their connections");
                self.server.abort();
            }
        }
        let (intake, patience) = (Arc::clone(&self.intake), self.drain_timeout);
        let flushed = tokio::task::spawn_blocking(move || intake.close(patience)).await;
        if let Err(error) = flushed {
            tracing::error!(%error, "could not flush the producer");
        }
    }
}
