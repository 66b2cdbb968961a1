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

use crate::client::Client;
use crate::completion::Completions;
use crate::delivery::Delivery;
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

struct Shared {
    began: Instant,
    next: Cell<usize>,
    run: RefCell<Run>,
}

/// Sends all requests.
pub async fn run(arguments: &Arguments, completions: &Completions) -> anyhow::Result<Run> {
    let began = Instant::now() + Duration::from_millis(100);
    let shared = Rc::new(Shared {
        began,
        next: Cell::new(0),
        run: RefCell::new(Run {
            accepted: 0,
            refused: BTreeMap::new(),
            acceptance_us: Histogram::new(3)?,
            began,
            elapsed: Duration::ZERO,
        }),
    });
    let local = LocalSet::new();
    for _ in 0..arguments.connections {
        let worker = Worker {
            client: Client::new(arguments.http),
            shared: shared.clone(),
            completions: completions.clone(),
            rate: arguments.rate,
            count: arguments.count,
        };
        match arguments.transport {
            Transport::Single => local.spawn_local(worker.singles()),
            Transport::Batch => local.spawn_local(worker.batches(arguments.batch)),
        };
    }
    local.await;
    let shared = Rc::into_inner(shared).ok_or_else(|| anyhow::anyhow!("a worker is left"))?;
    let mut run = shared.run.into_inner();
    run.elapsed = began.elapsed();
    Ok(run)
}

struct Worker {
    client: Client,
    shared: Rc<Shared>,
    completions: Completions,
    rate: f64,
    count: usize,
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
        while let Some((index, intended)) = self.claim(1) {
            tokio::time::sleep_until(intended.into()).await;
            let body = Bytes::from(Delivery::new(index).body());
            let answer = self
                .client
                .post("/api/deliveryrequests", "application/json", body)
                .await;
            match answer {
                Ok((StatusCode::ACCEPTED, body)) => {
                    let accepted: Option<Accepted<'_>> = serde_json::from_slice(&body).ok();
                    self.accepted(accepted.and_then(|a| a.id).as_deref(), index, intended);
                }
                Ok((status, _)) => self.refused(status.as_u16()),
                Err(_) => self.refused(0),
            }
        }
    }

    async fn batches(mut self, size: usize) {
        while let Some((index, _)) = self.claim(size) {
            // A batch leaves when its last request is meant to; the earlier ones wait for it.
            let last = (index + size).min(self.count) - 1;
            tokio::time::sleep_until(self.intended(last).into()).await;
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
                                let index = index + offset;
                                self.accepted(line.id.as_deref(), index, self.intended(index));
                            }
                            Ok(line) => self.refused(line.status),
                            Err(_) => self.refused(0),
                        }
                    }
                    (answered..=last - index).for_each(|_| self.refused(0));
                }
                Ok((status, _)) => (index..=last).for_each(|_| self.refused(status.as_u16())),
                Err(_) => (index..=last).for_each(|_| self.refused(0)),
            }
        }
    }

    /// The next request to send, and when.
    fn claim(&self, size: usize) -> Option<(usize, Instant)> {
        let index = self.shared.next.get();
        if index >= self.count {
            return None;
        }
        self.shared.next.set(index + size);
        Some((index, self.intended(index)))
    }

    fn intended(&self, index: usize) -> Instant {
        self.shared.began + Duration::from_secs_f64(index as f64 / self.rate)
    }

    /// An answer without an id counts as none: what became of the delivery could not be followed.
    fn accepted(&self, id: Option<&str>, index: usize, intended: Instant) {
        let Some(id) = id.and_then(|id| id.parse().ok()) else {
            return self.refused(0);
        };
        let mut run = self.shared.run.borrow_mut();
        run.accepted += 1;
        let micros = u64::try_from(intended.elapsed().as_micros()).unwrap_or(u64::MAX);
        record(&mut run.acceptance_us, micros);
        drop(run);
        self.completions
            .accepted(id, Delivery::new(index), intended);
    }

    fn refused(&self, status: u16) {
        *self
            .shared
            .run
            .borrow_mut()
            .refused
            .entry(status)
            .or_default() += 1;
    }
}

/// Adds a value; the histogram grows with it, without a bound that a time could reach.
pub fn record(histogram: &mut Histogram<u64>, micros: u64) {
    histogram
        .record(micros.max(1))
        .expect("a growing histogram takes every time");
}
