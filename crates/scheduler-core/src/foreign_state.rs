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

use waybill_engine::{Offset, Source, TopicOffsets};

use crate::lease::AcquireError;

/// Refuses a log of requests that was consumed before. A committed offset beyond its end belongs to
/// another topic of this name.
///
/// # Errors
///
/// [`AcquireError::StateElsewhere`] names the committed offset.
pub(crate) fn check_committed(end: Offset, committed: Option<Offset>) -> Result<(), AcquireError> {
    match committed.filter(|done| Offset(0) < *done && *done <= end) {
        None => Ok(()),
        Some(done) => {
            let sign = format!("requests are committed up to offset {done}");
            Err(AcquireError::StateElsewhere { sign })
        }
    }
}

/// Refuses logs that have lost their beginnings, except for replies.
///
/// # Errors
///
/// [`AcquireError::StateElsewhere`] names the log.
pub(crate) fn check_beginnings(first: &TopicOffsets) -> Result<(), AcquireError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_with_committed_offsets_counts_as_processed() {
        let was_run = |end, committed: Option<i64>| {
            check_committed(Offset(end), committed.map(Offset)).is_err()
        };
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
            assert!(check_beginnings(&first).is_ok());
            *first.on_mut(source) = Offset(1);
            assert_eq!(
                check_beginnings(&first).is_ok(),
                source == Source::Replies,
                "{source:?}"
            );
        }
    }
}
