//! The admin listener: health, metrics and control of a running process.
//!
//! | request | answer |
//! |---|---|
//! | `GET /livez` | 200 while every loop makes progress, otherwise 503 with the stalled ones |
//! | `GET /readyz` | 200 when everything has started and every lease is held, otherwise 503 with what is missing. Damage that the process works around follows as `warning:` lines |
//! | `GET /metrics` | the metrics in Prometheus' text format |
//! | `GET /schedulers` | the shards that this process drives, and the progress of each |
//! | `PUT /schedulers/{shard}` | `{"running": false}` stops a shard gracefully, `true` starts it; if each partition has one shard, the shard has the partition's number |
//! | `GET /shards` | how many shards a partition has, and the progress of each |
//! | `PUT /shards` | `{"perPartition": 2}` changes the number of shards |
//! | `PUT /partitions` | `{"partitions": 8}` begins to add partitions |
//! | `GET /partitions` | the progress of that change |
//! | `GET /process` | the role, the workflows, the topic prefix and the data directory of this process |
//! | `POST /backup` | a backup of a process with an embedded broker and store, as of now |
//! | `GET /log` | which log lines are written |
//! | `PUT /log` | `{"filter": "info,waybill=debug"}` changes that from now on |
//!
//! Errors have the same format as those of the API: problem details (RFC 9457), whose `type` refers
//! to a page of this listener.
//!
//! With authentication, probes and metrics stay open. Reading needs the scope `read` or `admin`,
//! changes need `admin`, and both need access to all tenants (`guard`).
//!
//! What must hold: the listener starts before every role and stops after all of them, so that a
//! start or drain that hangs can be diagnosed. No answer waits for a role, except that of a `PUT`,
//! which waits until the partition has stopped or begun to start.

mod backup;
mod config;
mod guard;
mod log;
mod partitions;
mod process;
mod shards;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::Request;
use serde_json::Value;
use tokio::net::TcpListener;
use tower::ServiceExt as _;
use waybill_engine::ShardId;
use waybill_http::auth::Auth;
use waybill_http::json;
use waybill_http::payload::{Patience, read_whole};
use waybill_http::problem::{self, FieldProblem, Kind, Problem};
use waybill_http::{
    ArrivingBody, GateLimits, Hosts, REQUESTS_PER_CONNECTION_MAX, Refusal, RequestBody, Server,
    ServerLimits, Service, Tls,
};
use waybill_scheduler::control::{ControlError, SchedulerControl, SchedulerView};
use waybill_telemetry::health::{Liveness, Readiness};
use waybill_topology::repartition::Repartition;
use waybill_topology::shards::show::Shards;

use self::guard::Denials;

pub use config::AdminConfig;
pub use guard::METRICS;
pub use process::{ProcessView, WorkflowId};

use crate::backup::Backups;
use crate::shutdown::{Running, Stage};
use crate::telemetry::{Telemetry, announce};

/// Maximum nesting depth of a request body; valid ones are `{"running": false}` and
/// `{"perPartition": 2}`.
const BODY_DEPTH_MAX: usize = 8;

/// How long a rendered text of all metrics is reused.
const METRICS_FRESH_FOR: Duration = Duration::from_millis(100);

/// The minimum time after which a request or response that makes no progress is aborted. Raised
/// above `admin.bodyTimeout`, so that the client gets a 408.
const STALL_TIMEOUT: Duration = Duration::from_secs(31);
/// How long a connection may be idle between requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// How long shutdown waits for open connections.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// The state of the admin listener. Clones share it.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The conditions for the process to be ready.
    pub readiness: Readiness,
    /// The loops that must keep making progress.
    pub liveness: Liveness,
    telemetry: Telemetry,
    metrics: Arc<Mutex<Option<(Instant, Bytes)>>>,
    auth: Auth,
    hosts: Hosts,
    denials: Denials,
    address: Arc<OnceLock<SocketAddr>>,
    started: Arc<OnceLock<()>>,
    schedulers: Arc<OnceLock<Arc<dyn SchedulerControl>>>,
    shards: Arc<OnceLock<Shards>>,
    repartition: Arc<OnceLock<Repartition>>,
    backups: Arc<OnceLock<Backups>>,
    process: Arc<OnceLock<ProcessView>>,
}

impl Admin {
    /// Creates a state without any conditions.
    #[must_use]
    pub fn new(telemetry: Telemetry, auth: Auth, hosts: Hosts) -> Self {
        Self {
            readiness: Readiness::default(),
            liveness: Liveness::default(),
            telemetry,
            metrics: Arc::default(),
            auth,
            hosts,
            denials: Denials::new(),
            address: Arc::default(),
            started: Arc::default(),
            schedulers: Arc::default(),
            shards: Arc::default(),
            repartition: Arc::default(),
            backups: Arc::default(),
            process: Arc::default(),
        }
    }

    /// The authentication of the listener.
    #[must_use]
    pub fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Marks start-up as complete: a component that is not connected by now is reported as absent.
    pub fn set_started(&self) {
        // A second call changes nothing.
        let _ = self.started.set(());
    }

    fn is_started(&self) -> bool {
        self.started.get().is_some()
    }

    /// The error for a component that is not connected: `absent` after start-up, "starting" before.
    fn not_connected(&self, absent: Problem) -> Problem {
        match self.is_started() {
            true => absent,
            false => starting(),
        }
    }

    /// The error if no scheduler is connected.
    fn no_scheduler(&self) -> Problem {
        let absent = Problem::new(Kind::NotFound, "This process has no scheduler.");
        self.not_connected(absent)
    }

    /// Connects the scheduler of this process. Only the first call counts; a process has one.
    pub fn set_schedulers(&self, control: Arc<dyn SchedulerControl>) {
        if self.schedulers.set(control).is_err() {
            tracing::warn!("the admin listener ignores a second scheduler");
        }
    }

    /// Connects the shards of the store. Only the first call counts.
    pub fn set_shards(&self, shards: Shards) {
        if self.shards.set(shards).is_err() {
            tracing::warn!("the admin listener ignores the shards of a second store");
        }
    }

    /// Connects the repartitioning. Only the first call counts.
    pub fn set_repartition(&self, repartition: Repartition) {
        if self.repartition.set(repartition).is_err() {
            tracing::warn!("the admin listener ignores the repartitioning of a second scheduler");
        }
    }

    /// Connects the backups. Only the first call counts.
    pub fn set_backups(&self, backups: Backups) {
        if self.backups.set(backups).is_err() {
            tracing::warn!("the admin listener ignores the backups of a second store");
        }
    }

    /// Sets what this process runs. Only the first call counts.
    pub fn set_process(&self, process: ProcessView) {
        // A process has one configuration.
        let _ = self.process.set(process);
    }

    /// The routes. They do not limit request bodies: the listener does.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/schedulers", get(list_schedulers))
            .route("/schedulers/{partition}", put(put_scheduler))
            .route("/shards", get(shards::show).put(shards::set))
            .route("/partitions", get(partitions::show).put(partitions::grow))
            .route("/process", get(process::show))
            .route("/backup", post(backup::make))
            .route("/log", get(log::show).put(log::set))
            .route("/problems/{kind}", get(show_problem))
            .fallback(nothing_here)
            .method_not_allowed_fallback(method_not_allowed)
            .layer(DefaultBodyLimit::disable())
            .layer(from_fn_with_state(self.clone(), guard::guard))
            .with_state(self.clone())
    }

    /// Binds the listener and serves until [`Stage::Admin`] stops, which is the last stage.
    ///
    /// The future is boxed, so that this crate compiles it and everything it spawns, rather than
    /// the crate that awaits it.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound.
    pub fn start<'a>(
        &'a self,
        config: &'a AdminConfig,
        tls: Tls,
        running: &'a Running,
    ) -> BoxFuture<'a, std::io::Result<()>> {
        Box::pin(self.started(config, tls, running))
    }

    async fn started(
        &self,
        config: &AdminConfig,
        tls: Tls,
        running: &Running,
    ) -> std::io::Result<()> {
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        // A second listener would show the same; the first address stays.
        let _ = self.address.set(address);
        let service = Arc::new(Routes {
            router: self.router(),
            body_bytes_max: config.body_bytes_max.as_usize(),
            body_timeout: config.body_timeout,
        });
        let limits = ServerLimits {
            connections_max: config.connections_max,
            connections_per_address_max: config.connections_per_address_max(),
            requests_per_connection_max: REQUESTS_PER_CONNECTION_MAX,
            requests_shared_max: config.requests_max,
            gate: GateLimits {
                head_bytes_max: config.header_bytes_max.as_usize(),
                headers_max: config.headers_max,
                head_timeout: config.header_read_timeout,
                stall_timeout: STALL_TIMEOUT.max(config.body_timeout + Duration::from_secs(1)),
                idle_timeout: IDLE_TIMEOUT,
            },
        };
        let server = Server::new("admin", listener, tls, service, limits);
        let telemetry = self.telemetry.clone();
        running.spawn(Stage::Admin, "telemetry", |stop| telemetry.keep_up(stop));
        running.spawn(Stage::Admin, "admin", |stop| async move {
            let served = server.run(stop.clone());
            let time_is_up = async {
                stop.cancelled().await;
                tokio::time::sleep(CLOSE_GRACE).await;
            };
            tokio::select! {
                () = served => {}
                () = time_is_up => {}
            }
            Ok(())
        });
        announce("admin", address);
        Ok(())
    }

    /// All metrics as text. Rendered at most once per [`METRICS_FRESH_FOR`]: rendering is
    /// expensive, and the endpoint needs no token.
    fn metrics(&self) -> Bytes {
        let mut last = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((made, text)) if made.elapsed() < METRICS_FRESH_FOR => text.clone(),
            _ => {
                let text = Bytes::from(self.telemetry.render());
                *last = Some((Instant::now(), text.clone()));
                text
            }
        }
    }

    /// The bound address; `None` before the listener starts.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.get().copied()
    }
}

/// The routes as a service of the HTTP server.
struct Routes {
    router: Router,
    body_bytes_max: usize,
    body_timeout: Duration,
}

impl Service for Routes {
    type Body = Body;
    type Unanswered = Infallible;

    async fn answer(
        self: Arc<Self>,
        request: Request<ArrivingBody>,
    ) -> Result<Response, Infallible> {
        if request.method().as_str() == Refusal::METHOD {
            return Ok(Problem::from(Refusal::of_path(request.uri().path())).into_response());
        }
        let patience = Patience {
            pause_max: self.body_timeout,
            whole_max: self.body_timeout,
        };
        let (head, body) = RequestBody::of(request).into_parts();
        let body = match read_whole(body, self.body_bytes_max, patience).await {
            Ok(body) => Body::from(body),
            Err(problem) => return Ok(problem.into_response()),
        };
        let router = self.router.clone();
        router.oneshot(Request::from_parts(head, body)).await
    }
}

fn starting() -> Problem {
    Problem::new(
        Kind::Starting,
        "Some roles of this process have not started yet.",
    )
}

async fn livez(State(admin): State<Admin>) -> Response {
    verdict("alive", "silent", admin.liveness.silent(), &[])
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let (missing, warnings) = (admin.readiness.missing(), admin.readiness.warnings());
    verdict("ready", "waiting for", missing, &warnings)
}

/// `200 good`, or 503 with one line per problem. One line per warning follows.
fn verdict(good: &str, bad: &str, problems: Vec<String>, warnings: &[String]) -> Response {
    let (status, mut body) = match problems.is_empty() {
        true => (StatusCode::OK, format!("{good}\n")),
        false => {
            let lines = problems.iter().map(|what| format!("{bad}: {what}\n"));
            (StatusCode::SERVICE_UNAVAILABLE, lines.collect())
        }
    };
    body.extend(
        warnings
            .iter()
            .map(|warning| format!("warning: {warning}\n")),
    );
    (status, body).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], admin.metrics()).into_response()
}

/// A process without a scheduler has an empty list.
async fn list_schedulers(State(admin): State<Admin>) -> Result<Json<Vec<SchedulerView>>, Problem> {
    match admin.schedulers.get() {
        Some(control) => Ok(Json(control.list())),
        None if admin.is_started() => Ok(Json(Vec::new())),
        None => Err(starting()),
    }
}

async fn put_scheduler(
    State(admin): State<Admin>,
    partition: Result<Path<u32>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SchedulerView>, Problem> {
    let Ok(Path(partition)) = partition else {
        return Err(Problem::new(
            Kind::NotFound,
            "The shard in the path must be a number, from 0.",
        ));
    };
    let shard = ShardId(partition);
    const RUNNING: &str = "running";
    let body = body.map_err(|rejection| unread(&rejection))?;
    let running = only_field(&body, RUNNING, Value::as_bool, "true or false")?;
    let not_here = || refused(&ControlError::NotHere(shard));
    let control = admin.schedulers.get();
    let control = control.ok_or_else(|| admin.not_connected(not_here()))?;
    let changed = control.set_running(shard, running).await;
    changed.map_err(|error| refused(&error))?;
    let view = control.list().into_iter().find(|view| view.shard == shard);
    Ok(Json(view.ok_or_else(not_here)?))
}

/// Reads a body that is an object with one field.
fn only_field<T>(
    body: &[u8],
    name: &str,
    read: impl Fn(&Value) -> Option<T>,
    wanted: &str,
) -> Result<T, Problem> {
    let value = json::parse(body, BODY_DEPTH_MAX)?;
    let wrong = |pointer: String, detail: String| FieldProblem::new(pointer, detail);
    let Value::Object(fields) = value else {
        let detail = format!("must be {{\"{name}\": …}}, where … is {wanted}");
        return Err(Problem::invalid(vec![wrong(String::new(), detail)]));
    };
    let found = fields.get(name).and_then(read);
    let mut errors = Vec::new();
    if found.is_none() {
        errors.push(wrong(format!("/{name}"), format!("must be {wanted}")));
    }
    for other in fields.keys().filter(|other| *other != name) {
        let mut pointer = String::new();
        json::push_segment(&mut pointer, other);
        errors.push(wrong(
            pointer,
            format!("is unknown; the only field is {name}"),
        ));
    }
    match found {
        Some(found) if errors.is_empty() => Ok(found),
        _ => Err(Problem::invalid(errors)),
    }
}

fn unread(_: &BytesRejection) -> Problem {
    Problem::new(Kind::IncompleteBody, "The body could not be read.")
}

/// The page that a problem's `type` refers to.
async fn show_problem(Path(name): Path<String>) -> Result<Html<String>, Problem> {
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    kind.map(|kind| Html(problem::page(kind)))
        .ok_or_else(|| Problem::new(Kind::NotFound, "This problem type does not exist."))
}

async fn nothing_here() -> Problem {
    let detail = "The admin port has /livez, /readyz, /metrics, /schedulers, /shards, /partitions, \
                  /backup and /log.";
    Problem::new(Kind::NotFound, detail)
}

/// The router adds `Allow`.
async fn method_not_allowed() -> Problem {
    let detail = "This path does not support the method; the Allow header lists those it supports.";
    Problem::new(Kind::MethodNotAllowed, detail)
}

/// The answer if a scheduler could not be started or stopped.
fn refused(error: &ControlError) -> Problem {
    let kind = match error {
        ControlError::NotHere(_) => Kind::PartitionNotHere,
        ControlError::ShuttingDown => Kind::ShuttingDown,
        ControlError::Failed { .. } => Kind::PartitionFailed,
    };
    let mut detail = error.to_string();
    detail.push('.');
    if let Some(first) = detail.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    Problem::new(kind, detail)
}

#[cfg(test)]
mod tests;
