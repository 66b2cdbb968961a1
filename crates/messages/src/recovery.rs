//! `recovery`: a request of a supervisor or an operator to the scheduler.

use std::sync::LazyLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use waybill_engine::{Attempt, AttemptSeen, OperationId, Recovery, RecoveryVerb, Timestamp};

use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::{RecordKind, RecordSchema};
use crate::record::{ASKED_BY_BYTES_MAX, REASON_BYTES_MAX, Record};
use crate::wire::{Fields, Id, WireAction};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    RecordKind::Recovery,
    include_str!("../../../schemas/recovery.avsc"),
    &[include_str!("../../../schemas/released/recovery/v1.avsc")],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename = "RecoveryVerb")]
enum WireVerb {
    Unknown,
    Wake,
    Retry,
    Compensate,
    Park,
    Resubmit,
    Abandon,
    RetryCompensation,
    Undone,
    Resubmitted,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "AttemptSeen")]
struct WireSeen<S> {
    step: S,
    action: WireAction,
    attempt: i32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Recovery")]
struct Wire<S> {
    id: Id,
    operation: Id,
    verb: WireVerb,
    seen: Option<WireSeen<S>>,
    budget_ms: Option<i64>,
    step: Option<S>,
    as_operation: Option<Id>,
    asked_by: S,
    reason: S,
    asked_at: i64,
    due: Option<i64>,
}

type Out<'a> = Wire<&'a str>;
type In = Wire<String>;

impl Record for Recovery {
    const SCHEMA: RecordSchema = SCHEMA;

    fn fingerprint() -> u64 {
        CODEC.fingerprint()
    }

    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut wire = Out {
            id: Id(self.id),
            operation: Id(self.operation.0),
            verb: WireVerb::Unknown,
            seen: None,
            budget_ms: None,
            step: None,
            as_operation: None,
            asked_by: FIELDS.kept("asked_by", &self.asked_by, ASKED_BY_BYTES_MAX)?,
            reason: FIELDS.kept("reason", &self.reason, REASON_BYTES_MAX)?,
            asked_at: self.asked_at.as_micros(),
            due: self.due.map(Timestamp::as_micros),
        };
        wire.verb = match &self.verb {
            RecoveryVerb::Wake => WireVerb::Wake,
            RecoveryVerb::Retry { seen, budget } => {
                wire.seen = Some(WireSeen::new(seen)?);
                wire.budget_ms = Some(FIELDS.millis("budget_ms", *budget)?);
                WireVerb::Retry
            }
            RecoveryVerb::Compensate { seen } => {
                wire.seen = seen.as_ref().map(WireSeen::new).transpose()?;
                WireVerb::Compensate
            }
            RecoveryVerb::Park { seen } => {
                wire.seen = Some(WireSeen::new(seen)?);
                WireVerb::Park
            }
            RecoveryVerb::Resubmit => WireVerb::Resubmit,
            RecoveryVerb::Abandon => WireVerb::Abandon,
            RecoveryVerb::RetryCompensation => WireVerb::RetryCompensation,
            RecoveryVerb::Undone { step } => {
                wire.step = Some(step);
                WireVerb::Undone
            }
            RecoveryVerb::Resubmitted { as_operation } => {
                wire.as_operation = Some(Id(as_operation.0));
                WireVerb::Resubmitted
            }
        };
        CODEC.encode(&wire, frame, out)
    }

    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        let seen = || wire.seen.map(AttemptSeen::try_from).transpose();
        let verb = match wire.verb {
            WireVerb::Unknown => return FIELDS.known("verb", None),
            WireVerb::Wake => RecoveryVerb::Wake,
            WireVerb::Retry => {
                let budget_ms = FIELDS.given("budget_ms", wire.budget_ms)?;
                RecoveryVerb::Retry {
                    seen: FIELDS.given("seen", seen()?)?,
                    budget: Duration::from_millis(FIELDS.number("budget_ms", budget_ms)?),
                }
            }
            WireVerb::Compensate => RecoveryVerb::Compensate { seen: seen()? },
            WireVerb::Park => RecoveryVerb::Park {
                seen: FIELDS.given("seen", seen()?)?,
            },
            WireVerb::Resubmit => RecoveryVerb::Resubmit,
            WireVerb::Abandon => RecoveryVerb::Abandon,
            WireVerb::RetryCompensation => RecoveryVerb::RetryCompensation,
            WireVerb::Undone => RecoveryVerb::Undone {
                step: FIELDS.given("step", wire.step)?,
            },
            WireVerb::Resubmitted => {
                let as_operation = FIELDS.given("as_operation", wire.as_operation)?;
                RecoveryVerb::Resubmitted {
                    as_operation: OperationId(as_operation.0),
                }
            }
        };
        Ok(Self {
            id: wire.id.0,
            operation: OperationId(wire.operation.0),
            asked_by: FIELDS.kept("asked_by", wire.asked_by, ASKED_BY_BYTES_MAX)?,
            reason: FIELDS.kept("reason", wire.reason, REASON_BYTES_MAX)?,
            asked_at: Timestamp(wire.asked_at),
            due: wire.due.map(Timestamp),
            verb,
        })
    }
}

impl<'a> WireSeen<&'a str> {
    fn new(seen: &'a AttemptSeen) -> Result<Self, EncodeError> {
        Ok(Self {
            step: &seen.step,
            action: seen.action.into(),
            attempt: FIELDS.number("seen.attempt", seen.attempt.0)?,
        })
    }
}

impl TryFrom<WireSeen<String>> for AttemptSeen {
    type Error = DecodeError;

    fn try_from(seen: WireSeen<String>) -> Result<Self, DecodeError> {
        Ok(Self {
            step: seen.step,
            action: FIELDS.known("seen.action", seen.action.known())?,
            attempt: Attempt(FIELDS.number("seen.attempt", seen.attempt)?),
        })
    }
}
