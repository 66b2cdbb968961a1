//! Judges a run from outside.

use std::time::Duration;

use waybill_engine::OperationId;
use waybill_state::{DUE_BUCKETS_REREAD, DueBucket, DueEntry};
use waybill_supervisor_core::index_shard::Effect;

use crate::process::LEASE;
use crate::run::Run;
use crate::seen::Sight;
use crate::workload::Kind;

impl Run {
    /// An effect on the world begins: only a valid owner acts, and the cursor passes no entry whose
    /// recovery was not published.
    pub fn judge_effect(&mut self, process: usize, shard: usize, effect: &Effect) {
        let is_act = matches!(
            effect,
            Effect::ReadEntries { .. } | Effect::Publish(_) | Effect::MoveCursor(_)
        );
        if !is_act {
            return;
        }
        let sweep = &self.processes[process].sweeps[shard];
        let Some((lease, valid_until)) = &sweep.lease else {
            panic!("seed {}: {effect:?} without a lease", self.seed);
        };
        let is_late = self.now >= *valid_until;
        assert!(!is_late, "seed {}: {effect:?} after its lease", self.seed);
        let stored = self.store.shards[shard].lease.as_ref();
        let epoch = stored.map(|stored| stored.epoch);
        let is_alone = epoch == Some(lease.epoch);
        assert!(is_alone, "seed {}: {effect:?} as a former owner", self.seed);
        if let Effect::MoveCursor(cursor) = effect {
            let passed = sweep.read.iter();
            for entry in passed.filter(|entry| DueBucket::of(entry.due) < *cursor) {
                self.assert_published(shard, entry);
            }
        }
    }

    /// The cursor becomes durable: what no sweep reads again is woken.
    pub fn move_cursor(&mut self, shard: usize, cursor: DueBucket) {
        let stored = self.store.shards[shard].cursor;
        if stored.is_some_and(|stored| stored >= cursor) {
            return;
        }
        self.store.shards[shard].cursor = Some(cursor);
        self.seen.count(Sight::CursorMoves);
        let forgotten = DueBucket(cursor.0 - DUE_BUCKETS_REREAD);
        let is_forgotten = |entry: &DueEntry| DueBucket::of(entry.due) < forgotten;
        let entries = self.store.shards[shard].entries.clone();
        for entry in entries.into_iter().filter(is_forgotten) {
            if self.relied_on.contains(&(shard, entry)) {
                self.assert_published(shard, &entry);
            }
            self.store.shards[shard].entries.remove(&entry);
        }
    }

    fn assert_published(&self, shard: usize, entry: &DueEntry) {
        let mut recoveries = self.store.shards[shard].recoveries.iter();
        let is_published = recoveries.any(|(operation, due)| {
            *operation == entry.operation && due.is_some_and(|due| due == entry.due)
        });
        assert!(
            is_published,
            "seed {}: the cursor passed {entry:?}",
            self.seed
        );
    }

    /// A process publishes: the maximum rate holds.
    pub fn judge_rate(&mut self, process: usize, recoveries: usize) {
        let seed = self.seed;
        let process = &mut self.processes[process];
        let boot = process.boot(self.now);
        process.published.push_back((boot, recoveries));
        // Each machine may use a turn later than it was reserved for, while it renews its lease.
        let machines = 2 * process.sweeps.len();
        let late = (machines + 1) * process.chunk();
        for window in [Duration::from_secs(1), Duration::from_secs(5)] {
            let published = process.published.iter().rev();
            let of_window = published.take_while(|(at, _)| boot - *at < window);
            let count: usize = of_window.map(|(_, count)| count).sum();
            let most = process.rate as usize * window.as_secs() as usize + late;
            assert!(
                count <= most,
                "seed {seed}: {count} recoveries in {window:?}"
            );
        }
    }

    /// An audit wakes an operation, which is an exception.
    pub fn judge_wake(&mut self, operation: OperationId) {
        self.seen.count(Sight::Woken);
        let kind = self.kinds.get(&operation);
        let is_exception = kind != Some(&Kind::Plain);
        let is_faultless = self.faults == 0 && self.crashes == 0;
        let is_due = is_exception || !is_faultless;
        assert!(is_due, "seed {}: {operation} {kind:?} is woken", self.seed);
    }

    /// Nothing moves any more: every operation was woken.
    pub fn judge_end(&self) {
        for operation in self.kinds.keys() {
            assert!(
                self.handled.contains(operation),
                "seed {}: {operation} {:?} is not woken",
                self.seed,
                self.kinds[operation]
            );
        }
    }

    /// How long every operation is woken after the last fault.
    pub fn bound() -> Duration {
        // A silent owner is waited for, and two rounds of the audit follow what the cursor passes.
        LEASE * 4 + Duration::from_secs(90)
    }
}
