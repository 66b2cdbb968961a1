//! The dead letter of a record that cannot be read.
//!
//! What must hold: a dead-letter topic accepts every record that its source accepts, complete and
//! unchanged. A record can be larger than that if its topic was reconfigured or has other writers.
//! Then its head is kept, with its size and hash: so it can be found at its position, and
//! identified.

use sha2::{Digest as _, Sha256};
use waybill_engine::{Offset, PartitionId};

use crate::headers::{
    CUT_BYTES, CUT_SHA256, ERRORS_CLASS_NAME, ERRORS_CONNECTOR_NAME, ERRORS_EXCEPTION_CLASS_NAME,
    ERRORS_EXCEPTION_MESSAGE, ERRORS_OFFSET, ERRORS_PARTITION, ERRORS_STAGE, ERRORS_TASK_ID,
    ERRORS_TOPIC, Stage, UNDECODABLE_UNTIL,
};

/// The largest record that Waybill's topics accept, in bytes: the largest value
/// ([`crate::VALUE_BYTES_MAX`]), with room for keys, headers and the batch. Every record that can
/// be encoded fits, so no broker refuses an accepted request because of its size.
pub const RECORD_BYTES_MAX: u32 = (1024 + 64) * 1024;

/// The same for dead-letter topics, whose records have additional headers.
pub const DEAD_LETTER_BYTES_MAX: u32 = RECORD_BYTES_MAX + 64 * 1024;

/// The overhead that a broker may count in addition to keys, values and headers: the batch, and
/// lengths within it.
const FRAME_BYTES: usize = 4 * 1024;
/// How many bytes to keep of the value, and of the key, of a record that is too large.
const HEAD_BYTES: usize = 64 * 1024;
/// The longest error message of a dead letter, in bytes. A dead-letter topic allows 64 KiB more
/// than its source; this limit leaves room for the record's own headers.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// The fingerprint of a record that no client can decode. Without contents to compare, a checkpoint
/// right after it is not verified.
pub const UNDECODABLE: u64 = 0;

/// Why a record becomes a dead letter, and its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadLetter<'a> {
    /// The record's topic.
    pub topic: &'a str,
    /// The record's partition.
    pub partition: PartitionId,
    /// The record's offset.
    pub offset: Offset,
    /// The process that writes the dead letter.
    pub task_id: &'a str,
    /// The processing stage in which the record failed.
    pub stage: Stage,
    /// The component that processed it, for example `scheduler`.
    pub component: &'a str,
    /// The kind of error, for example `DecodeError`.
    pub error_kind: &'a str,
    /// The error message for people; cut at 8 KiB.
    pub message: &'a str,
}

/// A record's key, value and headers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Its headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Contents {
    fn bytes(&self) -> usize {
        let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers: usize = headers.map(|(name, value)| name.len() + len(value)).sum();
        len(&self.key) + len(&self.value) + headers
    }
}

impl DeadLetter<'_> {
    /// The dead letter: the record itself, with headers after its own that say why it is one. If
    /// the record is larger than a dead-letter topic accepts: its head without its own headers, and
    /// headers with its size and hash.
    #[must_use]
    pub fn keep(&self, record: Contents) -> Contents {
        let errors = self.headers();
        let room = DEAD_LETTER_BYTES_MAX as usize - FRAME_BYTES;
        let errors_bytes: usize = errors
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let (mut kept, cut) = match record.bytes() + errors_bytes <= room {
            true => (record, Vec::new()),
            false => head_of(record),
        };
        let errors = errors.into_iter().chain(cut);
        let errors = errors.map(|(name, value)| (name.to_owned(), Some(value)));
        kept.headers.extend(errors);
        kept
    }

    /// The headers that say why the record is a dead letter.
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

/// A placeholder for records that no client can decode. It gives their positions: their bytes are
/// not available.
#[must_use]
pub fn undecodable(
    topic: &str,
    partition: PartitionId,
    (first, next): (Offset, Offset),
    cause: &str,
) -> Contents {
    let value = serde_json::json!({
        "topic": topic,
        "partition": partition.0,
        "firstOffset": first.0,
        "nextOffset": next.0,
        "cause": cause,
    });
    Contents {
        key: None,
        value: Some(value.to_string().into_bytes()),
        headers: vec![(
            UNDECODABLE_UNTIL.to_owned(),
            Some(next.to_string().into_bytes()),
        )],
    }
}

/// The head of a record, and headers with the size and the hash of its value.
fn head_of(record: Contents) -> (Contents, Vec<(&'static str, Vec<u8>)>) {
    let value = record.value.unwrap_or_default();
    let hash = Sha256::digest(&value);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let cut = vec![
        (CUT_BYTES, value.len().to_string().into_bytes()),
        (CUT_SHA256, hash.into_bytes()),
    ];
    let head = |mut bytes: Vec<u8>| {
        bytes.truncate(HEAD_BYTES);
        bytes
    };
    let head = Contents {
        key: record.key.map(head),
        value: Some(head(value)),
        headers: Vec::new(),
    };
    (head, cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: DeadLetter<'_> = DeadLetter {
        topic: "t",
        partition: PartitionId(3),
        offset: Offset(17),
        task_id: "7",
        stage: Stage::Value,
        component: "scheduler",
        error_kind: "DecodeError",
        message: "no schema",
    };

    fn text<'a>(kept: &'a Contents, name: &str) -> Option<&'a str> {
        let (_, value) = kept.headers.iter().find(|(other, _)| other == name)?;
        Some(std::str::from_utf8(value.as_deref()?).unwrap())
    }

    #[test]
    fn a_dead_letter_is_the_record_with_its_position_and_cause() {
        let record = Contents {
            key: Some(b"key".to_vec()),
            value: Some(b"noise".to_vec()),
            headers: vec![("own".to_owned(), None)],
        };
        let message = "ä".repeat(MESSAGE_BYTES_MAX);
        let dead_letter = DeadLetter {
            message: &message,
            ..SAMPLE
        };
        let kept = dead_letter.keep(record.clone());
        assert_eq!((&kept.key, &kept.value), (&record.key, &record.value));
        assert_eq!(kept.headers[0], record.headers[0]);
        for (name, value) in [
            (ERRORS_TOPIC, "t"),
            (ERRORS_PARTITION, "3"),
            (ERRORS_OFFSET, "17"),
            (ERRORS_CONNECTOR_NAME, "waybill"),
            (ERRORS_TASK_ID, "7"),
            (ERRORS_STAGE, "VALUE_CONVERTER"),
            (ERRORS_CLASS_NAME, "scheduler"),
            (ERRORS_EXCEPTION_CLASS_NAME, "DecodeError"),
        ] {
            assert_eq!(text(&kept, name), Some(value), "{name}");
        }
        let shown = text(&kept, ERRORS_EXCEPTION_MESSAGE).unwrap();
        assert_eq!(shown.len(), MESSAGE_BYTES_MAX);
        assert_eq!(text(&kept, CUT_BYTES), None);
    }

    #[test]
    fn a_placeholder_for_undecodable_records_has_their_position() {
        let range = (Offset(17), Offset(20));
        let dead_letter = undecodable("t", PartitionId(3), range, "says \"no\"\n");
        let value: serde_json::Value =
            serde_json::from_slice(dead_letter.value.as_deref().unwrap()).unwrap();
        let cause = "says \"no\"\n";
        let expected = serde_json::json!({
            "topic": "t", "partition": 3, "firstOffset": 17, "nextOffset": 20, "cause": cause,
        });
        assert_eq!(value, expected);
        assert_eq!(
            text(&SAMPLE.keep(dead_letter), UNDECODABLE_UNTIL),
            Some("20")
        );
    }

    #[test]
    fn the_largest_record_of_a_topic_is_kept_whole() {
        let largest = Contents {
            value: Some(vec![7; RECORD_BYTES_MAX as usize]),
            ..Contents::default()
        };
        let kept = SAMPLE.keep(largest.clone());
        assert_eq!(kept.value, largest.value);
        assert!(kept.bytes() <= DEAD_LETTER_BYTES_MAX as usize);
    }

    #[test]
    fn a_record_too_large_for_a_dead_letter_is_kept_by_head_size_and_hash() {
        let large = Contents {
            key: Some(vec![1; 100_000]),
            value: Some(vec![b'x'; 2_000_000]),
            headers: vec![("own".to_owned(), Some(vec![2; 1_000_000]))],
        };
        let kept = SAMPLE.keep(large);
        assert_eq!(kept.key, Some(vec![1; HEAD_BYTES]));
        assert_eq!(kept.value, Some(vec![b'x'; HEAD_BYTES]));
        assert_eq!(text(&kept, "own"), None);
        assert_eq!(text(&kept, ERRORS_OFFSET), Some("17"));
        assert_eq!(text(&kept, CUT_BYTES), Some("2000000"));
        // printf '%2000000s' '' | tr ' ' x | sha256sum
        let hash = text(&kept, CUT_SHA256).unwrap();
        assert_eq!(hash, HASH_OF_TWO_MILLION_X);
    }

    const HASH_OF_TWO_MILLION_X: &str =
        "be8889d3b8893c11d290b8dcf682164c326a90e6998f6bddb25d9a3a02daf666";
}
