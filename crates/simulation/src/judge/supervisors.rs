//! Checks what supervisors leave behind: nothing that they pass lacks its recovery.

use waybill_engine::{Recovery, Supervision};
use waybill_state::DueBucket;

use crate::history::Rule;
use crate::run::Run;

impl Run {
    /// A recovery was appended to the log of its partition.
    pub fn take_recovery(&mut self, recovery: &Recovery) {
        self.judge.recoveries.insert(recovery.id);
        if let Some(due) = recovery.due {
            self.judge.woken.insert((due, recovery.operation));
        }
    }

    /// The entries of an index shard before `before` are not read any more.
    pub fn check_passed_entries(&mut self, index_shard: usize, before: DueBucket) {
        let passed = self.store.logs[index_shard].certain_entries_before(before);
        let woken = &self.judge.woken;
        let lost = &self.judge.lost_wakes;
        let mut left = passed.filter(|entry| {
            !woken.contains(&(entry.due, entry.operation)) && !lost.contains(&entry.operation)
        });
        let first = left.next();
        drop(left);
        if let Some(entry) = first {
            self.fail(Rule::EntryPassedOver, entry.operation, || {
                format!("{entry:?} of index shard {index_shard}, before {before:?}")
            });
        }
    }

    /// The consumer group passes records of failed-operations, from one position to another.
    pub fn check_passed_failures(&mut self, partition: usize, from: usize, to: usize) {
        let supervision = Supervision {
            name: "judge",
            workflows: &self.plan.workflows,
            timeout_grace: self.plan.config.timeout_grace,
        };
        let passed = self.store.logs[partition].failed[from..to].iter();
        let decided = passed.filter_map(|failed| supervision.failed(failed, self.now));
        let mut left = decided.filter(|recovery| !self.judge.recoveries.contains(&recovery.id));
        let first = left.next();
        if let Some(recovery) = first {
            self.fail(Rule::FailurePassedOver, recovery.operation, || {
                format!("{recovery:?}")
            });
        }
    }
}
