//! One run: a shell that executes the engine's commands one by one, in any order that it may, and
//! dies between any two of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{
    Batch, BatchNumber, Command, EngineConfig, EngineStats, Event, Offset, OperationId, OwnerId,
    Ownership, PartitionEngine, PartitionId, Source, Stamp, StepRequest, StepState, Timestamp,
    Workflows,
};

use crate::agents::Agents;
use crate::rng::Rng;
use crate::workload::{requests, workflows};
use crate::world::{DurableCheckpoint, PARTITION, Record, World, bucket_of, check_batch};

const LEASE_MICROS: i64 = 3_000_000;
const ACTIONS_MAX: usize = 60_000;

/// Where a crash hit, in a batch's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CrashPoint {
    BeforeTaking,
    BeforePersisting,
    AmidPersisting,
    BeforeSending,
    AmidSending,
    BeforeSettling,
    BeforeCheckpoint,
}

/// What a run saw, so that all runs together can be shown to have seen everything.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub stats: EngineStats,
    pub crashes: BTreeMap<CrashPoint, u64>,
    pub stamps_ran_out: u64,
    pub window_was_full: u64,
    pub hints: u64,
    pub late_writes: u64,
    pub skipped_steps: u64,
    pub batches: Vec<Batch>,
}

/// Runs one seed to its end and judges it.
pub fn run(seed: u64) -> Seen {
    let mut run = Run::new(seed);
    run.live();
    run.world.judge(&run.agents.effects);
    run.seen.skipped_steps = run
        .world
        .rows
        .values()
        .flat_map(|row| &row.state.steps)
        .filter(|step| step.state == StepState::Skipped)
        .count() as u64;
    run.seen
}

struct Run {
    rng: Rng,
    now: Timestamp,
    config: Arc<EngineConfig>,
    workflows: Arc<Workflows>,
    world: World,
    agents: Agents,
    /// Requests that will come, last first.
    coming: Vec<(Timestamp, Record)>,
    /// What a dead owner's writes and messages still do.
    late: Vec<(Timestamp, LateEffect)>,
    crashes_left: u64,
    shell: Shell,
    seen: Seen,
}

enum LateEffect {
    Writes(Vec<Command>),
    Message(Box<StepRequest>),
}

/// What dies in a crash.
struct Shell {
    engine: PartitionEngine,
    requests_next: usize,
    replies_next: usize,
    loads: Vec<OperationId>,
    batches: VecDeque<Executing>,
    /// Entries of the index that were given to the engine, by sequence.
    hints: Vec<usize>,
    hinted_below_bucket: i64,
    last_stamp: Stamp,
    /// Operations that this owner has written.
    written: BTreeSet<OperationId>,
}

struct Executing {
    number: BatchNumber,
    taken_at: Timestamp,
    writes: VecDeque<Command>,
    sends: VecDeque<Command>,
    wrote: bool,
    sent: bool,
}

#[derive(Clone, Copy)]
enum Action {
    PollRequests,
    PollReplies,
    Load,
    Take,
    Write,
    Send(usize),
    Settle(usize),
    Tick,
    Sweep,
    Checkpoint,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let now = Timestamp::from_millis(1_700_000_000_000);
        let ms =
            |rng: &mut Rng, from: u64, to: u64| Duration::from_millis(from + rng.below(to - from));
        let config = Arc::new(EngineConfig {
            retention: Duration::from_secs(86_400),
            hand_off_after: ms(&mut rng, 5, 4_000),
            in_flight_max: 2 + rng.index(12),
            in_flight_bytes_max: 1 << 20,
            timeout_grace: ms(&mut rng, 0, 500),
            fresh_for: ms(&mut rng, 1, 5_000),
        });
        let workflows = workflows(&mut rng);
        let coming = requests(&mut rng, now);
        let mut world = World::new(workflows.clone(), now);
        let workflows = Arc::new(workflows);
        let shell = Shell::start(&mut world, &config, &workflows, now, &mut rng);
        Self {
            crashes_left: rng.below(6),
            rng,
            now,
            config,
            workflows,
            world,
            agents: Agents::default(),
            coming,
            late: Vec::new(),
            shell,
            seen: Seen::default(),
        }
    }

    fn live(&mut self) {
        for count in 0..ACTIONS_MAX {
            // Faults end at some time, or the run would not.
            if count == ACTIONS_MAX / 3 {
                self.agents.calm = true;
                self.crashes_left = 0;
            }
            self.arrive();
            if self.is_over() {
                self.collect_stats();
                return;
            }
            let actions = self.possible();
            let may_crash = self.crashes_left > 0 && self.rng.below(120) == 0;
            if may_crash {
                self.crash();
            } else if actions.is_empty() {
                self.act(Action::Checkpoint);
                self.wait();
            } else {
                let action = actions[self.rng.index(actions.len())];
                self.act(action);
                if self.rng.chance(5) {
                    self.act(Action::Checkpoint);
                }
                let micros = match self.rng.below(200) {
                    0 => self.rng.below(2_000_000),
                    _ => self.rng.below(400),
                };
                self.now = self.now + Duration::from_micros(micros);
            }
        }
        panic!(
            "it came to no end: {:?} {:?} {:?}",
            self.shell.engine.checkpoint(),
            self.shell.engine.in_flight(),
            self.world.rows
        );
    }

    fn is_over(&self) -> bool {
        let checkpoint = self.world.checkpoint;
        self.coming.is_empty()
            && self.late.is_empty()
            && self.agents.is_idle()
            && checkpoint.requests == self.world.requests.len()
            && checkpoint.replies == self.world.replies.len()
            && self.shell.batches.is_empty()
            && self.shell.engine.in_flight() == waybill_engine::InFlight::default()
            && self.world.is_at_rest()
    }

    /// Lets the rest of the world go on to `now`.
    fn arrive(&mut self) {
        while self.coming.last().is_some_and(|(at, _)| *at <= self.now) {
            let (_, record) = self.coming.pop().unwrap();
            self.world.requests.push(record);
        }
        self.late.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        while self.late.last().is_some_and(|(at, _)| *at <= self.now) {
            match self.late.pop().unwrap().1 {
                LateEffect::Message(request) => {
                    self.agents.request(*request, self.now, &mut self.rng);
                }
                LateEffect::Writes(commands) => {
                    self.seen.late_writes += 1;
                    for command in commands {
                        self.write(command, true);
                    }
                }
            }
        }
        let replies = self.agents.arrive(self.now, &mut self.rng);
        self.world.replies.extend(replies);
    }

    fn possible(&mut self) -> Vec<Action> {
        let shell = &self.shell;
        let mut actions = Vec::new();
        if shell.requests_next < self.world.requests.len() {
            if shell.engine.has_room() {
                actions.push(Action::PollRequests);
            } else {
                self.seen.window_was_full += 1;
            }
        }
        if shell.replies_next < self.world.replies.len() {
            actions.push(Action::PollReplies);
        }
        if !shell.loads.is_empty() {
            actions.push(Action::Load);
        }
        if shell.batches.len() < 4 {
            actions.push(Action::Take);
        }
        if shell.batches.iter().any(|batch| !batch.writes.is_empty()) {
            // More often than anything else, or the queue of batches would always be full.
            actions.extend([Action::Write; 4]);
        }
        for (index, batch) in shell.batches.iter().enumerate() {
            if !batch.writes.is_empty() {
                break;
            }
            if batch.sends.is_empty() {
                actions.push(Action::Settle(index));
            } else {
                actions.extend([Action::Send(index); 4]);
            }
        }
        if shell.engine.next_timer().is_some_and(|at| at <= self.now) {
            actions.push(Action::Tick);
        }
        if self.next_hint().is_some_and(|(due, _)| due <= self.now) {
            actions.push(Action::Sweep);
        }
        // Nothing but an empty take is no reason to stay awake.
        match actions[..] {
            [Action::Take] if !self.take_changes_something() => Vec::new(),
            _ => actions,
        }
    }

    fn take_changes_something(&mut self) -> bool {
        let before = self.shell.batches.len();
        self.act(Action::Take);
        self.shell.batches.len() > before || !self.shell.loads.is_empty()
    }

    /// The entry of the index that comes up next, of those not given to this engine.
    fn next_hint(&self) -> Option<(Timestamp, usize)> {
        self.world
            .index
            .iter()
            .enumerate()
            .filter(|(entry, (due, _))| {
                bucket_of(*due) >= self.shell.hinted_below_bucket
                    && !self.shell.hints.contains(entry)
            })
            .map(|(entry, (due, _))| (*due, entry))
            .min()
    }

    /// Nothing can be done: time passes until something can.
    fn wait(&mut self) {
        let next = [
            self.shell.engine.next_timer(),
            self.agents.next(),
            self.next_hint().map(|(due, _)| due),
            self.coming.last().map(|(at, _)| *at),
            self.late.iter().map(|(at, _)| *at).min(),
        ];
        let soon = self.now + Duration::from_millis(1);
        self.now = next.into_iter().flatten().min().unwrap_or(soon).max(soon);
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::PollRequests => self.poll_requests(),
            Action::PollReplies => {
                for _ in 0..=self.rng.below(4) {
                    let offset = self.shell.replies_next;
                    if let Some(reply) = self.world.replies.get(offset).cloned() {
                        self.shell.replies_next += 1;
                        self.apply(Event::Reply {
                            offset: Offset(offset as i64),
                            reply,
                        });
                    }
                }
            }
            Action::Load => {
                let operation = self
                    .shell
                    .loads
                    .remove(self.rng.index(self.shell.loads.len()));
                let row = self.world.rows.get(&operation).cloned().map(Box::new);
                self.apply(Event::Loaded { operation, row });
            }
            Action::Take => {
                let loads = self.shell.engine.loads();
                self.shell.loads.extend(loads);
                if let Some(batch) = self.shell.engine.take_batch(now) {
                    let shell = &mut self.shell;
                    check_batch(&batch.commands, &mut shell.last_stamp);
                    self.world
                        .check_taken_over(&batch.commands, &mut shell.written);
                    self.seen.batches.push(batch.clone());
                    self.shell.batches.push_back(Executing::new(batch, now));
                }
            }
            Action::Write => {
                let mut batches = self.shell.batches.iter_mut();
                if let Some(batch) = batches.find(|batch| !batch.writes.is_empty()) {
                    batch.wrote = true;
                    let command = batch.writes.pop_front().unwrap();
                    self.write(command, false);
                }
            }
            Action::Send(index) => {
                let batch = &mut self.shell.batches[index];
                batch.sent = true;
                if let Some(Command::Send(message)) = batch.sends.pop_front()
                    && let Some(request) = self.world.send(message)
                {
                    self.agents.request(request, now, &mut self.rng);
                }
            }
            Action::Settle(index) => {
                let batch = self.shell.batches.remove(index).unwrap().number;
                self.apply(Event::Settled { batch });
            }
            Action::Tick => self.apply(Event::Tick),
            Action::Sweep => {
                if let Some((due, entry)) = self.next_hint() {
                    self.seen.hints += 1;
                    let sequence = self.shell.hints.len() as u64;
                    self.shell.hints.push(entry);
                    let operation = self.world.index[entry].1;
                    self.apply(Event::Due {
                        sequence,
                        due,
                        operation,
                    });
                }
            }
            Action::Checkpoint => self.checkpoint(),
        }
    }

    fn apply(&mut self, event: Event) {
        self.shell.engine.apply(event, self.now);
    }

    fn poll_requests(&mut self) {
        for _ in 0..=self.rng.below(4) {
            let at = self.shell.requests_next;
            let Some(record) = self.world.requests.get(at).cloned() else {
                return;
            };
            self.shell.requests_next += 1;
            let offset = Offset(at as i64);
            let fingerprint = at as u64 + 1_000;
            let source = Source::Requests;
            self.apply(match record {
                Record::Create { request, rerouted } => Event::Request {
                    offset,
                    fingerprint,
                    bytes: 300,
                    rerouted,
                    request: *request,
                },
                Record::Poison => Event::Unreadable {
                    source,
                    offset,
                    fingerprint,
                    cause: "no such schema".to_owned(),
                    record: Box::default(),
                },
                Record::Misplaced { already_rerouted } => Event::Misplaced {
                    source,
                    offset,
                    fingerprint,
                    home: PartitionId(1),
                    already_rerouted,
                    record: Box::default(),
                },
            });
        }
    }

    fn write(&mut self, command: Command, late: bool) {
        match command {
            Command::Index { due, operation } => self.world.index(due, operation),
            Command::Attention { operation, .. } => {
                self.world.attention.insert(operation);
            }
            Command::Persist(change) => self.world.persist(*change, late),
            Command::Send(_) => unreachable!("messages are no writes"),
        }
    }

    /// Renews the lease, with the checkpoint and a new limit for stamps.
    fn checkpoint(&mut self) {
        let checkpoint = self.shell.engine.checkpoint();
        let requests = usize::try_from(checkpoint.requests.0).unwrap();
        assert!(checkpoint.consumed >= checkpoint.requests);
        if let Some(fingerprint) = checkpoint.requests_fingerprint {
            assert_eq!(fingerprint, requests as u64 - 1 + 1_000);
        }
        // A bucket is behind when it lies in the past for every batch whose entries are not
        // durable yet, and all of its entries were seen to.
        let unwritten = self
            .shell
            .batches
            .iter()
            .filter(|batch| !batch.writes.is_empty());
        let horizon = unwritten
            .map(|batch| batch.taken_at)
            .min()
            .unwrap_or(self.now);
        let settled = usize::try_from(checkpoint.due).unwrap();
        let unsettled = self.shell.hints[settled..].iter();
        let unhinted = self.next_hint().map(|(due, _)| due);
        let bucket = unsettled
            .map(|entry| self.world.index[*entry].0)
            .chain(unhinted)
            .chain([horizon])
            .map(bucket_of)
            .min()
            .unwrap();
        let bucket = bucket.max(self.world.checkpoint.bucket);
        self.shell.hinted_below_bucket = bucket;
        self.world.commit(DurableCheckpoint {
            requests,
            replies: usize::try_from(checkpoint.replies.0).unwrap(),
            bucket,
        });
        self.act(Action::Take);
        let before = self.shell.batches.len();
        let limit = self.world.stamp_limit.0.max(self.now.0) + 2 * LEASE_MICROS;
        self.world.stamp_limit = Stamp(limit);
        self.apply(Event::StampLimit(Stamp(limit)));
        self.act(Action::Take);
        if self.shell.batches.len() > before {
            self.seen.stamps_ran_out += 1;
        }
    }

    fn crash(&mut self) {
        self.crashes_left -= 1;
        self.collect_stats();
        let point = self.crash_point();
        *self.seen.crashes.entry(point).or_default() += 1;
        for batch in std::mem::take(&mut self.shell.batches) {
            let at = self.now + Duration::from_micros(self.rng.below(3_000_000));
            if batch.writes.is_empty() {
                // Its messages may still be in a buffer of the network.
                for command in batch.sends {
                    if let Command::Send(waybill_engine::Message::Step(request)) = command
                        && self.rng.chance(30)
                    {
                        self.late.push((at, LateEffect::Message(Box::new(request))));
                    }
                }
            } else {
                // The write that was under way may still reach the store, wholly or in part.
                if self.rng.chance(30) {
                    let count = self.rng.index(batch.writes.len()) + 1;
                    let writes = batch.writes.into_iter().take(count).collect();
                    self.late.push((at, LateEffect::Writes(writes)));
                }
                break;
            }
        }
        self.now = self.now + Duration::from_micros(self.rng.below(8_000_000));
        self.world.check_checkpoint();
        self.shell = Shell::start(
            &mut self.world,
            &self.config,
            &self.workflows,
            self.now,
            &mut self.rng,
        );
    }

    /// How far the batch had got that the crash hit, if there was one.
    fn crash_point(&mut self) -> CrashPoint {
        let Some(index) = self.shell.batches.len().checked_sub(1) else {
            let checkpoint = self.shell.engine.checkpoint();
            let moved = checkpoint.requests.0 > self.world.checkpoint.requests as i64;
            return if moved {
                CrashPoint::BeforeCheckpoint
            } else {
                CrashPoint::BeforeTaking
            };
        };
        let batch = &self.shell.batches[self.rng.index(index + 1)];
        match (
            batch.wrote,
            batch.writes.is_empty(),
            batch.sent,
            batch.sends.is_empty(),
        ) {
            (_, true, _, true) => CrashPoint::BeforeSettling,
            (_, true, true, false) => CrashPoint::AmidSending,
            (_, true, false, false) => CrashPoint::BeforeSending,
            (true, false, _, _) => CrashPoint::AmidPersisting,
            (false, false, _, _) => CrashPoint::BeforePersisting,
        }
    }

    fn collect_stats(&mut self) {
        let stats = self.shell.engine.take_stats();
        self.seen.add(&stats);
    }
}

impl Shell {
    fn start(
        world: &mut World,
        config: &Arc<EngineConfig>,
        workflows: &Arc<Workflows>,
        now: Timestamp,
        rng: &mut Rng,
    ) -> Self {
        let floor = world.stamp_limit;
        // Now and then hardly any stamps, so that they run out before the first renewal.
        let stamps = if rng.chance(10) { 2 } else { 2 * LEASE_MICROS };
        world.epoch = world.epoch.next();
        world.replies_end = world.replies.len();
        world.stamp_limit = Stamp(floor.0.max(now.0) + stamps);
        let checkpoint = world.checkpoint;
        let ownership = Ownership {
            partition: PARTITION,
            partitions: 8,
            owner: OwnerId(rng.uuid()),
            epoch: world.epoch,
            requests_next: Offset(checkpoint.requests as i64),
            replies_next: Offset(checkpoint.replies as i64),
            requests_end: Offset(world.requests.len() as i64),
            replies_end: Offset(world.replies.len() as i64),
            stamp_floor: floor,
            stamp_limit: world.stamp_limit,
        };
        Self {
            engine: PartitionEngine::new(Arc::clone(config), Arc::clone(workflows), ownership),
            requests_next: checkpoint.requests,
            replies_next: checkpoint.replies,
            loads: Vec::new(),
            batches: VecDeque::new(),
            hints: Vec::new(),
            hinted_below_bucket: checkpoint.bucket,
            last_stamp: Stamp(floor.0 - 1),
            written: BTreeSet::new(),
        }
    }
}

impl Executing {
    fn new(batch: Batch, now: Timestamp) -> Self {
        let (sends, writes) = batch
            .commands
            .into_iter()
            .partition(|command| matches!(command, Command::Send(_)));
        Self {
            number: batch.number,
            taken_at: now,
            writes,
            sends,
            wrote: false,
            sent: false,
        }
    }
}

impl Seen {
    fn add(&mut self, stats: &EngineStats) {
        let sum = &mut self.stats;
        sum.created += stats.created;
        sum.duplicates += stats.duplicates;
        sum.rejected += stats.rejected;
        sum.processed += stats.processed;
        sum.failed += stats.failed;
        sum.retries += stats.retries;
        sum.time_outs += stats.time_outs;
        sum.not_attempted += stats.not_attempted;
        sum.stale_replies += stats.stale_replies;
        sum.late_successes += stats.late_successes;
        sum.unknown_replies += stats.unknown_replies;
        sum.handed_off += stats.handed_off;
        sum.resumed += stats.resumed;
        sum.unreadable += stats.unreadable;
        sum.misplaced += stats.misplaced;
        sum.dead_lettered += stats.dead_lettered;
        sum.internal_errors += stats.internal_errors;
    }

    /// Takes in what another run saw.
    pub fn merge(&mut self, other: &Self) {
        self.add(&other.stats);
        for (point, count) in &other.crashes {
            *self.crashes.entry(*point).or_default() += count;
        }
        self.stamps_ran_out += other.stamps_ran_out;
        self.window_was_full += other.window_was_full;
        self.hints += other.hints;
        self.late_writes += other.late_writes;
        self.skipped_steps += other.skipped_steps;
    }
}
