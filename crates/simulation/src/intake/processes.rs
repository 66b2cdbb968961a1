//! The processes of ingestion: what a driver does with the intake's decisions.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use waybill_engine::{IdOrigin, OperationId};
use waybill_ingestion_core::{
    Admitted, Candidate, Claims, Ended, Failed, Flow, NotAdmitted, Position, Refusal, Ticket, Turn,
    Waiter, abandon, admit, settle,
};

use super::clients::{Answer, Attempt, accepted};
use super::judge::{IntakeRule, IntakeSight};
use super::{Event, Produced, World};

/// An attempt that waits for an outcome.
#[derive(Debug)]
pub struct Waiting {
    attempt: usize,
    is_gone: Rc<Cell<bool>>,
}

impl Waiter for Waiting {
    fn is_gone(&self) -> bool {
        self.is_gone.get()
    }
}

/// A process of ingestion.
#[derive(Debug)]
pub struct Process {
    pub is_up: bool,
    /// Raised by each death.
    pub life: u32,
    accepted_max: usize,
    /// How many records its queue takes.
    room: usize,
    accept_timeout: Duration,
    claims: Claims<Waiting>,
    flow: Flow,
    open: BTreeMap<u64, (Ticket, Option<Waiting>)>,
    /// When its broker acknowledged a record last, or the first open record began, by the judge's
    /// own account.
    pub moved: Duration,
}

impl Process {
    pub fn new(accepted_max: usize, room: usize, accept_timeout: Duration) -> Self {
        Self {
            is_up: true,
            life: 0,
            accepted_max,
            room,
            accept_timeout,
            claims: Claims::new(accepted_max),
            flow: Flow::new(accept_timeout),
            open: BTreeMap::new(),
            moved: Duration::ZERO,
        }
    }

    fn is_silent(&self, now: Duration) -> bool {
        let stall_max = Flow::STALL_MAX.min(self.accept_timeout);
        !self.open.is_empty() && now - self.moved > stall_max
    }

    /// How many requests are in flight, and how many claims there are.
    pub fn open(&self) -> (usize, usize) {
        (self.open.len(), self.claims.in_flight())
    }
}

impl World {
    /// Asks the intake about an attempt without a row.
    pub(super) fn admit(&mut self, attempt: usize) {
        let Attempt {
            process: index,
            id,
            origin,
            hash,
            ..
        } = self.attempts[attempt];
        let refused = (!self.is_calm() && self.rng.chance(3)).then_some(());
        let process = &mut self.processes[index];
        let waiter = Waiting {
            attempt,
            is_gone: Rc::clone(&self.attempts[attempt].waiter),
        };
        let candidate = Candidate { id, origin, hash };
        let was_silent = process.is_silent(self.now);
        let was_idle = process.open.is_empty();
        let Process { claims, flow, .. } = process;
        match admit(claims, flow, self.now, candidate, refused, waiter) {
            Ok(Admitted::Produce(ticket, own)) => {
                if was_silent {
                    let what = format!("attempt {attempt} is produced");
                    self.fail(IntakeRule::OneWaitsForASilentBroker, what);
                }
                if was_idle {
                    self.processes[index].moved = self.now;
                }
                self.produce(attempt, ticket, own);
            }
            Ok(Admitted::Shares) => {
                self.saw(IntakeSight::Shared);
                self.attempts[attempt].shares = self.first_of(index, id);
                self.wait(attempt);
            }
            Ok(Admitted::Before(accepted)) => {
                self.saw(IntakeSight::AcceptedBefore);
                self.answer(attempt, Answer::Accepted(accepted));
            }
            Err(NotAdmitted::Conflict) => self.answer(attempt, Answer::Conflict),
            Err(NotAdmitted::Refused(())) => {
                self.saw(IntakeSight::NotNow);
                self.answer(attempt, Answer::NotNow);
            }
            Err(NotAdmitted::Unavailable(_)) => {
                if !was_silent {
                    let what = format!("attempt {attempt} is refused");
                    self.fail(IntakeRule::NoNeedlessRefusal, what);
                }
                self.saw(IntakeSight::Unavailable);
                self.answer(attempt, Answer::Unavailable);
            }
        }
    }

    /// The attempt whose request with this caller's id is in flight.
    fn first_of(&self, process: usize, id: OperationId) -> Option<usize> {
        let life = self.processes[process].life;
        let open = self.processes[process].open.keys();
        let mut records = open.filter_map(|produced| self.produced.get(produced));
        let first = records.find(|of| {
            let origin = self.attempts[of.record.attempt].origin;
            of.record.id == id && of.life == life && origin == IdOrigin::Caller
        });
        first.map(|of| of.record.attempt)
    }

    fn produce(&mut self, attempt: usize, ticket: Ticket, own: Option<Waiting>) {
        let record = self.record_of(attempt);
        let Attempt {
            process,
            life,
            origin,
            ..
        } = self.attempts[attempt];
        if origin == IdOrigin::Caller && self.first_of(process, record.id).is_some() {
            let what = format!("attempt {attempt} is the second");
            self.fail(IntakeRule::OneInFlight, what);
        }
        self.attempts[attempt].is_produced = true;
        self.scheduled += 1;
        let produced = self.scheduled;
        self.produced.insert(
            produced,
            Produced {
                process,
                life,
                record,
            },
        );
        let is_full = self.processes[process].open.len() >= self.processes[process].room;
        self.processes[process].open.insert(produced, (ticket, own));
        if is_full {
            self.saw(IntakeSight::QueueFull);
            let refused = Err(Failed::Refused(Refusal::QueueFull));
            return self.delivered(produced, refused);
        }
        self.wait(attempt);
        let after = self.travel();
        self.later_ms(after, Event::Append { produced });
    }

    /// The producer reports an outcome.
    pub(super) fn delivered(&mut self, produced: u64, outcome: Result<Position, Failed>) {
        let Produced {
            process: index,
            life,
            record,
        } = self.produced[&produced];
        if self.processes[index].life != life {
            return;
        }
        let Some((ticket, own)) = self.processes[index].open.remove(&produced) else {
            return;
        };
        let process = &mut self.processes[index];
        if outcome.is_ok() {
            process.moved = self.now;
        }
        let Process { claims, flow, .. } = process;
        let ended = settle(claims, flow, self.now, ticket, outcome, |at| {
            accepted(record, at)
        });
        let Ended {
            settled,
            waiters,
            turn,
        } = ended;
        if turn == Some(Turn::Available) {
            self.saw(IntakeSight::BackAgain);
        }
        let answer = match settled {
            Ok(accepted) => Answer::Accepted(accepted),
            Err(Failed::Refused(_)) => Answer::Refused,
            Err(Failed::Unknown) => Answer::Unknown,
        };
        for waiter in waiters.into_iter().chain(own) {
            if !waiter.is_gone.get() {
                self.answer(waiter.attempt, answer.clone());
            } else {
                self.left(waiter.attempt, &answer);
            }
        }
    }

    /// The client of an attempt has left, and learns nothing: it may come again.
    fn left(&mut self, attempt: usize, answer: &Answer) {
        if self.attempts[attempt].answer.is_none() {
            self.saw(IntakeSight::Left);
            self.judge_answer(attempt, answer);
            self.answer(attempt, Answer::Nothing);
        }
    }

    /// The producer loses a record without an outcome. All that wait learn that there is none.
    pub(super) fn dropped(&mut self, produced: u64) {
        let Produced {
            process: index,
            life,
            ..
        } = self.produced[&produced];
        if self.processes[index].life != life {
            return;
        }
        let Some((ticket, own)) = self.processes[index].open.remove(&produced) else {
            return;
        };
        self.saw(IntakeSight::Abandoned);
        let Process { claims, flow, .. } = &mut self.processes[index];
        let waiters = abandon(claims, flow, self.now, ticket);
        for waiter in waiters.into_iter().chain(own) {
            self.answer(waiter.attempt, Answer::Unknown);
        }
    }

    pub(super) fn crash(&mut self, index: usize) {
        let process = &self.processes[index];
        if !process.is_up {
            return;
        }
        let (life, is_busy) = (process.life, !process.open.is_empty());
        let again = Process {
            is_up: false,
            life: life + 1,
            ..Process::new(process.accepted_max, process.room, process.accept_timeout)
        };
        self.processes[index] = again;
        if is_busy {
            self.saw(IntakeSight::CrashInFlight);
        }
        let of_it = |of: &Attempt| of.process == index && of.life == life && of.answer.is_none();
        let lost: Vec<usize> = (0..self.attempts.len())
            .filter(|&attempt| of_it(&self.attempts[attempt]))
            .collect();
        for attempt in lost {
            self.answer(attempt, Answer::Nothing);
        }
        let after = self.rng.below(3_000);
        self.later_ms(after, Event::Start { process: index });
    }

    pub(super) fn start(&mut self, process: usize) {
        self.processes[process].is_up = true;
    }
}
