//! The records of the topics: their Avro schemas, framing, headers and topic names.
//!
//! This crate exists so that the engine's values are independent of the wire format, and no role
//! needs to know Avro. [`Record`] encodes and decodes the engine's own values; the wire structs
//! behind it are private. [`Topics`] names the topics of an installation, and has the [`Framing`]
//! of their records.
//!
//! What must hold here:
//!
//! * **Decoding returns for any bytes.** It never panics. It does not parse values over
//!   [`VALUE_BYTES_MAX`], and no length in a record makes it allocate more than 16 MiB.
//! * **A record is read with its writer schema**, found by fingerprint or registry ID, and resolved
//!   to the current one. A schema that cannot be found is an error with its fingerprint or ID,
//!   never a guess; a schema that is not available *yet* is a separate error.
//! * **Values that a row keeps are bounded**: a reason longer than [`REASON_BYTES_MAX`], or a name
//!   longer than [`ASKED_BY_BYTES_MAX`], is neither written nor read; nor are more or longer
//!   contacts than a [`Contact`](waybill_engine::Contact) allows.
//! * **Every released version stays readable.** The copies under `schemas/released/` are part of
//!   the decoders, and a test verifies that.
//!
//! Deliberately absent: the W3C trace context, which travels in a header
//! ([`headers::TRACEPARENT`]): decoded values have no `traceparent` until the caller sets it.

mod codec;
mod dead_letter;
mod error;
mod failed_operation;
mod frame;
mod framing;
pub mod headers;
mod kind;
mod operation_request;
mod operation_status;
mod operator_alert;
mod owner_notice;
mod record;
mod recovery;
mod schemas;
mod step_reply;
mod step_request;
mod topic_id;
mod topics;
mod wire;
mod writer_schema;

pub use dead_letter::{
    Contents, DEAD_LETTER_BYTES_MAX, DeadLetter, RECORD_BYTES_MAX, UNDECODABLE, undecodable,
};
pub use error::{DecodeError, EncodeError, FieldError, SchemaError};
pub use frame::{Frame, SchemaId};
pub use framing::{Framing, Lookup, SchemaIds, Schemas};
pub use kind::{RecordKind, RecordSchema, VALUE_BYTES_MAX};
pub use record::{ASKED_BY_BYTES_MAX, REASON_BYTES_MAX, Record};
pub use schemas::RECORD_SCHEMAS;
pub use topic_id::TopicId;
pub use topics::{Topics, is_topic_name};
pub use writer_schema::WriterSchema;
