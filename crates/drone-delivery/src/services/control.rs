//! What people and judges ask beside the services: faults and the ledger.

use std::borrow::Cow;
use std::io;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::answer::{Answer, Problem, json, json_text, ndjson, read_body};
use super::ledger::{Reader, is_tombstone, line_start};
use super::{Service, Site};

/// How many pieces of the ledger may wait for a slow client.
const PIECES_MAX: usize = 4;

/// Answers what is no service's.
///
/// # Errors
///
/// Why there is nothing to answer.
pub(super) async fn answer(site: &Site, head: &Parts, body: Incoming) -> Result<Answer, Problem> {
    let path = head.uri.path();
    match path {
        "/ledger" | "/ledger/summary" | "/faults" if head.method != Method::GET => {
            Err(Problem::method_not_allowed("GET"))
        }
        "/ledger" => ledger(site, head.uri.query().unwrap_or_default()).await,
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
    body: Incoming,
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
                    "nothing was changed",
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

/// What `GET /ledger` is asked for.
#[derive(Default)]
struct LedgerQuery<'a> {
    operation: Option<Cow<'a, str>>,
    tombstones: bool,
}

impl<'a> LedgerQuery<'a> {
    /// Reads the query; what it does not know comes back.
    fn parse(query: &'a str) -> Result<Self, &'a str> {
        let mut parsed = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("operation", id)) => {
                    let id = percent_decode_str(id).decode_utf8().map_err(|_| pair)?;
                    parsed.operation = Some(id);
                }
                Some(("tombstones", "true")) => parsed.tombstones = true,
                Some(("tombstones", "false")) => parsed.tombstones = false,
                _ => return Err(pair),
            }
        }
        Ok(parsed)
    }
}

async fn ledger(site: &Site, query: &str) -> Result<Answer, Problem> {
    let query = LedgerQuery::parse(query).map_err(|pair| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "query-unknown",
            format!("`{pair}` is unknown; give operation=ID, tombstones=true or nothing"),
        )
    })?;
    let tombstones = query.tombstones;
    let Some(operation) = query.operation else {
        return Ok(whole(site.ledger.reader(), tombstones));
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
        format!("the ledger can't be read: {error}"),
    )
}

/// The lines that begin with `start`, as a JSON array.
fn array(mut reader: Reader, start: &str, tombstones: bool) -> io::Result<Vec<u8>> {
    let mut array = vec![b'['];
    while let Some(lines) = reader.next_lines()? {
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if line.starts_with(start.as_bytes()) && (tombstones || !is_tombstone(line)) {
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

/// The ledger as it is now, piece by piece. The thread that reads it waits for the client, and ends
/// when that goes away.
fn whole(mut reader: Reader, tombstones: bool) -> Answer {
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        loop {
            let piece = match reader.next_lines() {
                Ok(None) => return,
                Ok(Some(lines)) if tombstones => Ok(lines.into()),
                Ok(Some(lines)) => Ok(without_tombstones(&lines)),
                Err(error) => Err(error),
            };
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
        .filter(|line| !is_tombstone(line))
        .flatten()
        .copied()
        .collect()
}
