//! Agents and their services, with faults: they try late, twice, in vain, in secret, or not at all.

use std::collections::BTreeMap;
use std::time::Duration;

use waybill_engine::{Outcome, StepError, StepReply, StepRequest, Timestamp};

use crate::rng::Rng;

#[derive(Debug, Default)]
pub struct Agents {
    /// Requests on their way to the services, and replies on their way back, by time.
    under_way: BTreeMap<(Timestamp, u64), Travelling>,
    count: u64,
    /// Every effect that was made, by idempotency key.
    pub effects: BTreeMap<String, u32>,
    /// With faults, or at their best.
    pub calm: bool,
}

#[derive(Debug)]
enum Travelling {
    Request(Box<StepRequest>),
    Reply(StepReply),
}

impl Agents {
    pub fn request(&mut self, request: StepRequest, now: Timestamp, rng: &mut Rng) {
        if !self.calm && rng.chance(3) {
            return;
        }
        if !self.calm && rng.chance(3) {
            let at = self.arrival(now, rng);
            self.travel(at, Travelling::Request(Box::new(request.clone())));
        }
        let at = self.arrival(now, rng);
        self.travel(at, Travelling::Request(Box::new(request)));
    }

    /// When something next arrives anywhere.
    pub fn next(&self) -> Option<Timestamp> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Lets everything arrive that does by `now`; gives back the replies.
    pub fn arrive(&mut self, now: Timestamp, rng: &mut Rng) -> Vec<StepReply> {
        let mut replies = Vec::new();
        while let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                Travelling::Reply(reply) => replies.push(reply),
                Travelling::Request(request) => self.perform(&request, now, rng),
            }
        }
        replies
    }

    fn perform(&mut self, request: &StepRequest, now: Timestamp, rng: &mut Rng) {
        if now > request.complete_by {
            return;
        }
        let error = |code: &str| StepError {
            code: code.to_owned(),
            message: String::new(),
        };
        let fault = if self.calm { 99 } else { rng.below(100) };
        let outcome = match fault {
            0..=9 => Outcome::Transient {
                error: error("busy"),
            },
            10 => Outcome::Permanent {
                error: error("refused"),
            },
            11..=14 => {
                if rng.chance(50) {
                    self.effect(request);
                }
                Outcome::Unknown {
                    error: error("connection-lost"),
                }
            }
            15..=20 => Outcome::NotAttempted {
                error: error("breaker-open"),
                retry_after_ms: u32::try_from(rng.below(2_000)).unwrap(),
            },
            21..=24 => {
                // Done, but the answer is lost.
                self.effect(request);
                return;
            }
            _ => {
                self.effect(request);
                Outcome::Success {
                    outputs: outputs(request),
                }
            }
        };
        let reply = StepReply {
            operation: request.operation,
            step: request.step.to_string(),
            attempt: request.attempt,
            epoch: request.epoch,
            outcome,
        };
        if !self.calm && rng.chance(8) {
            let at = self.arrival(now, rng);
            self.travel(at, Travelling::Reply(reply.clone()));
        }
        let at = self.arrival(now, rng);
        self.travel(at, Travelling::Reply(reply));
    }

    /// A service that honours the key makes one effect, however often it is asked.
    fn effect(&mut self, request: &StepRequest) {
        self.effects.insert(request.idempotency_key(), 1);
    }

    fn travel(&mut self, at: Timestamp, what: Travelling) {
        self.count += 1;
        self.under_way.insert((at, self.count), what);
    }

    fn arrival(&self, now: Timestamp, rng: &mut Rng) -> Timestamp {
        let micros = match rng.below(100) {
            _ if self.calm => 500,
            0..=79 => rng.below(5_000),
            80..=94 => rng.below(500_000),
            _ => rng.below(12_000_000),
        };
        now + Duration::from_micros(micros)
    }
}

/// What a step produces: `yes` or `no`, decided by the operation, for conditions to read.
fn outputs(request: &StepRequest) -> Vec<(String, String)> {
    let yes = request.operation.0.as_u128() & 1 == 0;
    let answer = if yes { "yes" } else { "no" };
    vec![("needed".to_owned(), answer.to_owned())]
}
