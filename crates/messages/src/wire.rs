//! The types that several wire structs share.
//!
//! Wire structs have the names of their Avro records and list their fields in the schema's order:
//! the Avro library buffers fields that arrive early. Unsigned counters of the engine are `int` or
//! `long` on the wire, as Avro has no unsigned numbers.
//!
//! One struct both encodes and decodes a record. Its texts, bytes and maps are type parameters:
//! encoding borrows them, and decoding owns them.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize as DeserializeDerive, Serialize, Serializer};
use uuid::Uuid;
use waybill_engine::{Action, Contact, Nonce, ProcessState, StepError, StepState};

use crate::error::{DecodeError, FieldError};

/// A UUID as a string: hyphenated, in lower case.
pub(crate) struct Id(pub(crate) Uuid);

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a hyphenated UUID")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Id, E> {
                if text.len() != uuid::fmt::Hyphenated::LENGTH {
                    return Err(E::custom("not a hyphenated UUID"));
                }
                Uuid::try_parse(text).map(Id).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A nonce, as bytes.
pub(crate) struct WireNonce(pub(crate) Nonce);

impl Serialize for WireNonce {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0.0)
    }
}

impl<'de> Deserialize<'de> for WireNonce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = WireNonce;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a nonce of {} bytes", Nonce::BYTES)
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<WireNonce, E> {
                let nonce = bytes.try_into();
                nonce
                    .map(|nonce| WireNonce(Nonce(nonce)))
                    .map_err(|_| E::invalid_length(bytes.len(), &self))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// An Avro map, borrowed from pairs in their order.
pub(crate) struct MapOut<'a, V>(pub(crate) &'a [(String, V)]);

impl<V: Serialize> Serialize for MapOut<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Up to this many names of a map are compared pairwise; above that, in a set.
const NAMES_COMPARED_MAX: usize = 16;

/// An Avro map as pairs, in the order of the wire; each name occurs once.
pub(crate) struct MapIn<V>(pub(crate) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for MapIn<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
            type Value = MapIn<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MapIn<V>, A::Error> {
                // A hostile record may announce any size: do not allocate for it.
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(0).min(32));
                while let Some((name, value)) = map.next_entry::<String, V>()? {
                    pairs.push((name, value));
                }
                match repeated(&pairs) {
                    Some(name) => Err(A::Error::custom(format_args!(
                        "{name} occurs twice in a map"
                    ))),
                    None => Ok(MapIn(pairs)),
                }
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// A name that occurs more than once. Takes less than quadratic time, because the map may be
/// hostile.
fn repeated<V>(pairs: &[(String, V)]) -> Option<&str> {
    let mut names = pairs.iter().map(|(name, _)| name.as_str()).enumerate();
    let mut seen = HashSet::new();
    let (_, name) = names.find(|(i, name)| match pairs.len() {
        ..=NAMES_COMPARED_MAX => pairs[..*i].iter().any(|(earlier, _)| earlier == name),
        _ => !seen.insert(*name),
    })?;
    Some(name)
}

/// The nested record `Error`.
#[derive(Serialize, DeserializeDerive)]
#[serde(rename = "Error")]
pub(crate) struct WireError<S> {
    code: S,
    message: S,
}

impl<'a> From<&'a StepError> for WireError<&'a str> {
    fn from(error: &'a StepError) -> Self {
        Self {
            code: &error.code,
            message: &error.message,
        }
    }
}

impl From<WireError<String>> for StepError {
    fn from(error: WireError<String>) -> Self {
        Self {
            code: error.code,
            message: error.message,
        }
    }
}

/// The enum `ProcessState`.
#[derive(Clone, Copy, Serialize, DeserializeDerive)]
#[serde(rename = "ProcessState")]
pub(crate) enum WireProcessState {
    Unknown,
    Pending,
    Processing,
    Processed,
    Error,
    Compensating,
    Compensated,
    Cancelled,
    CompensationFailed,
}

impl From<ProcessState> for WireProcessState {
    fn from(state: ProcessState) -> Self {
        match state {
            ProcessState::Pending => Self::Pending,
            ProcessState::Processing => Self::Processing,
            ProcessState::Processed => Self::Processed,
            ProcessState::Error => Self::Error,
            ProcessState::Compensating => Self::Compensating,
            ProcessState::Compensated => Self::Compensated,
            ProcessState::Cancelled => Self::Cancelled,
            ProcessState::CompensationFailed => Self::CompensationFailed,
        }
    }
}

impl WireProcessState {
    /// The engine's state; `None` for one that this version does not know.
    pub(crate) fn known(self) -> Option<ProcessState> {
        match self {
            Self::Unknown => None,
            Self::Pending => Some(ProcessState::Pending),
            Self::Processing => Some(ProcessState::Processing),
            Self::Processed => Some(ProcessState::Processed),
            Self::Error => Some(ProcessState::Error),
            Self::Compensating => Some(ProcessState::Compensating),
            Self::Compensated => Some(ProcessState::Compensated),
            Self::Cancelled => Some(ProcessState::Cancelled),
            Self::CompensationFailed => Some(ProcessState::CompensationFailed),
        }
    }
}

/// The enum `StepState`.
#[derive(Clone, Copy, Serialize, DeserializeDerive)]
#[serde(rename = "StepState")]
pub(crate) enum WireStepState {
    Unknown,
    NotStarted,
    Running,
    Completed,
    Failed,
    TimedOut,
    Skipped,
    Compensating,
    Compensated,
}

impl From<StepState> for WireStepState {
    fn from(state: StepState) -> Self {
        match state {
            StepState::NotStarted => Self::NotStarted,
            StepState::Running => Self::Running,
            StepState::Completed => Self::Completed,
            StepState::Failed => Self::Failed,
            StepState::TimedOut => Self::TimedOut,
            StepState::Skipped => Self::Skipped,
            StepState::Compensating => Self::Compensating,
            StepState::Compensated => Self::Compensated,
        }
    }
}

impl WireStepState {
    /// The engine's state; `None` for one that this version does not know.
    pub(crate) fn known(self) -> Option<StepState> {
        match self {
            Self::Unknown => None,
            Self::NotStarted => Some(StepState::NotStarted),
            Self::Running => Some(StepState::Running),
            Self::Completed => Some(StepState::Completed),
            Self::Failed => Some(StepState::Failed),
            Self::TimedOut => Some(StepState::TimedOut),
            Self::Skipped => Some(StepState::Skipped),
            Self::Compensating => Some(StepState::Compensating),
            Self::Compensated => Some(StepState::Compensated),
        }
    }
}

/// The nested record `StepStatus`.
#[derive(Serialize, DeserializeDerive)]
#[serde(rename = "StepStatus")]
pub(crate) struct WireStepStatus<S> {
    step: S,
    state: WireStepState,
}

impl<'a> From<&'a (String, StepState)> for WireStepStatus<&'a str> {
    fn from((step, state): &'a (String, StepState)) -> Self {
        Self {
            step,
            state: (*state).into(),
        }
    }
}

impl WireStepStatus<String> {
    /// The step and its state; `None` for a state that this version does not know.
    pub(crate) fn known(self) -> Option<(String, StepState)> {
        Some((self.step, self.state.known()?))
    }
}

/// The enum `Action`.
#[derive(Clone, Copy, Serialize, DeserializeDerive)]
#[serde(rename = "Action")]
pub(crate) enum WireAction {
    Unknown,
    Run,
    Compensate,
    Probe,
}

impl From<Action> for WireAction {
    fn from(action: Action) -> Self {
        match action {
            Action::Run => Self::Run,
            Action::Compensate => Self::Compensate,
            Action::Probe => Self::Probe,
        }
    }
}

impl WireAction {
    /// The engine's action; `None` for one that this version does not know.
    pub(crate) fn known(self) -> Option<Action> {
        match self {
            Self::Unknown => None,
            Self::Run => Some(Action::Run),
            Self::Compensate => Some(Action::Compensate),
            Self::Probe => Some(Action::Probe),
        }
    }
}

/// Adds the name of a record to the errors about its fields.
#[derive(Clone, Copy)]
pub(crate) struct Fields(pub(crate) &'static str);

impl Fields {
    /// A number as the type of its field on the wire, or in the engine.
    pub(crate) fn number<V, T>(self, field: &'static str, value: V) -> Result<T, FieldError>
    where
        V: Copy + Into<i128>,
        T: TryFrom<V>,
    {
        T::try_from(value).map_err(|_| FieldError::OutOfRange {
            record: self.0,
            field,
            value: value.into(),
        })
    }

    /// A duration as a `long` of milliseconds, rounded up, so that a short time does not become
    /// zero.
    pub(crate) fn millis(self, field: &'static str, duration: Duration) -> Result<i64, FieldError> {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        self.number(field, u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// A text that the operation's row keeps.
    pub(crate) fn kept<T: AsRef<str>>(
        self,
        field: &'static str,
        text: T,
        bytes_max: usize,
    ) -> Result<T, FieldError> {
        let bytes = text.as_ref().len();
        if bytes <= bytes_max {
            return Ok(text);
        }
        Err(FieldError::TooLong {
            record: self.0,
            field,
            bytes,
            bytes_max,
        })
    }

    /// The URIs of contacts, which the operation's row keeps.
    pub(crate) fn contacts<'a>(
        self,
        field: &'static str,
        contacts: &'a [Contact],
    ) -> Result<Vec<&'a str>, FieldError> {
        self.check_count(field, contacts.len(), Contact::COUNT_MAX)?;
        let uris = contacts.iter().map(Contact::reveal);
        uris.map(|uri| self.kept(field, uri, Contact::BYTES_MAX))
            .collect()
    }

    /// The contacts with these URIs.
    pub(crate) fn contacts_of(
        self,
        field: &'static str,
        uris: Vec<String>,
    ) -> Result<Vec<Contact>, FieldError> {
        self.check_count(field, uris.len(), Contact::COUNT_MAX)?;
        let uris = uris.into_iter();
        uris.map(|uri| self.kept(field, uri, Contact::BYTES_MAX).map(Contact::new))
            .collect()
    }

    fn check_count(
        self,
        field: &'static str,
        values: usize,
        values_max: usize,
    ) -> Result<(), FieldError> {
        if values <= values_max {
            return Ok(());
        }
        Err(FieldError::TooMany {
            record: self.0,
            field,
            values,
            values_max,
        })
    }

    /// A field that only some kinds of the record require, and this one does.
    pub(crate) fn given<T>(self, field: &'static str, value: Option<T>) -> Result<T, DecodeError> {
        value.ok_or(DecodeError::Missing {
            record: self.0,
            field,
        })
    }

    /// The value of an enum, if this version knows it.
    pub(crate) fn known<T>(self, field: &'static str, value: Option<T>) -> Result<T, DecodeError> {
        value.ok_or(DecodeError::UnknownSymbol {
            record: self.0,
            field,
        })
    }
}
