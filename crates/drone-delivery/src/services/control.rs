//! Control requests of people and tests: faults and the ledger.

use std::borrow::Cow;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use waybill_http::ArrivingBody;

use super::answer::{Answer, Problem, json, json_text, ndjson, read_body};
use super::ledger::{Reader, is_of_effect, line_start};
use super::{Service, Site};

/// The maximum number of pieces of the ledger that wait for a slow client.
const PIECES_MAX: usize = 4;

/// The maximum number of operations on a page of `GET /ledger/operations`.
pub const PAGE_OPERATIONS_MAX: usize = 10_000;

/// The default number of operations on a page.
const PAGE_OPERATIONS: usize = 1_000;

/// Answers requests to all paths that are not a service's.
///
/// # Errors
///
/// The problem of a wrong request.
pub(super) async fn answer(
    site: &Site,
    head: &Parts,
    body: ArrivingBody,
) -> Result<Answer, Problem> {
    let path = head.uri.path();
    match path {
        "/ledger" | "/ledger/summary" | "/ledger/operations" | "/faults"
            if head.method != Method::GET =>
        {
            Err(Problem::method_not_allowed("GET"))
        }
        "/ledger" => ledger(site, head.uri.query().unwrap_or_default()).await,
        "/ledger/operations" => operations(site, head.uri.query().unwrap_or_default()),
        "/ledger/summary" => Ok(json(StatusCode::OK, &site.ledger.summary())),
        "/faults" => Ok(json(StatusCode::OK, &site.faults.all())),
        _ => match path.strip_prefix("/faults/").map(Service::named) {
            Some(Some(service)) => faults(site, service, &head.method, body).await,
            Some(None) => Err(Problem::new(
                StatusCode::NOT_FOUND,
                "service-unknown",
                format!(
                    "the services are {}",
                    Service::ALL.map(Service::as_str).join(", ")
                ),
            )),
            None => Err(Problem::not_found(path)),
        },
    }
}

async fn faults(
    site: &Site,
    service: Service,
    method: &Method,
    body: ArrivingBody,
) -> Result<Answer, Problem> {
    let faults = match *method {
        Method::GET => *site.faults.all().of(service),
        Method::DELETE => site.faults.reset(service),
        Method::PUT => {
            let change = object(&read_body(body).await?)?;
            site.faults.change(service, &change).map_err(|errors| {
                Problem::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "faults-invalid",
                    "the faults are invalid; nothing was changed",
                )
                .with_errors(errors)
            })?
        }
        _ => return Err(Problem::method_not_allowed("GET, PUT, DELETE")),
    };
    Ok(json(StatusCode::OK, &faults))
}

fn object(body: &[u8]) -> Result<Map<String, Value>, Problem> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "not-an-object",
            "the body must be a JSON object such as {\"errorRate\": 0.1}",
        )),
        Err(error) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "not-json",
            format!("the body is not JSON: {error}"),
        )),
    }
}

/// The parameters of `GET /ledger`.
#[derive(Default)]
struct LedgerQuery<'a> {
    operation: Option<Cow<'a, str>>,
    /// Include tombstones, and forward actions that were refused after their undo.
    tombstones: bool,
}

impl<'a> LedgerQuery<'a> {
    /// Parses the query, or returns the unknown parameter.
    fn parse(query: &'a str) -> Result<Self, &'a str> {
        let mut parsed = Self::default();
        for pair in pairs(query) {
            match pair.split_once('=') {
                Some(("operation", id)) => parsed.operation = Some(decoded(id).ok_or(pair)?),
                Some(("tombstones", "true")) => parsed.tombstones = true,
                Some(("tombstones", "false")) => parsed.tombstones = false,
                _ => return Err(pair),
            }
        }
        Ok(parsed)
    }
}

fn pairs(query: &str) -> impl Iterator<Item = &str> {
    query.split('&').filter(|pair| !pair.is_empty())
}

fn decoded(value: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(value).decode_utf8().ok()
}

fn query_unknown(pair: &str, known: &str) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "query-unknown",
        format!("`{pair}` is unknown; use {known}"),
    )
}

async fn ledger(site: &Site, query: &str) -> Result<Answer, Problem> {
    let query = LedgerQuery::parse(query)
        .map_err(|pair| query_unknown(pair, "operation=ID, tombstones=true or nothing"))?;
    let tombstones = query.tombstones;
    let Some(operation) = query.operation else {
        let mut reader = site.ledger.reader();
        return Ok(stream(move || {
            let lines = reader.next_lines()?;
            Ok(lines.map(|lines| {
                if tombstones {
                    lines.into()
                } else {
                    without_tombstones(&lines)
                }
            }))
        }));
    };
    let reader = site.ledger.reader_of(&operation);
    let start = line_start(&operation);
    let array = tokio::task::spawn_blocking(move || array(reader, &start, tombstones))
        .await
        .map_err(|error| unreadable(&error))?
        .map_err(|error| unreadable(&error))?;
    Ok(json_text(StatusCode::OK, array))
}

fn unreadable(error: &dyn std::error::Error) -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "ledger-unreadable",
        format!("cannot read the ledger: {error}"),
    )
}

/// The lines that begin with `start`, as a JSON array.
fn array(mut reader: Reader, start: &str, tombstones: bool) -> io::Result<Vec<u8>> {
    let mut array = vec![b'['];
    while let Some(lines) = reader.next_lines()? {
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if line.starts_with(start.as_bytes()) && (tombstones || is_of_effect(line)) {
                if array.len() > 1 {
                    array.push(b',');
                }
                array.extend_from_slice(line.trim_ascii_end());
            }
        }
    }
    array.push(b']');
    Ok(array)
}

/// The parameters of `GET /ledger/operations`.
struct OperationsQuery<'a> {
    after: Option<Cow<'a, str>>,
    limit: usize,
}

impl<'a> OperationsQuery<'a> {
    fn parse(query: &'a str) -> Result<Self, Problem> {
        let mut parsed = Self {
            after: None,
            limit: PAGE_OPERATIONS,
        };
        for pair in pairs(query) {
            let unknown = || query_unknown(pair, "after=ID, limit=N or nothing");
            match pair.split_once('=') {
                Some(("after", id)) => parsed.after = Some(decoded(id).ok_or_else(unknown)?),
                Some(("limit", limit)) => {
                    parsed.limit = match limit.parse() {
                        Ok(limit @ 1..=PAGE_OPERATIONS_MAX) => limit,
                        _ => {
                            return Err(Problem::new(
                                StatusCode::BAD_REQUEST,
                                "limit-invalid",
                                format!("limit must be from 1 to {PAGE_OPERATIONS_MAX}"),
                            ));
                        }
                    };
                }
                _ => return Err(unknown()),
            }
        }
        Ok(parsed)
    }
}

/// A page has fewer than `limit` lines only at the end. Operations are ordered by their first
/// occurrence, so that new ones appear on later pages and none is missed.
fn operations(site: &Site, query: &str) -> Result<Answer, Problem> {
    let OperationsQuery { after, limit } = OperationsQuery::parse(query)?;
    let operations = site.ledger.operations(after.as_deref(), limit);
    let mut operations = operations.ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "operation-unknown",
            "the ledger does not contain the operation in `after`",
        )
    })?;
    Ok(stream(move || {
        Ok(operations.next_lines()?.map(Bytes::from))
    }))
}

/// Sends lines in pieces. The reading thread waits for the client, and ends when the client
/// disconnects.
fn stream(mut next: impl FnMut() -> io::Result<Option<Bytes>> + Send + 'static) -> Answer {
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        // Without an error, the lines until a panic would be taken for all of them.
        let mut next = || {
            catch_unwind(AssertUnwindSafe(&mut next))
                .unwrap_or_else(|_| Err(io::Error::other("reading the ledger panicked")))
        };
        while let Some(piece) = next().transpose() {
            let failed = piece.is_err();
            if sender.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    });
    ndjson(receiver)
}

fn without_tombstones(lines: &[u8]) -> Bytes {
    lines
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| is_of_effect(line))
        .flatten()
        .copied()
        .collect()
}
