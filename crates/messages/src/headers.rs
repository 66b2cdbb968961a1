//! Record headers: the trace context, the mark of records that were rerouted, and what goes with
//! a dead letter.
//!
//! Dead letters carry the headers of Kafka Connect's dead-letter queue, so that tools made for
//! those show them. All their values are text.

/// The W3C trace context that a record belongs to.
pub const TRACEPARENT: &str = "traceparent";

/// Marks a record that lay in another partition than its operation's and was rerouted; the value is the
/// number of partitions at that time, as text. A record that is misrouted again under the same number is poison.
pub const REROUTED: &str = "waybill-rerouted";

/// The topic that the poison record lay on.
pub const ERRORS_TOPIC: &str = "__connect.errors.topic";
/// The partition that it lay in.
pub const ERRORS_PARTITION: &str = "__connect.errors.partition";
/// Its offset there.
pub const ERRORS_OFFSET: &str = "__connect.errors.offset";
/// Who put it aside: `waybill`.
pub const ERRORS_CONNECTOR_NAME: &str = "__connect.errors.connector.name";
/// The process that put it aside.
pub const ERRORS_TASK_ID: &str = "__connect.errors.task.id";
/// What was being done with it.
pub const ERRORS_STAGE: &str = "__connect.errors.stage";
/// The part of Waybill that did it.
pub const ERRORS_CLASS_NAME: &str = "__connect.errors.class.name";
/// The kind of error.
pub const ERRORS_EXCEPTION_CLASS_NAME: &str = "__connect.errors.exception.class.name";
/// The error, for people.
pub const ERRORS_EXCEPTION_MESSAGE: &str = "__connect.errors.exception.message";

/// How many bytes the value of a record had of which only the head is kept.
pub const CUT_BYTES: &str = "__connect.errors.waybill.cut.bytes";
/// The SHA-256 of that value, in hexadecimal digits.
pub const CUT_SHA256: &str = "__connect.errors.waybill.cut.sha256";

/// Marks a dead letter that stands for records that no client can decode. The value is the first offset behind them.
pub const UNDECODABLE_UNTIL: &str = "__connect.errors.waybill.undecodable.until";

/// What was being done with a record that turned out to be poison, in Connect's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Its key was read.
    Key,
    /// Its value was decoded.
    Value,
    /// It was being worked on.
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
