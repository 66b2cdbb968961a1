//! The outcome of a replay, record by record and in total.

use std::fmt;

use serde::Serialize;
use waybill_engine::{Offset, PartitionId};
use waybill_telemetry::visible::escaped;

use super::dead_letter::Position;

/// The partition to which a record was sent, or would be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Target {
    pub(super) topic: String,
    pub(super) partition: PartitionId,
    /// `None` if the record did not arrive or the broker returned no offset.
    pub(super) offset: Option<Offset>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)?;
        self.offset.map_or(Ok(()), |offset| write!(f, "/{offset}"))
    }
}

/// The outcome for a dead letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    Replayed,
    WouldReplay,
    Skipped,
    Failed,
}

/// The output for a dead letter.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) dead_letter: Position,
    pub(super) outcome: Outcome,
    pub(super) to: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Replayed => "replayed",
            Outcome::WouldReplay => "would replay",
            Outcome::Skipped => "skipped",
            Outcome::Failed => "failed",
        };
        write!(f, "{outcome:<12}  {}", self.dead_letter)?;
        if let Some(to) = &self.to {
            write!(f, " to {to}")?;
        }
        if let Some(note) = &self.note {
            write!(f, ": {}", escaped(note))?;
        }
        Ok(())
    }
}

/// The number of dead letters by outcome.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    pub(super) replayed: u64,
    pub(super) would_replay: u64,
    pub(super) skipped: u64,
    pub(super) failed: u64,
}

impl Tally {
    /// Counts one dead letter.
    pub(super) fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Replayed => self.replayed += 1,
            Outcome::WouldReplay => self.would_replay += 1,
            Outcome::Skipped => self.skipped += 1,
            Outcome::Failed => self.failed += 1,
        }
    }
}
