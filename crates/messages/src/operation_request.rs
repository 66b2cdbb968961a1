//! `operation-request`: what a caller asks for.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use waybill_engine::{CreateRequest, IdOrigin, OperationId, RequestHash, Timestamp};

use crate::codec::{Codec, Schemas};
use crate::error::{DecodeError, EncodeError};
use crate::record::{Record, RecordSchema};
use crate::wire::{Fields, Id};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    "operation-request",
    include_str!("../../../schemas/operation-request.avsc"),
    &[include_str!(
        "../../../schemas/released/operation-request/v1.avsc"
    )],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

#[derive(Serialize, Deserialize)]
enum RequestKind {
    Unknown,
    Create,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "IdOrigin")]
enum WireIdOrigin {
    Caller,
    Server,
}

#[derive(Serialize)]
#[serde(rename = "OperationRequest")]
struct Out<'a> {
    kind: RequestKind,
    operation: Id,
    id_origin: WireIdOrigin,
    workflow: &'a str,
    tenant: &'a str,
    caller_id: Option<&'a str>,
    #[serde(with = "serde_bytes")]
    input: &'a [u8],
    deadline: Option<i64>,
    reply_to: Option<&'a str>,
    #[serde(with = "serde_bytes")]
    request_hash: &'a [u8],
    requested_at: i64,
}

#[derive(Deserialize)]
#[serde(rename = "OperationRequest")]
struct In {
    kind: RequestKind,
    operation: Id,
    id_origin: WireIdOrigin,
    workflow: String,
    tenant: String,
    caller_id: Option<String>,
    #[serde(with = "serde_bytes")]
    input: Vec<u8>,
    deadline: Option<i64>,
    reply_to: Option<String>,
    #[serde(with = "serde_bytes")]
    request_hash: [u8; 16],
    requested_at: i64,
}

impl Record for CreateRequest {
    const SCHEMA: RecordSchema = SCHEMA;

    fn fingerprint() -> u64 {
        CODEC.fingerprint()
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let wire = Out {
            kind: RequestKind::Create,
            operation: Id(self.operation.0),
            id_origin: match self.id_origin {
                IdOrigin::Caller => WireIdOrigin::Caller,
                IdOrigin::Server => WireIdOrigin::Server,
            },
            workflow: &self.workflow,
            tenant: &self.tenant,
            caller_id: self.caller_id.as_deref(),
            input: &self.input,
            deadline: self.deadline.map(Timestamp::as_micros),
            reply_to: self.reply_to.as_deref(),
            request_hash: &self.request_hash.0,
            requested_at: self.requested_at.as_micros(),
        };
        CODEC.encode(&wire, out)
    }

    fn decode_with(bytes: &[u8], schemas: Option<&dyn Schemas>) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, schemas)?;
        let known = match wire.kind {
            RequestKind::Unknown => None,
            RequestKind::Create => Some(()),
        };
        FIELDS.known("kind", known)?;
        Ok(Self {
            operation: OperationId(wire.operation.0),
            id_origin: match wire.id_origin {
                WireIdOrigin::Caller => IdOrigin::Caller,
                WireIdOrigin::Server => IdOrigin::Server,
            },
            workflow: wire.workflow,
            tenant: wire.tenant,
            caller_id: wire.caller_id,
            input: wire.input,
            deadline: wire.deadline.map(Timestamp),
            reply_to: wire.reply_to,
            request_hash: RequestHash(wire.request_hash),
            requested_at: Timestamp(wire.requested_at),
            traceparent: None,
        })
    }
}
