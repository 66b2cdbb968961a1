//! One run: its events in the order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use waybill_engine::{OperationId, Timestamp};
use waybill_state::{DueBucket, DueEntry};

use crate::calls::{Answer, Call};
use crate::process::{Caller, Process};
use crate::rng::Rng;
use crate::seen::{Seen, Sight};
use crate::store::{Shard, Store};
use crate::workload::{HandOff, Kind, hand_offs};

/// The wall clock at the start of a run.
pub const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// A future event.
#[derive(Debug)]
pub enum What {
    /// The first scheduler stores the first cursor of an index shard.
    FirstCursor(usize),
    HandOff(HandOff),
    Row(HandOff),
    Readable(OperationId),
    Check {
        shard: usize,
        entry: DueEntry,
    },
    Consume(usize),
    Start(usize),
    Fault,
    Apply(Caller, Call, Option<usize>),
    Answer(Caller, Answer),
}

#[derive(Debug)]
pub struct Run {
    pub seed: u64,
    pub rng: Rng,
    /// Microseconds since the start.
    pub now: u64,
    queue: BinaryHeap<Reverse<Queued>>,
    queued: u64,
    pub calls: u64,
    pub store: Store,
    pub processes: Vec<Process>,
    /// The percentage of calls that fail or are slow.
    pub faults: u64,
    /// How many times processes die, are paused or are stopped.
    pub crashes: u64,
    calm_at: u64,
    pub kinds: BTreeMap<OperationId, Kind>,
    /// How many operations are not handed off yet.
    pub unwritten: usize,
    /// Operations whose recovery a scheduler has done.
    pub handled: BTreeSet<OperationId>,
    /// Entries that were not behind the cursor when their writer read it.
    pub relied_on: BTreeSet<(usize, DueEntry)>,
    pub seen: Seen,
}

#[derive(Debug)]
struct Queued {
    at: u64,
    number: u64,
    what: What,
}

impl Run {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let shards = 1 + rng.index(2);
        let mut store = Store::default();
        store.shards.resize_with(shards, Shard::default);
        let hand_offs = hand_offs(&mut rng, u32::try_from(shards).unwrap());
        let is_faultless = rng.chance(10);
        let (faults, crashes) = match is_faultless {
            true => (0, 0),
            false => (rng.below(12), rng.below(8)),
        };
        let count = 1 + rng.index(3);
        let processes = (0..count).map(|number| Process::new(&mut rng, number, 0, shards));
        let processes = processes.collect();
        let kinds = hand_offs.iter().map(|(_, of)| (of.operation, of.kind));
        let mut run = Self {
            seed,
            now: 0,
            queue: BinaryHeap::new(),
            queued: 0,
            calls: 0,
            store,
            processes,
            faults,
            crashes,
            calm_at: rng.between(5_000_000, 40_000_000),
            kinds: kinds.collect(),
            unwritten: hand_offs.len(),
            handled: BTreeSet::new(),
            relied_on: BTreeSet::new(),
            seen: Seen::default(),
            rng,
        };
        for (at, hand_off) in hand_offs {
            run.later(at, What::HandOff(hand_off));
        }
        for shard in 0..shards {
            let at = run.rng.below(3_000_000);
            run.later(at, What::FirstCursor(shard));
            run.later(0, What::Consume(shard));
        }
        for number in 0..count {
            let at = run.rng.below(2_000_000);
            run.later(at, What::Start(number));
        }
        for _ in 0..crashes {
            let at = run.rng.below(run.calm_at);
            run.later(at, What::Fault);
        }
        run
    }

    pub fn later(&mut self, after: u64, what: What) {
        self.queued += 1;
        self.queue.push(Reverse(Queued {
            at: self.now + after,
            number: self.queued,
            what,
        }));
    }

    pub fn wall(&self) -> Timestamp {
        START + Duration::from_micros(self.now)
    }

    pub fn is_calm(&self) -> bool {
        self.now >= self.calm_at
    }

    /// Runs until every operation is woken.
    pub fn finish(mut self) -> Seen {
        let bound = u64::try_from(Self::bound().as_micros()).unwrap();
        let end = self.calm_at.max(65_000_000) + bound;
        while let Some(Reverse(next)) = self.queue.pop() {
            let is_over = self.unwritten == 0 && self.handled.len() == self.kinds.len();
            if next.at > end || (is_over && self.is_calm()) {
                break;
            }
            self.now = next.at;
            self.happens(next.what);
        }
        self.judge_end();
        self.seen
    }

    fn happens(&mut self, what: What) {
        match what {
            What::FirstCursor(shard) => {
                let cursor = DueBucket::of(self.wall() - Duration::from_secs(5));
                let stored = &mut self.store.shards[shard].cursor;
                *stored = Some(stored.map_or(cursor, |stored| stored.max(cursor)));
            }
            What::HandOff(hand_off) => self.hand_off(hand_off),
            What::Row(hand_off) => self.row(hand_off),
            What::Readable(operation) => drop(self.store.unreadable.remove(&operation)),
            What::Check { shard, entry } => self.check(shard, entry),
            What::Consume(shard) => self.consume(shard),
            What::Start(number) => self.start(number),
            What::Fault => self.fault(),
            What::Apply(caller, call, part) => self.apply(caller, call, part),
            What::Answer(caller, answer) => self.answer(caller, answer),
        }
    }

    fn fault(&mut self) {
        let number = self.rng.index(self.processes.len());
        if self.processes[number].incarnation == 0 {
            return;
        }
        match self.rng.below(3) {
            0 => {
                self.seen.count(Sight::Crashes);
                self.die(number);
            }
            1 => {
                self.seen.count(Sight::Pauses);
                let until = self.now + self.rng.between(100_000, 12_000_000);
                self.processes[number].paused_until = until;
            }
            _ => self.stop(number),
        }
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Queued {}
