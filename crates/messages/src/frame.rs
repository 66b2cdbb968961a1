//! The frame of a record: the bytes before its datum.

use std::fmt;

/// A registry's id of a schema.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SchemaId(pub u32);

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The bytes before a datum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame {
    /// The marker and fingerprint of an Avro single object.
    SingleObject,
    /// The zero byte and schema id of the Confluent wire format.
    Confluent(SchemaId),
}
