//! Why a value cannot be written or read.

use crate::framing::SchemaId;

/// Why a value cannot be encoded. The output is left as it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The record would be larger than readers take.
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
    /// A number has no place in the record's schema.
    #[error("{field} of the {record} is out of range: {value}")]
    OutOfRange {
        /// The record's schema name.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// The number.
        value: u64,
    },
    /// A text is longer than what is kept of it.
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
    /// More values than are kept.
    #[error("{field} of the {record} has {values} values, more than {values_max}")]
    TooMany {
        /// The record's schema name.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// How many.
        values: usize,
        /// The most.
        values_max: usize,
    },
    /// The registry has given the record's schema no id.
    #[error("the {record} cannot be written: its schema has no id of the registry's")]
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

/// Why bytes are not a record: the cause that goes to the dead-letter topic with them.
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
    /// The value begins like neither Avro single-object encoding nor Confluent wire format.
    #[error(
        "the value of {bytes} bytes is framed neither as an Avro single object nor as Confluent wire format"
    )]
    NotFramed {
        /// Its size.
        bytes: usize,
    },
    /// The value was written with a schema that is not known here.
    #[error("the {record} was written with an unknown schema, fingerprint {fingerprint:016x}")]
    UnknownFingerprint {
        /// The record that was expected.
        record: &'static str,
        /// The CRC-64-AVRO fingerprint of the schema that it was written with.
        fingerprint: u64,
    },
    /// The value names a schema of a registry, and none is configured.
    #[error("the {record} names the registry's schema {id}, and no schema registry is configured")]
    NoRegistry {
        /// The record that was expected.
        record: &'static str,
        /// The schema's id.
        id: SchemaId,
    },
    /// The registry has no such schema.
    #[error("the {record} names the registry's schema {id}, which the registry does not have")]
    UnknownSchemaId {
        /// The record that was expected.
        record: &'static str,
        /// The schema's id.
        id: SchemaId,
    },
    /// What the registry has is no Avro schema, or one that cannot be read.
    #[error("the {record} names the registry's schema {id}, which cannot be used: {cause}")]
    UnusableSchema {
        /// The record that was expected.
        record: &'static str,
        /// The schema's id.
        id: SchemaId,
        /// What is wrong with it.
        cause: String,
    },
    /// The registry has not said yet what the schema is. The record may be good: it is to be read
    /// again ([`DecodeError::waits_for`]).
    #[error("the {record} names the registry's schema {id}, and the registry has not answered yet")]
    NotYet {
        /// The record that was expected.
        record: &'static str,
        /// The schema's id.
        id: SchemaId,
    },
    /// The bytes are not what the schema says.
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
        /// How many.
        bytes: usize,
    },
    /// A field says something that this version does not know.
    #[error("the {record} has a {field} that this version does not know")]
    UnknownSymbol {
        /// The record that was expected.
        record: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A number lies outside what it counts.
    #[error("{field} of the {record} is out of range: {value}")]
    OutOfRange {
        /// The record that was expected.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// The number.
        value: i64,
    },
    /// A text is longer than what is kept of it.
    #[error("{field} of the {record} has {bytes} bytes, more than {bytes_max}")]
    TooLong {
        /// The record that was expected.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// Its size.
        bytes: usize,
        /// The largest size.
        bytes_max: usize,
    },
    /// More values than are kept.
    #[error("{field} of the {record} has {values} values, more than {values_max}")]
    TooMany {
        /// The record that was expected.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// How many.
        values: usize,
        /// The most.
        values_max: usize,
    },
    /// A record of this kind needs a field that it does not have.
    #[error("the {record} has no {field}, which its kind needs")]
    Missing {
        /// The record that was expected.
        record: &'static str,
        /// The field.
        field: &'static str,
    },
}

impl DecodeError {
    /// The schema without which nobody can say yet what the bytes are; `None` if they are poison.
    /// Such a record is neither passed over nor put aside: whoever reads it waits.
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
            | Self::OutOfRange { .. }
            | Self::TooLong { .. }
            | Self::TooMany { .. }
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
