//! What every record has in common.

use crate::codec::Schemas;
use crate::error::{DecodeError, EncodeError};

/// A committed schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordSchema {
    /// The name of its file under `schemas/`, without the extension.
    pub name: &'static str,
    /// The current schema.
    pub json: &'static str,
    /// The released versions, from 1 on.
    pub released: &'static [&'static str],
}

impl RecordSchema {
    /// Declares the schema of `schemas/<name>.avsc`.
    pub(crate) const fn new(
        name: &'static str,
        json: &'static str,
        released: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            json,
            released,
        }
    }
}

/// Every record's schema.
pub const RECORD_SCHEMAS: [RecordSchema; 8] = [
    crate::operation_request::SCHEMA,
    crate::step_request::SCHEMA,
    crate::step_reply::SCHEMA,
    crate::failed_operation::SCHEMA,
    crate::operation_status::SCHEMA,
    crate::recovery::SCHEMA,
    crate::operator_alert::SCHEMA,
    crate::owner_notice::SCHEMA,
];

/// The longest reason that a request or a recovery may give, in bytes. It is kept in the
/// operation's history.
pub const REASON_BYTES_MAX: usize = 1_024;

/// The longest name of who asks for a recovery, in bytes. It is kept in the operation's history.
pub const ASKED_BY_BYTES_MAX: usize = 256;

/// A value of the engine's that travels as a record.
pub trait Record: Sized {
    /// Its schema.
    const SCHEMA: RecordSchema;

    /// The CRC-64-AVRO fingerprint of its schema.
    fn fingerprint() -> u64;

    /// Appends the record's value to `out`, framed as an Avro single object.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Reads a record's value. Schemas of a registry are looked up in `schemas`.
    fn decode_with(bytes: &[u8], schemas: Option<&dyn Schemas>) -> Result<Self, DecodeError>;

    /// Reads a record's value where no schema registry is configured.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with(bytes, None)
    }
}
