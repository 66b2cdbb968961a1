//! The kinds of records, the size limit of all, and the properties of their schemas.

/// The largest record, framing included, in bytes: 1 MiB, Kafka's default limit. Larger values are
/// neither written nor read.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// The kinds of records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordKind {
    /// A caller's request.
    OperationRequest,
    /// A request to an agent.
    StepRequest,
    /// The outcome of an attempt at a step.
    StepReply,
    /// An operation that failed for good.
    FailedOperation,
    /// The state of an operation.
    OperationStatus,
    /// A request of a supervisor or an operator to the scheduler.
    Recovery,
    /// A condition that needs an operator.
    OperatorAlert,
    /// A notification to the contacts of an operation.
    OwnerNotice,
}

impl RecordKind {
    /// The name of its schema's file under `schemas/`, without the extension.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OperationRequest => "operation-request",
            Self::StepRequest => "step-request",
            Self::StepReply => "step-reply",
            Self::FailedOperation => "failed-operation",
            Self::OperationStatus => "operation-status",
            Self::Recovery => "recovery",
            Self::OperatorAlert => "operator-alert",
            Self::OwnerNotice => "owner-notice",
        }
    }
}

/// The number of kinds.
pub(crate) const RECORD_KINDS: usize = 8;

/// A committed schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordSchema {
    /// The kind of its record.
    pub kind: RecordKind,
    /// The name of its file under `schemas/`, without the extension.
    pub name: &'static str,
    /// The current schema.
    pub json: &'static str,
    /// The released versions, from 1 on.
    pub released: &'static [&'static str],
}

impl RecordSchema {
    /// Declares the schema of `schemas/<name>.avsc`.
    pub(crate) const fn new(
        kind: RecordKind,
        json: &'static str,
        released: &'static [&'static str],
    ) -> Self {
        Self {
            kind,
            name: kind.name(),
            json,
            released,
        }
    }
}
