//! `step-reply`: the outcome of an attempt at a step.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use waybill_engine::{Attempt, Epoch, OperationId, Outcome, StepError, StepReply};

use crate::codec::Codec;
use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::{RecordKind, RecordSchema};
use crate::record::Record;
use crate::wire::{Fields, Id, MapIn, MapOut, WireAction, WireError, WireNonce};

pub(crate) const SCHEMA: RecordSchema = RecordSchema::new(
    RecordKind::StepReply,
    include_str!("../../../schemas/step-reply.avsc"),
    &[include_str!("../../../schemas/released/step-reply/v1.avsc")],
);

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(&SCHEMA));
const FIELDS: Fields = Fields(SCHEMA.name);

/// The wait after a `NotAttempted` without one.
const RETRY_AFTER_MS_DEFAULT: u32 = 1_000;

#[derive(Serialize, Deserialize)]
#[serde(rename = "Outcome")]
enum WireOutcome {
    Unknown,
    Success,
    Transient,
    Permanent,
    NotAttempted,
    NotPerformed,
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "StepReply")]
struct Wire<S, M> {
    operation: Id,
    step: S,
    attempt: i32,
    epoch: i64,
    action: WireAction,
    nonce: Option<WireNonce>,
    outcome: WireOutcome,
    outputs: M,
    error: Option<WireError<S>>,
    retry_after_ms: Option<i64>,
}

type Out<'a> = Wire<&'a str, MapOut<'a, String>>;
type In = Wire<String, MapIn<String>>;

impl Record for StepReply {
    const SCHEMA: RecordSchema = SCHEMA;

    fn fingerprint() -> u64 {
        CODEC.fingerprint()
    }

    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut outputs: &[(String, String)] = &[];
        let mut retry_after = None;
        let (outcome, error) = match &self.outcome {
            Outcome::Success { outputs: produced } => {
                outputs = produced;
                (WireOutcome::Success, None)
            }
            Outcome::Transient { error } => (WireOutcome::Transient, Some(error)),
            Outcome::Permanent { error } => (WireOutcome::Permanent, Some(error)),
            Outcome::Unknown { error } => (WireOutcome::Unknown, Some(error)),
            Outcome::NotPerformed => (WireOutcome::NotPerformed, None),
            Outcome::NotAttempted {
                error,
                retry_after_ms,
            } => {
                retry_after = Some(i64::from(*retry_after_ms));
                (WireOutcome::NotAttempted, Some(error))
            }
        };
        let wire = Out {
            operation: Id(self.operation.0),
            step: &self.step,
            attempt: FIELDS.number("attempt", self.attempt.0)?,
            epoch: FIELDS.number("epoch", self.epoch.0)?,
            action: self.action.into(),
            nonce: self.nonce.map(WireNonce),
            outcome,
            outputs: MapOut(outputs),
            error: error.map(WireError::from),
            retry_after_ms: retry_after,
        };
        CODEC.encode(&wire, frame, out)
    }

    /// An agent in another language may omit the reason of a failure, or the wait: the outcome
    /// counts nevertheless.
    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError> {
        let wire: In = CODEC.decode(bytes, framing)?;
        let error = || wire.error.map_or_else(unspecified, StepError::from);
        let outcome = match wire.outcome {
            WireOutcome::Success => Outcome::Success {
                outputs: wire.outputs.0,
            },
            WireOutcome::Transient => Outcome::Transient { error: error() },
            WireOutcome::Permanent => Outcome::Permanent { error: error() },
            WireOutcome::Unknown => Outcome::Unknown { error: error() },
            WireOutcome::NotPerformed => Outcome::NotPerformed,
            WireOutcome::NotAttempted => Outcome::NotAttempted {
                error: error(),
                retry_after_ms: match wire.retry_after_ms {
                    Some(retry_after) => FIELDS.number("retry_after_ms", retry_after)?,
                    None => RETRY_AFTER_MS_DEFAULT,
                },
            },
        };
        Ok(Self {
            operation: OperationId(wire.operation.0),
            step: wire.step,
            attempt: Attempt(FIELDS.number("attempt", wire.attempt)?),
            epoch: Epoch(FIELDS.number("epoch", wire.epoch)?),
            action: FIELDS.known("action", wire.action.known())?,
            nonce: wire.nonce.map(|WireNonce(nonce)| nonce),
            outcome,
        })
    }
}

fn unspecified() -> StepError {
    StepError {
        code: "unspecified".to_owned(),
        message: "the agent gave no reason".to_owned(),
    }
}
