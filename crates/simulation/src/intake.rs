//! Ingestion's intake, the code that ships (`waybill_ingestion_core`), among clients, a broker and a
//! store that fail.
//!
//! One to three processes accept requests for one partition. Clients send requests, repeat them
//! with the same id wherever they want, send others with the same id, and leave. The broker appends
//! at once, late, never, or without an answer; it falls silent for seconds. Processes die at any
//! moment. A scheduler that is modelled turns the first request with an id into a row, some time
//! later. The judge compares every answer with the log and the rows.

mod broker;
mod clients;
mod judge;
mod processes;

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use waybill_engine::{OperationId, Priority, RequestHash};
use waybill_ingestion_core::{Failed, Position};

use self::clients::{Attempt, Client};
use self::judge::{IntakeRule, IntakeSight};
use self::processes::Process;
use crate::rng::Rng;

/// How many seeds run.
const SEEDS: u64 = if cfg!(debug_assertions) {
    1_000
} else {
    40_000
};
/// When the faults end.
const CALM: Duration = Duration::from_secs(40);
/// How long after that every client must have an answer.
const BOUND: Duration = Duration::from_secs(120);

/// Runs seeds of the intake among random faults; all must keep every rule, and together they must
/// have seen everything. The variables are those of [`check_random_faults`](crate::check_random_faults).
///
/// # Panics
///
/// If a run breaks a rule, with its history, or if something was hardly seen.
pub fn check_intake() {
    let seeds = match crate::setting("WAYBILL_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = crate::setting("WAYBILL_TEST_FIRST_SEED").unwrap_or(0);
            first..first + crate::setting("WAYBILL_TEST_SEEDS").unwrap_or(SEEDS)
        }
    };
    let next = AtomicU64::new(seeds.start);
    let end = AtomicU64::new(seeds.end);
    let seen = crate::on_all_threads(|| {
        let mut seen = BTreeMap::<IntakeSight, u64>::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end.load(Ordering::Relaxed) {
                return seen;
            }
            let world = World::run(seed, false);
            if world.broken.is_some() {
                end.fetch_min(seed, Ordering::Relaxed);
                return seen;
            }
            for (sight, count) in world.seen {
                *seen.entry(sight).or_default() += count;
            }
        }
    });
    let failed = end.into_inner();
    if failed < seeds.end {
        let world = World::run(failed, true);
        let (rule, what) = world.broken.expect("the same seed gives the same run");
        let history = world.history.join("\n");
        panic!(
            "seed {failed}: \"{}\" is broken at the intake\n{history}\n{what}",
            rule.describe()
        );
    }
    let count = seeds.end - seeds.start;
    let rare = IntakeSight::ALL.into_iter().filter_map(|sight| {
        let seen: u64 = seen.iter().filter_map(|seen| seen.get(&sight)).sum();
        (seen <= count / 400).then(|| format!("{sight:?}: {seen}"))
    });
    let rare: Vec<_> = rare.collect();
    assert!(
        count < SEEDS || rare.is_empty(),
        "hardly seen in {count} seeds: {rare:#?}"
    );
}

/// A record of a request.
#[derive(Clone, Copy, Debug)]
struct Record {
    attempt: usize,
    id: OperationId,
    hash: RequestHash,
    priority: Priority,
}

/// A future event.
#[derive(Debug)]
enum Event {
    /// A client sends its request.
    Send { client: usize },
    /// The read of the row has ended.
    Read { attempt: usize },
    /// A record arrives at the broker.
    Append { produced: u64 },
    /// A record that the broker delayed is appended.
    AppendLate { produced: u64 },
    /// The producer reports the outcome of a record.
    Delivered {
        produced: u64,
        outcome: Result<Position, Failed>,
    },
    /// The producer drops a record without an outcome.
    Dropped { produced: u64 },
    /// An attempt has waited for as long as a driver waits.
    GiveUp { attempt: usize },
    /// The client of an attempt no longer waits.
    Leave { attempt: usize },
    /// The scheduler reads a record.
    Consume,
    /// A process dies.
    Crash { process: usize },
    /// A process starts.
    Start { process: usize },
    /// An operation is cancelled before it is created.
    CancelEarly { client: usize },
}

/// A record that was passed to the producer.
#[derive(Debug)]
struct Produced {
    process: usize,
    life: u32,
    record: Record,
}

/// A run.
struct World {
    rng: Rng,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, Event>,
    scheduled: u64,
    /// How long the producer and the drivers wait.
    accept_timeout: Duration,
    /// The percentage of appends that go wrong.
    faults: u64,
    /// When the broker is silent.
    outages: Vec<(Duration, Duration)>,
    processes: Vec<Process>,
    clients: Vec<Client>,
    attempts: Vec<Attempt>,
    produced: BTreeMap<u64, Produced>,
    /// The logs by priority.
    log: BTreeMap<Priority, Vec<Record>>,
    consumed: BTreeMap<Priority, usize>,
    /// The hash of the request that created each row; `None` for a tombstone.
    rows: BTreeMap<OperationId, Option<RequestHash>>,
    /// All rows that ever were.
    rows_ever: BTreeSet<(OperationId, [u8; 16])>,
    seen: BTreeMap<IntakeSight, u64>,
    broken: Option<(IntakeRule, String)>,
    keeps_history: bool,
    history: Vec<String>,
}

impl World {
    fn run(seed: u64, keeps_history: bool) -> Self {
        let mut rng = Rng::new(seed);
        let accept_timeout = Duration::from_millis(rng.between(500, 10_000));
        let outages = (0..rng.below(3)).map(|_| {
            let from = Duration::from_millis(rng.below(30_000));
            (from, from + Duration::from_millis(rng.between(100, 8_000)))
        });
        let outages = outages.collect();
        let processes = 1 + rng.index(3);
        let accepted_max = rng.index(6);
        let room = 1 + rng.index(12);
        let mut world = Self {
            accept_timeout,
            faults: [5, 20, 60][rng.index(3)],
            outages,
            processes: (0..processes)
                .map(|_| Process::new(accepted_max, room, accept_timeout))
                .collect(),
            clients: Client::all(&mut rng),
            rng,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            scheduled: 0,
            attempts: Vec::new(),
            produced: BTreeMap::new(),
            log: BTreeMap::new(),
            consumed: BTreeMap::new(),
            rows: BTreeMap::new(),
            rows_ever: BTreeSet::new(),
            seen: BTreeMap::new(),
            broken: None,
            keeps_history,
            history: Vec::new(),
        };
        world.begin();
        while world.broken.is_none()
            && let Some(Reverse((at, number))) = world.queue.pop()
        {
            world.now = at;
            let event = world.events.remove(&number).expect("it was scheduled");
            world.happen(event);
            if world.now > CALM + BOUND {
                break;
            }
        }
        if world.broken.is_none() {
            world.judge_the_end();
        }
        world
    }

    fn begin(&mut self) {
        for client in 0..self.clients.len() {
            let after = self.rng.below(20_000);
            self.later_ms(after, Event::Send { client });
            if self.rng.chance(5) {
                let after = self.rng.below(20_000);
                self.later_ms(after, Event::CancelEarly { client });
            }
        }
        for _ in 0..self.rng.below(4) {
            let process = self.rng.index(self.processes.len());
            let after = self.rng.below(30_000);
            self.later_ms(after, Event::Crash { process });
        }
        self.later_ms(100, Event::Consume);
    }

    fn happen(&mut self, event: Event) {
        self.note(|| format!("{event:?}"));
        match event {
            Event::Send { client } => self.send(client),
            Event::Read { attempt } => self.read(attempt),
            Event::Append { produced } => self.arrives(produced),
            Event::AppendLate { produced } => _ = self.append(produced),
            Event::Delivered { produced, outcome } => self.delivered(produced, outcome),
            Event::Dropped { produced } => self.dropped(produced),
            Event::GiveUp { attempt } => self.give_up(attempt),
            Event::Leave { attempt } => self.attempts[attempt].waiter.set(true),
            Event::Consume => self.consume(),
            Event::Crash { process } => self.crash(process),
            Event::Start { process } => self.start(process),
            Event::CancelEarly { client } => self.cancel_early(client),
        }
    }

    fn is_calm(&self) -> bool {
        self.now >= CALM
    }

    fn later(&mut self, after: Duration, event: Event) {
        self.scheduled += 1;
        self.events.insert(self.scheduled, event);
        self.queue.push(Reverse((self.now + after, self.scheduled)));
    }

    fn later_ms(&mut self, after: u64, event: Event) {
        self.later(Duration::from_millis(after), event);
    }

    /// The duration of a network transfer, in ms.
    fn travel(&mut self) -> u64 {
        match self.is_calm() || self.rng.chance(85) {
            true => self.rng.below(10),
            false => self.rng.below(1_500),
        }
    }

    fn saw(&mut self, sight: IntakeSight) {
        *self.seen.entry(sight).or_default() += 1;
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.keeps_history {
            let at = self.now.as_secs_f64();
            self.history.push(format!("{at:>9.3}s  {}", line()));
        }
    }

    fn fail(&mut self, rule: IntakeRule, what: String) {
        self.broken.get_or_insert((rule, what));
    }

    /// Turns the next record of a log into a row, unless its id has one.
    fn consume(&mut self) {
        // Nothing else is scheduled: the run is over.
        if self.is_calm() && self.events.is_empty() {
            return;
        }
        let pause = match self.is_calm() {
            true => 100,
            false => self.rng.between(1, 800),
        };
        self.later_ms(pause, Event::Consume);
        for priority in [Priority::High, Priority::Normal] {
            let next = self.consumed.entry(priority).or_default();
            let Some(record) = self.log.get(&priority).and_then(|log| log.get(*next)) else {
                continue;
            };
            *next += 1;
            let record = *record;
            if let Some(Some(_)) = self.rows.get(&record.id) {
                self.saw(IntakeSight::SecondRecord);
                continue;
            }
            self.rows.insert(record.id, Some(record.hash));
            self.rows_ever.insert((record.id, record.hash.0));
        }
    }

    fn cancel_early(&mut self, client: usize) {
        let id = self.clients[client].id;
        if let Entry::Vacant(entry) = self.rows.entry(id) {
            entry.insert(None);
            self.saw(IntakeSight::Tombstone);
        }
    }
}
