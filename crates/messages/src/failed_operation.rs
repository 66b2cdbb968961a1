//! `failed-operation`: an operation that failed for good.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};
use waybill_engine::{Attempt, FailedOperation, OperationId, Timestamp};

use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::{RecordKind, RecordSchema};
use crate::record::Record;
use crate::wire::{Fields, Id, MapIn, MapOut, WireAction, WireError, WireStepStatus};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    RecordKind::FailedOperation,
    include_str!("../../../schemas/failed-operation.avsc"),
    &[include_str!(
        "../../../schemas/released/failed-operation/v1.avsc"
    )],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

#[derive(Serialize, Deserialize)]
#[serde(rename = "FailedOperation")]
struct Wire<S, B, M> {
    event_id: Id,
    operation: Id,
    caller_id: Option<S>,
    workflow: S,
    workflow_version: i32,
    tenant: S,
    failing_step: Option<S>,
    failing_agent: Option<S>,
    failing_attempt: i32,
    failing_action: WireAction,
    awaits_decision: bool,
    error: WireError<S>,
    completed_steps: Vec<S>,
    failure_counts: M,
    step_states: Vec<WireStepStatus<S>>,
    input: B,
    requested_at: i64,
    failed_at: i64,
}

type Out<'a> = Wire<&'a str, &'a Bytes, MapOut<'a, i32>>;
type In = Wire<String, ByteBuf, MapIn<i32>>;

impl Record for FailedOperation {
    const SCHEMA: RecordSchema = SCHEMA;

    fn fingerprint() -> u64 {
        CODEC.fingerprint()
    }

    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let failure_counts = self
            .failure_counts
            .iter()
            .map(|(step, count)| Ok((step.clone(), FIELDS.number("failure_counts", *count)?)))
            .collect::<Result<Vec<_>, EncodeError>>()?;
        let wire = Out {
            event_id: Id(self.event_id),
            operation: Id(self.operation.0),
            caller_id: self.caller_id.as_deref(),
            workflow: &self.workflow,
            workflow_version: FIELDS.number("workflow_version", self.workflow_version)?,
            tenant: &self.tenant,
            failing_step: self.failing_step.as_deref(),
            failing_agent: self.failing_agent.as_deref(),
            failing_attempt: FIELDS.number("failing_attempt", self.failing_attempt.0)?,
            failing_action: self.failing_action.into(),
            awaits_decision: self.awaits_decision,
            error: WireError::from(&self.error),
            completed_steps: self.completed_steps.iter().map(String::as_str).collect(),
            failure_counts: MapOut(&failure_counts),
            step_states: self.step_states.iter().map(WireStepStatus::from).collect(),
            input: Bytes::new(&self.input),
            requested_at: self.requested_at.as_micros(),
            failed_at: self.failed_at.as_micros(),
        };
        CODEC.encode(&wire, frame, out)
    }

    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        let failure_counts = wire.failure_counts.0.into_iter();
        let step_states = wire.step_states.into_iter();
        Ok(Self {
            event_id: wire.event_id.0,
            operation: OperationId(wire.operation.0),
            caller_id: wire.caller_id,
            workflow: wire.workflow,
            workflow_version: FIELDS.number("workflow_version", wire.workflow_version)?,
            tenant: wire.tenant,
            failing_step: wire.failing_step,
            failing_agent: wire.failing_agent,
            failing_attempt: Attempt(FIELDS.number("failing_attempt", wire.failing_attempt)?),
            failing_action: FIELDS.known("failing_action", wire.failing_action.known())?,
            awaits_decision: wire.awaits_decision,
            error: wire.error.into(),
            completed_steps: wire.completed_steps,
            failure_counts: failure_counts
                .map(|(step, count)| Ok((step, FIELDS.number("failure_counts", count)?)))
                .collect::<Result<_, DecodeError>>()?,
            step_states: step_states
                .map(|step| FIELDS.known("step_states", step.known()))
                .collect::<Result<_, DecodeError>>()?,
            input: wire.input.into_vec(),
            requested_at: Timestamp(wire.requested_at),
            failed_at: Timestamp(wire.failed_at),
        })
    }
}
