//! Distinguishes a partition that has never run from one whose state is in another store.
//!
//! A store without a record of a partition may be new, or the wrong one: a mistyped keyspace, a
//! lost data directory. Starting there would run every request of the log again. So the very first
//! owner looks for signs of an earlier one: the copy of the checkpoint for lag tools, and a log
//! that has lost its beginning. They serve only as signs: no offset is ever taken from them.
//!
//! A log without its beginning may also have lost requests that were accepted before the partition
//! had an owner. A new topic begins at offset 0, so both cases are refused alike until a person has
//! intervened.

use waybill_engine::{Offset, PartitionId, Priority, ShardId, Source, TopicOffsets};
use waybill_store::{Layout, LayoutGeneration, Store};
use waybill_topology::shards;

use super::consumers::EndsReader;
use super::lease::AcquireError;
use super::log_offsets::LogEnds;

/// What the first owner of a partition needs to know about its logs.
#[derive(Clone)]
pub(super) struct FirstOwner {
    /// Reads where they begin and end.
    pub(super) logs: EndsReader,
    /// Whether a person has allowed the partition to start anyway (`scheduler.startWithoutState`).
    pub(super) may_lack_state: bool,
}

impl FirstOwner {
    /// Refuses a shard that has never run according to the store, although its log shows that it
    /// has.
    ///
    /// # Errors
    ///
    /// [`AcquireError::StateElsewhere`] if it has run; the other variants if the store or the
    /// broker cannot be read.
    pub(super) async fn check(
        &self,
        store: &dyn Store,
        layout: &Layout,
        generation: LayoutGeneration,
        shard: ShardId,
    ) -> Result<(), AcquireError> {
        if self.may_lack_state {
            return Ok(());
        }
        let lease = shards::current_lease(store, layout, generation, shard).await?;
        if lease.is_begun {
            return Ok(());
        }
        let partition = lease.partition;
        let ends = self.logs.read(partition).await?;
        for priority in Priority::ALL {
            let source = priority.source();
            let committed = self.logs.committed(source, partition).await?;
            if let Some(sign) = was_run(ends.next.on(source), committed) {
                return Err(AcquireError::StateElsewhere { sign });
            }
        }
        whole(&ends.first)
    }

    /// Where the logs of a partition begin for its first owner, and the IDs of their topics.
    ///
    /// # Errors
    ///
    /// [`AcquireError::StateElsewhere`] if a log has lost its beginning; [`AcquireError::Broker`]
    /// if the broker does not answer.
    pub(super) async fn beginnings(&self, partition: PartitionId) -> Result<LogEnds, AcquireError> {
        let ends = self.logs.read(partition).await?;
        if !self.may_lack_state {
            whole(&ends.first)?;
        }
        Ok(ends)
    }
}

/// Refuses logs that have lost their beginnings, except for replies.
fn whole(first: &TopicOffsets) -> Result<(), AcquireError> {
    for (source, topic) in [
        (Source::Requests, "requests"),
        (Source::HighPriority, "high-priority requests"),
        (Source::Recoveries, "recoveries"),
    ] {
        let first = first.on(source);
        if first > Offset(0) {
            let sign = format!("the log of its {topic} begins at offset {first}");
            return Err(AcquireError::StateElsewhere { sign });
        }
    }
    Ok(())
}

/// The sign that a log of requests was consumed before. A committed offset beyond the end belongs
/// to another topic of this name.
fn was_run(end: Offset, committed: Option<Offset>) -> Option<String> {
    let done = committed.filter(|done| Offset(0) < *done && *done <= end)?;
    Some(format!("requests are committed up to offset {done}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_with_committed_offsets_counts_as_processed() {
        let was_run =
            |end, committed: Option<i64>| was_run(Offset(end), committed.map(Offset)).is_some();
        assert!(!was_run(0, None), "a new log");
        assert!(!was_run(900, None), "requests wait in it");
        assert!(!was_run(900, Some(0)), "no record is done");
        assert!(was_run(900, Some(1)));
        assert!(was_run(900, Some(900)));
        assert!(!was_run(5, Some(900)), "the topic was recreated");
    }

    #[test]
    fn a_log_without_its_beginning_is_not_new_except_for_replies() {
        for source in Source::ALL {
            let mut first = TopicOffsets::default();
            assert!(whole(&first).is_ok());
            *first.on_mut(source) = Offset(1);
            assert_eq!(
                whole(&first).is_ok(),
                source == Source::Replies,
                "{source:?}"
            );
        }
    }
}
