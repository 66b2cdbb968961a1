//! A supervisor's process: it performs the effects of its state machines, and may die, be paused or
//! be stopped.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{BootTime, Now, OwnerId, PartitionId, Workflows};
use waybill_state::{DueEntry, Lease};
use waybill_supervisor_core::Pace;
use waybill_supervisor_core::audit::{self, Audit, AuditSettings};
use waybill_supervisor_core::index_shard::{self, IndexShard, IndexShardSettings};

use crate::calls::{Answer, Call};
use crate::rng::Rng;
use crate::run::{Run, What};
use crate::seen::Sight;

#[derive(Debug)]
pub struct Process {
    pub incarnation: u32,
    pub paused_until: u64,
    pub is_stopping: bool,
    wall_offset: i64,
    /// How much faster its boot clock is, in parts per million.
    drift: u64,
    pub pace: Pace,
    pub rate: u32,
    /// Which index shard reads pages of the attention table, and which ones wait for it.
    reader: Option<usize>,
    waiting: VecDeque<usize>,
    pub sweeps: Vec<Sweeping>,
    pub audits: Vec<Option<Auditing>>,
    /// When chunks were published, and how many recoveries they had.
    pub published: VecDeque<(Duration, usize)>,
}

#[derive(Debug)]
pub struct Sweeping {
    machine: IndexShard,
    /// The number of the call in progress.
    call: u64,
    is_waiting: bool,
    /// The lease write in progress, and when it was sent.
    writes: Option<(Lease, u64)>,
    /// The lease, as far as the process knows, and how long it is valid.
    pub lease: Option<(Lease, u64)>,
    pub is_ended: bool,
    /// The entries that this owner has read.
    pub read: BTreeSet<DueEntry>,
}

#[derive(Debug)]
pub struct Auditing {
    machine: Audit,
    call: u64,
}

/// Whose call it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    pub process: usize,
    pub incarnation: u32,
    pub shard: usize,
    call: u64,
}

pub const LEASE: Duration = Duration::from_secs(6);
pub const MARGIN: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(3);
const AUDIT_INTERVAL: Duration = Duration::from_secs(5);

impl Process {
    pub fn new(rng: &mut Rng, number: usize, incarnation: u32, shards: usize) -> Self {
        let rate = [4, 12, 40][rng.index(3)];
        let pace = Pace::new(rate);
        let owner = u128::from(incarnation) << 32 | number as u128;
        let settings = IndexShardSettings {
            index_shard: PartitionId(0),
            owner: OwnerId(Uuid::from_u128(owner + 1)),
            name: format!("supervisor-{number}").into(),
            workflows: workflows(),
            timeout_grace: Duration::ZERO,
            lease: LEASE,
            lease_margin: MARGIN,
            is_store_exclusive: false,
            grace: GRACE,
            interval: Duration::from_millis(rng.between(300, 2_000)),
            audit_interval: AUDIT_INTERVAL,
            chunk: pace.chunk(),
        };
        let sweeping = |shard| Sweeping {
            machine: IndexShard::new(IndexShardSettings {
                index_shard: PartitionId(shard),
                ..settings.clone()
            }),
            call: 0,
            is_waiting: false,
            writes: None,
            lease: None,
            is_ended: false,
            read: BTreeSet::new(),
        };
        Self {
            incarnation,
            paused_until: 0,
            is_stopping: false,
            wall_offset: i64::try_from(rng.below(1_000_000)).unwrap() - 500_000,
            drift: rng.below(10_000),
            pace,
            rate,
            reader: None,
            waiting: VecDeque::new(),
            sweeps: (0..u32::try_from(shards).unwrap()).map(sweeping).collect(),
            audits: (0..shards).map(|_| None).collect(),
            published: VecDeque::new(),
        }
    }

    /// Its boot clock.
    pub fn boot(&self, now: u64) -> Duration {
        Duration::from_micros(now + now * self.drift / 1_000_000)
    }

    pub fn chunk(&self) -> usize {
        self.pace.chunk()
    }
}

fn workflows() -> Arc<Workflows> {
    Arc::new(Workflows::new(Vec::new()).unwrap())
}

impl Run {
    fn now_of(&self, process: usize) -> Now {
        let process = &self.processes[process];
        let micros = process.wall_offset.unsigned_abs();
        let offset = Duration::from_micros(micros);
        Now {
            wall: match process.wall_offset < 0 {
                true => self.wall() - offset,
                false => self.wall() + offset,
            },
            boot: BootTime::new(process.boot(self.now)),
        }
    }

    /// A process starts.
    pub fn start(&mut self, number: usize) {
        let incarnation = self.processes[number].incarnation + 1;
        let shards = self.store.shards.len();
        self.processes[number] = Process::new(&mut self.rng, number, incarnation, shards);
        for shard in 0..shards {
            self.feed_sweep(number, shard, index_shard::Event::Started);
        }
    }

    /// A process dies; another takes its place later.
    pub fn die(&mut self, number: usize) {
        self.processes[number].incarnation += 1;
        for sweep in &mut self.processes[number].sweeps {
            sweep.lease = None;
        }
        let after = self.rng.below(6_000_000);
        self.later(after, What::Start(number));
    }

    /// A process is asked to stop.
    pub fn stop(&mut self, number: usize) {
        self.processes[number].is_stopping = true;
        for shard in 0..self.store.shards.len() {
            let caller = self.caller(number, shard, false);
            if self.processes[number].sweeps[shard].is_waiting {
                let answer = Answer::Sweep(index_shard::Event::Waited);
                self.later(0, What::Answer(caller, answer));
            }
        }
    }

    fn caller(&self, process: usize, shard: usize, is_audit: bool) -> Caller {
        let of = &self.processes[process];
        let call = match (is_audit, &of.audits[shard]) {
            (true, Some(audit)) => audit.call,
            _ => of.sweeps[shard].call,
        };
        Caller {
            process,
            incarnation: of.incarnation,
            shard,
            call,
        }
    }

    /// The answer to a call arrives, unless its process has died or no longer waits for it.
    pub fn answer(&mut self, caller: Caller, answer: Answer) {
        let process = &mut self.processes[caller.process];
        if process.incarnation != caller.incarnation {
            return;
        }
        if process.paused_until > self.now {
            let after = process.paused_until - self.now;
            return self.later(after, What::Answer(caller, answer));
        }
        let shard = caller.shard;
        match answer {
            Answer::Sweep(event) if process.sweeps[shard].call == caller.call => {
                self.feed_sweep(caller.process, shard, event);
            }
            Answer::Audit(event) => {
                let current = process.audits[shard].as_ref().map(|audit| audit.call);
                if current == Some(caller.call) {
                    self.feed_audit(caller.process, shard, event);
                }
            }
            Answer::Sweep(_) => {}
        }
    }

    fn feed_sweep(&mut self, number: usize, shard: usize, event: index_shard::Event) {
        use index_shard::{Effect, Event, Notice};
        let now = self.now_of(number);
        let process = &mut self.processes[number];
        let sweep = &mut process.sweeps[shard];
        if let (Event::LeaseWritten(true), Some((lease, sent))) = (&event, &sweep.writes) {
            let valid = u64::try_from((LEASE - MARGIN).as_micros()).unwrap();
            sweep.lease = Some((lease.clone(), sent + valid));
        }
        if let Event::Entries(entries) = &event {
            sweep.read.extend(entries);
        }
        if process.is_stopping {
            sweep.machine.stop();
        }
        sweep.writes = None;
        let output = sweep.machine.handle(event, now).expect("it is the answer");
        self.calls += 1;
        sweep.call = self.calls;
        sweep.is_waiting = matches!(output.effect, Effect::Wait(_));
        for notice in output.notices {
            match notice {
                Notice::Began => self.begin_audit(number, shard),
                Notice::Ended => {
                    self.processes[number].audits[shard] = None;
                    self.unlock(number, shard);
                    let sweep = &mut self.processes[number].sweeps[shard];
                    sweep.lease = None;
                    sweep.read.clear();
                }
                Notice::TakingOver(_) => self.seen.count(Sight::TakeOvers),
                Notice::Lost => self.seen.count(Sight::LostLeases),
                Notice::Failed => self.seen.count(Sight::FailedOwnerships),
                Notice::PassFailed => self.seen.count(Sight::FailedPasses),
                Notice::Unreadable(_) => self.seen.count(Sight::UnreadableRows),
                Notice::Swept | Notice::Behind(_) | Notice::Overdue(_) => {}
                Notice::Skipping(_) => panic!("no sweep is a week behind"),
            }
        }
        self.judge_effect(number, shard, &output.effect);
        let caller = self.caller(number, shard, false);
        let sent = self.now;
        let sweep = &mut self.processes[number].sweeps[shard];
        match output.effect {
            Effect::End => {
                sweep.is_ended = true;
                self.seen.count(Sight::Stops);
                if self.processes[number].sweeps.iter().all(|of| of.is_ended) {
                    self.die(number);
                }
            }
            Effect::Wait(time) => {
                let answer = Answer::Sweep(Event::Waited);
                self.wait(caller, time, answer);
            }
            Effect::TakeTurn(recoveries) => {
                let wait = self.processes[number].pace.take(recoveries, now.boot);
                if !wait.is_zero() {
                    self.seen.count(Sight::WaitsForTurns);
                }
                self.later(0, What::Answer(caller, Answer::Sweep(Event::Turn(wait))));
            }
            effect => {
                if let Effect::RenewLease(lease) | Effect::TakeLease { lease, .. } = &effect {
                    sweep.writes = Some((lease.clone(), sent)).filter(|_| lease.owner.is_some());
                }
                if let Effect::Publish(recoveries) = &effect {
                    self.judge_rate(number, recoveries.len());
                }
                self.send(caller, Call::Sweep(Box::new(effect)));
            }
        }
    }

    fn begin_audit(&mut self, number: usize, shard: usize) {
        let machine = Audit::new(AuditSettings {
            index_shard: PartitionId(u32::try_from(shard).unwrap()),
            name: format!("supervisor-{number}").into(),
            workflows: workflows(),
            timeout_grace: Duration::ZERO,
            interval: AUDIT_INTERVAL,
            chunk: self.processes[number].chunk(),
        });
        self.processes[number].audits[shard] = Some(Auditing { machine, call: 0 });
        self.feed_audit(number, shard, audit::Event::Started);
    }

    fn feed_audit(&mut self, number: usize, shard: usize, event: audit::Event) {
        use audit::{Effect, Event, Notice};
        let now = self.now_of(number);
        let partitions = u32::try_from(self.store.shards.len()).unwrap();
        let Some(auditing) = &mut self.processes[number].audits[shard] else {
            return;
        };
        let handled = auditing.machine.handle(event, now, partitions);
        let output = handled.expect("it is the answer");
        self.calls += 1;
        auditing.call = self.calls;
        for notice in output.notices {
            match notice {
                Notice::UnlockReads => self.unlock(number, shard),
                Notice::Waking { operation, .. } => self.judge_wake(operation),
                Notice::Audited(_) => self.seen.count(Sight::Audits),
                Notice::Failed => self.seen.count(Sight::FailedAudits),
                Notice::Unreadable { .. } => {}
            }
        }
        let caller = self.caller(number, shard, true);
        match output.effect {
            Effect::Wait(time) => self.wait(caller, time, Answer::Audit(Event::Waited)),
            Effect::TakeTurn(recoveries) => {
                let wait = self.processes[number].pace.take(recoveries, now.boot);
                self.later(0, What::Answer(caller, Answer::Audit(Event::Turn(wait))));
            }
            Effect::LockReads => {
                let process = &mut self.processes[number];
                process.waiting.push_back(shard);
                self.lock_next(number);
            }
            effect => {
                if let Effect::Publish(recoveries) = &effect {
                    self.judge_rate(number, recoveries.len());
                }
                self.send(caller, Call::Audit(effect));
            }
        }
    }

    fn unlock(&mut self, number: usize, shard: usize) {
        let process = &mut self.processes[number];
        process.waiting.retain(|waiting| *waiting != shard);
        if process.reader == Some(shard) {
            process.reader = None;
            self.lock_next(number);
        }
    }

    fn lock_next(&mut self, number: usize) {
        let process = &mut self.processes[number];
        if process.reader.is_some() {
            return;
        }
        process.reader = process.waiting.pop_front();
        if let Some(shard) = process.reader {
            let caller = self.caller(number, shard, true);
            self.later(0, What::Answer(caller, Answer::Audit(audit::Event::Locked)));
        }
    }

    fn wait(&mut self, caller: Caller, time: Duration, answer: Answer) {
        let micros = u64::try_from(time.as_micros()).unwrap();
        let late = self.rng.below(2_000);
        self.later(micros + late, What::Answer(caller, answer));
    }
}
