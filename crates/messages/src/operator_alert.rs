//! `operator-alert`: a condition that needs an operator.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use waybill_engine::{AlertKind, OperationId, OperatorAlert, StepError, Timestamp};

use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::{RecordKind, RecordSchema};
use crate::record::Record;
use crate::wire::{Fields, Id, WireError};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    RecordKind::OperatorAlert,
    include_str!("../../../schemas/operator-alert.avsc"),
    &[include_str!(
        "../../../schemas/released/operator-alert/v1.avsc"
    )],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

#[derive(Serialize, Deserialize)]
#[serde(rename = "AlertKind")]
enum WireAlertKind {
    Unknown,
    OperationParked,
    CompensationFailed,
    ManualUndo,
    Waiting,
    RowUnreadable,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "OperatorAlert")]
struct Wire<S> {
    event_id: Id,
    kind: WireAlertKind,
    operation: Id,
    caller_id: Option<S>,
    workflow: S,
    tenant: S,
    step: Option<S>,
    error: Option<WireError<S>>,
    advice: S,
    at: i64,
}

type Out<'a> = Wire<&'a str>;
type In = Wire<String>;

impl Record for OperatorAlert {
    const SCHEMA: RecordSchema = SCHEMA;

    fn fingerprint() -> u64 {
        CODEC.fingerprint()
    }

    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let wire = Out {
            event_id: Id(self.event_id),
            kind: match self.kind {
                AlertKind::OperationParked => WireAlertKind::OperationParked,
                AlertKind::CompensationFailed => WireAlertKind::CompensationFailed,
                AlertKind::ManualUndo => WireAlertKind::ManualUndo,
                AlertKind::Waiting => WireAlertKind::Waiting,
                AlertKind::RowUnreadable => WireAlertKind::RowUnreadable,
            },
            operation: Id(self.operation.0),
            caller_id: self.caller_id.as_deref(),
            workflow: &self.workflow,
            tenant: &self.tenant,
            step: self.step.as_deref(),
            error: self.error.as_ref().map(WireError::from),
            advice: &self.advice,
            at: self.at.as_micros(),
        };
        CODEC.encode(&wire, frame, out)
    }

    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        let kind = match wire.kind {
            WireAlertKind::Unknown => None,
            WireAlertKind::OperationParked => Some(AlertKind::OperationParked),
            WireAlertKind::CompensationFailed => Some(AlertKind::CompensationFailed),
            WireAlertKind::ManualUndo => Some(AlertKind::ManualUndo),
            WireAlertKind::Waiting => Some(AlertKind::Waiting),
            WireAlertKind::RowUnreadable => Some(AlertKind::RowUnreadable),
        };
        Ok(Self {
            event_id: wire.event_id.0,
            kind: FIELDS.known("kind", kind)?,
            operation: OperationId(wire.operation.0),
            caller_id: wire.caller_id,
            workflow: wire.workflow,
            tenant: wire.tenant,
            step: wire.step,
            error: wire.error.map(StepError::from),
            advice: wire.advice,
            at: Timestamp(wire.at),
        })
    }
}
