//! The calls of supervisors, as the store and the broker receive them.

use std::rc::Rc;

use waybill_engine::{Offset, PartitionId, Recovery, Source};
use waybill_state::{DUE_BUCKETS_REREAD, DueBucket, Lease};
use waybill_supervisor_core::audit;
use waybill_supervisor_core::failed::{self, Content, Uncommitted};
use waybill_supervisor_core::index_shard::{self, Effect};

use crate::bugs::Bug;
use crate::queue::What;
use crate::replicas::Asked;
use crate::run::Run;
use crate::schedulers::offset;
use crate::seen::Sight;
use crate::supervisors::{Caller, Machine, Supervisor};

/// The percentage of calls that fail, before or after they are applied.
const FAULTS: u64 = 2;
/// Maximum number of records of failed-operations in one poll.
const POLLED_MAX: usize = 4;

/// A call on its way to the store, or to the broker.
#[derive(Debug)]
pub enum Call {
    IndexShard(Box<Effect>),
    Audit(Box<audit::Effect>),
    /// Polls the consumer group of failed-operations, which waits for a record.
    Poll,
    /// A poll has waited for long enough.
    PollEnds,
    /// Commits offsets of failed-operations.
    Commit(Vec<Commit>),
}

/// The offset at which a partition of failed-operations continues.
#[derive(Debug)]
pub struct Commit {
    partition: usize,
    next: Offset,
    assignment: Assignment,
}

/// The result of a call.
#[derive(Debug)]
pub enum Answer {
    IndexShard(index_shard::Event),
    Audit(audit::Event),
    Failed(failed::Event),
}

/// A member's assignment of a partition of failed-operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Assignment {
    /// Counts the assignments of the partition.
    number: u64,
    supervisor: usize,
    incarnation: u32,
}

impl Assignment {
    /// Whether it is one of the caller's process.
    fn belongs_to(&self, caller: &Caller) -> bool {
        let of = (self.supervisor, self.incarnation);
        self.number > 0 && of == (caller.supervisor, caller.incarnation)
    }
}

impl Supervisor {
    /// The position of the next record of a partition of failed-operations to read.
    fn next_failure(&self, partition: usize, committed: usize) -> usize {
        let taken = self.intake.iter();
        let taken = taken.filter(|taken| taken.partition == partition);
        let last = taken.map(|taken| taken.position + 1).max();
        last.unwrap_or(committed)
    }
}

/// A record that a member has read and not committed.
#[derive(Debug)]
pub struct Taken {
    partition: usize,
    assignment: Assignment,
    position: usize,
}

impl Run {
    /// A call arrives, unless it died with its caller.
    pub fn call_arrives(&mut self, caller: Caller, call: Call) {
        let call = match call {
            Call::Audit(effect) => return self.audit_calls(caller, *effect),
            call => call,
        };
        let is_alive = self.waits_for_answer(&caller);
        if !is_alive && self.rng.fate(50) {
            return;
        }
        let fails = !self.is_calm() && self.rng.chance(FAULTS);
        let is_applied = !fails || self.rng.chance(50);
        let answer = match call {
            Call::IndexShard(effect) => {
                let event = match is_applied {
                    true => self.apply_effect(&caller, *effect),
                    false => index_shard::Event::Failed,
                };
                Answer::IndexShard(match fails {
                    true => index_shard::Event::Failed,
                    false => event,
                })
            }
            Call::Audit(_) => unreachable!("handled before"),
            Call::Poll | Call::PollEnds if !is_alive => return,
            Call::Poll if !self.has_new_failures(&caller) => {
                return self.send_call(caller, Call::PollEnds);
            }
            Call::Poll | Call::PollEnds => Answer::Failed(self.poll_failed(&caller)),
            Call::Commit(commits) => {
                if is_applied {
                    self.commit_failed(commits);
                }
                Answer::Failed(failed::Event::Committed)
            }
        };
        if fails {
            self.seen.count(Sight::SupervisorFaults);
        }
        let after = self.travel() / 4;
        self.answer_after(after, caller, answer);
    }

    fn apply_effect(&mut self, caller: &Caller, effect: Effect) -> index_shard::Event {
        use index_shard::Event;
        let Machine::IndexShard(index_shard) = caller.machine else {
            unreachable!("only an index shard has such an effect");
        };
        if let Effect::ReadEntries { bucket, .. } = &effect {
            let of = PartitionId(u32::try_from(index_shard).unwrap());
            self.read_quorum(Asked::Entries(of, *bucket));
        }
        let logs = &mut self.store.logs[index_shard];
        match effect {
            Effect::ReadLease(_) => Event::Lease(logs.sweeper.clone()),
            Effect::TakeLease { seen, lease } => {
                let is_written = logs.sweeper == seen;
                if is_written {
                    logs.sweeper = Some(lease);
                }
                Event::LeaseWritten(is_written)
            }
            Effect::RenewLease(lease) => {
                let is_written = may_renew(logs.sweeper.as_ref(), &lease);
                if is_written {
                    logs.sweeper = Some(lease);
                }
                Event::LeaseWritten(is_written)
            }
            Effect::ReadCursor => Event::Cursor(logs.cursor),
            Effect::ReadEntries {
                bucket,
                after,
                limit,
            } => {
                let entries = logs.entries(bucket);
                let rest = entries.filter(|entry| after.is_none_or(|after| *entry > after));
                Event::Entries(rest.take(limit).collect())
            }
            Effect::ReadRows(ids) => {
                self.seen.count(Sight::IndexEntriesSeen);
                let rows = ids.into_iter().map(|id| self.read_row(id));
                Event::Rows(rows.collect())
            }
            Effect::MoveCursor(cursor) => {
                self.move_cursor(index_shard, cursor);
                Event::CursorMoved
            }
            Effect::Wait(_)
            | Effect::TakeTurn(_)
            | Effect::Publish(_)
            | Effect::Reroute(_)
            | Effect::End => unreachable!("{effect:?} is no call"),
        }
    }

    /// Stores the cursor, which never goes back.
    fn move_cursor(&mut self, index_shard: usize, cursor: DueBucket) {
        // No sweep reads what is before these any more.
        let forgotten = DueBucket(cursor.0 - DUE_BUCKETS_REREAD);
        self.check_passed_entries(index_shard, forgotten);
        self.note_all(|| format!("the cursor of index shard {index_shard} moves to {cursor:?}"));
        let logs = &mut self.store.logs[index_shard];
        logs.cursor = logs.cursor.max(Some(cursor));
        logs.forget_entries();
        self.check_checkpoint(index_shard);
    }

    /// Sends recoveries to the partitions of their operations.
    pub fn publish(&mut self, caller: Caller, recoveries: Vec<Recovery>) {
        *self.awaited(&caller) = recoveries.len();
        if self.bug == Some(Bug::MoveCursorEarly) {
            self.answer_after(0, caller, published(&caller));
        }
        let fails = !self.is_calm() && self.rng.chance(FAULTS);
        if fails {
            // The broker may have appended some, or appends them later.
            self.seen.count(Sight::SupervisorFaults);
            let after = self.travel();
            self.answer_after(after, caller, failed_to_publish(&caller));
        }
        for recovery in recoveries {
            let partition = self.home_of(recovery.operation);
            if fails && self.rng.chance(50) {
                continue;
            }
            if self.rng.chance(self.plan.copies) && !self.is_calm() {
                let (recovery, receipt) = (Box::new(recovery.clone()), None);
                let after = self.travel();
                self.later(
                    after,
                    What::Recovery {
                        partition,
                        recovery,
                        receipt,
                    },
                );
            }
            let is_slow = self.rng.chance(3) && !self.is_calm();
            let after = match is_slow {
                true => self.rng.below(8_000_000),
                false => self.travel(),
            };
            let receipt = (!fails).then_some(caller);
            self.later(
                after,
                What::Recovery {
                    partition,
                    recovery: Box::new(recovery),
                    receipt,
                },
            );
        }
    }

    /// A recovery reaches the log, unless it died with the supervisor that sent it.
    pub fn recovery_arrives(
        &mut self,
        partition: usize,
        recovery: Recovery,
        receipt: Option<Caller>,
    ) {
        if let Some(caller) = receipt {
            let sender = &self.supervisors[caller.supervisor];
            if sender.incarnation != caller.incarnation && self.rng.fate(50) {
                return;
            }
            let after = self.rng.below(2_000);
            self.later(after, What::Acknowledged(caller));
        }
        if self.loses(&recovery) {
            return;
        }
        self.note(recovery.operation, || {
            let (by, verb) = (&recovery.asked_by, &recovery.verb);
            format!(
                "recovery for {:?}: {by} asks {verb:?}, {}",
                recovery.due, recovery.reason
            )
        });
        self.take_recovery(&recovery);
        let recovery = Rc::new(recovery);
        self.store.logs[partition].recoveries.push(recovery);
        self.wake_schedulers(partition, Source::Recoveries);
    }

    /// A supervisor learns that one of its recoveries was appended.
    pub fn acknowledged(&mut self, caller: Caller) {
        if !self.waits_for_answer(&caller) {
            return;
        }
        let awaited = self.awaited(&caller);
        *awaited -= 1;
        if *awaited == 0 {
            self.answer_arrives(caller, published(&caller));
        }
    }

    /// The group's coordinator assigns a partition of failed-operations to a member that lives, and
    /// sometimes to another one.
    pub fn rebalance(&mut self, partition: usize) {
        let after = self.rng.between(300_000, 1_500_000);
        self.later(after, What::Rebalance { partition });
        let of = self.store.logs[partition].failed_reader;
        let is_alive = self.supervisors[of.supervisor].incarnation == of.incarnation;
        if of.number > 0 && is_alive && (self.is_calm() || !self.rng.chance(5)) {
            return;
        }
        let supervisor = self.rng.index(self.supervisors.len());
        let logs = &mut self.store.logs[partition];
        logs.failed_reader = Assignment {
            number: of.number + 1,
            supervisor,
            incarnation: self.supervisors[supervisor].incarnation,
        };
        if of.number > 0 {
            self.seen.count(Sight::Rebalances);
        }
    }

    /// Whether a partition that belongs to a member has a record that it has not read.
    fn has_new_failures(&self, caller: &Caller) -> bool {
        let supervisor = &self.supervisors[caller.supervisor];
        let mut logs = self.store.logs.iter().enumerate();
        logs.any(|(partition, logs)| {
            let is_mine = logs.failed_reader.belongs_to(caller);
            is_mine && supervisor.next_failure(partition, logs.failed_next) < logs.failed.len()
        })
    }

    /// A record was appended to a partition of failed-operations: a waiting poll gets it.
    pub fn failure_appended(&mut self, partition: usize) {
        let reader = self.store.logs[partition].failed_reader;
        let supervisor = &self.supervisors[reader.supervisor];
        let caller = supervisor.failed_caller(reader.supervisor);
        if reader.belongs_to(&caller) && supervisor.is_polling {
            self.send_call(caller, Call::Poll);
        }
    }

    /// Gives a member the records that it has read, of partitions that still belong to it, and some
    /// more.
    fn poll_failed(&mut self, caller: &Caller) -> failed::Event {
        let supervisor = &mut self.supervisors[caller.supervisor];
        let logs = &self.store.logs;
        let stays = |taken: &Taken| logs[taken.partition].failed_reader == taken.assignment;
        supervisor.intake.retain(stays);
        for (partition, logs) in logs.iter().enumerate() {
            let assignment = logs.failed_reader;
            if !assignment.belongs_to(caller) {
                continue;
            }
            let next = supervisor.next_failure(partition, logs.failed_next);
            let positions = next..logs.failed.len().min(next + POLLED_MAX);
            let taken = positions.map(|position| Taken {
                partition,
                assignment,
                position,
            });
            supervisor.intake.extend(taken);
        }
        let uncommitted = supervisor.intake.iter().map(|taken| Uncommitted {
            partition: PartitionId(u32::try_from(taken.partition).unwrap()),
            next: offset(taken.position + 1),
            content: Content::Failed(Box::new(
                (*logs[taken.partition].failed[taken.position]).clone(),
            )),
        });
        failed::Event::Polled(uncommitted.collect())
    }

    /// Forgets the records that a member has read, and sends the commit of their offsets.
    pub fn send_commit(&mut self, caller: Caller, next: Vec<(PartitionId, Offset)>) {
        let intake = std::mem::take(&mut self.supervisors[caller.supervisor].intake);
        let commit = |(partition, next): (PartitionId, Offset)| {
            let partition = partition.0 as usize;
            let taken = intake.iter().find(|taken| taken.partition == partition);
            taken.map(|taken| Commit {
                partition,
                next,
                assignment: taken.assignment,
            })
        };
        let call = Call::Commit(next.into_iter().filter_map(commit).collect());
        self.send_call(caller, call);
    }

    /// Stores the offsets of those partitions that still belong to the member.
    fn commit_failed(&mut self, commits: Vec<Commit>) {
        for commit in commits {
            let logs = &mut self.store.logs[commit.partition];
            if commit.assignment != logs.failed_reader {
                self.seen.count(Sight::CommitsRefused);
                continue;
            }
            let next = usize::try_from(commit.next.0).unwrap();
            let before = logs.failed_next;
            logs.failed_next = before.max(next);
            self.check_passed_failures(commit.partition, before, before.max(next));
            self.check_checkpoint(commit.partition);
        }
    }

    pub fn send_call(&mut self, caller: Caller, call: Call) {
        let after = match call {
            Call::PollEnds => self.rng.between(300_000, 900_000),
            Call::Poll | Call::IndexShard(_) | Call::Audit(_) | Call::Commit(_) => {
                self.travel() / 4
            }
        };
        self.later(after, What::SupervisorCall { caller, call });
    }
}

fn published(caller: &Caller) -> Answer {
    match caller.machine {
        Machine::IndexShard(_) => Answer::IndexShard(index_shard::Event::Published),
        Machine::Audit(_) => Answer::Audit(audit::Event::Published),
        Machine::Failed => Answer::Failed(failed::Event::Published),
    }
}

fn failed_to_publish(caller: &Caller) -> Answer {
    match caller.machine {
        Machine::IndexShard(_) => Answer::IndexShard(index_shard::Event::Failed),
        Machine::Audit(_) => Answer::Audit(audit::Event::Failed),
        Machine::Failed => Answer::Failed(failed::Event::Failed),
    }
}

/// Whether a renewal is written: the stored lease is of the same ownership, and older.
fn may_renew(stored: Option<&Lease>, renewal: &Lease) -> bool {
    stored.is_some_and(|stored| {
        let is_same = (stored.owner, stored.epoch) == (renewal.owner, renewal.epoch);
        stored == renewal || (is_same && stored.renewal < renewal.renewal)
    })
}
