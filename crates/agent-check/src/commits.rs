//! Compares the offsets that the agent's group has committed with the answers.

use std::collections::BTreeSet;

use waybill_engine::{Offset, PartitionId, Timestamp};

use crate::CheckSettings;
use crate::transcript::{Expected, SentId, Transcript};
use crate::wire::group_of;

/// The group's offsets as observed.
#[derive(Debug, Default)]
pub(super) struct Commits {
    /// How many times an advanced offset was compared with the replies.
    pub(super) looked: usize,
    /// The newest offset of each partition.
    newest: Vec<Option<Offset>>,
    /// Requests already reported as committed too early.
    reported: BTreeSet<usize>,
    /// Why the last query of the group failed.
    pub(super) refused: Option<String>,
}

impl Commits {
    /// Takes offsets that were read before the replies in the transcript. Returns the faults that
    /// they show. `now` must be from before the offsets were read.
    pub(super) fn hold(
        &mut self,
        committed: Vec<Option<Offset>>,
        transcript: &Transcript,
        settings: &CheckSettings,
        now: Timestamp,
    ) -> Vec<String> {
        if committed != self.newest {
            self.looked += 1;
        }
        let mut faults = Vec::new();
        for (number, sent) in transcript.all().iter().enumerate() {
            let Some(offset) = offset_in(&committed, sent.partition) else {
                continue;
            };
            // By the agent's clock, complete-by may have passed already.
            let is_late = sent.request.complete_by <= now + settings.clock_tolerance;
            let is_letter = sent.expected == Expected::DeadLetter;
            let is_done = !sent.replies.is_empty() || is_late || is_letter;
            if sent.offset < offset && !is_done && self.reported.insert(number) {
                faults.push(format!(
                    "offset {offset} of partition {} was committed before the request at {} was \
                     answered",
                    sent.partition, sent.offset
                ));
            }
        }
        self.newest = committed;
        faults
    }

    /// Whether the group has ever committed anything.
    pub(super) fn has_begun(&self) -> bool {
        self.newest.iter().any(Option::is_some)
    }

    /// A request after which the group has committed no offset yet.
    pub(super) fn missing(&self, transcript: &Transcript, requests: &[SentId]) -> Option<String> {
        let behind = requests.iter().map(|id| transcript.get(*id)).find(|sent| {
            let committed = offset_in(&self.newest, sent.partition);
            committed.is_none_or(|committed| committed <= sent.offset)
        })?;
        Some(format!(
            "the request at {} of partition {} was answered, but its offset is not committed",
            behind.offset, behind.partition
        ))
    }
}

fn offset_in(offsets: &[Option<Offset>], partition: PartitionId) -> Option<Offset> {
    let partition = usize::try_from(partition.0).ok()?;
    offsets.get(partition).copied().flatten()
}

/// The message for a group that has committed nothing.
pub(super) fn nothing_committed(settings: &CheckSettings) -> String {
    format!(
        "the group {} has committed nothing for this topic",
        group_of(settings)
    )
}
