//! Clients, and their attempts to have a request accepted.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use waybill_engine::{IdOrigin, OperationId, Priority, RequestHash, Timestamp};
use waybill_ingestion_core::{Accepted, Found, Known, Position, known};

use super::judge::{IntakeRule, IntakeSight};
use super::{Event, Record, World};
use crate::rng::Rng;

/// How much longer than the producer a driver waits.
const GRACE: Duration = Duration::from_secs(2);

/// A client with one request.
#[derive(Debug)]
pub struct Client {
    pub id: OperationId,
    origin: IdOrigin,
    hash: RequestHash,
    priority: Priority,
    /// How often it repeats a request that was accepted.
    repeats: u64,
    /// Whether it has the answer that it wants.
    pub is_content: bool,
}

impl Client {
    /// Some clients. A third of them have the id of another one.
    pub fn all(rng: &mut Rng) -> Vec<Self> {
        let mut all = Vec::<Self>::new();
        for _ in 0..rng.between(1, 12) {
            // Nobody else knows an id of the server.
            let others = all.iter().filter(|it| it.origin == IdOrigin::Caller);
            let others: Vec<OperationId> = others.map(|it| it.id).collect();
            let known =
                (!others.is_empty() && rng.chance(35)).then(|| others[rng.index(others.len())]);
            let origin = match rng.chance(25) && known.is_none() {
                true => IdOrigin::Server,
                false => IdOrigin::Caller,
            };
            all.push(Self {
                id: known.unwrap_or_else(|| OperationId(rng.uuid())),
                origin,
                hash: RequestHash([if rng.chance(70) { 1 } else { 2 }; 16]),
                priority: match rng.chance(20) {
                    true => Priority::High,
                    false => Priority::Normal,
                },
                repeats: rng.below(4),
                is_content: false,
            });
        }
        all
    }
}

/// One attempt of a client.
#[derive(Debug)]
pub struct Attempt {
    pub client: usize,
    pub process: usize,
    pub life: u32,
    pub id: OperationId,
    pub origin: IdOrigin,
    pub hash: RequestHash,
    pub priority: Priority,
    /// Whether its client has left, as its waiter knows.
    pub waiter: Rc<Cell<bool>>,
    /// Whether its own record was passed to the producer.
    pub is_produced: bool,
    pub answer: Option<Answer>,
    /// The attempt whose record decides, if another's.
    pub shares: Option<usize>,
}

/// The answer to an attempt.
#[derive(Clone, Debug)]
pub enum Answer {
    Accepted(Accepted),
    Repeated,
    Conflict,
    /// Nothing of it is in the log, for a reason of the producer's.
    Refused,
    /// The broker is silent.
    Unavailable,
    /// The deadline is over, or the disk is low.
    NotNow,
    /// The row could not be read.
    StoreUnavailable,
    Unknown,
    /// The process died.
    Nothing,
}

impl Answer {
    /// Whether it says that the request is not in the log.
    pub fn is_certain_refusal(&self) -> bool {
        matches!(
            self,
            Self::Refused | Self::Unavailable | Self::NotNow | Self::StoreUnavailable
        )
    }
}

impl World {
    pub(super) fn send(&mut self, client: usize) {
        let up: Vec<usize> = (0..self.processes.len())
            .filter(|&process| self.processes[process].is_up)
            .collect();
        if up.is_empty() {
            let after = self.rng.between(50, 1_000);
            return self.later_ms(after, Event::Send { client });
        }
        let process = up[self.rng.index(up.len())];
        let of = &self.clients[client];
        let attempt = self.attempts.len();
        self.attempts.push(Attempt {
            client,
            process,
            life: self.processes[process].life,
            id: of.id,
            origin: of.origin,
            hash: of.hash,
            priority: of.priority,
            waiter: Rc::default(),
            is_produced: false,
            answer: None,
            shares: None,
        });
        if !self.is_calm() && self.rng.chance(8) {
            let after = self.rng.below(3_000);
            self.later_ms(after, Event::Leave { attempt });
        }
        match self.attempts[attempt].origin {
            IdOrigin::Caller => {
                let after = self.travel();
                self.later_ms(after, Event::Read { attempt });
            }
            IdOrigin::Server => self.admit(attempt),
        }
    }

    /// The row has been read, as it is now.
    pub(super) fn read(&mut self, attempt: usize) {
        let Attempt {
            process,
            life,
            id,
            hash,
            ..
        } = self.attempts[attempt];
        if self.processes[process].life != life {
            return;
        }
        if !self.is_calm() && self.rng.chance(self.faults / 5) {
            return self.answer(attempt, Answer::StoreUnavailable);
        }
        let row = self.rows.get(&id).map(|created_by| Found {
            hash: created_by.unwrap_or_default(),
            is_tombstone: created_by.is_none(),
        });
        match row.map_or(Known::New, |row| known(row, hash)) {
            Known::New => self.admit(attempt),
            Known::Repeated => self.answer(attempt, Answer::Repeated),
            Known::Conflict => self.answer(attempt, Answer::Conflict),
        }
    }

    pub(super) fn record_of(&self, attempt: usize) -> Record {
        let Attempt {
            id, hash, priority, ..
        } = self.attempts[attempt];
        Record {
            attempt,
            id,
            hash,
            priority,
        }
    }

    /// Waits for the outcome, as a driver does.
    pub(super) fn wait(&mut self, attempt: usize) {
        self.later(self.accept_timeout + GRACE, Event::GiveUp { attempt });
    }

    pub(super) fn give_up(&mut self, attempt: usize) {
        let of = &self.attempts[attempt];
        if of.answer.is_none() && self.processes[of.process].life == of.life {
            self.attempts[attempt].waiter.set(true);
            self.saw(IntakeSight::GivenUp);
            self.answer(attempt, Answer::Unknown);
        }
    }

    /// Answers an attempt, and lets its client decide what to do next.
    pub(super) fn answer(&mut self, attempt: usize, answer: Answer) {
        if self.attempts[attempt].answer.is_some() {
            return;
        }
        self.note(|| format!("attempt {attempt} gets {answer:?}"));
        self.judge_answer(attempt, &answer);
        self.attempts[attempt].answer = Some(answer.clone());
        let client = self.attempts[attempt].client;
        let of = &mut self.clients[client];
        let is_again = match answer {
            Answer::Accepted(_) | Answer::Repeated => {
                of.is_content = true;
                let is_again = of.repeats > 0;
                of.repeats = of.repeats.saturating_sub(1);
                is_again
            }
            Answer::Conflict => {
                of.is_content = true;
                false
            }
            // Its id was never known to the client, which sends the request as another one.
            Answer::Nothing if of.origin == IdOrigin::Server => {
                of.is_content = true;
                false
            }
            _ => !of.is_content,
        };
        // The answer to an unknown outcome has the id to repeat the request with.
        if matches!(answer, Answer::Unknown | Answer::Accepted(_)) {
            of.origin = IdOrigin::Caller;
        }
        if is_again {
            let after = match self.is_calm() {
                true => 100,
                false => self.rng.below(4_000),
            };
            self.later_ms(after, Event::Send { client });
        }
    }

    pub(super) fn judge_answer(&mut self, attempt: usize, answer: &Answer) {
        let Attempt { id, hash, .. } = self.attempts[attempt];
        match answer {
            Answer::Accepted(accepted) => {
                let log = self
                    .log
                    .get(&accepted.priority)
                    .map_or(&[][..], Vec::as_slice);
                let is_it = |record: &Record| record.id == id && record.hash == hash;
                let is_there = match accepted.offset {
                    Some(offset) => usize::try_from(offset.0)
                        .ok()
                        .and_then(|at| log.get(at))
                        .is_some_and(is_it),
                    None => log.iter().any(is_it),
                };
                if !is_there || accepted.hash != hash {
                    let what = format!("attempt {attempt}: {accepted:?} is not in the log");
                    self.fail(IntakeRule::AcceptedIsInLog, what);
                }
            }
            Answer::Repeated if !self.rows_ever.contains(&(id, hash.0)) => {
                let what = format!("attempt {attempt} repeats nothing");
                self.fail(IntakeRule::RepeatHasRow, what);
            }
            Answer::Conflict => {
                let is_other =
                    |other: &Attempt| other.id == id && other.hash != hash && other.is_produced;
                if !self.attempts.iter().any(is_other) {
                    let what = format!("attempt {attempt} conflicts with nothing");
                    self.fail(IntakeRule::ConflictHasOther, what);
                }
                self.saw(IntakeSight::Conflict);
            }
            _ => {}
        }
    }
}

/// What the intake remembers of an acknowledged record.
pub fn accepted(record: Record, (partition, offset): Position) -> Accepted {
    Accepted {
        priority: record.priority,
        partition,
        offset,
        hash: record.hash,
        workflow: "w".into(),
        tenant: None,
        caller_id: None,
        requested_at: Timestamp(0),
    }
}
