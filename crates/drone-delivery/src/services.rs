//! Five simulated services on one listener: account, package, third-party transport, drone and
//! delivery, with faults that can be switched on and a ledger of what they did.
//!
//! They are what the rules are judged by: an agent repeats attempts, dies in the middle and undoes
//! what it does not know, and afterwards the ledger tells which effects were really made. So these
//! must hold, whatever is killed and started again:
//!
//! * **An effect is in the ledger before it is answered.** It was written to the file (not synced:
//!   the services may be killed at any moment, the machine may not lose its power).
//! * **One effect per idempotency key and service.** A repeat gets the first answer again and is
//!   counted apart.
//! * **An undone key stays undone.** An undo that comes before its forward action leaves a
//!   tombstone. A forward action after its undo is refused (409 `undone-before`), and the ledger
//!   has the refusal.
//! * **A refusal has no effect, now or later.** What a key is refused for at random depends on the
//!   key alone, and what was made is never refused, nor is the undo of what was undone.
//!
//! | service | forward | undo | probe |
//! |---|---|---|---|
//! | account | `GET /api/Account/{ownerId}`: no effect | | |
//! | package | `PUT /api/packages/{id}` | `DELETE` | `GET` |
//! | third-party | `PUT /api/ThirdPartyDeliveries/{id}`: an effect only where it is needed | `DELETE` | `GET` |
//! | drone | `PUT /api/DroneDeliveries/{id}` | `DELETE` | `GET` |
//! | delivery | `PUT /api/Deliveries/{id}` | `DELETE` | `GET` |
//!
//! All three name the effect by the header `Idempotency-Key`. An undo answers 204, also where there
//! was nothing to undo. A probe answers 200 with what its maker was answered where the effect
//! stands, else 404 `not-performed`.
//!
//! Beside them: `GET`, `PUT`, `DELETE /faults/{service}`, `GET /faults`, and the ledger: `GET
//! /ledger` (NDJSON), `GET /ledger?operation=ID` (an array), either with `tombstones=true` also with
//! tombstones and refusals; `GET /ledger/summary`, the counts; `GET /ledger/operations?after=&limit=`
//! (NDJSON), what stands of each operation, page by page. Each speaks HTTP/1.1 and HTTP/2 with prior
//! knowledge.
//!
//! Deliberately absent: what a package, a drone or a delivery is. The services keep no resources;
//! who holds a key is all that they know. There is no middleware and no trace per request either:
//! they share the machine with what is measured.

mod answer;
mod api;
mod caller;
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
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use waybill_connections::Connections;
use waybill_http::{Server, Tls};

pub use caller::{Answered, CallError, Caller, Request, Unanswered};
pub use control::PAGE_OPERATIONS_MAX;
pub use faults::{DELAY_MS_MAX, Faults, FaultsByService};
pub use ledger::{Action, Entry, LedgerError, SLOTS_MAX, StepCounts, Summary};

use crate::field::FieldError;
use faults::FaultBoard;
use ledger::Ledger;

/// How many connections may be open, where the configuration does not say.
pub const DEFAULT_CONNECTIONS_MAX: usize = 4_096;

/// How many requests may be under way beyond four of each connection, where the configuration does not say. Agents of one
/// address may have six thousand.
pub const DEFAULT_REQUESTS_MAX: usize = 8_192;

/// How many requests may wait out a latency at once, those included whose clients have gone away.
pub const DELAYED_MAX: usize = 16_384;

/// One of the five services.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Says whether an owner may order.
    Account,
    /// Registers packages.
    Package,
    /// Books transport by others where drones don't fly.
    ThirdParty,
    /// Schedules drones.
    Drone,
    /// Registers deliveries.
    Delivery,
}

impl Service {
    /// All of them, in the order in which a delivery meets them.
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

/// How the services run.
#[derive(Clone, Debug)]
pub struct ServicesConfig {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// How many connections may be open. One more replaces the one that has been idle for longest; where none is idle it
    /// waits. One address gets three quarters of them.
    pub connections_max: usize,
    /// How many requests may be under way beyond four of each connection. One address gets three quarters of them; a
    /// further one over HTTP/2 is refused by `REFUSED_STREAM`.
    pub requests_max: usize,
    /// The directory of the ledger; it is made if need be. One process at a time may use it.
    pub data_dir: PathBuf,
    /// Owners whose id begins with this are suspended. Empty: none are.
    pub suspended_prefix: String,
    /// Locations that contain this need third-party transport. Empty: none do.
    pub remote_marker: String,
    /// The faults to start with, which `DELETE /faults/{service}` comes back to.
    pub faults: FaultsByService,
}

impl ServicesConfig {
    /// Services without faults: owners that begin with `suspended-` are suspended, locations that
    /// contain `remote` need third-party transport.
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
    #[error("the services can't listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The ledger can't be opened.
    #[error("the services' ledger can't be opened")]
    Ledger(#[from] LedgerError),
    /// The configured faults make no sense.
    #[error("the faults of service {service} are wrong: {}", list(.errors))]
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

/// The running services. Dropped without [`Services::shutdown`], they end at once, as if killed.
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
    /// Reads the ledger and listens.
    ///
    /// The future is boxed, so that this crate compiles it, and all that it spawns, rather than the crate that awaits it.
    ///
    /// # Errors
    ///
    /// When the address is taken, the ledger can't be read or belongs to another process, or the
    /// configured faults are out of range.
    pub fn start(
        config: ServicesConfig,
    ) -> Pin<Box<dyn Future<Output = Result<Self, StartError>> + Send>> {
        Box::pin(Self::started(config))
    }

    async fn started(config: ServicesConfig) -> Result<Self, StartError> {
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

    /// Where they listen.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What calls them without HTTP, from the same process.
    #[must_use]
    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// The connections that are open.
    #[must_use]
    pub const fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Takes no more connections, lets requests that are under way be answered for a few seconds,
    /// and ends. Requests that were to hang are cut.
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

/// What every request may use.
struct Site {
    ledger: Arc<Ledger>,
    faults: FaultBoard,
    suspended_prefix: String,
    remote_marker: String,
    /// Room for requests that wait out a latency.
    delayed: Arc<Semaphore>,
    stopping: CancellationToken,
}
