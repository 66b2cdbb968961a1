//! Drives acquisitions on a small store, and asserts their calls.

mod first_owner;
mod owned;
mod predecessors;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    BootTime, ByPriority, Epoch, Now, Offset, OwnerId, PartitionId, Priority, ShardId,
    ShardingScheme, Stamp, Timestamp, TopicOffsets,
};
use waybill_state::{Checkpoint, DueBucket, Layout, LayoutGeneration, Lease, LeaseKey, LeaseWatch};

use super::*;
use crate::log_offsets::LogEnds;

const ME: OwnerId = OwnerId(Uuid::from_u128(7));
const OTHER: OwnerId = OwnerId(Uuid::from_u128(8));
const TERMS: LeaseTerms = LeaseTerms {
    duration: Duration::from_secs(10),
    margin: Duration::from_secs(2),
};
/// How long each call takes.
const TAKES: Duration = Duration::from_millis(3);

/// What the calls are performed on.
#[derive(Default)]
struct Site {
    leases: BTreeMap<LeaseKey, Lease>,
    /// The stored layout, if it is not the one that shards are acquired of.
    other_layout: Option<Layout>,
    cursor: Option<DueBucket>,
    ends: LogEnds,
    committed: ByPriority<Option<Offset>>,
    /// Since the start.
    time: Duration,
    is_exclusive: bool,
    may_lack_state: bool,
    /// The names of the calls, those in a row only once.
    calls: Vec<String>,
    /// How long it waited.
    waited: Duration,
}

type Acquired = Result<(HeldLease, LogEnds), AcquireError>;

impl Site {
    fn now(&self) -> Now {
        Now {
            wall: Timestamp::from_millis(1_700_000_000_000) + self.time,
            boot: BootTime::from_micros(60_000_000) + self.time,
        }
    }

    fn acquisition(&self, layout: &Layout, shard: u32) -> Acquisition {
        let candidate = Candidate {
            owner: ME,
            terms: TERMS,
            store_is_exclusive: self.is_exclusive,
            may_lack_state: self.may_lack_state,
        };
        Acquisition::new(candidate, layout.clone(), ShardId(shard))
    }

    /// Stores a lease that has begun, of the first partition.
    fn lease(&mut self, generation: u64, shard: u32, owner: Option<OwnerId>, requests: i64) {
        let key = key(generation, shard);
        let lease = Lease {
            owner,
            epoch: Epoch(4 + u64::from(shard)),
            duration: Duration::from_secs(5),
            stamp_limit: Stamp(100 + i64::from(shard)),
            consumed: ByPriority {
                normal: Offset(requests + 1),
                high: Offset(0),
            },
            checkpoint: Checkpoint::at(at(requests)),
            is_begun: true,
            ..Lease::new(key, PartitionId(0))
        };
        self.leases.insert(key, lease);
    }

    /// Acquires the lease of a shard. Everything is as the machine expects.
    fn acquire(&mut self, layout: &Layout, shard: u32) -> Acquired {
        self.acquire_with(layout, shard, |_, _| None)
    }

    /// Acquires the lease of a shard. `instead` may change what is stored before a call is
    /// performed, and give another answer.
    fn acquire_with(
        &mut self,
        layout: &Layout,
        shard: u32,
        mut instead: impl FnMut(&mut Self, &AcquisitionCall) -> Option<AcquisitionAnswer>,
    ) -> Acquired {
        let mut acquisition = self.acquisition(layout, shard);
        let mut answer = AcquisitionAnswer::Started;
        loop {
            let call = match acquisition.handle(answer, self.now()) {
                AcquisitionStep::Call(call) => call,
                AcquisitionStep::Done(result) => return result,
            };
            assert!(self.time < Duration::from_secs(60), "{:?}", self.calls);
            let name = name(&call);
            if self.calls.last() != Some(&name) {
                self.calls.push(name);
            }
            answer = match instead(self, &call) {
                Some(answer) => answer,
                None => self.perform(call, layout),
            };
        }
    }

    fn perform(&mut self, call: AcquisitionCall, layout: &Layout) -> AcquisitionAnswer {
        use AcquisitionAnswer as Answer;
        use AcquisitionCall as Call;

        self.time += TAKES;
        match call {
            Call::ReadLease(key) => Answer::Lease(self.leases.get(&key).cloned().map(Box::new)),
            Call::TakeLease { seen, lease } => {
                let is_as_seen = self.leases.get(&lease.key) == seen.as_deref();
                if is_as_seen {
                    self.leases.insert(lease.key, *lease);
                }
                Answer::Taken(is_as_seen)
            }
            Call::ReadLayout => {
                let stored = self.other_layout.clone().unwrap_or_else(|| layout.clone());
                Answer::Layout((stored.generation().0 > 0).then_some(stored))
            }
            Call::ReadEnds(_) => Answer::Ends(self.ends),
            Call::ReadCommitted(source, _) => {
                let committed = source.priority().and_then(|of| self.committed[of]);
                Answer::Committed(committed)
            }
            Call::ReadCursor(_) => Answer::Cursor(self.cursor),
            Call::AdvanceCursor(_, cursor) => {
                self.cursor = Some(cursor);
                Answer::CursorMoved
            }
            Call::Wait(time) => {
                self.time += time;
                self.waited += time;
                Answer::Waited
            }
        }
    }
}

/// A call with the lease that it is about.
fn name(call: &AcquisitionCall) -> String {
    let of = |key: &LeaseKey| format!("{}.{}", key.generation, key.number);
    match call {
        AcquisitionCall::ReadLease(key) => format!("read {}", of(key)),
        AcquisitionCall::TakeLease { lease, .. } if lease.is_ended => {
            format!("end {}", of(&lease.key))
        }
        AcquisitionCall::TakeLease { lease, .. } => format!("take {}", of(&lease.key)),
        AcquisitionCall::ReadLayout => "layout".to_owned(),
        AcquisitionCall::ReadEnds(partition) => format!("ends {partition}"),
        AcquisitionCall::ReadCommitted(source, partition) => {
            format!("committed {source:?} {partition}")
        }
        AcquisitionCall::ReadCursor(_) => "cursor".to_owned(),
        AcquisitionCall::AdvanceCursor(..) => "advance cursor".to_owned(),
        AcquisitionCall::Wait(_) => "wait".to_owned(),
    }
}

fn key(generation: u64, shard: u32) -> LeaseKey {
    LeaseKey::scheduler(LayoutGeneration(generation), ShardId(shard))
}

fn at(requests: i64) -> TopicOffsets {
    TopicOffsets {
        requests: Offset(requests),
        ..TopicOffsets::default()
    }
}

/// Successive layouts of one partition.
fn layout_of(numbers: &[u32]) -> Layout {
    numbers.iter().fold(Layout::first(1), |layout, &number| {
        let scheme = ShardingScheme {
            shards_per_partition: number,
            ..layout.scheme()
        };
        layout.successor(scheme).unwrap()
    })
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let mut site = Site::default();
    site.lease(0, 0, None, 40);
    site.cursor = Some(DueBucket(5));
    site.ends.next = at(70);
    let before = site.leases[&key(0, 0)].clone();
    let (held, ends) = site.acquire(&Layout::first(1), 0).unwrap();
    // The first read is that of the check for an earlier owner, the second that of the candidate.
    let calls = ["read 0.0", "layout", "take 0.0", "cursor", "ends 0"];
    assert_eq!(site.calls, calls);
    assert_eq!(site.time, 6 * TAKES);
    assert_eq!(ends, site.ends);
    assert_eq!(held.row, site.leases[&key(0, 0)]);
    assert_eq!(held.stamp_floor, before.stamp_limit);
    let expected = Lease {
        owner: Some(ME),
        epoch: before.epoch.next(),
        duration: TERMS.duration,
        stamp_limit: held.row.stamp_limit,
        ..before
    };
    assert_eq!(held.row, expected);
}

#[test]
fn the_lease_lasts_from_the_moment_at_which_its_write_began() {
    let mut site = Site::default();
    site.lease(0, 0, None, 40);
    let mut began = None;
    let acquired = site.acquire_with(&Layout::first(1), 0, |site, call| {
        if matches!(call, AcquisitionCall::TakeLease { .. }) {
            began = Some(site.now());
            // A slow disk.
            site.time += Duration::from_secs(3);
        }
        None
    });
    let (held, _) = acquired.unwrap();
    let began = began.unwrap();
    let lasts = TERMS.duration - TERMS.margin;
    assert_eq!(held.valid_until, began.boot + lasts);
    let limit = began.wall + 2 * TERMS.duration;
    assert_eq!(held.row.stamp_limit, Stamp(limit.as_micros()));
}

#[test]
fn an_answer_that_does_not_fit_the_call_ends_the_acquisition() {
    let site = Site::default();
    let mut acquisition = site.acquisition(&Layout::first(1), 0);
    let refused = |step| match step {
        AcquisitionStep::Done(Err(error)) => error.to_string(),
        step => panic!("{step:?}"),
    };
    let step = acquisition.handle(AcquisitionAnswer::Waited, site.now());
    assert_eq!(refused(step), "got the answer Waited to no call");

    let mut acquisition = site.acquisition(&Layout::first(1), 0);
    let step = acquisition.handle(AcquisitionAnswer::Started, site.now());
    let read = AcquisitionCall::ReadLease(key(0, 0));
    assert_eq!(step, AcquisitionStep::Call(read));
    let step = acquisition.handle(AcquisitionAnswer::Taken(true), site.now());
    assert_eq!(refused(step), "got the answer Taken to ReadLease");
    let step = acquisition.handle(AcquisitionAnswer::Started, site.now());
    assert_eq!(refused(step), "got the answer Started to no call");
}

#[test]
fn a_call_that_fails_ends_the_acquisition() {
    for fails in ["read 0.0", "layout", "take 0.0", "cursor", "advance cursor"] {
        let mut site = Site::default();
        site.lease(0, 0, None, 40);
        let acquired = site.acquire_with(&Layout::first(1), 0, |_, call| {
            let failed = AcquisitionAnswer::Failed("it timed out: no node answered".to_owned());
            (name(call) == fails).then_some(failed)
        });
        let text = "cannot take the lease: it timed out: no node answered";
        let expected = AcquireError::Failed(text.to_owned());
        assert_eq!(acquired, Err(expected), "{fails}");
        assert_eq!(site.calls.last().unwrap(), fails);
    }
}

/// The write of a lease may have happened although it failed. The next attempt then waits for it
/// like for any other, except in a store that is exclusive to this process.
#[test]
fn a_write_that_failed_may_have_taken_the_lease() {
    for is_exclusive in [false, true] {
        let mut site = Site {
            is_exclusive,
            ..Site::default()
        };
        site.lease(0, 0, None, 40);
        let layout = Layout::first(1);
        let acquired = site.acquire_with(&layout, 0, |site, call| {
            let AcquisitionCall::TakeLease { .. } = call else {
                return None;
            };
            site.perform(call.clone(), &layout);
            Some(AcquisitionAnswer::Failed("it timed out".to_owned()))
        });
        assert!(
            matches!(acquired, Err(AcquireError::Failed(_))),
            "{acquired:?}"
        );
        let (held, _) = site.acquire(&layout, 0).unwrap();
        assert_eq!(held.row.epoch, Epoch(6));
        let silent_for = TERMS.duration + TERMS.margin;
        match is_exclusive {
            true => assert_eq!(site.waited, Duration::ZERO),
            false => assert!(site.waited >= silent_for, "{:?}", site.waited),
        }
    }
}
