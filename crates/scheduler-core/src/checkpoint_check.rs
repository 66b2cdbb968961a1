//! Compares a checkpoint with its logs, and decides where a shard begins or why it must not run.
//!
//! What must hold: **nothing is skipped silently**. Requests and recoveries must be read to the
//! end. A shard is refused if one of these logs begins after the checkpoint, ends before it, or has
//! another record below it. A person may set `scheduler.skipDeletedRequests`; the shard then begins
//! where the log does.
//!
//! At the beginning of a log there is no record below the checkpoint. The fingerprint is then that
//! of the topic: the first half of the ID that the brokers assigned when the topic was created. So
//! a topic that is recreated before any of its requests was done is refused as well. A version
//! without this check reads such a lease like any other. The fingerprint is missing if the brokers
//! report no ID, and in a lease that such a version wrote, until its next owner writes it.
//!
//! The lease of the first owner stores where each log began when the lease was taken. So an owner
//! has stored every checkpoint, and a checkpoint of 0 means that offset 0 was not done.

use std::fmt;

use waybill_engine::{ByPriority, Offset, Priority, Source, TopicOffsets};
use waybill_messages::{TopicId, UNDECODABLE};
use waybill_state::Lease;

use crate::log_offsets::{LogEnds, StartOffsets};

/// The topics whose records must all be read. Replies are exempt: the running steps of live
/// operations are requested again.
const READ_WHOLE: [Source; 3] = [Source::Requests, Source::HighPriority, Source::Recoveries];

/// A log that does not match its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CheckpointMismatch {
    /// Its topic.
    pub source: Source,
    /// Why.
    pub why: MismatchCause,
}

/// Why a log does not match its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MismatchCause {
    /// It begins after the checkpoint.
    #[error(
        "records from offset {done} on are not done, but the log begins at {begins}: the records \
         between were deleted, by retention or by a client, or the state store is older than its \
         log; to continue without them, set scheduler.skipDeletedRequests: true"
    )]
    Overtaken {
        /// The first record that is not done.
        done: Offset,
        /// The first record in the log.
        begins: Offset,
    },
    /// It ends before the checkpoint.
    #[error(
        "records are done up to offset {done}, but the log ends at {end}: the checkpoint belongs \
         to another log of this partition (topic recreated); if the unfinished records of the old \
         topic may be lost, set scheduler.skipDeletedRequests: true"
    )]
    Shorter {
        /// The checkpoint: every record below it was done.
        done: Offset,
        /// The end of the log.
        end: Offset,
    },
    /// No record was done, and the topic was recreated.
    #[error(
        "no record is done, but the topic was deleted and created again: its id was {}... and is \
         now {found}, and the requests in the old topic are lost; to continue without them, set \
         scheduler.skipDeletedRequests: true",
        TopicId::shown_by_head(*.expected)
    )]
    Recreated {
        /// The fingerprint of the topic for which the checkpoint was stored.
        expected: u64,
        /// The ID of the current topic.
        found: TopicId,
    },
    /// The record below the checkpoint is not the one that was done.
    #[error(
        "{0}; if the unfinished records of the old topic may be lost, set \
         scheduler.skipDeletedRequests: true"
    )]
    Differs(String),
}

impl fmt::Display for CheckpointMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topic = match self.source {
            Source::Requests => "requests",
            Source::HighPriority => "high-priority requests",
            Source::Replies => "replies",
            Source::Recoveries => "recoveries",
        };
        write!(f, "{topic}: {}", self.why)
    }
}

impl CheckpointMismatch {
    /// Moves the checkpoint in a lease to the beginning of the log.
    pub(crate) fn pass_over(&self, row: &mut Lease, first: &TopicOffsets) {
        let begins = first.on(self.source);
        *row.checkpoint.at.on_mut(self.source) = begins;
        row.handover.distrust(self.source);
        let Some(priority) = self.source.priority() else {
            return;
        };
        row.checkpoint.fingerprints[priority] = None;
        row.consumed[priority] = match self.why {
            MismatchCause::Overtaken { .. } => row.consumed[priority].max(begins),
            // The offsets refer to another log.
            MismatchCause::Shorter { .. }
            | MismatchCause::Recreated { .. }
            | MismatchCause::Differs(_) => begins,
        };
    }
}

/// Compares the checkpoint of a lease that has begun with the logs, and returns where to read from.
///
/// # Errors
///
/// [`CheckpointMismatch`] names the first log that has lost unfinished records, that ends before
/// the checkpoint, or whose topic was recreated before any record was done.
pub(crate) fn start_offsets(
    row: &Lease,
    ends: &LogEnds,
) -> Result<StartOffsets, CheckpointMismatch> {
    let checkpoint = row.checkpoint;
    let mut handover = row.handover.clone();
    let mut at = TopicOffsets::default();
    for source in READ_WHOLE {
        let (first, end) = (ends.first.on(source), ends.next.on(source));
        let begin = checkpoint.on(source);
        let mismatch = |why| CheckpointMismatch { source, why };
        if begin == Offset(0)
            && let Some(priority) = source.priority()
            && let Some(expected) = checkpoint.fingerprints[priority]
            && let Some(found) = ends.topics[priority]
            && found.head() != expected
        {
            return Err(mismatch(MismatchCause::Recreated { expected, found }));
        }
        if begin < first {
            return Err(mismatch(MismatchCause::Overtaken {
                done: begin,
                begins: first,
            }));
        }
        let done = begin.max(handover.furthest(source));
        if done > end {
            return Err(mismatch(MismatchCause::Shorter { done, end }));
        }
        *at.on_mut(source) = begin;
    }
    at.replies = checkpoint
        .at
        .replies
        .clamp(ends.first.replies, ends.next.replies);
    if handover.furthest(Source::Replies) > ends.next.replies {
        handover.distrust(Source::Replies);
    }
    let verify = ByPriority::of(|priority: Priority| {
        let source = priority.source();
        let below = Offset(at.on(source).0 - 1);
        let fingerprint = checkpoint.fingerprints[priority];
        let fingerprint = fingerprint
            .filter(|_| below >= ends.first.on(source))
            .filter(|fingerprint| *fingerprint != UNDECODABLE);
        fingerprint.map(|fingerprint| (below, fingerprint))
    });
    Ok(StartOffsets {
        at,
        verify,
        handover,
    })
}

/// Stores the topic's fingerprint in a lease that has no fingerprint of a record yet. Returns
/// whether the lease changed.
///
/// A version that compares fingerprints with records alone does so only if the log has a record
/// below the checkpoint. There was none when the fingerprint was stored, so that version also
/// refuses another topic.
pub(crate) fn remember_topics(row: &mut Lease, ends: &LogEnds) -> bool {
    let mut is_changed = false;
    for priority in Priority::ALL {
        let source = priority.source();
        let is_at_the_beginning = row.checkpoint.on(source) == ends.first.on(source);
        let fingerprint = &mut row.checkpoint.fingerprints[priority];
        if is_at_the_beginning
            && fingerprint.is_none()
            && let Some(topic) = ends.topics[priority]
        {
            *fingerprint = Some(topic.head());
            is_changed = true;
        }
    }
    is_changed
}

#[cfg(test)]
mod tests;
