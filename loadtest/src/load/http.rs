//! Requests over HTTP: single ones, many on one connection, and batches.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use tokio::task::LocalSet;
use waybill_telemetry::chain;

use super::client::{Client, Http2};
use super::{Load, Source};
use crate::scenario::kind::Drawn;
use crate::scenario::{Scenario, Transport};

/// The maximum number of concurrent requests on an HTTP/2 connection.
const STREAMS_PER_CONNECTION: usize = 100;
/// The initial capacity per request in a batch.
const REQUEST_BYTES: usize = 400;

/// Starts the senders on a scenario's connections.
pub(super) fn spawn(scenario: &Scenario, load: &Rc<Load>, local: &LocalSet) {
    let worker = |client| Worker {
        client,
        load: load.clone(),
    };
    for _ in 0..scenario.connections {
        match scenario.transport {
            Transport::Single => {
                local.spawn_local(worker(Client::new(load.source.http.clone())).singles());
            }
            Transport::Batch => {
                let size = scenario.batch as u64;
                local.spawn_local(worker(Client::new(load.source.http.clone())).batches(size));
            }
            Transport::Http2 => {
                let connection = Http2::default();
                for _ in 0..STREAMS_PER_CONNECTION {
                    let client = Client::sharing(load.source.http.clone(), connection.clone());
                    local.spawn_local(worker(client).singles());
                }
            }
            Transport::Topic => {}
        }
    }
}

struct Worker {
    client: Client,
    load: Rc<Load>,
}

/// The answer to an accepted request.
#[derive(Deserialize)]
struct Accepted<'a> {
    #[serde(borrow)]
    id: Option<std::borrow::Cow<'a, str>>,
}

/// A line of the answer to a batch.
#[derive(Deserialize)]
struct Line<'a> {
    status: u16,
    #[serde(borrow)]
    id: Option<std::borrow::Cow<'a, str>>,
}

impl Worker {
    async fn singles(mut self) {
        while let Some((index, _, intended)) = self.load.claim(1) {
            self.load.pace.until(intended).await;
            let drawn = self.load.draw(index);
            let (path, body) = single(&self.load.source, drawn);
            let answer = self.client.post(path, "application/json", body).await;
            match answer {
                Ok((StatusCode::ACCEPTED, body)) => {
                    let accepted: Option<Accepted<'_>> = serde_json::from_slice(&body).ok();
                    let id = accepted.and_then(|accepted| accepted.id);
                    self.load.answered(id.as_deref(), drawn, Instant::now());
                }
                Ok((status, body)) => {
                    let message = String::from_utf8_lossy(&body);
                    self.load.refused(drawn, status.as_u16(), &message);
                }
                Err(error) => self.load.refused(drawn, 0, &chain(error.as_ref())),
            }
        }
    }

    async fn batches(mut self, size: u64) {
        while let Some((first, count, last)) = self.load.claim(size) {
            // A batch is sent at the intended time of its last request; the earlier ones wait for
            // it.
            self.load.pace.until(last).await;
            let drawn: Vec<Drawn> = (first..first + count)
                .map(|index| self.load.draw(index))
                .collect();
            let source = &self.load.source;
            let mut body = Vec::with_capacity(drawn.len() * REQUEST_BYTES);
            for drawn in &drawn {
                drawn.write_operation(&source.run, source.tenant(*drawn), &mut body);
                body.push(b'\n');
            }
            let answer = self
                .client
                .post("/v1/operations:batch", "application/x-ndjson", body.into())
                .await;
            match answer {
                Ok((StatusCode::OK, body)) => self.read_lines(&drawn, &body),
                Ok((status, body)) => {
                    let message = String::from_utf8_lossy(&body);
                    for drawn in &drawn {
                        self.load.refused(*drawn, status.as_u16(), &message);
                    }
                }
                Err(error) => {
                    let message = chain(error.as_ref());
                    for drawn in &drawn {
                        self.load.refused(*drawn, 0, &message);
                    }
                }
            }
        }
    }

    fn read_lines(&self, drawn: &[Drawn], body: &[u8]) {
        let at = Instant::now();
        let mut lines = body
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        for drawn in drawn {
            let line = lines.next().unwrap_or_default();
            let message = || String::from_utf8_lossy(line);
            match serde_json::from_slice::<Line<'_>>(line) {
                Ok(line) if line.status == 202 => {
                    self.load.answered(line.id.as_deref(), *drawn, at);
                }
                Ok(line) => self.load.refused(*drawn, line.status, &message()),
                Err(_) => self.load.refused(*drawn, 0, &format!("{:?}", message())),
            }
        }
    }
}

/// The path and the body of a request. Without a tenant it uses the delivery path.
pub(super) fn single(source: &Source, drawn: Drawn) -> (&'static str, Bytes) {
    let mut body = Vec::with_capacity(REQUEST_BYTES);
    match source.tenant(drawn) {
        None if drawn.kind.is_good() => {
            drawn.write_input(&source.run, &mut body);
            ("/api/deliveryrequests", body.into())
        }
        tenant => {
            drawn.write_operation(&source.run, tenant, &mut body);
            ("/v1/operations", body.into())
        }
    }
}
