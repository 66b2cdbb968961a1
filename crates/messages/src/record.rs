//! What every record has in common.

use crate::error::{DecodeError, EncodeError};
use crate::framing::{Frame, Framing};

/// Which record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordKind {
    /// What a caller asks for.
    OperationRequest,
    /// What an agent is asked for.
    StepRequest,
    /// How an attempt at a step ended.
    StepReply,
    /// An operation that failed for good.
    FailedOperation,
    /// Where an operation stands.
    OperationStatus,
    /// What a supervisor or an operator asks of the scheduler.
    Recovery,
    /// What needs a person.
    OperatorAlert,
    /// What those hear who asked to be told of an operation.
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

/// How many records there are.
pub(crate) const RECORD_KINDS: usize = RECORD_SCHEMAS.len();

/// A committed schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordSchema {
    /// Whose schema it is.
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

/// The longest reason that a request or a recovery may give, in bytes. It is kept in the
/// operation's history.
pub const REASON_BYTES_MAX: usize = 1_024;

/// The longest name of who asks for a recovery, in bytes. It is kept in the operation's history.
pub const ASKED_BY_BYTES_MAX: usize = 256;

/// A value of the engine's that travels as a record.
pub trait Record: Sized {
    /// Its schema.
    const SCHEMA: RecordSchema;

    /// The CRC-64-AVRO fingerprint of its schema.
    fn fingerprint() -> u64;

    /// Appends the record's value to `out`, behind a frame of the caller's choice. Who writes to
    /// topics leaves that choice to [`Framing::encode`].
    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Reads a record's value, whichever way it is framed.
    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError>;

    /// Appends the record's value to `out`, framed as an Avro single object.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode_as(Frame::SingleObject, out)
    }

    /// Reads a record's value where no schema registry is configured.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with(bytes, &Framing::single_object())
    }
}
