//! Calls to the store and to the topic: they may fail, be slow, or be applied although they failed.

use std::collections::BTreeMap;

use waybill_engine::{Offset, PartitionId};
use waybill_supervisor_core::{audit, index_shard};

use crate::process::Caller;
use crate::run::{Run, What};
use crate::seen::Sight;

#[derive(Clone, Debug)]
pub enum Call {
    Sweep(Box<index_shard::Effect>),
    Audit(audit::Effect),
}

#[derive(Clone, Debug)]
pub enum Answer {
    Sweep(index_shard::Event),
    Audit(audit::Event),
}

impl Run {
    /// Sends a call to the store or to the topic.
    pub fn send(&mut self, caller: Caller, call: Call) {
        let after = self.rng.between(100, 10_000);
        let is_reroute = match &call {
            Call::Sweep(effect) => matches!(**effect, index_shard::Effect::Reroute(_)),
            Call::Audit(_) => false,
        };
        if self.is_calm() || is_reroute || !self.rng.chance(self.faults) {
            return self.later(after, What::Apply(caller, call, None));
        }
        let failed = match &call {
            Call::Sweep(_) => Answer::Sweep(index_shard::Event::Failed),
            Call::Audit(_) => Answer::Audit(audit::Event::Failed),
        };
        let (applied, answered) = (self.rng.below(8_000_000), self.rng.below(3_000_000));
        match self.rng.below(3) {
            0 => self.later(applied, What::Apply(caller, call, None)),
            1 => self.later(answered, What::Answer(caller, failed)),
            _ => {
                self.seen.count(Sight::FailuresThatApplied);
                let part = self.rng.index(4);
                self.later(applied, What::Apply(caller, call, Some(part)));
                self.later(answered, What::Answer(caller, failed));
            }
        }
    }

    /// A call arrives. `part` is how much of it is applied, if its answer is lost.
    pub fn apply(&mut self, caller: Caller, call: Call, part: Option<usize>) {
        let is_dead = self.processes[caller.process].incarnation != caller.incarnation;
        if is_dead && self.rng.chance(50) {
            return;
        }
        let answer = match call {
            Call::Sweep(effect) => Answer::Sweep(self.apply_sweep(caller.shard, *effect, part)),
            Call::Audit(effect) => Answer::Audit(self.apply_audit(caller.shard, effect, part)),
        };
        if part.is_none() {
            let after = self.rng.between(100, 5_000);
            self.later(after, What::Answer(caller, answer));
        }
    }

    fn apply_sweep(
        &mut self,
        shard: usize,
        effect: index_shard::Effect,
        part: Option<usize>,
    ) -> index_shard::Event {
        use index_shard::{Effect, Event};
        let store = &mut self.store;
        match effect {
            Effect::ReadLease(_) => Event::Lease(store.shards[shard].lease.clone()),
            Effect::TakeLease { seen, lease } => {
                Event::LeaseWritten(store.take_lease(shard, seen.as_ref(), lease))
            }
            Effect::RenewLease(lease) => Event::LeaseWritten(store.renew_lease(shard, lease)),
            Effect::ReadCursor => Event::Cursor(store.shards[shard].cursor),
            Effect::ReadEntries {
                bucket,
                after,
                limit,
            } => Event::Entries(store.due(shard, bucket, after, limit)),
            Effect::ReadRows(ids) => Event::Rows(store.get_many(&ids)),
            Effect::Publish(recoveries) => {
                for recovery in recoveries.iter().take(part.unwrap_or(usize::MAX)) {
                    store.append(shard, recovery);
                }
                Event::Published
            }
            Effect::MoveCursor(cursor) => {
                self.move_cursor(shard, cursor);
                Event::CursorMoved
            }
            Effect::Reroute(mut to) => {
                to.replies.0 += i64::from(self.rng.chance(20));
                Event::Rerouted(to)
            }
            Effect::Wait(_) | Effect::TakeTurn(_) | Effect::End => unreachable!("no call"),
        }
    }

    fn apply_audit(
        &mut self,
        shard: usize,
        effect: audit::Effect,
        part: Option<usize>,
    ) -> audit::Event {
        use audit::{Effect, Event};
        let store = &mut self.store;
        let offsets = |of: Vec<PartitionId>, offset: &dyn Fn(usize) -> usize| {
            let each = of.into_iter().map(|partition| {
                let offset = offset(partition.0 as usize);
                (partition, Offset(i64::try_from(offset).unwrap()))
            });
            Event::Offsets(each.collect::<BTreeMap<_, _>>())
        };
        match effect {
            Effect::ReadDone(of) => offsets(of, &|shard| store.shards[shard].done),
            Effect::ReadEnds(of) => offsets(of, &|shard| store.shards[shard].recoveries.len()),
            Effect::ReadAttention { cursor, limit } => {
                Event::Attention(store.attention_page(shard, cursor, limit))
            }
            Effect::ReadRows(ids) => Event::Rows(store.get_many(&ids)),
            Effect::ReadCursor(of) => Event::Cursor(store.shards[of.0 as usize].cursor),
            Effect::Publish(recoveries) => {
                for recovery in recoveries.iter().take(part.unwrap_or(usize::MAX)) {
                    let partition = store.partition_of(recovery.operation);
                    store.append(partition.0 as usize, recovery);
                }
                Event::Published
            }
            Effect::Wait(_) | Effect::LockReads | Effect::TakeTurn(_) => unreachable!("no call"),
        }
    }
}
