//! The generator: every request has an intended time, and leaves then or as soon after it as a
//! connection is free.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use hyper::StatusCode;
use serde::Deserialize;
use tokio::task::LocalSet;
use waybill_engine::OperationId;
use waybill_messages::Topics;

use crate::client::{Client, Http2};
use crate::completion::Completions;
use crate::delivery::Delivery;
use crate::topic::Topic;
use crate::{Arguments, Transport};

/// What became of the requests.
pub struct Run {
    /// Requests that were answered 202.
    pub accepted: usize,
    /// Other answers by status; 0 where none came that could be read.
    pub refused: BTreeMap<u16, usize>,
    /// From the intended time to the answer, in microseconds, of accepted requests.
    pub acceptance_us: Histogram<u64>,
    /// The first intended time.
    pub began: Instant,
    /// From then to the last answer.
    pub elapsed: Duration,
}

/// How many requests are under way on an HTTP/2 connection at most.
const STREAMS_PER_CONNECTION: usize = 100;

/// What all who send share.
pub struct Shared {
    began: Instant,
    rate: f64,
    count: usize,
    next: Cell<usize>,
    run: RefCell<Run>,
    completions: Completions,
}

/// Sends all requests.
pub async fn run(
    arguments: &Arguments,
    topics: &Topics,
    completions: &Completions,
) -> anyhow::Result<Run> {
    let topic = match arguments.transport {
        Transport::Topic => Some(Topic::open(&arguments.brokers, topics).await?),
        Transport::Single | Transport::Http2 | Transport::Batch => None,
    };
    let began = Instant::now() + Duration::from_millis(100);
    let shared = Rc::new(Shared {
        began,
        rate: arguments.rate,
        count: arguments.count,
        next: Cell::new(0),
        run: RefCell::new(Run {
            accepted: 0,
            refused: BTreeMap::new(),
            acceptance_us: Histogram::new(3)?,
            began,
            elapsed: Duration::ZERO,
        }),
        completions: completions.clone(),
    });
    let local = LocalSet::new();
    if let Some(topic) = topic {
        local.spawn_local(topic.send_all(shared.clone()));
    } else {
        for _ in 0..arguments.connections {
            spawn_workers(arguments, &shared, &local);
        }
    }
    local.await;
    let shared = Rc::into_inner(shared).ok_or_else(|| anyhow::anyhow!("a worker is left"))?;
    let mut run = shared.run.into_inner();
    run.elapsed = began.elapsed();
    Ok(run)
}

/// Those who send on one connection.
fn spawn_workers(arguments: &Arguments, shared: &Rc<Shared>, local: &LocalSet) {
    let worker = |client| Worker {
        client,
        shared: shared.clone(),
    };
    let own = || worker(Client::new(arguments.http));
    match arguments.transport {
        Transport::Single => drop(local.spawn_local(own().singles())),
        Transport::Batch => drop(local.spawn_local(own().batches(arguments.batch))),
        Transport::Http2 => {
            let connection = Http2::default();
            for _ in 0..STREAMS_PER_CONNECTION {
                let client = Client::sharing(arguments.http, connection.clone());
                local.spawn_local(worker(client).singles());
            }
        }
        Transport::Topic => {}
    }
}

struct Worker {
    client: Client,
    shared: Rc<Shared>,
}

#[derive(Deserialize)]
struct Accepted<'a> {
    #[serde(borrow)]
    id: Option<std::borrow::Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Line<'a> {
    status: u16,
    #[serde(borrow)]
    id: Option<std::borrow::Cow<'a, str>>,
}

impl Worker {
    async fn singles(mut self) {
        while let Some((index, intended)) = self.shared.claim(1) {
            tokio::time::sleep_until(intended.into()).await;
            let body = Bytes::from(Delivery::new(index).body());
            let answer = self
                .client
                .post("/api/deliveryrequests", "application/json", body)
                .await;
            match answer {
                Ok((StatusCode::ACCEPTED, body)) => {
                    let accepted: Option<Accepted<'_>> = serde_json::from_slice(&body).ok();
                    let id = accepted.and_then(|accepted| accepted.id);
                    self.shared.answered(id.as_deref(), index);
                }
                Ok((status, _)) => self.shared.refused(status.as_u16()),
                Err(_) => self.shared.refused(0),
            }
        }
    }

    async fn batches(mut self, size: usize) {
        while let Some((index, _)) = self.shared.claim(size) {
            // A batch leaves when its last request is meant to; the earlier ones wait for it.
            let last = (index + size).min(self.shared.count) - 1;
            tokio::time::sleep_until(self.shared.intended(last).into()).await;
            let mut body = String::new();
            for index in index..=last {
                body.push_str(r#"{"workflow":"drone-delivery","input":"#);
                body.push_str(&Delivery::new(index).body());
                body.push_str("}\n");
            }
            let answer = self
                .client
                .post(
                    "/v1/operations:batch",
                    "application/x-ndjson",
                    Bytes::from(body),
                )
                .await;
            match answer {
                Ok((StatusCode::OK, body)) => {
                    let mut answered = 0;
                    let lines = body
                        .split(|byte| *byte == b'\n')
                        .filter(|line| !line.is_empty());
                    for (offset, line) in lines.enumerate() {
                        answered += 1;
                        match serde_json::from_slice::<Line<'_>>(line) {
                            Ok(line) if line.status == 202 => {
                                self.shared.answered(line.id.as_deref(), index + offset);
                            }
                            Ok(line) => self.shared.refused(line.status),
                            Err(_) => self.shared.refused(0),
                        }
                    }
                    (answered..=last - index).for_each(|_| self.shared.refused(0));
                }
                Ok((status, _)) => {
                    (index..=last).for_each(|_| self.shared.refused(status.as_u16()))
                }
                Err(_) => (index..=last).for_each(|_| self.shared.refused(0)),
            }
        }
    }
}

impl Shared {
    /// The next request to send, and when.
    pub fn claim(&self, size: usize) -> Option<(usize, Instant)> {
        let index = self.next.get();
        if index >= self.count {
            return None;
        }
        self.next.set(index + size);
        Some((index, self.intended(index)))
    }

    fn intended(&self, index: usize) -> Instant {
        self.began + Duration::from_secs_f64(index as f64 / self.rate)
    }

    /// An answer without an id counts as none: what became of the delivery could not be followed.
    fn answered(&self, id: Option<&str>, index: usize) {
        match id.and_then(|id| id.parse().ok()) {
            Some(id) => self.accepted(id, index, Instant::now()),
            None => self.refused(0),
        }
    }

    /// A request was accepted `at` this time.
    pub fn accepted(&self, id: OperationId, index: usize, at: Instant) {
        let intended = self.intended(index);
        let mut run = self.run.borrow_mut();
        run.accepted += 1;
        let micros = at.saturating_duration_since(intended).as_micros();
        record(
            &mut run.acceptance_us,
            u64::try_from(micros).unwrap_or(u64::MAX),
        );
        drop(run);
        self.completions
            .accepted(id, Delivery::new(index), intended);
    }

    /// A request was answered otherwise; 0 stands for no answer.
    pub fn refused(&self, status: u16) {
        let mut run = self.run.borrow_mut();
        *run.refused.entry(status).or_default() += 1;
    }
}

/// Adds a value; the histogram grows with it, without a bound that a time could reach.
pub fn record(histogram: &mut Histogram<u64>, micros: u64) {
    histogram
        .record(micros.max(1))
        .expect("a growing histogram takes every time");
}
