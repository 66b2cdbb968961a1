//! `step-request`: a scheduler's request to an agent.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};
use waybill_engine::{
    Attempt, Epoch, LayoutShard, OperationId, PartitionId, StepRequest, Timestamp,
};

use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::{RecordKind, RecordSchema};
use crate::record::Record;
use crate::wire::{Fields, Id, MapIn, MapOut, WireAction, WireNonce};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    RecordKind::StepRequest,
    include_str!("../../../schemas/step-request.avsc"),
    &[include_str!(
        "../../../schemas/released/step-request/v1.avsc"
    )],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

#[derive(Serialize, Deserialize)]
#[serde(rename = "StepRequest")]
struct Wire<S, B, M> {
    operation: Id,
    workflow: S,
    step: S,
    agent: S,
    attempt: i32,
    epoch: i64,
    action: WireAction,
    complete_by: i64,
    tenant: S,
    /// Follows from operation and step, and is not read back.
    #[serde(skip_deserializing)]
    idempotency_key: S,
    input: B,
    results: M,
    reply_partition: i32,
    layout: i64,
    shard: Option<i32>,
    nonce: Option<WireNonce>,
}

type Out<'a> = Wire<&'a str, &'a Bytes, MapOut<'a, String>>;
type In = Wire<String, ByteBuf, MapIn<String>>;

impl Record for StepRequest {
    const SCHEMA: RecordSchema = SCHEMA;

    fn fingerprint() -> u64 {
        CODEC.fingerprint()
    }

    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let wire = Out {
            operation: Id(self.operation.0),
            workflow: &self.workflow,
            step: &self.step,
            agent: &self.agent,
            attempt: FIELDS.number("attempt", self.attempt.0)?,
            epoch: FIELDS.number("epoch", self.epoch.0)?,
            action: self.action.into(),
            complete_by: self.complete_by.as_micros(),
            tenant: &self.tenant,
            idempotency_key: &self.idempotency_key(),
            input: Bytes::new(&self.input),
            results: MapOut(&self.results),
            reply_partition: FIELDS.number("reply_partition", self.reply_partition.0)?,
            layout: FIELDS.number("layout", self.shard.unwrap_or_default().layout)?,
            shard: self
                .shard
                .map(|shard| FIELDS.number("shard", shard.number))
                .transpose()?,
            nonce: self.nonce.map(WireNonce),
        };
        CODEC.encode(&wire, frame, out)
    }

    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        let layout = FIELDS.number("layout", wire.layout)?;
        let shard = wire
            .shard
            .map(|number| FIELDS.number("shard", number))
            .transpose()?;
        Ok(Self {
            operation: OperationId(wire.operation.0),
            workflow: wire.workflow.into(),
            step: wire.step.into(),
            agent: wire.agent.into(),
            attempt: Attempt(FIELDS.number("attempt", wire.attempt)?),
            epoch: Epoch(FIELDS.number("epoch", wire.epoch)?),
            action: FIELDS.known("action", wire.action.known())?,
            complete_by: Timestamp(wire.complete_by),
            tenant: wire.tenant.into(),
            input: wire.input.into_vec().into(),
            results: wire.results.0,
            reply_partition: PartitionId(FIELDS.number("reply_partition", wire.reply_partition)?),
            shard: shard.map(|number| LayoutShard { layout, number }),
            nonce: wire.nonce.map(|WireNonce(nonce)| nonce),
            traceparent: None,
        })
    }
}
