//! The load generator: every request has an intended time, and is sent then or as soon as a
//! connection is free.
//!
//! What must hold: no intended time depends on an answer, and latencies count from the intended
//! time. A delay of the generator therefore shows in the figures.

pub mod client;
pub mod endpoint;
mod follow_ups;
pub mod garbage;
mod http;
mod pace;
mod topic;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;
use waybill_engine::OperationId;
use waybill_kafka::KafkaSettings;
use waybill_messages::Topics;

use self::endpoint::Endpoint;
use self::follow_ups::FollowUps;
use self::garbage::Garbage;
use self::pace::Pace;
use self::topic::Topic;
use crate::results::RunResults;
use crate::scenario::draw::Deck;
use crate::scenario::kind::{Drawn, Kind};
use crate::scenario::schedule::Schedule;
use crate::scenario::{Scenario, Transport};

/// The maximum time a batch gathers. Latencies count from each request's intended time, so at low
/// rates a batch has fewer requests.
const GATHER_MAX: Duration = Duration::from_millis(20);

/// The state that all senders share.
struct Load {
    began: Instant,
    /// No request is sent after this time.
    until: Instant,
    schedule: Schedule,
    next: Cell<u64>,
    pace: Pace,
    source: Rc<Source>,
    follow_ups: UnboundedSender<(OperationId, Drawn)>,
}

/// The source of requests, and their results.
struct Source {
    http: Endpoint,
    deck: Deck,
    /// Distinguishes the IDs of this run from those of others.
    run: String,
    results: Arc<RunResults>,
}

/// The destination of requests.
pub struct Target<'a> {
    /// The API.
    pub http: &'a Endpoint,
    /// The brokers.
    pub kafka: &'a KafkaSettings,
    /// Waybill's topics.
    pub topics: &'a Topics,
}

/// Sends all requests of a scenario, the first one at `began`, and waits for their answers. Sends
/// none after `until`.
///
/// # Errors
///
/// If no request can be sent at all.
pub async fn send(
    scenario: &Scenario,
    target: &Target<'_>,
    results: &Arc<RunResults>,
    garbage: Option<Garbage>,
    (began, until): (Instant, Instant),
) -> anyhow::Result<()> {
    let topic = match scenario.transport {
        Transport::Topic => Some(Topic::open(target.kafka, target.topics).await?),
        Transport::Single | Transport::Http2 | Transport::Batch => None,
    };
    let (follow_ups, asked) = unbounded_channel();
    let source = Rc::new(Source {
        http: target.http.clone(),
        deck: scenario.deck(),
        run: format!("load-{}", uuid::Uuid::new_v4().simple()),
        results: results.clone(),
    });
    let load = Rc::new(Load {
        began,
        until,
        schedule: scenario.schedule(),
        next: Cell::new(0),
        pace: Pace::start()?,
        source: source.clone(),
        follow_ups,
    });
    let local = LocalSet::new();
    local.spawn_local(FollowUps::new(source, asked).serve());
    if let Some(garbage) = garbage {
        local.spawn_local(garbage.send_all(began));
    }
    match topic {
        Some(topic) => drop(local.spawn_local(topic.send_all(load.clone()))),
        None => http::spawn(scenario, &load, &local),
    }
    // Lets the sender of cancels and repeats end once no request can follow.
    drop(load);
    local.await;
    Ok(())
}

impl Load {
    /// Takes the next requests: at most `size`, and only those whose intended times follow soon
    /// after the first. Returns the first one's index, their number, and the last one's intended
    /// time.
    fn claim(&self, size: u64) -> Option<(u64, u64, Instant)> {
        let index = self.next.get();
        let left = self.schedule.count() - index;
        if left == 0 {
            return None;
        }
        if Instant::now() >= self.until {
            self.next.set(self.schedule.count());
            self.source.results.unsent(left);
            return None;
        }
        let size = self.schedule.within(GATHER_MAX, index, size.min(left));
        self.next.set(index + size);
        Some((index, size, self.intended(index + size - 1).0))
    }

    /// The intended time and the phase of a request.
    fn intended(&self, index: u64) -> (Instant, usize) {
        let (after, phase) = self.schedule.at(index);
        (self.began + after, phase)
    }

    /// The request with this index.
    fn draw(&self, index: u64) -> Drawn {
        self.source.deck.draw(index, self.intended(index).1)
    }

    /// Records that a request was accepted `at` this time.
    fn accepted(&self, id: OperationId, drawn: Drawn, at: Instant) {
        let intended = self.intended(drawn.index).0;
        self.source.results.accepted(id, drawn, intended, at);
        match drawn.kind {
            // The receiver is gone if the run was cut short.
            Kind::Cancelled | Kind::Repeated => drop(self.follow_ups.send((id, drawn))),
            Kind::Malformed => {
                let what = format!("{id}: a malformed request was accepted");
                self.source.results.wrong_answer(what);
            }
            Kind::Drone | Kind::Remote | Kind::HighPriority | Kind::Suspended => {}
        }
    }

    /// An answer without an ID counts as no answer, because the operation cannot be followed.
    fn answered(&self, id: Option<&str>, drawn: Drawn, at: Instant) {
        match id.and_then(|id| id.parse().ok()) {
            Some(id) => self.accepted(id, drawn, at),
            None => self.refused(drawn, 0, "an answer without an id"),
        }
    }

    /// Records a request that was not accepted. Status 0 means no answer. `message` is the answer,
    /// or why there is none.
    fn refused(&self, drawn: Drawn, status: u16, message: &str) {
        self.source.results.refused(drawn, status, message);
    }
}

impl Source {
    /// The name of a request's tenant.
    fn tenant(&self, drawn: Drawn) -> Option<&str> {
        drawn
            .tenant
            .map(|tenant| self.deck.tenants()[usize::from(tenant)].as_str())
    }
}
