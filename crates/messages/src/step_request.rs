//! `step-request`: a scheduler's request to an agent.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
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

#[derive(Serialize)]
#[serde(rename = "StepRequest")]
struct Out<'a> {
    operation: Id,
    workflow: &'a str,
    step: &'a str,
    agent: &'a str,
    attempt: i32,
    epoch: i64,
    action: WireAction,
    complete_by: i64,
    tenant: &'a str,
    idempotency_key: &'a str,
    #[serde(with = "serde_bytes")]
    input: &'a [u8],
    results: MapOut<'a, String>,
    reply_partition: i32,
    layout: i64,
    shard: Option<i32>,
    nonce: Option<WireNonce>,
}

/// The idempotency key follows from operation and step and is not read back.
#[derive(Deserialize)]
#[serde(rename = "StepRequest")]
struct In {
    operation: Id,
    workflow: String,
    step: String,
    agent: String,
    attempt: i32,
    epoch: i64,
    action: WireAction,
    complete_by: i64,
    tenant: String,
    #[serde(with = "serde_bytes")]
    input: Vec<u8>,
    results: MapIn<String>,
    reply_partition: i32,
    layout: i64,
    shard: Option<i32>,
    nonce: Option<WireNonce>,
}

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
            attempt: FIELDS.int("attempt", self.attempt.0)?,
            epoch: FIELDS.long("epoch", self.epoch.0)?,
            action: self.action.into(),
            complete_by: self.complete_by.as_micros(),
            tenant: &self.tenant,
            idempotency_key: &self.idempotency_key(),
            input: &self.input,
            results: MapOut(&self.results),
            reply_partition: FIELDS.int("reply_partition", self.reply_partition.0)?,
            layout: FIELDS.long("layout", self.shard.unwrap_or_default().layout)?,
            shard: self
                .shard
                .map(|shard| FIELDS.int("shard", shard.number))
                .transpose()?,
            nonce: self.nonce.map(WireNonce),
        };
        CODEC.encode(&wire, frame, out)
    }

    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        let layout = FIELDS.u64("layout", wire.layout)?;
        let shard = wire
            .shard
            .map(|number| FIELDS.u32("shard", number))
            .transpose()?;
        Ok(Self {
            operation: OperationId(wire.operation.0),
            workflow: wire.workflow.into(),
            step: wire.step.into(),
            agent: wire.agent.into(),
            attempt: Attempt(FIELDS.u32("attempt", wire.attempt)?),
            epoch: Epoch(FIELDS.u64("epoch", wire.epoch)?),
            action: FIELDS.known("action", wire.action.known())?,
            complete_by: Timestamp(wire.complete_by),
            tenant: wire.tenant.into(),
            input: wire.input.into(),
            results: wire.results.0,
            reply_partition: PartitionId(FIELDS.u32("reply_partition", wire.reply_partition)?),
            shard: shard.map(|number| LayoutShard { layout, number }),
            nonce: wire.nonce.map(|WireNonce(nonce)| nonce),
            traceparent: None,
        })
    }
}
