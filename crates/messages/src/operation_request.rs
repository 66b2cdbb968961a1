//! `operation-request`: a caller's request.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_bytes::{ByteArray, ByteBuf, Bytes};
use waybill_engine::{
    AmendRequest, Amendment, CreateRequest, IdOrigin, OperationId, OperationRequest, RequestHash,
    Timestamp,
};

use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::{RecordKind, RecordSchema};
use crate::record::{ASKED_BY_BYTES_MAX, REASON_BYTES_MAX, Record};
use crate::wire::{Fields, Id};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    RecordKind::OperationRequest,
    include_str!("../../../schemas/operation-request.avsc"),
    &[include_str!(
        "../../../schemas/released/operation-request/v1.avsc"
    )],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

/// The hash of a request that does not create an operation.
const NO_HASH: ByteArray<16> = ByteArray::new([0; 16]);

/// A reschedule without fields replaces none: an empty JSON object.
const NO_FIELDS: &[u8] = b"{}";

#[derive(Clone, Copy, Serialize, Deserialize)]
enum RequestKind {
    Unknown,
    Create,
    Cancel,
    Reschedule,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "IdOrigin")]
enum WireIdOrigin {
    Caller,
    Server,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Amendment")]
struct WireAmendment<S, B> {
    id: Id,
    reason: S,
    fields: Option<B>,
    deadline: Option<i64>,
    asked_by: S,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "OperationRequest")]
struct Wire<S, B> {
    kind: RequestKind,
    operation: Id,
    id_origin: WireIdOrigin,
    workflow: S,
    tenant: S,
    caller_id: Option<S>,
    input: B,
    deadline: Option<i64>,
    reply_to: Option<S>,
    request_hash: ByteArray<16>,
    verify_hash: bool,
    requested_at: i64,
    amendment: Option<WireAmendment<S, B>>,
    resubmission_of: Option<Id>,
    notify: Vec<S>,
}

type Out<'a> = Wire<&'a str, &'a Bytes>;
type In = Wire<String, ByteBuf>;

impl Record for OperationRequest {
    const SCHEMA: RecordSchema = SCHEMA;

    fn fingerprint() -> u64 {
        CODEC.fingerprint()
    }

    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let wire = match self {
            Self::Create(request) => created(request)?,
            Self::Amend(request) => amended(request)?,
        };
        CODEC.encode(&wire, frame, out)
    }

    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        match wire.kind {
            RequestKind::Unknown => FIELDS.known("kind", None),
            RequestKind::Create => wire.create().map(Self::Create),
            RequestKind::Cancel => wire.amend(|workflow, _, _| Amendment::Cancel { workflow }),
            RequestKind::Reschedule => wire.amend(|_, fields, deadline| Amendment::Reschedule {
                fields: fields.unwrap_or_else(|| NO_FIELDS.to_vec()),
                deadline: deadline.map(Timestamp),
            }),
        }
    }
}

impl Framing {
    /// Appends the record of `OperationRequest::Create`, for callers that keep the create itself.
    ///
    /// # Errors
    ///
    /// As [`Framing::encode`].
    pub fn encode_create(
        &self,
        request: &CreateRequest,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let frame = self.frame(RecordKind::OperationRequest)?;
        CODEC.encode(&created(request)?, frame, out)
    }
}

fn created(request: &CreateRequest) -> Result<Out<'_>, EncodeError> {
    Ok(Out {
        kind: RequestKind::Create,
        operation: Id(request.operation.0),
        id_origin: match request.id_origin {
            IdOrigin::Caller => WireIdOrigin::Caller,
            IdOrigin::Server => WireIdOrigin::Server,
        },
        workflow: &request.workflow,
        tenant: &request.tenant,
        caller_id: request.caller_id.as_deref(),
        input: Bytes::new(&request.input),
        deadline: request.deadline.map(Timestamp::as_micros),
        reply_to: request.reply_to.as_deref(),
        request_hash: ByteArray::new(request.request_hash.0),
        verify_hash: request.verify_hash,
        requested_at: request.requested_at.as_micros(),
        amendment: None,
        resubmission_of: request.resubmission_of.map(|operation| Id(operation.0)),
        notify: FIELDS.contacts("notify", &request.notify)?,
    })
}

fn amended(request: &AmendRequest) -> Result<Out<'_>, EncodeError> {
    let (kind, workflow, fields, deadline) = match &request.amendment {
        Amendment::Cancel { workflow } => (RequestKind::Cancel, &**workflow, None, None),
        Amendment::Reschedule { fields, deadline } => {
            (RequestKind::Reschedule, "", Some(&**fields), *deadline)
        }
    };
    Ok(Out {
        kind,
        operation: Id(request.operation.0),
        id_origin: WireIdOrigin::Caller,
        workflow,
        tenant: &request.tenant,
        caller_id: request.caller_id.as_deref(),
        input: Bytes::new(&[]),
        deadline: None,
        reply_to: None,
        request_hash: NO_HASH,
        verify_hash: false,
        requested_at: request.requested_at.as_micros(),
        amendment: Some(WireAmendment {
            id: Id(request.id),
            reason: FIELDS.kept("amendment.reason", &request.reason, REASON_BYTES_MAX)?,
            fields: fields.map(Bytes::new),
            deadline: deadline.map(Timestamp::as_micros),
            asked_by: FIELDS.kept("amendment.asked_by", &request.asked_by, ASKED_BY_BYTES_MAX)?,
        }),
        resubmission_of: None,
        notify: Vec::new(),
    })
}

impl In {
    fn create(self) -> Result<CreateRequest, DecodeError> {
        Ok(CreateRequest {
            operation: OperationId(self.operation.0),
            id_origin: match self.id_origin {
                WireIdOrigin::Caller => IdOrigin::Caller,
                WireIdOrigin::Server => IdOrigin::Server,
            },
            workflow: self.workflow,
            tenant: self.tenant,
            caller_id: self.caller_id,
            input: self.input.into_vec(),
            deadline: self.deadline.map(Timestamp),
            reply_to: self.reply_to,
            request_hash: RequestHash(self.request_hash.into_array()),
            verify_hash: self.verify_hash,
            requested_at: Timestamp(self.requested_at),
            traceparent: None,
            resubmission_of: self
                .resubmission_of
                .map(|operation| OperationId(operation.0)),
            notify: FIELDS.contacts_of("notify", self.notify)?,
        })
    }

    /// The request whose amendment is `what` applied to workflow, fields and deadline.
    fn amend(
        self,
        what: impl FnOnce(String, Option<Vec<u8>>, Option<i64>) -> Amendment,
    ) -> Result<OperationRequest, DecodeError> {
        let given = FIELDS.given("amendment", self.amendment)?;
        Ok(OperationRequest::Amend(AmendRequest {
            id: given.id.0,
            operation: OperationId(self.operation.0),
            tenant: self.tenant,
            caller_id: self.caller_id,
            amendment: what(
                self.workflow,
                given.fields.map(ByteBuf::into_vec),
                given.deadline,
            ),
            reason: FIELDS.kept("amendment.reason", given.reason, REASON_BYTES_MAX)?,
            asked_by: FIELDS.kept("amendment.asked_by", given.asked_by, ASKED_BY_BYTES_MAX)?,
            requested_at: Timestamp(self.requested_at),
        }))
    }
}
