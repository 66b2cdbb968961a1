//! Forwards records that concern no operation of this shard, with their original bytes.
//!
//! What must hold: such a record is done once the receiving topic has acknowledged it, and until
//! then it holds up only the checkpoint. A misrouted record is rerouted only once for a given
//! number of partitions: two schedulers that disagree about its partition would reroute it back and
//! forth for ever.

use crate::id::{Offset, OperationId, PartitionId};
use crate::partition::PartitionEngine;
use crate::partition::command::Message;
use crate::partition::event::ForwardRecord;
use crate::priority::{Priority, Source};

impl PartitionEngine {
    /// Sends a record to the dead letters. Returns whether it is new. A request with an operation
    /// is done only once the caller has found that operation.
    pub(super) fn unreadable(
        &mut self,
        source: Source,
        offset: Offset,
        fingerprint: u64,
        operation: Option<OperationId>,
        cause: String,
        record: Box<ForwardRecord>,
    ) -> bool {
        let is_new = match (source.priority(), operation) {
            (Some(priority), Some(_)) => self.requests[priority].begin(offset, fingerprint),
            (Some(_) | None, _) => self.begin_foreign(source, offset, fingerprint),
        };
        if is_new {
            self.stats.unreadable += 1;
            self.dead_letter(source, offset, cause, record);
        }
        is_new
    }

    pub(super) fn misrouted(
        &mut self,
        source: Source,
        offset: Offset,
        fingerprint: u64,
        (home, partitions): (PartitionId, u32),
        already_rerouted: bool,
        record: Box<ForwardRecord>,
    ) {
        if !self.begin_foreign(source, offset, fingerprint) {
            return;
        }
        self.stats.misrouted += 1;
        if already_rerouted {
            let cause = format!(
                "its operation belongs to partition {home} of {partitions}, not to {}, and the \
                 record was already rerouted",
                self.ownership.partition,
            );
            self.dead_letter(source, offset, cause, record);
        } else {
            self.open.sends.push(Message::Reroute {
                source,
                partition: home,
                partitions,
                record,
            });
        }
    }

    /// Skips records that do not belong to this shard.
    pub(super) fn passed(&mut self, source: Source, offset: Offset, fingerprint: u64) {
        match source {
            Source::Requests => self.requests.normal.pass(offset, fingerprint),
            Source::HighPriority => self.requests.high.pass(offset, fingerprint),
            Source::Replies => self.replies.pass(offset, fingerprint),
            Source::Recoveries => self.recoveries.pass(offset, fingerprint),
        }
    }

    /// Begins a record that concerns no operation of this shard.
    fn begin_foreign(&mut self, source: Source, offset: Offset, fingerprint: u64) -> bool {
        match source {
            Source::Requests => self.begin_foreign_request(Priority::Normal, offset, fingerprint),
            Source::HighPriority => self.begin_foreign_request(Priority::High, offset, fingerprint),
            Source::Replies => {
                let is_new = self.replies.begin_with(offset, fingerprint);
                if is_new {
                    self.open.done.replies.push(offset);
                }
                is_new
            }
            Source::Recoveries => {
                let is_new = self.recoveries.begin_with(offset, fingerprint);
                if is_new {
                    self.open.done.recoveries.push(offset);
                }
                is_new
            }
        }
    }

    fn begin_foreign_request(
        &mut self,
        priority: Priority,
        offset: Offset,
        fingerprint: u64,
    ) -> bool {
        let is_new = self.requests[priority].begin(offset, fingerprint);
        if is_new {
            self.open.done.requests.push((priority, offset));
            self.open.done.consumed.push((priority, offset));
        }
        is_new
    }

    fn dead_letter(
        &mut self,
        source: Source,
        offset: Offset,
        cause: String,
        record: Box<ForwardRecord>,
    ) {
        self.stats.dead_lettered += 1;
        self.open.sends.push(Message::DeadLetter {
            source,
            offset,
            cause,
            record,
        });
    }
}
