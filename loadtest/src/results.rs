//! The results of a run: accepted, refused and ended requests, by phase, tenant, kind and second.
//!
//! The senders, the reader of the status topic and the sampler share them, under a lock that is
//! held only briefly. Accepted operations are kept to the end, because a final state may be
//! followed by another and the judge needs all of them.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use waybill_engine::{OperationId, ProcessState};

use crate::scenario::kind::{Drawn, Kind};
use crate::tally::{IdHasher, Tally};

/// The initial capacity for accepted operations. Above it, the map grows, which blocks everything
/// for a second or more.
const ROOM_MAX: u64 = 20_000_000;

/// The results of a run so far. Times are relative to the first intended one.
pub struct RunResults {
    inner: Mutex<Inner>,
}

struct Inner {
    /// The first intended time. Until it is set, times are relative to the creation of this value.
    began: Instant,
    known: HashMap<OperationId, Accepted, BuildHasherDefault<IdHasher>>,
    /// Operations that were final before the answer to their request arrived.
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
    /// Relative to the beginning.
    intended: Duration,
    end: Option<End>,
}

/// The newest final state of an operation.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The state.
    pub state: ProcessState,
    /// The number of the record with this state. The highest one counts.
    pub sequence: u32,
    /// When the first final state arrived.
    pub at: Instant,
}

/// The counts of a kind.
#[derive(Clone)]
pub struct KindTally {
    /// Answered requests.
    pub answered: u64,
    /// Accepted requests that ended as their kind requires. For malformed ones, the refused
    /// requests.
    pub as_meant: u64,
    /// Accepted requests.
    pub tally: Tally,
}

/// Requests with the same answer that were not accepted.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The number of requests.
    pub count: u64,
    /// The first answer, or why there was none.
    pub example: String,
}

/// The changes since the previous interval.
pub struct Interval {
    /// Accepted and ended requests with their times.
    pub tally: Tally,
    /// Refused or unanswered requests.
    pub refused: u64,
    /// Operations accepted and not ended at its end.
    pub open: u64,
    /// All requests accepted up to its end.
    pub accepted_in_all: u64,
}

/// Wrong answers.
#[derive(Clone, Default)]
struct Findings {
    count: u64,
    examples: Vec<String>,
}

/// The maximum number of examples of wrong answers.
const EXAMPLES_MAX: usize = 5;
/// The maximum length of an example.
const EXAMPLE_CHARS_MAX: usize = 300;

/// The results after the run.
pub struct Outcome {
    /// All requests.
    pub tally: Tally,
    /// The requests of each phase.
    pub phases: Vec<Tally>,
    /// The requests of each tenant.
    pub tenants: Vec<Tally>,
    /// The requests of each kind.
    pub kinds: BTreeMap<Kind, KindTally>,
    /// The number of operations in each state.
    pub states: BTreeMap<&'static str, u64>,
    /// Other answers than 202, by status; 0 for no answer.
    pub refused: BTreeMap<u16, Refused>,
    /// Good requests that were refused or not answered.
    pub refused_good: u64,
    /// The time of the last answer.
    pub last_answer: Option<Instant>,
    /// When the last operation ended.
    pub last_end: Option<Instant>,
    /// Wrong answers: their number, and some of them.
    pub wrong_answers: (u64, Vec<String>),
}

impl Outcome {
    /// The number of accepted operations that did not end.
    pub fn open(&self) -> u64 {
        self.tally.accepted - self.tally.ended
    }
}

impl RunResults {
    /// Empty results for this many requests.
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

    /// Sets the intended time of the first request.
    pub fn begin(&self, began: Instant) {
        self.inner().began = began;
    }

    /// Records an accepted request.
    pub fn accepted(&self, id: OperationId, drawn: Drawn, intended: Instant, at: Instant) {
        self.inner().accepted(id, drawn, intended, at);
    }

    /// Records a request that was not accepted. Status 0 means no answer. `message` is the answer,
    /// or why there is none.
    pub fn refused(&self, drawn: Drawn, status: u16, message: &str) {
        let mut inner = self.inner();
        inner.refuse(status, 1, message);
        inner.last_answer = Some(Instant::now());
        let kind = inner.kind(drawn.kind);
        kind.answered += 1;
        if drawn.kind.is_good() {
            inner.refused_good += 1;
        } else if (400..500).contains(&status) {
            kind.as_meant += 1;
        }
    }

    /// Records good requests that were not sent in time.
    pub fn unsent(&self, count: u64) {
        let mut inner = self.inner();
        inner.refuse(0, count, "no connection was free before the end of the run");
        inner.refused_good += count;
    }

    /// Records a wrong answer.
    pub fn wrong_answer(&self, what: String) {
        let findings = &mut self.inner().findings;
        findings.count += 1;
        if findings.examples.len() < EXAMPLES_MAX {
            findings.examples.push(what);
        }
    }

    /// Records ended operations.
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

    /// The changes since the last call.
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

    /// The results so far.
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

    fn refuse(&mut self, status: u16, count: u64, message: &str) {
        self.since.refused += count;
        let refused = self.refused.entry(status).or_default();
        refused.count += count;
        if refused.example.is_empty() {
            refused.example = message.chars().take(EXAMPLE_CHARS_MAX).collect();
        }
    }

    /// Applies `write` to every tally of a request.
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
    /// Takes the newer state of `other`. Records may arrive in any order, because a restart may
    /// send one again.
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

    fn results(began: Instant) -> RunResults {
        let results = RunResults::new(1, 1, 1);
        results.begin(began);
        results
    }

    fn state(results: &RunResults) -> Option<ProcessState> {
        results.states()[&id()].1
    }

    #[test]
    fn the_highest_sequence_wins_in_any_order() {
        let now = Instant::now();
        let results = results(now);
        results.accepted(id(), drawn(Kind::Drone), now, now);
        results.ended([end(ProcessState::Error, 1, now)].into_iter());
        assert_eq!(state(&results), Some(ProcessState::Error));
        assert_eq!(results.outcome().kinds[&Kind::Drone].as_meant, 0);
        let later = [
            end(ProcessState::Processed, 2, now),
            end(ProcessState::Error, 1, now),
        ];
        results.ended(later.into_iter());
        assert_eq!(state(&results), Some(ProcessState::Processed));
        let outcome = results.outcome();
        assert_eq!((outcome.tally.ended, outcome.open()), (1, 0));
        assert_eq!(outcome.kinds[&Kind::Drone].as_meant, 1);
    }

    #[test]
    fn an_operation_that_ended_before_its_answer_counts_once_with_its_newest_state() {
        let now = Instant::now();
        let results = results(now);
        let early = [
            end(ProcessState::Error, 1, now),
            end(ProcessState::Compensated, 2, now),
        ];
        results.ended(early.into_iter());
        assert!(results.all_ended(), "nothing was accepted");
        results.accepted(id(), drawn(Kind::Drone), now, now);
        assert_eq!(state(&results), Some(ProcessState::Compensated));
        assert!(results.all_ended() && results.inner().early.is_empty());
    }

    #[test]
    fn the_latency_is_that_of_the_first_final_state_from_the_intended_time() {
        let began = Instant::now();
        let intended = began + Duration::from_secs(1);
        let results = results(began);
        let answered = intended + Duration::from_millis(5);
        results.accepted(id(), drawn(Kind::Drone), intended, answered);
        let first = intended + Duration::from_millis(20);
        results.ended([end(ProcessState::Error, 1, first)].into_iter());
        let later = intended + Duration::from_secs(60);
        results.ended([end(ProcessState::Processed, 2, later)].into_iter());
        let outcome = results.outcome();
        for tally in [&outcome.tally, &outcome.phases[0], &outcome.tenants[0]] {
            assert_eq!((tally.accepted, tally.ended), (1, 1));
            assert!((5_000..5_010).contains(&tally.acceptance_us.max()));
            assert!((20_000..20_100).contains(&tally.end_to_end_us.max()));
        }
        assert_eq!(outcome.last_end, Some(first));
    }

    #[test]
    fn only_malformed_requests_are_expected_to_be_refused() {
        let results = results(Instant::now());
        results.refused(drawn(Kind::Malformed), 422, "it is not well-formed");
        results.refused(drawn(Kind::Malformed), 500, "");
        results.refused(drawn(Kind::Drone), 503, "busy");
        results.refused(drawn(Kind::Drone), 503, "still busy");
        let outcome = results.outcome();
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
    fn an_interval_counts_since_the_last_one() {
        let now = Instant::now();
        let results = results(now);
        results.accepted(id(), drawn(Kind::Drone), now, now);
        let first = results.take_interval();
        assert_eq!(
            (first.tally.accepted, first.tally.ended, first.open),
            (1, 0, 1)
        );
        results.ended([end(ProcessState::Processed, 1, now)].into_iter());
        let second = results.take_interval();
        assert_eq!(
            (second.tally.accepted, second.tally.ended, second.open),
            (0, 1, 0)
        );
    }
}
