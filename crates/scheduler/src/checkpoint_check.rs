//! Compares a checkpoint with its logs, and decides where a shard begins or why it is refused.
//!
//! What must hold: **nothing is skipped silently**. Requests and recoveries must be read to the end. A log of these that
//! begins behind the checkpoint, ends before it, or has another record below it is refused. A person may set
//! `scheduler.skipDeletedRequests`; the shard then begins where the log does.
//!
//! A checkpoint where the log begins has no record below it. Its fingerprint is then that of the topic: the first half of
//! the ID that the brokers gave it when it was made. So a topic that is made anew before any of its requests was done is
//! refused as well. A version that does not know this reads such a lease as any other. There is no fingerprint where the
//! brokers tell no ID, nor in a lease of such a version, before its next owner has written it.
//!
//! The lease of the first owner stores where each log began when it was taken, so that every checkpoint is one that an
//! owner has stored: a checkpoint of 0 means that offset 0 was not done.

use std::fmt;

use waybill_engine::{ByPriority, Offset, Priority, ShardHandover, Source, TopicOffsets};
use waybill_kafka::TopicId;
use waybill_kafka::UNDECODABLE;
use waybill_store::Lease;

use super::input::LogEnds;

/// The topics whose records must all be read. Replies need not: every running step of a live operation is asked for
/// again.
const READ_WHOLE: [Source; 3] = [Source::Requests, Source::HighPriority, Source::Recoveries];

/// Where the consumers begin.
#[derive(Clone, Debug)]
pub(super) struct StartOffsets {
    /// The first record of each topic to apply.
    pub at: TopicOffsets,
    /// The record below the first request of each priority, which must have this fingerprint.
    pub verify: ByPriority<Option<(Offset, u64)>>,
    /// What of all that was done by those that the shard follows.
    pub handover: ShardHandover,
}

/// A log that does not fit its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CheckpointMismatch {
    /// Its topic.
    pub source: Source,
    /// Why.
    pub why: MismatchCause,
}

/// Why a log does not fit its checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MismatchCause {
    /// It begins behind the checkpoint.
    #[error(
        "records from offset {done} on are not done, but the log begins at {begins}: its retention overtook \
         the checkpoint, and the records between are gone; to go on without them, set \
         scheduler.skipDeletedRequests: true"
    )]
    Overtaken {
        /// The first record that is not done.
        done: Offset,
        /// The first one that is there.
        begins: Offset,
    },
    /// It ends before the checkpoint.
    #[error(
        "records are done up to offset {done}, but the log ends at {end}: this is another topic than the checkpoint \
         was taken on; if it was recreated and the unfinished records of the old one may be lost, set \
         scheduler.skipDeletedRequests: true"
    )]
    Shorter {
        /// Below it everything was done.
        done: Offset,
        /// Where the log ends.
        end: Offset,
    },
    /// Nothing of it was done, and it is of another topic.
    #[error(
        "nothing of it was done, but its topic was deleted and created again: the ID was {}... and is {found} now, and \
         requests that the old one held are gone; to go on without them, set scheduler.skipDeletedRequests: true",
        TopicId::shown_by_head(*.expected)
    )]
    Recreated {
        /// The fingerprint of the topic that the checkpoint was taken on.
        expected: u64,
        /// The topic that there is.
        found: TopicId,
    },
    /// A record below the checkpoint is not the one that was done.
    #[error(
        "{0}; if the topic was recreated and the unfinished records of the old one may be lost, set \
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
    /// Has a shard begin where the log does.
    pub(super) fn pass_over(&self, row: &mut Lease, first: &TopicOffsets) {
        let begins = first.on(self.source);
        *row.checkpoint.at.on_mut(self.source) = begins;
        row.handover.distrust(self.source);
        let Some(priority) = self.source.priority() else {
            return;
        };
        row.checkpoint.fingerprints[priority] = None;
        row.consumed[priority] = match self.why {
            MismatchCause::Overtaken { .. } => row.consumed[priority].max(begins),
            // Offsets of another log say nothing of this one.
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
/// [`CheckpointMismatch`] names the first log that lost records which are not done, ends before the checkpoint, or is of another topic
/// than the one of which nothing was done.
pub(super) fn start_offsets(
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

/// Has a lease hold the fingerprint of a topic where none of a record can be known. Returns whether that changed it.
///
/// Any other version that compares it with a record does so only where the log has one below the checkpoint, where it
/// had none before: it refuses another topic, too.
pub(super) fn remember_topics(row: &mut Lease, ends: &LogEnds) -> bool {
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
