//! What lies outside of the processes: a store, the logs of two partitions, agents, and the time.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;
use waybill_engine::{
    BootTime, CreateRequest, IdOrigin, Message, Now, Offset, OperationId, OperationRow, Outcome,
    PartitionId, RequestHash, StatusKind, StepReply, Timestamp, partition_for,
};
use waybill_scheduler_core::{Asker, LogEnds};
use waybill_state::{DueBucket, Lease, LeaseKey, RowRead, WriteBatch};

use crate::judge::Judge;
use crate::rng::Rng;
use crate::seen::{Seen, Sight};

pub const PARTITIONS: u32 = 2;
/// When the run begins, on the boot clock of every process.
const BOOTED: BootTime = BootTime::from_micros(1_000_000_000);
/// The wall-clock time of that instant.
const BEGAN: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// The logs of one partition.
#[derive(Default)]
pub struct Logs {
    /// The first request that retention has not deleted. (The judge sees all of them.)
    pub first: usize,
    pub requests: Vec<CreateRequest>,
    pub replies: Vec<StepReply>,
}

pub struct World {
    /// Since the run began.
    pub time: Duration,
    pub rng: Rng,
    /// Whether faults happen: not any more towards the end.
    pub has_faults: bool,
    pub rows: BTreeMap<OperationId, OperationRow>,
    pub leases: BTreeMap<LeaseKey, Lease>,
    /// The sweep cursors of the index shards.
    pub cursors: BTreeMap<PartitionId, DueBucket>,
    pub logs: Vec<Logs>,
    /// Replies of agents on their way, by the time at which they arrive.
    replies: BTreeMap<(Duration, u64), (PartitionId, StepReply)>,
    order: u64,
    pub judge: Judge,
    pub seen: Seen,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self {
            time: Duration::ZERO,
            rng: Rng::new(seed),
            has_faults: true,
            rows: BTreeMap::new(),
            leases: BTreeMap::new(),
            cursors: BTreeMap::new(),
            logs: (0..PARTITIONS).map(|_| Logs::default()).collect(),
            replies: BTreeMap::new(),
            order: 0,
            judge: Judge::default(),
            seen: Seen::default(),
        }
    }

    /// The time as every process reads it.
    pub fn now(&self) -> Now {
        Now {
            wall: BEGAN + self.time,
            boot: BOOTED + self.time,
        }
    }

    /// A fault that happens at this rate, in percent.
    pub fn fault(&mut self, percent: u64) -> bool {
        self.has_faults && self.rng.chance(percent)
    }

    /// A fault between two actions of a process, of which it makes some hundreds each second.
    pub fn rarely(&mut self) -> bool {
        self.has_faults && self.rng.below(4_000) == 0
    }

    /// A delay: short, and at times long.
    pub fn delay(&mut self) -> Duration {
        let most = match self.fault(3) {
            true => 6_000,
            false => 20,
        };
        Duration::from_micros(self.rng.between(100, most * 1_000))
    }

    /// Appends a new request to the log of its partition.
    pub fn request(&mut self) {
        let operation = OperationId(self.rng.uuid());
        let partition = partition_for(operation, PARTITIONS);
        let requested_at = self.now().wall;
        self.log(partition).requests.push(CreateRequest {
            operation,
            // Its row is looked up, because its age is unknown.
            id_origin: IdOrigin::Caller,
            workflow: "pair".to_owned(),
            tenant: String::new(),
            caller_id: None,
            input: b"{}".to_vec(),
            deadline: None,
            reply_to: None,
            request_hash: RequestHash::default(),
            verify_hash: false,
            requested_at,
            traceparent: None,
            resubmission_of: None,
            notify: Vec::new(),
        });
    }

    pub fn log(&mut self, partition: PartitionId) -> &mut Logs {
        &mut self.logs[partition.0 as usize]
    }

    pub fn ends(&self, partition: PartitionId) -> LogEnds {
        let logs = &self.logs[partition.0 as usize];
        let mut ends = LogEnds::default();
        ends.first.requests.0 = i64::try_from(logs.first).unwrap();
        ends.next.requests.0 = i64::try_from(logs.requests.len()).unwrap();
        ends.next.replies.0 = i64::try_from(logs.replies.len()).unwrap();
        ends
    }

    /// Retention deletes all requests of a partition, whether they are done or not.
    pub fn empty_the_log(&mut self, partition: PartitionId) {
        self.seen.saw(Sight::LogEmptied);
        let logs = self.log(partition);
        logs.first = logs.requests.len();
    }

    /// Whether a partition has requests that are not done.
    pub fn lags(&self, partition: PartitionId) -> bool {
        self.done(partition) < self.ends(partition).next.requests
    }

    /// Whether the log of a partition begins behind its checkpoint.
    pub fn has_lost_requests(&self, partition: PartitionId) -> bool {
        self.ends(partition).first.requests > self.done(partition)
    }

    /// Whether all operations of a partition have ended and are announced, and its checkpoint is
    /// stored.
    pub fn has_finished(&self, partition: PartitionId) -> bool {
        let logs = &self.logs[partition.0 as usize];
        let mut requests = logs.requests.iter();
        requests.all(|request| self.judge.is_announced(request.operation))
            && self.done(partition) == self.ends(partition).next.requests
    }

    /// How far the partitions are, for people.
    pub fn progress(&self) -> String {
        let partitions = (0..PARTITIONS).map(PartitionId);
        let each = partitions.map(|partition| {
            let (done, ends) = (self.done(partition), self.ends(partition));
            let (first, end) = (ends.first.requests, ends.next.requests);
            format!("partition {partition}: done {done}, in the log {first} to {end}")
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// The checkpoint of a partition.
    fn done(&self, partition: PartitionId) -> Offset {
        let mut leases = self.leases.values();
        let lease = leases.find(|lease| lease.partition == partition);
        lease.map_or(Offset(0), |lease| lease.checkpoint.at.requests)
    }

    /// Writes rows: of two writes of one row, the one with the higher stamp wins.
    pub fn write(&mut self, batch: &WriteBatch) {
        for write in &batch.rows {
            let before = self.rows.get(&write.id);
            if before.is_some_and(|row| row.stamp >= write.stamp) {
                continue;
            }
            let created = before.map(|row| row.created.clone());
            let created = write.created.clone().or(created);
            let row = OperationRow {
                id: write.id,
                created: created.expect("the first write has the immutable part"),
                state: write.state.clone(),
                stamp: write.stamp,
            };
            self.rows.insert(write.id, row);
        }
    }

    pub fn read(&self, operations: &[OperationId]) -> Vec<(OperationId, RowRead)> {
        let row = |id: &OperationId| (*id, Ok(self.rows.get(id).cloned()));
        operations.iter().map(row).collect()
    }

    /// Writes a lease if the stored one is `seen`.
    pub fn take_lease(&mut self, seen: Option<&Lease>, lease: &Lease) -> bool {
        let is_as_seen = self.leases.get(&lease.key) == seen;
        if is_as_seen {
            self.put_lease(lease);
        }
        is_as_seen
    }

    /// Renews a lease of the same owner and epoch.
    pub fn renew_lease(&mut self, lease: &Lease) -> bool {
        let stored = &self.leases[&lease.key];
        if stored == lease {
            return true;
        }
        let may_renew = (stored.owner, stored.epoch) == (lease.owner, lease.epoch)
            && stored.renewal < lease.renewal;
        if may_renew {
            self.put_lease(lease);
        }
        may_renew
    }

    /// Moves a sweep cursor forward.
    pub fn advance_cursor(&mut self, index_shard: PartitionId, cursor: DueBucket) {
        let stored = self.cursors.entry(index_shard).or_insert(cursor);
        *stored = cursor.max(*stored);
    }

    fn put_lease(&mut self, lease: &Lease) {
        let logs = &self.logs[lease.partition.0 as usize];
        self.judge.checkpoint(lease, logs, &self.rows);
        self.leases.insert(lease.key, lease.clone());
    }

    /// A producer accepts messages; the broker has them from now on.
    pub fn send(&mut self, from: Asker, message: &Message) {
        let lease = self
            .leases
            .values()
            .find(|lease| lease.key.number == from.shard.0);
        let lease = lease.expect("its sender took it");
        self.judge.sent(lease, message, &self.rows);
        match message {
            Message::Step(request) => {
                // The agent performs it, and answers.
                let outputs = Vec::new();
                let reply = StepReply::to(request, Outcome::Success { outputs });
                let at = self.time + self.delay();
                self.reply(at, from.partition, reply.clone());
                if self.fault(5) {
                    let at = self.time + self.delay();
                    self.reply(at, from.partition, reply);
                }
            }
            Message::Status(status) => {
                if status.kind == StatusKind::Final {
                    self.judge.announced(status.operation);
                }
            }
            other => panic!("no operation fails here: {other:?}"),
        }
    }

    fn reply(&mut self, at: Duration, partition: PartitionId, reply: StepReply) {
        self.order += 1;
        self.replies.insert((at, self.order), (partition, reply));
    }

    /// Appends the replies that have arrived.
    pub fn deliver(&mut self) {
        let time = self.time;
        while let Some(first) = self.replies.first_entry()
            && first.key().0 <= time
        {
            let (partition, reply) = first.remove();
            self.log(partition).replies.push(reply);
        }
    }

    /// A new nonce of a process.
    pub fn uuid(&mut self) -> Uuid {
        self.rng.uuid()
    }
}
