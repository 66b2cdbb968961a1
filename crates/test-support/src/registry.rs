//! A schema registry in memory, for tests. It has the part of the Confluent REST API that Waybill
//! uses, with its paths, bodies and error codes, and checks backward compatibility. A test can make
//! it unavailable and read its requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use apache_avro::Schema;
use apache_avro::schema_compatibility::SchemaCompatibility;
use axum::extract::{Path, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

/// The first ID. A test cannot guess it by counting from 1.
const FIRST_ID: u32 = 4_711;

/// A running registry. Clones share it.
#[derive(Clone)]
pub struct Stub {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Each schema once. Its ID is its place plus [`FIRST_ID`].
    schemas: Vec<Stored>,
    /// The IDs of each subject's versions.
    subjects: BTreeMap<String, Vec<u32>>,
    /// A fixed answer to every request.
    instead: Option<(StatusCode, &'static str)>,
    asked: Vec<String>,
    authorization: Option<String>,
}

#[derive(Clone, PartialEq)]
struct Stored {
    schema: String,
    schema_type: String,
}

type Shares = State<Arc<Mutex<Shared>>>;

impl Stub {
    /// Listens on a free local port.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let app = Router::new()
            .route("/schemas/ids/{id}", get(schema))
            .route("/subjects", get(subjects))
            .route("/subjects/{subject}", post(look_up))
            .route("/subjects/{subject}/versions", post(register))
            .route(
                "/compatibility/subjects/{subject}/versions/latest",
                post(compatible),
            )
            .layer(middleware::from_fn_with_state(shared.clone(), remember))
            .with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, shared }
    }

    /// The base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers every request in this way until [`Stub::is_back`].
    pub fn answers(&self, status: StatusCode, body: &'static str) {
        self.shared().instead = Some((status, body));
    }

    /// Becomes unavailable, as behind a proxy that reports it.
    pub fn goes_away(&self) {
        self.answers(StatusCode::SERVICE_UNAVAILABLE, "");
    }

    /// Answers normally again.
    pub fn is_back(&self) {
        self.shared().instead = None;
    }

    /// Stores a schema of any type, without a subject. Returns its id.
    pub fn store(&self, schema: &str, schema_type: &str) -> u32 {
        self.shared().store(schema, schema_type)
    }

    /// Adds a version to a subject without a compatibility check.
    pub fn give(&self, subject: &str, schema: &str) -> u32 {
        let mut shared = self.shared();
        let id = shared.store(schema, "AVRO");
        let versions = shared.subjects.entry(subject.to_owned()).or_default();
        versions.push(id);
        id
    }

    /// The IDs of a subject's versions.
    pub fn versions(&self, subject: &str) -> Vec<u32> {
        let shared = self.shared();
        shared.subjects.get(subject).cloned().unwrap_or_default()
    }

    /// The requests so far, as method and path.
    pub fn asked(&self) -> Vec<String> {
        self.shared().asked.clone()
    }

    /// The `Authorization` header of the last request.
    pub fn authorization(&self) -> Option<String> {
        self.shared().authorization.clone()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }
}

impl Shared {
    fn store(&mut self, schema: &str, schema_type: &str) -> u32 {
        let stored = Stored {
            schema: schema.to_owned(),
            schema_type: schema_type.to_owned(),
        };
        let place = self.schemas.iter().position(|known| *known == stored);
        let place = place.unwrap_or_else(|| {
            self.schemas.push(stored);
            self.schemas.len() - 1
        });
        FIRST_ID + u32::try_from(place).unwrap()
    }

    fn stored(&self, id: u32) -> Option<&Stored> {
        self.schemas.get(id.checked_sub(FIRST_ID)? as usize)
    }

    /// The error if a schema cannot read data of the subject's newest version.
    fn conflict(&self, subject: &str, schema: &str) -> Option<String> {
        let newest = self.subjects.get(subject)?.last()?;
        let writer = Schema::parse_str(&self.stored(*newest)?.schema).unwrap();
        let reader = Schema::parse_str(schema).unwrap();
        let verdict = SchemaCompatibility::can_read(&writer, &reader);
        verdict.err().map(|error| error.to_string())
    }
}

async fn remember(State(shared): Shares, request: Request, next: Next) -> Response {
    let instead = {
        let mut shared = shared.lock().unwrap();
        let asked = format!("{} {}", request.method(), request.uri().path());
        shared.asked.push(asked);
        let authorization = request.headers().get(AUTHORIZATION);
        shared.authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
        shared.instead
    };
    match instead {
        Some(answer) => answer.into_response(),
        None => next.run(request).await,
    }
}

fn failed(status: StatusCode, error_code: u32, message: impl Into<String>) -> Response {
    let body = json!({"error_code": error_code, "message": message.into()});
    (status, Json(body)).into_response()
}

fn not_found(error_code: u32, message: &str) -> Response {
    failed(StatusCode::NOT_FOUND, error_code, message)
}

/// The schema in a request's body.
fn submitted(headers: &HeaderMap, body: &Value) -> String {
    assert_eq!(
        headers[CONTENT_TYPE],
        "application/vnd.schemaregistry.v1+json"
    );
    body["schema"].as_str().unwrap().to_owned()
}

async fn schema(State(shared): Shares, Path(id): Path<u32>) -> Response {
    let shared = shared.lock().unwrap();
    match shared.stored(id) {
        None => not_found(40_403, "Schema not found"),
        // The type is omitted for Avro schemas.
        Some(Stored {
            schema,
            schema_type,
        }) if schema_type == "AVRO" => Json(json!({ "schema": schema })).into_response(),
        Some(stored) => {
            Json(json!({"schema": stored.schema, "schemaType": stored.schema_type})).into_response()
        }
    }
}

async fn subjects(State(shared): Shares) -> Response {
    let shared = shared.lock().unwrap();
    Json(shared.subjects.keys().cloned().collect::<Vec<_>>()).into_response()
}

async fn look_up(
    State(shared): Shares,
    Path(subject): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let schema = submitted(&headers, &body);
    let shared = shared.lock().unwrap();
    let Some(versions) = shared.subjects.get(&subject) else {
        return not_found(40_401, "Subject not found.");
    };
    let found = versions
        .iter()
        .position(|id| shared.stored(*id).unwrap().schema == schema);
    match found {
        None => not_found(40_403, "Schema not found"),
        Some(place) => {
            let (id, version) = (versions[place], place + 1);
            let found = json!({"subject": subject, "id": id, "version": version, "schema": schema});
            Json(found).into_response()
        }
    }
}

async fn register(
    State(shared): Shares,
    Path(subject): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let schema = submitted(&headers, &body);
    let mut shared = shared.lock().unwrap();
    let id = shared.store(&schema, "AVRO");
    let versions = shared.subjects.get(&subject).cloned().unwrap_or_default();
    if !versions.contains(&id) {
        if let Some(reason) = shared.conflict(&subject, &schema) {
            let message =
                format!("Schema being registered is incompatible with an earlier schema: {reason}");
            return failed(StatusCode::CONFLICT, 409, message);
        }
        shared.subjects.entry(subject).or_default().push(id);
    }
    Json(json!({ "id": id })).into_response()
}

async fn compatible(
    State(shared): Shares,
    Path(subject): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let schema = submitted(&headers, &body);
    let shared = shared.lock().unwrap();
    if !shared.subjects.contains_key(&subject) {
        return not_found(40_401, "Subject not found.");
    }
    let messages: Vec<String> = shared.conflict(&subject, &schema).into_iter().collect();
    Json(json!({"is_compatible": messages.is_empty(), "messages": messages})).into_response()
}
