//! The audits of supervisors: each runs the state machine of the audit that ships. In some runs the
//! store loses an entry of the deadline index, or the broker a recovery that it has acknowledged;
//! then nothing but the audit wakes the operation.
//!
//! Audits draw from their own generator, so runs in which nothing is lost do not change because of
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use waybill_engine::{Offset, PartitionId, Recovery, Source};
use waybill_state::{CurrentLeases, DueEntry};
use waybill_supervisor_core::audit::{Effect, Event, Notice};
use waybill_supervisor_core::{Audit, AuditSettings};

use crate::bugs::Bug;
use crate::queue::What;
use crate::replicas::Asked;
use crate::run::Run;
use crate::schedulers::offset;
use crate::seen::Sight;
use crate::supervisor_calls::{Answer, Call};
use crate::supervisors::{Caller, Machine};

/// The pause between two rounds.
const INTERVAL: Duration = Duration::from_secs(5);
/// The percentage of calls that fail.
const FAULTS: u64 = 2;
/// How long to wait before trying again, if there was nothing to lose.
const AGAIN_MICROS: u64 = 100_000;
/// Maximum number of entries of the attention table in a page, which is less than the audit asks
/// for, so that there are several.
const PAGE: usize = 2;

impl Run {
    /// A supervisor has begun to sweep an index shard, and audits it.
    pub fn begin_audit(&mut self, index: usize, index_shard: usize) {
        let supervisor = &mut self.supervisors[index];
        let settings = AuditSettings {
            index_shard: PartitionId(u32::try_from(index_shard).unwrap()),
            name: Arc::clone(&supervisor.name),
            workflows: Arc::clone(&self.plan.workflows),
            timeout_grace: self.plan.config.timeout_grace,
            interval: INTERVAL,
            chunk: supervisor.pace.chunk(),
        };
        supervisor.audits[index_shard].machine = Some(Audit::new(settings));
        self.feed_audit(index, index_shard, Event::Started);
    }

    /// A supervisor sweeps an index shard no more.
    pub fn end_audit(&mut self, index: usize, index_shard: usize) {
        let audit = &mut self.supervisors[index].audits[index_shard];
        audit.machine = None;
        // It waits for no answer any more.
        audit.call += 1;
        self.unlock_reads(index, index_shard);
    }

    pub fn feed_audit(&mut self, index: usize, index_shard: usize, event: Event) {
        let partitions = self.store.layout.scheme().partitions;
        let supervisor = &mut self.supervisors[index];
        let now = supervisor.now(self.now);
        let audit = &mut supervisor.audits[index_shard];
        let Some(machine) = &mut audit.machine else {
            return;
        };
        let output = machine.handle(event, now, partitions);
        let output = output.expect("it is the result of the effect");
        audit.call += 1;
        let caller = Caller {
            supervisor: index,
            incarnation: supervisor.incarnation,
            machine: Machine::Audit(index_shard),
            call: audit.call,
        };
        for notice in output.notices {
            match notice {
                Notice::UnlockReads => self.unlock_reads(index, index_shard),
                Notice::Waking { operation, due } => {
                    self.seen.count(Sight::WokenByAudit);
                    self.note(operation, || {
                        format!("an audit finds that it was due at {due:?}")
                    });
                }
                Notice::Failed => self.seen.count(Sight::AuditsFailed),
                Notice::Unreadable { .. } | Notice::Audited(_) => {}
            }
        }
        match output.effect {
            Effect::Wait(time) => {
                let micros = u64::try_from(time.as_micros()).unwrap();
                let micros = micros + self.audit_rng.below(2_000);
                self.answer_after(micros, caller, Answer::Audit(Event::Waited));
            }
            Effect::LockReads => {
                let waiting = &mut self.supervisors[index].reads;
                waiting.push_back(caller);
                if waiting.len() == 1 {
                    self.answer_after(0, caller, Answer::Audit(Event::Locked));
                }
            }
            Effect::TakeTurn(recoveries) => {
                let wait = self.supervisors[index].pace.take(recoveries, now.boot);
                self.answer_after(0, caller, Answer::Audit(Event::Turn(wait)));
            }
            Effect::Publish(_) if self.bug == Some(Bug::WakeNothing) => {
                self.answer_after(0, caller, Answer::Audit(Event::Published));
            }
            Effect::Publish(recoveries) => self.publish(caller, recoveries),
            effect => {
                let after = self.audit_rng.below(20_000);
                let call = Call::Audit(Box::new(effect));
                self.later(after, What::SupervisorCall { caller, call });
            }
        }
    }

    /// Lets the next audit of the process read.
    fn unlock_reads(&mut self, index: usize, index_shard: usize) {
        let reads = &mut self.supervisors[index].reads;
        let held = reads.front().copied();
        reads.retain(|caller| caller.machine != Machine::Audit(index_shard));
        let next = reads.front().copied();
        if let Some(next) = next.filter(|_| held != next) {
            self.answer_after(0, next, Answer::Audit(Event::Locked));
        }
    }

    /// A call of an audit arrives at the store, or at the broker.
    pub fn audit_calls(&mut self, caller: Caller, effect: Effect) {
        if !self.waits_for_answer(&caller) {
            return;
        }
        let fails = !self.is_calm() && self.audit_rng.chance(FAULTS);
        let event = match fails {
            true => Event::Failed,
            false => self.answer_audit(&caller, effect),
        };
        let after = self.audit_rng.below(20_000);
        self.answer_after(after, caller, Answer::Audit(event));
    }

    fn answer_audit(&mut self, caller: &Caller, effect: Effect) -> Event {
        let Machine::Audit(index_shard) = caller.machine else {
            unreachable!("only an audit has such an effect");
        };
        match effect {
            Effect::ReadDone(partitions) => {
                let done = |of: PartitionId| (of, self.recoveries_done(of));
                Event::Offsets(partitions.into_iter().map(done).collect())
            }
            Effect::ReadEnds(partitions) => {
                let end = |of: PartitionId| {
                    let logs = &self.store.logs[of.0 as usize];
                    (of, offset(logs.recoveries.len()))
                };
                Event::Offsets(partitions.into_iter().map(end).collect::<BTreeMap<_, _>>())
            }
            Effect::ReadAttention { cursor, limit } => {
                let of = PartitionId(u32::try_from(index_shard).unwrap());
                self.read_quorum(Asked::Attention(of));
                let page = self
                    .store
                    .attention_page(index_shard, cursor, limit.min(PAGE));
                Event::Attention(page)
            }
            Effect::ReadRows(ids) => {
                let rows = ids.into_iter().map(|id| self.read_row(id));
                Event::Rows(rows.collect())
            }
            Effect::ReadCursor(of) => Event::Cursor(self.store.logs[of.0 as usize].cursor),
            Effect::Wait(_) | Effect::LockReads | Effect::TakeTurn(_) | Effect::Publish(_) => {
                unreachable!("{effect:?} is no call")
            }
        }
    }
}

/// What the store and the broker lose.
impl Run {
    /// The store loses an entry of the deadline index that would wake an operation, or the broker
    /// the next recovery that would.
    pub fn lose_wake(&mut self) {
        if self.is_calm() {
            return;
        }
        if self.audit_rng.chance(30) {
            self.loses_recovery = true;
            return;
        }
        let mut entries = Vec::new();
        for (index_shard, logs) in self.store.logs.iter().enumerate() {
            let of_shard = logs.all_entries().filter(|entry| self.wakes(entry));
            entries.extend(of_shard.map(|entry| (index_shard, entry)));
        }
        if entries.is_empty() {
            return self.later(AGAIN_MICROS, What::LoseWake);
        }
        let (index_shard, entry) = entries[self.audit_rng.index(entries.len())];
        self.store.logs[index_shard].remove_entry(&entry);
        self.judge.lost_wakes.insert(entry.operation);
        self.seen.count(Sight::EntriesLost);
        self.note(entry.operation, || format!("{entry:?} is lost"));
    }

    /// Whether the broker loses this recovery, which it acknowledges.
    pub fn loses(&mut self, recovery: &Recovery) -> bool {
        let operation = recovery.operation;
        let entry = recovery.due.map(|due| DueEntry { due, operation });
        if !self.loses_recovery || !entry.is_some_and(|entry| self.wakes(&entry)) {
            return false;
        }
        self.loses_recovery = false;
        self.judge.lost_wakes.insert(operation);
        self.seen.count(Sight::RecoveriesLost);
        self.note(operation, || format!("recovery {} is lost", recovery.id));
        true
    }

    /// Whether a live operation waits for this entry of the deadline index.
    fn wakes(&self, entry: &DueEntry) -> bool {
        self.store.row(entry.operation).is_some_and(|row| {
            let state = &row.state;
            state.handed_off && !state.state.is_final() && state.next_due == Some(entry.due)
        })
    }

    /// The offset below which all shards of a partition have done its recoveries.
    fn recoveries_done(&self, partition: PartitionId) -> Offset {
        let layout = &self.store.layout;
        let mut leases = CurrentLeases::default();
        let done = layout.scheme().of_partition(partition).map(|shard| {
            loop {
                match leases.of(layout, layout.generation(), shard) {
                    Ok(lease) => return lease.checkpoint.on(Source::Recoveries),
                    Err(key) => leases.learn(key, self.store.leases.get(&key).cloned()),
                }
            }
        });
        done.min().expect("a partition has shards")
    }
}
