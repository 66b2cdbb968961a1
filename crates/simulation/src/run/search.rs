//! A run that is part of a search: it takes one alternative at every choice, and its script lists
//! the others.
//!
//! Messages take no time. Every message in flight may come next, in any order, and so may a fault
//! that the budget still allows. Time passes only while no message is in flight: then the next
//! timer is due. A paused process continues, and a late message arrives, when a lease is taken, or
//! after [`KEPT`].

#![expect(
    clippy::disallowed_types,
    reason = "threads share what a search has visited"
)]

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Mutex;
use std::time::Duration;

use waybill_engine::Timestamp;

use super::{BOUND, Run, START};
use crate::queue::What;
use crate::rng::Script;

/// The time before the requests, in which all processes start and divide the work among them.
pub const WARM_UP: Duration = Duration::from_millis(10);
/// How long a process is paused, or a message is late, unless a lease is taken before.
const KEPT: Duration = Duration::from_secs(3);
/// When a dead process starts again.
const RESTART_MICROS: u64 = 1_000;
/// A limit that no run reaches.
const EVENTS_MAX: u64 = 50_000;
/// The number of sets of visited states: with several, threads seldom wait for each other.
const PARTS: usize = 64;

/// How many faults of each kind a run may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Budget {
    /// How many processes die.
    pub crashes: u32,
    /// How often an owner is paused until another takes its lease, or stops and gives it back.
    pub lease_changes: u32,
    /// How many messages are late.
    pub late_messages: u32,
    /// How often a message may arrive before another that was sent earlier; `None` without a limit.
    pub overtakes: Option<u32>,
}

/// The faults of a run: those left, and those in effect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Search {
    pub left: Budget,
    /// When each pause and delay ends.
    kept: Vec<Timestamp>,
}

/// The states that a search has visited, by their hashes.
#[derive(Debug)]
pub struct Visited([Mutex<HashSet<u64>>; PARTS]);

impl Default for Visited {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Visited {
    /// Records a state, and returns whether it is new.
    fn visit(&self, state: u64) -> bool {
        let part = &self.0[usize::try_from(state % PARTS as u64).unwrap()];
        part.lock().unwrap().insert(state)
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|part| part.lock().unwrap().len()).sum()
    }
}

/// How a run of a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchEnd {
    /// Every operation is final or parked, or a rule is broken.
    Over,
    /// The run reached a state that another run had visited.
    Known,
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Event(u64),
    SchedulerDies(usize),
    SupervisorDies(usize),
    AgentDies(usize),
    OwnerPauses(usize),
    OwnerStops(usize),
    Late(u64),
}

impl Run {
    /// Continues until every operation has ended, or until the run reaches a known state.
    pub fn explore(&mut self, visited: &Visited) -> SearchEnd {
        self.warm_up();
        let given = self.rng.script().map_or(0, Script::given);
        let mut visited_after = given;
        loop {
            let alternatives = self.alternatives();
            if alternatives.is_empty() {
                self.report_unfinished();
                return SearchEnd::Over;
            }
            // Other choices within one event may lead to the same state.
            let made = self.made();
            let may_be_known = alternatives.len() > 1 || made > visited_after;
            if made >= given && may_be_known {
                visited_after = made;
                if !visited.visit(self.fingerprint()) {
                    return SearchEnd::Known;
                }
            }
            let chosen = self.rng.choose(alternatives.len());
            let next = alternatives[chosen];
            if let (Next::Event(_), Some(left)) = (next, &mut self.search.left.overtakes) {
                *left -= u32::from(chosen > 0);
            }
            if self.goes(next) {
                return SearchEnd::Over;
            }
        }
    }

    /// Whether a process may still die or be paused.
    pub fn may_be_interrupted(&self) -> bool {
        let left = self.search.left;
        !self.rng.is_script() || left.crashes > 0 || left.lease_changes > 0
    }

    /// How many choices were made.
    fn made(&self) -> usize {
        self.rng.script().map_or(0, |script| script.made.len())
    }

    /// All processes start, in one order.
    fn warm_up(&mut self) {
        let end = START + WARM_UP;
        while self.queue.next_at().is_some_and(|at| at < end)
            && let Some((at, what)) = self.queue.pop()
        {
            self.now = self.now.max(at);
            self.happen(what);
        }
        self.now = end;
        self.queue.distinguish_messages();
        self.queue.wait_until(end);
        // What callers and operators do in the run may happen at any moment.
        self.queue.release(end);
    }

    /// The alternatives for the next event. A crash before an event that only reads has the same
    /// effect as a crash after it.
    fn alternatives(&self) -> Vec<Next> {
        let events = self.queue.candidates();
        let left = self.search.left;
        let next = match left.overtakes {
            Some(0) => events.get(..1).unwrap_or_default(),
            Some(_) | None => &events,
        };
        let mut all: Vec<Next> = next.iter().copied().map(Next::Event).collect();
        let mut looks = next.iter().filter_map(|&number| self.queue.look(number));
        if !looks.any(What::is_point) {
            return all;
        }
        if left.crashes > 0 {
            all.extend((0..self.schedulers.len()).map(Next::SchedulerDies));
            all.extend((0..self.supervisors.len()).map(Next::SupervisorDies));
            all.extend((0..self.agents.processes()).map(Next::AgentDies));
        }
        if left.lease_changes > 0 {
            let owners = (0..self.schedulers.len()).filter(|&index| self.owns(index));
            all.extend(
                owners.flat_map(|index| [Next::OwnerPauses(index), Next::OwnerStops(index)]),
            );
        }
        if left.late_messages > 0 && events.len() > 1 {
            all.extend(events.into_iter().map(Next::Late));
        }
        all
    }

    /// Whether a scheduler runs a shard, and is not paused.
    fn owns(&self, index: usize) -> bool {
        let scheduler = &self.schedulers[index];
        !scheduler.readings.is_empty() && scheduler.paused_until <= self.now
    }

    /// Returns whether the run has ended.
    fn goes(&mut self, next: Next) -> bool {
        let left = &mut self.search.left;
        match next {
            Next::Event(number) => return self.event_happens(number),
            Next::SchedulerDies(index) => {
                left.crashes -= 1;
                self.crash_scheduler(index, RESTART_MICROS);
            }
            Next::SupervisorDies(index) => {
                left.crashes -= 1;
                self.kill_supervisor(index, RESTART_MICROS);
            }
            Next::AgentDies(index) => {
                left.crashes -= 1;
                self.kill_agent(index);
            }
            Next::OwnerPauses(index) => {
                left.lease_changes -= 1;
                let until = self.keep_until();
                self.pause_scheduler_for(index, until.since(self.now), false);
            }
            Next::OwnerStops(index) => {
                left.lease_changes -= 1;
                self.stop_scheduler(index);
            }
            Next::Late(number) => {
                left.late_messages -= 1;
                let until = self.keep_until();
                self.queue.keep(number, until);
            }
        }
        self.violation.is_some()
    }

    fn event_happens(&mut self, number: u64) -> bool {
        let Some((at, what)) = self.queue.take(number) else {
            return true;
        };
        self.now = self.now.max(at);
        self.seen.events += 1;
        let is_rest = self.may_be_over_after(&what) && self.is_over();
        self.happen(what);
        // The digest depends on the order of events, which must not distinguish states.
        self.judge.digest = 0;
        if self.now > self.plan.calm_at + BOUND || self.seen.events > EVENTS_MAX {
            self.report_unfinished();
        }
        self.violation.is_some() || is_rest
    }

    /// When a new pause or delay ends.
    fn keep_until(&mut self) -> Timestamp {
        let until = self.now + KEPT + Duration::from_micros(self.search.kept.len() as u64);
        self.search.kept.push(until);
        until
    }

    /// A lease was taken: all pauses and delays end.
    pub fn release_kept(&mut self) {
        for until in std::mem::take(&mut self.search.kept) {
            for scheduler in &mut self.schedulers {
                if scheduler.paused_until == until {
                    scheduler.paused_until = self.now;
                }
            }
            self.queue.release(until);
        }
    }

    /// A hash of everything that decides what can happen from now on, and how the judge rules.
    fn fingerprint(&self) -> u64 {
        let mut hash = Hash(DefaultHasher::new());
        let parts: [&dyn fmt::Debug; 9] = [
            &self.now,
            &self.queue.describe(self.search.left.overtakes.is_some()),
            &self.store,
            &self.services,
            &self.agents,
            &self.schedulers,
            &self.supervisors,
            &self.judge,
            &self.search,
        ];
        for part in parts {
            write!(hash, "{part:?};").expect("a hash takes everything");
        }
        hash.0.finish()
    }
}

/// Hashes text.
struct Hash(DefaultHasher);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
