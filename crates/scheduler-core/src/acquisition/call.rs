//! What an acquisition asks of its driver, and what comes back.

use std::fmt::Debug;
use std::time::Duration;

use waybill_engine::{Offset, PartitionId, Source};
use waybill_state::{DueBucket, Layout, Lease, LeaseKey};

use crate::lease::{AcquireError, HeldLease};
use crate::log_offsets::LogEnds;

/// What comes next in an acquisition.
#[expect(
    clippy::large_enum_variant,
    reason = "a few are made per acquisition, and each is taken apart at once"
)]
#[derive(Clone, PartialEq, Debug)]
pub enum AcquisitionStep {
    /// Perform this, and pass on the answer.
    Call(AcquisitionCall),
    /// The acquisition has ended: the lease, and where the logs of its partition begin and end.
    Done(Result<(HeldLease, LogEnds), AcquireError>),
}

impl From<AcquisitionCall> for AcquisitionStep {
    fn from(call: AcquisitionCall) -> Self {
        Self::Call(call)
    }
}

/// What the driver performs next. All but [`AcquisitionCall::Wait`] may also end in
/// [`AcquisitionAnswer::Failed`].
#[derive(Clone, PartialEq, Debug)]
pub enum AcquisitionCall {
    /// Read a lease; then [`AcquisitionAnswer::Lease`].
    ReadLease(LeaseKey),
    /// Write the lease if the stored one is still `seen`; then [`AcquisitionAnswer::Taken`].
    TakeLease {
        /// The lease as it was read.
        seen: Option<Box<Lease>>,
        /// The lease to write.
        lease: Box<Lease>,
    },
    /// Read the layout of shards; then [`AcquisitionAnswer::Layout`].
    ReadLayout,
    /// Read where the logs of a partition begin and end; then [`AcquisitionAnswer::Ends`].
    ReadEnds(PartitionId),
    /// Read the copy of the checkpoint for lag tools; then [`AcquisitionAnswer::Committed`].
    ReadCommitted(Source, PartitionId),
    /// Read the sweep cursor of an index shard; then [`AcquisitionAnswer::Cursor`].
    ReadCursor(PartitionId),
    /// Move the sweep cursor of an index shard durably; then [`AcquisitionAnswer::CursorMoved`].
    AdvanceCursor(PartitionId, DueBucket),
    /// Wait for this long; then [`AcquisitionAnswer::Waited`].
    Wait(Duration),
}

/// The answer to an [`AcquisitionCall`].
#[derive(Clone, PartialEq, Debug)]
pub enum AcquisitionAnswer {
    /// The driver has started.
    Started,
    /// The lease as stored; `None` if it was never taken.
    Lease(Option<Box<Lease>>),
    /// Whether the lease was written.
    Taken(bool),
    /// The layout as stored; `None` for [`Layout::first`].
    Layout(Option<Layout>),
    /// Where the logs begin and end.
    Ends(LogEnds),
    /// The offset; `None` if there is none, or this process is not authorized to read it.
    Committed(Option<Offset>),
    /// The cursor; `None` before its first move.
    Cursor(Option<DueBucket>),
    /// The cursor is durable.
    CursorMoved,
    /// The time has passed.
    Waited,
    /// The call failed, or its outcome is unknown: the error with its causes.
    Failed(String),
}

impl AcquisitionCall {
    /// Whether [`AcquisitionAnswer::Failed`] is an answer to it.
    pub(super) fn may_fail(&self) -> bool {
        !matches!(self, Self::Wait(_))
    }

    /// Its failure ends the acquisition.
    pub(super) fn failed(&self, error: &str) -> AcquireError {
        let what = match self {
            Self::ReadEnds(_) | Self::ReadCommitted(..) => "cannot read the ends of the log",
            Self::ReadLease(_)
            | Self::TakeLease { .. }
            | Self::ReadLayout
            | Self::ReadCursor(_)
            | Self::AdvanceCursor(..)
            | Self::Wait(_) => "cannot take the lease",
        };
        AcquireError::Failed(format!("{what}: {error}"))
    }
}

impl AcquisitionAnswer {
    /// It is not an answer to the last call.
    pub(super) fn unexpected(&self, call: Option<&AcquisitionCall>) -> AcquireError {
        let call = call.map_or_else(|| "no call".to_owned(), name);
        AcquireError::Failed(format!("got the answer {} to {call}", name(self)))
    }
}

/// The variant's name, without its content.
fn name(of: &impl Debug) -> String {
    let text = format!("{of:?}");
    let is_name = |character: &char| character.is_ascii_alphanumeric();
    text.chars().take_while(is_name).collect()
}
