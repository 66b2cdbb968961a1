//! Streams of an operation's events: `GET /v1/operations/{id}/events`.
//!
//! Events are the changes of a row since the last event. An event's id, the cursor, says everything
//! that was sent so far. A stream can therefore resume after a restart of either side, and the
//! server keeps no state. A change that was undone between two polls of the row is not sent; the
//! final state of every step and of the operation is.
//!
//! What must hold: the number of streams is bounded, and each holds a few events at most. One poll
//! of the store serves all streams, and all requests that wait for a result (`wait`), however many
//! follow however few operations.

mod cursor;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use waybill_engine::{OperationId, OperationRow, Stamp};
use waybill_http::RequestId;
use waybill_http::auth::{Caller, Tenants};
use waybill_http::media_type::EVENT_STREAM;
use waybill_http::payload::Payload;
use waybill_http::problem::{FieldProblem, Kind, Problem};

use self::cursor::EventCursor;
use super::{Api, Call, OF_ONE, Parameters, Reply, decoded, not_found, set_static};
use crate::measure::{EVENT_STREAMS, EVENT_STREAMS_MAX};
use crate::status::{self, Query, Status};
use crate::store_reads::StoreReads;
use crate::tenant_semaphore::{RevocablePermit, TenantSemaphore};
use crate::token::StatusToken;

/// How often rows are polled.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How many rows one read of a poll holds.
const ROWS_AT_ONCE: usize = 100;
/// How many pieces of a stream may wait for its client.
const PIECES_MAX: usize = 4;
/// How long a client should wait before it reconnects.
const RETRY: &str = "retry: 1000\n\n";

/// The last observation of an operation.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// It has no row yet.
    Nothing,
    /// Its row.
    Row(Arc<OperationRow>),
    /// Its row existed and was deleted, or cannot be read.
    Gone,
}

/// Polls the rows of all followed operations.
#[derive(Debug)]
pub struct Events {
    reads: Arc<StoreReads>,
    permits: TenantSemaphore,
    followed: Mutex<HashMap<OperationId, watch::Sender<Seen>>>,
    begun: Notify,
    heartbeat: Duration,
}

/// An operation that is followed.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) seen: watch::Receiver<Seen>,
    pub(super) permit: RevocablePermit,
}

impl Events {
    /// Events for at most `streams_max` streams at the same time, each silent for at most
    /// `heartbeat`.
    pub fn new(reads: Arc<StoreReads>, streams_max: usize, heartbeat: Duration) -> Self {
        Self {
            reads,
            permits: TenantSemaphore::new(
                streams_max,
                EVENT_STREAMS.of([]),
                &EVENT_STREAMS_MAX.of([]),
            ),
            followed: Mutex::default(),
            begun: Notify::new(),
            heartbeat,
        }
    }

    /// Polls rows while any operation is followed, until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let looking = async {
            loop {
                ticks.tick().await;
                let ids = self.ids();
                if ids.is_empty() {
                    self.begun.notified().await;
                }
                for some in ids.chunks(ROWS_AT_ONCE) {
                    self.refresh(some).await;
                }
            }
        };
        tokio::select! {
            () = looking => {}
            () = stop.cancelled() => {}
        }
    }

    /// The followed operations. Forgets those without a stream.
    fn ids(&self) -> Vec<OperationId> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.retain(|_, seen| seen.receiver_count() > 0);
        followed.keys().copied().collect()
    }

    async fn refresh(&self, ids: &[OperationId]) {
        // The next poll reads them again.
        let Ok(rows) = self.reads.rows(ids.to_vec()).await else {
            return;
        };
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, row) in ids.iter().zip(rows) {
            let Some(seen) = followed.get(id) else {
                continue;
            };
            let row = match row {
                Ok(row) => row,
                Err(corrupt) => {
                    tracing::error!(%corrupt, "could not read a followed operation");
                    seen.send_replace(Seen::Gone);
                    continue;
                }
            };
            seen.send_if_modified(|seen| {
                let now = match (row, &*seen) {
                    (Some(row), before) if stamp(before) != Some(row.stamp) => {
                        Seen::Row(Arc::new(row))
                    }
                    (None, Seen::Row(_)) => Seen::Gone,
                    (Some(_) | None, _) => return false,
                };
                *seen = now;
                true
            });
        }
    }

    /// Follows an operation, unless there are too many streams. If one tenant has more than half of
    /// them, another tenant's stream replaces its oldest one.
    pub(super) fn follow(&self, id: OperationId, caller: &Caller) -> Option<Following> {
        let permit = self.permits.acquire_revocable(caller.tenants(), 1, 0)?;
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = followed
            .entry(id)
            .or_insert_with(|| watch::Sender::new(Seen::Nothing))
            .subscribe();
        drop(followed);
        self.begun.notify_one();
        Some(Following { seen, permit })
    }
}

fn stamp(seen: &Seen) -> Option<Stamp> {
    match seen {
        Seen::Row(row) => Some(row.stamp),
        Seen::Nothing | Seen::Gone => None,
    }
}

impl Api {
    /// `GET /v1/operations/{id}/events`.
    pub async fn events(&self, id: &str, call: Call<'_>) -> Result<Reply, Problem> {
        let Call {
            query,
            headers,
            caller,
            ..
        } = call;
        let id = decoded(id).ok_or_else(not_found)?;
        let parameters = Parameters::read(query, caller, &OF_ONE)?;
        let cursor = cursor_of(headers)?;
        let query = Query {
            id: &id,
            tenant: &parameters.tenant,
            tenants: &parameters.tenants,
            token: parameters.token,
            wants_request: false,
        };
        let (id, first) = match status::find(&self.intake, query).await? {
            Status::Row(row) => (row.id, Some(row)),
            Status::Pending(pending) => (pending.id(), None),
            Status::Rejected(id) => {
                return Ok(stream(Payload::Whole(Some(cursor::rejected(id)))));
            }
        };
        if first.as_ref().is_some_and(|row| cursor.is_all_of(row)) {
            // The answer that keeps an EventSource from reconnecting.
            let mut reply = Response::new(Payload::Whole(None));
            *reply.status_mut() = StatusCode::NO_CONTENT;
            return Ok(reply);
        }
        let Some(following) = self.events.follow(id, caller) else {
            let detail = "The limit on open event streams is reached.";
            return Err(Problem::new(Kind::Overloaded, detail));
        };
        let (pieces, body) = mpsc::channel(PIECES_MAX);
        let events = EventStream {
            cursor,
            tenants: parameters.tenants,
            token: parameters.token,
            pieces,
            heartbeat: self.events.heartbeat,
        };
        let stop = self.stop.clone();
        let id = RequestId::current();
        self.batches.spawn(RequestId::scope_current(id, async move {
            tokio::select! {
                _ = events.run(following, first) => {}
                () = stop.cancelled() => {}
            }
        }));
        Ok(stream(Payload::Stream(body)))
    }
}

fn cursor_of(headers: &HeaderMap) -> Result<EventCursor, Problem> {
    const LAST_EVENT_ID: &str = "Last-Event-ID";
    let Some(value) = headers.get(LAST_EVENT_ID) else {
        return Ok(EventCursor::default());
    };
    let cursor = value.to_str().ok().and_then(|text| text.parse().ok());
    cursor.ok_or_else(|| {
        let detail = "must be the unchanged id of an event";
        Problem::invalid(vec![FieldProblem::of_header(LAST_EVENT_ID, detail)])
    })
}

fn stream(body: Payload) -> Reply {
    let mut reply = Response::new(body);
    set_static(&mut reply, header::CONTENT_TYPE, EVENT_STREAM);
    set_static(&mut reply, header::CACHE_CONTROL, "no-store");
    // Proxies that buffer answers would hold events back.
    let name = header::HeaderName::from_static("x-accel-buffering");
    reply
        .headers_mut()
        .insert(name, HeaderValue::from_static("no"));
    reply
}

/// The client has disconnected.
struct Abandoned;

/// The events of an operation that one client has not received.
struct EventStream {
    cursor: EventCursor,
    /// The tenants whose operations this client may see.
    tenants: Tenants,
    /// The request that the client asked about.
    token: Option<StatusToken>,
    pieces: mpsc::Sender<Bytes>,
    heartbeat: Duration,
}

impl EventStream {
    /// Sends events until the operation is final, or the client disconnects.
    async fn run(
        mut self,
        mut following: Following,
        first: Option<Box<OperationRow>>,
    ) -> Result<(), Abandoned> {
        self.send(RETRY.into()).await?;
        // Nothing about another tenant's operation is sent, not even that its row was deleted.
        let mut is_theirs = self.tenants.only().is_none() || first.is_some();
        if let Some(row) = first
            && self.send_row(&row).await?
        {
            return Ok(());
        }
        loop {
            let seen = following.seen.borrow_and_update().clone();
            match seen {
                Seen::Nothing => {}
                // The stream began before the row existed. For this client the row still does not
                // exist.
                Seen::Row(row) if !self.tenants.include(&row.created.tenant) => {}
                Seen::Gone if !is_theirs => {}
                Seen::Gone => return Ok(()),
                Seen::Row(row) => {
                    is_theirs = true;
                    if self.send_row(&row).await? {
                        return Ok(());
                    }
                }
            }
            tokio::select! {
                changed = following.seen.changed() => changed.map_err(|_| Abandoned)?,
                () = tokio::time::sleep(self.heartbeat) => {
                    self.send(": keep-alive\n\n".into()).await?;
                }
                () = self.pieces.closed() => return Err(Abandoned),
                // The client reconnects, as EventSource does.
                () = following.permit.revoked() => return Ok(()),
            }
        }
    }

    /// Sends the changes of a row. Returns whether the operation has ended.
    async fn send_row(&mut self, row: &OperationRow) -> Result<bool, Abandoned> {
        if self
            .token
            .is_some_and(|token| !token.is_of(row.created.request_hash))
        {
            self.send(cursor::rejected(row.id)).await?;
            return Ok(true);
        }
        for event in self.cursor.events(row) {
            self.send(event).await?;
        }
        Ok(row.state.state.is_final())
    }

    async fn send(&self, piece: Bytes) -> Result<(), Abandoned> {
        self.pieces.send(piece).await.map_err(|_| Abandoned)
    }
}
