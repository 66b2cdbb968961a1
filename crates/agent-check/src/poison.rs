//! Records that no agent can read.

use waybill_engine::{Action, StepRequest};
use waybill_messages::{EncodeError, Record};

/// The defect of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Poison {
    /// It is not Avro.
    Noise,
    /// It is cut off in the middle.
    Torn,
    /// Its action is the schema's `Unknown`, which readers use for unknown actions.
    UnknownAction,
    /// Its schema has one more field than any released one: the fingerprint differs, and the field
    /// is at the end.
    NewerSchema,
}

/// The fingerprint of a schema that was never released. Only a registry could provide it.
const NEWER_FINGERPRINT: u64 = 0x9e37_79b9_7f4a_7c15;

/// A single object's marker and fingerprint, in bytes.
const FRAME_BYTES: usize = 10;

impl Poison {
    pub(super) const ALL: [Self; 4] = [
        Self::Noise,
        Self::Torn,
        Self::UnknownAction,
        Self::NewerSchema,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Noise => "bytes that are not Avro",
            Self::Torn => "a truncated record",
            Self::UnknownAction => "a record with an unknown action",
            Self::NewerSchema => "a record of an unknown schema",
        }
    }

    /// The value: `request`, encoded with the defect.
    pub(super) fn value(self, request: &StepRequest) -> Result<Vec<u8>, EncodeError> {
        let mut value = encoded(request)?;
        match self {
            Self::Noise => value = b"waybill agent-check: not Avro".to_vec(),
            Self::Torn => value.truncate(FRAME_BYTES + 20),
            Self::UnknownAction => {
                // An enum is one byte here, and the only byte in which two actions differ.
                let other = encoded(&StepRequest {
                    action: match request.action {
                        Action::Run => Action::Probe,
                        Action::Compensate | Action::Probe => Action::Run,
                    },
                    ..request.clone()
                })?;
                let differing = value.iter().zip(&other).position(|(one, two)| one != two);
                if let Some(at) = differing {
                    value[at] = 0;
                }
            }
            Self::NewerSchema => {
                value[2..FRAME_BYTES].copy_from_slice(&NEWER_FINGERPRINT.to_le_bytes());
                // A string of one character.
                value.extend_from_slice(&[2, b'x']);
            }
        }
        Ok(value)
    }
}

fn encoded(request: &StepRequest) -> Result<Vec<u8>, EncodeError> {
    let mut value = Vec::new();
    request.encode(&mut value)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use waybill_agent::testing::StepRequestBuilder;

    #[test]
    fn no_poison_can_be_read() {
        let request = StepRequestBuilder::new("a", "s").build();
        for poison in Poison::ALL {
            let value = poison.value(&request).unwrap();
            assert!(StepRequest::decode(&value).is_err(), "{poison:?}");
        }
    }

    #[test]
    fn a_reader_that_guesses_reads_the_newer_schema() {
        let request = StepRequestBuilder::new("a", "s").build();
        let newer = Poison::NewerSchema.value(&request).unwrap();
        let plain = encoded(&request).unwrap();
        assert_ne!(newer[..FRAME_BYTES], plain[..FRAME_BYTES]);
        assert!(newer[FRAME_BYTES..].starts_with(&plain[FRAME_BYTES..]));
    }

    #[test]
    fn an_unknown_action_is_the_only_difference() {
        let request = StepRequestBuilder::new("a", "s").build();
        let value = Poison::UnknownAction.value(&request).unwrap();
        let plain = encoded(&request).unwrap();
        let differing = value.iter().zip(&plain).filter(|(one, two)| one != two);
        assert_eq!((value.len(), differing.count()), (plain.len(), 1));
    }
}
