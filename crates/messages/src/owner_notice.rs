//! `owner-notice`: a notification to the contacts of an operation.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use waybill_engine::{OperationId, OwnerNotice, Timestamp};

use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::{RecordKind, RecordSchema};
use crate::record::Record;
use crate::wire::{Fields, Id, WireProcessState};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    RecordKind::OwnerNotice,
    include_str!("../../../schemas/owner-notice.avsc"),
    &[include_str!(
        "../../../schemas/released/owner-notice/v1.avsc"
    )],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

#[derive(Serialize, Deserialize)]
#[serde(rename = "OwnerNotice")]
struct Wire<S> {
    event_id: Id,
    operation: Id,
    caller_id: Option<S>,
    workflow: S,
    tenant: S,
    state: WireProcessState,
    contacts: Vec<S>,
    at: i64,
}

type Out<'a> = Wire<&'a str>;
type In = Wire<String>;

impl Record for OwnerNotice {
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
            state: self.state.into(),
            contacts: FIELDS.contacts("contacts", &self.contacts)?,
            at: self.at.as_micros(),
        };
        CODEC.encode(&wire, frame, out)
    }

    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        Ok(Self {
            event_id: wire.event_id.0,
            operation: OperationId(wire.operation.0),
            caller_id: wire.caller_id,
            workflow: wire.workflow,
            tenant: wire.tenant,
            state: FIELDS.known("state", wire.state.known())?,
            contacts: FIELDS.contacts_of("contacts", wire.contacts)?,
            at: Timestamp(wire.at),
        })
    }
}
