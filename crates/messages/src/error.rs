//! Errors of encoding and decoding records.

use apache_avro::error::Details;

use crate::frame::SchemaId;

/// The longest reason of the Avro library to pass on, in bytes: reasons often contain whole
/// schemas.
const CAUSE_BYTES_MAX: usize = 200;

/// Why a field cannot be encoded or decoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FieldError {
    /// A number is out of range.
    #[error("{field} of the {record} is out of range: {value}")]
    OutOfRange {
        /// The record's schema name.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// The number.
        value: i128,
    },
    /// A text is longer than the limit of its field.
    #[error("{field} of the {record} has {bytes} bytes, more than {bytes_max}")]
    TooLong {
        /// The record's schema name.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// Its size.
        bytes: usize,
        /// The largest size.
        bytes_max: usize,
    },
    /// A field has too many values.
    #[error("{field} of the {record} has {values} values, more than {values_max}")]
    TooMany {
        /// The record's schema name.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// The number of values.
        values: usize,
        /// The limit.
        values_max: usize,
    },
}

/// Why a value cannot be encoded. The output is left unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The record would be larger than readers accept.
    #[error(
        "the {record} of {bytes} bytes is larger than {} bytes",
        crate::VALUE_BYTES_MAX
    )]
    TooLarge {
        /// The record's schema name.
        record: &'static str,
        /// Its encoded size.
        bytes: usize,
    },
    /// A field does not fit its schema.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The record's schema has no registry ID.
    #[error("the {record} cannot be written: its schema has no id in the schema registry")]
    NoSchemaId {
        /// The record's schema name.
        record: &'static str,
    },
    /// The Avro library refused the value.
    #[error("the {record} cannot be encoded: {cause}")]
    Avro {
        /// The record's schema name.
        record: &'static str,
        /// Its reason, shortened.
        cause: String,
    },
}

/// Why bytes are not a record: the reason in the dead letter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The value is larger than any record.
    #[error(
        "the value of {bytes} bytes is larger than {} bytes",
        crate::VALUE_BYTES_MAX
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The value begins neither like Avro single-object encoding nor like the Confluent wire
    /// format.
    #[error(
        "the value of {bytes} bytes has neither Avro single-object encoding nor the Confluent wire \
         format"
    )]
    NotFramed {
        /// Its size.
        bytes: usize,
    },
    /// The value was written with an unknown schema.
    #[error("the {record} was written with an unknown schema, fingerprint {fingerprint:016x}")]
    UnknownFingerprint {
        /// The record that was expected.
        record: &'static str,
        /// The CRC-64-AVRO fingerprint of its writer schema.
        fingerprint: u64,
    },
    /// The value names a registry schema, and no registry is configured.
    #[error("the {record} has schema id {id}, but no schema registry is configured")]
    NoRegistry {
        /// The record that was expected.
        record: &'static str,
        /// The schema's id.
        id: SchemaId,
    },
    /// The registry has no such schema.
    #[error("the {record} has schema id {id}, which the schema registry does not have")]
    UnknownSchemaId {
        /// The record that was expected.
        record: &'static str,
        /// The schema's id.
        id: SchemaId,
    },
    /// The registry's schema is not an Avro schema, or an unusable one.
    #[error("the {record} has schema id {id}, whose schema cannot be used: {cause}")]
    UnusableSchema {
        /// The record that was expected.
        record: &'static str,
        /// The schema's id.
        id: SchemaId,
        /// What is wrong with it.
        cause: String,
    },
    /// The registry has not returned the schema yet. The record may be good: read it again later
    /// ([`DecodeError::waits_for`]).
    #[error("the {record} has schema id {id}, which the schema registry has not returned yet")]
    NotYet {
        /// The record that was expected.
        record: &'static str,
        /// The schema's id.
        id: SchemaId,
    },
    /// The bytes do not match the schema.
    #[error("the {record} is malformed: {cause}")]
    Malformed {
        /// The record that was expected.
        record: &'static str,
        /// The Avro library's reason, shortened.
        cause: String,
    },
    /// There are bytes after the record.
    #[error("the {record} is followed by {bytes} bytes that are not part of it")]
    TrailingBytes {
        /// The record that was expected.
        record: &'static str,
        /// The number of bytes.
        bytes: usize,
    },
    /// A field has a symbol that this version does not know.
    #[error("the {record} has a {field} that this version does not support")]
    UnknownSymbol {
        /// The record that was expected.
        record: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field has a value that this version refuses.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A field is missing that this kind of record requires.
    #[error("the {record} has no {field}, which this kind of record requires")]
    Missing {
        /// The record that was expected.
        record: &'static str,
        /// The field.
        field: &'static str,
    },
}

impl DecodeError {
    /// The schema that is required to decide whether the bytes are valid; `None` if they are
    /// poison. A reader must neither skip such a record nor write a dead letter for it, but wait.
    #[must_use]
    pub fn waits_for(&self) -> Option<SchemaId> {
        match self {
            Self::NotYet { id, .. } => Some(*id),
            Self::TooLarge { .. }
            | Self::NotFramed { .. }
            | Self::UnknownFingerprint { .. }
            | Self::NoRegistry { .. }
            | Self::UnknownSchemaId { .. }
            | Self::UnusableSchema { .. }
            | Self::Malformed { .. }
            | Self::TrailingBytes { .. }
            | Self::UnknownSymbol { .. }
            | Self::Field(_)
            | Self::Missing { .. } => None,
        }
    }
}

/// Why a text is not a schema.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not an Avro schema: {cause}")]
pub struct SchemaError {
    /// The Avro library's reason, shortened.
    pub cause: String,
}

/// The Avro library's reason without the schemas in it, shortened.
pub(crate) fn cause_of(error: apache_avro::Error) -> String {
    let mut cause = match error.into_details() {
        Details::DeserializeSchemaAware {
            value_type, value, ..
        }
        | Details::SerializeValueWithSchema {
            value_type, value, ..
        } => {
            format!("{value_type}: {value}")
        }
        Details::SerializeRecordFieldWithSchema {
            field_name, error, ..
        } => {
            format!("{field_name}: {error}")
        }
        details => details.to_string(),
    };
    if cause.len() > CAUSE_BYTES_MAX {
        cause.truncate(cause.floor_char_boundary(CAUSE_BYTES_MAX));
        cause.push('…');
    }
    cause
}
