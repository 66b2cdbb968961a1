//! What the wire structs of several records are made of.
//!
//! Wire structs carry the names of their Avro records and list their fields in the schema's order:
//! the Avro library holds fields back that come early. Unsigned counters of the engine are `int`
//! or `long` on the wire, as Avro has no unsigned numbers.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize as DeserializeDerive, Serialize, Serializer};
use uuid::Uuid;
use waybill_engine::{ProcessState, StepError, StepState};

use crate::error::{DecodeError, EncodeError};

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

/// An Avro map, borrowed from pairs, whose order is kept.
pub(crate) struct MapOut<'a, V>(pub(crate) &'a [(String, V)]);

impl<V: Serialize> Serialize for MapOut<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

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
                // The size that a hostile record announces is no reason to allocate.
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(0).min(32));
                while let Some((name, value)) = map.next_entry::<String, V>()? {
                    if pairs.iter().any(|(other, _)| *other == name) {
                        return Err(A::Error::custom(format_args!(
                            "{name} occurs twice in a map"
                        )));
                    }
                    pairs.push((name, value));
                }
                let distinct: HashSet<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
                if distinct.len() < pairs.len() {
                    return Err(A::Error::custom("a name occurs twice in a map"));
                }
                Ok(MapIn(pairs))
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// The nested record `Error`, on its way out.
#[derive(Serialize)]
#[serde(rename = "Error")]
pub(crate) struct ErrorOut<'a> {
    code: &'a str,
    message: &'a str,
}

impl<'a> From<&'a StepError> for ErrorOut<'a> {
    fn from(error: &'a StepError) -> Self {
        Self {
            code: &error.code,
            message: &error.message,
        }
    }
}

/// The nested record `Error`, on its way in.
#[derive(DeserializeDerive)]
#[serde(rename = "Error")]
pub(crate) struct ErrorIn {
    code: String,
    message: String,
}

impl From<ErrorIn> for StepError {
    fn from(error: ErrorIn) -> Self {
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
}

impl From<ProcessState> for WireProcessState {
    fn from(state: ProcessState) -> Self {
        match state {
            ProcessState::Pending => Self::Pending,
            ProcessState::Processing => Self::Processing,
            ProcessState::Processed => Self::Processed,
            ProcessState::Error => Self::Error,
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
        }
    }
}

/// Carries the name of a record to the errors about its fields.
#[derive(Clone, Copy)]
pub(crate) struct Fields(pub(crate) &'static str);

impl Fields {
    /// A counter as an Avro `int`.
    pub(crate) fn int(self, field: &'static str, value: u32) -> Result<i32, EncodeError> {
        i32::try_from(value).map_err(|_| EncodeError::OutOfRange {
            record: self.0,
            field,
            value: u64::from(value),
        })
    }

    /// A counter as an Avro `long`.
    pub(crate) fn long(self, field: &'static str, value: u64) -> Result<i64, EncodeError> {
        i64::try_from(value).map_err(|_| EncodeError::OutOfRange {
            record: self.0,
            field,
            value,
        })
    }

    /// A counter out of an Avro `int` or `long`.
    pub(crate) fn u32(
        self,
        field: &'static str,
        value: impl Into<i64>,
    ) -> Result<u32, DecodeError> {
        let value = value.into();
        u32::try_from(value).map_err(|_| DecodeError::OutOfRange {
            record: self.0,
            field,
            value,
        })
    }

    /// A counter out of an Avro `long`.
    pub(crate) fn u64(self, field: &'static str, value: i64) -> Result<u64, DecodeError> {
        u64::try_from(value).map_err(|_| DecodeError::OutOfRange {
            record: self.0,
            field,
            value,
        })
    }

    /// What an enum says, if this version knows it.
    pub(crate) fn known<T>(self, field: &'static str, value: Option<T>) -> Result<T, DecodeError> {
        value.ok_or(DecodeError::UnknownSymbol {
            record: self.0,
            field,
        })
    }
}
