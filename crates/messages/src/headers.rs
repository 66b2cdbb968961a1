//! Record headers: the trace context, the mark of rerouted records, and the headers of dead
//! letters.
//!
//! Dead letters carry the headers of Kafka Connect's dead-letter queue, so that tools for those
//! show them. All their values are text.

/// The W3C trace context that a record belongs to.
pub const TRACEPARENT: &str = "traceparent";

/// Marks a record that was rerouted because it was in a partition other than its operation's. The
/// value is the number of partitions at that time, as text. A record that is misrouted again under
/// the same number is poison.
pub const REROUTED: &str = "waybill-rerouted";

/// The topic of the poison record.
pub const ERRORS_TOPIC: &str = "__connect.errors.topic";
/// The partition of the poison record.
pub const ERRORS_PARTITION: &str = "__connect.errors.partition";
/// The offset of the poison record.
pub const ERRORS_OFFSET: &str = "__connect.errors.offset";
/// The system that wrote the dead letter: `waybill`.
pub const ERRORS_CONNECTOR_NAME: &str = "__connect.errors.connector.name";
/// The process that wrote the dead letter.
pub const ERRORS_TASK_ID: &str = "__connect.errors.task.id";
/// The processing stage in which the record failed.
pub const ERRORS_STAGE: &str = "__connect.errors.stage";
/// The component that processed it.
pub const ERRORS_CLASS_NAME: &str = "__connect.errors.class.name";
/// The kind of error.
pub const ERRORS_EXCEPTION_CLASS_NAME: &str = "__connect.errors.exception.class.name";
/// The error message for people.
pub const ERRORS_EXCEPTION_MESSAGE: &str = "__connect.errors.exception.message";

/// The size of a value of which only the head is kept, in bytes.
pub const CUT_BYTES: &str = "__connect.errors.waybill.cut.bytes";
/// The SHA-256 of that value, in hexadecimal digits.
pub const CUT_SHA256: &str = "__connect.errors.waybill.cut.sha256";

/// Marks a dead letter that represents records which no client can decode. The value is the first
/// offset after them.
pub const UNDECODABLE_UNTIL: &str = "__connect.errors.waybill.undecodable.until";

/// The processing stage in which a record turned out to be poison, in Connect's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Reading its key.
    Key,
    /// Decoding its value.
    Value,
    /// Processing it.
    Processing,
}

impl Stage {
    /// Connect's name for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "KEY_CONVERTER",
            Self::Value => "VALUE_CONVERTER",
            Self::Processing => "TASK_PUT",
        }
    }
}
