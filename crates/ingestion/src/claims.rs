//! The state of the intake (`waybill_ingestion_core`), shared by connections and the producer: the
//! requests in flight, those accepted last, and whether the broker acknowledges records.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use waybill_engine::OperationId;
use waybill_ingestion_core::{
    Accepted, Admitted, Candidate, Claims, Ended, Failed, Flow, NotAdmitted, Position, Settled,
    Ticket, Turn, Waiter, abandon, admit, settle,
};

/// A connection or a batch that waits for the outcome of a request.
#[derive(Debug)]
pub struct Client(pub oneshot::Sender<Settled>);

impl Waiter for Client {
    fn is_gone(&self) -> bool {
        self.0.is_closed()
    }
}

/// The requests in flight and those accepted last, by operation.
#[derive(Debug)]
pub struct SharedClaims {
    began: Instant,
    flow: Flow,
    shards: Box<[Mutex<Claims<Client>>]>,
}

/// Reduces contention between connections.
const SHARDS: usize = 16;

impl SharedClaims {
    /// Remembers about `accepted_max` requests. Records wait up to `accept_timeout`.
    pub fn new(accepted_max: usize, accept_timeout: Duration) -> Self {
        let of_shard = accepted_max.div_ceil(SHARDS);
        let shard = |_| Mutex::new(Claims::new(of_shard));
        Self {
            began: Instant::now(),
            flow: Flow::new(accept_timeout),
            shards: (0..SHARDS).map(shard).collect(),
        }
    }

    /// The request accepted under `id`, if it is remembered.
    pub fn accepted(&self, id: OperationId) -> Option<Accepted> {
        self.shard(id).accepted(id).cloned()
    }

    /// Decides about a request, as [`admit`] does.
    ///
    /// # Errors
    ///
    /// As [`admit`].
    pub fn admit<R>(
        &self,
        candidate: Candidate,
        refused: Option<R>,
        client: Client,
    ) -> Result<Admitted<Client>, NotAdmitted<R>> {
        let now = self.began.elapsed();
        let mut claims = self.shard(candidate.id);
        let admitted = admit(&mut claims, &self.flow, now, candidate, refused, client);
        drop(claims);
        if let Err(NotAdmitted::Unavailable(turn)) = &admitted {
            log_turn(*turn, &SILENT);
        }
        admitted
    }

    /// Passes on the outcome of a record to all that claimed or share it, and returns it.
    pub fn settle(
        &self,
        ticket: Ticket,
        produced: Result<Position, Failed>,
        cause: &dyn std::fmt::Display,
        accepted: impl FnOnce(Position) -> Accepted,
    ) -> Settled {
        let now = self.began.elapsed();
        let mut claims = self.shard(ticket.id());
        let ended = settle(&mut claims, &self.flow, now, ticket, produced, accepted);
        drop(claims);
        let Ended {
            settled,
            waiters,
            turn,
        } = ended;
        log_turn(turn, cause);
        for Client(client) in waiters {
            // The connection may be closed. The record is in the log either way.
            drop(client.send(settled.clone()));
        }
        settled
    }

    /// Ends a request whose outcome will never be known.
    pub fn abandon(&self, ticket: Ticket) {
        let now = self.began.elapsed();
        let mut claims = self.shard(ticket.id());
        // Dropped, they report that there is no outcome.
        let waiters = abandon(&mut claims, &self.flow, now, ticket);
        drop(claims);
        drop(waiters);
    }

    /// Counts in a record that is no request, unless the broker is unavailable. Each `true` needs a
    /// later [`end`](Self::end).
    pub fn begin(&self) -> bool {
        match self.flow.begin(self.began.elapsed()) {
            Ok(()) => true,
            Err(turn) => {
                log_turn(turn, &SILENT);
                false
            }
        }
    }

    /// Counts out a record that is no request.
    pub fn end(&self, failed: Option<Failed>, cause: &dyn std::fmt::Display) {
        log_turn(self.flow.end(failed, self.began.elapsed()), cause);
    }

    fn shard(&self, id: OperationId) -> MutexGuard<'_, Claims<Client>> {
        // All bytes of a UUIDv5 are hash, and the later bytes of a UUIDv7 are random.
        let index = usize::from(id.0.as_bytes()[13]) % SHARDS;
        // A panic elsewhere cannot leave a shard half changed: no code there panics in between.
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

const SILENT: &str = "no record was acknowledged for a while";

/// The log reports once that the broker is unavailable, and once that it is available again.
fn log_turn(turn: Option<Turn>, cause: &dyn std::fmt::Display) {
    match turn {
        Some(Turn::Unavailable) => tracing::warn!(
            %cause,
            "the broker does not accept requests; answering 503 or 504"
        ),
        Some(Turn::Available) => tracing::info!("the broker accepts requests again"),
        None => {}
    }
}
