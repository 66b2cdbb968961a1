//! Supervisors: each runs the real [`Supervision`] over the index shards whose lease it holds. They
//! sweep the deadline index by buckets behind a durable cursor, and consume failed-operations. They
//! die and pause, and others take over.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use waybill_engine::{OperationId, Recovery, RecoveryVerb, Source, Supervision, Timestamp};

use crate::bugs::Bug;
use crate::clock::Clock;
use crate::plan::Plan;
use crate::queue::What;
use crate::rng::Rng;
use crate::run::Run;
use crate::seen::Sight;
use crate::store::{Spoilt, bucket_of};

/// How long an index shard stays assigned to a silent supervisor.
const INDEX_SHARD_LEASE_MICROS: u64 = 1_500_000;
/// How long after its end a bucket may still get entries: writes may be late, and clocks wrong.
const GRACE: Duration = Duration::from_secs(6);
/// Maximum number of records of failed-operations in one step.
const FAILED_AT_ONCE: usize = 4;

/// A supervisor's process.
#[derive(Debug)]
pub struct Supervisor {
    pub clock: Clock,
    name: String,
    incarnation: u32,
    paused_until: Timestamp,
    /// The state of each index shard that it holds, by partition.
    index_shards: Vec<Option<Sweep>>,
}

/// A supervisor's state of an index shard.
#[derive(Debug)]
struct Sweep {
    cursor: i64,
    open: BTreeMap<i64, Bucket>,
    failed_next: usize,
    /// Records of failed-operations without an acknowledged recovery.
    failed_open: Vec<usize>,
}

#[derive(Debug, Default)]
struct Bucket {
    seen: Vec<(Timestamp, OperationId)>,
    open: usize,
    is_complete: bool,
}

/// Receives the acknowledgement of a recovery, for an entry or a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    supervisor: usize,
    incarnation: u32,
    index_shard: usize,
    of: Of,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    Bucket(i64),
    Failed(usize),
}

/// The holder of an index shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexShardLease {
    holder: usize,
    incarnation: u32,
    until: Timestamp,
}

impl Supervisor {
    pub fn all(plan: &Plan, rng: &mut Rng, now: Timestamp) -> Vec<Self> {
        let offsets = 2 * crate::clock::SKEW_MICROS.unsigned_abs();
        let one = |number| {
            let offset = i64::try_from(rng.below(offsets)).unwrap() - crate::clock::SKEW_MICROS;
            Self {
                clock: Clock::new(offset),
                name: format!("supervisor-{number}"),
                incarnation: 0,
                paused_until: now,
                index_shards: (0..plan.partitions).map(|_| None).collect(),
            }
        };
        (0..plan.supervisors).map(one).collect()
    }
}

impl Run {
    /// A supervisor handles its index shards.
    pub fn turn(&mut self, index: usize, incarnation: u32) {
        let what = What::Turn {
            supervisor: index,
            incarnation,
        };
        let Some(what) = self.supervisor_acts(index, incarnation, what) else {
            return;
        };
        let after = self.rng.between(250_000, 700_000);
        self.later(after, what);
        for index_shard in 0..self.store.logs.len() {
            if self.holds(index, incarnation, index_shard) {
                self.sweep(index, incarnation, index_shard);
                self.consume_failed(index, incarnation, index_shard);
                self.advance(index, index_shard);
            }
        }
    }

    /// Returns the event if the supervisor can handle it now.
    fn supervisor_acts(&mut self, index: usize, incarnation: u32, what: What) -> Option<What> {
        let supervisor = &mut self.supervisors[index];
        if supervisor.incarnation != incarnation {
            return None;
        }
        if supervisor.paused_until > self.now {
            let at = supervisor.paused_until;
            self.queue.push(at, what);
            return None;
        }
        if self.plan.supervisor_crashes == 0 || self.is_calm() || self.rng.below(40) > 0 {
            return Some(what);
        }
        self.plan.supervisor_crashes -= 1;
        let micros = self.rng.between(1_000, 4_000_000);
        let supervisor = &mut self.supervisors[index];
        if self.rng.chance(40) {
            supervisor.paused_until = self.now + Duration::from_micros(micros);
            let at = supervisor.paused_until;
            self.note_all(|| format!("supervisor {index} is paused for {micros} µs"));
            self.queue.push(at, what);
            return None;
        }
        self.kill_supervisor(index, micros);
        None
    }

    /// A supervisor dies, and starts again after a while.
    pub fn kill_supervisor(&mut self, index: usize, restart_micros: u64) {
        let supervisor = &mut self.supervisors[index];
        supervisor.incarnation += 1;
        supervisor
            .index_shards
            .iter_mut()
            .for_each(|sweep| *sweep = None);
        let incarnation = supervisor.incarnation;
        self.seen.count(Sight::SupervisorCrashes);
        self.note_all(|| format!("supervisor {index} dies"));
        self.later(
            restart_micros,
            What::Turn {
                supervisor: index,
                incarnation,
            },
        );
    }

    /// Takes or renews the lease of an index shard.
    fn holds(&mut self, index: usize, incarnation: u32, index_shard: usize) -> bool {
        let held = &mut self.store.logs[index_shard].sweeper;
        let is_mine =
            |lease: &IndexShardLease| (lease.holder, lease.incarnation) == (index, incarnation);
        let was_mine = held.as_ref().is_some_and(is_mine);
        if !was_mine && held.is_some_and(|lease| lease.until > self.now) {
            self.supervisors[index].index_shards[index_shard] = None;
            return false;
        }
        let before = held.replace(IndexShardLease {
            holder: index,
            incarnation,
            until: self.now + Duration::from_micros(INDEX_SHARD_LEASE_MICROS),
        });
        if !was_mine {
            self.supervisors[index].index_shards[index_shard] = None;
            if before.is_some() {
                self.seen.count(Sight::SupervisorTakeOvers);
            }
        }
        let durable = &self.store.logs[index_shard];
        self.supervisors[index].index_shards[index_shard].get_or_insert_with(|| Sweep {
            cursor: durable.cursor,
            open: BTreeMap::new(),
            failed_next: durable.failed_next,
            failed_open: Vec::new(),
        });
        true
    }

    /// Reads the buckets from the cursor up to now.
    fn sweep(&mut self, index: usize, incarnation: u32, index_shard: usize) {
        let supervisor = &mut self.supervisors[index];
        let local = supervisor.clock.read(self.now);
        let Some(sweep) = &mut supervisor.index_shards[index_shard] else {
            return;
        };
        let mut found = Vec::new();
        let buckets = self.store.logs[index_shard].index.range(sweep.cursor..);
        for (&bucket, entries) in buckets.take_while(|(bucket, _)| **bucket <= bucket_of(local)) {
            let open = sweep.open.entry(bucket).or_default();
            for entry in entries {
                if entry.0 <= local && !open.seen.contains(entry) {
                    open.seen.push(*entry);
                    open.open += 1;
                    found.push(*entry);
                }
            }
            open.is_complete = bucket < bucket_of(local - GRACE);
        }
        for (due, operation) in found {
            self.seen.count(Sight::IndexEntriesSeen);
            let after = self.travel() / 4;
            self.later(
                after,
                What::Look {
                    supervisor: index,
                    incarnation,
                    index_shard,
                    due,
                    operation,
                },
            );
        }
    }

    /// Reads the row of an index entry and sends the recovery.
    pub fn handle_hint(
        &mut self,
        index: usize,
        incarnation: u32,
        index_shard: usize,
        due: Timestamp,
        operation: OperationId,
    ) {
        let what = What::Look {
            supervisor: index,
            incarnation,
            index_shard,
            due,
            operation,
        };
        if self.supervisor_acts(index, incarnation, what).is_none() {
            return;
        }
        let receipt = Receipt {
            supervisor: index,
            incarnation,
            index_shard,
            of: Of::Bucket(bucket_of(due)),
        };
        let local = self.supervisors[index].clock.read(self.now);
        let asked = match self.store.read(operation, self.now) {
            Ok(Some(row)) => self.supervision(index).entry_came_up(row, due, local),
            // The scheduler can tell what to do.
            Ok(None) | Err(Spoilt) => vec![self.look_at(index, operation, due, local)],
        };
        if let Some(bucket) = self.bucket(&receipt) {
            bucket.open = bucket.open + asked.len() - 1;
        }
        for recovery in asked {
            self.send_recovery(index_shard, recovery, receipt);
        }
    }

    fn look_at(
        &self,
        index: usize,
        operation: OperationId,
        due: Timestamp,
        local: Timestamp,
    ) -> Recovery {
        Recovery {
            id: operation.event_id("wake"),
            operation,
            asked_by: self.supervisors[index].name.clone(),
            reason: "its row was not read".to_owned(),
            asked_at: local,
            due: Some(due),
            verb: RecoveryVerb::Wake,
        }
    }

    fn supervision(&self, index: usize) -> Supervision<'_> {
        Supervision {
            name: &self.supervisors[index].name,
            workflows: &self.plan.workflows,
            timeout_grace: self.plan.config.timeout_grace,
        }
    }

    fn bucket(&mut self, receipt: &Receipt) -> Option<&mut Bucket> {
        let Of::Bucket(bucket) = receipt.of else {
            return None;
        };
        let sweep =
            self.supervisors[receipt.supervisor].index_shards[receipt.index_shard].as_mut()?;
        sweep.open.get_mut(&bucket)
    }

    fn consume_failed(&mut self, index: usize, incarnation: u32, index_shard: usize) {
        let supervisor = &mut self.supervisors[index];
        let local = supervisor.clock.read(self.now);
        let Some(sweep) = &mut supervisor.index_shards[index_shard] else {
            return;
        };
        let from = sweep.failed_next;
        let records = self.store.logs[index_shard].failed[from..].iter();
        let records: Vec<_> = records.take(FAILED_AT_ONCE).map(Rc::clone).collect();
        sweep.failed_next += records.len();
        for (position, failed) in (from..).zip(records) {
            self.seen.count(Sight::FailedRecordsSeen);
            let Some(recovery) = self.supervision(index).failed(&failed, local) else {
                continue;
            };
            if let Some(sweep) = &mut self.supervisors[index].index_shards[index_shard] {
                sweep.failed_open.push(position);
            }
            let receipt = Receipt {
                supervisor: index,
                incarnation,
                index_shard,
                of: Of::Failed(position),
            };
            self.send_recovery(index_shard, recovery, receipt);
        }
    }

    fn send_recovery(&mut self, partition: usize, recovery: Recovery, receipt: Receipt) {
        let after = if self.rng.chance(3) && !self.is_calm() {
            // The broker is slow to accept it.
            self.rng.below(8_000_000)
        } else {
            self.travel()
        };
        let recovery = Box::new(recovery);
        if self.rng.chance(self.plan.copies) && !self.is_calm() {
            let recovery = recovery.clone();
            let after = self.travel();
            self.later(
                after,
                What::Recovery {
                    partition,
                    recovery,
                    receipt: None,
                },
            );
        }
        self.later(
            after,
            What::Recovery {
                partition,
                recovery,
                receipt: Some(receipt),
            },
        );
    }

    /// A recovery reaches the log, unless it died with the supervisor that sent it.
    pub fn recovery_arrives(
        &mut self,
        partition: usize,
        recovery: Recovery,
        receipt: Option<Receipt>,
    ) {
        if let Some(receipt) = receipt {
            let sender = &self.supervisors[receipt.supervisor];
            if sender.incarnation != receipt.incarnation && self.rng.chance(50) {
                return;
            }
            let after = self.rng.below(2_000);
            self.later(after, What::Asked(receipt));
        }
        self.note(recovery.operation, || {
            let (by, verb) = (&recovery.asked_by, &recovery.verb);
            format!("recovery: {by} asks {verb:?}, {}", recovery.reason)
        });
        let recovery = Rc::new(recovery);
        self.store.logs[partition].recoveries.push(recovery);
        self.wake_owners(partition, Source::Recoveries);
    }

    /// A supervisor learns that its recovery was appended to the log.
    pub fn asked(&mut self, receipt: Receipt) {
        if self.supervisors[receipt.supervisor].incarnation != receipt.incarnation {
            return;
        }
        if let Some(bucket) = self.bucket(&receipt) {
            bucket.open = bucket.open.saturating_sub(1);
        }
        let sweep = &mut self.supervisors[receipt.supervisor].index_shards[receipt.index_shard];
        if let (Some(sweep), Of::Failed(position)) = (sweep, receipt.of) {
            sweep.failed_open.retain(|open| *open != position);
        }
    }

    /// Moves the cursor over the buckets that are handled.
    fn advance(&mut self, index: usize, index_shard: usize) {
        let moves_early = self.bug == Some(Bug::MoveCursorEarly);
        let supervisor = &mut self.supervisors[index];
        let local = supervisor.clock.read(self.now);
        let Some(sweep) = &mut supervisor.index_shards[index_shard] else {
            return;
        };
        while let Some(first) = sweep.open.first_entry() {
            let bucket = first.get();
            if !bucket.is_complete || (bucket.open > 0 && !moves_early) {
                break;
            }
            sweep.cursor = first.key() + 1;
            first.remove();
        }
        if sweep.open.is_empty() {
            sweep.cursor = sweep.cursor.max(bucket_of(local - GRACE));
        }
        let failed_next = sweep.failed_open.iter().min().copied();
        let failed_next = failed_next.unwrap_or(sweep.failed_next);
        let durable = &self.store.logs[index_shard];
        if (sweep.cursor, failed_next) != (durable.cursor, durable.failed_next) {
            let bucket = sweep.cursor;
            let after = self.rng.below(20_000);
            self.later(
                after,
                What::CursorLands {
                    index_shard,
                    bucket,
                    failed_next,
                },
            );
        }
    }

    /// Stores cursor and offset, which never go back.
    pub fn cursor_lands(&mut self, index_shard: usize, bucket: i64, failed_next: usize) {
        let durable = &mut self.store.logs[index_shard];
        durable.cursor = durable.cursor.max(bucket);
        durable.failed_next = durable.failed_next.max(failed_next);
        let cursor = durable.cursor;
        durable.index.retain(|bucket, _| *bucket >= cursor);
        self.check_checkpoint(index_shard);
    }
}
