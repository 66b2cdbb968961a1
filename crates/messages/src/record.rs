//! Properties of every record.

use crate::error::{DecodeError, EncodeError};
use crate::frame::Frame;
use crate::framing::Framing;
use crate::kind::RecordSchema;

/// The longest reason of a request or a recovery, in bytes. It is kept in the operation's history.
pub const REASON_BYTES_MAX: usize = 1_024;

/// The longest name of the requester of a recovery, in bytes. It is kept in the operation's
/// history.
pub const ASKED_BY_BYTES_MAX: usize = 256;

/// A value of the engine that is sent as a record.
pub trait Record: Sized {
    /// Its schema.
    const SCHEMA: RecordSchema;

    /// The CRC-64-AVRO fingerprint of its schema.
    fn fingerprint() -> u64;

    /// Appends the record's value to `out`, after a frame of the caller's choice. Writers to topics
    /// use [`Framing::encode`], which chooses the frame.
    fn encode_as(&self, frame: Frame, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Reads a record's value in either framing.
    fn decode_with(bytes: &[u8], framing: &Framing) -> Result<Self, DecodeError>;

    /// Appends the record's value to `out`, framed as an Avro single object.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode_as(Frame::SingleObject, out)
    }

    /// Reads a record's value without a schema registry.
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with(bytes, &Framing::single_object())
    }
}

impl Framing {
    /// Appends a record's framed value to `out`.
    ///
    /// # Errors
    ///
    /// If the value is out of range for the record's schema, or the schema has no ID. `out` is then
    /// left unchanged.
    pub fn encode<R: Record>(&self, record: &R, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        record.encode_as(self.frame(R::SCHEMA.kind)?, out)
    }

    /// Reads a record's value.
    ///
    /// # Errors
    ///
    /// If the bytes are not that record, or cannot be read yet
    /// ([`DecodeError::waits_for`]).
    pub fn decode<R: Record>(&self, bytes: &[u8]) -> Result<R, DecodeError> {
        R::decode_with(bytes, self)
    }
}
