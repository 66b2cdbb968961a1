//! Record headers: the trace context, the mark of records that were sent home, and what goes with
//! a dead letter.
//!
//! Dead letters carry the headers of Kafka Connect's dead-letter queue, so that tools made for
//! those show them. All their values are text.

/// The W3C trace context that a record belongs to.
pub const TRACEPARENT: &str = "traceparent";

/// Marks a record that lay in another partition than its operation's and was sent home; the value is over how
/// many partitions operations were spread then, as text. Found astray once more by that number, it is poison.
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

/// The longest error message that goes with a dead letter, in bytes. A dead-letter topic allows
/// 64 KiB more than its source; this leaves room for the record's own headers.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

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

/// Why a record is put aside, and where it lay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadLetter<'a> {
    /// The topic that it lay on.
    pub topic: &'a str,
    /// The partition that it lay in.
    pub partition: waybill_engine::PartitionId,
    /// Its offset there.
    pub offset: waybill_engine::Offset,
    /// The process that puts it aside.
    pub task_id: &'a str,
    /// What was being done with it.
    pub stage: Stage,
    /// The part of Waybill that did it, for example `scheduler`.
    pub component: &'a str,
    /// The kind of error, for example `DecodeError`.
    pub error_kind: &'a str,
    /// The error, for people; cut at 8 KiB.
    pub message: &'a str,
}

impl DeadLetter<'_> {
    /// The headers to add to those that the record had.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, Vec<u8>)> {
        let message = &self.message[..self.message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        [
            (ERRORS_TOPIC, self.topic.to_owned()),
            (ERRORS_PARTITION, self.partition.to_string()),
            (ERRORS_OFFSET, self.offset.to_string()),
            (ERRORS_CONNECTOR_NAME, "waybill".to_owned()),
            (ERRORS_TASK_ID, self.task_id.to_owned()),
            (ERRORS_STAGE, self.stage.as_str().to_owned()),
            (ERRORS_CLASS_NAME, self.component.to_owned()),
            (ERRORS_EXCEPTION_CLASS_NAME, self.error_kind.to_owned()),
            (ERRORS_EXCEPTION_MESSAGE, message.to_owned()),
        ]
        .map(|(name, value)| (name, value.into_bytes()))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use waybill_engine::{Offset, PartitionId};

    use super::*;

    #[test]
    fn a_dead_letter_says_where_it_lay_and_why_it_is_one() {
        let message = "ä".repeat(MESSAGE_BYTES_MAX);
        let letter = DeadLetter {
            topic: "t",
            partition: PartitionId(3),
            offset: Offset(17),
            task_id: "7",
            stage: Stage::Value,
            component: "scheduler",
            error_kind: "DecodeError",
            message: &message,
        };
        let headers = letter.headers();
        let text = |name: &str| {
            let (_, value) = headers.iter().find(|(other, _)| *other == name).unwrap();
            std::str::from_utf8(value).unwrap()
        };
        assert_eq!(text(ERRORS_TOPIC), "t");
        assert_eq!(text(ERRORS_PARTITION), "3");
        assert_eq!(text(ERRORS_OFFSET), "17");
        assert_eq!(text(ERRORS_CONNECTOR_NAME), "waybill");
        assert_eq!(text(ERRORS_STAGE), "VALUE_CONVERTER");
        assert_eq!(text(ERRORS_EXCEPTION_CLASS_NAME), "DecodeError");
        assert_eq!(text(ERRORS_EXCEPTION_MESSAGE).len(), MESSAGE_BYTES_MAX);
    }
}
