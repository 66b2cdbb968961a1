//! Properties of every record.

use crate::error::{DecodeError, EncodeError};
use crate::framing::{Frame, Framing};

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
pub(crate) const RECORD_KINDS: usize = RECORD_SCHEMAS.len();

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

/// Every record's schema.
pub const RECORD_SCHEMAS: [RecordSchema; 8] = [
    crate::operation_request::SCHEMA,
    crate::step_request::SCHEMA,
    crate::step_reply::SCHEMA,
    crate::failed_operation::SCHEMA,
    crate::operation_status::SCHEMA,
    crate::recovery::SCHEMA,
    crate::operator_alert::SCHEMA,
    crate::owner_notice::SCHEMA,
];

/// The longest reason of a request or a recovery, in bytes. It is kept in the operation's history.
pub const REASON_BYTES_MAX: usize = 1_024;

/// The longest name of the requester of a recovery, in bytes. It is kept in the operation's
/// history.
pub const ASKED_BY_BYTES_MAX: usize = 256;

/// A value of the engine that is sent as a record.
pub trait Record: Sized {
    /// Its schema.
    const SCHEMA: RecordSchema;

    /// The CRC-64-AVRO fingerprint of its schema.
    fn fingerprint() -> u64;

    /// Appends the record's value to `out`, behind a frame of the caller's choice. Writers to
    /// topics use [`Framing::encode`], which chooses the frame.
    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Reads a record's value in either framing.
    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError>;

    /// Appends the record's value to `out`, framed as an Avro single object.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode_as(Frame::SingleObject, out)
    }

    /// Reads a record's value without a schema registry.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with(bytes, &Framing::single_object())
    }
}
