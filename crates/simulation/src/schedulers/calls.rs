//! The calls of schedulers, as the store and the broker receive them.

use waybill_engine::{ByPriority, OperationId, PartitionId, ShardId, Source};
use waybill_scheduler_core::{
    AcquisitionAnswer, AcquisitionCall, Effect, Generation, Input, LogEnds, StoreFailure,
    StoreFailureKind, TaskError,
};
use waybill_state::{CorruptRow, Lease, LeaseKey, RowRead};

use super::{Act, Incarnation, offset};
use crate::bugs::Bug;
use crate::replicas::Asked;
use crate::run::Run;
use crate::seen::Sight;
use crate::store::{Spoilt, topic_of};

/// The percentage of calls that fail, before or after they are applied.
const FAULTS: u64 = 1;

/// A call on its way to the store, or to the broker.
#[derive(Debug)]
pub enum Call {
    Layout,
    Leases {
        shard: ShardId,
        generation: Generation,
        keys: Vec<LeaseKey>,
    },
    Renew {
        shard: ShardId,
        generation: Generation,
        lease: Box<Lease>,
    },
    /// Writes `free` if the stored lease is `held`.
    Release {
        /// The shard that waits for the answer.
        of: Option<(ShardId, Generation)>,
        held: Box<Lease>,
        free: Box<Lease>,
    },
    Load {
        shard: ShardId,
        generation: Generation,
        operations: Vec<OperationId>,
    },
    InboxEnd {
        shard: ShardId,
        generation: Generation,
        partition: PartitionId,
    },
    /// A call of a candidate.
    Acquisition(Generation, AcquisitionCall),
}

impl Call {
    /// The call that an effect of the loop is, if it is one.
    pub fn of(effect: Effect) -> Option<Self> {
        Some(match effect {
            Effect::ReadLayout => Self::Layout,
            Effect::ReadLeases {
                shard,
                generation,
                keys,
            } => Self::Leases {
                shard,
                generation,
                keys,
            },
            Effect::Renew {
                shard,
                generation,
                lease,
            } => Self::Renew {
                shard,
                generation,
                lease,
            },
            Effect::Release {
                shard,
                generation,
                held,
                free,
            } => Self::Release {
                of: Some((shard, generation)),
                held,
                free,
            },
            Effect::HandBack { held, free } => Self::Release {
                of: None,
                held,
                free,
            },
            Effect::Load {
                shard,
                generation,
                operations,
            } => Self::Load {
                shard,
                generation,
                operations,
            },
            Effect::ReadInboxEnd {
                shard,
                generation,
                partition,
            } => Self::InboxEnd {
                shard,
                generation,
                partition,
            },
            _ => return None,
        })
    }

    /// Whether it may change the store.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Renew { .. } | Self::Release { .. } => true,
            Self::Acquisition(_, call) => matches!(
                call,
                AcquisitionCall::TakeLease { .. } | AcquisitionCall::AdvanceCursor(..)
            ),
            Self::Layout | Self::Leases { .. } | Self::Load { .. } | Self::InboxEnd { .. } => false,
        }
    }
}

impl Run {
    pub fn send_scheduler_call(&mut self, index: usize, call: Call) {
        let mut call = call;
        if self.bug == Some(Bug::CheckpointEarly) {
            self.move_checkpoint(index, &mut call);
        }
        let may_be_slow = !self.plan.is_settling() && !self.is_calm();
        let after = match &call {
            Call::Renew { .. } | Call::Release { .. } if may_be_slow && self.rng.chance(3) => {
                self.rng.below(1_500_000)
            }
            Call::Load { .. } => self.travel(),
            _ => self.rng.below(3_000),
        };
        self.act_later(index, after, Act::Call(call));
    }

    /// The planted bug: the checkpoint moves over everything that was read.
    fn move_checkpoint(&self, index: usize, call: &mut Call) {
        if let Call::Renew { shard, lease, .. } = call
            && let Some(reading) = self.schedulers[index].readings.get(shard)
        {
            for source in [Source::Requests, Source::HighPriority, Source::Replies] {
                let read = offset(reading.next[Self::index_of(source)]);
                *lease.checkpoint.at.on_mut(source) = read;
            }
            lease.checkpoint.fingerprints = ByPriority::default();
        }
    }

    /// A call arrives, unless it died with its process.
    pub fn scheduler_calls(&mut self, of: Incarnation, call: Call) {
        if !self.lives(of) && self.rng.fate(50) {
            return;
        }
        let scheduler = &self.schedulers[of.scheduler];
        let is_reached = match call {
            Call::InboxEnd { .. } => true,
            _ => scheduler.keeps_rows && !call.is_change(),
        };
        let is_cut_off = scheduler.cut_off_until > self.now && !is_reached && !self.is_calm();
        let fails = is_cut_off || (!self.is_calm() && self.rng.chance(FAULTS));
        if fails {
            self.seen.count(Sight::SchedulerFaults);
        }
        let is_applied = !fails || (!is_cut_off && self.rng.chance(50));
        let faults = Faults {
            fails,
            is_applied,
            is_cut_off,
        };
        let act = match call {
            Call::Acquisition(generation, call) => {
                if !is_applied && !is_cut_off {
                    self.candidate_fails(&call);
                }
                let answer = is_applied.then(|| self.candidate_calls(of.scheduler, call));
                let failed = || AcquisitionAnswer::Failed("it timed out".to_owned());
                let answer = answer.filter(|_| !fails).unwrap_or_else(failed);
                Act::Acquisition(generation, answer)
            }
            Call::InboxEnd {
                shard,
                generation,
                partition,
            } => {
                let replies = self.store.logs[partition.0 as usize].replies.len();
                let end = match self.bug {
                    Some(Bug::TimeOutBeforeInboxIsRead) => offset(0),
                    _ => offset(replies),
                };
                Act::Input(Input::InboxEnd {
                    shard,
                    generation,
                    end: Ok(end),
                })
            }
            call => match self.answer_to(of, call, faults) {
                Some(input) => Act::Input(input),
                None => return,
            },
        };
        let after = match self.rng.chance(90) || self.is_calm() {
            true => self.rng.below(1_000),
            false => self.travel(),
        };
        if self.lives(of) {
            self.act_later(of.scheduler, after, act);
        }
    }

    /// Applies a call of the loop, and returns the input that answers it.
    fn answer_to(
        &mut self,
        from: Incarnation,
        call: Call,
        Faults {
            fails,
            is_applied,
            is_cut_off,
        }: Faults,
    ) -> Option<Input> {
        Some(match call {
            Call::Layout => {
                let layout = self.store.layout.clone();
                Input::Layout(answer(fails, Some(layout)))
            }
            Call::Leases {
                shard,
                generation,
                keys,
            } => {
                let leases = keys.iter().map(|key| self.store.leases.get(key).cloned());
                let leases = leases.collect();
                Input::Leases {
                    shard,
                    generation,
                    result: answer(fails, leases),
                }
            }
            Call::Renew {
                shard,
                generation,
                lease,
            } => {
                let is_written = is_applied && self.renew_lease(&lease);
                if !is_applied && !is_cut_off {
                    self.complete_proposal(lease.key);
                    if self.may_renew(&lease) {
                        self.proposal_fails(&lease);
                    }
                }
                let is_assumed = fails && self.bug == Some(Bug::AssumeRenewal);
                Input::Renewed {
                    shard,
                    generation,
                    result: answer(fails && !is_assumed, is_written || is_assumed),
                }
            }
            Call::Release { of, held, free } => {
                let is_written = is_applied && self.take_lease(Some(&held), &free);
                if is_written {
                    let key = free.key;
                    let index = from.scheduler;
                    self.note_all(|| format!("scheduler {index} gives {key} back"));
                }
                let (shard, generation) = of?;
                Input::Renewed {
                    shard,
                    generation,
                    result: answer(fails, is_written),
                }
            }
            Call::Load {
                shard,
                generation,
                operations,
            } => {
                let rows = operations.into_iter().map(|id| (id, self.read_row(id)));
                let rows = rows.collect();
                Input::Loaded {
                    shard,
                    generation,
                    result: answer(fails, rows),
                }
            }
            Call::InboxEnd { .. } | Call::Acquisition(..) => {
                unreachable!("these do not fail like the store")
            }
        })
    }

    /// Reads a row as the processes do.
    pub fn read_row(&mut self, id: OperationId) -> RowRead {
        self.read_quorum(Asked::Row(id));
        let row = self.store.read(id, self.now);
        row.map(Option::<&_>::cloned).map_err(|Spoilt| CorruptRow {
            id,
            what: "state",
            cause: "it cannot be read for a while".to_owned(),
        })
    }

    /// Where the logs of a partition begin and end.
    pub fn log_ends(&self, partition: PartitionId) -> LogEnds {
        let logs = &self.store.logs[partition.0 as usize];
        let mut ends = LogEnds::default();
        for source in Source::ALL {
            *ends.first.on_mut(source) = offset(logs.first[Self::index_of(source)]);
            *ends.next.on_mut(source) = offset(logs.len(source));
            if let Some(priority) = source.priority() {
                ends.topics[priority] = Some(topic_of(source));
            }
        }
        ends
    }

    /// Whether a stored lease is of the same ownership, and older.
    fn may_renew(&self, lease: &Lease) -> bool {
        let stored = self.store.leases.get(&lease.key);
        stored.is_some_and(|stored| {
            let is_same = (stored.owner, stored.epoch) == (lease.owner, lease.epoch);
            is_same && stored.renewal < lease.renewal
        })
    }

    /// Renews a lease, if the stored one is of the same ownership and older.
    fn renew_lease(&mut self, lease: &Lease) -> bool {
        self.complete_proposal(lease.key);
        if self.store.leases.get(&lease.key) == Some(lease) {
            return true;
        }
        let may_renew = self.may_renew(lease);
        match may_renew {
            true => self.put_lease(lease),
            false => self.seen.count(Sight::FencedRenewals),
        }
        may_renew
    }

    /// Writes a lease, if the stored one is as it was seen.
    pub fn take_lease(&mut self, seen: Option<&Lease>, lease: &Lease) -> bool {
        self.complete_proposal(lease.key);
        let is_as_seen = self.store.leases.get(&lease.key) == seen;
        if is_as_seen {
            self.put_lease(lease);
        }
        is_as_seen
    }

    pub fn put_lease(&mut self, lease: &Lease) {
        self.store.leases.insert(lease.key, lease.clone());
        self.check_checkpoint(lease.partition.0 as usize);
        self.check_fingerprints(lease);
    }
}

/// The faults of a call.
#[derive(Clone, Copy, Debug)]
struct Faults {
    /// Its caller gets an error.
    fails: bool,
    is_applied: bool,
    /// It does not reach the store.
    is_cut_off: bool,
}

/// The result of a call of the loop.
fn answer<T>(fails: bool, result: T) -> Result<T, TaskError> {
    match fails {
        true => Err(unknown()),
        false => Ok(result),
    }
}

/// The failure of a call that the store may have done.
pub fn unknown() -> TaskError {
    TaskError::Store(StoreFailure {
        kind: StoreFailureKind::Unknown,
        message: "it timed out".to_owned(),
    })
}
