//! Five simulated services on one listener: account, package, third-party transport, drone and
//! delivery, with faults that can be switched on and a ledger of their effects.
//!
//! Tests of the guarantees rely on them. An agent repeats attempts, dies in the middle, and undoes
//! unknown attempts; then the ledger shows the real effects. So these rules must hold through kills
//! and restarts:
//!
//! * **An effect is in the ledger before it is answered.** It was written to the file but not
//!   synced: the services survive a kill, not a power failure.
//! * **One effect per idempotency key and service.** A repeat gets the first answer again and is
//!   counted separately.
//! * **An undone key stays undone.** An undo that arrives before its forward action leaves a
//!   tombstone. A forward action after its undo is refused (409 `undone-before`), and the ledger
//!   has the refusal.
//! * **A refusal has no effect, now or later.** A random refusal depends on the key alone. An
//!   existing effect is never refused, and neither is a repeated undo.
//!
//! | service | forward | undo | probe |
//! |---|---|---|---|
//! | account | `GET /api/Account/{ownerId}`: no effect | | |
//! | package | `PUT /api/packages/{id}` | `DELETE` | `GET` |
//! | third-party | `PUT /api/ThirdPartyDeliveries/{id}`: an effect only if it is needed | `DELETE` | `GET` |
//! | drone | `PUT /api/DroneDeliveries/{id}` | `DELETE` | `GET` |
//! | delivery | `PUT /api/Deliveries/{id}` | `DELETE` | `GET` |
//!
//! All three identify the effect by the header `Idempotency-Key`. An undo answers 204, even if
//! there was nothing to undo. A probe of an existing effect answers 200 with the original answer,
//! else 404 `not-performed`.
//!
//! Also: `GET`, `PUT`, `DELETE /faults/{service}`, `GET /faults`, and the ledger. `GET /ledger`
//! (NDJSON) and `GET /ledger?operation=ID` (an array) include tombstones and refusals with
//! `tombstones=true`. `GET /ledger/summary` returns the counts. `GET
//! /ledger/operations?after=&limit=` (NDJSON) returns the existing effects of each operation, page
//! by page. All speak HTTP/1.1 and HTTP/2 with prior knowledge.
//!
//! Deliberately absent: resources such as packages, drones or deliveries. The services know only
//! idempotency keys. There is also no middleware and no trace per request, because the services
//! share the machine with the measured system.

mod answer;
mod api;
mod caller;
mod config;
mod control;
mod faults;
mod key;
mod ledger;
mod listener;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use waybill_connections::Connections;
use waybill_http::{Server, Tls};

pub use caller::{Answered, CallError, Caller, Request, Unanswered};
pub use config::ServicesConfig;
pub use control::PAGE_OPERATIONS_MAX;
pub use faults::{DELAY_MS_MAX, Faults, FaultsByService};
pub use ledger::{Action, Entry, LedgerError, SLOTS_MAX, StepCounts, Summary};

use crate::field::FieldError;
use faults::FaultBoard;
use ledger::Ledger;

/// The default number of open connections.
pub const DEFAULT_CONNECTIONS_MAX: usize = 4_096;

/// The default number of concurrent requests beyond four per connection. Agents at one address may
/// have six thousand.
pub const DEFAULT_REQUESTS_MAX: usize = 8_192;

/// The maximum number of requests that wait for a configured latency at the same time. Requests of
/// disconnected clients count too.
pub const DELAYED_MAX: usize = 16_384;

/// One of the five services.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Checks whether an owner may order.
    Account,
    /// Registers packages.
    Package,
    /// Books transport by third parties to places that drones do not reach.
    ThirdParty,
    /// Schedules drones.
    Drone,
    /// Registers deliveries.
    Delivery,
}

impl Service {
    /// All services, in the order in which a delivery calls them.
    pub const ALL: [Self; 5] = [
        Self::Account,
        Self::Package,
        Self::ThirdParty,
        Self::Drone,
        Self::Delivery,
    ];

    /// Its name in `/faults/{service}` and in the ledger.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Package => "package",
            Self::ThirdParty => "third-party",
            Self::Drone => "drone",
            Self::Delivery => "delivery",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|service| service.as_str() == name)
    }
}

/// The settings of the services.
#[derive(Clone, Debug)]
pub struct ServicesSettings {
    /// The listen address; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The maximum number of connections. A further one replaces the longest idle one, or waits if
    /// none is idle. One address gets three quarters of them.
    pub connections_max: usize,
    /// The maximum number of concurrent requests beyond four per connection. One address gets three
    /// quarters of them. A further one over HTTP/2 is refused with `REFUSED_STREAM`.
    pub requests_max: usize,
    /// The directory of the ledger, created if missing. One process at a time may use it.
    pub data_dir: PathBuf,
    /// Owners with this ID prefix are suspended. Empty: no owner is.
    pub suspended_prefix: String,
    /// Locations that contain this text need third-party transport. Empty: no location does.
    pub remote_marker: String,
    /// The initial faults, which `DELETE /faults/{service}` restores.
    pub faults: FaultsByService,
}

impl ServicesSettings {
    /// Services without faults. Owners with the prefix `suspended-` are suspended, and locations
    /// that contain `remote` need third-party transport.
    #[must_use]
    pub fn new(listen: SocketAddr, data_dir: PathBuf) -> Self {
        Self {
            listen,
            connections_max: DEFAULT_CONNECTIONS_MAX,
            requests_max: DEFAULT_REQUESTS_MAX,
            data_dir,
            suspended_prefix: "suspended-".to_owned(),
            remote_marker: "remote".to_owned(),
            faults: FaultsByService::default(),
        }
    }
}

/// Why the services can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address can't be listened on.
    #[error("the services cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The ledger can't be opened.
    #[error("cannot open the services' ledger")]
    Ledger(#[from] LedgerError),
    /// The configured faults are invalid.
    #[error("the faults of service {service} are invalid: {}", list(.errors))]
    Faults {
        /// The service.
        service: &'static str,
        /// The wrong fields.
        errors: Vec<FieldError>,
    },
    /// The thread that reads the ledger ended early.
    #[error("reading the services' ledger was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

fn list(errors: &[FieldError]) -> String {
    let errors: Vec<_> = errors.iter().map(FieldError::to_string).collect();
    errors.join("; ")
}

/// The running services. Without [`Services::shutdown`], dropping them ends them immediately, as if
/// killed.
#[derive(Debug)]
pub struct Services {
    address: SocketAddr,
    caller: Caller,
    connections: Arc<Connections>,
    stopping: CancellationToken,
    aborting: CancellationToken,
    listening: Option<JoinHandle<()>>,
}

impl Services {
    /// Reads the ledger and starts to listen.
    ///
    /// The future is boxed so that this crate compiles it, and not the crate that awaits it.
    ///
    /// # Errors
    ///
    /// If the address is in use, the ledger cannot be read or belongs to another process, or the
    /// configured faults are out of range.
    pub fn start(
        config: ServicesSettings,
    ) -> Pin<Box<dyn Future<Output = Result<Self, StartError>> + Send>> {
        Box::pin(Self::started(config))
    }

    async fn started(config: ServicesSettings) -> Result<Self, StartError> {
        let faults = FaultBoard::new(config.faults)?;
        let data_dir = config.data_dir;
        let ledger = tokio::task::spawn_blocking(move || Ledger::open(&data_dir))
            .await
            .map_err(StartError::Interrupted)??;
        let address = config.listen;
        let listen_error = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let stopping = CancellationToken::new();
        let aborting = CancellationToken::new();
        let site = Arc::new(Site {
            ledger: Arc::new(ledger),
            faults,
            suspended_prefix: config.suspended_prefix,
            remote_marker: config.remote_marker,
            delayed: Arc::new(Semaphore::new(DELAYED_MAX)),
            stopping: stopping.clone(),
        });
        let caller = Caller::new(Arc::downgrade(&site));
        let limits = listener::limits(config.connections_max, config.requests_max);
        let server = Server::new("services", listener, Tls::default(), site, limits);
        let connections = Arc::clone(server.connections());
        let listening = listener::listen(server, stopping.clone(), aborting.clone());
        let listening = tokio::spawn(listening);
        Ok(Self {
            address,
            caller,
            connections,
            stopping,
            aborting,
            listening: Some(listening),
        })
    }

    /// The listen address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Calls the services without HTTP, from the same process.
    #[must_use]
    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// The open connections.
    #[must_use]
    pub const fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Waits until the services no longer listen, although nothing stopped them.
    ///
    /// # Errors
    ///
    /// If their listener panicked.
    pub async fn ended(&mut self) -> Result<(), JoinError> {
        let Some(listening) = &mut self.listening else {
            return std::future::pending().await;
        };
        let ended = listening.await;
        self.listening = None;
        ended
    }

    /// Accepts no more connections, gives running requests a few seconds to finish, and ends.
    /// Hanging requests are cut off.
    pub async fn shutdown(mut self) {
        self.stopping.cancel();
        if let Some(listening) = self.listening.take()
            && let Err(error) = listening.await
        {
            tracing::error!(%error, "the services' listener failed");
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.stopping.cancel();
        self.aborting.cancel();
    }
}

/// The state that all requests share.
struct Site {
    ledger: Arc<Ledger>,
    faults: FaultBoard,
    suspended_prefix: String,
    remote_marker: String,
    /// Permits for requests that wait for a latency.
    delayed: Arc<Semaphore>,
    stopping: CancellationToken,
}
