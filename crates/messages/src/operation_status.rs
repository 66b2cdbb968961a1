//! `operation-status`: the state of an operation.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use waybill_engine::{
    Offset, OperationId, OperationStatus, PartitionId, Position, Priority, StatusKind, StepError,
    Timestamp,
};

use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::{RecordKind, RecordSchema};
use crate::record::Record;
use crate::wire::{Fields, Id, WireError, WireProcessState, WireStepStatus};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    RecordKind::OperationStatus,
    include_str!("../../../schemas/operation-status.avsc"),
    &[include_str!(
        "../../../schemas/released/operation-status/v1.avsc"
    )],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

#[derive(Serialize, Deserialize)]
#[serde(rename = "StatusKind")]
enum WireStatusKind {
    Unknown,
    Final,
    Rejected,
    Received,
    Step,
    CancelRefused,
    Rescheduled,
    RescheduleRefused,
}

impl From<StatusKind> for WireStatusKind {
    fn from(kind: StatusKind) -> Self {
        match kind {
            StatusKind::Final => Self::Final,
            StatusKind::Rejected => Self::Rejected,
            StatusKind::Received => Self::Received,
            StatusKind::Step => Self::Step,
            StatusKind::CancelRefused => Self::CancelRefused,
            StatusKind::Rescheduled => Self::Rescheduled,
            StatusKind::RescheduleRefused => Self::RescheduleRefused,
        }
    }
}

impl WireStatusKind {
    /// The engine's kind; `None` for one that this version does not know.
    fn known(self) -> Option<StatusKind> {
        match self {
            Self::Unknown => None,
            Self::Final => Some(StatusKind::Final),
            Self::Rejected => Some(StatusKind::Rejected),
            Self::Received => Some(StatusKind::Received),
            Self::Step => Some(StatusKind::Step),
            Self::CancelRefused => Some(StatusKind::CancelRefused),
            Self::Rescheduled => Some(StatusKind::Rescheduled),
            Self::RescheduleRefused => Some(StatusKind::RescheduleRefused),
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename = "Priority")]
enum WirePriority {
    Normal,
    High,
}

impl From<Priority> for WirePriority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Normal => Self::Normal,
            Priority::High => Self::High,
        }
    }
}

impl From<WirePriority> for Priority {
    fn from(priority: WirePriority) -> Self {
        match priority {
            WirePriority::Normal => Self::Normal,
            WirePriority::High => Self::High,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "OperationStatus")]
struct Wire<S> {
    event_id: Id,
    operation: Id,
    caller_id: Option<S>,
    workflow: S,
    tenant: S,
    kind: WireStatusKind,
    state: WireProcessState,
    sequence: i32,
    error: Option<WireError<S>>,
    failing_step: Option<S>,
    step: Option<WireStepStatus<S>>,
    request_partition: i32,
    request_offset: i64,
    requested_at: i64,
    at: i64,
    reply_to: Option<S>,
    request_priority: WirePriority,
}

type Out<'a> = Wire<&'a str>;
type In = Wire<String>;

impl Record for OperationStatus {
    const SCHEMA: RecordSchema = SCHEMA;

    fn fingerprint() -> u64 {
        CODEC.fingerprint()
    }

    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let wire = Out {
            event_id: Id(self.event_id),
            operation: Id(self.operation.0),
            caller_id: self.caller_id.as_deref(),
            workflow: &self.workflow,
            tenant: &self.tenant,
            kind: self.kind.into(),
            state: self.state.into(),
            sequence: FIELDS.number("sequence", self.sequence)?,
            error: self.error.as_ref().map(WireError::from),
            failing_step: self.failing_step.as_deref(),
            step: self.step.as_ref().map(WireStepStatus::from),
            request_partition: FIELDS.number("request_partition", self.request.partition.0)?,
            request_offset: self.request.offset.0,
            requested_at: self.requested_at.as_micros(),
            at: self.at.as_micros(),
            reply_to: self.reply_to.as_deref(),
            request_priority: self.request.priority.into(),
        };
        CODEC.encode(&wire, frame, out)
    }

    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        let step = wire.step.map(|step| FIELDS.known("step", step.known()));
        let partition = FIELDS.number("request_partition", wire.request_partition)?;
        Ok(Self {
            event_id: wire.event_id.0,
            operation: OperationId(wire.operation.0),
            caller_id: wire.caller_id,
            workflow: wire.workflow,
            tenant: wire.tenant,
            kind: FIELDS.known("kind", wire.kind.known())?,
            state: FIELDS.known("state", wire.state.known())?,
            sequence: FIELDS.number("sequence", wire.sequence)?,
            error: wire.error.map(StepError::from),
            failing_step: wire.failing_step,
            step: step.transpose()?,
            request: Position {
                priority: wire.request_priority.into(),
                partition: PartitionId(partition),
                offset: Offset(wire.request_offset),
            },
            requested_at: Timestamp(wire.requested_at),
            at: Timestamp(wire.at),
            reply_to: wire.reply_to,
        })
    }
}
