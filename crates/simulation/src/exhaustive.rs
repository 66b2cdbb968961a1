//! All interleavings of a short run: in every state, the search tries every event that may come
//! next, until every operation has ended. It visits a state that two runs reach once.
//!
//! The loops of the product cannot be copied, so a new run begins for each alternative, with a
//! script of its first choices.

#![expect(
    clippy::disallowed_types,
    reason = "threads share the runs of a search"
)]

use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use waybill_engine::{EngineConfig, OperationRequest};

use crate::bugs::Bug;
use crate::crash_points::Course;
use crate::history::Violation;
use crate::plan::{Plan, START};
use crate::rng::Rng;
use crate::run::{Budget, Run, SearchEnd, Visited, WARM_UP};
use crate::workload::Record;
use crate::{on_all_threads, setting};

/// What a search covers.
#[derive(Clone, Copy, Debug)]
struct Space {
    course: Course,
    budget: Budget,
}

/// The spaces that every run of the tests searches, in seconds.
const SMALL: [Space; 9] = [
    Space::new(Course::Success).crashes(1).overtakes(1),
    Space::new(Course::Success).lease_changes(1).overtakes(1),
    Space::new(Course::Success).late_messages(1).overtakes(1),
    Space::new(Course::Refusal).crashes(1).overtakes(0),
    Space::new(Course::Refusal).lease_changes(1).overtakes(0),
    Space::new(Course::Cancel).crashes(1).overtakes(1),
    Space::new(Course::Cancel).lease_changes(1).overtakes(1),
    Space::new(Course::Repartitioning).crashes(1).overtakes(0),
    Space::new(Course::Repartitioning)
        .lease_changes(1)
        .overtakes(0),
];
/// The additional spaces of a thorough search, in half a minute of CPU.
const LARGE: [Space; 2] = [
    Space::new(Course::Success),
    Space::new(Course::Success)
        .crashes(1)
        .lease_changes(1)
        .overtakes(0),
];

impl Space {
    /// All interleavings of a course without faults.
    const fn new(course: Course) -> Self {
        Self {
            course,
            budget: Budget {
                crashes: 0,
                lease_changes: 0,
                late_messages: 0,
                overtakes: None,
            },
        }
    }

    const fn crashes(mut self, count: u32) -> Self {
        self.budget.crashes = count;
        self
    }

    const fn lease_changes(mut self, count: u32) -> Self {
        self.budget.lease_changes = count;
        self
    }

    const fn late_messages(mut self, count: u32) -> Self {
        self.budget.late_messages = count;
        self
    }

    const fn overtakes(mut self, count: u32) -> Self {
        self.budget.overtakes = Some(count);
        self
    }

    fn plan(self) -> Plan {
        let mut plan = self.course.plan();
        // All requests have the same time: they may arrive in any order, at any moment of the run.
        let at = START + WARM_UP;
        for ask in &mut plan.asks {
            ask.at = at;
            // Without records of each step: nothing waits for them, and the announcement of the end
            // is a record of the same kind.
            if let Record::Request { request, .. } = &mut ask.record
                && let OperationRequest::Create(create) = Rc::make_mut(request)
            {
                create.reply_to = None;
            }
        }
        plan.config = Arc::new(EngineConfig {
            publish_step_status: false,
            ..(*plan.config).clone()
        });
        plan.repartition_at = plan.repartition_at.map(|_| at);
        plan
    }

    /// Runs a script, and returns the run at its end.
    fn run(
        self,
        script: Vec<u8>,
        bug: Option<Bug>,
        keep_history: bool,
        visited: &Visited,
    ) -> (Run, SearchEnd) {
        let mut run = Run::new(self.plan(), Rng::of_script(script), bug);
        run.history.is_kept = keep_history;
        run.search.left = self.budget;
        let end = run.explore(visited);
        if run.violation.is_none() && end == SearchEnd::Over {
            run.judge_the_end();
        }
        (run, end)
    }

    /// Searches the whole space, or until a rule is broken.
    fn search(self, bug: Option<Bug>) -> Result<Found, Box<Broken>> {
        let search = Search {
            space: self,
            bug,
            visited: Visited::default(),
            work: Mutex::new(Work {
                scripts: vec![Vec::new()],
                running: 0,
            }),
            more: Condvar::new(),
            is_over: AtomicBool::new(false),
            broken: Mutex::new(None),
            runs: AtomicUsize::new(0),
            ends: AtomicUsize::new(0),
            longest: AtomicUsize::new(0),
        };
        on_all_threads(|| search.work());
        match search.broken.into_inner().unwrap() {
            Some(broken) => Err(broken),
            None => Ok(Found {
                states: search.visited.len(),
                runs: search.runs.into_inner(),
                ends: search.ends.into_inner(),
                longest: search.longest.into_inner(),
            }),
        }
    }
}

/// What a search has found.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// The states with more than one possible event.
    states: usize,
    /// The runs. Each begins with different choices.
    runs: usize,
    /// The runs that reached an end through states that no other run had reached.
    ends: usize,
    /// The most choices of a run.
    longest: usize,
}

/// A run that breaks a rule.
#[derive(Debug)]
struct Broken {
    violation: Violation,
    script: Vec<u8>,
    /// The number of runs up to this one.
    runs: usize,
}

/// A search in progress.
struct Search {
    space: Space,
    bug: Option<Bug>,
    visited: Visited,
    work: Mutex<Work>,
    more: Condvar,
    is_over: AtomicBool,
    broken: Mutex<Option<Box<Broken>>>,
    runs: AtomicUsize,
    ends: AtomicUsize,
    longest: AtomicUsize,
}

struct Work {
    /// The first choices of the runs to come. A thread takes the last one, which keeps the list
    /// short.
    scripts: Vec<Vec<u8>>,
    /// How many threads run a script, which may add others.
    running: usize,
}

/// Counts a run as ended when it is dropped. A panic ends the search: other threads would wait for
/// what the run adds.
struct RunEnd<'a>(&'a Search);

impl Drop for RunEnd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_over.store(true, Ordering::Relaxed);
        }
        let work = self.0.work.lock();
        work.unwrap_or_else(PoisonError::into_inner).running -= 1;
        self.0.more.notify_all();
    }
}

impl Search {
    fn work(&self) {
        while let Some(script) = self.next() {
            let end = RunEnd(self);
            let others = self.run(script);
            self.work.lock().unwrap().scripts.extend(others);
            drop(end);
        }
    }

    fn next(&self) -> Option<Vec<u8>> {
        let mut work = self.work.lock().unwrap();
        loop {
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(script) = work.scripts.pop() {
                work.running += 1;
                return Some(script);
            }
            if work.running == 0 {
                return None;
            }
            work = self.more.wait(work).unwrap();
        }
    }

    /// Runs a script, and returns the scripts that differ in one of its later choices.
    fn run(&self, script: Vec<u8>) -> Vec<Vec<u8>> {
        let given = script.len();
        let (run, end) = self.space.run(script, self.bug, false, &self.visited);
        let runs = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        let made = run.rng.script().map_or(&[][..], |script| &script.made);
        self.longest.fetch_max(made.len(), Ordering::Relaxed);
        let chosen: Vec<u8> = made.iter().map(|choice| choice.chosen).collect();
        if let Some(violation) = run.violation {
            self.is_over.store(true, Ordering::Relaxed);
            *self.broken.lock().unwrap() = Some(Box::new(Broken {
                violation,
                script: chosen,
                runs,
            }));
            return Vec::new();
        }
        if end == SearchEnd::Over {
            self.ends.fetch_add(1, Ordering::Relaxed);
        }
        let new = made.iter().enumerate().skip(given);
        let others = new.flat_map(|(at, choice)| {
            let others = 1..choice.alternatives;
            let before = &chosen[..at];
            others.map(move |other| [before, &[other]].concat())
        });
        others.collect()
    }
}

/// Searches short runs completely.
///
/// # Panics
///
/// If a run breaks a rule, with its history.
pub fn check_exhaustively() {
    let mut spaces = SMALL.to_vec();
    if setting("WAYBILL_TEST_EXHAUSTIVE").is_some_and(|large| large > 0) {
        spaces.extend(LARGE);
    }
    for space in spaces {
        match space.search(None) {
            Ok(found) => print(&format!("{space}: {found}")),
            Err(broken) => panic!("{}", describe(space, &broken, None)),
        }
    }
}

/// Checks that a search finds planted bugs.
///
/// # Panics
///
/// If it misses one.
pub fn check_searches_reveal_bugs() {
    let success = Space::new(Course::Success);
    for (bug, space) in [
        (Bug::CheckpointEarly, success.crashes(1).overtakes(1)),
        (Bug::SendBeforePersist, success.overtakes(1)),
        (Bug::IgnoreLease, success.lease_changes(1).overtakes(1)),
        (Bug::KeyPerAttempt, success.late_messages(1).overtakes(1)),
        (Bug::ResumeWithoutAsking, success.crashes(1).overtakes(1)),
        (
            Bug::ForgetUnknownInUndo,
            Space::new(Course::Refusal).crashes(1).overtakes(0),
        ),
    ] {
        let broken = space.search(Some(bug)).err();
        let broken = broken.unwrap_or_else(|| panic!("{bug:?} breaks no rule"));
        let (rule, runs) = (broken.violation.rule.describe(), broken.runs);
        print(&format!("{bug:?}: \"{rule}\", path {runs}"));
    }
}

/// Describes a run that breaks a rule.
fn describe(space: Space, broken: &Broken, bug: Option<Bug>) -> String {
    let (run, _) = space.run(broken.script.clone(), bug, true, &Visited::default());
    let about = broken.violation.operation;
    format!(
        "run {}: \"{}\" is broken, {space}, choices {:?}\n{}\n{}",
        broken.runs,
        broken.violation.rule.describe(),
        broken.script,
        run.history.of(about, START),
        broken.violation.what
    )
}

fn print(line: &str) {
    #[expect(clippy::disallowed_macros, reason = "the developer sees how many")]
    {
        println!("{line}");
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Budget {
            crashes,
            lease_changes,
            late_messages,
            overtakes,
        } = self.budget;
        write!(
            f,
            "{:?}, {crashes} crashes, {lease_changes} changes of a lease, {late_messages} late \
             messages, ",
            self.course
        )?;
        match overtakes {
            Some(count) => write!(f, "{count} messages out of turn"),
            None => write!(f, "messages in any order"),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, {} paths, of which {} go to an end and the others to a known state; at most \
             {} choices on a path",
            self.states, self.runs, self.ends, self.longest
        )
    }
}
