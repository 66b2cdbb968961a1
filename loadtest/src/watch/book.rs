//! The book of a run: what was accepted, refused and ended, by phase, tenant, kind and second.
//!
//! Who sends, who follows the status topic and who samples write into it and read from it, under one lock that is
//! held for moments. Accepted operations stay in it to the end: a final state may be followed by another, and
//! the judge asks for all of them.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use waybill_engine::{OperationId, ProcessState};

use super::tally::{IdHasher, Tally};
use crate::scenario::kind::{Drawn, Kind};

/// How many accepted operations room is made for at first. More may come, and then making room holds everybody up, for a
/// second and more.
const ROOM_MAX: u64 = 20_000_000;

/// What a run has come to. Times count from the first intended one.
pub struct Book {
    inner: Mutex<Inner>,
}

struct Inner {
    /// The first intended time. What is written before it is set counts from the making of the book.
    began: Instant,
    known: HashMap<OperationId, Accepted, BuildHasherDefault<IdHasher>>,
    /// Final before the answer to their request was read.
    early: HashMap<OperationId, End>,
    tally: Tally,
    phases: Vec<Tally>,
    tenants: Vec<Tally>,
    kinds: BTreeMap<Kind, KindTally>,
    refused: BTreeMap<u16, Refused>,
    /// Good requests that were refused or not answered.
    refused_good: u64,
    since: Interval,
    last_answer: Option<Instant>,
    last_end: Option<Instant>,
    findings: Findings,
}

struct Accepted {
    drawn: Drawn,
    /// From the beginning.
    intended: Duration,
    end: Option<End>,
}

/// The newest final state of an operation.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The state.
    pub state: ProcessState,
    /// The number of the record that told it: the highest counts.
    pub sequence: u32,
    /// When the first final state arrived.
    pub at: Instant,
}

/// What was counted of a kind.
#[derive(Clone)]
pub struct KindTally {
    /// Requests that were answered.
    pub answered: u64,
    /// Accepted ones that ended as the kind must; of malformed ones those that were refused.
    pub as_meant: u64,
    /// Those that were accepted.
    pub tally: Tally,
}

/// Requests that were answered in the same way, and not accepted.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Refused {
    /// How many.
    pub count: u64,
    /// What the first of them was answered, or why nothing was.
    pub example: String,
}

/// What happened since the last look.
pub struct Interval {
    /// Accepted, ended and their times.
    pub tally: Tally,
    /// Refused or not answered.
    pub refused: u64,
    /// Accepted and not ended at the end of it.
    pub open: u64,
    /// All that were accepted until then.
    pub accepted_in_all: u64,
}

/// Answers that must not be.
#[derive(Clone, Default)]
struct Findings {
    count: u64,
    examples: Vec<String>,
}

/// How many wrong answers are shown.
const EXAMPLES_MAX: usize = 5;
/// How much of an answer is shown.
const EXAMPLE_CHARS_MAX: usize = 300;

/// What the book says in the end.
pub struct Outcome {
    /// All requests.
    pub tally: Tally,
    /// Those of each phase.
    pub phases: Vec<Tally>,
    /// Those of each tenant.
    pub tenants: Vec<Tally>,
    /// Those of each kind.
    pub kinds: BTreeMap<Kind, KindTally>,
    /// How many ended in each state.
    pub states: BTreeMap<&'static str, u64>,
    /// Other answers than 202, by status; 0 where none came.
    pub refused: BTreeMap<u16, Refused>,
    /// Good requests that were refused or not answered.
    pub refused_good: u64,
    /// When the last answer came, and the last end.
    pub last_answer: Option<Instant>,
    /// When the last operation ended.
    pub last_end: Option<Instant>,
    /// Answers that must not be: how many, and some of them.
    pub wrong_answers: (u64, Vec<String>),
}

impl Outcome {
    /// Accepted ones that did not end.
    pub fn open(&self) -> u64 {
        self.tally.accepted - self.tally.ended
    }
}

impl Book {
    /// A book for so many requests.
    pub fn new(requests: u64, phases: usize, tenants: usize) -> Self {
        let room = usize::try_from(requests.min(ROOM_MAX)).unwrap_or_default();
        Self {
            inner: Mutex::new(Inner {
                began: Instant::now(),
                known: HashMap::with_capacity_and_hasher(room, BuildHasherDefault::default()),
                early: HashMap::new(),
                tally: Tally::new(),
                phases: vec![Tally::new(); phases],
                tenants: vec![Tally::new(); tenants],
                kinds: BTreeMap::new(),
                refused: BTreeMap::new(),
                refused_good: 0,
                since: Interval::new(),
                last_answer: None,
                last_end: None,
                findings: Findings::default(),
            }),
        }
    }

    /// Says when the first request is meant to leave.
    pub fn begin(&self, began: Instant) {
        self.inner().began = began;
    }

    /// A request was accepted.
    pub fn accepted(&self, id: OperationId, drawn: Drawn, intended: Instant, at: Instant) {
        self.inner().accepted(id, drawn, intended, at);
    }

    /// A request was answered otherwise; 0 stands for no answer. `said` is what was answered, or why nothing was.
    pub fn refused(&self, drawn: Drawn, status: u16, said: &str) {
        let mut inner = self.inner();
        inner.refuse(status, 1, said);
        inner.last_answer = Some(Instant::now());
        let kind = inner.kind(drawn.kind);
        kind.answered += 1;
        if drawn.kind.is_good() {
            inner.refused_good += 1;
        } else if (400..500).contains(&status) {
            kind.as_meant += 1;
        }
    }

    /// Good requests that nobody was there to send any more.
    pub fn unsent(&self, count: u64) {
        let mut inner = self.inner();
        inner.refuse(0, count, "no connection was free before the time was over");
        inner.refused_good += count;
    }

    /// An answer came that must not be.
    pub fn wrong_answer(&self, what: String) {
        let findings = &mut self.inner().findings;
        findings.count += 1;
        if findings.examples.len() < EXAMPLES_MAX {
            findings.examples.push(what);
        }
    }

    /// Operations ended.
    pub fn ended(&self, ends: impl Iterator<Item = (OperationId, End)>) {
        let mut inner = self.inner();
        for (id, end) in ends {
            inner.ended(id, end);
        }
    }

    /// Whether every accepted operation has ended.
    pub fn all_ended(&self) -> bool {
        let inner = self.inner();
        inner.tally.ended == inner.tally.accepted
    }

    /// What happened since this was asked last.
    pub fn take_interval(&self) -> Interval {
        let mut inner = self.inner();
        let open = inner.tally.accepted - inner.tally.ended;
        let accepted_in_all = inner.tally.accepted;
        let interval = std::mem::replace(&mut inner.since, Interval::new());
        Interval {
            open,
            accepted_in_all,
            ..interval
        }
    }

    /// What is known by now.
    pub fn outcome(&self) -> Outcome {
        self.inner().outcome()
    }

    /// The accepted operations and their newest final states.
    pub fn states(&self) -> HashMap<OperationId, (Kind, Option<ProcessState>)> {
        let inner = self.inner();
        let accepted = inner.known.iter();
        accepted
            .map(|(id, accepted)| {
                let state = accepted.end.map(|end| end.state);
                (*id, (accepted.drawn.kind, state))
            })
            .collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn accepted(&mut self, id: OperationId, drawn: Drawn, intended: Instant, at: Instant) {
        self.last_answer = Some(at);
        self.kind(drawn.kind).answered += 1;
        let after = at.saturating_duration_since(intended);
        self.tallies(drawn, |tally| tally.accept(after));
        let accepted = Accepted {
            drawn,
            intended: intended.saturating_duration_since(self.began),
            end: None,
        };
        self.known.insert(id, accepted);
        if !self.early.is_empty()
            && let Some(end) = self.early.remove(&id)
        {
            self.ended(id, end);
        }
    }

    fn ended(&mut self, id: OperationId, end: End) {
        let Some(accepted) = self.known.get_mut(&id) else {
            let early = self.early.entry(id).or_insert(end);
            early.take(end);
            return;
        };
        if let Some(before) = &mut accepted.end {
            before.take(end);
            return;
        }
        accepted.end = Some(end);
        let drawn = accepted.drawn;
        let intended = self.began + accepted.intended;
        let after = end.at.saturating_duration_since(intended);
        self.tallies(drawn, |tally| tally.end(after));
        self.last_end = Some(self.last_end.map_or(end.at, |last| last.max(end.at)));
    }

    fn kind(&mut self, kind: Kind) -> &mut KindTally {
        self.kinds.entry(kind).or_insert_with(|| KindTally {
            answered: 0,
            as_meant: 0,
            tally: Tally::new(),
        })
    }

    fn refuse(&mut self, status: u16, count: u64, said: &str) {
        self.since.refused += count;
        let refused = self.refused.entry(status).or_default();
        refused.count += count;
        if refused.example.is_empty() {
            refused.example = said.chars().take(EXAMPLE_CHARS_MAX).collect();
        }
    }

    /// Writes the same into every tally that a request belongs to.
    fn tallies(&mut self, drawn: Drawn, write: impl Fn(&mut Tally)) {
        write(&mut self.tally);
        write(&mut self.since.tally);
        write(&mut self.phases[usize::from(drawn.phase)]);
        write(&mut self.kind(drawn.kind).tally);
        if let Some(tenant) = drawn.tenant {
            write(&mut self.tenants[usize::from(tenant)]);
        }
    }

    fn outcome(&self) -> Outcome {
        let mut states = BTreeMap::new();
        let mut kinds = self.kinds.clone();
        for accepted in self.known.values() {
            let Some(end) = accepted.end else { continue };
            *states.entry(end.state.as_str()).or_default() += 1;
            if accepted.drawn.kind.may_end(end.state)
                && let Some(kind) = kinds.get_mut(&accepted.drawn.kind)
            {
                kind.as_meant += 1;
            }
        }
        Outcome {
            tally: self.tally.clone(),
            phases: self.phases.clone(),
            tenants: self.tenants.clone(),
            kinds,
            states,
            refused: self.refused.clone(),
            refused_good: self.refused_good,
            last_answer: self.last_answer,
            last_end: self.last_end,
            wrong_answers: (self.findings.count, self.findings.examples.clone()),
        }
    }
}

impl End {
    /// Takes over what is newer in `other`. Records come in any order: one is sent again after a
    /// restart.
    fn take(&mut self, other: Self) {
        if other.sequence > self.sequence {
            self.state = other.state;
            self.sequence = other.sequence;
        }
    }
}

impl Interval {
    fn new() -> Self {
        Self {
            tally: Tally::new(),
            refused: 0,
            open: 0,
            accepted_in_all: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> OperationId {
        OperationId::of_caller("", "1")
    }

    fn end(state: ProcessState, sequence: u32, at: Instant) -> (OperationId, End) {
        let end = End {
            state,
            sequence,
            at,
        };
        (id(), end)
    }

    fn drawn(kind: Kind) -> Drawn {
        Drawn {
            index: 0,
            kind,
            tenant: Some(0),
            phase: 0,
        }
    }

    fn book(began: Instant) -> Book {
        let book = Book::new(1, 1, 1);
        book.begin(began);
        book
    }

    fn state(book: &Book) -> Option<ProcessState> {
        book.states()[&id()].1
    }

    #[test]
    fn the_highest_sequence_wins_in_whatever_order_the_states_come() {
        let now = Instant::now();
        let book = book(now);
        book.accepted(id(), drawn(Kind::Drone), now, now);
        book.ended([end(ProcessState::Error, 1, now)].into_iter());
        assert_eq!(state(&book), Some(ProcessState::Error));
        assert_eq!(book.outcome().kinds[&Kind::Drone].as_meant, 0);
        let later = [
            end(ProcessState::Processed, 2, now),
            end(ProcessState::Error, 1, now),
        ];
        book.ended(later.into_iter());
        assert_eq!(state(&book), Some(ProcessState::Processed));
        let outcome = book.outcome();
        assert_eq!((outcome.tally.ended, outcome.open()), (1, 0));
        assert_eq!(outcome.kinds[&Kind::Drone].as_meant, 1);
    }

    #[test]
    fn what_ended_before_its_answer_was_read_counts_once_with_its_newest_state() {
        let now = Instant::now();
        let book = book(now);
        let early = [
            end(ProcessState::Error, 1, now),
            end(ProcessState::Compensated, 2, now),
        ];
        book.ended(early.into_iter());
        assert!(book.all_ended(), "nothing was accepted");
        book.accepted(id(), drawn(Kind::Drone), now, now);
        assert_eq!(state(&book), Some(ProcessState::Compensated));
        assert!(book.all_ended() && book.inner().early.is_empty());
    }

    #[test]
    fn the_latency_is_that_of_the_first_final_state_from_the_intended_time() {
        let began = Instant::now();
        let intended = began + Duration::from_secs(1);
        let book = book(began);
        let answered = intended + Duration::from_millis(5);
        book.accepted(id(), drawn(Kind::Drone), intended, answered);
        let first = intended + Duration::from_millis(20);
        book.ended([end(ProcessState::Error, 1, first)].into_iter());
        let later = intended + Duration::from_secs(60);
        book.ended([end(ProcessState::Processed, 2, later)].into_iter());
        let outcome = book.outcome();
        for tally in [&outcome.tally, &outcome.phases[0], &outcome.tenants[0]] {
            assert_eq!((tally.accepted, tally.ended), (1, 1));
            assert!((5_000..5_010).contains(&tally.acceptance_us.max()));
            assert!((20_000..20_100).contains(&tally.end_to_end_us.max()));
        }
        assert_eq!(outcome.last_end, Some(first));
    }

    #[test]
    fn a_malformed_request_is_to_be_refused_and_a_good_one_is_not() {
        let book = book(Instant::now());
        book.refused(drawn(Kind::Malformed), 422, "it is not well-formed");
        book.refused(drawn(Kind::Malformed), 500, "");
        book.refused(drawn(Kind::Drone), 503, "busy");
        book.refused(drawn(Kind::Drone), 503, "still busy");
        let outcome = book.outcome();
        assert_eq!(outcome.kinds[&Kind::Malformed].as_meant, 1);
        assert_eq!(outcome.refused_good, 2);
        let refused = |count, example: &str| Refused {
            count,
            example: example.to_owned(),
        };
        let busy = refused(2, "busy");
        let malformed = refused(1, "it is not well-formed");
        assert_eq!(
            outcome.refused,
            BTreeMap::from([(422, malformed), (500, refused(1, "")), (503, busy)])
        );
    }

    #[test]
    fn an_interval_has_what_came_since_the_last_one() {
        let now = Instant::now();
        let book = book(now);
        book.accepted(id(), drawn(Kind::Drone), now, now);
        let first = book.take_interval();
        assert_eq!(
            (first.tally.accepted, first.tally.ended, first.open),
            (1, 0, 1)
        );
        book.ended([end(ProcessState::Processed, 1, now)].into_iter());
        let second = book.take_interval();
        assert_eq!(
            (second.tally.accepted, second.tally.ended, second.open),
            (0, 1, 0)
        );
    }
}
